"""Commands that make the records of a claim, and the numbers that its paper published."""

from __future__ import annotations

from collections.abc import Iterator

from ..planning.request import resolve_fidelity
from ..reproduce.published import published_value
from ..reproduce.rows import BASE
from ..site import Site
from .claims import DEFAULT, Claim, Side

SEEDS = 5
"""Number of seeds of the commands."""


def commands(claim: Claim, site: Site, fidelity: str = "corrected") -> list[str]:
    """Commands that make records of both sides of a claim, on the data sets of ``tested_on``.

    Args:
        claim: The claim.
        site: Plug-ins, for methods and data sets.
        fidelity: Form of the methods: ``corrected`` or ``released``.

    Returns:
        One command for each data set and combination of settings that the sides have.
    """
    return [line for dataset in claim.tested_on for line in _runs(claim, site, fidelity, dataset, "--hparams default")]


def papers_commands(claim: Claim, site: Site) -> list[str]:
    """Commands for the data of a claim's paper; none if this program has none of these data sets.

    Args:
        claim: The claim.
        site: Plug-ins, for methods and data sets.
    """
    if claim.tables and claim.datasets:
        return [f"bench reproduce {name} --data-root DIR" for name in claim.tables]
    return [line for dataset in claim.datasets for line in _runs(claim, site, "corrected", dataset, "--data-root DIR")]


def has_released_form(claim: Claim, site: Site) -> bool:
    """Check if a public code of any method of a claim computes something else than the corrected form.

    Args:
        claim: The claim.
        site: Plug-ins, for methods and data sets.
    """
    return any(
        _fidelity(side, method, claim, site, "released") != _fidelity(side, method, claim, site, "corrected")
        for side in claim.sides
        for method in _methods(side, site, claim.tested_on)
    )


def _runs(claim: Claim, site: Site, fidelity: str, dataset: str, ending: str) -> Iterator[str]:
    grouped: dict[tuple[str, str, tuple[str, ...]], list[Side]] = {}
    for side in claim.sides:
        method = next(_methods(side, site, (dataset,)))
        asked = _fidelity(side, method, claim, site, fidelity)
        grouped.setdefault((asked, side.base, side.set), []).append(side)
    for (asked, base, pins), sides in grouped.items():
        methods = dict.fromkeys(next(_methods(side, site, (dataset,))) for side in sides)
        scorers = dict.fromkeys(side.scorer for side in sides if side.scorer not in (DEFAULT, "cosine"))
        parts = [f"bench run --method {','.join(methods)} --dataset {dataset} --seeds {SEEDS} {ending}"]
        parts += [f"--protocol {claim.protocol}"] if claim.protocol != "reality_check" else []
        parts += [f"--base {base}"] if base else []
        parts += [f"--fidelity {asked}"] if asked != "corrected" else []
        parts += [f"--scorers {','.join(scorers)}"] if scorers else []
        yield " ".join([*parts, *(f"--set {pin}" for pin in pins)])


def _methods(side: Side, site: Site, datasets: tuple[str, ...]) -> Iterator[str]:
    """Method of a side on each of some data sets."""
    return (site.recipe(name).base if side.method == BASE else side.method for name in datasets)


def _fidelity(side: Side, method: str, claim: Claim, site: Site, asked: str) -> str:
    return resolve_fidelity(site.methods.method(method), side.fidelity or asked, claim.protocol)


def published_differences(claim: Claim) -> dict[str, float]:
    """Published differences of a claim: A minus the B that is closest to refuting it, by data set of ours.

    Args:
        claim: The claim.

    Returns:
        Differences in the unit of the paper, for the data sets with numbers of every side.
    """
    found = {}
    for dataset in claim.datasets:
        values = []
        for side in claim.sides:
            cell = claim.cell(side, dataset)
            number = published_value(*cell, dataset) if cell else None
            values += [] if number is None else [number.mean]
        if len(values) == len(claim.sides):
            found[dataset] = _least_in_favour([values[0] - value for value in values[1:]], claim.direction)
    return found


def _least_in_favour(leads: list[float], direction: str) -> float:
    if direction == "equal":
        return max(leads, key=abs)
    return max(leads) if direction == "lower" else min(leads)
