"""Ranks and verdicts of tables: what is paired, what is left out and by which name, and what fits a terminal."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from bench.protocols.statistics.paired import holm, p_different, p_equivalent
from bench.protocols.statistics.ranks import rank_intervals
from bench.report.render import to_csv
from bench.report.terminal import print_comparison, print_paired
from bench.report.views import decision_document
from bench.store.specs import Pinned

from tests.report import shown
from tests.report.test_tables import MAP, RHO, _frame


def _results(values, metric=MAP, base=""):
    """Results of one metric: {method: {seed: value}}."""
    confidence = "" if metric is MAP else "method"
    return _frame([(m, base, s, confidence, metric, v) for m, by_seed in values.items() for s, v in by_seed.items()])


def _seeds(values, first=0):
    return dict(enumerate(values, first))


A, B, C = (_seeds(values) for values in ([0.81, 0.83, 0.82, 0.84], [0.80, 0.83, 0.81, 0.85], [0.5, 0.51, 0.49, 0.52]))


def _ranks(values, **change):
    frame, roles = _results(values)
    rows = shown.comparison(frame.assign(**change), roles)["d"]
    return {row.label: (row.rank.text, row.rank.ties, row.rank.reason) for row in rows}


def _printed(*printed, **options):
    return [line.rstrip() for line in shown.printed(*printed, **options).rstrip().splitlines()]


def test_rows_have_the_rank_intervals_of_their_paired_seeds():
    intervals = rank_intervals(np.array([list(v.values()) for v in (A, B, C)]).T)
    assert _ranks({"a": A, "b": B, "c": C}) == {
        name: (rank.text, rank.ties, "") for name, rank in zip("abc", intervals)
    }
    assert [rank.text for rank in intervals] == ["1-2", "1-2", "3"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({0: 0.8}, "one seed"),
        ({0: 0.8, 1: 0.7, 3: 0.8}, "no seed 2"),
        ({5: 0.8, 6: 0.7}, "no seeds 0-3"),
        ({0: 0.8, 1: float("nan"), 2: 0.7, 3: 0.8}, "no value at seed 1"),
        ({0: float("nan"), 1: float("nan")}, "no value"),
    ],
)
def test_a_method_without_the_seeds_of_the_others_has_no_rank_and_a_reason(values, reason):
    """It neither gets a rank of fewer seeds nor costs the others any."""
    found = _ranks({"a": A, "b": B, "c": C, "short": values})
    assert found.pop("short") == ("-", "-", reason)
    assert found == _ranks({"a": A, "b": B, "c": C})
    rows = shown.comparison(*_results({"a": A, "b": B, "c": C, "short": values}))
    assert f"\nNo rank: short ({reason}).\n" in shown.to_markdown(rows)
    assert f"No rank: short ({reason})." in shown.to_latex(rows)
    assert f"no rank: short ({reason})" in _printed(print_comparison, rows)
    table = shown.comparison_frame(rows).set_index("method")
    assert table["not_ranked"].to_dict() == {"a": "", "b": "", "c": "", "short": reason}
    assert table.loc["c", ["rank", "rank_low", "rank_high"]].to_list() == ["3", 3, 3]
    assert pd.isna(table.loc["short", "rank_low"])


def test_a_method_with_more_seeds_is_ranked_by_those_of_the_others():
    more = A | {4: 0.1, 5: 0.1}
    assert _ranks({"a": more, "b": B, "c": C})["a"] == _ranks({"a": A, "b": B, "c": C})["a"]


def test_without_two_methods_on_two_seeds_there_is_no_rank():
    assert _ranks({"a": A}) == {"a": ("-", "-", "nothing to compare with")}
    assert _ranks({"a": {0: 0.8}, "b": {0: 0.7}}) == {"a": ("-", "-", "one seed"), "b": ("-", "-", "one seed")}
    assert _ranks({"a": A, "b": {7: 0.1, 8: 0.2}})["a"][2] == "no other method with seeds 0-3"
    single, none = (shown.comparison(*_results({"a": {0: 0.8}} | other)) for other in ({}, {"b": {0: 0.7}}))
    assert "rank" not in "".join(_printed(print_comparison, single))
    assert "No rank" not in shown.to_markdown(single)
    assert _printed(print_comparison, none)[-1] == "no rank: one seed"


def _at_two_budgets():
    """Methods a, b, c at two budgets: tuned, where the others are far behind, c has no result."""
    frame, roles = _results({"a": A, "b": B, "c": C})
    frame[["protocol", "preset", "backbone", "dim"]] = ["reality_check", "strict", "convnet", 8]
    tuned = frame[frame["method"] != "c"].assign(hparams="tuned", trials=50, value=lambda rows: rows["value"] / 2)
    tuned["unit"] = "tuned " + tuned["unit"]
    both = pd.concat([frame.assign(hparams="default"), tuned], ignore_index=True)
    return both, pd.concat([roles, roles.assign(unit="tuned " + roles["unit"])], ignore_index=True)


def test_rows_are_ranked_and_marked_among_those_of_their_budget():
    frame, roles = _at_two_budgets()
    (rows,) = shown.comparison(frame, roles).values()
    tuned, default = rows[:2], rows[2:]
    assert [row.budget for row in rows] == 2 * ["tuned once, 50 trials"] + 3 * ["default settings"]
    assert {row.rank.text for row in tuned} == {"1-2"}
    assert [row.rank.text for row in default] == ["1-2", "1-2", "3"]
    for budget in (tuned, default):
        assert sum(mark.best for row in budget for mark in row.marks) == 1
    assert all(row.unequal == "" for row in rows)
    alone = shown.comparison(frame[frame["hparams"] == "default"], roles)["d"]
    assert [(row.rank, row.marks) for row in default] == [(row.rank, row.marks) for row in alone]


def test_settings_of_one_method_are_ranked_together():
    frame, roles = _results({"a": A, "b": B, "c": C})
    sweep = frame.assign(method="a", pinned=[Pinned(settings={"method.x": name}) for name in frame["method"]])
    (rows,) = shown.comparison(sweep, roles).values()
    (alone,) = shown.comparison(frame, roles).values()
    assert [row.rank.text for row in rows] == [row.rank.text for row in alone] == ["1-2", "1-2", "3"]
    assert {row.budget for row in rows} == {""}
    assert [row.marks for row in rows] == [row.marks for row in alone]


def test_each_budget_has_a_table_and_rows_without_rivals_have_one_together():
    frame, roles = _at_two_budgets()
    lone = frame[frame["method"] == "c"]
    more = [lone.assign(dim=dim, unit=f"{dim} " + lone["unit"]) for dim in (7, 9)]
    roles = pd.concat([roles, *(roles.assign(unit=f"{dim} " + roles["unit"]) for dim in (7, 9))])
    rows = shown.comparison(pd.concat([frame, *more], ignore_index=True), roles)
    titles = ["d, tuned once, 50 trials, convnet/8", "d, default settings, convnet/8", "d, budgets of one method each"]
    text = shown.to_markdown(rows, {"d": ["lost"]})
    assert re.findall("^## (.*)$", text, re.M) == titles
    assert text.count("No finished test: lost.") == 1
    assert "ranks, bold and underlined are within a table" in text
    assert [title in shown.to_latex(rows) for title in titles] == [True] * 3
    printed = "\n".join(_printed(print_comparison, rows, width=200))
    assert [f"{title}: mean ± SD over 4 seeds" in printed for title in titles] == [True] * 3
    assert "no rank: nothing to compare with" in printed


def test_methods_are_ranked_among_those_of_their_protocol():
    frame, roles = _results({"a": A, "b": B, "c": C})
    rows = shown.comparison(frame.assign(protocol=frame["method"].map({"a": "p", "b": "p", "c": "q"})), roles)["d"]
    assert {row.label: row.rank.reason for row in rows} == {"a": "", "b": "", "c": "nothing to compare with"}
    assert {row.rank.text for row in rows if not row.rank.reason} == {"1-2"}


def test_the_terminal_shows_ranks_in_eighty_columns_or_says_where_they_are():
    aurc = {"metric": "aurc", "split": "test_crop", "variant": "recall_at_1", "scorer": "cosine"}
    recall = MAP | {"metric": "recall_at_1"}

    def table(name):
        lines = []
        for method, by_seed in {name: A, "b": B, "c": C}.items():
            for seed, value in by_seed.items():
                lines += [(method, "", seed, "method", kind, value) for kind in (RHO, aurc)]
                lines += [(method, "", seed, "", kind, value) for kind in (MAP, recall)]
        rows = shown.comparison(*_frame(lines))
        return _printed(print_comparison, rows)

    lines = table("a_method_whose_name_is_so_so_long")
    assert "1-2" in "".join(lines)
    assert lines[-1] == "rank: by MAP@R, 95 % interval over paired seeds"
    lines = table("a_method_whose_name_is_so_long_that_nothing_fits")
    assert lines[-1] == "rank: in comparison.md, this terminal is too narrow"


def test_verdicts_are_those_of_holm_over_the_pairs_of_the_table():
    values = {"a": A, "b": {s: v - 0.001 for s, v in A.items()}, "c": C, "d": _seeds([0.9, 0.7, 0.8, 0.85])}
    values["b"][0] += 1e-4
    table = shown.paired_methods(*_results(values))
    pairs = list(zip(table["first"], table["other"]))
    differences = [np.array([values[o][s] - values[f][s] for s in range(4)]) for f, o in pairs]
    assert list(table["p_holm"]) == pytest.approx(list(holm(np.array([p_different(d) for d in differences]))))
    equivalence = holm(np.array([p_equivalent(d, 0.005) for d in differences]))
    assert list(table["p_equivalence_holm"]) == pytest.approx(list(equivalence))
    verdicts = dict(zip(pairs, table["verdict"]))
    assert verdicts == {
        ("a", "b"): "equivalent",
        ("a", "c"): "worse",
        ("b", "c"): "worse",
        ("a", "d"): "undecided",
        ("b", "d"): "undecided",
        ("c", "d"): "better",
    }
    row = table.set_index(["first", "other"]).loc[("a", "c")]
    assert (row["superiority"], row["superiority_ci95_low"]) == (0.0, 0.0)
    assert row["superiority_ci95_high"] == pytest.approx(1 - 0.025**0.25)
    printed = "\n".join(_printed(print_paired, table))
    assert "equivalent" in printed
    assert "worse <.001" in printed
    assert "p adjusted by Holm's method" in printed


def test_lower_is_better_if_the_metric_says_so():
    aurc = {"metric": "aurc", "split": "test_crop", "variant": "recall_at_1", "scorer": "cosine"}
    table = shown.paired_methods(*_results({"a": A, "c": C}, aurc))
    assert (table["verdict"].item(), table["superiority"].item()) == ("better", 1.0)
    assert table["difference_mean"].item() < 0


def test_seeds_that_one_method_lacks_are_named_and_one_seed_is_no_comparison():
    values = {"a": A, "gap": {0: 0.8, 1: float("nan"), 3: 0.7}, "one": {0: 0.7}, "other": {8: 0.7, 9: 0.6}}
    table = shown.paired_methods(*_results(values), names=("a", "gap", "one", "other")).set_index("other")
    assert table["left_out"].to_dict() == {
        "gap": "gap: no seed 2, no value at seed 1",
        "one": "one: no seeds 1-3",
        "other": "other: no seeds 0-3; a: no seeds 8, 9",
    }
    assert table["seeds"].to_dict() == {"gap": 2, "one": 1, "other": 0}
    assert table["verdict"].to_dict() == {"gap": "undecided", "one": "one seed", "other": "no common seed"}
    assert table.loc["other", ["difference_mean", "ci95_low", "superiority", "p_holm", "seeds_needed"]].isna().all()
    assert table.loc["one", ["ci95_low", "p_holm", "seeds_needed"]].isna().all()
    # A pair that could not be tested is no test: the other's p-value is not adjusted for it.
    assert table.loc["gap", "p_holm"] == table.loc["gap", "p"]
    printed = _printed(print_paired, table.reset_index())
    assert "gap: no seed 2, no value at seed 1" in " ".join(printed)


def test_the_seeds_that_are_needed_are_whole_and_those_of_the_region_at_least():
    close = {"a": A, "b": {s: v + (0.004 if s % 2 else -0.004) for s, v in A.items()}}
    table = shown.paired_methods(*_results(close))
    from bench.protocols.statistics.paired import seeds_needed

    assert table["seeds_needed"].item() == seeds_needed(table["difference_sd"].item(), 0.005)
    assert f",{table['seeds_needed'].item()}," in to_csv(table)


def test_heads_get_verdicts_against_their_base():
    values = [(m, b, s, "", MAP, v) for m, b, own in (("point", "", C), ("head", "point", A)) for s, v in own.items()]
    values = [line for line in values if line[:3] != ("head", "point", 2)]
    (line,) = shown.paired_with_base(*_frame(values)).to_dict("records")
    assert (line["verdict"], line["seeds"], line["left_out"]) == ("better", 3, "head (point): no seed 2")


@pytest.mark.slow
def test_equal_records_give_equal_bytes_in_any_order():
    frame, roles = _results({"a": A, "b": B, "c": C, "d": {0: 0.1, 1: 0.2}})
    shuffled = frame.sample(frac=1, random_state=0), roles.sample(frac=1, random_state=1)
    for table in (lambda f, r: shown.comparison_frame(shown.comparison(f, r)), shown.paired_methods):
        assert to_csv(table(frame, roles)) == to_csv(table(*shuffled))
    for table in (shown.to_markdown, shown.to_latex):
        assert table(shown.comparison(frame, roles)) == table(shown.comparison(*shuffled))
    first, again = (shown.latex(decision_document(shown.decisions_of(*each))) for each in ((frame, roles), shuffled))
    assert first == again


def test_a_method_that_is_named_twice_is_one():
    """It is no rival of itself, and p-values are adjusted over as many pairs as without the repetition."""
    frame, roles = _results({"a": A, "b": B, "c": C})
    once = shown.paired_methods(frame, roles, names=("a", "b", "c"))
    pd.testing.assert_frame_equal(shown.paired_methods(frame, roles, names=("a", "b", "b", "a", "c")), once)
    assert shown.paired_methods(frame, roles, names=("a", "a")).empty
