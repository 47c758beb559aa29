"""The papers' tables as data, and their cells: what is read, what follows from others, how ours and theirs agree."""

import json
import math
from collections import Counter

import pandas as pd
import pytest
from bench.cli import main
from bench.papers import items
from bench.papers.items import Column, Reads, Row, find_item
from bench.papers.run import PlannedItem, plan_item
from bench.papers.tables import build_table, derived, read
from bench.report.contender import Contender
from bench.report.render import files_of
from bench.report.seeds import SeedGroup, SeedStatistics
from bench.site import Site
from bench.store.specs import Pinned

from tests.report.shown import measured

NAMES = {
    *(f"per/table{n}" for n in range(1, 6)), "per/figure3", "per/timings",
    *(f"el/table{n}" for n in (1, 2, 4, 5)), *(f"el/figure{n}" for n in (2, 4, 5, 6, 9, 10, 11)),
    *(f"nir/table{n}" for n in range(1, 6)), "nir/figure3", "nir/figure4",
}  # fmt: skip


def _cells(named):
    """(published number, whether a row of ours stands for it) of every cell of an item."""
    for dataset in named.item.datasets:
        for row in named.rows:
            for column in named.columns(dataset):
                value = items.published_value(named, row, column, dataset)
                if value is not None:
                    yield value, True
        for by_column in items.quoted_rows(named, dataset).values():
            for value in by_column.values():
                yield value, False


@pytest.mark.slow
def test_all_730_published_numbers_are_reached_and_only_quoted_ones_have_no_run():
    reached: dict[str, Counter[int]] = {paper.published: Counter() for paper in items.papers()}
    for named in items.every_item().values():
        for value, ours in _cells(named):
            reached[named.paper.published][items.numbers(named.paper.published).index(value)] += 1
            assert ours or value.note.startswith("literature value quoted"), value
    assert {name: len(found) for name, found in reached.items()} == {
        "published_pe_revisited.csv": 217,
        "published_nivmf_nir.csv": 513,
    }
    assert sum(len(items.numbers(name)) for name in reached) == 730
    # One number is of any data set; every other one stands in one cell.
    twice = [items.numbers(name)[n] for name, found in reached.items() for n, count in found.items() if count > 1]
    assert [number.line["dataset"] for number in twice] == ["any"]


@pytest.mark.slow
def test_all_published_numbers_are_in_the_files_of_the_tables_before_anything_is_run(monkeypatch):
    """What a user reads, not only what could be found."""
    monkeypatch.setattr("bench.papers.tables.what_differs", lambda planned: "")
    written, quoted_in_text, cells = 0, 0, 0
    for named in items.every_item().values():
        for dataset in named.item.datasets:
            planned = PlannedItem(named=named, dataset=dataset, options={}, rows=(), left_out={})
            frame = build_table(planned, {}).numbers
            written += 0 if frame.empty else int(frame["published_mean"].notna().sum())
            quoted_in_text += sum(len(row.quoted.get(dataset, {})) for row in named.rows)
        cells += sum(1 for _ in _cells(named))
    assert cells == 731  # the number of any data set is in the tables of two
    assert written == cells + quoted_in_text


def test_a_value_of_ours_without_a_published_one_says_so(monkeypatch):
    monkeypatch.setattr("bench.papers.tables.what_differs", lambda planned: "")
    named = items.find_item("per/table4")
    planned = PlannedItem(named=named, dataset="cars196", options={}, rows=(), left_out={})
    values = {0: 17.0, 1: 18.0}
    table = build_table(planned, {("HIB, L2", "MAP@R"): values, ("PFE, MLS", "MAP@R"): values})
    frame = table.numbers.set_index("row")
    assert frame.loc["HIB, L2", "published_note"] == "no published value"
    assert (frame.loc["PFE, MLS", "published_note"], frame.loc["PFE, MLS", "published_mean"]) == ("", 18.03)
    page = files_of(table)["cars196.md"]
    assert "| HIB, L2 | 17.50 ± 0.71 \\| - |" in page
    assert "- is no value of ours, or no published value" in page


@pytest.mark.parametrize("name", sorted(NAMES))
def test_rows_and_columns_refer_to_titles_that_exist(name):
    named = items.find_item(name)
    rows, columns = named.rows, named.columns("")
    titles = [row.title for row in rows]
    headings = [column.title for column in columns]
    assert len(set(titles)) == len(titles)
    assert len(set(headings)) == len(headings)
    assert named.item.rows_of in ("", *named.paper.rows)
    assert named.item.columns_of in ("", *named.paper.columns)
    for row in rows:
        assert bool(row.method) != bool(row.of), row.title
        assert set(row.of) <= set(titles)
        assert set(row.columns) <= set(headings)
        assert bool(row.of) == bool(row.how)
        assert set(row.reads) <= {"scorer", "confidence"}
    for column in columns:
        assert (column.reads is None) == bool(column.of) == bool(column.how)
        assert set(column.of) <= set(headings)
    if named.item.kind != "drawing":
        assert rows
        assert columns
        assert set(named.item.datasets) <= set(named.paper.datasets)
    assert set(named.item.where) <= set(items.numbers(named.paper.published)[0].line)


def test_two_numbers_for_one_cell_are_an_error():
    named = items.find_item("per/table3")
    row = items.Row(title="x", method="x", where={"method": "pfe"})  # neither normal nor vMF
    with pytest.raises(ValueError, match="2 published numbers fit"):
        items.published_value(named, row, items.Column(title="MAP@R"), "cub200")


def test_network_of_a_row_of_its_item_and_of_its_paper():
    paper = items.find_item("el/table1").paper
    named = items.Named(paper=paper, item=items.Item(key="x", title="x", asks="x", network="a/64"))
    assert named.network(items.Row(title="x", method="x")) == ("a", 64)
    assert named.network(items.Row(title="x", method="x", network="b/8")) == ("b", 8)
    usual = items.Named(paper=paper, item=items.Item(key="x", title="x", asks="x"))
    assert usual.network(items.Row(title="x")) == ("resnet50.tv_in1k", 128)


def test_the_list_has_every_name_and_its_question(capsys):
    assert main(["reproduce", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {entry["name"] for entry in listed} == NAMES
    assert all(entry["asks"].endswith("?") for entry in listed)


def test_an_unknown_name_and_an_unknown_data_set_name_the_nearest(refusal):
    assert "did you mean 'per/table5'?" in refusal("reproduce", "per/tabel5")
    assert "did you mean 'cub200'?" in refusal("reproduce", "per/table5", "--dataset", "cub20")
    wrong = ("--dataset", "ndigit", "--set", "method.marign=1")
    assert "did you mean 'method.margin'?" in refusal("reproduce", "per/table5", *wrong)


CONTENDER = Contender("p", "q", "d", "m", "", "corrected", "default", 0, Pinned(), "convnet", 8, "")


def _group(lines):
    """Seeds of one contender whose own scorer is ``mls`` and whose confidence is ``method``."""
    usual = {
        **CONTENDER._asdict(), "split": "test", "scorer": "", "confidence": "", "variant": "", "fraction": math.nan,
        "primary_scorer": "mls", "default_confidence": "method", "probabilistic": True, "trainings": 0,
    }  # fmt: skip
    return SeedGroup.of(measured(pd.DataFrame([{**usual, "unit": str(line["seed"]), **line} for line in lines])))


def test_a_cell_reads_its_scorer_confidence_variant_and_share():
    group = _group(
        [
            {"seed": seed, "metric": "map_at_r", "scorer": scorer, "variant": variant, "value": value + seed}
            for scorer, variant, value in (("mls", "", 10.0), ("mls", "reranked", 20.0), ("cosine", "", 30.0))
            for seed in (0, 1)
        ]
        + [{"seed": 0, "metric": "rho", "confidence": name, "value": v} for name, v in (("method", 1.0), ("norm", 2.0))]
        + [{"seed": 0, "metric": "curve", "fraction": share, "value": share} for share in (0.1, 0.3)]
        + [{"seed": 0, "metric": "spread", "scorer": "cosine", "value": 7.0}]
    )
    assert read(group, Reads(metric="map_at_r")) == {0: 10.0, 1: 11.0}
    assert read(group, Reads(metric="map_at_r", variant=("reranked", ""))) == {0: 20.0, 1: 21.0}
    assert read(group, Reads(metric="map_at_r", variant=("reranked", ""), scorer="cosine")) == {0: 30.0, 1: 31.0}
    assert read(group, Reads(metric="map_at_r", split="test_crop")) == {}
    assert read(group, Reads(metric="rho", confidence="own")) == {0: 1.0}
    assert read(group, Reads(metric="rho", confidence="norm")) == {0: 2.0}
    assert read(group, Reads(metric="curve", fraction=0.30000000000000004)) == {0: 0.3}
    assert read(group, Reads(metric="curve")) == {}
    assert read(group, Reads(metric="spread")) == {}  # the scorer of this metric is not the method's own
    assert read(group, Reads(metric="spread", scorer="cosine")) == {0: 7.0}


def test_differences_changes_ratios_and_the_smallest_follow_seed_by_seed():
    rows = (
        Row(title="a", method="m"), Row(title="b", method="m"), Row(title="b - a", of=("b", "a"), how="difference"),
        Row(title="change", of=("b", "a"), how="relative change", columns=("x", "d")),
        Row(title="least", of=("a", "b"), how="smallest", columns=("x - y",)),
    )  # fmt: skip
    columns = (
        *(Column(title=name, reads=Reads(metric=name)) for name in "xyd"),
        Column(title="x - y", of=("x", "y"), how="difference"),
        Column(title="ratio", of=("x",), how="ratio to the first row"),
    )  # fmt: skip
    cells = {("a", "x"): {0: 4.0, 1: 5.0}, ("a", "y"): {0: 1.0, 1: 1.0}, ("b", "x"): {0: 5.0, 2: 9.0}}
    # Diversity is minus the spectral decay: a fall of the decay by a fifth is a rise by 20 %.
    cells |= {("a", "d"): {0: -0.5}, ("b", "d"): {0: -0.4}}
    known = derived(cells, rows, columns)
    assert known["change", "d"] == {0: pytest.approx(20.0)}
    assert known["a", "x - y"] == {0: 3.0, 1: 4.0}
    assert known["b", "x - y"] == {}
    assert known["b - a", "x"] == {0: 1.0}  # the only seed of both
    assert known["change", "x"] == {0: 25.0}
    assert known["b", "ratio"] == {0: 1.25}
    assert known["a", "ratio"] == {0: 1.0, 1: 1.0}
    assert known["least", "x - y"] == {0: 3.5}
    assert ("change", "y") not in known


def test_a_cell_shows_missing_seeds():
    assert SeedStatistics.of({0: 1.0, 1: 3.0, 2: math.nan}).text(2) == "2.00 ± 1.41 [2/3]"
    assert SeedStatistics.of({}).text(1) == "-"


def _planned(name, layouts, tmp_path):
    site = Site(results=str(tmp_path), data_root=str(layouts["cub200"]), weights="none")
    return plan_item(find_item(name), "cub200", {"set": ("data.classes_per_batch=2",)}, site)


def test_ours_stands_beside_the_published_number(layouts, tmp_path):
    made = build_table(_planned("per/table5", layouts, tmp_path), {("SCF", "Spearman's rho"): {0: 0.5, 1: 0.6}})
    markdown, latex, frame = files_of(made)["cub200.md"], files_of(made)["cub200.tex"], made.numbers
    assert "| SCF | 0.550 ± 0.071 \\| 0.528 ± 0.036 |" in markdown
    assert "| HIB | \\- \\| 0.223 ± 0.120 |" in markdown
    assert "SCF & 0.550 $\\pm$ 0.071 $\\mid$ 0.528 $\\pm$ 0.036 \\\\" in latex
    line = frame.set_index("row").loc["SCF"]
    assert (line["ours_mean"], line["published_mean"], line["ours_seeds"]) == (pytest.approx(0.55), 0.528, 2)
    assert "minus is read as a typesetting" in line["published_note"]
    assert "\npublished SCF, Spearman's rho: printed as" in markdown


def test_quoted_rows_have_published_numbers_only(layouts, tmp_path):
    (shown,) = build_table(_planned("el/table2", layouts, tmp_path), {}).tables
    lines = {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in shown.rows}
    assert lines["Margin, R50/128"] == ["- | 63.6", "- | 74.4", "- | 69.0"]
    assert [column.title for column in shown.columns[1:]] == ["R@1", "R@2", "NMI"]  # R@10 is of SOP
    assert "PANC + EL-nivMF, R50/512" in lines
