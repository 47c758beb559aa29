"""Texts of users come out of every format as they went in: the output is parsed and compared."""

import csv
import io
import re

import numpy as np
import pandas as pd
import pytest
from bench.errors import printable, shortened
from bench.report.comparison import NOTE
from bench.report.render import latex_text, markdown_text, print_table, to_csv
from bench.report.table import cells_table, headings
from bench.report.terminal import print_comparison
from bench.store.specs import Pinned
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.report.shown import comparison, joined, printed, to_latex, to_markdown

HOSTILE = [
    *("a|b", "a\\|b", "a\\", "line\nbreak", "`code`", "<img src=x onerror=alert(1)>", "<!-- x", "&lt;", "&#60;", "a&b"),
    *("*x*", "**x**", "_x_", "__init__", "a_b_c", "~~x~~", "$x$", "[x](javascript:alert(1))", "![x](y)", "[x]: y"),
    *("# x", "- x", "1. x", "> x", "---", "```", "\\input{/etc/passwd}", "\\\\", "{", "}", "%", "#", "^", "~", "x & y"),
    *("[5cm]", "*", "=cmd|' /C calc'!A0", "+1+cmd", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1", "'=1", '"', '","', "1,2"),
    *("[red]x[/red]", "[/]", "[link=http://x]y[/link]", "\x1b[31mred", "\x1b]0;title\x07", "\x9b2J", "\u202eabc", "\0"),
    *("von_mises_fisher", "el_nivmf (arcface) [released]", "optim.lr=0.1; data.x=-3", "±", "é", "写真", ""),
]
SPECIAL = st.text("\\|`*_~$[]()<>&#%{}^!=+-@'\" \n\tab1", max_size=20)
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=20), SPECIAL)
MARKDOWN = MarkdownIt("js-default", {"html": True})


def _inline(source, path):
    """Inline tokens of a document of which the block tokens have the types of ``path``."""
    tokens = MARKDOWN.parse(source)
    assert [token.type for token in tokens if not token.type.endswith("_close")] == path, tokens
    return [token.children for token in tokens if token.type == "inline"]


def _is_text(children, text):
    assert {child.type for child in children} <= {"text", "text_special"}
    assert "".join(child.content for child in children) == printable(text).strip()


CELLS = ["table_open", "thead_open", "tr_open", *["th_open", "inline"] * 2]
CELLS += ["tbody_open", "tr_open", *["td_open", "inline"] * 2]


@given(TEXTS)
@example("a\\")
def test_a_cell_of_a_markdown_table_is_its_text(text):
    cell = markdown_text(text)
    found = _inline(f"| a | b |\n|---|---|\n| {cell} | x |\n", CELLS)
    _is_text(found[2], text)
    _is_text(found[3], "x")


@given(TEXTS.filter(lambda text: printable(text).strip()))
def test_a_list_item_of_markdown_is_its_text(text):
    found = _inline(f"* {markdown_text(text)}\n", ["bullet_list_open", "list_item_open", "paragraph_open", "inline"])
    _is_text(found[0], text)


@pytest.mark.parametrize("text", ["a_b_c", "von_mises_fisher", "el_nivmf (arcface) [released]", "convnet/64", "-0.5"])
def test_ordinary_names_stay_readable_in_markdown(text):
    assert markdown_text(text) == text


TOKENS = {
    **{f"\\{c}": c for c in "_%&#${}"},
    "\\textbackslash{}": "\\",
    "\\^{}": "^",
    "\\textasciitilde{}": "~",
    "$<$": "<",
    "$>$": ">",
    "$\\mid$": "|",
    "$\\pm$": "±",
    "{[}": "[",
    "{*}": "*",
}
LATEX = re.compile("|".join([*map(re.escape, sorted(TOKENS, key=len, reverse=True)), r"[^\\{}$&#%_^~<>|±]"]))


@given(TEXTS)
def test_latex_has_no_command_that_the_text_asked_for(text):
    escaped = latex_text(text)
    parts = LATEX.findall(escaped)
    assert "".join(parts) == escaped
    assert "".join(TOKENS.get(part, part) for part in parts) == printable(text)
    assert not escaped.startswith(("[", "*"))


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_csv_has_no_formula_and_every_cell(texts):
    frame = pd.DataFrame({"name": texts, "value": np.linspace(-1, 1, len(texts)), texts[0] + "=": texts})
    head, *rows = csv.reader(io.StringIO(to_csv(frame), newline=""))
    assert head[:2] == ["name", "value"]
    assert [row[0].removeprefix("'") for row in rows] == [printable(text).removeprefix("'") for text in texts]
    assert [float(row[1]) for row in rows] == frame["value"].tolist()
    for cell in [*head, *(row[0] for row in rows)]:
        assert cell.strip()[:1] not in tuple("=+-@") or cell == "-" or np.isreal(float(cell))


def test_an_ordinary_table_is_the_csv_that_pandas_writes():
    frame = pd.DataFrame(
        {
            "method": ["arcface", "el_nivmf", None],
            "pinned": ["", "optim.lr=-0.1; x=+1", "-"],
            "text": ["-0.5", "+3", "-inf"],
            "value": [-0.25, np.nan, 1e-30],
            "seed": [0, -1, 2],
            "whole": [True, False, True],
        }
    )
    assert to_csv(frame) == frame.to_csv(index=False, lineterminator="\n")
    again = pd.read_csv(io.StringIO(to_csv(frame[["method", "value", "seed"]])))
    pd.testing.assert_frame_equal(again, frame[["method", "value", "seed"]])


def _printed(*shown):
    return printed(*shown, width=300, force_terminal=True, color_system=None)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_moves_no_cursor_and_is_no_markup(text):
    table = cells_table(printable(text), headings(printable(text)), [[text]])
    shown = re.sub("\x1b\\[[0-9;]*m", "", _printed(print_table, table))  # Rich's own styles
    assert shown.replace("\n", "").isprintable()
    assert shown.count(printable(text).strip()) >= (3 if text.strip() else 0)


@given(st.text())
def test_printable_is_one_printable_line(text):
    assert printable(text).isprintable()
    assert shortened(text).isprintable()
    if text.isprintable():
        assert printable(text) == text


@pytest.mark.slow
def test_the_comparison_has_every_row_in_every_format():
    from tests.report.test_tables import MAP, _frame

    tables = []  # with every hostile text in a label
    for number, text in enumerate(HOSTILE):
        frame, roles = _frame([(f"m{number}", "", seed, "", MAP, 0.5 + 0.01 * seed) for seed in range(2)])
        tables.append((frame.assign(pinned=Pinned(settings={text: 1})), roles))
    frame, roles = joined(tables)
    hostile = comparison(frame.assign(dataset="d<b>|&_%"), roles)
    rows = [token for token in MARKDOWN.parse(to_markdown(hostile)) if token.type == "tr_open"]
    assert len(rows) == 1 + len(HOSTILE)
    html = MARKDOWN.render(to_markdown(hostile))
    ours = {"h1", "h2", "p", "code", "table", "thead", "tbody", "tr", "th", "td", "strong", "u"}
    assert set(re.findall(r"<(\w+)", html)) <= ours
    assert html.count("<code>") == NOTE.count("`") / 2
    latex = to_latex(hostile)
    body = latex[latex.index("\\midrule") + 8 : latex.index("\\bottomrule")].strip().splitlines()
    assert len(body) == len(HOSTILE)
    assert len({len(re.findall(r"(?<!\\)&", line)) for line in body}) == 1
    assert "\\input" not in latex
    shown = _printed(print_comparison, hostile)
    assert "[red]x[/red]" in shown
    assert "\x1b[31m" not in shown
    assert "\x1b]0;" not in shown


@pytest.mark.slow
def test_figures_and_tables_of_score_take_any_name(tmp_path, capsys):
    from bench.cli import main

    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 5)
    names = ["=cmd|[red]$\\foo$<img>", "@a\x1b[31m_$x"]
    for name in names:
        arrays = {"embeddings": rng.normal(size=(30, 4)), "labels": labels, "confidence": rng.normal(size=30)}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    files = [str(tmp_path / f"{name}.npz") for name in names]
    assert main(["score", *files, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "[red]$\\foo$<img>" in shown
    assert "\x1b[31m" not in shown
    assert "\\x1b[31m" in shown
    held = set(pd.read_csv(tmp_path / "out" / "metrics.csv")["method"])
    assert held == {f"'{printable(name)}" for name in names}
    svg = (tmp_path / "out" / "risk_coverage.svg").read_text()
    assert "$\\foo$&lt;img&gt;" in svg
    from xml.etree import ElementTree

    ElementTree.fromstring(svg)
