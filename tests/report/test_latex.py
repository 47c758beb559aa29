"""Every LaTeX file of a report compiles, whatever the names in it are."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from bench.report.contender import Contender
from bench.report.cost import CostRow, cost_document
from bench.report.table import Cell, Document, cells_table, headings
from bench.report.views import decision_document, verdict_document

from tests.report.shown import comparison, decisions_of, latex, to_latex, verdicts_of
from tests.report.test_ranks import A, B, C, _results
from tests.report.test_tables import _judged

pytestmark = pytest.mark.slow

NAMES = ("a_b & 50%", "#1 {x} ~^", "[c] \\textbf <>|$")


def _files():
    frame, roles = _results(dict(zip(NAMES, (A, B, C))))
    contender = Contender.of(frame.assign(dataset="d_&%"))
    row = CostRow(contender, 1, 0, 0, 1, 1.0, None, 0.0, None, None, None, "1 of 1 trainings ~ lost_&")
    yield "comparison", to_latex(comparison(frame, roles))
    yield "decisions", latex(decision_document(decisions_of(frame, roles)))
    yield "cost", latex(cost_document([row]))
    yield "verdicts", latex(verdict_document(verdicts_of(*_judged())))
    cells = (Cell("± 1", bold=True, underlined=True),) * 40
    wide = cells_table("*w_ide", headings(*(f"[{place}]" for place in range(40))), [cells], notes=("[note] 5 %",))
    yield "wide", latex(Document("wide", tables=(wide,)))


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
    done = subprocess.run(
        [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "all.tex"], cwd=tmp_path, capture_output=True
    )
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said[-2000:]
    assert "Overfull \\hbox" not in said
    assert (tmp_path / "all.pdf").stat().st_size > 10_000
