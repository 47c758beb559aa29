"""Base of methods with one learned spread per image: head, distribution and confidence."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ._base import Method, MethodParams
from .distributions.normal import IsotropicNormal
from .distributions.von_mises_fisher import VonMisesFisher
from .heads import SpreadHead, positive_from_raw, variance_from_raw

RELEASED_SPREAD = math.exp(-10.0)
"""Constant that PER's code adds to the positive map."""

RELEASED_HEAD = "the head is linear, and the spread starts at s2 = 1 or k = 1, with s2 and 1/k at least exp(-10)"


def spread_distribution(kind: str, raw: Tensor, spread: Tensor, released: bool) -> VonMisesFisher | IsotropicNormal:
    """Distributions vMF(raw/|raw|, k) or N(raw/|raw|, s2 I) of vectors ``[B, D]``; k or s2 from numbers ``[B]``."""
    # One positive number, the variance up to a constant: 1/k behaves like a variance.
    phi = positive_from_raw(spread) + RELEASED_SPREAD if released else variance_from_raw(spread, raw.shape[-1])
    if kind == "vmf":
        return VonMisesFisher(raw, (1.0 if released else 2.0) / phi, validate_args=False)
    return IsotropicNormal(F.normalize(raw, dim=-1), phi, validate_args=False)


class SpreadParams(MethodParams):
    """Hyper-parameters of methods with a learned spread: distribution of an embedding, ``normal`` or ``vmf``, and form.

    Any of these methods can have either, as in Table 3 of Probabilistic Embeddings Revisited.
    """

    distribution: Literal["normal", "vmf"] = "normal"
    form: Literal["corrected", "released"] = "corrected"


class SpreadMethod(Method):
    """Base of methods with one learned spread per image; here N(mu, s2 I) or vMF(mu, k), with mu on the unit sphere.

    The spread head, a part of the network, has one output per image, which is mapped to the variance s2 or the
    concentration k. The parameter ``form`` chooses the form of both. With ``corrected``, s2 = 2/D and k = D at the
    start, so that a draw still points in the direction of its mean (cosine 0.58 and 0.62). With ``released``, which
    follows the public code of Probabilistic Embeddings Revisited, s2 = 1 and k = 1, and the head is linear, without
    activations.
    """

    repository = "per"

    def spread_head(self, in_features: int, dim: int) -> nn.Module:
        """Build the spread head, a network from features ``[B, in_features]`` to raw numbers ``[B, 1]``."""
        return SpreadHead(in_features, linear=self.released)

    def distribution(self, raw: Tensor, spread: Tensor | None) -> Distribution:
        """Distribution of the embedding: N(raw/|raw|, s2 I) or vMF(raw/|raw|, k), s2 or k from ``spread [B, 1]``."""
        assert spread is not None
        return spread_distribution(self.params.distribution, raw, spread.squeeze(-1), self.released)

    def confidence(self, distribution: Distribution) -> Tensor:
        """Confidence ``[B]``, which falls as the entropy rises: negative log variance or log concentration."""
        return spread_confidence(distribution)


def spread_confidence(distribution: Distribution) -> Tensor:
    """Confidence ``[B]`` from the spread: -log variance of an isotropic normal, log concentration of a vMF."""
    if isinstance(distribution, IsotropicNormal):
        return -torch.log(distribution.variance)
    assert isinstance(distribution, VonMisesFisher)
    return torch.log(distribution.concentration.clamp_min(torch.finfo(distribution.concentration.dtype).tiny))
