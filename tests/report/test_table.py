"""A column is defined once, and every format has it."""

import pytest
from bench.report import comparison as compared
from bench.report.page.answers import parts_of
from bench.report.page.tables import results_table
from bench.report.render import files_of, print_table, to_html
from bench.report.table import Cell, Column, Document, cells_table, frame_of, headings, held, label, table_of

from tests.report.page_records import LEADING, POINT
from tests.report.shown import judged, latex, markdown, printed


class _Row:
    name, value = "a_b", 0.25


COLUMNS = (
    label("who", lambda row: row.name, fields=lambda row: {"who": row.name}),
    Column("share", lambda row: Cell(f"{100 * row.value:.0f} %", row.value, bold=True), held("value"), note="percent"),
    Column("", fields=lambda row: {"only_in_csv": 1}),
)


def _every_format(columns):
    table = table_of(columns, [_Row()], "title")
    files = files_of(Document("x", "heading", "introduction", (table,), frame_of(columns, [_Row()])))
    return {**files, "terminal": printed(print_table, table), "html": str(to_html(table))}


def test_the_title_of_a_column_is_the_same_in_every_format():
    found = _every_format((COLUMNS[0], Column("a new title", COLUMNS[1].cell, held("value")), COLUMNS[2]))
    assert all("a new title" in text for name, text in found.items() if name != "x.csv")
    assert found["x.csv"] == "who,value,only_in_csv\na_b,0.25,1\n"


def test_marks_and_notes_are_those_of_the_format():
    found = _every_format(COLUMNS)
    assert "| who | share |\n|---|---|\n| a_b | **25 %** |" in found["x.md"]
    assert "a\\_b & \\textbf{25 \\%} \\\\" in found["x.tex"]
    assert '<td class="n best" data-sort="0.25">25 %</td>' in found["html"]
    assert 'title="percent">share</th>' in found["html"]
    assert "only_in_csv" not in found["html"]


def test_a_column_that_is_added_to_the_comparison_is_in_its_files_and_on_the_page(monkeypatch):
    added = Column("spread over seeds", lambda row: f"{row.values[1].sd:.3f}", lambda row: {"spread": row.values[1].sd})
    monkeypatch.setattr(compared, "COLUMNS", (*compared.COLUMNS, added))
    made = judged(".", LEADING, POINT)
    document = compared.comparison_document(made.comparison)
    assert "spread" in document.numbers
    for text in (markdown(document), latex(document)):
        assert "spread over seeds" in text
        assert "0.010" in text
    table = results_table(parts_of(made)[0], [], [])
    place = [column.title for column in table.columns].index("spread over seeds")
    assert table.rows[0].cells[place].text == "0.010"


@pytest.mark.parametrize("text", ["", "-"])
def test_a_gap_is_sorted_last_and_shown_as_a_dash(text):
    table = cells_table("t", headings("a", "b"), [["x", Cell(text, 3.0, note="why")]])
    assert '<td class="n gap" data-sort="" title="why">–</td>' in to_html(table)
    assert Cell("1", float("nan")).sort == ""
