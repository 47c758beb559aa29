"""Risk-coverage curves: errors among the most confident queries, by image confidences and by retrieval confidences."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...protocols.confidence_kinds import CONTROLS, FREE_IMAGE_CONFIDENCES, OWN, RETRIEVAL_CONFIDENCES, kind_of
from ...protocols.metrics import title_of
from ...store.records import KEYS
from .contenders import Shown, labelled
from .curves import MOST_PANELS, REST, small_panels
from .filter_out import curve_points, images_of, test_splits
from .looks import LINES, Line
from .source import MARGIN, Drawing, Note, Source
from .style import FULL_PAGE, HALF_PAGE, panels

FEW = 4
"""Contenders (methods at one setting) that are shown with all of their confidences, at most."""
BRIEF = (MARGIN, *CONTROLS)
"""Confidences that are shown of each of many contenders, next to the default one."""
COVERAGE = "most confident queries kept, %"
"""Label of the horizontal axis."""
_GREYS = {"retrieval": "0.3", "control": "0.6"}
_LINES: dict[str, Line] = {
    **dict(zip((OWN, *FREE_IMAGE_CONFIDENCES), (LINES[0], *LINES[2:]))),
    **dict(zip(RETRIEVAL_CONFIDENCES, ((0, (5, 1)), "-", "-.", (0, (1, 1))))),
    **dict(zip(CONTROLS, (":", "--"))),
}


def risk_table(frame: pd.DataFrame, dataset: str, split: str) -> pd.DataFrame:
    """Table of the risk-coverage curves of every test, by each confidence, under the method's own scorer.

    ``coverage`` is the share of the queries that is kept, the most confident ones, and ``risk`` 1 minus their Recall@1.
    """
    rows = curve_points(frame, dataset, split, ["filter_out_recall_at_1"], ["query_only"])
    table = rows[[*KEYS, "default_confidence", "confidence"]].assign(
        kind=rows["confidence"].map(kind_of), coverage=1 - rows["fraction"], risk=1 - rows["value"]
    )
    return table.reset_index(drop=True)


def risk_figure(table: pd.DataFrame, title: str) -> Figure:
    """Plot risk against coverage, one panel per contender, means over seeds.

    Image confidences have the colour of the method, the default one with markers. Retrieval confidences are dark grey,
    controls light grey. Of more than :data:`FEW` contenders, only :data:`BRIEF` are shown next to the default
    confidence, and the default confidences of all others behind them.
    """
    contenders = list(labelled(table))
    own = {shown.number: _curves(shown)[_default(shown)] for shown in contenders}
    order = sorted(own, key=lambda index: (own[index]["risk"].mean(), index))[:MOST_PANELS]
    chosen = [shown for shown in contenders if shown.number in order]
    brief = len(contenders) > FEW
    if brief:
        grey = "all others" if len(chosen) == len(contenders) else f"all but the {len(chosen)} of the lowest mean risk"
        title += f"; light grey: {grey}"
    figure, axes = _panels([f"{shown.label}\n[{_default(shown)}]" for shown in chosen], title, brief)
    names: set[str] = set()
    for axis, shown in zip(axes, chosen):
        if brief:
            rest = [curve.to_numpy() for index, curve in own.items() if index != shown.number]
            axis.add_collection(LineCollection(rest, colors=REST, linewidths=0.7, zorder=1))
        names |= _draw_panel(axis, shown, brief)
    handles = _handles(names)
    legend = figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=2 if len(axes) == 1 else 4,
        fontsize=8,
        title=COVERAGE if brief else None,
    )
    legend.get_title().set_fontsize(9)
    return figure


def _default(shown: Shown) -> str:
    return str(shown.rows["default_confidence"].iloc[0])


def _curves(shown: Shown) -> dict[str, pd.DataFrame]:
    """Mean risk over seeds by coverage, both in percent, for each confidence; an empty curve for a missing default."""
    means = shown.rows.groupby(["confidence", "coverage"])["risk"].mean().reset_index()
    curves = {
        str(name): rows.sort_values("coverage", ascending=False).drop(columns="confidence").mul(100)
        for name, rows in means.groupby("confidence")
    }
    return {_default(shown): means.iloc[:0][["coverage", "risk"]], **curves}


def _draw_panel(axis: Axes, shown: Shown, brief: bool) -> set[str]:
    """Draw the curves of one contender, and return the names of those that are not its default confidence."""
    curves = _curves(shown)
    default = curves.pop(_default(shown))
    names = {name for name in curves if not brief or name in BRIEF}
    for name in sorted(names):
        colour = shown.look.colour if kind_of(name) == "image" else _GREYS[kind_of(name)]
        axis.plot(*curves[name].to_numpy().T, ls=_LINES.get(name, "-"), lw=1.1, color=colour)
    axis.plot(
        *default.to_numpy().T, "-", lw=1.6, color=shown.look.colour, marker=shown.look.marker, ms=3.5, label=shown.label
    )
    return names


def _panels(titles: Sequence[str], title: str, brief: bool) -> tuple[Figure, Sequence[Axes]]:
    y = f"their {title_of('recall_at_1')} errors, %"
    if brief:
        return small_panels(titles, x="", y=y, title=title)
    size = (HALF_PAGE, 3.6) if len(titles) == 1 else (FULL_PAGE / 2, 2.7)
    figure, axes = panels(len(titles), 2, size, share_x=True, share_y=True)
    for axis, text in zip(axes, titles):
        axis.set(title=text, xlabel=COVERAGE, ylabel=y)
    figure.suptitle(textwrap.fill(title, 60 if len(titles) == 1 else 100))
    return figure, axes


def _handles(names: Collection[str]) -> list[Line2D]:
    """Handles of the legend, by kind of confidence."""
    found = [Line2D([], [], color="k", lw=1.6, marker="o", ms=3.5, label="default confidence (image)")]
    for kind, text in (("image", " (image)"), ("retrieval", " (retrieval)"), ("control", " (control)")):
        for name in sorted(name for name in names if kind_of(name) == kind):
            colour = _GREYS.get(kind, "k")
            found.append(Line2D([], [], color=colour, lw=1.1, ls=_LINES.get(name, "-"), label=name + text))
    return found


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield one figure of risk-coverage curves for the clean test images and one per corruption of every data set."""
    for dataset in source.datasets:
        for name, split in test_splits(source, dataset).items():
            table = risk_table(source.merged, dataset, split)
            if table.empty:
                note(f"{dataset}, {name}: no filter-out curves, of which risk and coverage are read")
                continue
            figure = risk_figure(table, f"{dataset}, {images_of(split)}: risk and coverage")
            yield Drawing(f"risk_coverage_{dataset}_{name}", figure, table)
