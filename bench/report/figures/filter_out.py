"""Filter-out curves: retrieval as the least confident images are removed, with their controls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from ...protocols.metrics import METRICS, title_of
from ...protocols.rows import RERANKED
from ...store.records import COLUMNS
from .contenders import labelled
from .curves import (
    CONTROLS,
    Curve,
    chosen_few,
    contender_figure,
    legend_below,
    mean_curve,
    most_coloured,
    plot_curves,
)
from .looks import Look
from .source import Drawing, Note, Source
from .style import panels

CURVES = ("filter_out_map_at_r", "filter_out_recall_at_1")
"""Metrics of the filter-out curves, a row of panels each."""
VARIANTS = {
    "query_only": "queries removed",
    "query_and_gallery": "queries and gallery removed",
    RERANKED: "as PER's public code: both removed, re-ranked",
}
"""Variants of the filter-out curves with their titles, a column of panels each if they were measured."""


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


PROBABILITY = "max_probability"
"""Confidence of a deterministic method in PER's Figure 3, next to a random one."""


def curve_points(
    frame: pd.DataFrame, dataset: str, split: str, metrics: Collection[str], variants: Collection[str]
) -> pd.DataFrame:
    """Select points of filter-out curves on a split of the test images, under the method's own scorer."""
    return frame[
        (frame["dataset"] == dataset)
        & (frame["split"] == split)
        & frame["metric"].isin(list(metrics))
        & frame["variant"].isin(list(variants))
        & (frame["scorer"] == frame["primary_scorer"])
    ]


class Filtered(NamedTuple):
    """Curve of a filter-out figure: its points, at which images are removed by the confidence ``own``."""

    label: str
    look: Look
    rows: pd.DataFrame
    own: str


def filter_out_figure(frame: pd.DataFrame, dataset: str, split: str) -> Figure | None:
    """Plot the curves of each method by its default confidence; None without curves."""
    rows = curve_points(frame, dataset, split, CURVES, VARIANTS)
    if rows.empty:
        return None
    every = [
        Filtered(each.label, each.look, each.rows, str(each.rows["default_confidence"].iloc[0]))
        for each in labelled(rows)
    ]
    return filtered_figure(every, f"{dataset}, {images_of(split)}")


def filtered_figure(every: Sequence[Filtered], about: str) -> Figure:
    """Plot MAP@R and Recall@1 as the least confident images are removed, mean and SD over seeds of each curve.

    Images are removed by the confidence of each, and for comparison at random and in the best possible order (oracle).
    Of many, those with the highest mean MAP@R over the shares of queries removed have a colour.

    Args:
        every: What is shown, with points of these curves and variants alone.
        about: Beginning of the title.
    """
    measured = {
        variant: title
        for variant, title in VARIANTS.items()
        if any((each.rows["variant"] == variant).any() for each in every)
    }
    figure, axes = panels(2 * len(measured), len(measured), (4.5, 3.1), share_x=True)
    first: list[int] | None = None
    places = ((metric, variant) for metric in CURVES for variant in measured)
    for axis, (metric, variant) in zip(axes, places):
        curves = [_with_controls(each, metric, variant) for each in every]
        if first is None:
            first = chosen_few(curves, most_coloured(curves))
        plot_curves(axis, curves, first)
        axis.set_title(measured[variant])
        axis.set_ylabel(filtered_title(metric))
        if metric == CURVES[-1]:
            axis.set_xlabel("least confident images removed, %")
    assert first is not None
    for line in (axes[: len(measured)], axes[len(measured) :]):
        ends = [axis.get_ylim() for axis in line]
        for axis in line:
            axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    legend_below(figure, axes, len(every) - len(first))
    title = f"{about} (thick: own confidence, dotted: random, dashed thin: oracle; band: SD)"
    if len(first) < len(every):
        title += (
            f"\ncoloured: the {len(first)} with the highest mean {filtered_title(CURVES[0])} as queries are removed"
        )
    figure.suptitle(title)
    return figure


def images_of(split: str) -> str:
    """Description of the test images of a split, such as ``clean test images``."""
    kind = {"test": "clean", "test_crop": "centre-cropped"}.get(split, split.removeprefix("test_"))
    return f"{kind} test images"


def _with_controls(each: Filtered, metric: str, variant: str) -> Curve:
    """Curve by the confidence, with those of the controls."""
    rows = each.rows[(each.rows["metric"] == metric) & (each.rows["variant"] == variant)]
    return confidence_curve(f"{each.label} [{each.own}]", each.look, rows, each.own, tuple(CONTROLS))


def confidence_curve(label: str, look: Look, rows: pd.DataFrame, own: str, others: Sequence[str] = ()) -> Curve:
    """Curve of a contender by one confidence, the mean over seeds and SD, with those of others in the rows."""
    means = rows.groupby(["confidence", "fraction"])["value"].agg(["mean", "std"])
    has = set(means.index.get_level_values("confidence"))
    tables = {name: means.loc[[name]].droplevel("confidence") for name in (own, *others) if name in has}
    own_table = tables.pop(own, means.iloc[:0].droplevel("confidence"))
    controls = {name: (100 * each.index.to_numpy(), each["mean"].to_numpy()) for name, each in tables.items()}
    return mean_curve(label, look, own_table, 100 * own_table.index.to_numpy(), controls)


def probability_figure(rows: pd.DataFrame, dataset: str, images: str) -> Figure:
    """Plot MAP@R by the share of images removed from queries and gallery, least confident first.

    The layout is that of Figure 3 of "Probabilistic Embeddings Revisited" (PER). Probabilistic methods remove images by
    their own confidence. Deterministic methods have two curves: by their largest class probability, and at random.
    """
    curves = []
    for _, label, look, group in labelled(rows):
        if group["probabilistic"].iloc[0]:
            curves.append(confidence_curve(label, look, group, str(group["default_confidence"].iloc[0])))
        else:
            text = f"{label}, probability (dotted: random)"
            curves.append(confidence_curve(text, look, group, PROBABILITY, ("random",)))
    return contender_figure(
        curves,
        x="least confident images removed, %",
        y=filtered_title("filter_out_map_at_r"),
        title=f"{dataset}, {images} (band: SD over seeds)",
    )


def probability_rows(frame: pd.DataFrame, dataset: str, split: str) -> pd.DataFrame:
    """Select the points of filter-out curves that :func:`probability_figure` shows.

    A curve as the public code of PER computes it (:mod:`bench.protocols.reranked`) replaces the plain curve of the same
    test.
    """
    rows = curve_points(frame, dataset, split, ["filter_out_map_at_r"], ["query_and_gallery", RERANKED])
    as_published = rows["variant"] == RERANKED
    rows = rows[as_published | ~rows["unit"].isin(rows["unit"][as_published])]
    probabilistic = rows["probabilistic"].astype(bool)
    own = probabilistic & (rows["confidence"] == rows["default_confidence"])
    return rows[own | (~probabilistic & rows["confidence"].isin([PROBABILITY, "random"]))]


def shown_rows(frame: pd.DataFrame, dataset: str, split: str) -> pd.DataFrame:
    """Select the points of filter-out curves that :func:`filter_out_figure` shows."""
    rows = curve_points(frame, dataset, split, CURVES, VARIANTS)
    return rows[rows["confidence"].isin(list(CONTROLS)) | (rows["confidence"] == rows["default_confidence"])]


def corrupted_splits(source: Source, dataset: str) -> list[str]:
    """Sorted names of the corruptions, such as ``crop``, of the test images in the tests on a data set."""
    tests = [record for record in source.results.tests if record.columns.dataset == dataset]
    return sorted({corruption for record in tests for corruption in record.curves})


def test_splits(source: Source, dataset: str) -> dict[str, str]:
    """Splits of the test images of a data set by their names in files: ``clean``, and each corruption."""
    return {"clean": "test", **{kind: f"test_{kind}" for kind in corrupted_splits(source, dataset)}}


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield filter-out figures of every data set: one for the clean test images and one per corruption."""
    for dataset in source.datasets:
        for name, split in test_splits(source, dataset).items():
            figure = filter_out_figure(source.merged, dataset, split)
            if figure is None:
                note(f"{dataset}, {name}: no filter-out curves")
                continue
            rows = shown_rows(source.merged, dataset, split)[list(COLUMNS)]
            yield Drawing(f"filter_out_{dataset}_{name}", figure, rows)


def draw_probability(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield one :func:`probability_figure`, of MAP@R by share of images removed, per corruption of every data set."""
    for dataset in source.datasets:
        for kind in corrupted_splits(source, dataset):
            rows = probability_rows(source.merged, dataset, f"test_{kind}")
            if rows.empty:
                note(f"{dataset}, {kind}: no filter-out curves")
                continue
            figure = probability_figure(rows, dataset, images_of(f"test_{kind}"))
            yield Drawing(f"filter_out_probability_{dataset}_{kind}", figure, rows[list(COLUMNS)])
