"""Figure of theory (Kirchhof et al. 2022, Fig. 2): densities of vMF and non-isotropic vMF on sphere and circle."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.distributions import Distribution

from ...methods.distributions.non_isotropic import NonIsotropicVonMisesFisher
from ...methods.distributions.von_mises_fisher import VonMisesFisher
from .registry import Drawing
from .style import FULL_PAGE, LINES, panels

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
        values = sphere[sphere["distribution"] == name].pivot(index="y", columns="x", values="density")
        drawn = axis.contourf(values.columns, values.index, values, levels=14, cmap="viridis")
        figure.colorbar(drawn, ax=axis, shrink=0.9)
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
