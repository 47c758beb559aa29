"""Files of a report: tables and figures."""

from __future__ import annotations

from pathlib import Path

from ..site import Site
from ..store.files import write_atomic
from ..store.folder import Store
from .breakdowns import confidences, corruptions, scorers
from .comparison import comparison, comparison_frame
from .escape import csv_text
from .figures.registry import write_automatic
from .figures.source import Source
from .frame import Results
from .markup import to_latex, to_markdown, verdicts_markdown
from .pairing import paired_with_base
from .provenance import provenance_frame
from .verdicts import verdict_frame, verdicts


def write_report(store: Store, results: Results, out: Path) -> list[Path]:
    """Write tables and figures to ``out``; the same records give the same files.

    Args:
        store: The results folder, for its trainings, studies and embeddings.
        results: Its finished tests (:func:`~bench.report.frame.collect`).
        out: Folder for the files.

    Returns:
        The files written.
    """
    frame, roles = results.frame, results.roles
    rows, answers = comparison(frame, roles), verdicts(frame, roles)
    tables = {
        "comparison.csv": comparison_frame(rows),
        "confidences.csv": confidences(frame),
        "corruptions.csv": corruptions(frame, roles),
        "scorers.csv": scorers(frame),
        "paired_with_base.csv": paired_with_base(frame, roles),
        "verdicts.csv": verdict_frame(answers),
        "provenance.csv": provenance_frame(store, results),
    }
    texts = {"comparison.md": to_markdown(rows), "comparison.tex": to_latex(rows)}
    texts |= {"verdicts.md": verdicts_markdown(answers)} if answers else {}
    texts |= {name: csv_text(table) for name, table in tables.items() if not table.empty}
    written = []
    for name, text in sorted(texts.items()):
        write_atomic(out / name, text.encode())
        written.append(out / name)
    return written + write_automatic(Source(Site(results=str(store.root)), results), out)
