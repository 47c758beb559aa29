"""Layouts of the scores of two batches, a full matrix or aligned pairs, so that every score is written once."""

from __future__ import annotations

from torch import Tensor


class Matrix:
    """Layout of batches ``[Na]`` and ``[Nb]`` whose scores are ``[Na, Nb]``, by matrix products."""

    @staticmethod
    def inner(x: Tensor, y: Tensor) -> Tensor:
        """Inner products of ``[Na, D]`` and ``[Nb, D]``."""
        return x @ y.mT

    @staticmethod
    def outer(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Per-item values ``[Na, *]`` and ``[Nb, *]``, ready to broadcast against each other."""
        return u.unsqueeze(1), v.unsqueeze(0)

    @staticmethod
    def squared_distance(x: Tensor, y: Tensor) -> Tensor:
        """Squared Euclidean distances, never below zero."""
        squares = x.square().sum(-1)[:, None] + y.square().sum(-1)[None, :]
        return (squares - 2.0 * (x @ y.mT)).clamp_min(0.0)


class Pairs:
    """Layout of two batches ``[N]`` whose scores ``[N]`` are of aligned pairs."""

    @staticmethod
    def inner(x: Tensor, y: Tensor) -> Tensor:
        """Inner products of aligned rows."""
        return (x * y).sum(-1)

    @staticmethod
    def outer(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Per-item values ``u`` and ``v`` unchanged, because they are aligned already."""
        return u, v

    @staticmethod
    def squared_distance(x: Tensor, y: Tensor) -> Tensor:
        """Squared Euclidean distances of aligned rows."""
        return (x - y).square().sum(-1)


Layout = type[Matrix] | type[Pairs]
