"""Costs are sums over everything that a row took; what is not known is a gap with its reason, never a smaller sum."""

import math
import time

import pytest
from bench.engine.environment import EMBEDDING, Meter
from bench.report import write
from bench.report.cost import cost_document, costs
from bench.report.frame import collect
from bench.report.render import files_of
from bench.report.write import Judged, write_report
from bench.store.folder import Store
from bench.store.records import Cost
from bench.store.specs import TUNING

from tests.engine.test_sharing import Fake, _drive

ONCE = {"tuning": {"studies": 1}}
COST = Cost(cpu_seconds=2.0, peak_memory_mib=100, peak_gpu_memory_mib=None, ms_per_image=None, resumed=False)


def _store(root, monkeypatch, **asked):
    """Results of two methods with two seeds whose trainings took 2 s of processor time each."""
    _drive(root, [Fake()], monkeypatch, **asked)
    store = Store(root)
    for record in list(store.tests()):
        role = record.role.model_copy(update={"trainings": record.spec.tuning_trainings})
        _write(store, record, COST.model_copy(update={"ms_per_image": 0.5}), role=role)
    for path in root.glob("*/*/*/train-*/record.json"):
        protocol, dataset, method, unit, _ = path.parts[-5:]
        record = next(iter(store.tests())).cell._replace(protocol=protocol, dataset=dataset, method=method)
        _write(store, store.trained(record, unit.removeprefix("train-")), COST)
    return store


def _write(store, record, cost, **changes):
    environment = record.environment.model_copy(update={"cost": cost, "seconds": 3.0, "device": "cpu"})
    store.write(record.model_copy(update={"environment": environment, **changes}))


def _rows(store):
    return {row.contender.method: row for row in costs(store, collect(store).tests)}


def _train_records(store, method):
    cell = next(test.cell for test in store.tests() if test.cell.method == method)
    for path in sorted(store.root.joinpath(*cell).glob("train-*")):
        yield store.trained(cell, path.name.removeprefix("train-"))


@pytest.mark.parametrize("each", [True, False])
def test_the_cost_of_a_head_includes_its_base_and_the_tuning_of_both(tmp_path, monkeypatch, each):
    """With a study for each replicate, the tested networks of head and base are two of the trials."""
    store = _store(tmp_path, monkeypatch, **({} if each else ONCE))
    rows = _rows(store)
    base, head = rows["cosface"], rows["pfe"]
    trials = sum(record.spec.is_trial for record in _train_records(store, "cosface")) - 2 * each
    assert (base.tuning, base.base, base.own, base.trainings) == (trials, 0, 2, trials + 2)
    assert (head.tuning, head.base, head.own) == (2 * trials, 2, 2)
    assert base.cpu_seconds == 2.0 * base.trainings
    assert head.cpu_seconds == 2.0 * head.trainings
    assert (head.peak_memory_mib, head.gpu_seconds, head.ms_per_image, head.wall_seconds) == (100, 0.0, 0.5, 3.0)
    assert base.gaps == head.gaps == ""


@pytest.mark.parametrize(
    ("cost", "reason"),
    [
        (None, "made before cost was recorded"),
        (COST.model_copy(update={"cpu_seconds": None, "resumed": True}), "resumed"),
    ],
)
def test_one_training_of_unknown_cost_leaves_a_gap_and_its_reason(cost, reason, tmp_path, monkeypatch):
    store = _store(tmp_path, monkeypatch, methods=("cosface",), hparams="default")
    _write(store, next(_train_records(store, "cosface")), cost)
    row = _rows(store)["cosface"]
    assert row.cpu_seconds is None
    assert row.gaps.startswith(f"1 of 2 trainings {reason}")
    document = cost_document([row])
    assert math.isnan(document.numbers["cpu_seconds"].iloc[0])
    files = files_of(document)
    for text in (files["cost.md"], files["cost.tex"]):
        assert f"Gaps of cosface: 1 of 2 trainings {reason}" in text


def test_lost_records_and_tests_without_a_time_are_named(tmp_path, monkeypatch):
    store = _store(tmp_path, monkeypatch, methods=("cosface",), **ONCE)
    lost = next(record for record in _train_records(store, "cosface") if record.spec.replicate == TUNING)
    store.remove(lost.cell, "train", lost.unit)
    _write(store, next(iter(store.tests())), COST)
    row = _rows(store)["cosface"]
    assert (row.cpu_seconds, row.peak_memory_mib, row.ms_per_image) == (None, None, None)
    assert "trainings without a record; too few test images to time: seed" in row.gaps


def test_a_setting_that_a_study_proposed_again_took_no_training(tmp_path, monkeypatch):
    store = _store(tmp_path, monkeypatch, methods=("cosface",), **ONCE)
    before = _rows(store)["cosface"]
    ((study, trials),) = store.studies()
    first, second = sorted(trials, key=lambda trial: trial.value)[:2]
    store.write_trial(study.cell, first.model_copy(update={"units": second.units, "params": second.params}))
    after, fewer = _rows(store)["cosface"], len(first.units)
    assert (after.tuning, after.cpu_seconds, after.gaps) == (before.tuning - fewer, before.cpu_seconds - 2 * fewer, "")


def test_a_meter_times_whole_chunks_of_clean_test_images(monkeypatch):
    now = iter([0.0, 0.0256, 0.0768, 9.0, 9.5, 9.6])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    heard = []
    found = Meter.of(heard.append, resumed=False)
    for step in (EMBEDDING, EMBEDDING, EMBEDDING, "embedding of split test_crop", EMBEDDING, "other"):
        found.alive(step)
    assert heard[0] == EMBEDDING
    cost = found.cost()
    assert cost.ms_per_image == pytest.approx((0.1 + 0.2) / 2)
    assert cost.cpu_seconds >= 0


def test_a_resumed_training_has_no_processor_time_and_unknown_memory_is_a_gap(monkeypatch):
    monkeypatch.setattr("bench.engine.environment._forget_peaks", lambda: False)
    cost = Meter.of(lambda step: None, resumed=True).cost()
    assert (cost.cpu_seconds, cost.peak_memory_mib, cost.ms_per_image, cost.resumed) == (None, None, None, True)


def test_a_method_whose_trainings_all_failed_is_named_below_the_comparison(tmp_path, monkeypatch):
    asked = {"methods": ("cosface", "arcface"), "hparams": "default", "seeds": 2}
    _drive(tmp_path, [Fake(fails=("arcface",))], monkeypatch, **asked)
    store = Store(tmp_path)
    for folder in tmp_path.glob("*/*/arcface"):
        (folder / "train-0123456789abcdef").mkdir()
    monkeypatch.setattr(write, "write_automatic", lambda source, out, note: [])
    write_report(Judged(store, collect(store)), tmp_path / "report", print)
    for name in ("comparison.md", "comparison.tex"):
        assert "No finished test: arcface." in (tmp_path / "report" / name).read_text()
