"""Densities of the vMF and of the non-isotropic vMF (Kirchhof et al. 2022, Fig. 2), and what each integrates to."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor
from torch.distributions import Distribution

from ...methods.distributions.non_isotropic import NonIsotropicVonMisesFisher
from ...methods.distributions.von_mises_fisher import VonMisesFisher
from .source import Drawing, Note, Source
from .style import FULL_PAGE, colour

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
        tables.append(
            pd.DataFrame({"distribution": name, "x": x.ravel(), "y": y.ravel(), "density": density.ravel()}).dropna()
        )
    return pd.concat(tables, ignore_index=True)


def draw(source: Source, note: Note) -> Iterator[Drawing]:
    """Yield the figure of vMF and non-isotropic vMF densities on the sphere, seen along mu, and on the circle."""
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
    for index, name in enumerate(distributions(2)):
        rows = circle[circle["distribution"] == name]
        integral = rows["density"].mean() * 2 * math.pi
        style = ("-", "--", "-.")[index]
        axis.plot(rows["angle"], rows["density"], style, color=colour(index), label=f"{name} (integral {integral:.4g})")
    axis.set(xlabel="angle to mu, degrees", ylabel="density per radian", yscale="log", xlim=(-180, 180))
    axis.set_xticks(range(-180, 181, 45))
    axis.set_title(f"on the circle: κ = {CONCENTRATION:g} and κ = {CONCENTRATIONS[:2]}".replace(".0", ""))
    axis.legend(loc="lower center")
    table = pd.concat([sphere.assign(on="sphere"), circle.assign(on="circle")], ignore_index=True)
    yield Drawing("densities", figure, table[["on", "distribution", "x", "y", "angle", "density"]])


def _draw_sphere(axis: Axes, rows: pd.DataFrame) -> AxesImage:
    """Half of a sphere, density over its maximum."""
    image = rows.pivot(index="y", columns="x", values="density").to_numpy()
    drawn = axis.imshow(
        image / np.nanmax(image), origin="lower", extent=(-1, 1, -1, 1), cmap="viridis", vmin=0.0, vmax=1.0
    )
    axis.set(xlabel="along (-1, 1, 0)", ylabel="along (-1, -1, 2)", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    return drawn
