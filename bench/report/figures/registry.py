"""The figures by name: what each shows and needs, who draws it, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from ...errors import require_known
from ..render import to_csv, write_file
from ..table import grouped
from .source import Drawing, Note, Source
from .style import figure_style, save_figure

AUTOMATIC = {
    "filter_out": "filter_out.draw",
    "risk_coverage": "filter_out.draw_risk",
    "confidence": "corruption.draw",
    "sweeps": "sweeps.draw",
    "pictures": "images.draw_best",
}
"""Figures of every report: ``MODULE.NAME`` of ``(source, dataset, note) -> drawings``.

They need records alone, but for the pictures, which need images and kept embeddings.
"""

ON_REQUEST = {
    "convergence": "training.draw_convergence",
    "spectra": "embeddings.draw_spectra",
    "images": "images.draw",
}
"""Figures for those who ask, most of which need the embeddings kept with tests."""

THEORY = {"densities": "theory.densities"}
"""Figures that need no results: ``() -> drawing``."""

FIGURES = {**AUTOMATIC, **ON_REQUEST, **THEORY}
"""Every kind of figure by name."""


def kinds_of(names: Sequence[str]) -> list[str]:
    """Names of kinds of figures, each once; ``all`` stands for every kind."""
    require_known("figure", names, [*FIGURES, "all"])
    return list(FIGURES if "all" in names else dict.fromkeys(names))


def draw_kind(kind: str, source: Source, note: Note) -> Iterator[Drawing]:
    """Draw the figures of a kind, with a note for everything that cannot be drawn; the caller sets the style."""
    module, _, function = FIGURES[kind].partition(".")
    draw = getattr(import_module(f".{module}", __package__), function)
    if kind in THEORY:
        yield draw()
    else:
        for dataset in source.datasets:
            yield from draw(source, dataset, lambda line: note(f"{kind}: {line}".replace("\n", " ")))


def write_kinds(kinds: Iterable[str], source: Source, out: Path, note: Note) -> list[Path]:
    """Write figures as PNG and SVG with their numbers as CSV, each as soon as it is drawn; notes name the kind."""
    written: list[Path] = []
    with figure_style():
        for drawing in (drawing for kind in kinds for drawing in draw_kind(kind, source, note)):
            table = out / f"{drawing.stem}.csv"
            write_file(table, to_csv(drawing.frame).encode())
            written += [*save_figure(drawing.figure, out / drawing.stem), table]
    return written


def write_automatic(source: Source, out: Path, note: Note) -> list[Path]:
    """Write the figures that every report includes, with one note for every kind of figure and reason."""
    lines: list[str] = []
    written = write_kinds(AUTOMATIC, source, out, lines.append)
    for line in in_short(lines):
        note(line)
    return written


def in_short(lines: Iterable[str]) -> list[str]:
    """Notes of :func:`write_kinds`, those of one kind and reason, whatever paths it names, as one line.

    Example:
        >>> in_short(["pictures: d, a, seed 0: no record", "pictures: d, a, seed 1: no record", "sweeps: d: no value"])
        ['pictures: d, a, seed 0: no record (and 1 more)', 'sweeps: d: no value']
        >>> in_short(["pictures: d, seed 0: x/0.npz is missing", "pictures: d, seed 1: x/1.npz is missing"])
        ['pictures: d, seed 0: x/0.npz is missing (and 1 more)']
    """
    found = grouped(lines, lambda line: re.sub(r"^([^:]*): .*?: |\S*/\S*", r"\1 ", line))
    return [same[0] + (f" (and {len(same) - 1} more)" if len(same) > 1 else "") for same in found.values()]
