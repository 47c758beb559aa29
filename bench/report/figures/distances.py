"""Distances of an image to a proxy by its norm and its direction (Kirchhof et al. 2022, Fig. 3)."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import torch

from ...methods.nivmf_losses import distance_logits
from .source import Drawing, Note, Source
from .style import FULL_PAGE, panels

PROXY = 10.0
"""Norm of the proxy, as in the paper."""
DIM = 512
"""Dimension, which only the distance between distributions depends on."""
SHOWN = {"cosine": "cosine", "l2": "squared Euclidean", "b_vmf": "Bhattacharyya, vMF"}
"""Distances with their titles: two to a point, one between distributions."""


def distance_table(largest: float = 30.0, points: int = 61) -> pd.DataFrame:
    """Table of distances between images and a proxy over a grid of image norms and cosines to the proxy.

    The distances are the negated cosine, the squared Euclidean distance, and the Bhattacharyya distance between vMFs
    whose concentrations are the norms. The norm of the proxy is :data:`PROXY`.
    """
    norms = torch.linspace(largest / points, largest, points, dtype=torch.float64)
    cosines = torch.linspace(-1, 1, points, dtype=torch.float64)
    norm, cosine = (grid.reshape(-1) for grid in torch.meshgrid(norms, cosines, indexing="ij"))
    raw = torch.zeros(len(norm), DIM, dtype=torch.float64)
    raw[:, 0] = norm * cosine
    raw[:, 1] = norm * (1 - cosine.square()).sqrt()
    proxy = torch.zeros(1, DIM, dtype=torch.float64)
    proxy[0, 0] = 1.0
    concentration = torch.tensor([PROXY], dtype=torch.float64)
    tables = [
        pd.DataFrame(
            {
                "distance": name,
                "norm": norm,
                "cosine": cosine,
                "value": -distance_logits(name, raw, proxy, concentration, 1.0).squeeze(1),
            }
        )
        for name in SHOWN
    ]
    return pd.concat(tables, ignore_index=True)


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield the figure with contours of three distances over the norm of the image and its cosine to the proxy."""
    table = distance_table()
    figure, axes = panels(len(SHOWN), len(SHOWN), (FULL_PAGE / 3, 2.4), share_y=True)
    for axis, (name, title) in zip(axes, SHOWN.items()):
        values = table[table["distance"] == name].pivot(index="cosine", columns="norm", values="value")
        drawn = axis.contourf(values.columns, values.index, values.to_numpy(), levels=14, cmap="viridis")
        axis.axvline(PROXY, color="w", lw=1, ls="--")
        axis.set(title=title, xlabel="norm of the image")
        figure.colorbar(drawn, ax=axis, shrink=0.9)
    axes[0].set_ylabel("cosine to the proxy")
    figure.suptitle(f"Distance to a proxy of norm {PROXY:g} (dashed); D = {DIM}")
    yield Drawing("distances", figure, table)
