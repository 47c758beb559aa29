"""Data sets: one file each, together with the splits, batches, augmentation and corruptions that they share.

A new data set is one file in this folder (or a file given to ``--plugin``) that defines a subclass of :class:`Dataset`
decorated with :func:`register_dataset`. Names are resolved on first use, so that listing data sets does not import
torch; type checkers see the real definitions.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .array_images import ArrayImages as ArrayImages
    from .augmentation import Augmentation as Augmentation
    from .augmentation import TrainingAugmentation as TrainingAugmentation
    from .dataset import Dataset as Dataset
    from .dataset import ImageSet as ImageSet
    from .dataset import TrainVal as TrainVal
    from .dataset import register as register
    from .dataset import register_dataset as register_dataset
    from .files import DataError as DataError
    from .releases import Listing as Listing
    from .releases import PhotoDataset as PhotoDataset
    from .releases import read_lines as read_lines
    from .splits import development_and_test_classes as development_and_test_classes
    from .splits import train_and_validation_classes as train_and_validation_classes
    from .view import PhotoAugmentation as PhotoAugmentation
    from .view import View as View
else:
    from importlib import import_module

    _NAMES = {
        ".array_images": ("ArrayImages",),
        ".augmentation": ("Augmentation", "TrainingAugmentation"),
        ".files": ("DataError",),
        ".dataset": ("Dataset", "ImageSet", "TrainVal", "register", "register_dataset"),
        ".releases": ("Listing", "PhotoDataset", "read_lines"),
        ".view": ("PhotoAugmentation", "View"),
        ".splits": ("development_and_test_classes", "train_and_validation_classes"),
    }
    _EXPORTS = {name: module for module, names in _NAMES.items() for name in names}

    __all__ = sorted(_EXPORTS)

    def __getattr__(name):
        if name in _EXPORTS:
            return getattr(import_module(_EXPORTS[name], __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
