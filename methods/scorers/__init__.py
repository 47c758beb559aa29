"""Similarity between embedding distributions: full matrices and aligned pairs, higher = more similar.

Every scorer is symmetric and works in the dtype of its inputs. Rankings use float64 inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from ..distributions import PointMass
from ._layout import Layout, Matrix, Pairs
from .expectation import SAMPLES, expected_direction, expected_l2, sampled_direction, total_variance, unit_mean
from .forms import DistanceForm, InnerForm, Take, VonMisesFisherForm, likelihood_form
from .likelihood import mutual_likelihood
from .match import match_probability


def _as_is(d: Distribution, seed: int = 0) -> Distribution:
    return d


def _no_form(take: Take, count: int) -> None:
    return None


def _inner(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    return layout.inner(a.mean, b.mean)


def _l2(a: Distribution, b: Distribution, layout: Layout) -> Tensor:
    return -layout.squared_distance(a.mean, b.mean)


@dataclass(frozen=True)
class ScorerSpec:
    """A scorer by name.

    Attributes:
        name: Name on the command line and in the tables.
        formula: What it computes.
        score: ``(a, b, layout, **options) -> scores`` of prepared distributions.
        prepare: Work that concerns one image only, done once per image and not once per pair; ``seed`` keeps the
            draws of two batches apart.
        prepare_once: Whether that work is dear, or draws, so that it must be done once for a whole set.
        options: Names of the keyword options of ``score`` (trained parameters of a scorer).
        form: ``(rows, count) -> form``, where ``rows`` gives prepared distributions of some of ``count`` images: the
            score as a function of one inner product and one number per image, with which an exact search can skip most
            of a gallery; None where it is no such function.
    """

    name: str
    formula: str
    score: Callable[..., Tensor]
    prepare: Callable[..., Distribution] = _as_is
    options: tuple[str, ...] = ()
    prepare_once: bool = False
    form: Callable[[Take, int], InnerForm | DistanceForm | VonMisesFisherForm | None] = _no_form

    def matrix(self, a: Distribution, b: Distribution, **options: float) -> Tensor:
        """Scores ``[Na, Nb]`` of prepared distributions."""
        return self.score(a, b, Matrix, **options)

    def pairs(self, a: Distribution, b: Distribution, **options: float) -> Tensor:
        """Scores ``[N]`` of prepared, aligned distributions."""
        return self.score(a, b, Pairs, **options)


SCORERS: dict[str, ScorerSpec] = {
    spec.name: spec
    for spec in (
        ScorerSpec(
            "cosine",
            "cos(E[z1], E[z2])",
            _inner,
            lambda d, seed=0: PointMass(unit_mean(d), validate_args=False),
            form=InnerForm,
        ),
        ScorerSpec("l2", "-||E[z1] - E[z2]||^2", _l2, form=DistanceForm),
        ScorerSpec(
            "mls",
            "log of the density overlap, log integral p1(z) p2(z) dz (PFE, Eq. 3); normals and von Mises-Fisher",
            mutual_likelihood,
            form=likelihood_form,
        ),
        ScorerSpec(
            "expected_cosine",
            "E cos(z1, z2) = E[z1/|z1|] . E[z2/|z2|], in closed form",
            _inner,
            lambda d, seed=0: PointMass(expected_direction(d), validate_args=False),
            prepare_once=True,
            form=InnerForm,
        ),
        ScorerSpec(
            "sampled_cosine",
            f"mean cosine over {SAMPLES} x {SAMPLES} draws, as in PER: a noisy expected_cosine",
            _inner,
            lambda d, seed=0: PointMass(sampled_direction(d, seed=seed), validate_args=False),
            prepare_once=True,
            form=InnerForm,
        ),
        ScorerSpec(
            "expected_l2",
            "-E ||z1 - z2||^2, in closed form",
            expected_l2,
            form=lambda take, count: DistanceForm(take, count, total_variance),
        ),
        ScorerSpec(
            "match",
            "HIB's match probability E sigmoid(-scale ||z1 - z2|| + bias) by quadrature, trained scale and bias",
            match_probability,
            options=("scale", "bias"),
        ),
    )
}


def get_scorer(name: str) -> ScorerSpec:
    """Scorer by name.

    Raises:
        ValueError: If there is none of that name, with the nearest known one.
    """
    if name in SCORERS:
        return SCORERS[name]
    near = get_close_matches(name, SCORERS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown scorer {name!r}{hint} (known: {', '.join(sorted(SCORERS))})")


def pairwise_score(name: str, a: Distribution, b: Distribution, **options: Any) -> Tensor:
    """Scores between two batches of distributions.

    Args:
        name: One of :data:`SCORERS`.
        a: Batch shape ``[Na]``, event shape ``[D]``.
        b: Batch shape ``[Nb]``, event shape ``[D]``.
        options: ``scale`` and ``bias`` of ``match``.

    Returns:
        ``[Na, Nb]``, higher = more similar.

    Raises:
        ValueError: If the scorer is unknown or does not fit the distributions.

    Example:
        >>> import torch
        >>> from bench.methods.distributions import IsotropicNormal
        >>> mu = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> x = IsotropicNormal(mu, torch.tensor([0.5, 0.5]))
        >>> pairwise_score("cosine", x, x)
        tensor([[1., 0.],
                [0., 1.]])
    """
    spec = get_scorer(name)
    return spec.matrix(spec.prepare(a), spec.prepare(b, seed=1), **options)


def paired_score(name: str, a: Distribution, b: Distribution, **options: Any) -> Tensor:
    """Scores of aligned pairs: the diagonal of :func:`pairwise_score`, ``[N]``, without the matrix."""
    spec = get_scorer(name)
    return spec.pairs(spec.prepare(a), spec.prepare(b, seed=1), **options)
