"""Decisions about methods and data sets: what is compared, what is left out by name, and which budgets are unequal."""

from __future__ import annotations

import numpy as np
import pytest
from bench.protocols.statistics.paired import holm, p_different, seeds_needed
from bench.protocols.statistics.ranks import critical_difference, mean_ranks
from bench.report.ranks import rank_document
from bench.report.views import decision_document

from tests.report import shown
from tests.report.test_ranks import A, B, C, _at_two_budgets, _results, _seeds


def _more_seeds(row):
    return decision_document([row]).numbers["more_seeds"].dropna().item() if row.outcome == "undecided" else None


def _decided(values):
    return shown.decisions_of(*_results(values))


def test_each_method_is_compared_with_the_best_and_p_values_count_all_pairs():
    found = {each.contender.method: each for each in _decided({"c": C, "b": B, "a": A})}
    assert set(found) == {"b", "c"}
    values = {name: np.array(list(of.values())) for name, of in (("a", A), ("b", B), ("c", C))}
    differences = [values["b"] - values["a"], values["c"] - values["a"], values["c"] - values["b"]]
    adjusted = holm(np.array([float(p_different(each)) for each in differences]))
    assert found["c"].p_holm == pytest.approx(adjusted[1])
    assert found["c"].raw["difference_mean"] == pytest.approx(differences[1].mean())
    assert found["c"].high < 0
    assert (found["c"].verdict, _more_seeds(found["c"])) == ("worse", None)
    assert found["c"].superiority["superiority"] == 0.0
    assert found["b"].verdict == "undecided"
    needed = seeds_needed(differences[0].std(ddof=1), max(abs(differences[0].mean()), 0.005), alpha=0.05 / 3)
    assert _more_seeds(found["b"]) == needed - 4
    assert (
        found["b"].superiority["superiority"]
        == (values["b"] > values["a"]).mean() + 0.5 * (values["b"] == values["a"]).mean()
    )


def test_the_best_is_that_of_the_same_budget():
    frame, roles = _at_two_budgets()
    found = shown.decisions_of(frame, roles)
    compared = [
        (each.contender.hparams, each.contender.method, each.against.hparams, each.against.method) for each in found
    ]
    assert sorted(compared) == [
        ("default", "b", "default", "a"),
        ("default", "c", "default", "a"),
        ("tuned", "b", "tuned", "a"),
    ]
    text = shown.markdown(decision_document(found))
    assert text.index("tuned once, 50 trials)") < text.index("default settings)")


def test_one_common_seed_and_left_out_seeds_are_said():
    found = _decided({"a": A, "b": B, "short": {0: 0.1}})
    short = next(each for each in found if each.contender.method == "short")
    assert (short.verdict, short.n, _more_seeds(short)) == ("one seed", 1, None)
    assert "no seeds 1-3" in short.about["left_out"]
    text = shown.markdown(decision_document(found))
    assert "Left out: short: no seeds 1-3." in text
    assert "| 10.00 | 82.50 | -71.00 | 1 | one seed |" in text
    assert decision_document(found).numbers["more_seeds"].isna().sum() == 1


def _over(datasets, **values):
    frames = [_results({name: of[dataset] for name, of in values.items() if dataset in of}) for dataset in datasets]
    made = [
        (frame.assign(dataset=dataset, unit=dataset + frame["unit"]), roles.assign(unit=dataset + roles["unit"]))
        for dataset, (frame, roles) in zip(datasets, frames)
    ]
    return shown.over_datasets_of(*shown.joined(made))


def _many(count, scale):
    return {f"d{number}": _seeds(scale * np.array([0.5, 0.6]) + 0.01 * number) for number in range(count)}


def test_mean_ranks_need_every_data_set_and_say_who_lacks_one():
    names = [f"d{number}" for number in range(6)]
    partly = {name: value for name, value in _many(6, 0.7).items() if name != "d2"}
    (found,) = _over(names, a=_many(6, 1.0), b=_many(6, 0.9), c=_many(6, 0.8), partly=partly)
    assert found.methods == (("a", "default"), ("b", "default"), ("c", "default"))
    assert dict(found.left_out) == {("partly", "default"): "not on d2"}
    assert found.ranks.tolist() == mean_ranks(found.means).tolist() == [1.0, 2.0, 3.0]
    assert found.critical_difference == critical_difference(3, 6)
    assert found.ties == ["a", "ab", "b"]
    table = rank_document([found]).numbers.set_index("method")
    assert np.isnan(table.loc["partly", "mean_rank"])
    for text in (shown.markdown(rank_document([found])), shown.latex(rank_document([found]))):
        assert "left out: partly (not on d2)" in text


def test_few_data_sets_have_no_test_and_one_has_no_ranks():
    (found,) = _over(["d0", "d1", "d2"], a=_many(3, 1.0), b=_many(3, 0.9), c=_many(3, 0.8))
    assert np.isnan(found.p)
    assert found.ties == ["-", "-", "-"]
    assert _over(["d0"], a=_many(1, 1.0), b=_many(1, 0.9)) == []


def test_a_row_with_an_unequal_budget_is_marked_and_its_difference_named():
    frame, roles = _results({"a": A, "b": B, "c": C, "short": {0: 0.7, 1: 0.7}})
    frame[["hparams", "trials"]] = ["tuned", 10]
    frame.loc[frame["method"] == "b", "trials"] = 1  # as of a method with nothing to tune
    rows = shown.comparison(frame, roles)
    table = shown.comparison_frame(rows).set_index("method")["unequal_budget"]
    assert table["a"] == ""
    assert table["short"] == "2 seeds, not 4 seeds"
    assert table["b"].startswith("tuned once, 1 trial")
    for text in (shown.to_markdown(rows), shown.to_latex(rows)):
        assert "Unequal budget: " in text
        assert "short (2 seeds, not 4 seeds)" in text
    assert "| short \\* |" in shown.to_markdown(rows)
    assert "| a |" in shown.to_markdown(rows)
