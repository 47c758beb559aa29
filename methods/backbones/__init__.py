"""Backbones: modules from images ``[B, C, H, W]`` to pooled features ``[B, F]`` with ``out_features``.

``convnet`` is for the embedded data sets and starts at random; all others are for photographs and bring their own
normalisation: ``bn_inception``, ``googlenet``, ``squeezenet1_0`` and every model of timm.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from torch import nn

from .convnet import ConvNet

FREEZE_NORM = ("no", "statistics", "all")


def known_backbones() -> list[str]:
    """Every name that :func:`build_backbone` takes."""
    from .pretrained import OWN_NAMES, timm_names

    return ["convnet", *OWN_NAMES, *timm_names()]


def check_backbone(name: str) -> None:
    """Refuse a backbone that does not exist.

    Raises:
        ValueError: With the nearest name.
    """
    from .pretrained import OWN_NAMES

    if name == "convnet" or name in OWN_NAMES:
        return
    known = known_backbones()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown backbone {name!r}{hint} (known: convnet, {', '.join(OWN_NAMES)}, any model of timm)")


def find_weights(name: str, asked: str | None) -> Path | None:
    """File of starting weights: what was asked for, else what is cached on this machine; None for random weights.

    Args:
        name: Backbone.
        asked: A file, ``none`` for random weights, or None for the default.

    Raises:
        ValueError: If ImageNet weights are the default and there are none here, with what to do.
    """
    if asked is not None:
        return None if asked == "none" else Path(asked)
    if name == "convnet":
        return None
    from .pretrained import cached_weights

    found = cached_weights(name)
    if found is None:
        raise ValueError(
            f"no ImageNet weights of {name!r} in the caches of timm and torch, and a run downloads nothing: give"
            " --weights FILE (.safetensors or .pth), or --weights none to start at random"
        )
    return found


def build_backbone(name: str, in_channels: int, weights: Path | None = None, freeze_norm: str = "no") -> nn.Module:
    """Backbone by name, randomly initialised or from a file.

    Args:
        name: One of :func:`known_backbones`.
        in_channels: Channels of the images.
        weights: Checkpoint, ``.safetensors`` or ``.pth``.
        freeze_norm: ``no``, ``statistics`` or ``all`` (see :class:`.pretrained.Photographs`).

    Raises:
        ValueError: If the name is unknown or the file does not fit the architecture.
    """
    check_backbone(name)
    backbone: nn.Module
    try:
        if name == "convnet":
            backbone = ConvNet(in_channels)
            if weights is not None:
                from safetensors.torch import load_file

                backbone.load_state_dict(load_file(weights))
        else:
            from .pretrained import build, load_weights

            backbone = build(name, in_channels, freeze_norm)
            if weights is not None:
                load_weights(backbone, weights)
    except Exception as error:
        if weights is None:
            raise
        # Whatever a file that is no checkpoint makes the loaders raise.
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"{weights} does not hold weights of {name!r}: {' '.join(first[:2])}") from error
    return backbone


__all__ = ["FREEZE_NORM", "build_backbone", "check_backbone", "find_weights", "known_backbones"]
