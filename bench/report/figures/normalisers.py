"""Log normaliser of the vMF: exact, a quadratic fit, and integrated bounds (Kirchhof et al. 2022, Fig. 8).

A constant that all classes share cancels in a softmax, a slope does not. Each curve is therefore shown as its
change from its own value at 0, with its slope below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
import torch
from torch import Tensor

from ...methods.distributions.bessel import vmf_log_normalizer
from ...methods.nivmf_losses import quadratic_log_normalizer
from ...methods.vmf_loss import surrogate_log_normalizer
from .source import Drawing, Note, Source
from .style import FULL_PAGE, colour, panels

DIMS = (64, 128, 512)
"""Dimensions of the panels; the paper's fits are for 128 and 512, and any other dimension gets that of 512."""
TABLE_DIMS = (16, 32, 64, 128, 256, 512, 1024)
"""Dimensions of the table."""
FITTED = (10.0, 50.0)
"""Concentrations that the quadratic was fitted to."""
LARGEST = 400.0
"""Largest concentration shown."""


def amos_bound(k: Tensor, dim: int, upper: bool) -> Tensor:
    """Bound of the vMF's log normaliser log C(k), up to a constant, by integrating a bound of its slope.

    The slope of log C is -A, with A a ratio of Bessel functions. With nu = dim/2 - 1, Amos (1974, Eq. 11 and 16) has

        k / (nu + 1/2 + sqrt(k^2 + (nu + 3/2)^2)) <= A(k) <= k / (nu + 1/2 + sqrt(k^2 + (nu + 1/2)^2)),

    and the integral of k / (a + sqrt(k^2 + b^2)) is r - a log(a + r), r = sqrt(k^2 + b^2). To bound log C(k) - log C(0)
    from above (``upper``) takes the lower bound of A.
    """
    a = (dim - 1) / 2
    r = (k.square() + (a + 1.0 if upper else a) ** 2).sqrt()
    return a * (a + r).log() - r


APPROXIMATIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "exact": vmf_log_normalizer,
    "quadratic fit": quadratic_log_normalizer,
    "bound from above": lambda k, dim: amos_bound(k, dim, upper=True),
    "bound from below": lambda k, dim: amos_bound(k, dim, upper=False),
    "mean of the bounds": surrogate_log_normalizer,
}
"""log C(k), exact or approximate, some of them up to a constant, by the name in the legend."""


def normaliser_table(dims: tuple[int, ...] = TABLE_DIMS, points: int = 201) -> pd.DataFrame:
    """Table of the vMF's log normaliser: exact, a quadratic fit, upper and lower bound, and the mean of the bounds.

    ``error`` is that of the change from k = 0, in nats.
    """
    k = torch.linspace(0.0, LARGEST, points, dtype=torch.float64, requires_grad=True)
    tables = []
    for dim in dims:
        exact = vmf_log_normalizer(k, dim).detach()
        for name, function in APPROXIMATIONS.items():
            value = function(k, dim)
            (slope,) = torch.autograd.grad(value.sum(), k)
            log = value.detach()
            change = log - log[0]
            tables.append(
                pd.DataFrame(
                    {
                        "dim": dim,
                        "approximation": name,
                        "concentration": k.detach(),
                        "log_normaliser": log,
                        "change": change,
                        "error": change - (exact - exact[0]),
                        "slope": slope,
                    }
                )
            )
    return pd.concat(tables, ignore_index=True)


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield the figure of the vMF's log normaliser in three dimensions: its change from k = 0, error and slope."""
    table = normaliser_table()
    figure, axes = panels(9, 3, (FULL_PAGE / 3, 2.1))
    rows = (("change", "log C(κ) - log C(0), nats"), ("error", "error, nats"), ("slope", "slope, nats per unit of κ"))
    styles = ("-", "--", ":", ":", "-.")
    for line, (column, title) in enumerate(rows):
        for place, dim in enumerate(DIMS):
            axis = axes[3 * line + place]
            for index, name in enumerate(APPROXIMATIONS):
                if column == "error" and name == "exact":
                    continue
                curve = table[(table["dim"] == dim) & (table["approximation"] == name)]
                width = 2.4 if name == "exact" else 1.4
                axis.plot(
                    curve["concentration"], curve[column], styles[index], color=colour(index), lw=width, label=name
                )
            axis.axvspan(*FITTED, color="0.85", lw=0, zorder=0)
            if column == "error":
                axis.set_yscale("symlog", linthresh=0.01, linscale=0.5)
                axis.set_yticks([-100, -1, 0, 1, 100])
            if line == 0:
                axis.set_title(f"D = {dim}")
            if line == 2:
                axis.set_xlabel("concentration κ")
            if place == 0:
                axis.set_ylabel(title)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    figure.suptitle("Log normaliser of the vMF (grey: where the quadratic was fitted, for D = 128 and 512)")
    yield Drawing("normalisers", figure, table)
