"""Figures of test embeddings: singular values, and norms by right and wrong answers, in the model or in another one.

The first are after Milbich et al. (2022, NIR, Fig. 4) and Roth et al. (2020). Kirchhof et al. (2022, Fig. 9) split the
norms of EL-nivMF by the answers of a deterministic model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from ...protocols.confidence import confidence_auroc
from ...protocols.metrics import title_of
from ...protocols.structure import singular_spectrum, spectral_decay
from .curves import contender_figure, legend_below, seed_curve
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

    return tabulated(source, dataset, note, tabulate)


def draw_spectra(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure of the sorted singular values of test embeddings, mean and SD over seeds."""
    table = spectra_table(source, dataset, note)
    if table.empty:
        return
    table["spectral_decay"] = table.pop("spectral_decay")  # the last column
    decay = table.groupby(["index", "seed"])["spectral_decay"].first().groupby("index").mean()
    curves = [
        seed_curve(f"{label} (decay {decay[index]:.2f})", look, rows, "number", "singular_value")
        for index, label, look, rows in each_contender(table)
    ]
    title, x = f"{dataset}, test embeddings (band: SD over seeds)", "number of the singular value"
    figure = contender_figure(curves, x=x, y="share of their sum", title=title, yscale="log")
    yield Drawing(f"spectra_{dataset}", figure, table)


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
    answers: dict[Any, float] = rows.groupby("index")["right"].mean().to_dict()
    return max(answers, key=answers.__getitem__, default=None)


def split_by(table: pd.DataFrame, reference: int) -> pd.DataFrame:
    """Replace ``right``, the Recall@1 of a query, in all rows by the value that a reference has for the same query.

    The value is that of the row's own seed, or of the reference's first seed if the reference lacks that seed.
    """
    theirs = table[table["index"] == reference]
    seeds = table["seed"].where(table["seed"].isin(set(theirs["seed"])), theirs["seed"].min())
    answers = theirs.set_index(["seed", "id"])["right"]
    right = answers.reindex(pd.MultiIndex.from_arrays([seeds, table["id"]])).to_numpy()
    return table.assign(right=right).dropna(subset="right")


def aurocs_of_norm(rows: pd.DataFrame) -> list[float]:
    """How well the norm tells right from wrong queries, by seed of a contender."""
    tables = [torch.tensor(own[["norm", "right"]].to_numpy(float)) for _, own in rows.groupby("seed", sort=True)]
    return [float(confidence_auroc(*table.T)) for table in tables]


def norms_figure(table: pd.DataFrame, title: str) -> Figure:
    """Plot histograms of the norms of right and of wrong queries of the first seed, one panel per contender.

    The title of a panel has the AUROC of telling right from wrong queries by the norm, the mean over seeds.
    """
    contenders = list(each_contender(table))
    columns = 3 if len(contenders) > 4 else 2
    figure, axes = panels(len(contenders), columns, (0.95 * FULL_PAGE / columns, 2.2))
    for axis, (_, label, _, rows) in zip(axes, contenders):
        first = rows[rows["seed"] == rows["seed"].min()]
        edges = np.histogram_bin_edges(first["norm"], BINS).tolist()
        for weight, colour, name in ((first["right"], RIGHT, "right"), (1 - first["right"], WRONG, "wrong")):
            shares = 100 * weight / max(weight.sum(), 1e-12)
            text = f"{title_of('recall_at_1')} {name}"
            axis.hist(first["norm"], edges, weights=shares, color=colour, alpha=0.25)
            axis.hist(first["norm"], edges, weights=shares, color=colour, histtype="step", lw=1.4, label=text)
        axis.set_title(f"{label}\nAUROC of the norm: {pd.Series(aurocs_of_norm(rows)).mean():.2f}")
        axis.set(xlabel="norm of the raw embedding", ylabel="share of queries per bin, %")
    legend_below(figure, axes)
    figure.suptitle(title)
    return figure


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
