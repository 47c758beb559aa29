"""Layouts of the scores of two batches, a full matrix or aligned pairs, so that every score is written once."""

from __future__ import annotations

from torch import Tensor


class Matrix:
    """Layout in which all pairs of two batches ``[Na]`` and ``[Nb]`` are scored, ``[Na, Nb]``, by matrix products.

    A score function gets the layout as an argument and calls its functions, so that one formula serves both layouts.
    """

    @staticmethod
    def inner(x: Tensor, y: Tensor) -> Tensor:
        """Inner products ``[Na, Nb]`` of all pairs of ``x [Na, D]`` and ``y [Nb, D]``."""
        return x @ y.mT

    @staticmethod
    def outer(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Values per image ``u [Na, *]`` and ``v [Nb, *]``, reshaped to broadcast to all pairs ``[Na, Nb, *]``."""
        return u.unsqueeze(1), v.unsqueeze(0)

    @staticmethod
    def squared_distance(x: Tensor, y: Tensor) -> Tensor:
        """Squared Euclidean distances ``[Na, Nb]`` of all pairs of ``x [Na, D]`` and ``y [Nb, D]``, at least zero."""
        squares = x.square().sum(-1)[:, None] + y.square().sum(-1)[None, :]
        return (squares - 2.0 * (x @ y.mT)).clamp_min(0.0)


class Pairs:
    """Layout in which aligned pairs of two batches ``[N]`` are scored, ``[N]``."""

    @staticmethod
    def inner(x: Tensor, y: Tensor) -> Tensor:
        """Inner products ``[N]`` of aligned rows of ``x`` and ``y``, each ``[N, D]``."""
        return (x * y).sum(-1)

    @staticmethod
    def outer(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Values per image ``u`` and ``v``, each ``[N, *]``, unchanged, because they are aligned already."""
        return u, v

    @staticmethod
    def squared_distance(x: Tensor, y: Tensor) -> Tensor:
        """Squared Euclidean distances ``[N]`` of aligned rows of ``x`` and ``y``, each ``[N, D]``."""
        return (x - y).square().sum(-1)


Layout = type[Matrix] | type[Pairs]
