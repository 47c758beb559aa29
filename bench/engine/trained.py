"""Trained networks of a results folder: found, opened, and applied to images of any kind."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..datasets.array_images import ArrayImages
from ..datasets.decode import decode, to_rgb
from ..datasets.files import DataError
from ..datasets.view import View, evaluation_view
from ..errors import UserError, first_line, no_such
from ..methods._model import EmbeddingModel, EnsembleModel, NonFiniteEmbeddings
from ..methods.backbones import registry
from ..methods.distributions.arrays import to_arrays
from ..seeds import seed_for
from ..site import Site
from ..store.files import file_sha256
from ..store.folder import RECORD, WEIGHTS, Store
from ..store.hub import SCHEME, fetch
from ..store.records import DamagedRecord, TestRecord, TrainRecord
from ..store.specs import Cell
from . import networks

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class PhotoTransform:
    """Converts a PIL image, or pixels uint8 ``[C, H, W]``, to a photograph as a network takes it."""

    view: View

    def __call__(self, image: Image | Tensor) -> Tensor:
        """Resized and cropped photograph, float32 ``[3, S, S]`` in [0, 1]; the network itself normalises further."""
        pixels = image if isinstance(image, Tensor) else to_rgb(image, self.view.upright)
        return evaluation_view(pixels.expand(3, -1, -1), self.view).float() / 255


@dataclass(frozen=True)
class SmallTransform:
    """Converts a PIL image, or pixels uint8 ``[C, H, W]``, to an image of an embedded data set."""

    channels: int
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    view: View

    def __call__(self, image: Image | Tensor) -> Tensor:
        """Resized and normalised image, grey if the data set is, float32 ``[C, H, W]``."""
        from torchvision.transforms.v2 import functional as F

        pixels = image if isinstance(image, Tensor) else to_rgb(image, self.view.upright)
        if self.channels == 1 and len(pixels) == 3:
            # The weights of a conversion to grey need not add up to 1: a grey image must stay what it is.
            grey = bool((pixels == pixels[:1]).all())
            pixels = pixels[:1] if grey else F.rgb_to_grayscale(pixels)
        elif len(pixels) != self.channels:
            pixels = pixels.expand(self.channels, -1, -1)
        resized: Tensor = F.resize(pixels, list(self.size), antialias=True)
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (resized.float() / 255 - mean) / std


Transform = PhotoTransform | SmallTransform

LARGEST = 50.0
"""Largest absolute value that a normalised image may have; pixels that nobody normalised go to 255."""


@dataclass(frozen=True)
class EmbeddedImages:
    """Embeddings of N images, as NumPy arrays.

    Attributes:
        mean: Means of the embeddings, ``[N, D]``: those of a deterministic method are the raw outputs of the network.
        variance: Variances, ``[N]`` or ``[N, D]``, if the method embeds into normals; else None.
        concentration: Concentrations ``[N]``, if it embeds into von Mises-Fisher distributions; else None.
        confidence: Every confidence of the images by its name in the tables (``method``, ``norm``, ``max_cosine``, ..),
            each ``[N]`` and higher = more confident.
        default: Name of the confidence that speaks for the method if only one is shown.
        parameters: Further parameters of its distribution by name, each ``[N, ..]``; empty for most methods.
    """

    mean: np.ndarray
    variance: np.ndarray | None
    concentration: np.ndarray | None
    confidence: dict[str, np.ndarray]
    default: str
    parameters: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        spread = "".join(f", {name}" for name in ("variance", "concentration") if getattr(self, name) is not None)
        return f"<{len(self)} embeddings of {self.mean.shape[1]} dimensions{spread}; {', '.join(self.confidence)}>"


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """A trained network, which embeds images.

    Attributes:
        module: The network, in evaluation mode: images ``[B, C, H, W]`` as ``transform`` makes them to an embedding
            with the attributes ``raw`` and ``distribution``.
        record: Record of its training: specification, history, cost; of an ensemble, that of its first member.
        site: Paths and device.
        place: Folder of the training, or of the test of an ensemble.
    """

    module: EmbeddingModel | EnsembleModel
    record: TrainRecord
    site: Site
    place: Path

    def __repr__(self) -> str:
        spec = self.record.spec
        of = (
            "all seeds"
            if isinstance(self.module, EnsembleModel)
            else f"{'' if spec.is_trial else 'seed '}{spec.replicate}"
        )
        return f"<{self.module.method.name} on {spec.dataset}, {of}, {self.place.name}, {self.site.device}>"

    @cached_property
    def transform(self) -> Transform:
        """Function of a PIL image, or of pixels uint8 ``[C, H, W]``, to what the network takes, as in its test.

        Raises:
            UserError: If images of its data set cannot be made from files.
        """
        spec = self.record.spec
        if spec.photographs:
            return PhotoTransform(View(**spec.photographs))
        dataset = self.site.dataset(spec.dataset)
        sample = dataset.test()
        if not isinstance(sample, ArrayImages) or dataset.input_channels not in (1, 3):
            raise UserError(f"the unit was trained on {spec.dataset!r}, whose images cannot be made from files")
        height, width = dataset.image_size
        view = View(cache=False, upright=True)
        return SmallTransform(dataset.input_channels, (height, width), sample.mean, sample.std, view)

    @property
    def view(self) -> View:
        """How photographs are read; for images of an embedded data set, how they are checked for damage."""
        return self.transform.view

    def embed(self, images: Any, batch: int = networks.CHUNK) -> EmbeddedImages:
        """Embed images; nothing is trained or changed, and a network in training mode embeds in evaluation mode.

        Args:
            images: One image or any iterable of images: paths, PIL images, uint8 arrays ``[H, W]`` or ``[H, W, C]``,
                uint8 tensors ``[C, H, W]``; and tensors of floats ``[C, H, W]``, which are taken as they are
                (``transform`` makes them). Also batches of these, ``[B, ..]``, such as those of a data loader; of pairs
                (images, labels), the labels are ignored.
            batch: Images that are embedded at a time. With 256, as in tests, an embedding is the same to the last bit
                however many others there are; other numbers may round differently, by about 1e-7.

        Raises:
            UserError: If an image cannot be read or taken, there is none, or embeddings are not finite.
        """
        if batch < 1:
            raise UserError(f"batch={batch}: embed at least one image at a time")
        try:
            blocks = _of_size(self._blocks(images), batch)
            parts = [self._embedded(rows.__getitem__, len(rows), batch) for rows in blocks]
        except DataError as error:
            raise UserError(str(error)) from None
        if not parts:
            raise UserError("no images to embed")
        return self._named(
            *({name: torch.cat([part[kind][name] for part in parts]) for name in parts[0][kind]} for kind in (0, 1))
        )

    def embed_rows(self, load: Any, count: int) -> EmbeddedImages:
        """Embed N images, which a function of row numbers ``[B]`` returns as the network takes them."""
        return self._named(*self._embedded(load, count, networks.CHUNK))

    def _embedded(self, load: Any, count: int, batch: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        try:
            distribution, confidences = networks.embed(self.module, load, count, self.site.device, chunk=batch)
            networks.check_finite(distribution, confidences)
        except NonFiniteEmbeddings as error:
            raise UserError(f"{self.place}: {error}; embed with another unit") from error
        return to_arrays(distribution)[1], confidences

    def _named(self, arrays: dict[str, Tensor], confidences: dict[str, Tensor]) -> EmbeddedImages:
        parameters = {name: value.numpy() for name, value in arrays.items()}
        return EmbeddedImages(
            mean=parameters.pop("loc"),
            variance=parameters.pop("variance", None),
            concentration=parameters.pop("concentration", None),
            confidence={name: value.numpy() for name, value in confidences.items()},
            default=networks.default_confidence(self.module.method, confidences),
            parameters=parameters,
        )

    def _blocks(self, images: Any) -> Iterator[Tensor]:
        """Images as the network takes them, ``[B, ..]``, B as they come."""
        if _is_images(images):
            yield self._block(images)
        elif isinstance(images, Mapping) or not isinstance(images, Iterable):
            raise UserError(f"{type(images).__name__} is no image; embed takes paths, PIL images, arrays or tensors")
        else:
            for item in images:
                first = item[0] if _is_labelled(item) else item
                yield from [self._block(first)] if _is_images(first) else self._blocks(first)

    def _block(self, images: Any) -> Tensor:
        if isinstance(images, str | os.PathLike):
            path = Path(images)
            if path.is_dir():
                raise UserError(f"{path} is a folder; name its files: sorted(Path({str(path)!r}).rglob('*.jpg'))")
            return self.transform(decode(path, self.view.upright))[None]
        if not isinstance(images, Tensor | np.ndarray):
            return self.transform(images)[None]
        tensor = torch.tensor(images) if isinstance(images, np.ndarray) else images
        if tensor.is_floating_point():
            return self._as_they_are(tensor)
        if tensor.dtype != torch.uint8:
            raise UserError(
                f"{images.dtype} is no type of images; give uint8 pixels, or floats as `transform` makes them"
            )
        if isinstance(images, Tensor) and images.dim() == 3 and len(images) == 3 and self.record.channels == 1:
            raise UserError(
                f"{list(images.shape)}: one colour image or three grey ones? give [1, 3, H, W] or [3, 1, H, W]"
            )
        if isinstance(images, np.ndarray):
            tensor = tensor[..., None] if tensor.dim() == 2 else tensor
            tensor = tensor.movedim(-1, -3)
        if tensor.dim() not in (3, 4) or tensor.shape[-3] not in (1, 3):
            wanted = "arrays [H, W], [H, W, C] or [N, H, W, C], tensors [C, H, W] or [N, C, H, W]"
            raise UserError(f"uint8 images of the shape {list(images.shape)}; pixels are {wanted}, C 1 or 3")
        return torch.stack([self.transform(pixels) for pixels in (tensor if tensor.dim() == 4 else tensor[None])])

    def _as_they_are(self, images: Tensor) -> Tensor:
        given = self.record.spec.backbone == registry.GIVEN
        dims = 1 if given else 3
        images = images[None] if images.dim() == dims else images
        if images.dim() != dims + 1 or (images.shape[1] != self.record.channels and not given):
            wanted = "[N, F]" if given else f"[N, {self.record.channels}, H, W]"
            raise UserError(f"images of the shape {list(images.shape)}; this network takes {wanted}")
        largest = float(images.abs().max()) if images.numel() else 0.0
        if not given and largest > LARGEST:
            raise UserError(
                f"floats up to {largest:.4g} are no normalised images; give uint8 pixels, or what `transform` makes"
            )
        return images.detach().float().cpu()


def _is_images(item: object) -> bool:
    """Whether something is one image, or an array of them."""
    return isinstance(item, str | os.PathLike | Tensor | np.ndarray) or hasattr(item, "convert")


def _is_labelled(item: object) -> bool:
    """Whether something is a pair of images and their labels, not two images."""
    if not isinstance(item, list | tuple) or len(item) != 2:
        return False
    images, labels = item
    if isinstance(labels, Tensor | np.ndarray):
        return labels.ndim < (images.ndim if isinstance(images, Tensor | np.ndarray) else 2)
    return not (_is_images(labels) or (isinstance(labels, list | tuple) and bool(labels) and _is_images(labels[0])))


def _of_size(blocks: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """The rows of some blocks in blocks of equal size, the last one smaller."""
    images = chain.from_iterable(blocks)
    while rows := list(islice(images, size)):
        shapes = list(dict.fromkeys(str(list(image.shape)) for image in rows))
        if len(shapes) > 1:
            raise UserError(f"images of the shapes {' and '.join(shapes[:2])} cannot be embedded together")
        yield torch.stack(rows)


def unit_folder(results: Path, unit: str) -> Path:
    """Folder of a training in a results folder, by its id or that of a test of it, or by the start of one.

    ``train-`` or ``test-`` may precede it. The test of an ensemble of all seeds is found as such, not as its members. A
    training on the Hugging Face Hub, ``hf://ORG/NAME``, is downloaded. ``METHOD/DATASET`` is the first tested seed.
    """
    if unit.startswith(SCHEME):
        return fetch(unit)
    if re.fullmatch(r"\w+/\w+", unit):
        return pair_folder(results, *unit.split("/"))
    matching: dict[Path, None] = {}
    start = unit.removeprefix("train-").removeprefix("test-")
    if not start or start.strip("0123456789abcdef"):
        raise UserError(
            f"{unit!r} is not a unit id, which the column `unit` of {results / 'metrics.csv'} has; nor METHOD/DATASET"
            f" ({', '.join(tested_pairs(results)) or 'no test is finished'})"
        )
    if not unit.startswith("test-"):
        matching |= dict.fromkeys(sorted(results.glob(f"*/*/*/train-{start}*")))
    for path in [] if unit.startswith("train-") else sorted(results.glob(f"*/*/*/test-{start}*")):
        with contextlib.suppress(OSError, DamagedRecord):
            matching |= dict.fromkeys(_tested(path, TestRecord.from_json((path / RECORD).read_bytes())))
    if not matching:
        raise UserError(f"no unit {unit} in {results}; the column `unit` of {results / 'metrics.csv'} has the ids")
    if len(matching) > 1:
        names = ", ".join(f"{path.parent.name}/{path.name}" for path in list(matching)[:3])
        raise UserError(f"{unit} names {len(matching)} units ({names}, ..); name one of them")
    return next(iter(matching))


def tested_pairs(results: Path) -> list[str]:
    """What a results folder has tests of, as METHOD/DATASET."""
    return sorted({f"{path.parts[-2]}/{path.parts[-3]}" for path in Store(results).units("test")})


def _tested(path: Path, record: TestRecord) -> list[Path]:
    """Folders of what a test tested."""
    if record.spec.ensemble == "seeds":
        return [path]
    trained = path.parent.with_name(record.trained_cell.method)
    return [trained / f"train-{name}" for name in record.spec.train]


def pair_folder(results: Path, method: str, dataset: str) -> Path:
    """Folder of the first tested seed of a method on a data set, or of the test of an ensemble.

    Raises:
        UserError: If there is none, or there are several settings or models per seed; the message has their ids.
    """
    store = Store(results)
    tests = list(store.tests(Cell("*", dataset, method)))
    if not tests:
        known = ", ".join(tested_pairs(results)) or "none"
        raise UserError(f"{results} has no finished test of {method}/{dataset}; it has {known}")
    settings: dict[object, list[TestRecord]] = {}
    for record in tests:
        if record.spec.ensemble != "concatenated":  # of the same models as separated ones
            key = record.columns.model_copy(update={"seed": 0, "ensemble": ""})
            settings.setdefault(key.model_dump_json(), []).append(record)
    firsts = [min(of, key=lambda record: (record.columns.seed, -record.finished)) for of in settings.values()]
    if len(firsts) > 1:
        each = "; ".join(f"{record.unit} ({_setting(record)})" for record in sorted(firsts, key=_setting))
        raise UserError(f"{method}/{dataset} has {len(firsts)} settings in {results}; name the id of one: {each}")
    (record,) = firsts
    folders = _tested(store.unit_dir(record.cell, "test", record.unit), record)
    if len(folders) > 1:
        ids = ", ".join(path.name for path in folders)
        raise UserError(f"{method}/{dataset} has {len(folders)} models per seed, one a fold; name one: {ids}")
    return folders[0]


def _setting(record: TestRecord) -> str:
    """Words for the setting of a test."""
    columns = record.columns
    trials = f"{columns.trials} trials" if columns.trials else ""
    words = (columns.protocol, columns.base, columns.hparams, trials, columns.pinned.text)
    return " ".join(filter(None, words))


def open_network(folder: Path, site: Site) -> Network:
    """Open the network of a finished training, or of the test of an ensemble, by its folder."""
    if not folder.name.startswith("test-"):
        return Network(*networks.open_training(folder, site), site, folder)
    try:
        record = TestRecord.from_json((folder / RECORD).read_bytes())
    except (OSError, DamagedRecord) as error:
        raise UserError(f"{folder} is not a finished test ({first_line(error)})") from None
    ensemble = networks.load_ensemble(record.cell.method, record.trained_cell, record.spec.train, site)
    return Network(*ensemble, site, folder)


Load = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Encoder:
    """A network that embeds images, and how the images must be prepared for it.

    Attributes:
        view: How photographs are read (resolution, crop); with ``small``, only used to check them for damage.
        run: Function of a function from row numbers ``[B]`` to images, and of their number N; it returns the arrays of
            an embedding file by name.
        about: Sentence about a backbone: name, weights, pooling and image size; empty for a trained unit.
        digest: SHA-256 of its weights.
        small: Converts a decoded photograph to the input of a network that was trained on small images held in memory;
            None for a network that takes photographs.
    """

    view: View
    run: Callable[[Load, int], dict[str, np.ndarray]]
    small: Callable[[Tensor], Tensor] | None = None
    about: str = ""
    digest: str = ""


def checkpoint_folder(checkpoint: Path) -> Path:
    """Folder of the training that a file of trained weights belongs to, with its record next to it."""
    if not checkpoint.is_file():
        raise UserError(f"--checkpoint {checkpoint}: {no_such(checkpoint)}")
    if checkpoint.name != WEIGHTS or not (checkpoint.parent / RECORD).exists():
        raise UserError(
            f"--checkpoint {checkpoint} is not the {WEIGHTS} of a trained unit with its {RECORD} next to it; for"
            " weights of a backbone alone, use --backbone NAME --weights FILE"
        )
    return checkpoint.parent


def trained_unit(network: Network) -> Encoder:
    """Encoder of images: a trained network, and how it takes images."""

    def run(load: Load, count: int) -> dict[str, np.ndarray]:
        embedded = network.embed_rows(load, count)
        spread = {"variance": embedded.variance, "concentration": embedded.concentration}
        arrays = {name: value for name, value in spread.items() if value is not None} | embedded.parameters
        if embedded.variance is not None and not np.allclose(np.linalg.norm(embedded.mean, axis=-1), 1.0, atol=1e-3):
            # The variance belongs to these embeddings; with unit ones it would be another distribution.
            arrays["normalize"] = np.array(False)
        confidence = embedded.confidence[embedded.default]
        if embedded.default != "method" or not _follows(confidence, embedded.variance, embedded.concentration):
            arrays["confidence"] = confidence
        return {"embeddings": embedded.mean, **arrays}

    small = network.transform if isinstance(network.transform, SmallTransform) else None
    return Encoder(network.view, run, small)


def _follows(confidence: np.ndarray, variance: np.ndarray | None, concentration: np.ndarray | None) -> bool:
    """Whether a confidence is, image by image, what ``bench score`` reads off a variance or a concentration."""
    spread = concentration if variance is None else 1 / variance
    log = np.nan if spread is None else np.log(spread).reshape(len(spread), -1).mean(1)
    return np.allclose(confidence, log, rtol=1e-5, atol=1e-5)  # up to rounding to float32


def bare_backbone(
    name: str, weights: str | None, device: str, image_size: int | None = None, pooling: str | None = None
) -> Encoder:
    """Encoder of images: a backbone alone, whose pooled features are the embeddings.

    ``weights`` is a file, ``none`` for random ones, ``download`` for the network's own, downloaded if they are not on
    this machine, or None for those that are. Images are made as in the network's training, at its size unless another
    is given, and pooled as is usual for it.
    """
    if weights not in (None, "none", "download") and not Path(str(weights)).is_file():
        raise UserError(f"--weights {weights}: {no_such(Path(str(weights)))}")
    try:
        if name == registry.GIVEN:
            raise ValueError(f"{name} stands for the features of a data set, and is no network")
        name = registry.full_name(name, weights)
        own = registry.images_of(name)
        size = image_size or own.image_size
        known = registry.poolings_of(name, 3, (size, size))
        if pooling is not None and pooling not in known:
            raise UserError(f"--pooling {pooling}: backbone {name} has {', '.join(known)}")
        path = registry.find_weights(name, weights)
        torch.manual_seed(seed_for("embed", name))  # of weights that no file gives
        network = registry.build_backbone(name, 3, path, pooling=pooling or known[0], image_size=size)
        network = network.to(device).to(memory_format=torch.channels_last).eval()
    except ValueError as error:
        option = "--weights" if isinstance(error, registry.NoWeights) else "--backbone"
        raise UserError(first_line(error) if option in str(error) else f"{option}: {first_line(error)}") from None

    @torch.no_grad()
    def run(load: Load, count: int) -> dict[str, np.ndarray]:
        return {"embeddings": networks.backbone_features(network, load, count, device).numpy()}

    fit = "squash" if own.squash else "crop"
    view = View(image_size=size, resize=int(size / own.crop), fit=fit, interpolation=own.interpolation, upright=True)
    held = f"{network.copy} weights sha256:{file_sha256(path)[:8]}" if path is not None else "random weights"
    about = f"{name}, {held}, {pooling or known[0]} pooling, {size} x {size} pixels, {own.interpolation} {fit}"
    return Encoder(view, run, None, about, networks.state_sha256(network))
