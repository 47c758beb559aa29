"""Figure of test embeddings: singular values (Milbich et al. 2022, NIR, Fig. 4; Roth et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from ...protocols.structure import singular_spectrum, spectral_decay
from .curves import Panel, curve_figure, seed_curve, seed_points
from .source import Drawing, Note, Source, labelled


def spectra_table(source: Source, dataset: str, note: Note) -> pd.DataFrame:
    """Table of the singular values of the L2-normalised test embeddings of every tested model, divided by their sum.

    The largest, number 1, is left out. ``spectral_decay`` is that of the model, in nats, lower = flatter.
    """
    tables = [pd.DataFrame()]
    for model in source.models(dataset, note):
        values = singular_spectrum(model.unit_vectors)
        columns = {"number": range(2, len(values) + 2), "singular_value": values, **model.identity}
        tables.append(pd.DataFrame(columns | {"spectral_decay": spectral_decay(model.unit_vectors)}))
    return pd.concat(tables, ignore_index=True)


def draw_spectra(source: Source, dataset: str, note: Note) -> Iterator[Drawing]:
    """Yield one figure of the sorted singular values of test embeddings, mean and SD over seeds."""
    table = spectra_table(source, dataset, note)
    if table.empty:
        return
    contenders = list(labelled(table))
    points = seed_points(contenders, [], "number", "singular_value")
    decay = [each.rows.groupby("seed")["spectral_decay"].first().mean() for each in contenders]
    curves = [
        seed_curve(f"{label} (decay {own:.2f})", look, points[number,])
        for (number, label, look, _), own in zip(contenders, decay)
    ]
    title, x = f"{dataset}, test embeddings (band: SD over seeds)", "number of the singular value"
    figure = curve_figure([Panel("", curves, "share of their sum")], x=x, title=title, yscale="log")
    yield Drawing(f"spectra_{dataset}", figure, table)
