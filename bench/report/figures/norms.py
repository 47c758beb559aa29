"""Norms of embeddings, split by whether the nearest neighbour is right, in the model itself or in another one.

Kirchhof et al. (2022, Fig. 9) split the norms of EL-nivMF by the answers of a deterministic model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...protocols.confidence import confidence_auroc
from ...protocols.metrics import title_of
from .contenders import each_contender
from .source import Drawing, Note, Source
from .style import FULL_PAGE, RIGHT, WRONG, panels
from .tested import TestedModel

BINS = 30


def norms_table(source: Source, dataset: str, note: Note) -> pd.DataFrame:
    """Table of the norm of every query before normalisation, and its Recall@1 under the cosine, for every tested model.

    Queries without a positive in the gallery are left out.
    """
    tables = []
    for model in source.models(dataset, note):
        if "norm" not in model.confidence:
            note(f"{dataset}, {model.label}, seed {model.seed}: no norms were kept when it was tested; test it again")
            continue
        columns = {**model.columns, "label": model.label, "index": model.index}
        columns["probabilistic"] = model.record.role.probabilistic
        tables.append(_norms(model).assign(**columns))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _norms(model: TestedModel) -> pd.DataFrame:
    rows = model.queries.tolist()
    norm = model.confidence["norm"][model.queries].double()
    table = pd.DataFrame({"id": [model.ids[row] for row in rows], "norm": norm, "right": model.right})
    return table[table["right"].notna()]


def reference_of(table: pd.DataFrame, method: str) -> int | None:
    """Number of the contender whose answers divide queries into right and wrong for every model; None if there is none.

    It is of the given method, or of any deterministic one; of several, the one with the highest Recall@1.
    """
    rows = table[table["method"] == method] if method else table[~table["probabilistic"].astype(bool)]
    if rows.empty:
        return None
    answers = {index: float(own["right"].mean()) for index, _, _, own in each_contender(rows)}
    return max(answers, key=answers.__getitem__)


def split_by(table: pd.DataFrame, reference: int) -> pd.DataFrame:
    """Replace ``right``, the Recall@1 of a query, in all rows by the value that a reference has for the same query.

    The value is that of the row's own seed, or of the reference's first seed if the reference lacks that seed.
    """
    theirs = table[table["index"] == reference]
    first = theirs["seed"].min()
    seeds = table["seed"].where(table["seed"].isin(set(theirs["seed"])), first)
    answers = theirs.set_index(["seed", "id"])["right"]
    right = answers.reindex(pd.MultiIndex.from_arrays([seeds, table["id"]])).to_numpy()
    return table.assign(right=right).dropna(subset="right")


def norms_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Table of the mean norm of right and of wrong queries per contender and seed, and how it tells them apart."""
    lines = []
    groups = (
        (each.number, each.label, rows)
        for each in each_contender(table)
        for _, rows in each.rows.groupby("seed", sort=True)
    )
    for index, label, rows in groups:
        norm, right = (torch.from_numpy(rows[name].to_numpy(float).copy()) for name in ("norm", "right"))
        mean_right, mean_wrong = (_weighted_mean(norm, weight) for weight in (right, 1 - right))
        lines.append((index, label, rows["seed"].iloc[0], mean_right, mean_wrong, confidence_auroc(norm, right)))
    return pd.DataFrame(lines, columns=["index", "label", "seed", "mean_right", "mean_wrong", "auroc"])


def _weighted_mean(values: torch.Tensor, weight: torch.Tensor) -> float:
    return float((values * weight).sum() / weight.sum()) if weight.sum() > 0 else math.nan


def norms_figure(table: pd.DataFrame, title: str) -> Figure:
    """Plot histograms of the norms of right and of wrong queries of the first seed, one panel per contender.

    The title of a panel has the AUROC of telling right from wrong queries by the norm, the mean over seeds.
    """
    summary = norms_summary(table)
    groups = [(shown.label, shown.rows) for shown in each_contender(table)]
    columns = 3 if len(groups) > 4 else 2
    figure, axes = panels(len(groups), columns, (0.95 * FULL_PAGE / columns, 2.2))
    for axis, (label, rows) in zip(axes, groups):
        auroc = summary[summary["label"] == label]["auroc"]
        first = rows[rows["seed"] == rows["seed"].min()]
        _draw_histograms(axis, first)
        axis.set_title(f"{label}\nAUROC of the norm: {auroc.mean():.2f}")
        axis.set_xlabel("norm of the raw embedding")
    for axis in axes[::columns]:
        axis.set_ylabel("share of queries per bin, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(title)
    return figure


def _draw_histograms(axis: Axes, rows: pd.DataFrame) -> None:
    norm, right = rows["norm"].to_numpy(), rows["right"].to_numpy()
    edges = np.linspace(norm.min(), norm.max() if norm.max() > norm.min() else norm.min() + 1, BINS + 1).tolist()
    for weight, colour, name in ((right, RIGHT, "right"), (1 - right, WRONG, "wrong")):
        total = weight.sum()
        shares = 100 * weight / total if total > 0 else weight
        text = f"{title_of('recall_at_1')} {name}"
        axis.hist(norm, edges, weights=shares, color=colour, alpha=0.25)
        axis.hist(norm, edges, weights=shares, color=colour, histtype="step", lw=1.4, label=text)


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield two figures of embedding norms per data set, each split into queries answered right and wrong.

    The first is split by the answers of the model itself, the second by those of one reference (:func:`reference_of`).
    """
    for dataset in source.datasets:
        table = norms_table(source, dataset, note)
        if table.empty:
            continue
        extra = ["index", "probabilistic"]
        title = f"{dataset}: norms of test embeddings, by the model's own answers"
        yield Drawing(f"norms_{dataset}", norms_figure(table, title), table.drop(columns=extra))
        reference = reference_of(table, source.reference)
        if reference is None:
            missing = f"of {source.reference!r}" if source.reference else "of a deterministic method"
            note(f"{dataset}: no test {missing}, by whose answers norms could be split")
            continue
        label = str(table[table["index"] == reference]["label"].iloc[0])
        split = split_by(table, reference)
        title = f"{dataset}: norms of test embeddings, by the answers of {label}"
        yield Drawing(f"norms_{dataset}_by_reference", norms_figure(split, title), split.drop(columns=extra))
