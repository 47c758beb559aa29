"""Everything ``bench report`` writes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ..store import Store, write_atomic
from .figures import write_figures
from .frame import collect
from .tables import (
    comparison,
    comparison_frame,
    confidences,
    corruptions,
    paired_with_base,
    scorers,
    to_latex,
    to_markdown,
)


def write_report(store: Store, out: Path) -> list[Path]:
    """Write tables and figures to ``out``; the same records give the same files.

    Returns:
        The files written.
    """
    frame, roles = collect(store)
    rows = comparison(frame, roles)
    texts = {"comparison.md": to_markdown(rows), "comparison.tex": to_latex(rows)}
    tables: dict[str, pd.DataFrame] = {
        "comparison.csv": comparison_frame(rows),
        "confidences.csv": confidences(frame),
        "corruptions.csv": corruptions(frame, roles),
        "scorers.csv": scorers(frame),
        "paired_with_base.csv": paired_with_base(frame, roles),
    }
    written = []
    for name, table in tables.items():
        if not table.empty:
            texts[name] = table.to_csv(index=False, lineterminator="\n")
    for name, text in sorted(texts.items()):
        write_atomic(out / name, text.encode())
        written.append(out / name)
    return written + write_figures(store, frame, roles, out)
