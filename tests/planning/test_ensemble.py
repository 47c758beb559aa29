"""Plans of an ensemble of the seeds of a base, and of a method that is fitted instead of trained."""

from __future__ import annotations

import pytest
from bench.engine.jobs import TestJob, needs_of
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans, versions_of
from bench.site import Site
from bench.store.folder import RECORD, WEIGHTS

from tests.plans import planned, refused

TUNED = {"hparams": "tuned", "base": "norm_softmax"}


def _plans(folder, method, **request):
    plans, site = planned(folder, method, **{**TUNED, **request})
    return {plan.cell.method: plan for plan in plans}, site


def test_an_ensemble_is_one_test_of_the_models_of_all_seeds(tmp_path):
    plans, site = _plans(tmp_path, "deep_ensemble", hparams="default", seeds=3)
    base, plan = plans["norm_softmax"], plans["deep_ensemble"]
    assert (plan.trainings, plan.tests, plan.trials, base.trainings, base.tests) == (0, 1, 0, 3, 3)
    trained = [base.train_specs({}, seed, None) for seed in range(3)]
    (spec,) = plan.test_specs(*trained)
    (fold,) = plan.validate_folds
    assert spec.train == tuple(specs[fold].id for specs in trained)
    assert (spec.ensemble, spec.tuning_trainings) == ("seeds", 3)
    job = TestJob(specs=(spec,), cell=plan.cell, trained=base.cell, site=site)
    units = [site.store.unit_dir(base.cell, "train", unit) for unit in spec.train]
    assert job.inputs == tuple(unit / name for unit in units for name in (RECORD, WEIGHTS))
    assert job.outputs == (site.store.unit_dir(plan.cell, "test", spec.id) / RECORD,)
    assert base.test_specs(trained[0])[0].versions["engine"] == spec.versions["engine"]
    assert spec.versions["method"] == 1  # the code of the ensemble counts
    needs = needs_of([plan], site, tmp_path / "token").plans[0]
    assert needs.testing.versions == spec.versions
    assert versions_of(plan.template, needs.testing.tests, needs.testing.scorers, site)[1] == spec.versions


def test_a_tuned_ensemble_counts_the_tuning_once_and_its_members(tmp_path):
    plans, _ = _plans(tmp_path, "deep_ensemble", trials=7, seeds=5, tuning={"studies": 1})
    base, plan = plans["norm_softmax"], plans["deep_ensemble"]
    assert (plan.trials, plan.tuning_trainings, base.tuning_trainings) == (0, 12, 7)
    trained = [base.train_specs({}, seed, None) for seed in range(5)]
    (spec,) = plan.test_specs(*trained)
    assert spec.trials == base.test_specs(trained[0])[0].trials == 7  # its members are tuned models
    plans, _ = _plans(tmp_path, "deep_ensemble", trials=15, seeds=5)
    base, plan = plans["norm_softmax"], plans["deep_ensemble"]
    assert (plan.trainings, plan.tuning_trainings, base.tuning_trainings) == (0, 15, 3)  # its members are trials


OF_TRAININGS = {"set": ("optim.epochs=3",), "tuning": {"tune_for": "both", "select_by": "cosine"}}


def test_an_ensemble_is_labelled_by_what_its_members_were_trained_with(tmp_path):
    request = TUNED | {"seeds": 2, "trials": 4} | OF_TRAININGS
    for methods, label in (
        (("pfe", "deep_ensemble"), ""),  # the base only serves: none of the options is for it
        (("norm_softmax", "deep_ensemble"), "optim.epochs=3; select_by=cosine; tune_for=both"),
    ):
        plans, _ = planned(tmp_path, *methods, **request)
        found = {plan.cell.method: plan.pinned.text for plan in plans}
        assert (found["norm_softmax"], found["deep_ensemble"]) == (label, label)


def test_the_members_of_an_ensemble_are_the_models_of_the_first_fold(tmp_path):
    plans, _ = _plans(tmp_path, "deep_ensemble", hparams="default", seeds=2, tuning={"folds": 2})
    base, plan = plans["norm_softmax"], plans["deep_ensemble"]
    trained = [base.train_specs({}, seed, None) for seed in range(2)]
    (spec,) = plan.test_specs(*trained)
    assert spec.train == tuple(specs[plan.validate_folds[0]].id for specs in trained)
    assert [each.ensemble for each in base.test_specs(trained[0])] == ["separated", "concatenated"]


@pytest.mark.parametrize(("method", "space"), [("laplace", {"method.prior_precision"}), ("pfe", {"optim.lr"})])
def test_a_fitted_method_has_no_optimiser_to_tune(tmp_path, method, space):
    plans, _ = _plans(tmp_path, method, trials=2, seeds=1)
    found = set(plans[method].space)
    assert space <= found
    assert any(name.startswith("optim.") for name in found) == (method == "pfe")


MINE = """from bench.methods import register
from bench.methods.deep_ensemble import DeepEnsemble


@register
class Mine(DeepEnsemble):
    name = "mine"
    summary = "an ensemble"
"""


def test_one_seed_is_no_ensemble(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    site = Site(results=str(tmp_path / "runs"), plugins=(str(mine),))
    for name in ("deep_ensemble", "mine"):
        said = f"^--seeds 1: {name}: an ensemble .* use --seeds 2 or more$"
        refused(said, site, "norm_softmax", name, base="norm_softmax", seeds=1)
        assert planned(site, "norm_softmax", name, base="norm_softmax", seeds=2)[0]


def test_all_methods_with_one_seed_are_those_that_one_seed_can_make(tmp_path):
    asked = {"methods": ("all",), "datasets": ("ndigit_smoke",), "seeds": 1, "hparams": "default"}
    built = build_plans(Experiment(**asked), Site(results=str(tmp_path)))
    assert [line for line in built.lines if line.startswith("left out")] == [
        "left out: deep_ensemble: an ensemble of the models of all seeds; use --seeds 2 or more"
    ]
    assert "deep_ensemble" not in {plan.cell.method for plan in built.plans}
    assert len(built.plans) > 20
