"""Conformance: what any method, data set, test or corruption must do, ours or a plug-in's; ``bench test`` runs it.

In a test file::

    from bench.conformance import CHECKS, check

    @pytest.mark.parametrize("name", CHECKS)
    def test_my_method(name):
        check(name, MyMethod)

:data:`DATASET_CHECKS` takes a data set that was opened (``MyDataset()``), :data:`TEST_CHECKS` a declared test of
embeddings (one of ``bench.protocols.known_tests.load_tests([group])``), :data:`CORRUPTION_CHECKS` a registered
corruption.
"""

from __future__ import annotations

import io
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from .datasets.corruptions._base import Corruption
    from .datasets.dataset import Dataset
    from .datasets.image_set import ImageSet
    from .protocols.declare import EmbeddingTest
    from .protocols.embeddings import Embeddings
    from .protocols.rows import Row

CLASSES, PER_CLASS, DIM, SIDE = 6, 4, 16, 20


class ConformanceError(AssertionError):
    """Error of a failed check: a method, data set, test or corruption does not do what all of its kind must do."""


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ConformanceError(what)


def _batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images ``[B, 1, 20, 20]`` of a few classes that differ by a fixed pattern, and labels."""
    g = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, 1, SIDE, SIDE, generator=g)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    images = patterns[labels] + 0.3 * torch.randn(len(labels), 1, SIDE, SIDE, generator=g)
    return images, labels


def build(cls: type, fidelity: str = "corrected", **params: Any) -> Any:
    """A small network that the checks of a method use, in training mode and initialised on a batch of synthetic images.

    A two-stage method is built on a small CosFace objective as its base.

    Args:
        cls: Class of the method.
        fidelity: Form of the method: ``corrected``, or ``released`` for what the public code of its paper computes.
        params: Parameters of the method that differ from its defaults.
    """
    from .methods._model import EmbeddingModel
    from .methods.backbones.registry import build_backbone
    from .methods.cosface import CosFace

    method: Any = cls(cls.Params(**cls.defaults(fidelity) | params), fidelity)  # type: ignore[attr-defined]
    torch.manual_seed(0)
    backbone = build_backbone("convnet", 1, None)
    base = CosFace().objective(CLASSES, DIM) if method.on_base else None
    model = EmbeddingModel(method, backbone, CLASSES, DIM, base)
    model.train()
    if method.warm_start:
        images, labels = _batch()
        with torch.no_grad():
            method.initialise(model, model(images).raw, labels)
    return model


def _loss(model: Any, images: Tensor, labels: Tensor) -> Tensor:
    torch.manual_seed(1)
    loss: Tensor = model.objective(model(images).distribution, labels)
    return loss


def metadata(cls: Any) -> None:
    """Require that a method's class has a name, summary, docstring and known scorer, and that its declarations agree.

    It must have a corrected form, which computes what the paper's equations say. ``released_behaviour`` tells how the
    other forms, which compute what a public code does, differ from it. Every default lies inside its search range,
    whose ends are valid values.
    """
    from .methods.scorers.registry import get_scorer

    _require(bool(cls.name and cls.summary), "name and summary must not be empty")
    _require(cls.__doc__ is not None, f"class {cls.__name__} needs a docstring")
    get_scorer(cls.scorer)
    _require("corrected" in cls.fidelities, "every method has a corrected form")
    released = len(cls.fidelities) > 1
    _require(released == bool(cls.released_behaviour), "released_behaviour must say what fidelity=released does")
    defaults = cls.Params().model_dump()
    for name, field in cls.Params.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and "search" in extra:
            search: Any = extra["search"]
            inside = search["low"] <= defaults[name] <= search["high"]
            _require(inside, f"default of {name} is outside its search range")
            for end in ("low", "high"):
                cls.Params(**{name: search[end]})


def shapes(cls: Any) -> None:
    """Require that a method gives distributions of batch shape ``[B]`` and event shape ``[D]``, and a scalar loss."""
    model = build(cls)
    images, labels = _batch()
    embedding = model(images)
    _require(embedding.raw.shape == (len(labels), DIM), "raw embeddings must be [B, D]")
    distribution = embedding.distribution
    shape = (tuple(distribution.batch_shape), tuple(distribution.event_shape))
    _require(shape == ((len(labels),), (DIM,)), f"batch and event shape are {shape}")
    _require(_loss(model, images, labels).shape == (), "the objective must return a scalar")


def finite(cls: Any) -> None:
    """Require that the loss and the gradients of a method are finite, in each of its forms.

    The forms are the corrected one (the paper's equations) and those of public codes. The corrected form must keep them
    finite also at extreme outputs of the heads and for a batch of one class; there, a ``ValueError`` is accepted too.
    """
    for fidelity in cls.fidelities:
        model = build(cls, fidelity)
        images, labels = _batch()
        loss = _loss(model, images, labels)
        loss.backward()
        _require(bool(torch.isfinite(loss)), f"{fidelity}: the loss is {loss.item()}")
        for name, p in model.named_parameters():
            if p.requires_grad:
                _require(p.grad is not None, f"{fidelity}: {name} is trained but has no gradient")
                _require(bool(torch.isfinite(p.grad).all()), f"{fidelity}: gradient of {name} is not finite")
        if fidelity == "corrected":
            _extremes(model, labels)
            _extreme_spreads(model, labels)


def _extremes(model: Any, labels: Tensor) -> None:
    features = torch.rand(len(labels), model.mean.in_features)
    direction = torch.nn.functional.normalize(torch.randn(DIM), dim=0)
    cases = {
        "zero": torch.zeros(len(labels), DIM),
        "equal": direction.expand(len(labels), DIM),
        "opposite": direction * (1.0 - 2.0 * (torch.arange(len(labels)) % 2))[:, None],
        "huge": 1e4 * torch.randn(len(labels), DIM),
        "tiny": 1e-6 * torch.randn(len(labels), DIM),
        "one class": torch.randn(len(labels), DIM),
    }
    half = {"float16 features": features.half(), "largest float16 features": 6.5e4 * features.half()}
    for name, pooled in half.items():
        try:
            loss = model.objective(model.embed_features(pooled).distribution, labels)
        except ValueError:
            continue
        _require(bool(torch.isfinite(loss)), f"{name}: the loss is {loss.item()}")
    for name, raw in cases.items():
        spread = None if model.spread is None else model.spread(features).detach()
        y = torch.zeros_like(labels) if name == "one class" else labels
        _require_finite(model, f"{name} embeddings", raw, spread, y)


def _extreme_spreads(model: Any, labels: Tensor) -> None:
    """Require finite losses and gradients for extreme outputs of a spread head, as one large step can cause."""
    if model.spread is None:
        return
    features = torch.rand(len(labels), model.mean.in_features)
    raw = torch.randn(len(labels), DIM)
    with torch.no_grad():
        shape = model.spread(features).shape
    signs = 1.0 - 2.0 * (torch.arange(shape.numel()) % 2).reshape(shape)
    _require_finite(model, "a spread head at zero", raw, torch.zeros(shape), labels)
    # Squares of these fit float32; beyond 1e19 they would not.
    for size in (1e-6, 1e2, 1e4, 1e12):
        for sign, spread in (("+", torch.full(shape, size)), ("-", torch.full(shape, -size)), ("+-", size * signs)):
            _require_finite(model, f"a spread head at {sign}{size:g}", raw, spread, labels)


def _require_finite(model: Any, what: str, raw: Tensor, spread: Tensor | None, labels: Tensor) -> None:
    """Finite loss and gradients at some outputs of the heads; a clear refusal is as good as a value."""
    heads = [head.clone().requires_grad_() for head in (raw, spread) if head is not None]
    try:
        loss = model.objective(model.method.distribution(heads[0], heads[1] if len(heads) > 1 else None), labels)
    except ValueError:
        return
    _require(bool(torch.isfinite(loss)), f"{what}: the loss is {loss.item()}")
    for head, gradient in zip(("embeddings", "spreads"), torch.autograd.grad(loss, heads, allow_unused=True)):
        finite = gradient is None or bool(torch.isfinite(gradient).all())
        _require(finite, f"{what}: the gradient of the {head} is not finite")


def learns(cls: Any) -> None:
    """Require that 25 training steps of a method on one fixed batch lower its loss."""
    model = build(cls)
    images, labels = _batch()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=3e-3)

    def measure() -> float:
        with torch.no_grad():
            values = []
            for seed in range(5):
                torch.manual_seed(100 + seed)
                values.append(model.objective(model(images).distribution, labels))
        return float(torch.stack(values).mean())

    before = measure()
    for _ in range(25):
        optimizer.zero_grad()
        model.objective(model(images).distribution, labels).backward()
        optimizer.step()
    after = measure()
    _require(after < before, f"the loss went from {before:.4g} to {after:.4g} in 25 steps on one batch")


def confidence(cls: Any) -> None:
    """Require that the confidences of a method are finite, one value per image.

    A probabilistic method must have a confidence of its own, which is not the same for all images.
    """
    model = build(cls).eval()
    images, labels = _batch()
    found = model.confidences(model(images))
    for name, values in found.items():
        _require(values.shape == (len(labels),), f"confidence {name} must be [B]")
        _require(bool(torch.isfinite(values).all()), f"confidence {name} is not finite")
    _require(("method" in found) == model.method.probabilistic, "a distribution of one's own needs confidence()")
    if "method" in found:
        _require(float(found["method"].std()) > 0, "the confidence is the same for every image")


def scores(cls: Any) -> None:
    """Require that a method's own scorer, the similarity that it ranks with, gives finite and symmetric scores."""
    from .methods.scorers.registry import pairwise_score

    model = build(cls).eval()
    with torch.no_grad():
        distribution = model(_batch()[0]).distribution
        options = {key: value for key, value in model.scorer_options().items()}
        matrix = pairwise_score(cls.scorer, distribution, distribution, **options)
    _require(bool(torch.isfinite(matrix).all()), "scores are not finite")
    _require(bool(torch.allclose(matrix, matrix.mT, rtol=1e-4, atol=1e-4)), "scores are not symmetric")


def round_trip(cls: Any) -> None:
    """Require that a state dict restores a method's embeddings and loss exactly.

    The means must also survive the conversion of the distributions to arrays and back, up to rounding.
    """
    from .methods.distributions.arrays import from_arrays, to_arrays

    model = build(cls)
    images, labels = _batch()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other = build(cls)
    for p in other.parameters():
        nn.init.normal_(p.data)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    model.eval(), other.eval()
    first, second = model(images), other(images)
    _require(torch.equal(first.raw, second.raw), "a reloaded network embeds differently")
    _require(torch.equal(_loss(model, images, labels), _loss(other, images, labels)), "a reloaded loss differs")
    kind, arrays = to_arrays(first.distribution)
    again = from_arrays(kind, arrays)
    # Spherical distributions normalise again on the way back, which may move the last digit.
    same = torch.allclose(again.mean, first.distribution.mean, rtol=1e-5, atol=1e-6)
    _require(same, "arrays do not restore the distribution")


def deterministic(cls: Any) -> None:
    """Require that the same seeds give the same loss and gradients of a method."""
    images, labels = _batch()
    found = []
    for _ in range(2):
        model = build(cls)
        loss = _loss(model, images, labels)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]))
    same = all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1]))
    _require(torch.equal(found[0][0], found[1][0]) and same, "two runs with the same seeds differ")


def frozen(cls: Any) -> None:
    """Require that training steps leave the frozen parts of a method as they are, batch-norm statistics included."""
    model = build(cls)
    method = model.method
    parts = {"backbone": model.backbone, "mean": model.mean, "spread": model.spread, "objective": model.objective}
    held = {n: p for n, p in parts.items() if p is not None and n not in method.trained_parts}
    before = {n: {k: v.clone() for k, v in p.state_dict().items()} for n, p in held.items()}
    images, labels = _batch()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1)
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        _loss(model, images, labels).backward()
        optimizer.step()
    for name, part in held.items():
        for key, value in part.state_dict().items():
            _require(torch.equal(value, before[name][key]), f"{name}.{key} is frozen but moved")


CHECKS: dict[str, Callable[[Any], None]] = {
    f.__name__: f for f in (metadata, shapes, finite, learns, confidence, scores, round_trip, deterministic, frozen)
}
"""Every check by name: a function of a method's class that raises :class:`ConformanceError`."""


FOLDS = 4
"""Blocks of development classes that a data set is checked with."""

SAMPLE = 8
"""Images of each part of a data set that are read."""


def _parts(dataset: Dataset) -> Iterator[tuple[str, ImageSet]]:
    split = dataset.train_val(0, FOLDS)
    yield from (("train", split.train), ("val", split.val), ("test", dataset.test()))


def _sample(images: ImageSet) -> Tensor:
    """Positions of a few images, spread over the set."""
    return torch.linspace(0, len(images) - 1, min(SAMPLE, len(images))).long()


def _size(dataset: Dataset) -> list[int]:
    """Channels, height and width of an image; photographs have the size that they are read with."""
    view = getattr(dataset, "view", None)
    return [dataset.input_channels, *((view.image_size, view.image_size) if view else dataset.image_size)]


def data_metadata(dataset: Dataset) -> None:
    """Require that a data set has a name, a summary, a docstring, a number of channels and an image size."""
    cls = type(dataset)
    _require(bool(dataset.name and dataset.summary), "name and summary must not be empty")
    _require(cls.__doc__ is not None, f"class {cls.__name__} needs a docstring")
    size = (getattr(dataset, "input_channels", 0), *getattr(dataset, "image_size", ()))
    _require(len(size) == 3 and min(size) > 0, "input_channels and image_size = (height, width) must be set")


def disjoint_classes(dataset: Dataset) -> None:
    """Require that training, validation and test classes are disjoint in every fold.

    Training and validation classes together must be the same in all folds.
    """
    test, development = set(dataset.test().class_names), None
    for fold in range(FOLDS):
        split = dataset.train_val(fold, FOLDS)
        train, val = set(split.train.class_names), set(split.val.class_names)
        _require(bool(train and val), f"fold {fold} has {len(train)} training and {len(val)} validation classes")
        for first, second, what in (
            (train, val, "training and validation"),
            (train | val, test, "development and test"),
        ):
            shared = first & second
            _require(not shared, f"fold {fold}: class {min(shared, default='')!r} is among {what} classes")
        _require(development in (None, train | val), f"fold {fold} has other development classes than fold 0")
        development = train | val


def trainable_and_testable(dataset: Dataset) -> None:
    """Require that a data set has enough training classes for a batch, and queries that have something to find.

    The size of a batch comes from its recipe (its training settings). In training, validation and test images, at least
    one query must have another image of its class in the gallery.
    """
    from .errors import TooFewClasses
    from .protocols.recipes import recipe_of

    wanted = recipe_of(type(dataset)).classes_per_batch
    classes = min(dataset.train_val(fold, FOLDS).train.num_classes for fold in range(FOLDS))
    _require(wanted <= classes, str(TooFewClasses(dataset.name, wanted, classes)))
    for part, images in _parts(dataset):
        labels = images.labels
        queries, gallery = (labels if rows is None else labels[rows] for rows in (images.queries, images.gallery))
        others = torch.bincount(gallery, minlength=images.num_classes)
        # A query that is in the gallery does not find itself.
        itself = torch.zeros(len(labels), dtype=torch.bool)
        itself[slice(None) if images.gallery is None else images.gallery] = True
        own = itself if images.queries is None else itself[images.queries]
        found = bool((others[queries] - own.long() > 0).any())
        _require(found, f"{part}: no query has another image of its class to find; classes need two images or more")


def class_labels(dataset: Dataset) -> None:
    """Require that the labels of C classes are 0..C-1, with one distinct name per class."""
    for part, images in _parts(dataset):
        labels = images.labels.unique().tolist()
        _require(labels == list(range(images.num_classes)), f"{part}: labels must be 0..C-1, one per class name")
        _require(len(set(images.class_names)) == images.num_classes, f"{part}: names of classes repeat")


def unique_ids(dataset: Dataset) -> None:
    """Require that every image has an identity (id) of its own, across training, validation and test images."""
    ids = [identity for _, images in _parts(dataset) for identity in images.ids]
    _require(len(set(ids)) == len(ids), "identities repeat; every image needs one of its own, in all parts")


def evaluation(dataset: Dataset) -> None:
    """Require that evaluation images are finite float32 of the declared size, the same every time and in any batch."""
    declared = _size(dataset)
    for part, images in _parts(dataset):
        index = _sample(images)
        first = images.evaluation(index)
        _require(list(first.shape[1:]) == declared, f"{part}: images are {list(first.shape[1:])}, not {declared}")
        _require(first.dtype == torch.float32, f"{part}: images are {first.dtype}, not float32")
        _require(bool(torch.isfinite(first).all()), f"{part}: images are not finite")
        _require(images.pixels_of(index).dtype == torch.uint8, f"{part}: pixels_of must give uint8")
        again = images.evaluation(index.flip(0)).flip(0)
        _require(torch.equal(first, again), f"{part}: an image depends on its batch, or on chance")


def training_batches(dataset: Dataset) -> None:
    """Require that augmented training images are finite float32 of the declared size.

    They must be determined by the random generator alone.
    """
    images = dataset.train_val(0, FOLDS).train
    index, settings = _sample(images), dataset.augmentation_type()
    first, again = (images.training(index, settings, torch.Generator().manual_seed(0)) for _ in range(2))
    declared = [len(index), *_size(dataset)]
    _require(list(first.shape) == declared, f"a training batch is {list(first.shape)}, not {declared}")
    _require(first.dtype == torch.float32, f"a training batch is {first.dtype}, not float32")
    _require(bool(torch.isfinite(first).all()), "a training batch is not finite")
    _require(torch.equal(first, again), "the same generator gives two different batches")


def crops(dataset: Dataset) -> None:
    """Require that the crop of fraction 1 is the largest centred square, and that smaller crops have the same size.

    The fraction is the side of a crop relative to the image's side; crops are resized to the size of evaluation images.
    """
    for part, images in _parts(dataset):
        index = _sample(images)
        whole = images.cropped(index, torch.ones(len(index)))
        clean = _centred_squares(images, index)
        what = "the centred square of the shorter side" if whole.shape == clean.shape else f"{list(clean.shape)}"
        same = whole.shape == clean.shape and torch.allclose(whole, clean, atol=1e-5)
        _require(same, f"{part}: the crop of fraction 1 is not {what}")
        half = images.cropped(index, torch.full((len(index),), 0.5))
        _require(half.shape == clean.shape, f"{part}: a crop is {list(half.shape)}, not {list(clean.shape)}")


def _centred_squares(images: ImageSet, index: Tensor) -> Tensor:
    """Evaluation views of the largest centred squares: of images in memory, which are read whole, of the images."""
    from .datasets.decode import decode
    from .datasets.photo_images import PhotoImages
    from .datasets.view import evaluation_view

    if not isinstance(images, PhotoImages):
        return images.evaluation(index)
    # The side and the corner are rounded before the square is resized, so that it is not exactly the evaluation view
    # of the whole photograph, which is resized first.
    views = []
    for i in index.tolist():
        image = decode(images.paths[i])
        side = min(image.shape[1:])
        top, left = (round((length - side) / 2) for length in image.shape[1:])
        views.append(evaluation_view(image[:, top : top + side, left : left + side], images.view))
    return images.normalised(torch.stack(views))


def subsets(dataset: Dataset) -> None:
    """Require that selecting images of a data set keeps the given order, their classes and their pixels.

    Classes without a selected image must be dropped.
    """
    for part, images in _parts(dataset):
        index = _sample(images).flip(0)
        chosen = images.select(index)
        names = [images.class_names[images.labels[i]] for i in index.tolist()]
        _require(chosen.ids == tuple(images.ids[i] for i in index.tolist()), f"{part}: select changes the order")
        kept = [chosen.class_names[label] for label in chosen.labels.tolist()]
        _require(kept == names, f"{part}: select changes the class of an image")
        _require(set(chosen.class_names) == set(names), f"{part}: select keeps classes that have no image")
        pixels = chosen.evaluation(torch.arange(len(index)))
        _require(torch.equal(pixels, images.evaluation(index)), f"{part}: select changes images")


def manifests(dataset: Dataset) -> None:
    """Require that the hash of a split's content is reproducible and does not depend on the order of its images."""
    for (part, images), (_, again) in zip(_parts(dataset), _parts(dataset)):
        manifest = images.manifest_sha256()
        _require(manifest == again.manifest_sha256(), f"{part}: built twice, the content differs")
        turned = images.select(torch.arange(len(images)).flip(0))
        _require(manifest == turned.manifest_sha256(), f"{part}: the manifest depends on the order of the images")


DATASET_CHECKS: dict[str, Callable[[Dataset], None]] = {
    "metadata": data_metadata,
    "classes": disjoint_classes,
    "batches": trainable_and_testable,
    "labels": class_labels,
    "ids": unique_ids,
    "evaluation": evaluation,
    "training": training_batches,
    "crops": crops,
    "select": subsets,
    "manifest": manifests,
}
"""Every check of a data set that was opened, by name."""


def _view(clean: bool, order: Tensor | None = None) -> Embeddings:
    """Small random embeddings that have everything a test can need, in some order; one image is alone in its class."""
    from .protocols.embeddings import Embeddings, Options, Quality
    from .protocols.scorers import ScoreMatrix

    labels = torch.tensor([0] * 9 + [1] * 7 + [2] * 6 + [3] * 4 + [4] * 2 + [5])
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(6, DIM, generator=g, dtype=torch.float64)
    noise = torch.randn(len(labels), DIM, generator=g, dtype=torch.float64)
    x = nn.functional.normalize(centres[labels] + (0.6 if clean else 1.2) * noise, dim=1)
    values = {name: torch.rand(len(labels), generator=g) for name in ("norm", "method", "random", "quality")}
    people = torch.rand(len(labels), 4, generator=g).softmax(1)
    if order is None:
        order = torch.arange(len(labels))
    labels, x, people = labels[order], x[order], people[order]
    values = {name: value[order] for name, value in values.items()}
    quality = values.pop("quality")
    ids = tuple(f"image {i:02d}" for i in order.tolist())
    scorers = {
        "cosine": lambda: ScoreMatrix(x @ x.T, "cosine"),
        "mls": lambda: ScoreMatrix((x @ x.T) ** 3, "mls"),
    }
    return Embeddings(
        labels=labels,
        ids=ids,
        scorers=scorers,
        own_scorers=("cosine",),
        confidences=values,
        directions=lambda: x,
        quality=None if clean else Quality(values=quality, clean={"norm": values["method"]}),
        soft_labels=people,
        validation=Embeddings(labels=labels, ids=ids, scorers=scorers),
        candidates=lambda: ScoreMatrix(-torch.cdist(x, x), "l2"),
        clean=clean,
        options=Options(held_out_threshold=True),
    )


def _rows(test: EmbeddingTest, clean: bool, order: Tensor | None = None) -> list[Row]:
    from .protocols.battery import run_battery

    # Without its metrics: one of the checks is about their ranges, and the others are not.
    return run_battery(_view(clean, order), [replace(test, metrics=())])


def metadata_of_test(test: EmbeddingTest) -> None:
    """Require that a test of embeddings has a docstring, the name of a group, and metrics whose names no other has."""
    from .protocols.metrics import known_metrics

    _require(bool(test.run.__doc__), "a test needs a docstring")
    _require(bool(test.group), "a test needs the name of its group")
    known_metrics()  # a name that is taken is refused


def rows_of_test(test: EmbeddingTest) -> None:
    """Require that a test of embeddings gives rows, one metric value each, for clean or for corrupted images.

    No two rows may agree in everything but their value.
    """
    per_split = [_rows(test, clean) for clean in (True, False)]
    _require(any(per_split), "it gives no rows; do the embeddings have what `needs` names?")
    for rows in per_split:
        keys = [_key(row) for row in rows]
        repeated = next((key for key in keys if keys.count(key) > 1), None)
        _require(repeated is None, f"two rows share everything but their value: {repeated}")


def declared_rows(test: EmbeddingTest) -> None:
    """Require that every row that a test of embeddings gives has a declared metric and a value within its range.

    A row must name a confidence if its metric is about confidences, and only then.
    """
    from .protocols.metrics import find_metric

    outside: dict[str, str] = {}
    for row in [*_rows(test, True), *_rows(test, False)]:
        name, value = row["metric"], row["value"]
        metric = find_metric(name)
        if metric is None:
            raise ConformanceError(f"metric {name!r} is not declared; give it to the decorator: metrics=(Metric(..),)")
        inside = value is None or math.isnan(value) or metric.low - 1e-9 <= value <= metric.high + 1e-9
        if not inside:
            outside.setdefault(name, f"{name} is {value:.6g}, outside of [{metric.low:g}, {metric.high:g}]")
        told = bool(row["confidence"]) == (metric.of == "confidence")
        _require(told, f"{name} is declared with of={metric.of!r}, but its rows say confidence={row['confidence']!r}")
    _require(not outside, f"{'; '.join(outside.values())}: give Metric(..) the right low=, high= and unit=")


def any_order(test: EmbeddingTest) -> None:
    """Require that the values of a test of embeddings depend neither on the order of the images nor on the run."""
    for clean in (True, False):
        first = {_key(row): row["value"] for row in _rows(test, clean)}
        order = torch.randperm(len(_view(clean).ids), generator=torch.Generator().manual_seed(1))
        for what, other in (("order of the images", order), ("chance", None)):
            again = {_key(row): row["value"] for row in _rows(test, clean, other)}
            _require(first.keys() == again.keys(), f"which rows there are depends on the {what}")
            for key, value in first.items():
                close = math.isclose(value or 0.0, again[key] or 0.0, rel_tol=1e-6, abs_tol=1e-9)
                both_nan = value != value and again[key] != again[key]
                _require(close or both_nan, f"{key[0]} depends on the {what}: {value} and {again[key]}")


def _key(row: Row) -> tuple[str, str, str, str, float | None]:
    return row["metric"], row["scorer"], row["confidence"], row["variant"], row["fraction"]


TEST_CHECKS: dict[str, Callable[[EmbeddingTest], None]] = {
    "metadata": metadata_of_test,
    "runs": rows_of_test,
    "declared": declared_rows,
    "order": any_order,
}
"""Every check of a test of embeddings, by name."""


def _pictures(shape: tuple[int, ...] = (3, 24, 20)) -> Tensor:
    """Eight smooth random images, uint8 ``[8, C, H, W]``."""
    coarse = 255 * torch.rand(8, shape[0], 5, 5, generator=torch.Generator().manual_seed(0))
    return nn.functional.interpolate(coarse, shape[1:], mode="bilinear").to(torch.uint8)


def _corrupted(corruption: Corruption, severity: float, images: Tensor) -> Tensor:
    """Images under a corruption, each with the draws of its own identity, ``[N, C, H, W]``."""
    from .datasets.corruptions.apply import corrupt

    made = (corrupt(corruption.name, image, severity, f"image {i}", 0) for i, image in enumerate(images))
    return torch.stack(list(made))


def metadata_of_corruption(corruption: Corruption) -> None:
    """Require that a corruption has a name, a summary, and a valid range of default severities within [0, 1]."""
    from .datasets.corruptions.severity import check_range

    _require(bool(corruption.name and corruption.summary), "name and summary must not be empty")
    check_range(corruption.name, corruption.low, corruption.high)


def corrupted_pixels(corruption: Corruption) -> None:
    """Require that a corruption keeps the shape and the type uint8, and does not change the given image in place."""
    for shape in ((1, 20, 20), (3, 24, 20), (3, 31, 40)):
        images = _pictures(shape)
        before = images.clone()
        for severity in (0.01, 0.5, 1.0):
            _corrupted(corruption, severity, images)  # refuses another shape or type
            _require(torch.equal(images, before), "it changes the image that it is given; work on a copy")


def corruption_grows(corruption: Corruption) -> None:
    """Require that a corruption changes nothing at severity 0, and its mean change of a pixel grows with severity."""
    images = _pictures()
    change = [
        float((_corrupted(corruption, severity, images).double() - images.double()).abs().mean())
        for severity in (0.0, 1e-3, 0.25, 0.5, 0.75, 1.0)
    ]
    _require(change[0] == 0, "severity 0 changes the image")
    _require(change[-1] > change[1], "severity 1 changes images no more than severity 0.001")
    falls = any(later < earlier - 0.02 * change[-1] for earlier, later in itertools.pairwise(change))
    shown = ", ".join(f"{value:.3g}" for value in change)
    _require(not falls, f"it must be stronger with severity; the mean change of a pixel from 0 to 1 is {shown}")


def _global_generators() -> tuple[bytes, str, object]:
    """States of the global generators of torch, NumPy and Python."""
    state = np.random.get_state()  # noqa: NPY002 (whoever uses it is to be found)
    return torch.get_rng_state().numpy().tobytes(), repr(state), random.getstate()


def corruption_draws(corruption: Corruption) -> None:
    """Require that a corruption gives equal pixels for equal image and severity, and uses no global random generator.

    It takes its random numbers from ``draw``, a function that depends on the image and that it is called with.
    """
    images, found = _pictures(), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (whoever uses the global generator is to be found)
        random.seed(seed)
        before = _global_generators()
        found.append(_corrupted(corruption, 0.5, images))
        untouched = before == _global_generators()
        _require(untouched, "it uses a global random generator; take its random numbers from draw(n)")
    _require(torch.equal(*found), "the same image, severity and draw give other pixels the second time")


CORRUPTION_CHECKS: dict[str, Callable[[Corruption], None]] = {
    "metadata": metadata_of_corruption,
    "pixels": corrupted_pixels,
    "grows": corruption_grows,
    "draws": corruption_draws,
}
"""Every check of a registered corruption of pixels, by name; the crop is made, and checked, by data sets."""


def check(name: str, cls: Any) -> None:
    """Run one check of a method; returns nothing if it passes.

    Args:
        name: Name of the check, a key of :data:`CHECKS`.
        cls: Class of the method.

    Raises:
        ConformanceError: If the method fails; the message says what is wrong.
    """
    CHECKS[name](cls)
