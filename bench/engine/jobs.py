"""Messages between the driver and its workers, one JSON object per line, and what becomes of a job that fails."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ..errors import LINE, UnitFailed, shortened
from ..planning.plan import Plan, TestPlan
from ..protocols.recipes._base import Range
from ..site import Site
from ..store.folder import RECORD, WEIGHTS
from ..store.specs import Cell, Kind, Point, TestSpec, TrainSpec
from .tuning import Told


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


PACKAGES = ("probembed", "torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn", "faiss-cpu")
"""Packages whose versions must agree: those that compute values."""


class PlanNeeds(_Message):
    """Needs of the trainings and tests of one method on one data set, with ids of code, data and starting weights."""

    template: TrainSpec
    testing: TestPlan
    folds: tuple[int, ...]


class Needs(_Message):
    """Needs of a run: software, plans, and the claim of its driver, which machines see that share its folder."""

    software: dict[str, str]
    driver: str
    plans: tuple[PlanNeeds, ...]


def software() -> dict[str, str]:
    """Versions of Python (without its last number) and of :data:`PACKAGES` here, by name."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def needs_of(plans: Iterable[Plan], site: Site, driver: Path) -> Needs:
    """Needs of some plans; the claim of the driver is a file whose name no other process has."""
    return Needs(
        software=software(),
        driver=str(driver),
        plans=tuple(
            PlanNeeds(template=plan.template, testing=plan.testing, folds=plan.validate_folds) for plan in plans
        ),
    )


class ProposeJob(_Message):
    """Propose the parameters of trials, after those of finished trials (``told``) and known ones (``fixed``).

    ``axes``, protocol, data set, method and base, seed the random draws in addition to the number of the trial.
    """

    job: Literal["propose"] = "propose"
    axes: tuple[str, ...]
    space: dict[str, Range]
    sampler: str
    numbers: tuple[int, ...]
    told: tuple[Told, ...]
    fixed: dict[int, Point]
    objectives: int = 1
    startup: int | None = None


class TrainJob(_Message):
    """Train one model, and write its weights and a record of the result."""

    job: Literal["train"] = "train"
    spec: TrainSpec
    site: Site

    @property
    def unit(self) -> tuple[Cell, Kind, str]:
        """Cell, kind (``train``) and id of the training, which name its folder."""
        return self.spec.cell, "train", self.spec.id

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Files of other units that it reads: the weights and the record of the base."""
        base = self.spec.base
        return () if base is None else _files(self.site, self.spec.base_cell, base.unit)

    @property
    def outputs(self) -> tuple[Path, ...]:
        """Its record, the file that it writes last."""
        return (self.site.store.unit_dir(*self.unit) / RECORD,)


class TestJob(_Message):
    """Test the trained models of one replicate by several specifications; those of an ensemble are of another cell.

    ``shared`` is whether other models on the same trained base read the features of its test images, too.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    job: Literal["test"] = "test"
    specs: tuple[TestSpec, ...]
    cell: Cell
    site: Site
    trained: Cell | None = None
    shared: bool = False

    @property
    def unit(self) -> tuple[Cell, Kind, str]:
        """Cell, kind (``test``) and id of the job's first test; they name its folder."""
        return self.cell, "test", self.specs[0].id

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Files of other units that it reads: the weights and the records of the trained models."""
        units = dict.fromkeys(unit for spec in self.specs for unit in spec.train)
        return tuple(path for unit in units for path in _files(self.site, self.trained or self.cell, unit))

    @property
    def outputs(self) -> tuple[Path, ...]:
        """The records of its tests, in each of their folders the file that is written last."""
        return tuple(self.site.store.unit_dir(self.cell, "test", spec.id) / RECORD for spec in self.specs)


class ReadyJob(_Message):
    """Check that the GPU has room for the workers that share it, and that a machine has what a run needs, if given."""

    job: Literal["ready"] = "ready"
    site: Site
    sharing: int = 0
    needs: Needs | None = None


Job = ProposeJob | TrainJob | TestJob | ReadyJob


def _files(site: Site, cell: Cell, unit: str) -> tuple[Path, ...]:
    folder = site.store.unit_dir(cell, "train", unit)
    return folder / RECORD, folder / WEIGHTS


LOOK = 1.0
"""Seconds between two looks for a file that another machine has written."""


def visible(paths: Iterable[Path], seconds: float) -> bool:
    """Wait until files exist that another machine may have written: a network file system can hide fresh ones."""
    end = time.monotonic() + seconds
    missing = [path for path in paths if not path.exists()]
    while missing and time.monotonic() < end:
        time.sleep(min(LOOK, seconds))
        for folder in {path.parent for path in missing}:
            if folder.is_dir():
                os.listdir(folder)  # makes a client of NFS ask the server
        missing = [path for path in missing if not path.exists()]
    return not missing


class EpochDone(_Message):
    """Event that a worker reports: a training has finished this many epochs."""

    event: Literal["epoch"] = "epoch"
    epoch: int


class Alive(_Message):
    """Event: a unit is at work on a step, at most ten a second."""

    event: Literal["alive"] = "alive"
    step: str


class Done(_Message):
    """Event that a worker reports: a job is done; ``points`` are the parameters of proposed trials."""

    event: Literal["done"] = "done"
    points: tuple[Point, ...] = ()


class Failed(_Message):
    """Event that a worker reports: a job ended with an error, whose reason is one line and traceback is in ``log``.

    ``ended`` is whether the process ends with it, since it can do no more on its GPU.
    """

    event: Literal["failed"] = "failed"
    error: str
    reason: str
    place: str = ""
    log: str = ""
    ended: bool = False


Event = EpochDone | Alive | Done | Failed

JOBS: TypeAdapter[Job] = TypeAdapter(Annotated[Job, Field(discriminator="job")])
EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


class JobFailed(UnitFailed):
    """A job of a worker process ended with an error; the reason is one line, ``log`` the file with the traceback."""

    def __init__(self, reason: str, place: str = "", log: str = "") -> None:
        super().__init__(reason)
        self.place, self.log, self.unit = place, log, ""


class SettingFailed(JobFailed):
    """A job failed because of its setting, for example because its loss is not finite."""


class WorkerDied(JobFailed):
    """A worker process ended in the middle of a job: killed, out of memory, crashed in native code, or on its GPU."""


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
    of_worker = {cls.__name__: cls for cls in (WorkerDied, WorkerSilent)}
    cls = of_worker.get(event.error, SettingFailed if event.error in SETTING_ERRORS else JobCrashed)
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
    def of(cls, error: UnitFailed, what: str) -> Self:
        """Make the report of an error."""
        if not isinstance(error, JobFailed):
            return cls(error.what or what, "", str(error), "", "")
        log = error.log.removeprefix(f"{Path.cwd()}/")
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
