"""Figures of test embeddings: singular values, and norms by right and wrong answers, in the model or in another one.

The first are after Milbich et al. (2022, NIR, Fig. 4) and Roth et al. (2020). Kirchhof et al. (2022, Fig. 9) split the
norms of EL-nivMF by the answers of a deterministic model.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...protocols.confidence import confidence_auroc
from ...protocols.metrics import title_of
from ...protocols.structure import singular_spectrum, spectral_decay
from .curves import contender_figure, mean_curve
from .source import Drawing, Missing, Note, Source, each_contender, tabulated
from .style import FULL_PAGE, RIGHT, WRONG, panels
from .tested import TestedModel

BINS = 30
"""Bins of the histograms of norms."""


def spectra_table(source: Source, dataset: str, note: Note) -> pd.DataFrame:
    """Table of the singular values of the L2-normalised test embeddings of every tested model, divided by their sum.

    The largest, number 1, is left out. ``spectral_decay`` is that of the model, in nats, lower = flatter.
    """

    def tabulate(model: TestedModel) -> pd.DataFrame:
        values = singular_spectrum(model.unit_vectors)
        columns = {"number": range(2, len(values) + 2), "singular_value": values}
        return pd.DataFrame({**columns, "spectral_decay": spectral_decay(model.unit_vectors)})

    table = tabulated(source, dataset, note, tabulate)
    return table if table.empty else table.assign(spectral_decay=table.pop("spectral_decay"))


def spectra_figure(table: pd.DataFrame, dataset: str) -> Figure:
    """Plot singular values on a log scale, mean and SD over seeds, one curve per contender."""
    curves = []
    for _, label, look, rows in each_contender(table):
        curve = rows.groupby("number")["singular_value"].agg(["mean", "std"])
        decay = rows.groupby("seed")["spectral_decay"].first().mean()
        curves.append(mean_curve(f"{label} (decay {decay:.2f})", look, curve, curve.index.to_numpy()))
    return contender_figure(
        curves,
        x="number of the singular value",
        y="share of their sum",
        title=f"{dataset}, test embeddings (band: SD over seeds)",
        y_scale="log",
    )


def draw_spectra(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure of the sorted singular values of test embeddings."""
    table = spectra_table(source, dataset, note)
    if len(table):
        yield Drawing(f"spectra_{dataset}", spectra_figure(table, dataset), table)


def norms_table(source: Source, dataset: str, note: Note) -> pd.DataFrame:
    """Table of the norm of every query before normalisation, and its Recall@1 under the cosine, for every tested model.

    Queries without a positive in the gallery are left out.
    """

    def tabulate(model: TestedModel) -> pd.DataFrame:
        if "norm" not in model.confidence:
            raise Missing("no norms were kept when it was tested; test it again")
        norm = model.confidence["norm"][model.queries].double()
        names = [model.ids[row] for row in model.queries.tolist()]
        table = pd.DataFrame({"id": names, "norm": norm, "right": model.right})
        return table.assign(probabilistic=model.record.role.probabilistic).dropna(subset="right")

    return tabulated(source, dataset, note, tabulate)


def reference_of(table: pd.DataFrame, method: str) -> int | None:
    """Number of the contender whose answers divide queries into right and wrong for every model; None if there is none.

    It is of the given method, or of any deterministic one; of several, the one with the highest Recall@1.
    """
    rows = table[table["method"] == method] if method else table[~table["probabilistic"].astype(bool)]
    answers = {shown.number: float(shown.rows["right"].mean()) for shown in each_contender(rows)}
    return max(answers, key=answers.__getitem__, default=None)


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


def aurocs_of_norm(rows: pd.DataFrame) -> list[float]:
    """How well the norm tells right from wrong queries, by seed of a contender."""
    found = []
    for _, own in rows.groupby("seed", sort=True):
        norm, right = (torch.from_numpy(own[name].to_numpy(float).copy()) for name in ("norm", "right"))
        found.append(float(confidence_auroc(norm, right)))
    return found


def norms_figure(table: pd.DataFrame, title: str) -> Figure:
    """Plot histograms of the norms of right and of wrong queries of the first seed, one panel per contender.

    The title of a panel has the AUROC of telling right from wrong queries by the norm, the mean over seeds.
    """
    contenders = list(each_contender(table))
    columns = 3 if len(contenders) > 4 else 2
    figure, axes = panels(len(contenders), columns, (0.95 * FULL_PAGE / columns, 2.2))
    for axis, (_, label, _, rows) in zip(axes, contenders):
        _draw_histograms(axis, rows[rows["seed"] == rows["seed"].min()])
        axis.set_title(f"{label}\nAUROC of the norm: {pd.Series(aurocs_of_norm(rows)).mean():.2f}")
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


def draw_norms(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield two figures of embedding norms, each split into queries answered right and wrong.

    The first is split by the answers of the model itself, the second by those of one reference (:func:`reference_of`).
    """
    table = norms_table(source, dataset, note)
    if table.empty:
        return
    title = f"{dataset}: norms of test embeddings, by"
    figure = norms_figure(table, f"{title} the model's own answers")
    yield Drawing(f"norms_{dataset}", figure, table.drop(columns="probabilistic"))
    reference = reference_of(table, source.reference)
    if reference is None:
        missing = f"of {source.reference!r}" if source.reference else "of a deterministic method"
        note(f"{dataset}: no test {missing}, by whose answers norms could be split")
        return
    label = str(table[table["index"] == reference]["label"].iloc[0])
    split = split_by(table, reference)
    figure = norms_figure(split, f"{title} the answers of {label}")
    yield Drawing(f"norms_{dataset}_by_reference", figure, split.drop(columns="probabilistic"))
