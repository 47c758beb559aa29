"""Outcome of a run: what was trained and reused, and what failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ..errors import LINE, UnitFailed, shortened
from .failures import JobFailed


@dataclass(frozen=True)
class Failure:
    """Report of a failed training or test, whose reason is one line; ``unit`` is empty if no single one failed."""

    what: str
    unit: str
    reason: str
    place: str
    log: str

    @classmethod
    def of(cls, error: UnitFailed, what: str, results: Path) -> Self:
        """Make the report of an error; the results folder is left out of a long path of the log."""
        if not isinstance(error, JobFailed):
            return cls(error.what or what, "", str(error), "", "")
        log = error.log
        for start in (Path.cwd(), results):
            if len(log) > LINE // 3 or start == Path.cwd():
                log = log.removeprefix(f"{start}/")
        return cls(error.what or what, error.unit, str(error), error.place, log)

    def line(self, limit: int = LINE) -> str:
        """The whole report on one line of at most ``limit`` characters."""
        what = f"{self.what} ({self.unit})" if self.unit else self.what
        tail = (f" ({self.place})" if self.place else "") + (f"; traceback: {self.log}" if self.log else "")
        room = max(40, limit - len(what) - 2 - len(tail))
        return shortened(f"{what}: {shortened(self.reason, room)}{tail}", limit)


@dataclass
class Outcome:
    """Result of a run: failures, and counts of trainings done and reused."""

    failures: list[Failure] = field(default_factory=list)
    trained: int = 0
    reused: int = 0

    def add(self, other: Outcome) -> None:
        """Add the failures and counts of another run to this one."""
        self.failures += other.failures
        self.trained += other.trained
        self.reused += other.reused
