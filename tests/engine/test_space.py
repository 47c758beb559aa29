"""A study's proposals are a pure function of its records."""

import pytest
from bench.engine.space import clip_to_space, propose

SPACE = {
    "a": {"low": 1e-3, "high": 1e-1, "log": True, "type": "float"},
    "b": {"low": 0.0, "high": 1.0, "log": False, "type": "float"},
    "n": {"low": 1, "high": 9, "log": False, "type": "int"},
}


def _history(count):
    told = []
    for number in range(count):
        params = propose(("s",), SPACE, "tpe", number, told, [])
        told.append({"params": params, "value": -abs(params["b"] - 0.3) if number % 5 else None})
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
            assert SPACE[name]["low"] <= value <= SPACE[name]["high"]
        assert isinstance(params["n"], int)


def test_the_gp_finds_the_optimum_of_a_smooth_function():
    told = []
    for start in range(0, 28, 4):
        asked = []
        for number in range(start, start + 4):
            asked.append(propose(("opt",), {"b": SPACE["b"]}, "gp", number, told, asked))
        told += [{"params": p, "value": -((p["b"] - 0.37) ** 2)} for p in asked]
    assert min(abs(t["params"]["b"] - 0.37) for t in told) < 0.01


def test_defaults_outside_the_space_are_moved_to_its_edge():
    assert clip_to_space({"a": 5.0, "b": -1.0, "n": 4, "other": 1}, SPACE) == {"a": 0.1, "b": 0.0, "n": 4}
