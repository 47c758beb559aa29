"""Reliability of "the top-1 answer is right": its probability, from a confidence, against the share of right answers.

A confidence has any scale. It becomes a probability by an isotonic calibration, fitted on the queries of half of the
test classes and applied to those of the other half, and the other way round. The calibration error in tables, fitted on
validation classes, is larger: it contains the shift from these classes to the test classes.

Answers are those of the method's own scorer. Every seed is calibrated on its own; a figure pools the queries of all
seeds.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from ...engine.rescoring import trained_options
from ...methods.scorers.registry import get_scorer
from ...protocols.calibration import expected_calibration_error, fit_isotonic
from ...protocols.rows import MARGIN
from ...site import Site
from .curves import MOST_PANELS, small_panels
from .source import Drawing, Missing, Note, Shown, Source, each_contender, tabulated
from .style import HALF_PAGE
from .tested import TestedModel

BINS = 10
"""Bins of equal width of the probability."""
LINKED = 0.01
"""Smallest share of the queries of a bin that is linked to the next: a few queries are right or wrong by chance."""


def crossed_probability(confidence: Tensor, right: Tensor, labels: Tensor) -> Tensor:
    """Probability that each answer is right, float64 ``[Q]``, by an isotonic calibration on other classes.

    The classes are halved by their order: every other class is in the same half.

    Example:
        >>> values = torch.tensor([1.0, 2.0, 1.0, 2.0])
        >>> crossed_probability(values, torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 7, 7])).tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    _, number = torch.unique(labels, return_inverse=True)
    half = number % 2 == 0
    probability = torch.empty(len(labels), dtype=torch.float64)
    for fitted, judged in ((half, ~half), (~half, half)):
        probability[judged] = fit_isotonic(confidence[fitted], right[fitted])(confidence[judged])
    return probability


def reliability_table(model: TestedModel) -> pd.DataFrame:
    """Table of the mean probability and the share of right answers in bins of the probability, by confidence.

    An answer is right if the nearest neighbour by the scorer of the model has the class of the query. Queries without a
    positive in the gallery are left out. ``ece`` is the expected calibration error over the :data:`BINS` bins.
    """
    counted = ~model.right.isnan()
    rows, right = model.queries[counted], model.right[counted]
    labels = model.labels[rows]
    if len(torch.unique(labels)) < 2:
        raise Missing("calibration needs queries of two classes, each with a positive")
    own = model.record.role.default_confidence
    confidences = {own: model.confidence[own][rows]} if own in model.confidence else {}
    confidences[MARGIN] = model.margin[counted]
    tables = []
    for name, values in confidences.items():
        p = crossed_probability(values, right, labels)
        place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], p.numpy(), side="left")
        table = pd.DataFrame({"bin": place, "probability": p.numpy(), "right": right.numpy()}).groupby("bin")
        means = table.mean().assign(queries=table.size()).reset_index()
        tables.append(means.assign(confidence=name, ece=expected_calibration_error(p, right, BINS)))
    return pd.concat(tables, ignore_index=True)


def pooled(table: pd.DataFrame) -> pd.DataFrame:
    """Bins of all seeds of each contender and confidence taken together; ``ece`` is the mean over seeds."""
    keys = [name for name in table if name not in ("seed", "queries", "probability", "right", "ece")]
    sums = table.assign(**{name: table[name] * table["queries"] for name in ("probability", "right")})
    found = sums.groupby(keys, sort=False, dropna=False)[["queries", "probability", "right"]].sum().reset_index()
    found[["probability", "right"]] = found[["probability", "right"]].div(found["queries"], axis=0)
    per_seed = table.groupby(["index", "confidence", "seed"])["ece"].first()
    means = per_seed.groupby(["index", "confidence"]).mean().rename("ece")
    return found.merge(means.reset_index(), on=["index", "confidence"])


def reliability_figure(table: pd.DataFrame, dataset: str) -> Figure:
    """Plot the share of right answers against their probability, all seeds pooled, one panel per contender.

    The default confidence of the image has the look of the method, the margin is dark grey. The area of a marker grows
    with the share of the queries in its bin; bins of less than :data:`LINKED` are points off the line. The title of a
    panel has the calibration error of both in percent, the mean over seeds.
    """
    seeds = table["seed"].nunique()
    contenders = list(each_contender(pooled(table)))[:MOST_PANELS]
    titles = [_title(shown) for shown in contenders]
    x, y = "probability that the answer is right", "share of right answers"
    which = f"queries of {seeds} seeds pooled, ECE: mean over seeds" if seeds > 1 else "one seed"
    title = (
        f"{dataset}: reliability of the top-1 answer by the method's own scorer\ncalibrated on other classes; {which}"
    )
    if len(contenders) == 1:
        figure = Figure(figsize=(HALF_PAGE, 4.2), layout="constrained")
        axes = [figure.subplots()]
        axes[0].set(xlabel=x, ylabel=y)
        axes[0].set_title(titles[0], fontsize=8)
        figure.suptitle(textwrap.fill(title, 55))
    else:
        figure, panels = small_panels(titles, x="", y=y, title=title)
        axes = list(panels)
    for axis, shown in zip(axes, contenders):
        _draw_panel(axis, shown)
    kinds = (("k", "o", "default confidence (image)"), (_GREY, ".", f"{MARGIN} (retrieval)"))
    handles = [Line2D([], [], color=colour, marker=marker, label=text) for colour, marker, text in kinds]
    below = x if len(axes) > 1 else None
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, title=below, title_fontsize=9)
    return figure


_GREY = "0.4"


def _title(shown: Shown) -> str:
    errors = shown.rows.groupby("confidence", sort=False)["ece"].first()
    text = ", ".join(f"{name} {100 * error:.1f}" for name, error in errors.items())
    return f"{shown.label}\nECE, %: {text}"


def _draw_panel(axis: Axes, shown: Shown) -> None:
    axis.plot([0, 1], [0, 1], ls=":", lw=0.8, color="0.5")
    for name, rows in shown.rows.groupby("confidence", sort=False):
        own = name != MARGIN
        colour, marker = (shown.look.colour, shown.look.marker) if own else (_GREY, "o")
        large = rows[rows["queries"] >= LINKED * rows["queries"].sum()]
        axis.plot(large["probability"], large["right"], lw=1.2 if own else 0.9, color=colour)
        area = 4 + 60 * rows["queries"] / rows["queries"].sum()
        axis.scatter(rows["probability"], rows["right"], area, color=colour, marker=marker, lw=0)
    axis.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))


def draw(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure of the reliability of the top-1 answer, of all seeds of each contender."""
    table = tabulated(source, dataset, note, lambda model: reliability_table(_by_own_scorer(model, source.site)))
    if len(table):
        yield Drawing(f"reliability_{dataset}", reliability_figure(table, dataset), table)


def _by_own_scorer(model: TestedModel, site: Site) -> TestedModel:
    """The model with the answers of its method's own scorer."""
    name = model.record.role.primary_scorer
    wanted = get_scorer(name).options
    options: dict[str, float] = {}
    if wanted:
        options = trained_options(model.record.trained_cell, model.record.spec.train[0], site)
    if not set(wanted) <= options.keys():
        raise Missing(f"the trained parameters of its scorer {name} are not there")
    return replace(model, scorer=name, options=options)
