"""Failures of jobs (a setting, a bug or a dead worker is to blame), and the outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ..errors import LINE, UnitFailed, shortened
from .jobs import Failed


class JobFailed(UnitFailed):
    """A job of a worker process ended with an error; the reason is one line, ``log`` the file with the traceback."""

    def __init__(self, reason: str, place: str = "", log: str = "") -> None:
        super().__init__(reason)
        self.place, self.log, self.unit = place, log, ""


class SettingFailed(JobFailed):
    """A job failed because of its setting, for example because its loss is not finite."""


class WorkerDied(JobFailed):
    """A worker process ended in the middle of a job: killed, out of memory, or crashed in native code."""


class WorkerSilent(JobFailed):
    """A worker process was ended because it had made no progress for too long."""


class JobCrashed(JobFailed):
    """A job ended with an error that its setting is not to blame for: a bug, a missing file."""


SETTING_ERRORS = {
    "UnitFailed",
    "NonFiniteEmbeddings",
    "FloatingPointError",
    "OverflowError",
    "ZeroDivisionError",
    "LinAlgError",
}
"""Errors that a bad hyper-parameter can cause. Only these make a trial count as failed; anything else stops its study
unrecorded, so that a fixed bug or a freed disk is not remembered as a bad setting."""


def failure(event: Failed) -> JobFailed:
    """The error that a worker has reported, as an exception."""
    cls = SettingFailed if event.error in SETTING_ERRORS else JobCrashed
    return cls(event.reason, event.place, event.log)


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
