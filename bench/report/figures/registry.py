"""The figures by name: what each shows and needs, who draws it, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Literal

from ...errors import UnknownName
from ...store.files import write_atomic
from ..escape import csv_text
from .source import Drawing, Note, Source
from .style import figure_style, save_figure

Needs = Literal["nothing", "records", "embeddings", "images"]


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure, as ``bench report`` offers it by name.

    It needs nothing, the records of a results folder, the embeddings kept with them, or the images of the data sets as
    well. ``function`` is ``MODULE.NAME`` of one of ``(source, dataset, note) -> drawings``, or of ``() -> drawing``
    if nothing is needed. ``automatic`` ones are in every report.
    """

    name: str
    title: str
    needs: Needs
    function: str
    automatic: bool = False

    def draw(self, source: Source, note: Note) -> Iterator[Drawing]:
        """Draw the figures of this kind, with a note for everything that cannot be drawn; the caller sets the style."""
        module, _, name = self.function.partition(".")
        draw = getattr(import_module(f".{module}", __package__), name)
        if self.needs == "nothing":
            yield draw()
        else:
            for dataset in source.datasets:
                yield from draw(source, dataset, note)


FIGURES = {
    kind.name: kind
    for kind in (
        FigureKind("filter_out", "retrieval as the least confident are removed", "records", "filter_out.draw", True),
        FigureKind("risk_coverage", "errors among the most confident queries", "records", "filter_out.draw_risk", True),
        FigureKind(
            "rank_intervals", "ranks with their intervals and tie groups", "records", "comparison.draw_ranks", True
        ),
        FigureKind("cost", "seconds of training against quality", "records", "training.draw_cost", True),
        FigureKind("confidence", "confidence against severity of corruptions", "records", "corruption.draw", True),
        FigureKind("tuning", "every trial of every study", "records", "tuning.draw", True),
        FigureKind("importance", "importance of tuned parameters", "records", "tuning.draw_importance", True),
        FigureKind(
            "tuning_front", "both values of the trials of `--tune-for both`", "records", "tuning.draw_front", True
        ),
        FigureKind(
            "sweeps", "metrics against the values of a swept setting", "records", "comparison.draw_sweeps", True
        ),
        FigureKind("convergence", "validation by epoch (NIR, Fig. 3)", "records", "training.draw_convergence", True),
        FigureKind(
            "spectra", "singular values of test embeddings (NIR, Fig. 4)", "embeddings", "embeddings.draw_spectra"
        ),
        FigureKind("reliability", "probability that the answer is right", "embeddings", "reliability.draw"),
        FigureKind(
            "norms", "norms by right and wrong answers (EL-nivMF, Fig. 9)", "embeddings", "embeddings.draw_norms"
        ),
        FigureKind("images", "test images by confidence (EL-nivMF, Fig. 6, 10, 11)", "images", "images.draw"),
        FigureKind(
            "filter_out_probability",
            "filter-out curves, deterministic methods by class probability (PER, Fig. 3)",
            "records",
            "filter_out.draw_probability",
        ),
        FigureKind("densities", "vMF and non-isotropic vMF (EL-nivMF, Fig. 2)", "nothing", "theory.densities"),
        FigureKind("distances", "distances by norm and direction (EL-nivMF, Fig. 3)", "nothing", "theory.distances"),
        FigureKind("normalisers", "log normaliser and its fits (EL-nivMF, Fig. 8)", "nothing", "theory.normalisers"),
    )
}
"""Every kind of figure by name."""


def kinds_of(names: Sequence[str]) -> list[FigureKind]:
    """Look up kinds of figures by name; ``all`` stands for every kind."""
    for name in names:
        if name != "all" and name not in FIGURES:
            raise UnknownName("figure", name, [*FIGURES, "all"])
    return list(FIGURES.values()) if "all" in names else [FIGURES[name] for name in dict.fromkeys(names)]


def write_kinds(kinds: Sequence[FigureKind], source: Source, out: Path, note: Note) -> list[Path]:
    """Write figures as PNG and SVG with their numbers as CSV, each as soon as it is drawn; notes name the kind."""
    written: list[Path] = []
    with figure_style():
        for kind in kinds:
            for drawing in kind.draw(source, partial(_noted, note, kind.name)):
                table = out / f"{drawing.stem}.csv"
                numbers = drawing.frame.drop(columns="index", errors="ignore")
                write_atomic(table, csv_text(numbers).encode())
                written += [*save_figure(drawing.figure, out / drawing.stem), table]
    return written


def _noted(note: Note, name: str, line: str) -> None:
    note(f"{name}: {line}".replace("\n", " "))


def write_automatic(source: Source, out: Path, note: Note) -> list[Path]:
    """Write the figures that every report includes, with one note for every kind of figure and reason."""
    lines: list[str] = []
    written = write_kinds([kind for kind in FIGURES.values() if kind.automatic], source, out, lines.append)
    for line in in_short(lines):
        note(line)
    return written


def in_short(lines: Iterable[str]) -> list[str]:
    """Notes of :func:`write_kinds`, those of one kind and reason as one line.

    Example:
        >>> in_short(["cost: d, a, seed 0: no record", "cost: d, a, seed 1: no record", "tuning: d: no trial"])
        ['cost: d, a, seed 0: no record (and 1 more)', 'tuning: d: no trial']
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        kind, _, rest = line.partition(": ")
        found.setdefault((kind, rest.partition(": ")[2]), []).append(line)
    return [same[0] + (f" (and {len(same) - 1} more)" if len(same) > 1 else "") for same in found.values()]
