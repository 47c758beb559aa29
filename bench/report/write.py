"""Files of a report: tables and figures."""

from __future__ import annotations

from pathlib import Path

from ..site import Site
from ..store.files import write_atomic
from ..store.folder import Store
from ..store.specs import Cell
from .breakdowns import confidences, corruptions, scorers
from .comparison import comparison, comparison_frame
from .cost import cost_frame, costs, costs_latex, costs_markdown
from .decisions import decision_frame, decisions, decisions_latex, decisions_markdown
from .escape import csv_text
from .fidelity import fidelity_table, fidelity_texts
from .figures.registry import write_automatic
from .figures.source import Note, Source
from .frame import Results
from .markup import to_latex, to_markdown, verdicts_latex, verdicts_markdown
from .over_datasets import mean_rank_frame, mean_rank_texts, over_datasets, profile_frame
from .pairing import paired_methods, paired_with_base
from .provenance import provenance_frame
from .variance import shares_of_variance, variance_frame, variance_texts
from .verdicts import verdict_frame, verdicts


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
    rows, answers = comparison(frame, roles), verdicts(frame, roles)
    pairs = paired_methods(frame, roles)
    decided, spent, sets = decisions(frame, roles, pairs), costs(store, results.tests), over_datasets(frame, roles)
    shares, forms = shares_of_variance(results), fidelity_table(frame, roles)
    tables = {
        "comparison.csv": comparison_frame(rows),
        "confidences.csv": confidences(frame),
        "corruptions.csv": corruptions(frame, roles),
        "cost.csv": cost_frame(spent),
        "decisions.csv": decision_frame(decided),
        "fidelity.csv": forms,
        "mean_ranks.csv": mean_rank_frame(sets),
        "paired.csv": pairs,
        "paired_with_base.csv": paired_with_base(frame, roles),
        "profiles.csv": profile_frame(sets),
        "scorers.csv": scorers(frame),
        "variance.csv": variance_frame(shares),
        "verdicts.csv": verdict_frame(answers),
        "provenance.csv": provenance_frame(store, results),
    }
    untested = _untested(store, results)
    texts = {"comparison.md": to_markdown(rows, untested), "comparison.tex": to_latex(rows, untested)}
    texts |= {"cost.md": costs_markdown(spent), "cost.tex": costs_latex(spent)}
    if answers:
        texts |= {"verdicts.md": verdicts_markdown(answers), "verdicts.tex": verdicts_latex(answers)}
    if decided:
        texts |= {"decisions.md": decisions_markdown(decided), "decisions.tex": decisions_latex(decided)}
    if len(forms):
        texts |= {f"fidelity{ending}": text for ending, text in fidelity_texts(forms).items()}
    if shares:
        texts |= {f"variance{ending}": text for ending, text in variance_texts(shares).items()}
    if sets:
        texts |= {f"mean_ranks{ending}": text for ending, text in mean_rank_texts(sets).items()}
    texts |= {name: csv_text(table) for name, table in tables.items() if not table.empty}
    written = []
    for name, text in sorted(texts.items()):
        write_atomic(out / name, text.encode())
        written.append(out / name)
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
