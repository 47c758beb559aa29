"""Methods, one file each, and the maths that they share.

A new method is one file in this folder (or a file given to ``--plugin``) that defines a registered subclass of
:class:`Method`. Names are resolved on first use, so that listing methods does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._base import Method as Method
    from ._base import MethodParams as MethodParams
    from ._base import Paper as Paper
    from ._base import register as register
    from ._base import register_method as register_method
    from ._base import tuned as tuned
    from ._model import Embedding as Embedding
    from ._model import EmbeddingModel as EmbeddingModel
    from .heads import SpreadHead as SpreadHead
    from .losses import ArcFaceLoss as ArcFaceLoss
    from .losses import CosFaceLoss as CosFaceLoss
    from .losses import CosineClassifier as CosineClassifier
    from .published import PER as PER
    from .published import NivmfScripts as NivmfScripts
else:
    _NAMES = {
        "._base": ("Method", "MethodParams", "Paper", "register", "register_method", "tuned"),
        "._model": ("Embedding", "EmbeddingModel"),
        ".heads": ("SpreadHead",),
        ".losses": ("ArcFaceLoss", "CosFaceLoss", "CosineClassifier"),
        ".published": ("PER", "NivmfScripts"),
    }
    _MODULES = {name: module for module, names in _NAMES.items() for name in names}
    __all__ = sorted(_MODULES)

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return getattr(import_module(_MODULES[name], __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
