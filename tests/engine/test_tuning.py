"""A study's proposals are a pure function of its records."""

from dataclasses import replace

import pytest
from bench.engine.tuning import Told, propose
from bench.planning.planner import build_plans
from bench.planning.request import RunRequest
from bench.protocols.recipes._base import Range
from bench.site import Site

SPACE = {
    "a": Range(1e-3, 1e-1, log=True),
    "b": Range(0.0, 1.0),
    "n": Range(1, 9, type="int"),
}


def _history(count):
    told = []
    for number in range(count):
        params = propose(("s",), SPACE, "tpe", number, told, [])
        told.append(Told(params=params, value=-abs(params["b"] - 0.3) if number % 5 else None))
    return told


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_the_same_records_give_the_same_proposal(sampler):
    told = _history(14)
    asked = [propose(("s",), SPACE, sampler, 14, told, [])]
    first, again = (propose(("s",), SPACE, sampler, 15, told, asked) for _ in range(2))
    assert first == again
    assert first != asked[0]
    assert propose(("another study",), SPACE, sampler, 15, told, asked) != first


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_proposals_stay_inside_the_space(sampler):
    told = _history(12)
    for number in range(12, 16):
        params = propose(("s",), SPACE, sampler, number, told, [])
        assert set(params) == set(SPACE)
        for name, value in params.items():
            assert SPACE[name].low <= value <= SPACE[name].high
        assert isinstance(params["n"], int)


def test_the_gp_finds_the_optimum_of_a_smooth_function():
    told = []
    for start in range(0, 28, 4):
        asked = []
        for number in range(start, start + 4):
            asked.append(propose(("opt",), {"b": SPACE["b"]}, "gp", number, told, asked))
        told += [Told(params=p, value=-((p["b"] - 0.37) ** 2)) for p in asked]
    assert min(abs(t.params["b"] - 0.37) for t in told) < 0.01


def test_defaults_outside_the_space_are_moved_to_its_edge():
    request = RunRequest(methods=("cosface",), datasets=("ndigit_smoke",))
    plan = build_plans(request, Site(results="unused")).plans[0]
    template = plan.template.replaced(
        params={"scale": 5.0, "margin": -1.0}, optim=replace(plan.template.optim, epochs=4)
    )
    space = {"method.scale": SPACE["a"], "method.margin": SPACE["b"], "optim.epochs": SPACE["n"]}
    moved = replace(plan, template=template, space=space).defaults()
    assert moved == {"method.scale": 0.1, "method.margin": 0.0, "optim.epochs": 4}
