"""The figure of studies: the history of each by what it tunes for."""

from types import SimpleNamespace

import pytest
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.report.figures.tuning import draw
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
        spec = build_plans(request, Site(results="unused")).plans[0].study_spec(0, None)
        found[tune_for] = StudyRecord(unit=spec.id, cell=spec.template.cell, spec=spec), TRIALS
    return found


def _source(*held):
    """What the figures read of a results folder."""
    store = SimpleNamespace(studies=lambda dataset: iter(held))
    return SimpleNamespace(datasets=("tiny",), site=SimpleNamespace(store=store))


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
        (drawing,) = draw(_source((study, [_trial(0), _trial(1)])), "tiny", print)
        drawing.figure.draw_without_rendering()
