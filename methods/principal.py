"""Principal axes of features: what a projection keeps, and how much of it.

With the features x_i of N images, the axes are the eigenvectors of the second moment

    sum_i x_i x_i^T

by descending eigenvalue. Of all projections onto D orthonormal directions, that onto the first D leaves the smallest
squared error (Eckart and Young 1936): a PCA that is not centred, since cosines are taken from the origin.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK_ROWS = 4096
"""Images whose features are in double precision at once: 40 MiB for 1280 features."""

_GRID = 2.0**22
"""Entries of axes are multiples of 1 / this."""


def principal_axes(features: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """First D eigenvalues, float64 ``[D]``, and eigenvectors ``[D, F]`` of the second moment of features ``[N, F]``.

    The largest entry of each eigenvector is positive; entries are rounded to 2e-7. A direction in which the features
    have nothing, up to rounding, has the eigenvalue 0 and is a row of zeros; so are the rows beyond the F-th.
    """
    width = features.shape[1]
    moment = torch.zeros(width, width, dtype=torch.float64, device=features.device)
    for block in features.split(_BLOCK_ROWS):
        rows = block.double()
        moment += rows.mT @ rows
    found, vectors = torch.linalg.eigh(moment)
    values, axes = found[-dim:].flip(0), vectors[:, -dim:].flip(1).mT
    # An eigenvector is determined up to its sign, and those of the eigenvalue 0 not even up to that.
    signs = axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    present = values > values[0] * width * torch.finfo(torch.float64).eps
    # Eigensolvers differ in the last bits, which a grid takes away, but for one entry in a million; + 0.0 ends -0.0.
    weights = ((axes * signs * present[:, None] * _GRID).round() / _GRID + 0.0).float()
    beyond = max(0, dim - width)
    return torch.cat([values * present, values.new_zeros(beyond)]), torch.cat(
        [weights, weights.new_zeros(beyond, width)]
    )


def principal_directions(features: Tensor, dim: int, whitening: float = 0.0) -> Tensor:
    """Weights ``[D, F]`` that keep as much of the squared norm of features ``[N, F]`` as D orthonormal directions can.

    The rows are the :func:`principal_axes`, the k-th divided by (eigenvalue k / eigenvalue 1)^(``whitening`` / 2): 0
    leaves the lengths as they are, with 1 the projections onto all axes have the same mean square. With F <= D nothing
    is reduced: without whitening the rows are those of the identity, then zeros, so that cosines stay what they are.
    """
    width = features.shape[1]
    if width <= dim and not whitening:
        return torch.eye(dim, width, device=features.device)
    values, axes = principal_axes(features, dim)
    # Axes without an eigenvalue are rows of zeros, whatever they are multiplied by.
    lengths = torch.where(values > 0, values / values[0], 1.0).pow(-whitening / 2)
    return axes * lengths[:, None].float()
