"""Confidence against the severity of a corruption."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from ...store.records import KEYS
from ..frame import Results
from .curves import Curve, Panel, curve_figure, seed_curve, seed_points
from .registry import Drawing, Note, Shown, Source, labelled

RANK = "mean confidence rank (0.5 = uninformative)"
"""Label of the vertical axis."""


def confidence_ranks(results: Results, dataset: str) -> pd.DataFrame:
    """Table of the mean confidence rank of the test images, a row per test, corruption and bin of severities.

    The rank of an image is its place among all test images, scaled to [0, 1], when they are sorted by the method's
    default confidence, least confident first.
    """
    lines: list[dict[str, object]] = []
    for record in (record for record in results.tests if record.columns.dataset == dataset):
        confidence = record.role.default_confidence
        columns = {**dict(record.columns), "confidence": confidence}
        for corruption, curve in record.curves.items():
            for severity, rank in zip(curve.severity, curve.rank[confidence]):
                lines.append({**columns, "corruption": corruption, "severity": severity, "value": rank})
    return pd.DataFrame(lines, columns=[*KEYS, "confidence", "corruption", "severity", "value"])


def _curves(contenders: list[Shown], corruption: str, x: str) -> list[Curve]:
    points = seed_points(contenders, ["corruption", "confidence"], x)
    return [
        seed_curve(f"{each.label}\n[{confidence}]", each.look, own)
        for each in contenders
        for (number, of, confidence), own in points.items()
        if (number, of) == (each.number, corruption)
    ]


def draw(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield figures of the mean confidence rank by side of the crop, and by severity of corruptions."""
    ranks = confidence_ranks(source.results, dataset)
    contenders = list(labelled(ranks.assign(side=1 - ranks["severity"]))) if len(ranks) else []
    crops = ranks[ranks["corruption"] == "crop"]
    # A fixed severity has no curve.
    names = [str(name) for name, rows in ranks.groupby("corruption") if rows["severity"].nunique() > 1]
    severe = set(names) - {"crop"}
    if crops.empty and not severe:
        note(f"{dataset}: no test on crops, and no corruption at several severities")
    if len(crops):
        x, title = "side of the centre crop, fraction of the image", f"{dataset}: does confidence see the crop?"
        curves = _curves(contenders, "crop", "side")
        figure = curve_figure([Panel("", curves, RANK)], x=x, title=f"{title} (band: SD over seeds)")
        yield Drawing(f"confidence_crop_{dataset}", figure, crops)
    if severe:
        shown = [Panel(name, _curves(contenders, name, "severity"), RANK) for name in names]
        figure = curve_figure(shown, x="severity", title=f"{dataset}: does confidence fall with severity?")
        yield Drawing(f"confidence_severity_{dataset}", figure, ranks)
