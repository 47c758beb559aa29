import numpy as np
import pytest
from bench.datasets.splits import class_folds, development_and_test_classes, train_and_validation_classes
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import KFold


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
