"""Confidence against the severity of a corruption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...store.records import KEYS
from ..frame import Results
from .curves import MOST_CURVES, Curve, contender_figure, legend_below, mean_curve, plot_curves
from .source import Drawing, Note, Shown, Source, labelled
from .style import panels


def confidence_ranks(results: Results, dataset: str) -> pd.DataFrame:
    """Table of the mean confidence rank of the test images, a row per test, corruption and bin of severities.

    The rank of an image is its place among all test images, scaled to [0, 1], when they are sorted by the method's
    default confidence, least confident first.
    """
    lines: list[dict[str, object]] = []
    for record in results.tests:
        if record.columns.dataset != dataset:
            continue
        confidence = record.role.default_confidence
        columns = {**dict(record.columns), "confidence": confidence}
        for corruption, curve in record.curves.items():
            for severity, rank in zip(curve.severity, curve.rank[confidence]):
                lines.append({**columns, "corruption": corruption, "severity": severity, "value": rank})
    return pd.DataFrame(lines, columns=[*KEYS, "confidence", "corruption", "severity", "value"])


def _curve(shown: Shown, by: str) -> Curve:
    """Mean and SD over seeds of a contender, by one column."""
    curve = shown.rows.groupby(by)["value"].agg(["mean", "std"])
    return mean_curve(f"{shown.label}\n[{shown.rows['confidence'].iloc[0]}]", shown.look, curve, curve.index.to_numpy())


def crop_figure(ranks: pd.DataFrame, dataset: str) -> Figure | None:
    """Plot the mean confidence rank of the test images against the side of the centre crop; None without crops."""
    crops = ranks[ranks["corruption"] == "crop"]
    if crops.empty:
        return None
    crops = crops.assign(side=1 - crops["severity"])
    figure = contender_figure(
        [_curve(shown, "side") for shown in labelled(crops)],
        x="side of the centre crop, fraction of the image",
        y="mean confidence rank (0.5 = uninformative)",
        title=f"{dataset}: does confidence see the crop? (band: SD over seeds)",
    )
    for axis in figure.axes:
        _mark_uninformative(axis)
    return figure


def _mark_uninformative(axis: Axes) -> None:
    axis.axhline(0.5, ls=":", color="0.5", lw=1)


def severity_figure(ranks: pd.DataFrame, dataset: str) -> Figure | None:
    """Plot the mean confidence rank against severity, one panel per corruption; None without several severities.

    Of many contenders, those whose rank falls most from the least to the greatest severity have a colour, on average
    over the corruptions.
    """
    # A fixed severity has no curve.
    names = [str(name) for name, rows in ranks.groupby("corruption", sort=True) if rows["severity"].nunique() > 1]
    if not set(names) - {"crop"}:
        return None
    contenders = list(labelled(ranks))
    coloured = _steepest(contenders, names)
    columns = min(3, len(names))
    figure, axes = panels(len(names), columns, (3.0, 2.6), share_x=True, share_y=True)
    for axis, name in zip(axes, names):
        own = [shown._replace(rows=shown.rows[shown.rows["corruption"] == name]) for shown in contenders]
        has = [shown for shown in own if len(shown.rows)]
        curves = [_curve(shown, "severity") for shown in has]
        plot_curves(axis, curves, [place for place, shown in enumerate(has) if shown.number in coloured])
        axis.set(title=name, xlabel="severity")
        _mark_uninformative(axis)
    legend_below(figure, axes, len(contenders) - len(coloured))
    figure.supylabel("mean confidence rank")
    title = f"{dataset}: does confidence fall with severity? (0.5 = uninformative)"
    if len(coloured) < len(contenders):
        title += f"\ncoloured: the {len(coloured)} contenders with the steepest mean fall"
    figure.suptitle(title)
    return figure


def _steepest(contenders: Sequence[Shown], names: Sequence[str]) -> set[int]:
    """Contenders that have a colour: all if they are few, else those whose mean rank falls most."""
    falls = {}
    for shown in contenders:
        means = shown.rows[shown.rows["corruption"].isin(names)].groupby(["corruption", "severity"])["value"].mean()
        by_corruption = means.groupby(level="corruption")
        falls[shown.number] = float((by_corruption.first() - by_corruption.last()).mean())
    return set(sorted(falls, key=lambda index: (-falls[index], index))[:MOST_CURVES])


def draw(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield figures of the mean confidence rank by side of the crop, and by severity of corruptions."""
    ranks = confidence_ranks(source.results, dataset)
    crop, severity = crop_figure(ranks, dataset), severity_figure(ranks, dataset)
    if crop is None and severity is None:
        note(f"{dataset}: no test on crops, and no corruption at several severities")
    if crop is not None:
        yield Drawing(f"confidence_crop_{dataset}", crop, ranks[ranks["corruption"] == "crop"])
    if severity is not None:
        yield Drawing(f"confidence_severity_{dataset}", severity, ranks)
