"""``--fidelity released`` means a form that each method has; where two repositories differ, the protocol's own."""

from typing import Literal

import pytest
from bench.engine.training import Trainer
from bench.methods import Method, MethodParams, register
from bench.planning.setting import resolve_fidelity
from bench.registry import Registry
from bench.site import Site

from tests.plans import refused

from .test_layers import _plan

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
    assert _plan(tmp_path, "pfe", fidelity="released", hparams="default", base="arcface").base.template.form == (
        "released"
    )


def test_the_form_can_be_set_for_one_method(tmp_path):
    plan = _plan(tmp_path, "nir", hparams="tuned", set=("method.form=released",))
    asked = _plan(tmp_path, "nir", hparams="tuned", fidelity="released")
    assert plan.template.form == asked.template.form == "released"
    assert plan.template.params == asked.template.params  # defaults of that form included
    assert plan.pinned.text == "method.form=released"
    assert "method.form" not in plan.space
    refused("form", tmp_path, "nir", set=("method.form=published",))


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


@pytest.mark.parametrize(("method", "fidelity"), [("cosface", "released"), ("hib", "released_el")])
def test_a_fidelity_that_no_method_has_is_refused(tmp_path, method, fidelity):
    refused("one form only", tmp_path, method, fidelity=fidelity)


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
