"""Random draws of runs in which one source of randomness is frozen."""

from __future__ import annotations

from dataclasses import dataclass

from ..store.specs import AXES, TUNING, Axis


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
        """Names that seed the sources of randomness of a training; empty for those of the normal runs' study.

        Args:
            replicate: Number of the replicate, or :data:`~bench.store.specs.TUNING` for a trial.
        """
        if replicate == TUNING:
            return dict.fromkeys(AXES, f"tuning {self.study}") if self.study else {}
        anew = dict.fromkeys(AXES, f"{self.source} frozen, {replicate}")
        return {axis: f"{axis} frozen" if axis == self.source else name for axis, name in anew.items()}
