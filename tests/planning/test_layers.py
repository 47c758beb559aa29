"""Settings come in layers: recipe, preset, published or file, pinned; a later one wins."""

import json

import pytest

from tests.plans import planned, refused


def _plan(tmp_path, method="cosface", **request):
    plans, _ = planned(tmp_path / "results", method, **{"hparams": "tuned", **request})
    return next(plan for plan in plans if plan.cell.method == method)


def test_a_pinned_value_wins_over_a_file_and_a_file_over_the_recipe(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"method.scale": 20, "optim.lr": 0.5, "cosface": {"method.margin": 0.4}}))
    plan = _plan(tmp_path, hparams=str(path), set=("optim.lr=0.25",))
    assert plan.template.params == {"scale": 20.0, "margin": 0.4}
    assert plan.template.optim.lr == 0.25
    assert plan.template.optim.lr_objective == _plan(tmp_path).template.optim.lr_objective
    assert (plan.trials, plan.space, plan.hparams[:10]) == (0, {}, "mine.json#")


def test_a_preset_has_its_own_parameters_of_a_method(tmp_path):
    usual, per = (_plan(tmp_path, "hib", preset=preset).template.params for preset in ("strict", "per"))
    assert {key for key in usual if usual[key] != per[key]} == {"pairs"}


def test_a_pinned_value_is_not_tuned_and_says_so(tmp_path):
    plan = _plan(tmp_path, set=("method.margin=0.30", "optim.lr=0.01", "data.images_per_class=3"))
    assert set(plan.space) == {"method.scale", "optim.lr_objective"}
    assert plan.template.batches.images_per_class == 3
    assert plan.pinned.text == "method.margin=0.30; optim.lr=0.01; data.images_per_class=3"


def test_what_is_pinned_for_a_method_is_not_pinned_for_a_base_that_only_serves_it(tmp_path):
    pins = ("optim.epochs=3", "data.images_per_class=3")
    plan = _plan(tmp_path, "pfe", set=pins)
    assert (plan.epochs, plan.base.epochs) == (3, _plan(tmp_path).epochs)
    assert plan.template.batches.images_per_class == plan.base.template.batches.images_per_class == 3
    named = _plan(tmp_path, "pfe", methods=("pfe", "cosface"), set=pins)
    assert named.base.epochs == 3


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ("optim.lr", "expected KEY=VALUE"),
        ("optim.lr=fast", "expected float"),
        ("optim.epochs=-1", "out of range"),
        ("optim.compile=maybe", "expected true or false"),
        ("optim.milestones=50,25", "expected ascending numbers"),
        ("method.scale=-3", "does not fit method 'cosface'"),
        ("method.scael=3", "did you mean 'method.scale'"),
        ("optim.optimizer=adamm", "did you mean 'adam"),
        ("data.classes_per_batch=4000", "training classes of 'ndigit_smoke'"),
    ],
)
def test_a_value_that_does_not_fit_is_one_clear_line(tmp_path, pin, message):
    refused(message, tmp_path, "cosface", hparams="tuned", set=(pin,))
