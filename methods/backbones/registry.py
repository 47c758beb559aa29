"""Table of the backbones: the module that builds each, and building by name."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

MODULES = {
    "convnet": "convnet",
    "bn_inception": "bn_inception",
    "googlenet": "pretrained",
    "squeezenet1_0": "pretrained",
}
"""Modules of this folder by backbone; every other name is a model of timm."""

OTHERS = "pretrained"
"""Module of all models of timm."""

FREEZE_NORM: tuple[str, ...] = ("no", "statistics", "all")


def known_backbones() -> list[str]:
    """Names of all backbones: those built in, then all models of timm."""
    import timm

    return [*MODULES, *timm.list_models()]


def check_backbone(name: str) -> None:
    """Raise an error if no backbone has this name.

    Raises:
        ValueError: If the name is unknown; the message gives the nearest known name.
    """
    if name in MODULES:
        return
    known = known_backbones()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown backbone {name!r}{hint} (known: {', '.join(MODULES)}, any model of timm)")


def backbone_module(name: str) -> str:
    """Dotted name of the module that builds a backbone, such as ``bench.methods.backbones.convnet``.

    The module is not imported. The backbone's name is not checked: every name that is not built in counts as a model
    of timm.

    Example:
        >>> [backbone_module(name).rpartition(".")[2] for name in ("bn_inception", "resnet50")]
        ['bn_inception', 'pretrained']
    """
    return f"{__package__}.{MODULES.get(name, OTHERS)}"


def find_weights(name: str, asked: str | None) -> Path | None:
    """Find the file of weights from which a backbone starts; None for random weights.

    Args:
        name: Name of the backbone.
        asked: Path of a file, ``none`` for random weights, or None for the default: ImageNet weights that are cached on
            this machine, or random weights for the small ``convnet``.

    Raises:
        ValueError: If ImageNet weights are the default and none are cached here; the message says what to do.
    """
    if asked is not None:
        return None if asked == "none" else Path(asked)
    module = import_module(backbone_module(name))
    if not hasattr(module, "cached_weights"):
        return None
    path: Path | None = module.cached_weights(name)
    if path is None:
        raise ValueError(
            f"no ImageNet weights of {name!r} in the caches of timm and torch, and a run downloads nothing: give"
            " --weights FILE (.safetensors or .pth), or --weights none to start at random"
        )
    return path


def build_backbone(
    name: str, in_channels: int, weights: Path | None = None, freeze_norm: str = "no", pooling: str = "avg_max"
) -> nn.Module:
    """Build a backbone by name, with random weights or those of a file.

    Args:
        name: One of :func:`known_backbones`.
        in_channels: Channels of the images.
        weights: Checkpoint, ``.safetensors`` or ``.pth``; None for random weights.
        freeze_norm: Freezing of batch norm in training: ``no``, its ``statistics``, or ``all`` (with the affine
            parameters).
        pooling: Global pooling: ``avg``, or ``avg_max`` for average plus maximum.

    Raises:
        ValueError: If the name is unknown or the file does not fit the architecture.
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
