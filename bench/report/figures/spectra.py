"""Sorted singular values of test embeddings (Milbich et al. 2022, NIR, Fig. 4; Roth et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from ...protocols.structure import singular_spectrum, spectral_decay
from .contenders import each_contender
from .curves import contender_figure, mean_curve
from .source import Drawing, Note, Source


def spectra_table(source: Source, dataset: str, note: Note) -> pd.DataFrame:
    """Table of the singular values of the L2-normalised test embeddings of every tested model, divided by their sum.

    The largest, number 1, is left out. ``spectral_decay`` is that of the model, in nats, lower = flatter.
    """
    tables = []
    for model in source.models(dataset, note):
        values = singular_spectrum(model.unit_vectors)
        columns = {**model.columns, "label": model.label, "index": model.index}
        decay = spectral_decay(model.unit_vectors)
        numbers = range(2, len(values) + 2)
        tables.append(
            pd.DataFrame({"number": numbers, "singular_value": values}).assign(**columns, spectral_decay=decay)
        )
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


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


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield one figure of the sorted singular values of test embeddings per data set."""
    for dataset in source.datasets:
        table = spectra_table(source, dataset, note)
        if len(table):
            yield Drawing(f"spectra_{dataset}", spectra_figure(table, dataset), table.drop(columns="index"))
