"""Methods: one file each, with the maths they share beside them.

A new method is one file in this folder (or a file given to ``--plugin``) that defines a registered subclass of
:class:`Method`. Names are resolved on first use, so that listing methods does not import torch.
"""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "Method": "._base",
    "MethodParams": "._base",
    "Paper": "._base",
    "register": "._base",
    "tuned": "._base",
    "EmbeddingModel": "._model",
    "Embedding": "._model",
    "CosineClassifier": ".losses",
    "CosFaceLoss": ".losses",
    "ArcFaceLoss": ".losses",
    "SpreadHead": ".heads",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
