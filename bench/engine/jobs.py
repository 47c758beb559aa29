"""Messages between the driver and its workers: one JSON object per line."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ..protocols.recipes._base import Range
from ..site import Site
from ..store.specs import Cell, Kind, Point, TestSpec, TrainSpec
from .tuning import Told

LOG = "error.txt"
"""File of a unit with the traceback of its last failure."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProposeJob(_Message):
    """Job: propose the parameters of some trials of a tuning study.

    Attributes:
        axes: What the random draws depend on, in addition to the number of the trial.
        space: Ranges of the tuned parameters, by name.
        sampler: Optuna sampler, ``gp`` or ``tpe``.
        numbers: Numbers of the trials.
        told: Finished trials of earlier batches.
        fixed: Parameters of trials that are known already, by number.
    """

    job: Literal["propose"] = "propose"
    axes: tuple[str, ...]
    space: dict[str, Range]
    sampler: str
    numbers: tuple[int, ...]
    told: tuple[Told, ...]
    fixed: dict[int, Point]


class TrainJob(_Message):
    """Job: train one model and write its record."""

    job: Literal["train"] = "train"
    spec: TrainSpec
    site: Site

    @property
    def unit(self) -> tuple[Cell, Kind, str]:
        """Cell (protocol, data set, method), kind and id of the training unit."""
        return self.spec.cell, "train", self.spec.id


class TestJob(_Message):
    """Job: test the trained models of one replicate and write the records."""

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    job: Literal["test"] = "test"
    specs: tuple[TestSpec, ...]
    cell: Cell
    site: Site

    @property
    def unit(self) -> tuple[Cell, Kind, str]:
        """Cell (protocol, data set, method), kind and id of the first test unit of the job."""
        return self.cell, "test", self.specs[0].id


Job = ProposeJob | TrainJob | TestJob


class EpochDone(_Message):
    """Event: a training has finished this many epochs."""

    event: Literal["epoch"] = "epoch"
    epoch: int


class Alive(_Message):
    """Event: a unit is at work, at most ten a second.

    Attributes:
        step: What it begins.
    """

    event: Literal["alive"] = "alive"
    step: str


class Done(_Message):
    """Event: a job is done; what it wrote is in the results folder, what it proposed is here."""

    event: Literal["done"] = "done"
    points: tuple[Point, ...] = ()


class Failed(_Message):
    """Event: a job ended with an error.

    Attributes:
        error: Class of the error.
        reason: Why, on one line.
        place: File and line where it arose.
        log: File with the whole traceback, if it could be written.
    """

    event: Literal["failed"] = "failed"
    error: str
    reason: str
    place: str
    log: str


Event = EpochDone | Alive | Done | Failed

JOBS: TypeAdapter[Job] = TypeAdapter(Annotated[Job, Field(discriminator="job")])
EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])
