"""Records: what is kept of finished units, as types that write, read and check themselves.

A record file is one JSON object: the fields of its type, ``schema`` and ``checksum``, the hash of everything else.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from ..protocols.rows import SplitRow
from ..seeds import content_id
from .specs import Cell, Ensemble, Kind, Parameters, Point, StudySpec, TestSpec, TrainSpec

SCHEMA_VERSION = 2


class DamagedRecord(ValueError):
    """The file of a record is incomplete or altered, belongs to another unit, or has another type or schema."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Record(_Value):
    """A value with a file of its own."""

    kind: ClassVar[str]

    def to_json(self) -> bytes:
        """The content of its file; NaN, which JSON does not have, is refused."""
        held = {**self.model_dump(mode="json"), "kind": self.kind, "schema": SCHEMA_VERSION}
        held["checksum"] = content_id(held)
        return (json.dumps(held, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()

    @property
    @abstractmethod
    def place(self) -> tuple[str, ...]:
        """End of the path of its file in a results folder."""

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Inverse of :meth:`to_json`.

        Raises:
            DamagedRecord: If the text is not such a record, with the reason.
        """
        held = checked_content(text, cls.kind)
        try:
            record = cls.model_validate(held)
        except ValidationError as error:
            first = error.errors()[0]
            raise DamagedRecord(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        record.check_identity()
        return record

    def check_identity(self) -> None:
        """Check that its id is that of what it is about.

        Raises:
            DamagedRecord: If it is not.
        """


def checked_content(text: str | bytes, kind: str) -> dict[str, Any]:
    """Fields of a record, read from its file and checked.

    Args:
        text: Content of the file.
        kind: Kind of record it must be.

    Raises:
        DamagedRecord: If the text is not such a record, with the reason.
    """
    try:
        held: Any = from_json(text)
    except ValueError as error:
        raise DamagedRecord(f"not valid JSON: {error}") from None
    if not isinstance(held, dict):
        raise DamagedRecord("not a JSON object")
    checksum, found, schema = held.pop("checksum", None), held.get("kind"), held.get("schema")
    if schema != SCHEMA_VERSION or found != kind:
        raise DamagedRecord(f"a {found} record of schema {schema}, not a {kind} record of {SCHEMA_VERSION}")
    if not _is_content_id(checksum, held):
        raise DamagedRecord("its checksum does not fit its content")
    return {key: value for key, value in held.items() if key not in ("kind", "schema")}


def _is_content_id(checksum: object, held: dict[str, Any]) -> bool:
    """Check if a checksum is the id of some content."""
    # Keys in a file are sorted, and pydantic writes most values as the id's text has them, in a quarter of the time.
    quick = hashlib.blake2b(to_json(held), digest_size=8).hexdigest()
    try:
        return checksum == quick or checksum == content_id(held)
    except ValueError:  # an infinite number, say
        return False


class _Unit(_Record):
    """Record of something with a specification, whose hash is its id and part of the name of its folder."""

    kind: ClassVar[Kind]
    file: ClassVar[str] = "record.json"

    unit: str
    cell: Cell
    spec: TrainSpec | TestSpec | StudySpec

    @property
    def place(self) -> tuple[str, ...]:
        """End of the path of its file in a results folder."""
        return (*self.cell, f"{self.kind}-{self.unit}", self.file)

    def check_identity(self) -> None:
        """Check that its id is that of its specification.

        Raises:
            DamagedRecord: If it is not.
        """
        if self.unit != self.spec.id:
            raise DamagedRecord(f"its id {self.unit} is not that of its specification, {self.spec.id}")


class Environment(_Value):
    """Machine and software that a unit ran on, and its run time.

    Attributes:
        seconds: Wall-clock time of this process on the unit.
        peak_memory_mib: Largest resident memory of the process so far, MiB.
    """

    bench: str
    torch: str
    python: str
    machine: str
    device: str
    threads: int
    seconds: float
    peak_memory_mib: int


class Epoch(_Value):
    """One epoch of a training: mean loss, MAP@R on validation classes, and for a frozen backbone the stage's loss."""

    epoch: int
    loss: float
    val_map_at_r: float
    val_loss: float | None = None


class TrainRecord(_Unit):
    """Record of a finished training.

    Attributes:
        files: SHA-256 of its array files by name.
        num_classes: Number of training classes.
        channels: Channels of the images.
        manifests: SHA-256 of the content of the training (``train``) and validation (``val``) images.
        selection_value: Value by which the epoch was chosen, higher = better.
        note: What happened on the way; empty if nothing did.
    """

    kind: ClassVar[Kind] = "train"

    spec: TrainSpec
    files: dict[str, str]
    num_classes: int
    channels: int
    manifests: dict[str, str]
    history: tuple[Epoch, ...]
    best_epoch: int
    selection_value: float
    val_map_at_r: float
    note: str = ""
    environment: Environment


class Columns(_Value):
    """Values of those columns of the results table that are the same for all rows of a test."""

    protocol: str
    preset: str
    dataset: str
    method: str
    base: str
    fidelity: str
    hparams: str
    trials: int
    pinned: str
    backbone: str
    dim: int
    ensemble: Ensemble
    seed: int


KEYS = tuple(Columns.model_fields)
"""Columns that identify the experiment of a row of the tidy table."""
ROW_KEYS = ("split", "scorer", "confidence", "variant", "metric", "fraction")
"""Columns that identify the measurement; with :data:`KEYS` they identify a row."""
COLUMNS = (*KEYS, *ROW_KEYS, "value", "n_queries", "n_lone", "unit")
"""Columns of the tidy table, in order."""


class Role(_Value):
    """What a comparison of methods must know about a test.

    Attributes:
        primary_scorer: The method's own scorer.
        default_confidence: Name of the confidence that reports quote.
        probabilistic: Whether the embedding is a distribution.
        trainings: Number of trainings spent on tuning, including those of the base.
        train: Ids of the trainings of the tested models, as one text.
        base_train: Ids of the trainings of their bases, as one text; empty if there are none.
    """

    primary_scorer: str
    default_confidence: str
    probabilistic: bool
    trainings: int
    train: str
    base_train: str


class Curve(_Value):
    """Mean rank of the corrupted images by each confidence, in [0, 1], per bin of the severity of a corruption."""

    severity: tuple[float, ...]
    rank: dict[str, tuple[float, ...]]


class Corrupted(_Value):
    """Record of a corruption of test images: range of severities, seed of the draws, SHA-256 of what was drawn."""

    severity: tuple[float, float]
    seed: int
    sha256: str


class TestRecord(_Unit):
    """Record of a finished test.

    Attributes:
        files: SHA-256 of its array files by name.
        rows: Measured values; one that does not exist (the correlation of a constant, say) is None.
        finished: Time of the end, seconds since 1970; of two results of a setting the later one counts.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of its name
    kind: ClassVar[Kind] = "test"

    spec: TestSpec
    files: dict[str, str]
    columns: Columns
    role: Role
    setting: dict[str, Parameters]
    manifests: dict[str, str]
    corruptions: dict[str, Corrupted]
    rows: tuple[SplitRow, ...]
    curves: dict[str, Curve]
    environment: Environment
    finished: float


class StudyRecord(_Unit):
    """Record of a tuning study that was begun."""

    kind: ClassVar[Kind] = "study"
    file: ClassVar[str] = "study.json"

    spec: StudySpec


class TrialRecord(_Record):
    """Record of a finished trial of a tuning study.

    Attributes:
        study: Id of its study.
        units: Ids of its trainings.
        value: What the study maximises; None if the trial failed.
        reason: Why it failed.
    """

    kind: ClassVar[str] = "trial"

    study: str
    number: int
    params: Point
    units: tuple[str, ...]
    state: Literal["complete", "failed"]
    value: float | None
    reason: str = ""
    val_map_at_r: float | None = None
    best_epochs: tuple[int, ...] = Field(default=())

    @property
    def place(self) -> tuple[str, ...]:
        """End of the path of its file in a results folder."""
        return f"study-{self.study}", f"trial-{self.number:04d}.json"
