"""Every LaTeX file of a report compiles, whatever the names in it are."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from bench.report.comparison import comparison
from bench.report.contender import Contender
from bench.report.cost import CostRow, costs_latex
from bench.report.decisions import decisions, decisions_latex
from bench.report.markup import to_latex, verdicts_latex
from bench.report.pairing import paired_methods
from bench.report.text_table import Styled, TextTable, latex_page
from bench.report.verdicts import verdicts

from tests.report.test_ranks import A, B, C, _results
from tests.report.test_tables import _judged

pytestmark = pytest.mark.slow

NAMES = ("a_b & 50%", "#1 {x} ~^", "[c] \\textbf <>|$")


def _files():
    frame, roles = _results(dict(zip(NAMES, (A, B, C))))
    contender = Contender.of(frame.assign(dataset="d_&%"))
    row = CostRow(contender, 1, 0, 0, 1, 1.0, None, 0.0, None, None, None, "1 of 1 trainings ~ lost_&")
    yield "comparison", to_latex(comparison(frame, roles))
    yield "decisions", decisions_latex(decisions(frame, roles, paired_methods(frame, roles)))
    yield "cost", costs_latex([row])
    yield "verdicts", verdicts_latex(verdicts(*_judged()))
    cells = (Styled("± 1", bold=True, underlined=True),) * 40
    wide = TextTable("*w_ide", tuple(f"[{place}]" for place in range(40)), (cells,), notes=("[note] 5 %",))
    yield "wide", latex_page([wide])


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
