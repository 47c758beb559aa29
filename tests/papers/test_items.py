"""The papers' tables as data: every name, every published number, what rows and columns refer to."""

import json
from collections import Counter

import pytest
from bench.cli import main
from bench.papers import items
from bench.papers.run import PlannedItem
from bench.papers.tables import build_table
from bench.report.render import files_of

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
    item = items.Item(key="x", title="x", asks="x", network="a/64")
    named = items.Named(paper=paper, item=item)
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
