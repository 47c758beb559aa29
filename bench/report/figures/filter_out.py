"""Filter-out curves: retrieval as the least confident images are removed, with their controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...protocols.metrics import METRICS, title_of
from ...protocols.rows import RERANKED
from ...store.records import COLUMNS
from .contenders import labelled
from .source import Drawing, Note, Source
from .style import HALF_PAGE, colour, plot_band

CURVES = ("filter_out_map_at_r", "filter_out_recall_at_1")
"""Metrics of the filter-out curves, a row of panels each."""
VARIANTS = {
    "query_only": "queries removed",
    "query_and_gallery": "queries and gallery removed",
    RERANKED: "as PER's public code: both removed, re-ranked",
}
"""Variants of the filter-out curves with their titles, a column of panels each if they were measured."""


def filtered_title(metric: str) -> str:
    """Title of the metric that a filter-out curve shows as the least confident images are removed.

    Args:
        metric: Name of the curve: ``filter_out_`` and the name of the metric.

    Raises:
        LookupError: If the name is not that of a filter-out curve.

    Example:
        >>> filtered_title("filter_out_recall_at_1")
        'Recall@1'
    """
    values = METRICS["filter_out_{metric}"].values(metric)
    if values is None:
        raise LookupError(f"{metric!r} is not the metric of a filter-out curve")
    return title_of(values["metric"])


PROBABILITY = "max_probability"
"""Confidence of a deterministic method in PER's Figure 3, next to a random one."""
STYLES = {"random": (":", 1.0), "oracle": ("--", 0.8)}
"""Line and width of the controls."""


def filter_out_figure(frame: pd.DataFrame, dataset: str, split: str) -> Figure | None:
    """Plot MAP@R and Recall@1 as the least confident images are removed, mean and SD over seeds of each method.

    Images are removed by the default confidence of the method, and for comparison at random and in the best possible
    order (oracle).

    Args:
        frame: Tidy table (one measured value per row), joined with the columns of
            :class:`~bench.store.records.Role`, such as the method's own scorer (similarity).
        dataset: Name of the data set.
        split: Test images: ``test``, or ``test_`` and the name of a corruption.

    Returns:
        None if the table has no filter-out curves of these images.
    """
    rows = frame[(frame["dataset"] == dataset) & (frame["split"] == split) & frame["metric"].isin(CURVES)]
    if rows.empty:
        return None
    measured = {variant: title for variant, title in VARIANTS.items() if (rows["variant"] == variant).any()}
    figure = Figure(figsize=(4.5 * len(measured), 6.6), layout="constrained")
    axes = figure.subplots(len(CURVES), len(measured), sharex=True, sharey="row", squeeze=False)
    for metric, line in zip(CURVES, axes):
        for (variant, variant_title), axis in zip(measured.items(), line):
            _draw_filter_out(axis, rows[(rows["metric"] == metric) & (rows["variant"] == variant)])
            axis.set_title(variant_title)
            axis.set_ylabel(filtered_title(metric))
            if metric == CURVES[-1]:
                axis.set_xlabel("least confident images removed, %")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, max(1, len(labels))))
    images = {"test": "clean", "test_crop": "centre-cropped"}.get(split, split.removeprefix("test_"))
    figure.suptitle(
        f"{dataset}, {images} test images (solid: own confidence, dotted: random, dashed: oracle; band: SD)"
    )
    return figure


def _draw_filter_out(axis: Axes, rows: pd.DataFrame) -> None:
    """Curves of every method in one panel."""
    for index, label, group in labelled(rows):
        own = group["default_confidence"].iloc[0]
        _draw_curves(axis, group, index, {own: f"{label} [{own}]", "random": None, "oracle": None})


def _draw_curves(axis: Axes, group: pd.DataFrame, index: int, texts: Mapping[str, str | None]) -> None:
    """Curves of one contender by confidence, with their texts in the legend."""
    ranked = group.loc[group["scorer"] == group["primary_scorer"], ["confidence", "fraction", "value"]]
    for name, text in texts.items():
        style, width = STYLES.get(name, ("-", 1.8))
        curve = ranked[ranked["confidence"] == name].groupby("fraction")["value"].agg(["mean", "std"])
        x = 100 * curve.index.to_numpy()
        axis.plot(x, curve["mean"], style, lw=width, color=colour(index), label=text)
        if name not in STYLES:
            plot_band(axis, curve, x, index)


def probability_figure(rows: pd.DataFrame, dataset: str, images: str) -> Figure:
    """Plot MAP@R by the share of images removed from queries and gallery, least confident first.

    The layout is that of Figure 3 of "Probabilistic Embeddings Revisited" (PER). Probabilistic methods remove images by
    their own confidence. Deterministic methods have two curves: by their largest class probability, and at random.

    Args:
        rows: Rows of :func:`probability_rows`.
        dataset: Name of the data set.
        images: Description of the test images in the title, such as ``centre-cropped``.
    """
    figure = Figure(figsize=(HALF_PAGE, 3.6), layout="constrained")
    axis = figure.subplots()
    for index, label, group in labelled(rows):
        if group["probabilistic"].iloc[0]:
            own = group["default_confidence"].iloc[0]
            _draw_curves(axis, group, index, {own: label})
        else:
            _draw_curves(axis, group, index, {PROBABILITY: f"{label}, probability", "random": f"{label}, random"})
    axis.set(xlabel="least confident images removed, %", ylabel=filtered_title("filter_out_map_at_r"))
    axis.set_title(f"{dataset}, {images} test images (band: SD over seeds)")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure


def probability_rows(frame: pd.DataFrame, dataset: str, split: str) -> pd.DataFrame:
    """Select the points of filter-out curves that :func:`probability_figure` shows.

    The public code of "Probabilistic Embeddings Revisited" (PER) orders only those images by score whose modes are
    nearest to the query's. A curve that was computed in this way replaces the plain curve of the same test.

    Args:
        frame: Tidy table (one measured value per row), joined with the columns of
            :class:`~bench.store.records.Role`, such as the method's own scorer (similarity).
        dataset: Name of the data set.
        split: Test images: ``test``, or ``test_`` and the name of a corruption.
    """
    rows = frame[
        (frame["dataset"] == dataset)
        & (frame["split"] == split)
        & (frame["metric"] == "filter_out_map_at_r")
        & frame["variant"].isin(["query_and_gallery", RERANKED])
        & (frame["scorer"] == frame["primary_scorer"])
    ]
    as_published = rows["variant"] == RERANKED
    rows = rows[as_published | ~rows["unit"].isin(rows["unit"][as_published])]
    probabilistic = rows["probabilistic"].astype(bool)
    own = probabilistic & (rows["confidence"] == rows["default_confidence"])
    return rows[own | (~probabilistic & rows["confidence"].isin([PROBABILITY, "random"]))]


def shown_rows(frame: pd.DataFrame, dataset: str, split: str) -> pd.DataFrame:
    """Select the points of filter-out curves that :func:`filter_out_figure` shows.

    Args:
        frame: Tidy table (one measured value per row), joined with the columns of
            :class:`~bench.store.records.Role`, such as the method's own scorer (similarity).
        dataset: Name of the data set.
        split: Test images: ``test``, or ``test_`` and the name of a corruption.
    """
    return frame[
        (frame["dataset"] == dataset)
        & (frame["split"] == split)
        & frame["metric"].isin(CURVES)
        & frame["variant"].isin(list(VARIANTS))
        & (frame["scorer"] == frame["primary_scorer"])
        & (frame["confidence"].isin(list(STYLES)) | (frame["confidence"] == frame["default_confidence"]))
    ]


def corrupted_splits(source: Source, dataset: str) -> list[str]:
    """Sorted names of the corruptions, such as ``crop``, of the test images in the tests on a data set."""
    tests = [record for record in source.results.tests if record.columns.dataset == dataset]
    return sorted({corruption for record in tests for corruption in record.curves})


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield filter-out figures (retrieval as the least confident images are removed) of every data set.

    There is one for the clean test images and one per corruption.

    Args:
        source: Results folder to draw from.
        note: Not called: images without curves are skipped.
    """
    for dataset in source.datasets:
        splits = {"clean": "test", **{kind: f"test_{kind}" for kind in corrupted_splits(source, dataset)}}
        for name, split in splits.items():
            figure = filter_out_figure(source.merged, dataset, split)
            if figure is not None:
                rows = shown_rows(source.merged, dataset, split)[list(COLUMNS)]
                yield Drawing(f"filter_out_{dataset}_{name}", figure, rows)


def draw_probability(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield one :func:`probability_figure`, of MAP@R by share of images removed, per corruption of every data set.

    Args:
        source: Results folder to draw from.
        note: Called with a one-line message for every corruption without filter-out curves.
    """
    for dataset in source.datasets:
        for kind in corrupted_splits(source, dataset):
            rows = probability_rows(source.merged, dataset, f"test_{kind}")
            if rows.empty:
                note(f"{dataset}, {kind}: no filter-out curves")
                continue
            images = "centre-cropped" if kind == "crop" else kind
            figure = probability_figure(rows, dataset, images)
            yield Drawing(f"filter_out_probability_{dataset}_{kind}", figure, rows[list(COLUMNS)])
