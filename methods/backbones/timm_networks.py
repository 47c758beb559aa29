"""Networks of timm by name: an architecture with the tag of its weights, or a repository of the Hugging Face hub.

Nothing here reads the network unless weights are to be downloaded: repositories are read from the cache of the hub.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from .pretrained import InputFormat, Photographs, fit_weights, read_checkpoint
from .registry import MODULES, NoWeights, Reads

HUB = "hf-hub:"
"""Start of the name of a network that is described by a repository of the Hugging Face hub."""

FILES = ("model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""Names of the weights in a repository, the preferred one first."""

PATCHES = "patch_embed.proj.weight"
"""Name in timm of the parameter that reads the patches of an image."""

LARGEST_PROJECTION = 1300
"""A head with more outputs is a classifier: the smallest one other than ImageNet's 1,000 classes has 10,450."""

Config = Mapping[str, Any]
"""Description of weights in timm: input size, mean, std, resizing, number of outputs, addresses."""

Conversion = Callable[..., Mapping[str, Tensor]]
"""Function of the tensors of a checkpoint and of a network of timm that gives them its names and shapes."""


def full_name(name: str, download: bool = False) -> str:
    """Name of a network with the tag that timm uses by default if it has none; a ValueError suggests near names."""
    import timm
    from timm.models import get_deprecated_models

    if name.lower().startswith((HUB, "hf_hub:")):
        return _hub_name(name, download)
    if re.search(r"[/\\:]|\.(pth?|safetensors|bin|npz)$", name):
        hub = f", a repository is {HUB}{name}" if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else ""
        raise ValueError(f"{name!r} is no name of a network; a file of weights belongs to --weights{hub}")
    arch, _, tag = name.partition(".")
    name = get_deprecated_models().get(arch) or name
    arch, _, tag = name.partition(".")
    every = timm.list_models(include_tags=True)
    if not timm.is_model(arch) or arch in get_deprecated_models():
        # As it is written first: a near name with a tag is nearly always one of several.
        raise ValueError(f"unknown backbone {name!r}{_near(name, [*MODULES, *timm.list_models()], every)}")
    tagged = [each for each in every if each.partition(".")[0] == arch]
    if tag and f"{arch}.{tag}" not in tagged:
        raise ValueError(f"backbone {arch} has no weights {tag!r}{_near(name, tagged, tagged, least=0.0)}")
    default = timm.get_pretrained_cfg(arch)
    usual = f"{arch}.{default.tag}" if default is not None and default.tag else arch
    full = f"{arch}.{tag}" if tag else usual
    return arch if arch in MODULES and full == usual else full


def _near(name: str, first: list[str], then: list[str], least: float = 0.6) -> str:
    """Sentence with known names that are near to a wrong one."""
    wanted = name.lower()
    near = get_close_matches(wanted, first, 3, least) or get_close_matches(wanted, then, 3, least)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    return f"{hint} `bench list backbones PART` has names"


def _hub_name(name: str, download: bool) -> str:
    repository = name[len(HUB) :]
    if not re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w.-]+)?", repository):
        raise ValueError(f"{name!r} does not read like {HUB}ORG/NAME")
    name = f"{HUB}{repository}"
    try:
        _hub_folder(name)
    except NoWeights:
        if not download:
            raise
        download_weights(name)
    arch = str(_read_hub(name)[1])
    import timm

    if not timm.is_model(arch):
        raise ValueError(f"{name} describes no network that timm {timm.__version__} has")
    return name


def _in_cache(repository: str, file: str) -> Path | None:
    """File of a repository in the cache of the Hugging Face hub, which may name a revision; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    name, _, revision = repository.partition("@")
    path = try_to_load_from_cache(name, file, revision=revision or None)
    return Path(path) if isinstance(path, str) else None


def _hub_folder(name: str) -> Path:
    """Folder of a repository in the cache of the Hugging Face hub; :class:`.NoWeights` if it is not there."""
    repository = name.removeprefix(HUB)
    config = _in_cache(repository, "config.json")
    if config is None:
        raise NoWeights(
            f"{name} is not in the cache of the Hugging Face hub, and a run downloads nothing: `hf download"
            f" {repository.partition('@')[0]}` brings it, or --weights download"
        )
    return config.parent


def _read_hub(name: str) -> tuple[Config, str | None]:
    from timm.models._hub import load_model_config_from_path

    try:
        config, arch, _ = load_model_config_from_path(_hub_folder(name))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, NoWeights):
            raise
        raise ValueError(f"{name} has no config.json of a network of timm") from None
    return config, arch


def config_of(name: str) -> Config:
    """Description of the weights of a network in timm; empty if it has none."""
    if name.startswith(HUB):
        return _read_hub(name)[0]
    import timm

    config = timm.get_pretrained_cfg(name)
    return {} if config is None else config.to_dict()


def reads(name: str) -> Reads:
    """How the images of a network were made in its training."""
    config = config_of(name)
    side = int(config.get("input_size", (3, 224, 224))[-1])
    return Reads(
        image_size=side,
        crop=float(config.get("crop_pct") or 0.875),
        interpolation="bilinear" if config.get("interpolation") == "bilinear" else "bicubic",
        squash=config.get("crop_mode") == "squash",
    )


def has_projection(name: str) -> bool:
    """Check if the head of the pretrained network is a projection, as of CLIP's towers, rather than a classifier."""
    config = config_of(name)
    told = f"{name} {config.get('architecture', '')} {config.get('tag', '')}".lower()
    # ImageNet's number is that of networks that were fine-tuned as classifiers.
    fits = 0 < int(config.get("num_classes", 0)) < LARGEST_PROJECTION and config.get("num_classes") != 1000
    return fits and ("clip" in told or "_pe_" in told)


class TimmNetwork(nn.Module):
    """Network of timm without its classifier, at random weights: feature maps, or features by its own pooling.

    Args:
        name: Full name of the network.
        in_channels: Channels of its input.
        pooling: ``avg_max`` or ``avg`` of feature maps ``[B, F, h, w]``, which the caller pools; ``own`` for the
            network's own pooling; ``projection`` for the projection that follows it in networks like CLIP's.
        image_size: Side of the images, pixels, or height and width; None for those of the network's training.

    Raises:
        ValueError: If the network has no such pooling, or reads images of other channels.
    """

    def __init__(
        self, name: str, in_channels: int, pooling: str, image_size: int | tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        config = config_of(name)
        trained = int(config.get("input_size", (3, 224, 224))[0])
        if trained != 3 and in_channels == 3:
            raise ValueError(f"backbone {name} reads images of {trained} channel(s), and photographs have 3")
        if pooling == "projection" and not has_projection(name):
            raise ValueError(f"backbone {name} has no projection")
        self.name, self.pooling = name, pooling
        outputs = int(config["num_classes"]) if pooling == "projection" else 0
        self.model: Any = _created(name, image_size, in_chans=in_channels, num_classes=outputs)
        features: Any = getattr(self.model, "head_hidden_size", None) or self.model.num_features
        self.num_features = outputs or int(features)

    def forward(self, images: Tensor) -> Tensor:
        """Feature maps ``[B, F, h, w]`` of images ``[B, C, H, W]``, or features ``[B, F]`` of the network's own."""
        features = self.model.forward_features(images)
        if self.pooling in ("own", "projection"):
            return self.own(features)
        return _checked(features, self._maps_width, f"{self.name} has no feature maps to pool by {self.pooling}")

    def own(self, features: Any) -> Tensor:
        """Features ``[B, F]`` by the network's own pooling, from what its ``forward_features`` gives."""
        pooled: Tensor = self.model.forward_head(features, pre_logits=self.pooling != "projection")
        return pooled

    def gives_maps(self, features: Any) -> bool:
        """Check if these are feature maps ``[B, F, h, w]`` that no layer but a pooling follows."""
        return _are_maps(features, self._maps_width)

    @property
    def _maps_width(self) -> int:
        """Channels of its feature maps; 0 if a layer follows that changes their number."""
        width = int(self.model.num_features)
        return width if width == self.num_features else 0


def _are_maps(features: Any, width: int) -> bool:
    return isinstance(features, Tensor) and features.dim() == 4 and features.shape[1] == width


@fx.wrap  # a tracer has no shapes to check
def _checked(features: Any, width: int, message: str) -> Tensor:
    """Feature maps, which these features must be."""
    if not _are_maps(features, width):
        raise ValueError(f"backbone {message}, but its own pooling")
    maps: Tensor = features
    return maps


def _created(name: str, image_size: int | tuple[int, int] | None, **options: Any) -> nn.Module:
    """A model of timm that reads images of a size: of any size if it can, else of this one, else of its own."""
    import timm
    from timm.layers.attention_pool2d import AttentionPool2d

    at = f"local-dir:{_hub_folder(name)}" if name.startswith(HUB) else name
    sizes: list[dict[str, Any]] = [{"dynamic_img_size": True}, *([{"img_size": image_size}] if image_size else []), {}]
    for size in sizes[:-1]:
        try:
            model: nn.Module = timm.create_model(at, **options, **size)
        except TypeError:  # it has no such argument
            continue
        if "img_size" not in size or not any(isinstance(layer, AttentionPool2d) for layer in model.modules()):
            return model
        break  # this pooling resamples its position embedding as it runs: weights of the own size fit
    model = timm.create_model(at, **options)
    return model


def poolings(name: str, in_channels: int, size: tuple[int, int]) -> tuple[str, ...]:
    """Poolings of a network for images of a size, the usual one first; errors of many kinds if it reads no such image.

    No weight is made for this, and nothing is computed but shapes.
    """
    with torch.device("meta"), torch.no_grad():
        body = TimmNetwork(name, in_channels, "own", size).eval().to(memory_format=torch.channels_last)
        images = torch.empty(2, in_channels, *size).to(memory_format=torch.channels_last)
        features = body.model.forward_features(images)
        own = body.own(features)
    if own.shape != (2, body.num_features):
        raise ValueError(f"it gives features of shape {list(own.shape[1:])}, not one vector per image")
    of_maps = ("avg_max", "avg") if body.gives_maps(features) else ()
    return (*of_maps, "own", *(("projection",) if has_projection(name) else ()))


def build(name: str, in_channels: int, freeze_norm: str, pooling: str | None, image_size: int | None) -> Photographs:
    """Build a network for photographs of timm by its full name, with random weights; see :class:`TimmNetwork`."""
    if pooling is None:
        side = image_size or reads(name).image_size
        pooling = poolings(name, in_channels, (side, side))[0]
    config = config_of(name)
    input_format = InputFormat(mean=config.get("mean", InputFormat.mean), std=config.get("std", InputFormat.std))
    return Photographs(TimmNetwork(name, in_channels, pooling, image_size), input_format, freeze_norm, pooling)


def cached_weights(name: str) -> Path | None:
    """Find the weights of a network that an earlier download left on this machine; None if there are none.

    They are in the folder of torch's hub or in that of the Hugging Face hub.
    """
    config = config_of(name)
    file = Path(str(config.get("url", ""))).name
    path = Path(torch.hub.get_dir()) / "checkpoints" / file
    if file and path.exists():
        return path
    repository = str(config.get("hf_hub_id", ""))
    if not repository:
        return None
    files = [config["hf_hub_filename"]] if config.get("hf_hub_filename") else []
    return next((found for each in (*files, *FILES) if (found := _in_cache(repository, each))), None)


def download_weights(name: str) -> None:
    """Download the weights of a network to the caches of timm, with errors of many kinds if that fails."""
    import timm

    timm.create_model(name, pretrained=True)


def load_weights(network: Photographs, path: Path, convert: Conversion | None = None) -> None:
    """Load a checkpoint of a network of timm in place: with timm's names, or with those of its authors.

    timm's own conversion renames parameters and resamples position embeddings of another image size; ``convert`` stands
    in for it. Nothing but tensors is read from the file.
    """
    body: Any = network.body
    if path.suffix == ".npz":
        raise ValueError("arrays of JAX are not read: give the weights as a file of .safetensors or .pth")
    state, input_format = read_checkpoint(path)
    _check_patches(body.model, state)
    theirs, strict = _conversion(body.name)
    found = convert or theirs
    alone = found is not None and len(signature(found).parameters) == 1  # some of timm's take the tensors alone
    converted = found and (lambda part: found(part) if alone else found(part, body.model))
    network.copy = fit_weights(body.model, state, converted, strict)
    if input_format is not None:
        network.set_format(input_format)


def _check_patches(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Refuse patches of another size or colour, which timm would convert: they are those of another network."""
    ours = model.state_dict().get(PATCHES)
    if ours is None:
        return
    for key, theirs in state.items():
        patches = key.endswith((PATCHES, "visual.conv1.weight")) and theirs.dim() == ours.dim()
        if patches and theirs.shape[1:] != ours.shape[1:]:
            told, wanted = ("x".join(map(str, each.shape[1:])) for each in (theirs, ours))
            raise ValueError(f"its patches are {told}, not {wanted} (channels x height x width)")


def _conversion(name: str) -> tuple[Conversion | None, bool]:
    """Conversion by timm of published checkpoints of a network, None if it has none; and whether these fit exactly.

    timm hands it to its loader alone, so this stands in for the loader while a network without memory is made.
    """
    from timm.models import _builder

    found: list[Any] = []
    loader = _builder.load_pretrained

    def found_by(model: nn.Module, *args: Any, filter_fn: Any = None, strict: bool = True, **options: Any) -> None:
        found.append((filter_fn, strict))

    _builder.load_pretrained = found_by
    try:
        with torch.device("meta"):
            _created(name, None, pretrained=True)
    finally:
        _builder.load_pretrained = loader
    return found[0] if found else (None, True)
