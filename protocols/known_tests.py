"""The registry of tests of embeddings: the module of every group of tests."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from .declare import EmbeddingTest, declared_tests

BUILT_IN = {
    "retrieval": "retrieval",
    "map_at_1000": "retrieval",
    "verification": "verification",
    "reranked": "reranked",
    "filter_out": "filter_out",
    "risk": "confidence",
    "clustering": "clustering",
    "structure": "structure",
    "quality": "quality",
    "soft_labels": "quality",
    "ambiguity": "ambiguity",
    "discard": "discard",
    "calibration": "calibration",
    "retrieval_sets": "retrieval_sets",
    "threshold_consistency": "threshold_consistency",
    "open_set": "open_set",
    "operating": "operate",
    "confidence_correlation": "quality",
}
"""Module of every built-in group; tests run in this order."""


def known_groups() -> tuple[str, ...]:
    """Names of all groups of tests of embeddings: the built-in ones, then those of imported plug-ins."""
    return tuple(dict.fromkeys([*BUILT_IN, *(test.group for test in _of_plugins())]))


def groups_of_modules(packages: Iterable[str]) -> tuple[str, ...]:
    """Names of the groups of tests of embeddings that some imported plug-ins, modules or packages of them, declare."""
    starts = tuple(f"{name}." for name in packages)
    return tuple(dict.fromkeys(test.group for test in _of_plugins() if f"{test.module}.".startswith(starts)))


def load_tests(groups: Iterable[str]) -> tuple[EmbeddingTest, ...]:
    """Tests of embeddings in some groups: built-in ones in their fixed order, then those of plug-ins.

    Raises:
        ValueError: If a group is unknown.
    """
    wanted, known = set(groups), known_groups()
    if wanted - set(known):
        raise ValueError(f"unknown group of tests {min(wanted - set(known))!r} (known: {', '.join(known)})")
    built_in = [
        test
        for group, module in BUILT_IN.items()
        if group in wanted
        for test in declared_tests(import_module(f".{module}", __package__).__name__)
        if test.group == group
    ]
    return (*built_in, *(test for test in _of_plugins() if test.group in wanted))


def _of_plugins() -> list[EmbeddingTest]:
    return [test for test in declared_tests() if not test.module.startswith(f"{__package__}.")]
