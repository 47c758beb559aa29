"""Curves as the least confident images are left out: retrieval with its controls (filter-out), risk and coverage."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...protocols.metrics import METRICS, title_of
from ...protocols.rows import FREE_IMAGE_CONFIDENCES, MARGIN, OWN, RERANKED, RETRIEVAL_CONFIDENCES, kind_of
from ...store.records import COLUMNS, KEYS
from ..frame import as_texts
from .curves import (
    CONTROLS,
    MOST_PANELS,
    REST,
    Curve,
    chosen_few,
    contender_figure,
    legend_below,
    mean_curve,
    most_coloured,
    plot_curves,
    small_panels,
)
from .source import Drawing, Note, Shown, Source, labelled
from .style import FULL_PAGE, HALF_PAGE, LINES, Line, Look, panels

CURVES = ("filter_out_map_at_r", "filter_out_recall_at_1")
"""Metrics of the filter-out curves, a row of panels each."""
VARIANTS = {
    "query_only": "queries removed",
    "query_and_gallery": "queries and gallery removed",
    RERANKED: "as PER's public code: both removed, re-ranked",
}
"""Variants of the filter-out curves with their titles, a column of panels each if they were measured."""
PROBABILITY = "max_probability"
"""Confidence of a deterministic method in PER's Figure 3, next to a random one."""
REMOVED = "least confident images removed, %"
"""Label of the horizontal axis of filter-out curves."""
COVERAGE = "most confident queries kept, %"
"""Label of the horizontal axis of risk."""
FEW = 4
"""Contenders (methods at one setting) that are shown with all of their confidences, at most."""
BRIEF = (MARGIN, *CONTROLS)
"""Confidences that are shown of each of many contenders, next to the default one."""
_GREYS = {"retrieval": "0.3", "control": "0.6"}
_LINES: dict[str, Line] = {
    **dict(zip((OWN, *FREE_IMAGE_CONFIDENCES), (LINES[0], *LINES[2:]))),
    **dict(zip(RETRIEVAL_CONFIDENCES, ((0, (5, 1)), "-", "-.", (0, (1, 1))))),
    **{name: line for name, (line, _) in CONTROLS.items()},
}


def filtered_title(metric: str) -> str:
    """Title of the metric that a filter-out curve, ``filter_out_`` and its name, shows; else a LookupError.

    Example:
        >>> filtered_title("filter_out_recall_at_1")
        'Recall@1'
    """
    values = METRICS["filter_out_{metric}"].values(metric)
    if values is None:
        raise LookupError(f"{metric!r} is not the metric of a filter-out curve")
    return title_of(values["metric"])


def curve_points(
    frame: pd.DataFrame,
    dataset: str,
    split: str,
    metrics: Collection[str] = CURVES,
    variants: Collection[str] = tuple(VARIANTS),
) -> pd.DataFrame:
    """Select points of filter-out curves on a split of the test images, under the method's own scorer."""
    rows = as_texts(
        frame[
            (frame["dataset"] == dataset)
            & (frame["split"] == split)
            & frame["metric"].isin(list(metrics))
            & frame["variant"].isin(list(variants))
        ]
    )
    return rows[rows["scorer"] == rows["primary_scorer"]]


def splits_of(source: Source, dataset: str) -> dict[str, str]:
    """Splits of the test images of a data set by their names in files: ``clean``, and each corruption, sorted."""
    tests = [record for record in source.results.tests if record.columns.dataset == dataset]
    return {"clean": "test", **{kind: f"test_{kind}" for kind in sorted({k for test in tests for k in test.curves})}}


def images_of(split: str) -> str:
    """Description of the test images of a split, such as ``clean test images``."""
    kind = {"test": "clean", "test_crop": "centre-cropped"}.get(split, split.removeprefix("test_"))
    return f"{kind} test images"


class Filtered(NamedTuple):
    """Curve of a filter-out figure: its points, at which images are removed by the confidence ``own``."""

    label: str
    look: Look
    rows: pd.DataFrame
    own: str

    def curve(self, metric: str, variant: str) -> Curve:
        """Curve by its confidence, with those of the controls."""
        rows = self.rows[(self.rows["metric"] == metric) & (self.rows["variant"] == variant)]
        return confidence_curve(f"{self.label} [{self.own}]", self.look, rows, self.own, tuple(CONTROLS))


def confidence_curve(label: str, look: Look, rows: pd.DataFrame, own: str, others: Sequence[str] = ()) -> Curve:
    """Curve of a contender by one confidence, the mean over seeds and SD, with those of others in the rows."""
    means = rows.groupby(["confidence", "fraction"])["value"].agg(["mean", "std"])
    has = set(means.index.get_level_values("confidence"))
    tables = {name: means.loc[[name]].droplevel("confidence") for name in (own, *others) if name in has}
    own_table = tables.pop(own, means.iloc[:0].droplevel("confidence"))
    controls = {name: (100 * each.index.to_numpy(), each["mean"].to_numpy()) for name, each in tables.items()}
    return mean_curve(label, look, own_table, 100 * own_table.index.to_numpy(), controls)


def filter_out_figure(rows: pd.DataFrame, about: str) -> Figure:
    """Plot the curves of each method of a table by its default confidence."""
    every = [Filtered(shown.label, shown.look, shown.rows, _default(shown)) for shown in labelled(rows)]
    return filtered_figure(every, about)


def filtered_figure(every: Sequence[Filtered], about: str) -> Figure:
    """Plot MAP@R and Recall@1 as the least confident images are removed, mean and SD over seeds of each curve.

    Images are removed by the confidence of each, and for comparison at random and in the best possible order (oracle).
    Of many, those with the highest mean MAP@R over the shares of queries removed have a colour.

    Args:
        every: What is shown, with points of these curves and variants alone.
        about: Beginning of the title.
    """
    known = {variant for each in every for variant in each.rows["variant"]}
    measured = {variant: title for variant, title in VARIANTS.items() if variant in known}
    figure, axes = panels(2 * len(measured), len(measured), (4.5, 3.1), share_x=True)
    curves = [[each.curve(metric, variant) for each in every] for metric, variant in product(CURVES, measured)]
    coloured = chosen_few(curves[0], most_coloured(curves[0]))
    for axis, shown, (metric, variant) in zip(axes, curves, product(CURVES, measured)):
        plot_curves(axis, shown, coloured)
        axis.set_title(measured[variant])
        axis.set_ylabel(filtered_title(metric))
        if metric == CURVES[-1]:
            axis.set_xlabel(REMOVED)
    for line in (axes[: len(measured)], axes[len(measured) :]):
        ends = [axis.get_ylim() for axis in line]
        for axis in line:
            axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    legend_below(figure, axes, len(every) - len(coloured))
    title = f"{about} (thick: own confidence, dotted: random, dashed thin: oracle; band: SD)"
    if len(coloured) < len(every):
        which = f"the {len(coloured)} with the highest mean {filtered_title(CURVES[0])} as queries are removed"
        title += f"\ncoloured: {which}"
    figure.suptitle(title)
    return figure


def probability_figure(rows: pd.DataFrame, dataset: str, images: str) -> Figure:
    """Plot MAP@R by the share of images removed from queries and gallery, least confident first.

    The layout is that of Figure 3 of "Probabilistic Embeddings Revisited" (PER). Probabilistic methods remove images by
    their own confidence. Deterministic methods have two curves: by their largest class probability, and at random.
    """
    curves = []
    for shown in labelled(rows):
        if shown.rows["probabilistic"].iloc[0]:
            curves.append(confidence_curve(shown.label, shown.look, shown.rows, _default(shown)))
        else:
            text = f"{shown.label}, probability (dotted: random)"
            curves.append(confidence_curve(text, shown.look, shown.rows, PROBABILITY, ("random",)))
    title = f"{dataset}, {images} (band: SD over seeds)"
    return contender_figure(curves, x=REMOVED, y=filtered_title(CURVES[0]), title=title)


def probability_rows(frame: pd.DataFrame, dataset: str, split: str) -> pd.DataFrame:
    """Select the points of filter-out curves that :func:`probability_figure` shows.

    A curve as the public code of PER computes it (:mod:`bench.protocols.reranked`) replaces the plain curve of the same
    test.
    """
    rows = curve_points(frame, dataset, split, CURVES[:1], ["query_and_gallery", RERANKED])
    as_published = rows["variant"] == RERANKED
    rows = rows[as_published | ~rows["unit"].isin(rows["unit"][as_published])]
    probabilistic = rows["probabilistic"].astype(bool)
    own = probabilistic & (rows["confidence"] == rows["default_confidence"])
    return rows[own | (~probabilistic & rows["confidence"].isin([PROBABILITY, "random"]))]


def draw(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield a filter-out figure of the clean test images, and one per corruption."""
    for name, split in splits_of(source, dataset).items():
        rows = curve_points(source.results.merged, dataset, split)
        if rows.empty:
            note(f"{dataset}, {name}: no filter-out curves")
            continue
        figure = filter_out_figure(rows, f"{dataset}, {images_of(split)}")
        shown = rows["confidence"].isin(list(CONTROLS)) | (rows["confidence"] == rows["default_confidence"])
        yield Drawing(f"filter_out_{dataset}_{name}", figure, rows[shown][list(COLUMNS)])


def draw_probability(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one :func:`probability_figure`, of MAP@R by share of images removed, per corruption."""
    for name, split in splits_of(source, dataset).items():
        if name == "clean":
            continue
        rows = probability_rows(source.results.merged, dataset, split)
        if rows.empty:
            note(f"{dataset}, {name}: no filter-out curves")
            continue
        figure = probability_figure(rows, dataset, images_of(split))
        yield Drawing(f"filter_out_probability_{dataset}_{name}", figure, rows[list(COLUMNS)])


def risk_table(frame: pd.DataFrame, dataset: str, split: str) -> pd.DataFrame:
    """Table of the risk-coverage curves of every test, by each confidence, under the method's own scorer.

    ``coverage`` is the share of the queries that is kept, the most confident ones, and ``risk`` 1 minus their Recall@1.
    """
    rows = curve_points(frame, dataset, split, CURVES[1:], ["query_only"])
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
    curves = {shown.number: _risk_curves(shown) for shown in contenders}
    own = {shown.number: curves[shown.number].pop(_default(shown)) for shown in contenders}
    order = sorted(own, key=lambda index: (own[index]["risk"].mean(), index))[:MOST_PANELS]
    chosen = [shown for shown in contenders if shown.number in order]
    brief = len(contenders) > FEW
    if brief:
        grey = "all others" if len(chosen) == len(contenders) else f"all but the {len(chosen)} of the lowest mean risk"
        title += f"; light grey: {grey}"
    figure, axes = _risk_panels([f"{shown.label}\n[{_default(shown)}]" for shown in chosen], title, brief)
    names: set[str] = set()
    for axis, shown in zip(axes, chosen):
        if brief:
            rest = [curve.to_numpy() for index, curve in own.items() if index != shown.number]
            axis.add_collection(LineCollection(rest, colors=REST, linewidths=0.7, zorder=1))
        others = {name: each for name, each in curves[shown.number].items() if not brief or name in BRIEF}
        for name in sorted(others):
            colour = _GREYS.get(kind_of(name), shown.look.colour)
            axis.plot(*others[name].to_numpy().T, ls=_LINES.get(name, "-"), lw=1.1, color=colour)
        x, y = own[shown.number].to_numpy().T
        look = shown.look
        axis.plot(x, y, "-", lw=1.6, color=look.colour, marker=look.marker, ms=3.5, label=shown.label)
        names |= others.keys()
    figure.legend(
        handles=_risk_handles(names),
        loc="outside lower center",
        ncols=2 if len(axes) == 1 else 4,
        fontsize=8,
        title=COVERAGE if brief else None,
        title_fontsize=9,
    )
    return figure


def _default(shown: Shown) -> str:
    return str(shown.rows["default_confidence"].iloc[0])


def _risk_curves(shown: Shown) -> dict[str, pd.DataFrame]:
    """Mean risk over seeds by coverage, both in percent, for each confidence; an empty curve for a missing default."""
    means = shown.rows.groupby(["confidence", "coverage"])["risk"].mean().reset_index()
    curves = {
        str(name): rows.sort_values("coverage", ascending=False).drop(columns="confidence").mul(100)
        for name, rows in means.groupby("confidence")
    }
    return {_default(shown): means.iloc[:0][["coverage", "risk"]], **curves}


def _risk_panels(titles: Sequence[str], title: str, brief: bool) -> tuple[Figure, Sequence[Axes]]:
    y = f"their {title_of('recall_at_1')} errors, %"
    if brief:
        return small_panels(titles, x="", y=y, title=title)
    size = (HALF_PAGE, 3.6) if len(titles) == 1 else (FULL_PAGE / 2, 2.7)
    figure, axes = panels(len(titles), 2, size, share_x=True, share_y=True)
    for axis, text in zip(axes, titles):
        axis.set(title=text, xlabel=COVERAGE, ylabel=y)
    figure.suptitle(textwrap.fill(title, 60 if len(titles) == 1 else 100))
    return figure, axes


def _risk_handles(names: Collection[str]) -> list[Line2D]:
    """Handles of the legend, by kind of confidence."""
    found = [Line2D([], [], color="k", lw=1.6, marker="o", ms=3.5, label="default confidence (image)")]
    for kind in ("image", "retrieval", "control"):
        for name in sorted(name for name in names if kind_of(name) == kind):
            colour, line = _GREYS.get(kind, "k"), _LINES.get(name, "-")
            found.append(Line2D([], [], color=colour, lw=1.1, ls=line, label=f"{name} ({kind})"))
    return found


def draw_risk(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield a figure of risk-coverage curves for the clean test images, and one per corruption."""
    for name, split in splits_of(source, dataset).items():
        table = risk_table(source.results.merged, dataset, split)
        if table.empty:
            note(f"{dataset}, {name}: no filter-out curves, of which risk and coverage are read")
            continue
        figure = risk_figure(table, f"{dataset}, {images_of(split)}: risk and coverage")
        yield Drawing(f"risk_coverage_{dataset}_{name}", figure, table)
