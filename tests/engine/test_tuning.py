"""A study's proposals are a pure function of its records."""

import math
import random
from dataclasses import replace

import pytest
from bench.conformance import build
from bench.engine.tuning import Told, propose
from bench.protocols.recipes._base import Range
from bench.registry import Registry

from tests.plans import planned

SPACE = {"a": Range(1e-3, 1e-1, log=True), "b": Range(0.0, 1.0), "n": Range(1, 9, type="int")}


def _history(count):
    told = []
    for number in range(count):
        params = propose(("s",), SPACE, "tpe", number, told, [])
        told.append(Told(params=params, values=(-abs(params["b"] - 0.3),) if number % 5 else None))
    return told


@pytest.mark.parametrize("startup", [None, 4])
@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_proposals_stay_inside_the_space(sampler, startup):
    told = _history(12)
    for number in range(12, 16):
        params = propose(("s",), SPACE, sampler, number, told, [], 1, startup)
        assert set(params) == set(SPACE)
        for name, value in params.items():
            assert SPACE[name].low <= value <= SPACE[name].high
        assert isinstance(params["n"], int)


@pytest.mark.parametrize(
    ("sampler", "number", "a", "b", "n"),
    [
        ("gp", 3, 0.008641200334689295, 0.3175386411468011, 2),
        ("gp", 13, 0.010042202996877846, 0.2702259688436829, 9),
        ("tpe", 13, 0.004265548121293362, 0.6371313273742265, 3),
    ],
)
def test_a_study_without_start_up_points_is_that_of_e080bfd(sampler, number, a, b, n):
    told = _history(number)
    proposed = propose(("s",), SPACE, sampler, number, told, [told[0].params])
    # Another processor may round the process differently.
    assert proposed == pytest.approx({"a": a, "b": b, "n": n}, rel=0 if number == 3 else 1e-6, abs=0)


def _quasi_random(number, study="s", space=SPACE):
    return propose((study,), space, "gp", number, [], [], 1, 1000)


def test_quasi_random_points_fill_every_range_evenly():
    """In each of 32 equal parts of a range, on its own scale, lies one of 32 points."""
    rates = {"log n": Range(1, 1000, log=True, type="int"), **SPACE}
    for study in "st":
        points = [_quasi_random(number, study, rates) for number in range(1, 33)]
        assert sorted(math.floor(16 * (math.log10(point["a"]) + 3)) for point in points) == list(range(32))
        assert sorted(math.floor(32 * point["b"]) for point in points) == list(range(32))
        assert {point["n"] for point in points} == set(range(1, 10))
        assert all(isinstance(point["log n"], int) for point in points)
        assert 14 <= sum(point["log n"] < 32 for point in points) <= 18
    assert _quasi_random(1, "t") != _quasi_random(1) == _quasi_random(1)


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_the_sampler_starts_after_the_start_up_points(sampler):
    told = _history(12)[1:]
    other = [trial._replace(values=trial.values and (-trial.values[0],)) for trial in told]

    def proposals(number, count, asked=()):
        found = [propose(("s",), SPACE, sampler, number, each[:count], list(asked), 1, 4) for each in (told, other)]
        return found[0], found[0] == found[1], found[0] == _quasi_random(number)

    for number, count in [(1, 0), (1, 1), (3, 2), (3, 3), (4, 0), (7, 0)]:  # nothing is told in a batch of eight
        assert proposals(number, count)[1:] == (True, True)
    for number, count in [(5, 3), (4, 4), (5, 4), (9, 8)]:
        assert proposals(number, count)[1:] == (False, False)
    assert proposals(5, 4, [told[0].params])[0] != proposals(5, 4)[0]


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
@pytest.mark.parametrize("objectives", [1, 2])
@pytest.mark.parametrize(("startup", "first"), [(None, 10), (4, 4)])
def test_of_trials_that_are_all_equal_the_sampler_hears_nothing(sampler, objectives, startup, first):
    """Optuna's Gaussian process asked for corners of the space, again and again."""
    for number in (first, 14):
        told = [Told(params=_quasi_random(n), values=(1 - 4e-13 * (n % 3), 0.5)[:objectives]) for n in range(number)]
        told[1] = Told(params=told[1].params, values=None)
        assert propose(("s",), SPACE, sampler, number, told, [], objectives, startup) == _quasi_random(number)
        told[2] = Told(params=told[2].params, values=(0.9, 0.5)[:objectives])
        assert propose(("s",), SPACE, sampler, number, told, [], objectives, startup) != _quasi_random(number)


def test_defaults_outside_the_space_are_moved_to_its_edge():
    [plan], _ = planned("unused", "cosface", hparams="tuned")
    template = plan.template.replaced(
        params={"scale": 5.0, "margin": -1.0}, optim=replace(plan.template.optim, epochs=4)
    )
    space = {"method.scale": SPACE["a"], "method.margin": SPACE["b"], "optim.epochs": SPACE["n"]}
    moved = replace(plan, template=template, space=space).defaults()
    assert moved == {"method.scale": 0.1, "method.margin": 0.0, "optim.epochs": 4}


def _heard(monkeypatch, values):
    """Values that a sampler is told."""
    import optuna

    heard, make = [], optuna.trial.create_trial
    with monkeypatch.context() as patched:
        patched.setattr(optuna.trial, "create_trial", lambda **trial: heard.append(trial["values"]) or make(**trial))
        told = [Told(params={"b": 0.01 * n}, values=value) for n, value in enumerate(values)]
        propose(("s",), {"b": SPACE["b"]}, "tpe", len(told), told, [], len(next(filter(None, values))))
    return [tuple(value) for value in heard]


def test_only_what_is_far_off_is_told_as_a_failure(monkeypatch):
    rng = random.Random(0)
    shares = [(rng.random(),) for _ in range(9)] + [(0.0,), None, (1.0,)]
    near = [(1.0 - 1e-9 * rng.random(),) for _ in range(12)] + [(0.0,), (1.0,)]
    pairs = [(rng.random(), rng.random()) for _ in range(12)] + [None]
    losses = [(-rng.lognormvariate(0, 1),) for _ in range(12)]
    for values in (shares, near, pairs, losses, [(-5.0,)] * 4):
        worst = tuple(map(min, zip(*filter(None, values))))
        assert _heard(monkeypatch, values) == [worst if value is None else value for value in values]
    bad = [*losses, (-1e4,), None, (-1e300,)]
    assert _heard(monkeypatch, bad) == [*losses, *[min(losses)] * 3]
    # One good trial among many that diverge, and one that diverges among equal ones.
    assert _heard(monkeypatch, [(-1.0,), (-1e8,), (-2e8,), (-1e20,)])[:3] == [(-1.0,), (-1e8,), (-2e8,)]


def _rates(model, lr_objective):
    from bench.engine.optim import build_optimizer
    from bench.protocols.recipes._base import Optim

    optim = Optim(lr=1e-3, lr_objective=lr_objective, epochs=1)
    return [group["lr"] for group in build_optimizer(model, model.objective, optim).param_groups]


@pytest.mark.slow
@pytest.mark.parametrize("name", Registry("methods").names)
def test_the_rate_of_the_objective_is_tuned_if_and_only_if_something_learns_at_it(name):
    """By brute force: does any group of the optimiser change with it?"""
    pins = ("method.train=all",) if name == "dul_reg" else ()
    plans, site = planned("unused", name, hparams="tuned", set=pins)
    plan = next(plan for plan in plans if plan.cell.method == name)
    cls = site.methods.method(name)
    if not cls.by_steps:  # no optimiser
        assert not any(key.startswith("optim.") for key in plan.space)
        return
    model = build(cls, **dict(pin.removeprefix("method.").split("=") for pin in pins))
    assert ("optim.lr_objective" in plan.space) == (_rates(model, 0.5) != _rates(model, 0.25))


def test_the_factor_of_a_schedule_that_has_none_is_not_tuned(tmp_path):
    from bench.methods.cosface import CosFace
    from bench.planning.setting import search_ranges
    from bench.protocols.reality_check import PRESETS
    from bench.protocols.recipes.cub200 import RECIPE

    for schedule, tuned in (("step", True), ("constant", False)):
        values = {"optim.schedule": schedule}
        space = search_ranges(PRESETS["strict"], RECIPE, CosFace(), RECIPE.end_to_end, values, None)
        assert ("optim.gamma" in space) == tuned
