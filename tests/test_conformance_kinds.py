"""The suites for data sets and for tests of embeddings: ours pass, and they fail what they should fail."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from bench.conformance import DATASET_CHECKS, TEST_CHECKS, ConformanceError
from bench.datasets import ArrayImages, Dataset, TrainVal
from bench.datasets.photo_images import PhotoImages
from bench.datasets.view import View
from bench.protocols.declare import EmbeddingTest
from bench.protocols.known_tests import BUILT_IN, load_tests
from bench.protocols.recipes.default import RECIPE
from bench.protocols.rows import row
from bench.registry import Registry

from tests.photographs import write_photographs


@pytest.mark.parametrize(
    "name", ["ndigit_smoke", *(pytest.param(name, marks=pytest.mark.slow) for name in ("glyphs", "ambiguous_digits"))]
)
@pytest.mark.parametrize("check", DATASET_CHECKS)
def test_our_data_sets_conform(name, check):
    DATASET_CHECKS[check](Registry("datasets").dataset(name)())


@pytest.mark.parametrize("group", BUILT_IN)
@pytest.mark.parametrize("check", TEST_CHECKS)
def test_our_tests_of_embeddings_conform(group, check):
    for declared in load_tests([group]):
        TEST_CHECKS[check](declared)


class Dots(Dataset):
    """Sixteen classes of random pixels; a fault may be built in."""

    name, summary = "dots", "random pixels"
    input_channels, image_size = 1, (8, 8)
    recipe = replace(RECIPE, classes_per_batch=6)

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault

    def part(self, classes, shift=0):
        copies = 1 if self.fault == "batches" else 3
        labels = torch.arange(len(classes)).repeat_interleave(copies)
        g = torch.Generator().manual_seed(classes[0])
        if self.fault == "manifest":
            g.seed()
        pixels = torch.randint(0, 256, (len(labels), 1, 8, 8), dtype=torch.uint8, generator=g)
        ids = [f"{c}/{i}" if self.fault != "ids" else f"{c - classes[0]}/{i}" for c in classes for i in range(copies)]
        images = ArrayImages(pixels, labels, ids, [f"class {c}" for c in classes], mean=(0.5,), std=(0.3,))
        if self.fault == "crops":
            images.cropped = lambda index, fraction: images.evaluation(index) + 1
        if self.fault == "training":
            images.training = lambda index, settings, generator: torch.rand(len(index), 1, 8, 8)
        if self.fault == "evaluation":
            images.evaluation = lambda index: images.normalised(images.pixels_of(index)).double()
        if self.fault == "select":
            images.select = lambda index: images
        return images

    def train_val(self, fold=0, folds=4):
        val = [2 * fold, 2 * fold + 1]
        return TrainVal(self.part([c for c in range(8) if c not in val]), self.part(val), fold, folds)

    def test(self):
        return self.part(list(range(7 if self.fault == "classes" else 8, 16)))


def test_a_data_set_conforms_and_each_fault_is_found():
    for check in DATASET_CHECKS.values():
        check(Dots())
    for fault in ("classes", "batches", "ids", "evaluation", "training", "crops", "select", "manifest"):
        with pytest.raises(ConformanceError):
            DATASET_CHECKS[fault](Dots(fault))


def test_a_data_set_that_says_that_it_splits_anew_must_do_so():
    dots = Dots()
    dots.splits_anew = True
    with pytest.raises(ConformanceError, match="a drawn split tests the classes of the own one: read them of"):
        DATASET_CHECKS["drawn classes"](dots)


@pytest.mark.parametrize(
    ("check", "kept", "said"),
    [
        ("batches", 1, "1 training classes; training needs at least 2"),
        ("classes", 5, "fold 3 has a development class that another fold lacks: 'class 7'"),
    ],
)
def test_a_fold_that_lacks_classes_is_found(check, kept, said):
    dots = Dots()
    whole = dots.train_val

    def fewer(fold, folds):
        split = whole(fold, folds)
        some = split.train.select((split.train.labels < kept).nonzero()[:, 0])
        return split if fold == 3 else replace(split, train=some)

    dots.train_val = fewer
    with pytest.raises(ConformanceError, match=said):
        DATASET_CHECKS[check](dots)


@pytest.mark.parametrize(
    ("queries", "gallery", "said"),
    [
        ([0, 3], [1, 4], ""),
        ([0], [0, 3], "test: no query has another image of its class"),
        ([True, False], [1, 4], "test: queries must be positions, int64, not a mask"),
    ],
)
def test_a_query_does_not_find_itself(queries, gallery, said):
    dots = Dots()
    images = dots.test()
    images.queries, images.gallery = torch.tensor(queries), torch.tensor(gallery)
    dots.test = lambda: images
    with pytest.raises(ConformanceError, match=said) if said else nullcontext():
        DATASET_CHECKS["batches"](dots)


@pytest.mark.parametrize(
    ("fault", "run"),
    [
        ("metadata", lambda view: iter([row("nmi", 0.5)])),
        ("runs", lambda view: iter(())),
        ("runs", lambda view: iter([row("nmi", 0.5), row("nmi", 0.6)])),
        ("declared", lambda view: iter([row("undeclared", 0.5)])),
        ("declared", lambda view: iter([row("nmi", 1.5)])),
        ("declared", lambda view: iter([row("nmi", 0.5, confidence="norm")])),
        ("order", lambda view: iter([row("nmi", float(view.unit_vectors[0, 0]))])),
        ("order", lambda view: iter([row("nmi", float(torch.rand(())))])),
    ],
)
def test_each_fault_of_a_test_of_embeddings_is_found(fault, run):
    with pytest.raises(ConformanceError):
        TEST_CHECKS[fault](EmbeddingTest("spread", "embeddings", run))


@pytest.mark.parametrize("size", [(72, 56), (500, 333), (64, 64)])
def test_photographs_of_any_size_conform(size, tmp_path, monkeypatch):
    """Ordinary photographs failed: a crop rounds before it is resized, the evaluation view afterwards."""
    write_photographs(tmp_path / "photos", 8, 2, size)
    dataset = Registry("datasets").dataset("folder")(tmp_path / "photos", view=View(image_size=32, resize=36))
    DATASET_CHECKS["crops"](dataset)

    whole = PhotoImages.cropped
    monkeypatch.setattr(PhotoImages, "cropped", lambda self, index, side: whole(self, index, 0.9 * side))
    with pytest.raises(ConformanceError, match="centred square"):
        DATASET_CHECKS["crops"](dataset)
