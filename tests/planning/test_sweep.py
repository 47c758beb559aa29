"""A sweep is one run for each value, as if each had been set by hand."""

import pytest
from bench.planning.experiment import Experiment, read_experiment
from bench.planning.plan import build_plans
from bench.site import Site

from tests.plans import planned, refused

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
    made = Experiment(
        methods=("cosface",),
        datasets=("ndigit_smoke",),
        hparams="default",
        sweep={"optim.milestones": [[1, 2], [3]]},
        set={"optim.schedule": "multistep"},
    )
    assert made.sweep == {"optim.milestones": ("1,2", "3")}
    path = tmp_path / "sweep.toml"
    path.write_text(made.to_toml())
    assert Experiment(**read_experiment(path)) == made
    plans = build_plans(made, SITE).plans
    assert [plan.template.optim.milestones for plan in plans] == [(1, 2), (3,)]


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


@pytest.mark.parametrize(
    ("sweep", "fixed", "message"),
    [
        (("method.scale",), (), "expected KEY=A,B,C"),
        (("method.scale=",), (), "expected KEY=A,B,C"),
        (("method.scale=8,8",), (), "a value is given twice"),
        (("method.scale=8,16",), ("method.scale=4",), "is set or swept already"),
        (("method.scale=8", "method.scale=16"), (), "is set or swept already"),
        (("method.scale=8,-1",), (), "does not fit method 'cosface'"),
        (("method.scael=8,16",), (), "did you mean 'method.scale'"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(sweep, fixed, message):
    refused(message, SITE, "cosface", sweep=sweep, set=fixed)
