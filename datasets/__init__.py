"""Data sets: one file each, with the splits, batches and augmentation they share beside them.

A new data set is one file in this folder (or a file given to ``--plugin``) that defines a registered subclass
of :class:`Dataset`. Names are resolved on first use, so that listing data sets does not import torch.
"""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "ArrayImages": "._base",
    "DataError": "._base",
    "Dataset": "._base",
    "ImageSet": "._base",
    "TrainVal": "._base",
    "register": "._base",
    "Augmentation": ".augmentation",
    "CORRUPTIONS": ".corruptions",
    "PhotoAugmentation": ".photographs",
    "PhotoDataset": ".releases",
    "PhotoImages": ".photographs",
    "View": ".photographs",
    "augment": ".augmentation",
    "centre_crop": ".augmentation",
    "corrupt": ".corruptions",
    "crop_fractions": ".augmentation",
    "class_balanced_batches": ".batches",
    "class_folds": ".splits",
    "development_and_test_classes": ".splits",
    "train_and_validation_classes": ".splits",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
