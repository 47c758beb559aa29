"""Curves as the least confident images are left out: retrieval with its controls (filter-out), risk and coverage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import pandas as pd
from matplotlib.figure import Figure

from ...protocols.metrics import title_of
from ...protocols.rows import MARGIN, RERANKED, kind_of
from ...store.records import COLUMNS, KEYS
from ..frame import Results
from .curves import CONTROLS, MOST_CURVES, NO_POINTS, Curve, Panel, curve_figure, seed_curve, seed_points
from .registry import Drawing, Note, Shown, Source, labelled
from .style import LINES, PALETTE, Look

CURVES = ("filter_out_map_at_r", "filter_out_recall_at_1")
"""Metrics of the filter-out curves, a row of panels each."""
VARIANTS = {
    "query_only": "queries removed",
    "query_and_gallery": "queries and gallery removed",
    RERANKED: "as PER's public code: both removed, re-ranked",
}
"""Variants of the filter-out curves with their titles, a column of panels each if they were measured."""
FEW = 4
"""Contenders (methods at one setting) that are shown with all of their confidences, at most."""
BRIEF = (MARGIN, *CONTROLS)
"""Confidences that are shown of each of many contenders, next to the default one."""


def curve_points(results: Results, dataset: str, split: str) -> pd.DataFrame:
    """Select points of filter-out curves on a split of the test images, under the method's own scorer."""
    rows = results.rows(f"split == {split!r} and metric in {[*CURVES]!r} and variant in {[*VARIANTS]!r}", dataset)
    return rows[rows["scorer"].astype(object) == rows["primary_scorer"]]


def splits_of(source: Source, dataset: str) -> dict[str, str]:
    """Splits of the test images of a data set by their names in files: ``clean``, and each corruption, sorted."""
    tests = [record for record in source.results.tests if record.columns.dataset == dataset]
    return {"clean": "test", **{kind: f"test_{kind}" for kind in sorted({k for test in tests for k in test.curves})}}


def images_of(split: str) -> str:
    """Description of the test images of a split, such as ``clean test images``."""
    kind = {"test": "clean", "test_crop": "centre-cropped"}.get(split, split.removeprefix("test_"))
    return f"{kind} test images"


def filtered_figure(contenders: Sequence[Shown], about: str) -> Figure:
    """Plot MAP@R and Recall@1 as the least confident images are removed, mean and SD over seeds of each contender.

    Images are removed by the confidence of each, and for comparison at random and in the best possible order (oracle).

    Args:
        contenders: What is shown, with points of these curves and variants alone.
        about: Beginning of the title.
    """
    measured = {variant for each in contenders for variant in each.rows["variant"].unique()}
    known = {variant: title for variant, title in VARIANTS.items() if variant in measured}
    points = seed_points(contenders, ["metric", "variant", "confidence"], "fraction")
    points = {key: own * (100, 1, 1) for key, own in points.items()}
    shown = []
    for metric, variant in product(CURVES, known):
        curves = []
        for each, own in ((each, _default(each)) for each in contenders):
            of = {name: points.get((each.number, metric, variant, name), NO_POINTS) for name in (own, *CONTROLS)}
            controls = {name: of[name] for name in CONTROLS}
            curves.append(seed_curve(f"{each.label} [{own}]", each.look, of[own], controls=controls))
        shown.append(Panel(known[variant], curves, title_of(metric.removeprefix("filter_out_"))))
    title = f"{about} (thick: own confidence, dotted: random, dashed thin: oracle; band: SD)"
    x = "least confident images removed, %"
    return curve_figure(shown, x=x, title=title, columns=len(known), most=FEW, share_y="row")


def draw(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield a filter-out figure of the clean test images, and one per corruption."""
    for name, split in splits_of(source, dataset).items():
        rows = curve_points(source.results, dataset, split)
        if rows.empty:
            note(f"{dataset}, {name}: no filter-out curves")
            continue
        figure = filtered_figure(list(labelled(rows)), f"{dataset}, {images_of(split)}")
        shown = rows["confidence"].isin(CONTROLS) | (rows["confidence"].astype(object) == rows["default_confidence"])
        yield Drawing(f"filter_out_{dataset}_{name}", figure, rows[shown][list(COLUMNS)])


def risk_table(results: Results, dataset: str, split: str) -> pd.DataFrame:
    """Table of the risk-coverage curves of every test, by each confidence, under the method's own scorer.

    ``coverage`` is the share of the queries that is kept, the most confident ones, and ``risk`` 1 minus their Recall@1.
    """
    rows = curve_points(results, dataset, split)
    rows = rows[(rows["metric"] == CURVES[1]) & (rows["variant"] == "query_only")]
    table = rows[[*KEYS, "default_confidence", "confidence"]].assign(
        kind=rows["confidence"].map(kind_of), coverage=1 - rows["fraction"], risk=1 - rows["value"]
    )
    return table.reset_index(drop=True)


def risk_figure(table: pd.DataFrame, title: str) -> Figure:
    """Plot risk against coverage, one panel per contender, means over seeds, with a look for each confidence.

    Of more than :data:`FEW` contenders, only :data:`BRIEF` are shown next to the default confidence, and the default
    confidences of all others behind them.
    """
    percent = table.assign(coverage=100 * table["coverage"], risk=100 * table["risk"])
    contenders = list(labelled(percent))
    points = seed_points(contenders, ["confidence"], "coverage", "risk")
    brief = len(contenders) > FEW
    names = sorted(set(table["confidence"]), key=lambda name: (kind_of(name), name))
    looks = {name: _look(name, place) for place, name in enumerate(names)}

    def risk(each: Shown, name: str, label: str, look: Look) -> Curve:
        return seed_curve(label, look, points.get((each.number, name), NO_POINTS), band=False)

    first = Look(PALETTE[0], "o")
    own = {each.number: risk(each, _default(each), "default confidence (image)", first) for each in contenders}
    order = sorted(own, key=lambda number: abs(own[number].mean))[:MOST_CURVES]  # without values last
    shown = []
    for each in (each for each in contenders if each.number in order):
        others = [name for name in names if name != _default(each) and (not brief or name in BRIEF)]
        curves = [risk(each, name, f"{name} ({kind_of(name)})", looks[name]) for name in others]
        rest = [curve for number, curve in own.items() if number != each.number] if brief else []
        y = f"their {title_of('recall_at_1')} errors, %"
        shown.append(Panel(f"{each.label}\n[{_default(each)}]", [own[each.number], *curves], y, rest))
    if brief:
        few = len(shown) < len(contenders)
        title += f"; grey: {f'all but the {len(shown)} of the lowest mean risk' if few else 'all others'}"
    return curve_figure(shown, x="most confident queries kept, %", title=title, columns=2, most=len(names) + 1)


def _look(name: str, place: int) -> Look:
    colour = {"retrieval": "0.3", "control": "0.6"}.get(kind_of(name), PALETTE[0])
    return Look(colour, "", CONTROLS.get(name, LINES[place % len(LINES)]))


def _default(shown: Shown) -> str:
    return str(shown.rows["default_confidence"].iloc[0])


def draw_risk(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield a figure of risk-coverage curves for the clean test images, and one per corruption."""
    for name, split in splits_of(source, dataset).items():
        table = risk_table(source.results, dataset, split)
        if table.empty:
            note(f"{dataset}, {name}: no filter-out curves, of which risk and coverage are read")
            continue
        figure = risk_figure(table, f"{dataset}, {images_of(split)}: risk and coverage")
        yield Drawing(f"risk_coverage_{dataset}_{name}", figure, table)
