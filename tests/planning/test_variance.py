"""Runs that measure the variance by source: one draw is shared, all others are new; normal runs stay as they are."""

from __future__ import annotations

from statistics import variance

import pytest
import torch
from bench.engine.networks import build_model
from bench.engine.training import Trainer
from bench.errors import UserError
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.report.frame import collect
from bench.report.variance import shares_of_variance, variance_document
from bench.site import Site
from bench.store.folder import Store
from bench.store.specs import AXES, TUNING, Pinned

from tests.engine.test_sharing import Fake, _drive
from tests.report.shown import latex, markdown


def _plans(tmp_path, **asked):
    asked = {"methods": ("cosface", "pfe"), "datasets": ("ndigit_smoke",), "hparams": "default", "seeds": 3, **asked}
    return build_plans(Experiment(**asked), Site(results=str(tmp_path))).plans


def _specs(plan, replicate):
    base = None if plan.base is None else _specs(plan.base, replicate)
    return plan.train_specs({}, replicate, base)


def test_normal_runs_are_the_same_with_and_without_frozen_ones(tmp_path):
    alone, varied = _plans(tmp_path), _plans(tmp_path, vary=("order",))
    assert varied[: len(alone)] == alone
    spec = _specs(alone[0], 1)[0]
    assert spec.draws == {}
    assert [spec.draw_of(axis) for axis in AXES] == [1, 1, 1, 1]
    assert alone[0].study_spec(None).draw == 0
    assert all(plan.key == plan.study_key for plan in alone)


def test_a_frozen_source_is_shared_by_all_replicates_of_a_head_and_its_base_and_the_rest_is_new(tmp_path):
    plans = _plans(tmp_path, vary=("order,initialisation",))
    marks = [(plan.cell.method, plan.pinned.text) for plan in plans[2:]]
    assert set(marks) == {(m, f"frozen={s}") for m in ("cosface", "pfe") for s in ("order", "initialisation")}
    head = next(plan for plan in plans if (plan.cell.method, plan.pinned.text) == ("pfe", "frozen=order"))
    first, second = _specs(head, 0)[0], _specs(head, 1)[0]
    assert first.draws["order"] == second.draws["order"]
    assert all(first.draws[axis] != second.draws[axis] for axis in AXES if axis != "order")
    assert head.base.train_specs({}, 0, None)[0].draws == first.draws
    seen = {name for plan in plans for r in range(3) for name in [_specs(plan, r)[0].draw_of("noise")]}
    assert len(seen) == 3 + 3 * 2  # three normal replicates, and three of each group
    keys = [plan.key for plan in plans]
    assert len(set(keys)) == len(keys)
    assert len({plan.study_key for plan in plans if plan.cell.method == "pfe"}) == 1


def test_varied_tuning_takes_a_study_for_every_replicate(tmp_path):
    asked = {"methods": ("cosface",), "hparams": "tuned", "trials": 4, "vary": ("order", "tuning")}
    normal, *others = _plans(tmp_path, **asked)
    assert [(plan.pinned.text, list(plan.replicates)) for plan in others] == [
        (f"frozen={source} (tuned anew)", [seed]) for source in ("nothing", "order") for seed in range(3)
    ]
    assert len({plan.study_key for plan in others}) == len({plan.sampler_axes for plan in others}) == 3
    assert normal.study_key not in {plan.study_key for plan in others}
    studies = {plan.study_spec(None).id for plan in (normal, *others)}
    trials = {plan.train_specs({}, TUNING, None)[0].id for plan in (normal, *others)}
    assert len(studies) == len(trials) == 4
    assert sum(plan.trainings for plan in others) == 3 * (4 + 1) + 3


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"vary": ("orde",)}, "order"),
        ({"vary": ("order",), "seeds": 1}, "--vary needs --seeds 2 or more"),
        ({"vary": ("tuning",)}, "nothing is tuned here"),
    ],
)
def test_what_cannot_be_varied_is_refused(asked, reason, tmp_path):
    with pytest.raises(UserError, match=reason):
        _plans(tmp_path, **asked)


def _frozen_specs(tmp_path, source):
    plans = _plans(tmp_path, methods=("cosface",), vary=(source,), set=("optim.epochs=1",))
    return [_specs(plans[-1], replicate)[0] for replicate in (0, 1)]


def test_networks_start_equal_if_initialisation_is_frozen(tmp_path):
    site = Site(results=str(tmp_path))
    for source, equal in (("initialisation", True), ("order", False)):
        models = [build_model(spec, site, 4, 1) for spec in _frozen_specs(tmp_path, source)]
        weights = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models]
        assert torch.equal(*weights) == equal


@pytest.mark.parametrize("source", ["order", "augmentation"])
def test_batches_have_the_same_rows_or_the_same_augmentation(source, tmp_path):
    site = Site(results=str(tmp_path))
    trainers = [Trainer(spec, site) for spec in _frozen_specs(tmp_path, source)]
    (rows, inputs), (other_rows, other_inputs) = (next(trainer._batches(after=(0,))) for trainer in trainers)
    assert torch.equal(rows, other_rows) == (source == "order")
    if source == "order":
        assert not torch.equal(inputs, other_inputs)


def test_the_report_has_the_shares_and_no_table_of_methods_has_frozen_runs(tmp_path, monkeypatch):
    asked = {"methods": ("cosface", "pfe"), "hparams": "default", "seeds": 3, "vary": ("order", "noise")}
    _drive(tmp_path, [Fake()], monkeypatch, **asked)
    results = collect(Store(tmp_path))
    assert set(results.frame["pinned"]) == {Pinned()}
    assert len(results.tests) == 6
    assert len(results.frozen) == 12
    found = shares_of_variance(results)
    table = variance_document(found).numbers
    assert set(zip(table["method"], table["source"])) == {
        (m, s) for m in ("cosface", "pfe") for s in ("order", "noise")
    }
    assert (table["runs"] == 3).all()
    assert (table["frozen_runs"] == 3).all()
    one = found[0]
    frozen, varied = (variance(of.values()) for of in (one.frozen, one.varied))
    assert one.part.share == pytest.approx(1 - frozen / varied)
    assert one.part.ci_low <= max(one.part.share, 0) <= one.part.ci_high
    for text in (markdown(variance_document(found)), latex(variance_document(found))):
        assert "cosface" in text
        assert "noise" in text


def test_a_missing_run_is_named_and_one_run_has_no_share(tmp_path, monkeypatch):
    asked = {"methods": ("cosface",), "hparams": "default", "seeds": 2, "vary": ("order",)}
    _drive(tmp_path, [Fake()], monkeypatch, **asked)
    store = Store(tmp_path)
    gone = next(record for record in store.tests() if record.columns.pinned and record.columns.seed == 1)
    store.remove(gone.cell, "test", gone.unit)
    (one,) = shares_of_variance(collect(store))
    assert one.part is None
    assert one.reason == "fewer than two runs; frozen order: no seed 1"
    assert "cosface, order: fewer than two runs; frozen order: no seed 1." in markdown(variance_document([one]))


def test_tuning_is_frozen_in_normal_runs(tmp_path, monkeypatch):
    asked = {"methods": ("cosface",), "seeds": 2, "trials": 2, "vary": ("tuning",)}
    _drive(tmp_path, [Fake()], monkeypatch, **asked)
    (one,) = shares_of_variance(collect(Store(tmp_path)))
    assert (one.source, one.tuned_anew, sorted(one.varied), sorted(one.frozen)) == ("tuning", True, [0, 1], [0, 1])
    assert one.varied != one.frozen
    assert len(list(tmp_path.rglob("study.json"))) == 3
