"""Backbones: modules from images ``[B, C, H, W]`` to pooled features ``[B, F]`` with ``out_features``."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from .convnet import ConvNet

BACKBONES: dict[str, Any] = {"convnet": ConvNet}


def build_backbone(name: str, in_channels: int, weights: Path | None = None) -> nn.Module:
    """Backbone by name, randomly initialised or from a safetensors file.

    Raises:
        ValueError: If the name is unknown or the file does not fit the architecture.
    """
    if name not in BACKBONES:
        near = get_close_matches(name, BACKBONES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown backbone {name!r}{hint} (known: {', '.join(sorted(BACKBONES))})")
    backbone: nn.Module = BACKBONES[name](in_channels)
    if weights is not None:
        from safetensors.torch import load_file

        try:
            backbone.load_state_dict(load_file(weights))
        except (RuntimeError, OSError, ValueError) as error:
            first = str(error).strip().splitlines()
            raise ValueError(f"{weights} does not hold weights of {name!r}: {' '.join(first[:2])}") from error
    return backbone
