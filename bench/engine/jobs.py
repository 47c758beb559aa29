"""Messages between the driver and its workers: one JSON object per line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ..protocols._base import Tests
from ..protocols.recipes._base import Range
from ..site import Site
from ..store.folder import RECORD, WEIGHTS
from ..store.specs import Cell, Kind, Point, TestSpec, TrainSpec
from .needs import Needs
from .tuning import Told

LOG = "error.txt"
"""File of a unit with the traceback of its last failure."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
        if base is None:
            return ()
        return _files(self.site, self.spec.cell._replace(method=base.method), base.unit)

    @property
    def outputs(self) -> tuple[Path, ...]:
        """Its record, the file that it writes last."""
        return (self.site.store.unit_dir(*self.unit) / RECORD,)


class FeaturesJob(_Message):
    """Make the cached features of one augmented view of a backbone at its starting weights, unless they are there."""

    job: Literal["features"] = "features"
    spec: TrainSpec
    view: int
    site: Site


class TestedFeaturesJob(_Message):
    """Make the cached features of the images that several models are tested on, clean or under a corruption."""

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    job: Literal["tested_features"] = "tested_features"
    spec: TrainSpec
    tests: Tests
    kind: str
    site: Site

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Files of other units that it reads: the weights and the record of the training."""
        return _files(self.site, self.spec.cell, self.spec.id)


class TestJob(_Message):
    """Test the trained models of one replicate by several specifications; those of an ensemble are of another cell."""

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    job: Literal["test"] = "test"
    specs: tuple[TestSpec, ...]
    cell: Cell
    site: Site
    trained: Cell | None = None

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


class CheckJob(_Message):
    """Check that a machine computes the same as the driver's, and prepare the data there."""

    job: Literal["check"] = "check"
    needs: Needs
    site: Site


Job = ProposeJob | TrainJob | FeaturesJob | TestedFeaturesJob | TestJob | CheckJob


def _files(site: Site, cell: Cell, unit: str) -> tuple[Path, ...]:
    folder = site.store.unit_dir(cell, "train", unit)
    return folder / RECORD, folder / WEIGHTS


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
    """Event that a worker reports: a job ended with an error, whose reason is one line and traceback is in ``log``."""

    event: Literal["failed"] = "failed"
    error: str
    reason: str
    place: str
    log: str


Event = EpochDone | Alive | Done | Failed

JOBS: TypeAdapter[Job] = TypeAdapter(Annotated[Job, Field(discriminator="job")])
EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])
