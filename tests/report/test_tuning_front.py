"""Figures of studies: the front of two values, and the history of each study by what it tunes for."""

from types import SimpleNamespace

import numpy as np
import pytest
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.report.figures.style import figure_style
from bench.report.figures.tuning import draw, draw_front, front_figure, on_front, tuning_figure
from bench.site import Site
from bench.store.records import StudyRecord, TrialRecord


def _trial(number, map_at_r=None, auroc=None):
    failed = map_at_r is None
    return TrialRecord(
        study="0" * 16, number=number, params={"optim.lr": 0.1}, units=(), state="failed" if failed else "complete",
        value=map_at_r, val_map_at_r=map_at_r, val_confidence_auroc=auroc, reason="nan" if failed else "",
    )  # fmt: skip


TRIALS = [_trial(0, 0.5, 0.6), _trial(1, 0.55, 0.5), _trial(2), _trial(3, 0.545, 0.58), _trial(4, 0.4, 0.55)]


@pytest.fixture(scope="module")
def studies():
    found = {}
    for tune_for in ("retrieval", "confidence", "both"):
        request = Experiment(methods=("cosface",), datasets=("ndigit_smoke",), tuning={"tune_for": tune_for})
        spec = build_plans(request, Site(results="unused")).plans[0].study_spec(None)
        found[tune_for] = StudyRecord(unit=spec.id, cell=spec.template.cell, spec=spec), TRIALS
    return found


def _source(*held):
    """What the figures read of a results folder."""
    store = SimpleNamespace(studies=lambda dataset: iter(held))
    return SimpleNamespace(datasets=("tiny",), site=SimpleNamespace(store=store))


def test_the_front_is_what_no_other_point_dominates():
    points = np.random.default_rng(0).integers(0, 6, (60, 2)).astype(float)
    expected = [not any((other >= own).all() and (other > own).any() for other in points) for own in points]
    assert on_front(points).tolist() == expected
    assert 0 < sum(expected) < 60


@pytest.mark.slow
def test_the_front_figure_marks_the_choice_the_best_map_at_r_and_the_band(studies):
    (drawing,) = draw_front(_source(*studies.values()), "tiny", print)
    frame = drawing.frame.set_index("number")
    assert drawing.stem == "tuning_front_tiny"
    assert list(frame.index) == [0, 1, 3, 4]  # the failed one has no values
    assert frame.index[frame["chosen"]].tolist() == [3]
    assert frame.index[frame["best_map_at_r"]].tolist() == [1]
    assert frame.index[frame["on_front"]].tolist() == [0, 1, 3]
    (axis,) = [axis for axis in drawing.figure.axes if axis.get_visible()]
    lines = {line.get_label(): line.get_xydata().tolist() for line in axis.lines}
    assert lines["chosen"] == [[0.545, 0.58]]
    assert lines["best MAP@R"] == [[0.55, 0.5]]
    assert lines["Pareto front"] == [[0.5, 0.6], [0.545, 0.58], [0.55, 0.5]]
    (band,) = [patch for patch in axis.patches if patch.get_label() == "one point of MAP@R"]
    assert band.get_extents().transformed(axis.transData.inverted()).intervalx == pytest.approx([0.54, 0.55])
    assert axis.get_title() == "cosface (1 of 5 trials failed)"
    assert axis.get_xlabel()
    assert axis.get_ylabel()


def test_there_is_no_front_without_a_study_for_both_or_without_a_finished_trial(studies):
    assert not list(draw_front(_source(studies["retrieval"], studies["confidence"]), "tiny", print))
    assert not list(draw_front(_source((studies["both"][0], [_trial(0)])), "tiny", print))


def test_the_history_shows_what_each_study_tunes_for(studies):
    (drawing,) = draw(_source(*studies.values()), "tiny", print)
    shown = {axis.get_title(): axis for axis in drawing.figure.axes if axis.get_visible()}
    assert list(shown) == ["cosface", "cosface, tuned for confidence", "cosface, tuned for both"]
    points = [[line.get_ydata().tolist() for line in axis.lines if line.get_marker() == "o"] for axis in shown.values()]
    map_at_r, auroc = [0.5, 0.55, 0.545, 0.4], [0.6, 0.5, 0.58, 0.55]
    assert points == [[map_at_r], [auroc], [map_at_r, auroc]]
    assert [axis.get_ylabel() for axis in shown.values()] == [
        "validation MAP@R", "validation confidence AUROC", "validation MAP@R, confidence AUROC",
    ]  # fmt: skip
    assert set(drawing.frame["tune_for"]) == set(studies)


def test_a_history_of_failures_alone_is_drawn(studies):
    for study, _ in studies.values():
        tuning_figure([(study, [_trial(0), _trial(1)])], "tiny").draw_without_rendering()


def test_a_front_of_one_trial_is_drawn(studies):
    with figure_style():
        front_figure([(studies["both"][0], [_trial(0, 0.5, 0.6)])], "tiny").draw_without_rendering()
