"""Runs that measure the variance by source: one source of randomness is frozen, everything else is drawn anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import UnknownName, UserError
from ..store.specs import AXES, TUNING, Axis
from .plan import Plan

SOURCES = (*AXES, "tuning")
"""Sources of randomness that can be frozen."""


@dataclass(frozen=True)
class Frozen:
    """Draws of a group of runs of which one source of randomness, or none, has the same draw in all of them.

    The other draws are unrelated to those of normal runs and of the other groups.

    Attributes:
        source: Name of the frozen source, or ``nothing``.
        study: Number of the tuning study; 0 for that of the normal runs.
        first: Number of the first replicate.
        has_own_study: Whether no other group plans this study.
    """

    source: str
    study: int = 0
    first: int = 0
    has_own_study: bool = False

    def draws(self, replicate: int | str) -> dict[Axis, str]:
        """Names that seed the sources of randomness of a replicate; empty for trials of the normal runs' study."""
        if replicate == TUNING:
            return dict.fromkeys(AXES, f"tuning {self.study}") if self.study else {}
        anew = dict.fromkeys(AXES, f"{self.source} frozen, {replicate}")
        return {axis: f"{axis} frozen" if axis == self.source else name for axis, name in anew.items()}


def check_sources(names: Sequence[str], seeds: int, tunes: bool) -> None:
    """Check the sources of randomness that are to be frozen.

    Raises:
        UserError: If a name is unknown, there are fewer than two replicates, or ``tuning`` is named and nothing tunes.
    """
    for name in names:
        if name not in SOURCES:
            raise UnknownName("source of variance", name, list(SOURCES))
    if seeds < 2:
        raise UserError(f"--vary needs --seeds 2 or more: {seeds} has no variance")
    if "tuning" in names and not tunes:
        raise UserError("--vary tuning: nothing is tuned here; leave out `tuning`, or use --hparams tuned")


def with_frozen(plans: Sequence[Plan], sources: Sequence[str]) -> tuple[Plan, ...]:
    """Plans, and for each source of randomness those of the runs in which it is frozen.

    If ``tuning`` is among the sources, every replicate of the other groups has a study of its own, and there is a group
    in which nothing is frozen: normal runs share one study. An ensemble of all seeds has no replicates, and is not
    repeated.
    """
    anew = "tuning" in sources
    groups = [*(["nothing"] if anew else []), *(name for name in SOURCES if name in sources and name != "tuning")]
    added: dict[tuple[str, ...], Plan] = {}
    for plan in plans:
        if plan.requested and not plan.ensemble:
            for source in groups:
                for variant in _variants(source, plan.seeds, anew and plan.trials > 0):
                    frozen = _frozen(plan, variant)
                    if frozen.base is not None:
                        added.setdefault(frozen.base.key, frozen.base)
                    added[frozen.key] = frozen
    return (*plans, *added.values())


def _variants(source: str, seeds: int, anew: bool) -> Iterator[Frozen]:
    if not anew:
        yield Frozen(source)
        return
    for number in range(seeds):
        yield Frozen(source, study=number + 1, first=number, has_own_study=source == "nothing")


def _frozen(plan: Plan, variant: Frozen) -> Plan:
    """The plan with other draws, those of its base included."""
    return replace(
        plan,
        variant=variant,
        seeds=1 if variant.study else plan.seeds,
        pinned=replace(plan.pinned, frozen_source=variant.source, tuned_anew=variant.study > 0),
        base=None if plan.base is None else _frozen(replace(plan.base, requested=False), variant),
    )
