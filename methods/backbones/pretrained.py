"""Networks for photographs: a body with its input format and pooling; GoogLeNet and SqueezeNet of torchvision."""

from __future__ import annotations

import re
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..heads import pooled
from .registry import CHECKPOINTS

NORMS = (nn.modules.batchnorm._BatchNorm,)

AVERAGED = {"state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "ema", "teacher"}
"""Prefixes of the names of weights that are averages of those of many steps."""

WRAPPERS = {"state_dict", "model_state_dict", "model", "net", "network", "backbone", "encoder", "base_encoder"} | {
    *("encoder_q", "student", "module", "_orig_mod")
}
"""Prefixes of the names of a network inside another, or of a training."""

_WRAPPED = re.compile(rf"(?:(?:{'|'.join(sorted(AVERAGED | WRAPPERS))})\.)+")

COUNTERS = ("num_batches_tracked", "relative_position_index", "attn_mask", "total_ops", "total_params", "n_averaged")
"""Ends of the names of buffers that no weights are in."""

_BESIDE = re.compile(
    r"(_?fc|heads?|\w+_head|heads?_dist|aux\w*|classif\w*|last_linear|mask_token|prototypes|projector|predictor)(\.|$)",
    re.IGNORECASE,
)
"""Names of classifiers, of the heads of a pretraining, and of what it masked images by."""


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


def _maps(network: nn.Module, width: int, *without: str) -> nn.Module:
    """A network up to its feature maps, whose channels are ``width``, with torchvision's parameter names."""
    parts = [(name, part) for name, part in network.named_children() if name not in without]
    body: Any = nn.Sequential(OrderedDict(parts))
    body.num_features = width
    return body  # type: ignore[no-any-return]


def _squeezenet() -> nn.Module:
    from torchvision.models import squeezenet1_0

    return _maps(squeezenet1_0(weights=None), 512, "classifier")


def _googlenet() -> nn.Module:
    from torchvision.models import googlenet

    return _maps(googlenet(weights=None, aux_logits=False, init_weights=False), 1024, "avgpool", "dropout", "fc")


class Photographs(nn.Module):
    """Network for photographs: normalisation to an input format, a body, and global pooling.

    Args:
        body: Pretrained network without its classifier, from images in ``input_format`` to feature maps
            ``[B, F, h, w]`` or features ``[B, F]``; its attribute ``num_features`` is F.
        input_format: Format that the body was trained with; it is saved in the state dict.
        freeze_norm: Freezing of batch norm in training: ``no``; ``statistics``, the running statistics, as in Roth et
            al. 2020; ``all``, the affine parameters too, as in Probabilistic Embeddings Revisited (PER).
        pooling: ``avg_max``, average plus maximum as in PER, or ``avg``; a body that gives features has pooled itself.

    Attributes:
        copy: Copy of the weights that was loaded, as :func:`fit_weights` returns it; empty for random ones.
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
        self.copy = ""
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
        self.feature_scale.copy_(torch.cat([*map(features_of or self, parts)]).square().mean().sqrt().clamp_min(1e-6))
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


OWN: dict[str, Callable[[], nn.Module]] = {"googlenet": _googlenet, "squeezenet1_0": _squeezenet}
"""Makers of bodies of torchvision."""

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
    return Photographs(OWN[name](), InputFormat(), freeze_norm, pooling or "avg_max")


def cached_weights(name: str) -> Path | None:
    """Find ImageNet weights that an earlier download left in torch's hub folder; None if there are none."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / CHECKPOINTS[name]
    return path if path.exists() else None


def download_weights(name: str) -> None:
    """Download ImageNet weights to the cache of torch, with errors of many kinds if that fails."""
    torch.hub.load_state_dict_from_url(f"{TORCHVISION}/{CHECKPOINTS[name]}", map_location="cpu", check_hash=True)


def load_weights(network: Photographs, path: Path) -> None:
    """Load the weights of a checkpoint into a network for photographs, with its input format if it states one."""
    state, input_format = read_checkpoint(path)
    network.copy = fit_weights(network.body, state)
    if input_format is not None:
        network.set_format(input_format)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], InputFormat | None]:
    """Read the tensors of a checkpoint by dotted name, and its input format if it states one.

    It is a ``.safetensors`` file, whose metadata may have the input format as ``input``, or one of ``torch.save``;
    errors of many kinds say that it is neither.
    """
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return state, InputFormat.parse(metadata["input"]) if "input" in metadata else None
    try:
        with torch.serialization.safe_globals([Namespace]):  # the arguments of a training, which many files have
            whole = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of the unpickler too, which quotes escape codes of terminals
        kind = re.search(r"GLOBAL (\S+)", str(error))
        if kind is None:
            raise
        raise ValueError(
            f"it has Python objects, {kind[1]}, that are not read; save its tensors: torch.save(model.state_dict(), F)"
        ) from None
    return dict(_tensors("", whole)), None


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _tensors(f"{name}.{key}" if name else str(key), inner)


def fit_weights(
    body: nn.Module,
    state: Mapping[str, Tensor],
    convert: Callable[[dict[str, Tensor]], Mapping[str, Tensor]] | None = None,
    strict: bool = True,
) -> str:
    """Copy the tensors of a checkpoint into a network by name, and return which copy of the weights they are.

    If it has averaged weights (:data:`AVERAGED`) and raw ones, the averaged ones are taken, whatever the network; other
    copies of the same weights are refused unless they are equal. The names may have the prefixes of :data:`WRAPPERS`.

    Args:
        body: The network.
        state: Tensors by dotted name.
        convert: Gives the network's names to those of others; errors of many kinds say that it cannot.
        strict: Refuse tensors that the network does not have, apart from a classifier's.

    Returns:
        ``raw`` or ``averaged``, with the prefix of the names if they have one.

    Raises:
        ValueError: If tensors are missing, left over, of another shape, or there twice.
    """
    kept, averaged = _one_copy(state)
    wanted, problems = body.state_dict(), list[tuple[int, str]]()
    cuts = {"", *(name[: at.end()] for name in kept for at in re.finditer(r"\.", _prefix(name)))}
    for prefix in sorted(cuts, key=len):
        part = {name.removeprefix(prefix): value for name, value in kept.items() if name.startswith(prefix)}
        own, strange = part, ""
        try:
            own = part if convert is None else dict(convert(dict(part)))
        except Exception as error:  # whatever the names of another network make a conversion raise
            strange = str(error) or type(error).__name__
        fitted, left = _fitted(wanted, own)
        extra = left if strict and 2 * len(fitted) > len(wanted) else []
        missing = [key for key in wanted if key not in fitted and not key.endswith(COUNTERS)]
        misfits = [key for key, value in fitted.items() if value.shape != wanted[key].shape]
        said = [strange] if strange and not extra else []
        said += [f"{len(missing)} of {len(wanted)} parameters missing, such as {missing[0]}"] if missing else []
        said += [f"{misfits[0]} has another shape"] if misfits else []
        if extra:
            shown = ", ".join(extra[:3]) + (", .." if len(extra) > 3 else "")
            said.append(f"{len(extra)} of its tensors are not of this network: {shown}")
        if not said:
            body.load_state_dict(fitted, strict=False)
            return f"{'averaged' if averaged else 'raw'}{f' ({prefix[:-1]})' if prefix else ''}"
        problems.append((len(missing), "; ".join(said)))
    least, text = min(problems)
    if least and kept:
        text += f"; its names are like {next(iter(kept))}"
    raise ValueError(text)


def _prefix(name: str) -> str:
    found = _WRAPPED.match(name)
    return found.group() if found else ""


def _one_copy(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """The tensors of one copy of the weights, and whether it is an averaged one."""
    groups: dict[str, set[str]] = {}
    for name in state:
        prefix = _prefix(name)
        groups.setdefault(prefix, set()).add(name.removeprefix(prefix))

    def same(one: str, other: str) -> bool:
        return 2 * len(groups[one] & groups[other]) > min(len(groups[one]), len(groups[other]))

    averaged = [prefix for prefix in groups if not AVERAGED.isdisjoint(prefix.split("."))]
    dropped = {raw for raw in groups if raw not in averaged and any(same(raw, each) for each in averaged)}
    for one, other in combinations([prefix for prefix in groups if prefix not in dropped], 2):
        shared = sorted(groups[one] & groups[other]) if same(one, other) else []
        # A module that is held under two names is saved twice.
        differ = [name for name in shared if not _equal(state[one + name], state[other + name])]
        if differ:
            name = differ[0]
            raise ValueError(f"it has two copies of the weights, such as {one}{name} and {other}{name}; keep one")
    return {name: value for name, value in state.items() if _prefix(name) not in dropped}, bool(averaged)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def _fitted(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors that a network has, in its shapes if only axes of length 1 differ; names of others."""
    fitted: dict[str, Tensor] = {}
    for name in filter(state.__contains__, wanted):
        # The Caffe port stores vectors as matrices of one row.
        alike = state[name].squeeze().shape == wanted[name].squeeze().shape
        fitted[name] = state[name].reshape(wanted[name].shape) if alike else state[name]
    left = [name for name in state if name not in wanted and not name.endswith(COUNTERS) and not _BESIDE.match(name)]
    return fitted, left
