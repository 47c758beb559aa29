"""Ranks, verdicts and decisions: what is paired, what is left out and by which name, what fits a terminal or a page."""

import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from bench.protocols.statistics.paired import holm, p_different, p_equivalent, seeds_needed
from bench.protocols.statistics.ranks import critical_difference, mean_ranks
from bench.report.contender import Contender
from bench.report.cost import CostRow, cost_document
from bench.report.ranks import rank_document
from bench.report.render import to_csv
from bench.report.table import Cell, Document, cells_table, headings
from bench.report.terminal import print_comparison, print_paired
from bench.report.views import decision_document, paired_frame, verdict_document
from bench.store.specs import Pinned
from scipy import stats

from tests.report import shown, test_verdicts
from tests.report.test_tables import AURC, MAP, RHO, _frame


def _results(values, metric=MAP, base=""):
    """Results of one metric: {method: {seed: value}}."""
    confidence = "" if metric is MAP else "method"
    return _frame([(m, base, s, confidence, metric, v) for m, by_seed in values.items() for s, v in by_seed.items()])


def _seeds(values, first=0):
    return dict(enumerate(values, first))


A, B, C = (_seeds(values) for values in ([0.81, 0.83, 0.82, 0.84], [0.80, 0.83, 0.81, 0.85], [0.5, 0.51, 0.49, 0.52]))


def _ranks(values, **change):
    frame, roles = _results(values)
    rows = shown.rows(frame.assign(**change), roles)
    return {row.contender.label: (row.rank.text, row.rank.ties, row.rank.reason) for row in rows}


def _printed(*printed, **options):
    return [line.rstrip() for line in shown.printed(*printed, **options).rstrip().splitlines()]


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
    replicates = _ranks({"a": {0: 0.8}, "b": {0: 0.7}}, replicate="study")
    assert {reason for *_, reason in replicates.values()} == {"one replicate"}
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


def _standing(rows):
    return [(row.rank, [(value.best, value.beats) for value in row.values]) for row in rows]


def test_rows_are_ranked_and_marked_among_those_of_their_budget():
    frame, roles = _at_two_budgets()
    (_, *first, tuned), (_, *second, default) = shown.comparison(frame, roles)
    assert (*first, len(tuned), *second, len(default)) == ("tuned once, 50 trials", 2, "default settings", 3)
    assert {row.rank.text for row in tuned} == {"1-2"}
    assert [row.rank.text for row in default] == ["1-2", "1-2", "3"]
    for budget in (tuned, default):
        assert sum(value.best for row in budget for value in row.values) == 1
    assert all(row.unequal == "" for row in (*tuned, *default))
    alone = shown.rows(frame[frame["hparams"] == "default"], roles)
    assert _standing(default) == _standing(alone)


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


def test_the_terminal_shows_ranks_in_eighty_columns_or_says_where_they_are():
    recall = MAP | {"metric": "recall_at_1"}

    def table(name):
        lines = []
        for method, by_seed in {name: A, "b": B, "c": C}.items():
            for seed, value in by_seed.items():
                lines += [(method, "", seed, "method", kind, value) for kind in (RHO, AURC)]
                lines += [(method, "", seed, "", kind, value) for kind in (MAP, recall)]
        return _printed(print_comparison, shown.comparison(*_frame(lines)))

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
    verdicts = dict(zip((first + other for first, other in pairs), table["verdict"]))
    worse, undecided = dict.fromkeys(["ac", "bc"], "worse"), dict.fromkeys(["ad", "bd"], "undecided")
    assert verdicts == {"ab": "equivalent", "cd": "better", **worse, **undecided}
    row = table.set_index(["first", "other"]).loc[("a", "c")]
    assert (row["superiority"], row["superiority_ci95_low"]) == (0.0, 0.0)
    assert row["superiority_ci95_high"] == pytest.approx(1 - 0.025**0.25)
    printed = "\n".join(_printed(print_paired, shown.pairs_of(*_results(values))))
    assert "equivalent" in printed
    assert "worse <.001" in printed
    assert "p adjusted by Holm's method" in printed


def test_differences_are_over_the_seeds_that_two_methods_share_and_turn_with_their_order():
    values = {"one": {0: 0.50, 1: 0.55, 2: 0.60, 7: 0.0}, "two": {0: 0.52, 1: 0.58, 2: 0.59}}
    values["three"] = dict.fromkeys(range(3), 0.4)
    lines = shown.paired_methods(*_results(values))
    assert list(zip(lines["first"], lines["other"])) == [("one", "three"), ("one", "two"), ("three", "two")]
    line = lines[lines["other"].eq("two") & lines["first"].eq("one")].iloc[0]
    test = stats.ttest_rel([0.52, 0.58, 0.59], [0.50, 0.55, 0.60]).confidence_interval(0.95)
    assert line["difference_mean"] == pytest.approx((0.02 + 0.03 - 0.01) / 3)
    assert (line["ci95_low"], line["ci95_high"]) == pytest.approx((test.low, test.high))
    assert line["seeds"] == 3
    named = shown.paired_methods(*_results(values), names=("two", "one", "three"))
    assert list(zip(named["first"], named["other"])) == [("two", "one"), ("two", "three")]
    assert named["difference_mean"].iloc[0] == pytest.approx(-line["difference_mean"])


def test_printed_differences_of_one_method_name_what_was_fixed():
    frame, roles = _results({"a": A, "c": C})
    frame = frame.assign(method="m", pinned=[Pinned(settings={"method.x": name}) for name in frame["method"]])
    assert "method.x=c" in " ".join(_printed(print_paired, shown.pairs_of(frame, roles)))


def test_lower_is_better_if_the_metric_says_so():
    table = shown.paired_methods(*_results({"a": A, "c": C}, AURC))
    assert (table["verdict"].item(), table["superiority"].item()) == ("better", 1.0)
    assert table["difference_mean"].item() < 0


def test_seeds_that_one_method_lacks_are_named_and_one_seed_is_no_comparison():
    values = {"a": A, "gap": {0: 0.8, 1: float("nan"), 3: 0.7}, "one": {0: 0.7}, "other": {8: 0.7, 9: 0.6}}
    pairs = shown.pairs_of(*_results(values), names=("a", "gap", "one", "other"))
    table = paired_frame(pairs).set_index("other")
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
    printed = _printed(print_paired, pairs)
    assert "gap: no seed 2, no value at seed 1" in " ".join(printed)


def test_the_seeds_that_are_needed_are_whole_and_those_of_the_region_at_least():
    close = {"a": A, "b": {s: v + (0.004 if s % 2 else -0.004) for s, v in A.items()}}
    table = shown.paired_methods(*_results(close))
    assert table["seeds_needed"].item() == seeds_needed(table["difference_sd"].item(), 0.005)
    assert f",{table['seeds_needed'].item()}," in to_csv(table)


def test_a_method_that_is_named_twice_is_one():
    """It is no rival of itself, and p-values are adjusted over as many pairs as without the repetition."""
    frame, roles = _results({"a": A, "b": B, "c": C})
    once = shown.paired_methods(frame, roles, names=("a", "b", "c"))
    pd.testing.assert_frame_equal(shown.paired_methods(frame, roles, names=("a", "b", "b", "a", "c")), once)
    assert shown.paired_methods(frame, roles, names=("a", "a")).empty


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
    wins = (values["b"] > values["a"]).mean() + 0.5 * (values["b"] == values["a"]).mean()
    assert found["b"].superiority["superiority"] == wins


def test_the_best_is_that_of_the_same_budget():
    frame, roles = _at_two_budgets()
    found = shown.decisions_of(frame, roles)
    pairs = [(each.contender, each.against) for each in found]
    compared = [(own.hparams, own.method, other.hparams, other.method) for own, other in pairs]
    assert sorted(compared) == [
        ("default", "b", "default", "a"),
        ("default", "c", "default", "a"),
        ("tuned", "b", "tuned", "a"),
    ]
    text = shown.markdown(decision_document(found))
    assert text.index("tuned once, 50 trials)") < text.index("default settings)")


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
    assert np.isnan(rank_document([found]).numbers.set_index("method").loc["partly", "mean_rank"])
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


NAMES = ("a_b & 50%", "#1 {x} ~^", "[c] \\textbf <>|$")


def _files():
    frame, roles = _results(dict(zip(NAMES, (A, B, C))))
    contender = Contender(*frame.assign(dataset="d_&%")[[*Contender._fields]].iloc[0])
    row = CostRow(contender, 1, 0, 0, 1, 1.0, None, 0.0, None, None, None, "1 of 1 trainings ~ lost_&")
    yield "comparison", shown.to_latex(shown.comparison(frame, roles))
    yield "decisions", shown.latex(decision_document(shown.decisions_of(frame, roles)))
    yield "cost", shown.latex(cost_document([row]))
    yield "verdicts", shown.latex(verdict_document(shown.verdicts_of(*test_verdicts._results(test_verdicts._levels()))))
    cells = (Cell("± 1", bold=True, underlined=True),) * 40
    wide = cells_table("*w_ide", headings(*(f"[{place}]" for place in range(40))), [cells], notes=("[note] 5 %",))
    yield "wide", shown.latex(Document("wide", tables=(wide,)))


@pytest.mark.slow
def test_tables_compile(tmp_path):
    pdflatex = shutil.which("pdflatex")
    if pdflatex is None:
        pytest.skip("needs pdflatex")
    parts = []
    for name, text in _files():
        (tmp_path / f"{name}.tex").write_text(text)
        parts.append(f"\\input{{{name}.tex}}\\clearpage")
    head = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}"
    (tmp_path / "all.tex").write_text(f"{head}{''.join(parts)}\\end{{document}}")
    command = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True)
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said[-2000:]
    assert "Overfull \\hbox" not in said
    assert (tmp_path / "all.pdf").stat().st_size > 10_000
