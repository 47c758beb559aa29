"""Sweeps are found in the results alone, and their figures show means and intervals over seeds."""

from types import SimpleNamespace

import numpy as np
import pytest
from bench.report.figures.sweeps import draw, find_sweeps
from bench.store.specs import Pinned
from scipy import stats

from tests.report.shown import results, roles_of, tidy

SEEDS = 3


def _merged(pins, method="nir", **values):
    """Rows of a data set: MAP@R and rank correlation of three seeds at each of some pinned values."""
    lines = []
    for number, each in enumerate(pins):
        pinned = each if isinstance(each, Pinned) else Pinned(settings=each)
        for seed in range(SEEDS):
            row = {"method": method, "pinned": pinned, "seed": seed, "backbone": "convnet", "dim": 8}
            value = 0.1 * number + 0.01 * seed**2
            lines.append(row | {"metric": "map_at_r", "split": "test", "value": value})
            lines.append(row | {"metric": "map_at_r", "split": "test", "scorer": "mls", "value": 9.0})
            rho = {"metric": "spearman_crop", "split": "test_crop", "scorer": "", "confidence": "norm", "value": -value}
            lines += [row | rho, row | rho | {"confidence": "random", "value": 9.0}]
    frame = tidy(lines)
    return results(frame.merge(roles_of(frame)))


def _drawn(merged):
    return draw(SimpleNamespace(results=merged), "d", pytest.fail)


def test_results_that_differ_in_one_value_are_a_sweep():
    pins = [*({"method.omega": value, "optim.epochs": 2} for value in (10, 0.1, 1)), {}]
    (sweep,) = find_sweeps(_merged(pins).measured)
    wanted = ("method.omega", ["0.1", "1", "10"], "optim.epochs=2")
    assert (sweep.key, list(sweep.groups), sweep.contender.pinned.text) == wanted


@pytest.mark.parametrize(
    "pins",
    [
        [{}],
        [{"method.omega": 1}, {}],
        [{"method.omega": 1, "optim.epochs": 2}, {"method.omega": 2, "optim.epochs": 3}],
        [Pinned(weights="aa"), Pinned(weights="bb")],
        [Pinned(differences=("method.a=1",)), Pinned(differences=("method.a=2",))],
    ],
)
def test_other_results_are_none(pins):
    assert find_sweeps(_merged(pins).measured) == []


def test_two_swept_values_make_a_line_for_each_of_the_other():
    pins = [{"method.a": a, "method.b": b} for a in (1, 2) for b in (3, 4, 5)]
    sweeps = find_sweeps(_merged(pins).measured)
    assert [(sweep.key, len(sweep.groups)) for sweep in sweeps] == [("method.a", 2)] * 3 + [("method.b", 3)] * 2
    assert [drawn.stem for drawn in _drawn(_merged(pins))] == ["sweep_method_a_d", "sweep_method_b_d"]


def test_the_figure_has_means_and_95_percent_intervals_of_the_own_scorer_and_the_default_confidence():
    pins = [{"method.omega": value} for value in (0.1, 1, 10)]
    ((name, figure, _),) = _drawn(_merged(pins))
    assert name == "sweep_method_omega_d"
    retrieval, rank = figure.axes
    values = np.array([[0.1 * number + 0.01 * seed**2 for seed in range(SEEDS)] for number in range(3)])
    half = stats.t.interval(0.95, SEEDS - 1, scale=stats.sem(values, axis=1))[1]
    for axis, factor in ((retrieval, 100), (rank, -1)):
        (line,) = axis.lines
        np.testing.assert_allclose(line.get_xdata(orig=False), [0.1, 1, 10])
        np.testing.assert_allclose(line.get_ydata(orig=False), factor * values.mean(1))
        (band,) = (each for each in axis.collections if each.get_paths() and len(each.get_paths()[0].vertices) > 6)
        corners = band.get_paths()[0].vertices
        for x, middle, length in zip((0.1, 1, 10), factor * values.mean(1), abs(factor) * half):
            ends = corners[np.isclose(corners[:, 0], x), 1]
            assert (ends.min(), ends.max()) == (pytest.approx(middle - length), pytest.approx(middle + length))
        assert axis.get_xlabel() == "method.omega"


@pytest.mark.parametrize(
    ("values", "scale"), [(("0.1", "1"), "log"), (("1", "10"), "log"), (("1", "9"), "linear"), (("0", "10"), "linear")]
)
def test_a_decade_and_more_has_a_logarithmic_axis(values, scale):
    ((_, figure, _),) = _drawn(_merged([{"method.omega": value} for value in values]))
    assert {axis.get_xscale() for axis in figure.axes} == {scale}


def test_names_are_swept_too():
    ((_, figure, _),) = _drawn(_merged([{"method.distance": "l2"}, {"method.distance": "cosine"}]))
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["cosine", "l2"]
