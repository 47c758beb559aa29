"""Files of a report: tables and figures."""

from __future__ import annotations

from pathlib import Path

from ..site import Site
from ..store.folder import Store
from ..store.specs import Cell
from .breakdowns import confidences, corruptions, scorers
from .comparison import comparison_document
from .cost import cost_document
from .decisions import decision_document
from .fidelity import fidelity_document
from .figures.registry import write_automatic
from .figures.source import Note, Source
from .frame import Results
from .judged import Judged
from .over_datasets import profile_frame, rank_document
from .pairing import paired_with_base
from .render import write_documents
from .table import Document
from .variance import shares_of_variance, variance_document
from .verdicts import verdict_document


def write_report(judged: Judged, out: Path, note: Note) -> list[Path]:
    """Write tables and figures to ``out``; the same records give the same files."""
    store, results = judged.store, judged.results
    documents = [
        comparison_document(judged.comparison, _untested(store, results)),
        verdict_document(judged.verdicts),
        decision_document(judged.decisions),
        cost_document(judged.costs),
        fidelity_document(judged.forms),
        rank_document(judged.over_datasets),
        variance_document(shares_of_variance(results)),
    ]
    numbers = {
        "confidences": confidences(results.frame),
        "corruptions": corruptions(judged.groups),
        "paired": judged.pairs,
        "paired_with_base": paired_with_base(judged.groups),
        "profiles": profile_frame(judged.over_datasets),
        "provenance": judged.provenance,
        "scorers": scorers(results.frame),
    }
    documents += [Document(name, numbers=table) for name, table in numbers.items()]
    written = write_documents(documents, out)
    return written + write_automatic(Source(Site(results=str(store.root)), results), out, note)


def _untested(store: Store, results: Results) -> dict[str, list[str]]:
    """Methods that were begun and have no finished test, by data set."""
    tested = {record.cell for record in (*results.tests, *results.frozen)}
    tested |= {record.trained_cell for record in results.tests}
    found: dict[str, list[str]] = {}
    for path in sorted(store.root.glob("[!.]*/*/*")):
        cell = Cell(*path.relative_to(store.root).parts)
        if cell not in tested and any(path.glob("t*-*")):
            found.setdefault(cell.dataset, []).append(cell.method)
    return found
