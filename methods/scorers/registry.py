"""Table of all scorers: the module of this folder that defines each, and scores by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributions import Distribution

    from .spec import ScorerSpec

MODULES = {
    "cosine": "inner_products",
    "l2": "inner_products",
    "raw_l2": "inner_products",
    "poincare": "hyperbolic",
    "mls": "likelihood",
    "expected_cosine": "expectation",
    "sampled_cosine": "expectation",
    "expected_l2": "expectation",
    "match": "match",
    "sampled_match": "match",
}


class _Scorers(Mapping[str, "ScorerSpec"]):
    """All scorers by name; the module of one is imported when it is asked for."""

    def __init__(self) -> None:
        self.built_in = {name: f"{__package__}.{module}" for name, module in MODULES.items()}
        self.added: dict[str, tuple[ScorerSpec, str]] = {}

    def __getitem__(self, name: str) -> ScorerSpec:
        if name in self.added:
            return self.added[name][0]
        specs: tuple[ScorerSpec, ...] = import_module(self.built_in[name]).SPECS
        return next(spec for spec in specs if spec.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.built_in, *self.added))

    def __len__(self) -> int:
        return len(self.built_in) + len(self.added)

    # Mapping's own would import the module.
    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.added


SCORERS = _Scorers()
"""Every scorer by name."""


def register_scorer(spec: ScorerSpec) -> ScorerSpec:
    """Register a plug-in's scorer for use by name, with the module that calls this as the one that defines it.

    Raises:
        ValueError: If another module has a scorer of that name.
    """
    module = str(sys._getframe(1).f_globals.get("__name__"))
    if spec.name in SCORERS and (spec.name in SCORERS.built_in or scorer_module(spec.name) != module):
        raise ValueError(f"scorer {spec.name!r} is already defined in {scorer_module(spec.name)}; choose another name")
    SCORERS.added[spec.name] = (spec, module)
    return spec


def get_scorer(name: str) -> ScorerSpec:
    """Return the scorer of a name; the ValueError of an unknown one gives the nearest known name."""
    scorer_module(name)
    return SCORERS[name]


def scorer_module(name: str) -> str:
    """Dotted name of the module that defines a scorer; a ValueError if there is none of that name."""
    if name not in SCORERS:
        near = get_close_matches(name, SCORERS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown scorer {name!r}{hint} (known: {', '.join(sorted(SCORERS))})")
    return SCORERS.added[name][1] if name in SCORERS.added else SCORERS.built_in[name]


def pairwise_score(name: str, a: Distribution, b: Distribution, **options: Any) -> Tensor:
    """Scores of all pairs of two batches of distributions.

    Args:
        name: Name of the scorer, such as ``cosine`` or ``mls`` (mutual likelihood score).
        a: Batch shape ``[Na]``, event shape ``[D]``.
        b: Batch shape ``[Nb]``, event shape ``[D]``.
        options: ``scale`` and ``bias`` of HIB's match probability, for the scorers ``match`` and ``sampled_match``.

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
    """Scores ``[N]`` of aligned pairs of two batches of N distributions: the diagonal of :func:`pairwise_score`."""
    spec = get_scorer(name)
    return spec.pairs(spec.prepare(a), spec.prepare(b, seed=1), **options)
