"""Confidence against the severity of a corruption."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...store.records import KEYS
from ..frame import Results
from .contenders import labelled
from .source import Drawing, Note, Source
from .style import colour, plot_band


def confidence_ranks(results: Results, dataset: str) -> pd.DataFrame:
    """Table of the mean confidence rank of the test images, a row per test, corruption and severity.

    The rank of an image is its place among all test images, scaled to [0, 1], when they are sorted by the method's
    default confidence, least confident first.

    Args:
        results: Finished tests of a results folder.
        dataset: Name of the data set.

    Returns:
        Columns that identify the test (protocol, method, seed and so on), ``confidence`` (its name), ``corruption``,
        ``severity`` (middle of a bin of severities) and ``value`` (mean rank of the images in the bin).
    """
    lines: list[dict[str, object]] = []
    for record in results.tests:
        if record.columns.dataset != dataset:
            continue
        confidence = record.role.default_confidence
        columns = {**record.columns.model_dump(), "confidence": confidence}
        for corruption, curve in record.curves.items():
            for severity, rank in zip(curve.severity, curve.rank[confidence]):
                lines.append({**columns, "corruption": corruption, "severity": severity, "value": rank})
    return pd.DataFrame(lines, columns=[*KEYS, "confidence", "corruption", "severity", "value"])


def _draw_ranks(axis: Axes, ranks: pd.DataFrame, by: str) -> None:
    """One line per method, band over seeds."""
    for index, label, group in labelled(ranks):
        curve = group.groupby(by)["value"].agg(["mean", "std"])
        x = curve.index.to_numpy()
        text = f"{label} [{group['confidence'].iloc[0]}]"
        axis.plot(x, curve["mean"], "o-", ms=3, color=colour(index), label=text)
        plot_band(axis, curve, x, index)
    axis.axhline(0.5, ls=":", color="0.5", lw=1)


def crop_figure(ranks: pd.DataFrame, dataset: str) -> Figure | None:
    """Plot the mean confidence rank of the test images against the side of the centre crop, one curve per contender.

    A contender is a method at one setting; curves are means over seeds, with a band of one SD.

    Args:
        ranks: Rows of :func:`confidence_ranks`.
        dataset: Name of the data set, for the title.

    Returns:
        None if no test was made on crops.
    """
    crops = ranks[ranks["corruption"] == "crop"]
    if crops.empty:
        return None
    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axis = figure.subplots()
    _draw_ranks(axis, crops.assign(side=1 - crops["severity"]), "side")
    axis.set(
        xlabel="side of the centre crop, fraction of the image",
        ylabel="mean confidence rank (0.5 = uninformative)",
    )
    axis.set_title(f"{dataset}: does confidence see the crop?")
    axis.legend(fontsize=8)
    return figure


def severity_figure(ranks: pd.DataFrame, dataset: str) -> Figure | None:
    """Plot the mean confidence rank of the test images against severity, one panel per corruption.

    A curve is one contender (method at one setting), the mean over seeds with a band of one SD.

    Args:
        ranks: Rows of :func:`confidence_ranks`.
        dataset: Name of the data set, for the title.

    Returns:
        None if no corruption but the crop has several severities.
    """
    # A fixed severity has no curve.
    names = [str(name) for name, rows in ranks.groupby("corruption", sort=True) if rows["severity"].nunique() > 1]
    if not set(names) - {"crop"}:
        return None
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(3.0 * columns, 2.6 * lines + 0.6), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axis, name in zip(axes.ravel(), names):
        _draw_ranks(axis, ranks[ranks["corruption"] == name], "severity")
        axis.set(title=name, xlabel="severity")
        axis.xaxis.set_tick_params(labelbottom=True)
    for axis in axes.ravel()[len(names) :]:
        axis.set_visible(False)
    # One legend for all panels, of all methods: a method may lack a corruption.
    shown = {text: handle for axis in axes.ravel() for handle, text in zip(*axis.get_legend_handles_labels())}
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=min(columns, len(shown)))
    figure.supylabel("mean confidence rank")
    figure.suptitle(f"{dataset}: does confidence fall with severity? (0.5 = uninformative)")
    return figure


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield figures of every data set: mean confidence rank by side of the centre crop, and by severity of corruptions.

    Args:
        source: Results folder to draw from.
        note: Not called: data sets without corruptions are skipped.
    """
    for dataset in source.datasets:
        ranks = confidence_ranks(source.results, dataset)
        crop, severity = crop_figure(ranks, dataset), severity_figure(ranks, dataset)
        if crop is not None:
            yield Drawing(f"confidence_crop_{dataset}", crop, ranks[ranks["corruption"] == "crop"])
        if severity is not None:
            yield Drawing(f"confidence_severity_{dataset}", severity, ranks)
