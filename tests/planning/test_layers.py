"""Settings come in layers, a later one wins; sweeps; and the form that `--fidelity` means for each method."""

import json
from typing import Literal

import pytest
from bench.engine.training import Trainer
from bench.methods import Method, MethodParams, register
from bench.planning.experiment import Experiment, read_experiment
from bench.planning.plan import build_plans
from bench.planning.setting import resolve_fidelity
from bench.registry import Registry
from bench.site import Site

from tests.plans import planned


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
    assert _plan(tmp_path, "pfe", methods=("pfe", "cosface"), set=pins).base.epochs == 3


SITE = Site(results="unused")


def _plans(methods=("cosface",), **request):
    return planned(SITE, *methods, **request)[0]


def test_each_value_is_the_plan_that_setting_it_by_hand_makes():
    swept = _plans(sweep=("method.scale=8,16,32",), set=("optim.epochs=2",))
    by_hand = [_plans(set=("optim.epochs=2", f"method.scale={value}"))[0] for value in (8, 16, 32)]
    assert [plan.key for plan in swept] == [plan.key for plan in by_hand]
    assert [plan.pinned.text for plan in swept] == [f"method.scale={value}; optim.epochs=2" for value in (8, 16, 32)]


def test_a_swept_value_may_be_a_list_itself(tmp_path):
    """The lists of a table were joined and split at every comma: '[1', '2]', '[3]'."""
    asked = {"hparams": "default", "sweep": {"optim.milestones": [[1, 2], [3]]}, "set": {"optim.schedule": "multistep"}}
    made = Experiment(methods=("cosface",), datasets=("ndigit_smoke",), **asked)
    assert made.sweep == {"optim.milestones": ("1,2", "3")}
    path = tmp_path / "sweep.toml"
    path.write_text(made.to_toml())
    assert Experiment(**read_experiment(path)) == made
    plans = build_plans(made, SITE).plans
    assert [plan.template.optim.milestones for plan in plans] == [(1, 2), (3,)]


def test_heads_on_bases_at_other_settings_are_other_rows():
    both, on, public = "cosface,pfe", "optim.epochs=3", {"base": "arcface", "fidelity": "released"}
    asked = [(both, {}), *((names, {"set": (on,)}) for names in (both, "pfe", "cosface,laplace"))]
    asked += [(both, {"sweep": ("method.margin=0.2,0.5",)}), ("arcface,laplace", public)]
    found = [str(plan.pinned) for names, more in asked for plan in _plans(names.split(","), **more) if plan.base]
    bases = [f"base: {fixed}" for fixed in (on, "method.margin=0.2", "method.margin=0.5", "released")]
    assert found == ["", on, f"{on}; base: without {on}", *bases]


def test_two_sweeps_are_all_combinations():
    plans = _plans(sweep=("method.scale=8,16", "method.margin=0.1,0.2,0.3"))
    found = {(plan.template.params["scale"], plan.template.params["margin"]) for plan in plans}
    assert found == {(s, m) for s in (8.0, 16.0) for m in (0.1, 0.2, 0.3)}
    assert len(plans) == 6


def test_what_does_not_have_the_value_is_planned_once():
    plans = _plans(("cosface", "pfe", "nir"), sweep=("method.omega=0.1,1",))
    assert [plan.cell.method for plan in plans] == ["cosface", "pfe", "nir", "nir"]


def test_a_base_is_swept_with_what_is_about_the_data():
    plans = _plans(("pfe",), sweep=("data.images_per_class=2,3",))
    assert [plan.cell.method for plan in plans] == ["cosface", "pfe", "cosface", "pfe"]
    for base, head in (plans[:2], plans[2:]):
        assert head.base.key == base.key
        assert head.template.batches == base.template.batches


METHODS = Registry("methods")


@pytest.mark.parametrize(
    ("method", "asked", "protocol", "form"),
    [
        ("proxy_anchor", "released", "reality_check", "released_per"),
        ("proxy_anchor", "released", "standardized", "released_el"),
        ("proxy_anchor", "released_el", "reality_check", "released_el"),
        ("proxy_anchor", "released_per", "standardized", "released_per"),
        ("proxy_nca", "released", "reality_check", "released_per"),
        ("proxy_nca", "released", "standardized", "released_el"),
        ("hib", "released", "standardized", "released"),
        ("hib", "released_per", "reality_check", "released"),
        ("hib", "released_el", "standardized", "corrected"),
        ("el_nivmf", "released_el", "standardized", "released"),
        ("el_nivmf", "released_per", "reality_check", "corrected"),
        ("cosface", "released", "reality_check", "corrected"),
        ("proxy_anchor", "corrected", "standardized", "corrected"),
    ],
)
def test_the_form_that_a_fidelity_means(method, asked, protocol, form):
    assert resolve_fidelity(METHODS.method(method), asked, protocol) == form


def test_units_store_the_form(tmp_path):
    plan = _plan(tmp_path, "proxy_anchor", fidelity="released", hparams="default")
    assert plan.template.form == "released_per"
    assert _plan(tmp_path, "pfe", fidelity="released_per", hparams="default").template.form == "released"
    head = _plan(tmp_path, "pfe", fidelity="released", hparams="default", base="arcface")
    assert head.base.template.form == "released"


def test_the_form_can_be_set_for_one_method(tmp_path):
    plan = _plan(tmp_path, "nir", hparams="tuned", set=("method.form=released",))
    asked = _plan(tmp_path, "nir", hparams="tuned", fidelity="released")
    assert plan.template.form == asked.template.form == "released"
    assert plan.template.params == asked.template.params  # defaults of that form included
    assert plan.pinned.text == "method.form=released"
    assert "method.form" not in plan.space


def test_a_parameter_of_that_name_is_for_forms():
    class Mine(Method):
        """Its form is another thing."""

        name = "mine"
        summary = "mine"

        class Params(MethodParams):
            """A shape."""

            form: Literal["round", "square"] = "round"

    with pytest.raises(TypeError, match="one of them 'corrected'"):
        register(Mine)


@pytest.mark.parametrize("entry", list(METHODS), ids=lambda entry: entry.name)
def test_a_method_with_one_released_form_says_whose(entry):
    cls = entry.load()
    if "released" in cls.forms():
        assert cls.repository in ("per", "el")
    assert len(cls.forms()) in (1, 2) or cls.forms() == ("corrected", "released_per", "released_el")


@pytest.mark.parametrize("method", ["hib", "vmf_loss"])
def test_per_s_start_is_from_ten_batches(tmp_path, method, monkeypatch):
    seen = {}
    for fidelity in ("corrected", "released"):
        plan = _plan(tmp_path, method, fidelity=fidelity, hparams="default", set=("data.classes_per_batch=4",))
        trainer = Trainer(plan.template, Site(results=str(tmp_path / "results")))
        sizes = plan.template.batches
        monkeypatch.setattr(
            type(trainer.model.method), "initialise", lambda self, model, raw, labels: seen.update({self.form: raw})
        )
        trainer.resume_or_start()
        batch = sizes.classes_per_batch * sizes.images_per_class
        wanted = 10 if fidelity == "released" else trainer.steps
        assert trainer.steps > 10
        assert len(seen[fidelity]) == wanted * batch
