import ast
import importlib
import inspect

import pytest
import torch
from bench.datasets import ArrayImages, Augmentation, Dataset, PhotoAugmentation, register, register_dataset


def image_set(**changes):
    given = {
        "pixels": torch.arange(5 * 2 * 3 * 4, dtype=torch.uint8).view(5, 2, 3, 4),
        "labels": torch.tensor([0, 0, 1, 2, 2]),
        "ids": ["a/0", "a/1", "b/0", "c/0", "c/1"],
        "class_names": ["a", "b", "c"],
        "mean": (0.1, 0.2),
        "std": (0.5, 2.0),
    }
    return ArrayImages(**{**given, **changes})


def test_evaluation_normalises():
    images = image_set()
    index = torch.tensor([4, 1])
    mean, std = torch.tensor([0.1, 0.2]).view(2, 1, 1), torch.tensor([0.5, 2.0]).view(2, 1, 1)
    read = images.evaluation(index)
    assert read.dtype == torch.float32
    torch.testing.assert_close(read, (images.pixels[index] / 255 - mean) / std)
    assert torch.equal(read, images.evaluation(index))


def test_training_and_cropped_images():
    images = image_set()
    index = torch.tensor([3, 0, 3])
    still = Augmentation(crop_probability=0, shift=0, rotation=0)
    source = torch.Generator()
    assert torch.equal(images.training(index, still, source), images.evaluation(index))
    assert images.training(index, Augmentation(), source).dtype == torch.float32
    with pytest.raises(TypeError, match="augmented by an Augmentation"):
        images.training(index, PhotoAugmentation(), source)
    cropped = images.cropped(index, torch.tensor([1.0, 0.5, 0.5], dtype=torch.float64))
    assert cropped.dtype == torch.float32
    assert torch.equal(cropped[0], images.evaluation(index)[0])
    assert not torch.equal(cropped[2], images.evaluation(index)[2])


def test_background_is_filled_before_normalisation():
    images = image_set(pixels=torch.zeros(5, 2, 3, 4, dtype=torch.uint8))
    index = torch.arange(5)
    moved = images.training(index, Augmentation(shift=1.0, rotation=90), torch.Generator())
    assert torch.equal(moved, images.evaluation(index))


def test_manifest_depends_on_the_content_and_not_on_its_order():
    images = image_set()
    manifest = images.manifest_sha256()
    assert len(manifest) == 64
    assert images.select(torch.tensor([2, 4, 1, 0, 3])).manifest_sha256() == manifest
    changed = images.pixels.clone()
    changed[3, 0, 0, 0] += 1
    others = [{"pixels": changed}, {"class_names": ["a", "b", "d"]}, {"labels": torch.tensor([0, 1, 1, 2, 2])}]
    others.append({"ids": ["a/0", "a/1", "b/0", "c/0", "c/2"]})
    assert len({manifest, *(image_set(**other).manifest_sha256() for other in others)}) == 5


@pytest.mark.parametrize(
    "bad",
    [
        {"labels": torch.tensor([0, 0, 1, 2])},
        {"labels": torch.tensor([0, 0, 1, 1, 1])},
        {"labels": torch.tensor([1, 1, 2, 3, 3])},
        {"ids": ["a/0", "a/0", "b/0", "c/0", "c/1"]},
        {"pixels": torch.zeros(5, 2, 3, 4)},
        {"pixels": torch.zeros(4, 2, 3, 4, dtype=torch.uint8)},
        {"mean": (0.1,)},
        {"std": (0.5, 0.0)},
    ],
)
def test_what_does_not_fit_is_refused(bad):
    with pytest.raises(ValueError, match=r"label|unique|pixels|mean|std"):
        image_set(**bad)


def test_register_checks_the_class():
    class Nameless(Dataset):
        summary = "something"

    class Wordless(Nameless):
        name = "wordless"

    with pytest.raises(TypeError, match="name must be"):
        register_dataset(Nameless)
    with pytest.raises(TypeError, match="summary must be"):
        register_dataset(Wordless)
    with pytest.raises(TypeError, match="must subclass Dataset"):
        register_dataset(dict)

    class Complete(Nameless):
        name = "complete"
        summary = "something"

    with pytest.raises(TypeError, match="class Complete must define test, train_val"):
        register_dataset(Complete)
    Whole = type("Whole", (Complete,), {**vars(Complete), "test": None, "train_val": None})
    assert register_dataset(Whole) is Whole
    assert register is register_dataset


@pytest.mark.parametrize("package", ["bench.datasets", "bench.datasets.corruptions"])
def test_type_checkers_see_what_is_exported(package):
    module = importlib.import_module(package)
    (shown,) = [node.body for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If)]
    names = {alias.name: f".{node.module}" for node in shown for alias in node.names}
    assert names == module._EXPORTS
    assert all(alias.asname == alias.name for node in shown for alias in node.names)
