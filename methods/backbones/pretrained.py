"""Networks for photographs: a body with its input format and pooling; GoogLeNet and SqueezeNet of torchvision."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..heads import pooled
from .registry import CHECKPOINTS

NORMS = (nn.modules.batchnorm._BatchNorm,)


@dataclass(frozen=True)
class InputFormat:
    """Input format of a pretrained network: it reads ``(scale * x - mean) / std`` for an image x in [0, 1].

    ``order`` is that of the channels, ``RGB`` or ``BGR``; ``mean`` and ``std`` are in that order.
    """

    order: str = "RGB"
    scale: float = 1.0
    mean: Sequence[float] = (0.485, 0.456, 0.406)
    std: Sequence[float] = (0.229, 0.224, 0.225)

    @classmethod
    def parse(cls, text: str) -> InputFormat:
        """Input format from a sentence like ``BGR 0..255 minus (104,117,123)``, with or without ``divided by (..)``.

        The range is ``0..1`` or ``0..255``, the order of the channels ``RGB`` or ``BGR``; other sentences are a
        ValueError.

        Example:
            >>> InputFormat.parse("BGR 0..255 minus (104,117,123)").mean
            (104.0, 117.0, 123.0)
        """
        triple = r"\(([\d.]+), *([\d.]+), *([\d.]+)\)"
        match = re.fullmatch(rf"(RGB|BGR) 0\.\.(1|255) minus {triple}(?: divided by {triple})?", text.strip())
        if match is None:
            raise ValueError(f"input format {text!r} does not read like `BGR 0..255 minus (104,117,123)`")
        order, top, *numbers = match.groups()
        std = numbers[3:] if numbers[3] is not None else [1, 1, 1]
        return cls(order, float(top), tuple(map(float, numbers[:3])), tuple(map(float, std)))


class SqueezeNetMaps(nn.Module):
    """SqueezeNet 1.0 up to its last fire module: random weights, torchvision's parameter names."""

    num_features = 512

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import squeezenet1_0

        self.features = squeezenet1_0(weights=None).features

    def forward(self, images: Tensor) -> Tensor:
        """Feature maps ``[B, 512, H/16, W/16]`` of images ``[B, 3, H, W]``, normalised as in the pretraining."""
        maps: Tensor = self.features(images)
        return maps


class GoogLeNetMaps(nn.Module):
    """GoogLeNet (with batch norm) up to its last inception module: random weights, torchvision's parameter names."""

    num_features = 1024

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import googlenet

        whole = googlenet(weights=None, aux_logits=False, init_weights=False)
        for name, module in whole.named_children():
            if name not in ("avgpool", "dropout", "fc"):
                self.add_module(name, module)

    def forward(self, images: Tensor) -> Tensor:
        """Feature maps ``[B, 1024, H/32, W/32]`` of images ``[B, 3, H, W]``, normalised as in the pretraining."""
        for module in self.children():
            images = module(images)
        return images


class Photographs(nn.Module):
    """Network for photographs: normalisation to an input format, a body, and global pooling.

    Args:
        body: Pretrained network without its classifier, from images in ``input_format`` to feature maps
            ``[B, F, h, w]`` or features ``[B, F]``; its attribute ``num_features`` is F.
        input_format: Format that the body was trained with; it is saved in the state dict.
        freeze_norm: Freezing of batch norm in training: ``no``; ``statistics``, the running statistics, as in Roth et
            al. 2020; ``all``, the affine parameters too, as in Probabilistic Embeddings Revisited (PER).
        pooling: ``avg_max``, average plus maximum as in PER, or ``avg``; a body that gives features has pooled itself.
    """

    channels: Tensor
    scale: Tensor
    shift: Tensor
    feature_scale: Tensor

    def __init__(
        self, body: nn.Module, input_format: InputFormat, freeze_norm: str = "no", pooling: str = "avg_max"
    ) -> None:
        super().__init__()
        self.body = body
        features: Any = body.num_features
        self.out_features = int(features)
        self.freeze_norm, self.pooling = freeze_norm, pooling
        self.register_buffer("channels", torch.zeros(3, dtype=torch.long))
        self.register_buffer("scale", torch.ones(3, 1, 1))
        self.register_buffer("shift", torch.zeros(3, 1, 1))
        self.register_buffer("feature_scale", torch.ones(()))
        self.set_format(input_format)
        if freeze_norm == "all":
            for module in self.modules():
                if isinstance(module, NORMS):
                    for parameter in module.parameters():
                        parameter.requires_grad_(False)

    def set_format(self, input_format: InputFormat) -> None:
        """Replace the input format (mean, std, scale, order of channels) to which images are converted for the body."""
        mean, std = (torch.tensor([float(x) for x in values]) for values in (input_format.mean, input_format.std))
        self.channels.copy_(torch.tensor([2, 1, 0] if input_format.order == "BGR" else [0, 1, 2]))
        self.scale.copy_((input_format.scale / std).view(3, 1, 1))
        self.shift.copy_((-mean / std).view(3, 1, 1))

    @torch.no_grad()
    def calibrate(self, inputs: Tensor, features_of: Callable[[Tensor], Tensor] | None = None) -> None:
        """Set the constant by which features are divided, so that their root mean square over these images is 1.

        The inputs are images, or what ``features_of`` makes features of.

        Heads and learning rates are made for features of that size. A network without batch norm may give features of
        any size: those of SqueezeNet with Caffe weights are about 200, with which a confidence head fails.
        """
        was_training = self.training
        self.eval()
        self.feature_scale.fill_(1.0)
        # Few at a time: activations of 128 photographs are gigabytes.
        parts = inputs.tensor_split(max(1, len(inputs) // 16))
        self.feature_scale.copy_(
            torch.cat(list(map(features_of or self, parts))).square().mean().sqrt().clamp_min(1e-6)
        )
        self.train(was_training)

    def train(self, mode: bool = True) -> Photographs:
        """Set training or evaluation mode; frozen batch norms stay in evaluation mode and keep their statistics."""
        super().train(mode)
        if self.freeze_norm != "no":
            for module in self.modules():
                if isinstance(module, NORMS):
                    module.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Pooled features ``[B, F]`` of RGB images ``[B, 3, H, W]`` in [0, 1]."""
        return self.pool(self.body(self.prepared(images)))

    def prepared(self, images: Tensor) -> Tensor:
        """RGB images in [0, 1] in the input format of the body."""
        return images[:, self.channels] * self.scale + self.shift if images.shape[1] == 3 else images

    def pool(self, maps: Tensor) -> Tensor:
        """Pooled features ``[B, F]`` of what the body gives, divided by their scale."""
        features = maps if maps.dim() == 2 else pooled(maps, self.pooling)
        return features / self.feature_scale


OWN: dict[str, tuple[Callable[[], nn.Module], InputFormat, str]] = {
    "googlenet": (GoogLeNetMaps, InputFormat(), CHECKPOINTS["googlenet"]),
    "squeezenet1_0": (SqueezeNetMaps, InputFormat(), CHECKPOINTS["squeezenet1_0"]),
}
"""Bodies of torchvision: maker, input format of their public weights, file of the checkpoint."""

TORCHVISION = "https://download.pytorch.org/models"
"""Address of torchvision's checkpoints."""


def check_colour(name: str, in_channels: int) -> None:
    """Refuse images without the three channels that a network for colour photographs needs."""
    if in_channels != 3:
        raise ValueError(f"backbone {name!r} reads colour images, not {in_channels} channel(s); try resnet18")


def build(name: str, in_channels: int, freeze_norm: str, pooling: str | None, image_size: int | None) -> Photographs:
    """Build a network for photographs of torchvision by name, with random weights; it reads images of any size.

    ``freeze_norm`` and ``pooling`` are those of :class:`Photographs`.
    """
    check_colour(name, in_channels)
    make, input_format, _ = OWN[name]
    return Photographs(make(), input_format, freeze_norm, pooling or "avg_max")


def cached_weights(name: str) -> Path | None:
    """Find ImageNet weights that an earlier download left in torch's hub folder; None if there are none."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / OWN[name][2]
    return path if path.exists() else None


def download_weights(name: str) -> None:
    """Download ImageNet weights to the cache of torch, with errors of many kinds if that fails."""
    torch.hub.load_state_dict_from_url(f"{TORCHVISION}/{OWN[name][2]}", map_location="cpu", check_hash=True)


def load_weights(network: Photographs, path: Path) -> None:
    """Load the weights of a checkpoint into a network for photographs, with its input format if it states one."""
    state, input_format = read_checkpoint(path)
    fit_weights(network.body, state)
    if input_format is not None:
        network.set_format(input_format)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], InputFormat | None]:
    """Read the tensors of a checkpoint by name, and its input format if it states one.

    It is a ``.safetensors`` file, whose metadata may have the input format as ``input``, or one of ``torch.save``;
    errors of many kinds say that it is neither.
    """
    input_format = None
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        input_format = InputFormat.parse(metadata["input"]) if "input" in metadata else None
    else:
        state = torch.load(path, map_location="cpu", weights_only=True)
        state = state.get("state_dict", state) if isinstance(state, dict) else {}
    return state, input_format


def fit_weights(body: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy tensors into a network by name; those of a classifier are left out, all others must be there and fit."""
    wanted = body.state_dict()
    fitted: dict[str, Tensor] = {}
    for key, value in state.items():
        name = key.removeprefix("module.").removeprefix("backbone.")
        if name in wanted:
            # The Caffe port stores vectors as matrices of one row.
            alike = value.squeeze().shape == wanted[name].squeeze().shape
            fitted[name] = value.reshape(wanted[name].shape) if alike else value
    missing = [key for key in wanted if key not in fitted and not key.endswith("num_batches_tracked")]
    misfits = [key for key, value in fitted.items() if value.shape != wanted[key].shape]
    if missing or misfits:
        parts = [f"{len(missing)} of {len(wanted)} parameters missing, such as {missing[0]}"] if missing else []
        parts += [f"{misfits[0]} has another shape"] if misfits else []
        raise ValueError("; ".join(parts))
    body.load_state_dict(fitted, strict=False)
