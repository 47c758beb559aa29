"""Checks of a data set that was opened: disjoint classes, labels, identities, images, crops and manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from ..datasets.dataset import Dataset, ImageSet
from ..datasets.photo_images import PhotoImages
from ..datasets.view import evaluation_view
from .failure import require

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
    require(bool(dataset.name and dataset.summary), "name and summary must not be empty")
    require(cls.__doc__ is not None, f"class {cls.__name__} needs a docstring")
    size = (getattr(dataset, "input_channels", 0), *getattr(dataset, "image_size", ()))
    require(len(size) == 3 and min(size) > 0, "input_channels and image_size = (height, width) must be set")


def disjoint_classes(dataset: Dataset) -> None:
    """Require that training, validation and test classes are disjoint in every fold, the first two always the same.

    Only classes that are made of images of other training classes, such as turned characters, may differ.
    """
    test = set(dataset.test().class_names)
    splits = [dataset.train_val(fold, FOLDS) for fold in range(FOLDS)]
    common = set.intersection(*({*split.train.class_names, *split.val.class_names} for split in splits))
    for fold, split in enumerate(splits):
        train, val = set(split.train.class_names), set(split.val.class_names)
        require(bool(train and val), f"fold {fold} has {len(train)} training and {len(val)} validation classes")
        for first, second, what in (
            (train, val, "training and validation"),
            (train | val, test, "development and test"),
        ):
            shared = first & second
            require(not shared, f"fold {fold}: class {min(shared, default='')!r} is among {what} classes")
        both = _files(split.train) & _files(split.val)
        require(not both, f"fold {fold}: {min(both, default='')} trains and validates")
        odd = (train | val) - common
        require(
            not odd or _made_of_others(split.train, odd),
            f"fold {fold} has a development class that another fold lacks: {min(odd, default='')!r}",
        )


def _made_of_others(images: ImageSet, classes: set[str]) -> bool:
    """Check if all images of some classes are files that other classes of the set have, too."""
    if not classes <= {*images.class_names}:
        return False
    odd = torch.tensor([images.class_names[label] in classes for label in images.labels.tolist()])
    made, others = (_files(images.select(rows.nonzero().squeeze(1))) for rows in (odd, ~odd))
    return bool(made) and made <= others


def _files(images: ImageSet) -> set[Path]:
    return {*images.paths} if isinstance(images, PhotoImages) else set()


def drawn_classes(dataset: Dataset) -> None:
    """Require that a data set with ``splits_anew`` draws as many classes, and keeps those that validate in fold 0."""
    try:
        drawn = dataset.split_anew(0)
    except ValueError:  # its split is fixed
        return
    disjoint_classes(drawn)
    own, found = ({part: set(images.class_names) for part, images in _parts(each)} for each in (dataset, drawn))
    require(own["val"] == found["val"], "a drawn split must validate with the classes of the own one")
    sizes = [[len(names) for names in split.values()] for split in (own, found)]
    require(sizes[0] == sizes[1], f"a drawn split has {sizes[1]} classes (train, val, test), the own one {sizes[0]}")
    # A draw of so few classes may be the own split.
    changed = own["test"] != found["test"] or len(own["train"]) < 4
    require(changed, "a drawn split tests the classes of the own one: read them of class_split")


def trainable_and_testable(dataset: Dataset) -> None:
    """Require at least two training classes, and in every part at least one query that has something to find."""
    classes = min(dataset.train_val(fold, FOLDS).train.num_classes for fold in range(FOLDS))
    require(classes >= 2, f"{classes} training classes; training needs at least 2 in every fold")
    for part, images in _parts(dataset):
        labels = images.labels
        for role, rows in (("queries", images.queries), ("gallery", images.gallery)):
            positions = rows is None or rows.dtype == torch.int64
            require(positions, f"{part}: {role} must be positions, int64, not a mask: mask.nonzero().squeeze(1)")
        queries, gallery = (labels if rows is None else labels[rows] for rows in (images.queries, images.gallery))
        others = torch.bincount(gallery, minlength=images.num_classes)
        # A query that is in the gallery does not find itself.
        itself = torch.zeros(len(labels), dtype=torch.bool)
        itself[slice(None) if images.gallery is None else images.gallery] = True
        own = itself if images.queries is None else itself[images.queries]
        found = bool((others[queries] - own.long() > 0).any())
        require(found, f"{part}: no query has another image of its class to find; classes need two images or more")


def class_labels(dataset: Dataset) -> None:
    """Require that the labels of C classes are 0..C-1, with one distinct name per class."""
    for part, images in _parts(dataset):
        labels = images.labels.unique().tolist()
        require(labels == list(range(images.num_classes)), f"{part}: labels must be 0..C-1, one per class name")
        require(len(set(images.class_names)) == images.num_classes, f"{part}: names of classes repeat")


def unique_ids(dataset: Dataset) -> None:
    """Require that every image has an identity (id) of its own, across training, validation and test images."""
    ids = [identity for _, images in _parts(dataset) for identity in images.ids]
    require(len(set(ids)) == len(ids), "identities repeat; every image needs one of its own, in all parts")


def _require_images(what: str, images: Tensor, declared: list[int]) -> None:
    require(list(images.shape) == declared, f"{what} {list(images.shape)}, not {declared}")
    require(images.dtype == torch.float32, f"{what} {images.dtype}, not float32")
    require(bool(torch.isfinite(images).all()), f"{what} not finite")


def evaluation(dataset: Dataset) -> None:
    """Require that evaluation images are finite float32 of the declared size, the same every time and in any batch."""
    declared = _size(dataset)
    for part, images in _parts(dataset):
        index = _sample(images)
        first = images.evaluation(index)
        _require_images(f"{part}: images are", first, [len(index), *declared])
        require(images.pixels_of(index).dtype == torch.uint8, f"{part}: pixels_of must give uint8")
        again = images.evaluation(index.flip(0)).flip(0)
        require(torch.equal(first, again), f"{part}: an image depends on its batch, or on chance")


def training_batches(dataset: Dataset) -> None:
    """Require that augmented training images are finite float32 of the declared size, the same for one generator."""
    images = dataset.train_val(0, FOLDS).train
    index, settings = _sample(images), dataset.augmentation_type()
    first, again = (images.training(index, settings, torch.Generator().manual_seed(0)) for _ in range(2))
    _require_images("a training batch is", first, [len(index), *_size(dataset)])
    require(torch.equal(first, again), "the same generator gives two different batches")


def crops(dataset: Dataset) -> None:
    """Require that the crop of fraction 1 is the largest centred square, and that smaller crops have the same size."""
    for part, images in _parts(dataset):
        index = _sample(images)
        whole = images.cropped(index, torch.ones(len(index)))
        clean = _centred_squares(images, index)
        what = "the centred square of the shorter side" if whole.shape == clean.shape else f"{list(clean.shape)}"
        same = whole.shape == clean.shape and torch.allclose(whole, clean, atol=1e-5)
        require(same, f"{part}: the crop of fraction 1 is not {what}")
        half = images.cropped(index, torch.full((len(index),), 0.5))
        require(half.shape == clean.shape, f"{part}: a crop is {list(half.shape)}, not {list(clean.shape)}")


def _centred_squares(images: ImageSet, index: Tensor) -> Tensor:
    """Evaluation views of the largest centred squares: of images in memory, which are read whole, of the images."""
    if not isinstance(images, PhotoImages):
        return images.evaluation(index)
    # The side and the corner are rounded before the square is resized, so that it is not exactly the evaluation view
    # of the whole photograph, which is resized first.
    views = []
    for i in index.tolist():
        image = images.decoded(i)
        side = min(image.shape[1:])
        top, left = (round((length - side) / 2) for length in image.shape[1:])
        views.append(evaluation_view(image[:, top : top + side, left : left + side], images.view))
    return images.normalised(torch.stack(views))


def subsets(dataset: Dataset) -> None:
    """Require that selecting images keeps the given order, their classes and pixels, and drops empty classes."""
    for part, images in _parts(dataset):
        index = _sample(images).flip(0)
        chosen = images.select(index)
        names = [images.class_names[images.labels[i]] for i in index.tolist()]
        require(chosen.ids == tuple(images.ids[i] for i in index.tolist()), f"{part}: select changes the order")
        kept = [chosen.class_names[label] for label in chosen.labels.tolist()]
        require(kept == names, f"{part}: select changes the class of an image")
        require(set(chosen.class_names) == set(names), f"{part}: select keeps classes that have no image")
        pixels = chosen.evaluation(torch.arange(len(index)))
        require(torch.equal(pixels, images.evaluation(index)), f"{part}: select changes images")


def manifests(dataset: Dataset) -> None:
    """Require that the hash of a split's content is reproducible and does not depend on the order of its images."""
    for (part, images), (_, again) in zip(_parts(dataset), _parts(dataset)):
        manifest = images.manifest_sha256()
        require(manifest == again.manifest_sha256(), f"{part}: built twice, the content differs")
        turned = images.select(torch.arange(len(images)).flip(0))
        require(manifest == turned.manifest_sha256(), f"{part}: the manifest depends on the order of the images")


DATASET_CHECKS: dict[str, Callable[[Dataset], None]] = {
    "metadata": data_metadata,
    "classes": disjoint_classes,
    "drawn classes": drawn_classes,
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
