"""Records: what is kept of finished units, as types that write, read and check themselves.

A record file is one JSON object: the fields of its type, ``schema`` and ``checksum``, the hash of everything else. The
marker of a results folder has its schema and the versions of its protocols.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    WrapValidator,
)
from pydantic_core import from_json, to_json

from ..errors import shortened
from ..protocols.rows import SplitRow
from ..seeds import canonical_json, content_id
from .files import DamagedFile, read_json
from .specs import (
    Cell,
    Ensemble,
    Kind,
    Parameters,
    Pinned,
    Point,
    Replicate,
    RescoreSpec,
    StudySpec,
    TestSpec,
    TrainSpec,
)

SCHEMA_VERSION = 3

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=128)]
"""Name of a file in the folder of a unit; no path, because records may come from anywhere."""


class DamagedRecord(ValueError):
    """Error for the record file of a training, test, study or trial that is damaged or of another kind or schema."""


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
        """Inverse of :meth:`to_json`."""
        held = checked_content(text, cls.kind)
        try:
            record = cls.model_validate(held)
        except ValidationError as error:
            first = error.errors()[0]
            raise DamagedRecord(shortened(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")) from None
        record.check_identity()
        return record

    def check_identity(self) -> None:
        """Check that its id is that of what it is about."""


def checked_content(text: str | bytes, kind: str) -> dict[str, Any]:
    """Read the fields of a record from the content of its file, and check its checksum and schema."""
    held: Any = _by_layout(text) if isinstance(text, bytes) else None
    whole = held is not None
    try:
        held = held if whole else _parsed(text.encode() if isinstance(text, str) else text)
    except ValueError as error:
        raise DamagedRecord(shortened(f"not valid JSON: {error}")) from None
    if not isinstance(held, dict):
        raise DamagedRecord("not a JSON object")
    found, schema = held.pop("kind", None), held.pop("schema", None)
    if schema != SCHEMA_VERSION or found != kind:
        found, schema = (shortened(str(value), 40) for value in (found, schema))
        raise DamagedRecord(f"a {found} record of schema {schema}, not a {kind} record of {SCHEMA_VERSION}")
    if not whole and not _is_whole(held.pop("checksum", None), {**held, "kind": kind, "schema": schema}):
        raise DamagedRecord("its checksum does not fit its content")
    return held


def _parsed(text: bytes) -> Any:
    """Value of a JSON text without a repeated key: the parser that sees such keys takes three times as long."""
    held = from_json(text)
    return held if text.count(b'":') == to_json(held).count(b'":') else read_json(text)


def _is_whole(checksum: object, held: object) -> bool:
    try:
        return checksum == content_id(held)
    except (ValueError, RecursionError):  # half of a surrogate pair, a number that is not finite
        return False


def _by_layout(text: bytes) -> Any:
    """The fields of a whole record with rows, as :meth:`_Record.to_json` writes it; None if another look is needed.

    Most rows differ from earlier ones in their values alone. Without white space their text is what the checksum is of.
    """
    before, found, rest = text.partition(b'\n "rows": [\n')
    rows, _, after = rest.rpartition(b"\n ]")
    if not found:
        return None
    try:
        values, written = _values_of(b"\n" + rows)
        held = _parsed(before + b'"rows": ["rows"]' + after)
        checksum = held.pop("checksum")
        start, found, end = canonical_json(held).encode().partition(b'"rows":["rows"]')
        digest = hashlib.blake2b(b"".join([start, b'"rows":[', *written, b"]", end]), digest_size=8)
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError, RecursionError):
        return None
    return {**held, "rows": values} if checksum == digest.hexdigest() else None


def _values_of(text: bytes) -> tuple[Rows, list[bytes]]:
    """Rows in a text as it is written, and that text without white space, in parts."""
    parts = _VALUE.split(text)
    numbers = from_json(b"[" + b",".join(parts[1::2]) + b"]", allow_inf_nan=False)
    layout, parts[::2] = _written_layout(tuple(parts[::2]))
    return Rows(layout, array("d", [NAN if value is None else value for value in numbers])), parts


_VALUE = re.compile(rb'"value": ([^,]*),')


@lru_cache(maxsize=64)
def _written_layout(texts: tuple[bytes, ...]) -> tuple[Layout, list[bytes]]:
    """Layout of rows from their text, which is cut at the values, and its parts without white space."""
    written = re.sub(rb"\n *", b"", b'"value":\0,'.join(texts)).replace(b'": ', b'":')
    rows = _ROWS.validate_python(from_json(b"[" + written.replace(b"\0", b"0") + b"]"))
    if len(rows) != len(texts) - 1 or written.count(b'":') != len(rows) * len(SplitRow.__annotations__):
        raise ValueError("a key is missing, or there more than once")
    return Rows.of(rows).layout, written.split(b"\0")


class _Unit(_Record):
    """Record of something with a specification, whose hash is its id and part of the name of its folder."""

    kind: ClassVar[Kind]
    file: ClassVar[str] = "record.json"

    unit: str
    cell: Cell
    spec: TrainSpec | TestSpec | StudySpec | RescoreSpec

    @property
    def place(self) -> tuple[str, ...]:
        """End of the path of its file in a results folder."""
        return (*self.cell, f"{self.kind}-{self.unit}", self.file)

    def check_identity(self) -> None:
        """Check that its id is that of its specification."""
        if self.unit != self.spec.id:
            raise DamagedRecord(f"its id {shortened(self.unit, 40)} is not that of its specification, {self.spec.id}")


class Cost(_Value):
    """Cost of a training or test, as its worker measured it (:mod:`bench.engine.environment`).

    Attributes:
        cpu_seconds: Processor time of all threads; None if an earlier process did part of the training.
        peak_memory_mib: Largest resident memory while the process worked on it, MiB; None if the system cannot tell.
        peak_gpu_memory_mib: Largest memory of tensors on the GPU meanwhile, MiB; None without a GPU.
        ms_per_image: Time to read and embed a clean test image, milliseconds, median over chunks of images; None for a
            training, or with fewer images than a chunk.
    """

    cpu_seconds: float | None
    peak_memory_mib: int | None
    peak_gpu_memory_mib: int | None
    ms_per_image: float | None
    resumed: bool


class Environment(_Value):
    """Machine and software that a training or test ran on, and its run time.

    Attributes:
        machine: Type of processor, such as ``x86_64``.
        device: Name of the GPU, or ``cpu``.
        seconds: Wall-clock time of the training or test in the last process that worked on it.
        peak_memory_mib: Largest resident memory of that process so far, MiB; on Linux, since it began this work.
        micro_batch: Images that passed through the backbone at a time in training, because memory ran out with whole
            batches; None if it did not.
        chunk: Images that were embedded at a time, because memory ran out with the usual number; None if it did not.
        cost: Cost of this training or test alone; None in records that were made before it was measured.
        processor: Model of the processor, such as ``AMD EPYC 7763``; empty if the system does not tell, or in records
            of earlier versions.
        commit: Git commit of the checkout that ran it, followed by ``+`` if tracked files had changed; empty if it was
            no checkout, or in records of earlier versions.
        gpu_software: Versions of CUDA, cuDNN and the driver; empty if no GPU was used. Precision and TF32 are in the
            specification of the training (``optim.precision``).
        rounding: Hash of the first steps of a training's method on a fixed batch, equal on machines that round alike;
            empty, and not written, for tests, plug-ins and in older records.
    """

    bench: str
    torch: str
    python: str
    machine: str
    device: str
    threads: int
    seconds: float
    peak_memory_mib: int
    micro_batch: int | None = None
    chunk: int | None = None
    cost: Cost | None = None
    processor: str = ""
    commit: str = ""
    gpu_software: str = ""
    rounding: str = Field("", exclude_if=lambda digest: not digest)

    @property
    def memory_note(self) -> str:
        """Text about how the unit went on when memory ran out; empty if it did not run out."""
        parts = []
        if self.micro_batch is not None:
            parts.append(f"trained in micro-batches of {self.micro_batch}")
        if self.chunk is not None:
            parts.append(f"embedded {self.chunk} images at a time")
        return f"memory ran out: {', '.join(parts)}" if parts else ""


class Epoch(_Value):
    """Values of one epoch of a training, numbered from 1; there is a validation loss if the backbone is frozen.

    Epoch 0 of a mean head on a frozen backbone is its start, which has no training loss.
    """

    epoch: int
    loss: float | None
    val_map_at_r: float
    val_loss: float | None = None


class TrainRecord(_Unit):
    """Record of a finished training.

    Attributes:
        files: SHA-256 of its array files (weights) by name.
        manifests: SHA-256 of the content of the training (``train``) and validation (``val``) images.
        history: Loss and validation of every epoch.
        best_epoch: Number of the epoch whose weights were kept; 0 is the start.
        selection_value: Value by which that epoch was chosen, higher = better.
        val_map_at_r: Validation MAP@R of that epoch.
        val_confidence_auroc: AUROC of the default confidence on crops of the validation images at that epoch, if the
            specification asks for it; else None.
        note: Incident during the training, such as a damaged checkpoint; empty if there was none.
        weights_copy: Which copy of the weights of a file the backbone started from, ``raw`` or ``averaged``, and the
            prefix of its names; empty for random weights.
    """

    kind: ClassVar[Kind] = "train"

    spec: TrainSpec
    files: dict[FileName, str]
    num_classes: int
    channels: int
    manifests: dict[str, str]
    history: tuple[Epoch, ...]
    best_epoch: int
    selection_value: float
    val_map_at_r: float
    val_confidence_auroc: float | None = None
    note: str = ""
    weights_copy: str = ""
    environment: Environment

    @property
    def loss_note(self) -> str:
        """Text about a training whose loss was lowest in its first epoch; empty if it fell, or there was one epoch."""
        first, *later = [epoch.loss for epoch in self.history if epoch.loss is not None] or [0.0]
        if not later or min(later) < first - 1e-6 * abs(first):  # less is rounding
            return ""
        return f"the loss never fell: {first:.4g} in the first epoch, {min(later):.4g} at best later"


class Columns(_Value):
    """Columns of the table of results that are the same for all rows of a test; they identify it."""

    protocol: str
    preset: str
    dataset: str
    method: str
    base: str
    fidelity: str
    hparams: str
    trials: int
    pinned: Pinned
    backbone: str
    dim: int
    ensemble: Ensemble
    seed: int
    replicate: Replicate = Field("seed", exclude_if=lambda replicate: replicate == "seed")


KEYS = tuple(Columns.model_fields)
"""Columns that identify the experiment of a row of the tidy table."""
ROW_KEYS = ("split", "scorer", "confidence", "variant", "metric", "fraction")
"""Columns that identify the measurement; with :data:`KEYS` they identify a row."""
COLUMNS = (*KEYS, *ROW_KEYS, "value", "n_queries", "n_lone", "unit")
"""Columns of the tidy table, in order."""


class Role(_Value):
    """Facts about a test that comparisons of methods need, in addition to its measured values.

    ``trainings`` are those spent on tuning, of the base of a two-stage method and the members of an ensemble included;
    ``train`` and ``base_train`` are ids of the tested models and of their bases, as one text. ``reference`` is whether
    heads on frozen features are compared with this network.
    """

    primary_scorer: str
    default_confidence: str
    probabilistic: bool
    trainings: int
    train: str
    base_train: str
    reference: bool = Field(False, exclude_if=lambda reference: not reference)


class Curve(_Value):
    """Curve of confidence ranks against the severity of a corruption: middles of bins, and mean ranks by confidence.

    The rank of an image is its place among all test images sorted by confidence, scaled to [0, 1]; lower is less
    confident.
    """

    severity: tuple[float, ...]
    rank: dict[str, tuple[float, ...]]


class Corrupted(_Value):
    """Severities of a corruption of the test images: range, seed of the draws, and SHA-256 of what was drawn."""

    severity: tuple[float, float]
    seed: int
    sha256: str


LAYOUT = (*ROW_KEYS, "n_queries", "n_lone")
"""Columns of a row but for its value."""
NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Layout:
    """What rows are about: a tuple of :data:`LAYOUT` each. Tests that measured the same share one."""

    keys: tuple[tuple[Any, ...], ...]

    @cached_property
    def order(self) -> list[int]:
        """Places of the rows when they are sorted by :data:`ROW_KEYS`, those without a fraction last."""
        texts, shares = [key[:5] for key in self.keys], [key[5] for key in self.keys]
        return sorted(range(len(texts)), key=lambda at: (texts[at], shares[at] is None, shares[at] or 0.0))

    @cached_property
    def places(self) -> dict[tuple[str, ...], list[tuple[str, float | None, int]]]:
        """Scorer, fraction and place of the sorted rows by metric, split, variant and confidence."""
        found: dict[tuple[str, ...], list[tuple[str, float | None, int]]] = {}
        for at in self.order:
            split, scorer, confidence, variant, metric, fraction, *_ = self.keys[at]
            found.setdefault((metric, split, variant, confidence), []).append((scorer, fraction, at))
        return found


layout_of = lru_cache(maxsize=256)(Layout)


class Rows(Sequence[SplitRow]):
    """Rows of a test, kept as their layout and a vector of values (nan for None); a dictionary is made when asked for.

    A test of thousands takes 15 KB in place of 3 MB.
    """

    def __init__(self, layout: Layout, values: array[float]) -> None:
        self.layout, self.values = layout, values

    @classmethod
    def of(cls, rows: Iterable[SplitRow]) -> Rows:
        """Keep rows in this form."""
        if isinstance(rows, cls):
            return rows
        every = list(rows)
        values = (row["value"] for row in every)
        layout = layout_of(tuple(tuple(row.get(name) for name in LAYOUT) for row in every))
        return cls(layout, array("d", [NAN if value is None else value for value in values]))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: Any) -> Any:
        value = self.values[at]
        return {**dict(zip(LAYOUT, self.layout.keys[at])), "value": None if value != value else value}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


_ROWS = TypeAdapter(tuple[SplitRow, ...])


class _Measured(_Unit):
    """Record with measured values; ``brief_of`` is the checksum of the whole one, if it has some of them only."""

    rows: Annotated[
        Sequence[SplitRow],
        WrapValidator(lambda rows, check: rows if isinstance(rows, Rows) else Rows.of(check(rows))),
        PlainSerializer(list),
    ]
    brief_of: str = Field("", exclude_if=lambda checksum: not checksum)

    def brief(self, wanted: Callable[[SplitRow], bool], **changes: Any) -> Self:
        """A copy with some of the values, which names the whole record by its checksum."""
        whole = json.loads(self.to_json())["checksum"]
        return self.model_copy(update={"rows": tuple(filter(wanted, self.rows)), "brief_of": whole, **changes})


class TestRecord(_Measured):
    """Record of a finished test of one trained model, or of several of the same seed (from a cross-validation).

    Attributes:
        files: SHA-256 of its array files (embeddings) by name.
        role: The method's own scorer, default confidence and so on.
        setting: Settings of the trainings: ``params`` (of the method), ``optim``, ``batches`` and ``augmentation``.
        manifests: SHA-256 of the content of the test, training and validation images, by name.
        corruptions: Severities and seeds of the corruptions, by name.
        rows: Measured values; a value that does not exist (the correlation of a constant, say) is None.
        curves: Curves of confidence against severity, by name of the corruption.
        finished: Time of the end, seconds since 1970; of two tests of a setting and seed, tables use the later one.
        test_classes: Number of classes of the test images; None, and not written, in older records.
        brief_of: Checksum of the whole record, if this one has some of its values only; else empty and not written.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of its name
    kind: ClassVar[Kind] = "test"

    spec: TestSpec
    files: dict[FileName, str]
    columns: Columns
    role: Role
    setting: dict[str, Parameters]
    manifests: dict[str, str]
    corruptions: dict[str, Corrupted]
    curves: dict[str, Curve]
    environment: Environment
    finished: float
    test_classes: int | None = Field(None, exclude_if=lambda count: count is None)

    @property
    def trained_cell(self) -> Cell:
        """Protocol, data set and method of the trained models: its own, or those of the base of an ensemble."""
        return self.cell._replace(method=self.columns.base) if self.columns.ensemble == "seeds" else self.cell


class RescoreRecord(_Measured):
    """Record of values that were computed later from the arrays of a finished test, without a training.

    Attributes:
        spec: Specification: the test with its code, the code of the new values, and the arrays.
        rows: Measured values on test images; a value that does not exist is None.
        compared: Number of values that the test's own record has, too, in records of earlier versions; else 0.
        largest_difference: Largest absolute difference from these in such records; else None.
        left_out: Names of scorers that could not be computed, because a trained parameter of theirs is not kept.
        finished: Time of the end, seconds since 1970. Of two rescorings of a test, a value of the later one counts.
    """

    kind: ClassVar[Kind] = "rescore"

    spec: RescoreSpec
    compared: int = 0
    largest_difference: float | None = None
    left_out: tuple[str, ...]
    environment: Environment
    finished: float


class StudyRecord(_Unit):
    """Record of a tuning study that was begun; each of its trials has a record of its own."""

    kind: ClassVar[Kind] = "study"
    file: ClassVar[str] = "study.json"

    spec: StudySpec


class TrialRecord(_Record):
    """Record of a finished trial of a tuning study.

    Attributes:
        params: Tried values by name of the parameter, such as ``method.margin``.
        value: Value that the study maximises; of the two of a study for both, the MAP@R; None if the trial failed.
        reason: Reason for the failure; empty if the trial did not fail.
        val_map_at_r: Mean validation MAP@R of the trained models; None if the trial failed.
        val_confidence_auroc: Mean AUROC of their default confidence on crops of the validation images; None if the
            trial failed, or if its study does not tune for it.
        best_epochs: Epoch whose weights were kept for each model; 0 is the start.
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
    val_confidence_auroc: float | None = None
    best_epochs: tuple[int, ...] = Field(default=())

    @property
    def place(self) -> tuple[str, ...]:
        """Last parts of the path of its file in a results folder: the folder of the study and the name of the file."""
        return f"study-{self.study}", f"trial-{self.number:04d}.json"


class Marker(BaseModel):
    """Content of the marker ``store.json``, which has the schema of the records and the versions of the protocols."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: int
    protocols: dict[str, int]

    def to_json(self) -> bytes:
        """The marker as the content of its file."""
        held = {"schema": self.schema_version, "protocols": self.protocols}
        text = json.dumps({**held, "checksum": content_id(held)}, indent=1, sort_keys=True)
        return f"{text}\n".encode()


def read_marker(path: Path) -> Marker | None:
    """Read the marker of a results folder from its file, which must be whole; None if there is no file."""
    try:
        held = read_json(path.read_bytes())
        checksum = held.pop("checksum", None)  # earlier versions wrote none
        if checksum is not None and checksum != content_id(held):
            raise ValueError
        return Marker.model_validate({"schema_version": held.pop("schema"), **held})
    except FileNotFoundError:
        return None
    except (ValueError, ValidationError, RecursionError, AttributeError, KeyError, TypeError, IsADirectoryError):
        raise DamagedFile(f"{path} is damaged") from None
