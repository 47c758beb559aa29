"""Figures of theory (Kirchhof et al. 2022, Fig. 2, 3, 8): densities on the sphere, distances, the vMF's normaliser."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.distributions import Distribution

from ...methods.distributions.bessel import vmf_log_normalizer
from ...methods.distributions.non_isotropic import NonIsotropicVonMisesFisher
from ...methods.distributions.von_mises_fisher import VonMisesFisher
from ...methods.nivmf_losses import distance_logits, quadratic_log_normalizer
from ...methods.vmf_loss import surrogate_log_normalizer
from .curves import Curve, Panel, curve_figure
from .source import Drawing
from .style import FULL_PAGE, LINES, PALETTE, Look, panels

CONCENTRATION = 20.0
"""Concentration of the vMF in the paper's figure."""
CONCENTRATIONS = (20.0, 5.0, 50.0)
"""Concentrations of the non-isotropic vMF in the paper's figure; the circle has the first two."""


def distributions(dim: int) -> dict[str, Distribution]:
    """The distributions of Fig. 2 of Kirchhof et al. (2022) by title: a vMF and two non-isotropic vMFs (nivMF).

    The nivMFs differ in the normaliser: that of the paper's Eq. 4, and the exact one. The mean direction mu of all
    three is the diagonal (1, .., 1) / sqrt(dim), on the circle (2) or the sphere (3).
    """
    mode = torch.ones(dim, dtype=torch.float64) / math.sqrt(dim)
    axes = torch.tensor(CONCENTRATIONS[:dim], dtype=torch.float64)
    k = torch.tensor(CONCENTRATION, dtype=torch.float64)
    return {
        "vMF": VonMisesFisher(mode, k, validate_args=False),
        "nivMF, Eq. 4": NonIsotropicVonMisesFisher(mode, axes, "heuristic", validate_args=False),
        "nivMF, exact": NonIsotropicVonMisesFisher(mode, axes, "exact", validate_args=False),
    }


def _on_circle(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], -1)


def sphere_integral(distribution: Distribution, order: int = 400) -> float:
    """Integral of a density over the unit sphere, by Gauss-Legendre nodes in the height and equal steps around it.

    Example:
        >>> round(sphere_integral(distributions(3)["vMF"]), 9)
        1.0
    """
    nodes, weights = (torch.from_numpy(values) for values in np.polynomial.legendre.leggauss(order))
    around = _on_circle(torch.arange(2 * order, dtype=torch.float64) * (math.pi / order))
    flat = (1 - nodes.square()).sqrt()[:, None, None] * around
    points = torch.cat([flat, nodes[:, None, None].expand(-1, 2 * order, 1)], -1)
    return float((distribution.log_prob(points).exp().mean(1) * weights).sum() * 2 * math.pi)


def _densities(dim: int, points: Tensor, **places: Tensor) -> pd.DataFrame:
    found = {name: each.log_prob(points).exp() for name, each in distributions(dim).items()}
    tables = [pd.DataFrame({"distribution": name, **places, "density": density}) for name, density in found.items()]
    return pd.concat(tables, ignore_index=True).dropna()


def circle_table(steps: int = 720) -> pd.DataFrame:
    """Table of densities of a vMF and of non-isotropic vMFs on the circle, by the angle to mu in degrees."""
    away = torch.arange(steps, dtype=torch.float64) * (2 * math.pi / steps) - math.pi
    return _densities(2, _on_circle(away + math.pi / 4), angle=torch.rad2deg(away))


def sphere_table(pixels: int = 161) -> pd.DataFrame:
    """Table of densities of a vMF and of non-isotropic vMFs on the half of the sphere around their direction mu.

    Places are those of a square view along mu, which the sphere fills.
    """
    line = torch.linspace(-1, 1, pixels, dtype=torch.float64)
    y, x = torch.cartesian_prod(line, line).T
    height = (1 - x.square() - y.square()).where(x.square() + y.square() <= 1, torch.tensor(torch.nan)).sqrt()
    # Right and up are orthogonal to the mode (1, 1, 1); up has the third axis in it.
    view = torch.tensor([[-1.0, 1.0, 0.0], [-1.0, -1.0, 2.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    return _densities(3, torch.stack([x, y, height], -1) @ torch.nn.functional.normalize(view, dim=-1), x=x, y=y)


def densities() -> Drawing:
    """Draw vMF and non-isotropic vMF densities on the sphere, seen along mu, and on the circle."""
    sphere, circle = sphere_table(), circle_table()
    figure, axes = panels(4, 2, (FULL_PAGE / 2, 2.9))
    for axis, (name, distribution) in zip(axes, distributions(3).items()):
        _draw_map(axis, sphere[sphere["distribution"] == name], "x", "y", "density")
        parameters = f"κ = {CONCENTRATION:g}" if name == "vMF" else f"κ = {CONCENTRATIONS}".replace(".0", "")
        axis.set_title(f"{name}, {parameters}\nintegral over the sphere: {sphere_integral(distribution):.4g}")
        axis.set(xlabel="along (-1, 1, 0)", ylabel="along (-1, -1, 2)", aspect="equal")
    for (title, rows), line in zip(circle.groupby("distribution", sort=False), LINES):
        integral = rows["density"].mean() * 2 * math.pi
        axes[3].plot(rows["angle"], rows["density"], ls=line, label=f"{title} (integral {integral:.4g})")
    axes[3].set(xlabel="angle to mu, degrees", ylabel="density per radian", yscale="log", xlim=(-180, 180))
    axes[3].set_title(f"on the circle: κ = {CONCENTRATION:g} and κ = {CONCENTRATIONS[:2]}".replace(".0", ""))
    axes[3].legend(loc="lower center")
    table = pd.concat([sphere.assign(on="sphere"), circle.assign(on="circle")], ignore_index=True)
    return Drawing("densities", figure, table[["on", "distribution", "x", "y", "angle", "density"]])


def _draw_map(axis: Axes, rows: pd.DataFrame, x: str, y: str, value: str) -> None:
    values = rows.pivot(index=y, columns=x, values=value)
    drawn = axis.contourf(values.columns, values.index, values, levels=14, cmap="viridis")
    axis.figure.colorbar(drawn, ax=axis, shrink=0.9)


PROXY = 10.0
"""Norm of the proxy, as in the paper."""
DISTANCE_DIM = 512
"""Dimension, which only the distance between distributions depends on."""
DISTANCES = {"cosine": "cosine", "l2": "squared Euclidean", "b_vmf": "Bhattacharyya, vMF"}
"""Distances with their titles: two to a point, one between distributions."""


def distance_table(largest: float = 30.0, points: int = 61) -> pd.DataFrame:
    """Table of distances between images and a proxy over a grid of image norms and cosines to the proxy.

    The distances are the negated cosine, the squared Euclidean distance, and the Bhattacharyya distance between vMFs
    whose concentrations are the norms. The norm of the proxy is :data:`PROXY`.
    """
    norms = torch.linspace(largest / points, largest, points, dtype=torch.float64)
    norm, cosine = torch.cartesian_prod(norms, torch.linspace(-1, 1, points, dtype=torch.float64)).T
    raw = torch.zeros(len(norm), DISTANCE_DIM, dtype=torch.float64)
    raw[:, :2] = torch.stack([norm * cosine, norm * (1 - cosine.square()).sqrt()], 1)
    proxy, concentration = torch.eye(1, DISTANCE_DIM, dtype=torch.float64), torch.tensor([PROXY], dtype=torch.float64)
    values = {name: -distance_logits(name, raw, proxy, concentration, 1.0).squeeze(1) for name in DISTANCES}
    tables = [pd.DataFrame({"distance": k, "norm": norm, "cosine": cosine, "value": v}) for k, v in values.items()]
    return pd.concat(tables, ignore_index=True)


def distances() -> Drawing:
    """Draw contours of three distances over the norm of the image and its cosine to the proxy."""
    table = distance_table()
    figure, axes = panels(len(DISTANCES), len(DISTANCES), (FULL_PAGE / 3, 2.4), sharey=True)
    for axis, (name, title) in zip(axes, DISTANCES.items()):
        _draw_map(axis, table[table["distance"] == name], "norm", "cosine", "value")
        axis.axvline(PROXY, color="w", lw=1, ls="--")
        axis.set(title=title, xlabel="norm of the image", ylabel="cosine to the proxy")
    figure.suptitle(f"Distance to a proxy of norm {PROXY:g} (dashed); D = {DISTANCE_DIM}")
    return Drawing("distances", figure, table)


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
            values = {"concentration": k.detach(), "log_normaliser": log, "change": change}
            values |= {"error": change - (exact - exact[0]), "slope": slope}
            tables.append(pd.DataFrame({"dim": dim, "approximation": name, **values}))
    return pd.concat(tables, ignore_index=True)


def normalisers() -> Drawing:
    """Draw the vMF's log normaliser in three dimensions: its change from k = 0, error and slope."""
    table = normaliser_table()
    rows = {"change": "log C(κ) - log C(0), nats", "error": "error, nats", "slope": "slope, nats per unit of κ"}
    looks = {name: Look(PALETTE[place], "", LINES[place]) for place, name in enumerate(APPROXIMATIONS)}
    shown = []
    for column, dim in product(rows, DIMS):
        of_dim = table[table["dim"] == dim].set_index("concentration").groupby("approximation")[column]
        found = {str(name): values for name, values in of_dim}
        curves = [Curve(name, looks[name], of.index.to_numpy(), of.to_numpy()) for name, of in found.items()]
        shown.append(Panel(f"D = {dim}", curves, rows[column]))
    title = "Log normaliser of the vMF (grey: where the quadratic was fitted, for D = 128 and 512)"
    figure = curve_figure(shown, x="concentration κ", title=title, share_y="row")
    for axis in figure.axes:
        axis.axvspan(*FITTED, color="0.85", lw=0, zorder=0)
    figure.axes[3].set_yscale("symlog", linthresh=0.01, linscale=0.5)
    figure.axes[3].set_yticks([-100, -1, 0, 1, 100])
    return Drawing("normalisers", figure, table)
