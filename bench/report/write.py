"""Files of a report: tables and figures."""

from __future__ import annotations

from pathlib import Path

from ..site import Site
from ..store.folder import Store
from ..store.specs import Cell
from .breakdowns import confidences, corruptions, scorers
from .comparison import comparison, comparison_document
from .cost import cost_document, costs
from .decisions import decision_document, decisions
from .fidelity import fidelity_document, fidelity_table
from .figures.registry import write_automatic
from .figures.source import Note, Source
from .frame import Results
from .over_datasets import over_datasets, profile_frame, rank_document
from .pairing import paired_methods, paired_with_base
from .provenance import provenance_frame
from .render import write_documents
from .table import Document
from .variance import shares_of_variance, variance_document
from .verdicts import verdict_document, verdicts


def write_report(store: Store, results: Results, out: Path, note: Note) -> list[Path]:
    """Write tables and figures to ``out``; the same records give the same files.

    Args:
        store: The results folder, for its trainings, studies and embeddings.
        results: Its finished tests (:func:`~bench.report.frame.collect`).
        out: Folder for the files.
        note: Called with one line for every kind of figure and reason why something of it cannot be drawn.

    Returns:
        The files written.
    """
    frame, roles = results.frame, results.roles
    pairs, sets = paired_methods(frame, roles), over_datasets(frame, roles)
    documents = [
        comparison_document(comparison(frame, roles), _untested(store, results)),
        verdict_document(verdicts(frame, roles)),
        decision_document(decisions(frame, roles, pairs)),
        cost_document(costs(store, results.tests)),
        fidelity_document(fidelity_table(frame, roles)),
        rank_document(sets),
        variance_document(shares_of_variance(results)),
    ]
    numbers = {
        "confidences": confidences(frame),
        "corruptions": corruptions(frame, roles),
        "paired": pairs,
        "paired_with_base": paired_with_base(frame, roles),
        "profiles": profile_frame(sets),
        "provenance": provenance_frame(results),
        "scorers": scorers(frame),
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
