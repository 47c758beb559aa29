"""Splits of classes: those of a data set and those drawn anew, disjoint and as large as the own one."""

import numpy as np
import pytest
import torch
from bench.datasets.dataset import Dataset
from bench.datasets.splits import class_folds, development_and_test_classes, train_and_validation_classes
from bench.seeds import seed_for
from bench.site import Site
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import KFold


def _classes(name, number, tmp_path, fold=0):
    data = Site(results=str(tmp_path)).dataset(name, {"class_seed": number} if number else None)
    split = data.train_val(fold)
    return [set(images.class_names) for images in (split.train, split.val, data.test())]


@pytest.mark.parametrize(
    "name", ["ndigit_smoke", *(pytest.param(name, marks=pytest.mark.slow) for name in ("glyphs", "ambiguous_digits"))]
)
def test_splits_share_the_validation_classes_and_no_others(name, tmp_path):
    own = _classes(name, 0, tmp_path)
    tested = set()
    for number in (1, 2, 3):
        split = _classes(name, number, tmp_path)
        assert [len(part) for part in split] == [len(part) for part in own]
        assert split[1] == own[1]
        assert set.union(*split) == set.union(*own)
        assert sum(map(len, split)) == len(set.union(*split))
        assert split[0] & own[2]
        assert split[2] & own[0]
        tested.add(frozenset(split[2]))
    assert len(tested) == 3
    other = _classes(name, 1, tmp_path, fold=2)
    assert not other[2] & (other[0] | other[1])


def test_a_class_that_changes_its_part_changes_its_handwriting(tmp_path):
    data = Site(results=str(tmp_path)).dataset("ndigit_smoke", {"class_seed": 1})
    assert {name.split("/")[1] for name in data.test().ids} == {"test"}
    assert {name.split("/")[1] for name in data.train_val().train.ids} == {"train"}


@pytest.mark.slow
def test_the_posterior_is_that_of_the_drawn_identities(tmp_path):
    site = Site(results=str(tmp_path))
    images = site.dataset("ambiguous_digits", {"class_seed": 1}).test()
    known = images.posterior()[images.queries]
    assert known.shape == (len(images.queries), images.num_classes)
    right = known[torch.arange(len(known)), images.labels[images.queries]]
    assert right.mean() > 20 / images.num_classes
    assert not torch.equal(known, site.dataset("ambiguous_digits").test().posterior()[images.queries])


def test_the_seed_is_that_of_the_data_set_and_the_number_alone(tmp_path):
    data = Site(results=str(tmp_path)).dataset("glyphs", {"class_seed": 2})
    assert data.class_seed == seed_for("classes", "glyphs", 2)
    assert Dataset.class_seed is None


def test_photographs_keep_ids_and_paths_in_any_split(releases, tmp_path):
    view = {"image_size": 32, "resize": 36, "fit": "crop", "antialias": True, "cache_side": 64, "cache": False}
    site = Site(results=str(tmp_path), data_root=str(releases.folder(classes=12)))
    own = site.dataset("folder", view)
    held = {}
    for images in (own.train_val().train, own.train_val().val, own.test()):
        held |= {i: images.class_names[label] for i, label in zip(images.ids, images.labels.tolist())}
    split = site.dataset("folder", {**view, "class_seed": 1})
    found = {}
    for fold in range(2):
        parts = split.train_val(fold)
        for images in (parts.train, parts.val, split.test()):
            found |= {i: images.class_names[label] for i, label in zip(images.ids, images.labels.tolist())}
            assert all(str(path).endswith(i) for path, i in zip(images.paths, images.ids))
        names = [set(images.class_names) for images in (parts.train, parts.val, split.test())]
        assert sum(map(len, names)) == len(set.union(*names))
    assert found == held
    assert set(split.test().class_names) != set(own.test().class_names)
    assert split.train_val().val.class_names == own.train_val().val.class_names


def test_queries_and_gallery_cannot_train(releases):
    from bench.datasets.inshop import InShop, InShopMerged

    root = releases.inshop()
    with pytest.raises(ValueError, match=r"data set 'inshop' has fixed queries and gallery"):
        InShop(root, allow_partial=True).split_anew(1)
    assert InShopMerged(root, allow_partial=True).split_anew(1).class_seed == 1


@settings(deadline=None)
@given(st.data())
def test_folds_are_those_of_sklearn(data):
    num_classes = data.draw(st.integers(2, 300))
    folds = data.draw(st.integers(2, min(num_classes, 12)))
    expected = list(KFold(folds).split(np.arange(num_classes)))
    assert [list(block) for block in class_folds(num_classes, folds)] == [list(val) for _, val in expected]
    for fold, (train, val) in enumerate(expected):
        assert train_and_validation_classes(num_classes, fold, folds) == (list(train), list(val))


SIZES = [(500, 250, 187, 63, 250), (200, 100, 75, 25, 100), (196, 98, 73, 25, 98), (300, 150, 112, 38, 150)]


@pytest.mark.parametrize(("classes", "development", "train", "val", "test"), [*SIZES, (7, 3, 2, 1, 4)])
def test_sizes(classes, development, train, val, test):
    dev_classes, test_classes = development_and_test_classes(classes)
    assert (len(dev_classes), len(test_classes)) == (development, test)
    assert [*dev_classes, *test_classes] == list(range(classes))
    sizes = tuple(map(len, train_and_validation_classes(development, folds=min(4, development))))
    assert sizes == (train, val)


OUT_OF_RANGE = [(development_and_test_classes, 1), (class_folds, 10, 1), (class_folds, 3, 4)]
OUT_OF_RANGE += [(train_and_validation_classes, 10, fold, 4) for fold in (4, -1)]


@pytest.mark.parametrize("call", OUT_OF_RANGE)
def test_out_of_range(call):
    with pytest.raises(ValueError, match=r"must be in|at least 2"):
        call[0](*call[1:])


def test_one_fold_holds_nothing_out():
    train, val = train_and_validation_classes(10, folds=1)
    assert train == list(range(10))
    assert val == [0, 1]
    with pytest.raises(ValueError, match="number of folds"):
        train_and_validation_classes(10, folds=0)
