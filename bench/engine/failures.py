"""Failures of jobs: what ended them, and whether a setting, a bug or a dead worker is to blame."""

from __future__ import annotations

from ..errors import UnitFailed
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
