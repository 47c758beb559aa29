"""Figures of theory (Kirchhof et al. 2022, Fig. 2, 3, 8): densities on the sphere, distances, the vMF's normaliser."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor
from torch.distributions import Distribution

from ...methods.distributions.bessel import vmf_log_normalizer
from ...methods.distributions.non_isotropic import NonIsotropicVonMisesFisher
from ...methods.distributions.von_mises_fisher import VonMisesFisher
from ...methods.nivmf_losses import distance_logits, quadratic_log_normalizer
from ...methods.vmf_loss import surrogate_log_normalizer
from .source import Drawing
from .style import FULL_PAGE, PALETTE, panels

CONCENTRATION = 20.0
"""Concentration of the vMF in the paper's figure."""
CONCENTRATIONS = (20.0, 5.0, 50.0)
"""Concentrations of the non-isotropic vMF in the paper's figure; the circle has the first two."""
PIXELS = 161
"""Points across the sphere."""
STEPS = 720
"""Points around the circle."""


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


def circle_points(steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """Equally spaced angles in [-pi, pi), ``[steps]``, and their points on the unit circle, float64 ``[steps, 2]``."""
    angle = torch.arange(steps, dtype=torch.float64) * (2 * math.pi / steps) - math.pi
    return angle, torch.stack([angle.cos(), angle.sin()], -1)


def sphere_integral(distribution: Distribution, order: int = 400) -> float:
    """Integral of a density over the unit sphere, by Gauss-Legendre nodes in the height and equal steps around it.

    Example:
        >>> round(sphere_integral(distributions(3)["vMF"]), 9)
        1.0
    """
    nodes, weights = (torch.from_numpy(values) for values in np.polynomial.legendre.leggauss(order))
    _, around = circle_points(2 * order)
    flat = (1 - nodes.square()).sqrt()[:, None, None] * around
    points = torch.cat([flat, nodes[:, None, None].expand(-1, 2 * order, 1)], -1)
    return float((distribution.log_prob(points).exp().mean(1) * weights).sum() * 2 * math.pi)


def _seen_from_mode(pixels: int) -> tuple[np.ndarray, Tensor]:
    """Coordinates ``[P]`` of a square view along the mode, and the points of the sphere there, nan outside of it."""
    line = torch.linspace(-1, 1, pixels, dtype=torch.float64)
    x, y = torch.meshgrid(line, line, indexing="xy")
    height = (1 - x.square() - y.square()).where(x.square() + y.square() <= 1, torch.tensor(torch.nan)).sqrt()
    # Right and up are orthogonal to the mode (1, 1, 1); up has the third axis in it.
    right = torch.tensor([-1.0, 1.0, 0.0], dtype=torch.float64) / math.sqrt(2)
    up = torch.tensor([-1.0, -1.0, 2.0], dtype=torch.float64) / math.sqrt(6)
    mode = torch.ones(3, dtype=torch.float64) / math.sqrt(3)
    return line.numpy(), x[..., None] * right + y[..., None] * up + height[..., None] * mode


def circle_table() -> pd.DataFrame:
    """Table of densities of a vMF and of non-isotropic vMFs on the circle, by the angle to mu in degrees."""
    angle, points = circle_points()
    tables = []
    for name, distribution in distributions(2).items():
        away = torch.remainder(angle - math.pi / 4 + math.pi, 2 * math.pi) - math.pi
        density = distribution.log_prob(points).exp()
        table = pd.DataFrame({"distribution": name, "angle": torch.rad2deg(away), "density": density})
        tables.append(table.sort_values("angle"))
    return pd.concat(tables, ignore_index=True)


def sphere_table(pixels: int = PIXELS) -> pd.DataFrame:
    """Table of densities of a vMF and of non-isotropic vMFs on the half of the sphere around their direction mu."""
    line, points = _seen_from_mode(pixels)
    x, y = np.meshgrid(line, line)
    tables = []
    for name, distribution in distributions(3).items():
        density = distribution.log_prob(points).exp().numpy()
        values = {"x": x.ravel(), "y": y.ravel(), "density": density.ravel()}
        tables.append(pd.DataFrame({"distribution": name, **values}).dropna())
    return pd.concat(tables, ignore_index=True)


def densities() -> Drawing:
    """Draw vMF and non-isotropic vMF densities on the sphere, seen along mu, and on the circle."""
    sphere, circle = sphere_table(), circle_table()
    figure = Figure(figsize=(FULL_PAGE, 5.2), layout="constrained")
    grid = figure.add_gridspec(2, 3, height_ratios=(1.35, 1))
    spheres = [figure.add_subplot(grid[0, place]) for place in range(3)]
    for axis, (name, distribution) in zip(spheres, distributions(3).items()):
        drawn = _draw_sphere(axis, sphere[sphere["distribution"] == name])
        parameters = f"κ = {CONCENTRATION:g}" if name == "vMF" else f"κ = {CONCENTRATIONS}".replace(".0", "")
        axis.set_title(f"{name}, {parameters}\nintegral over the sphere: {sphere_integral(distribution):.4g}")
    figure.colorbar(drawn, ax=spheres, shrink=0.8, label="density / its maximum")
    axis = figure.add_subplot(grid[1, :])
    for name, style, colour in zip(distributions(2), ("-", "--", "-."), PALETTE):
        rows = circle[circle["distribution"] == name]
        integral = rows["density"].mean() * 2 * math.pi
        axis.plot(rows["angle"], rows["density"], style, color=colour, label=f"{name} (integral {integral:.4g})")
    axis.set(xlabel="angle to mu, degrees", ylabel="density per radian", yscale="log", xlim=(-180, 180))
    axis.set_xticks(range(-180, 181, 45))
    axis.set_title(f"on the circle: κ = {CONCENTRATION:g} and κ = {CONCENTRATIONS[:2]}".replace(".0", ""))
    axis.legend(loc="lower center")
    table = pd.concat([sphere.assign(on="sphere"), circle.assign(on="circle")], ignore_index=True)
    return Drawing("densities", figure, table[["on", "distribution", "x", "y", "angle", "density"]])


def _draw_sphere(axis: Axes, rows: pd.DataFrame) -> AxesImage:
    """Half of a sphere, density over its maximum."""
    image = rows.pivot(index="y", columns="x", values="density").to_numpy()
    share = image / np.nanmax(image)
    drawn = axis.imshow(share, origin="lower", extent=(-1, 1, -1, 1), cmap="viridis", vmin=0.0, vmax=1.0)
    axis.set(xlabel="along (-1, 1, 0)", ylabel="along (-1, -1, 2)", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    return drawn


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
    cosines = torch.linspace(-1, 1, points, dtype=torch.float64)
    norm, cosine = (grid.reshape(-1) for grid in torch.meshgrid(norms, cosines, indexing="ij"))
    raw = torch.zeros(len(norm), DISTANCE_DIM, dtype=torch.float64)
    raw[:, 0] = norm * cosine
    raw[:, 1] = norm * (1 - cosine.square()).sqrt()
    proxy = torch.zeros(1, DISTANCE_DIM, dtype=torch.float64)
    proxy[0, 0] = 1.0
    concentration = torch.tensor([PROXY], dtype=torch.float64)
    tables = []
    for name in DISTANCES:
        value = -distance_logits(name, raw, proxy, concentration, 1.0).squeeze(1)
        tables.append(pd.DataFrame({"distance": name, "norm": norm, "cosine": cosine, "value": value}))
    return pd.concat(tables, ignore_index=True)


def distances() -> Drawing:
    """Draw contours of three distances over the norm of the image and its cosine to the proxy."""
    table = distance_table()
    figure, axes = panels(len(DISTANCES), len(DISTANCES), (FULL_PAGE / 3, 2.4), share_y=True)
    for axis, (name, title) in zip(axes, DISTANCES.items()):
        values = table[table["distance"] == name].pivot(index="cosine", columns="norm", values="value")
        drawn = axis.contourf(values.columns, values.index, values.to_numpy(), levels=14, cmap="viridis")
        axis.axvline(PROXY, color="w", lw=1, ls="--")
        axis.set(title=title, xlabel="norm of the image")
        figure.colorbar(drawn, ax=axis, shrink=0.9)
    axes[0].set_ylabel("cosine to the proxy")
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
    figure, axes = panels(9, 3, (FULL_PAGE / 3, 2.1))
    rows = {"change": "log C(κ) - log C(0), nats", "error": "error, nats", "slope": "slope, nats per unit of κ"}
    styles = ("-", "--", ":", ":", "-.")
    for axis, (column, dim) in zip(axes, product(rows, DIMS)):
        for name, style, colour in zip(APPROXIMATIONS, styles, PALETTE):
            exact = name == "exact"
            if not (exact and column == "error"):
                curve = table[(table["dim"] == dim) & (table["approximation"] == name)]
                width = 2.4 if exact else 1.4
                axis.plot(curve["concentration"], curve[column], style, color=colour, lw=width, label=name)
        axis.axvspan(*FITTED, color="0.85", lw=0, zorder=0)
        if column == "error":
            axis.set_yscale("symlog", linthresh=0.01, linscale=0.5)
            axis.set_yticks([-100, -1, 0, 1, 100])
    for axis, dim in zip(axes, DIMS):
        axis.set_title(f"D = {dim}")
    for axis in axes[-3:]:
        axis.set_xlabel("concentration κ")
    for axis, title in zip(axes[::3], rows.values()):
        axis.set_ylabel(title)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.suptitle("Log normaliser of the vMF (grey: where the quadratic was fitted, for D = 128 and 512)")
    return Drawing("normalisers", figure, table)
