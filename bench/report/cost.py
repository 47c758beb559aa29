"""Cost of every contender: trainings, processor and GPU seconds, memory, time per image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..engine.choice import choose
from ..store.folder import Store
from ..store.records import Cost, StudyRecord, TestRecord, TrainRecord, TrialRecord
from ..store.specs import Cell, TrainSpec
from .contender import CONTENDER, LABELS, Contender, by_dataset, distinct_labels
from .seeds import seeds_text
from .table import Column, Document, frame_of, held, number, table_of

Studies = Mapping[Cell, Sequence[tuple[StudyRecord, list[TrialRecord]]]]
"""Tuning studies with their trials, by protocol, data set and method."""


@dataclass(frozen=True)
class CostRow:
    """Cost of one contender with all its seeds: that of its tuning and of its base included.

    A value is None if one of the trainings or tests that it is made of lacks it; ``gaps`` says which. ``tuning`` is the
    number of trainings spent on tuning the method and its base, ``base`` that of trained bases, ``own`` that of its own
    final trainings; of an ensemble, its members. ``wall_seconds`` is the mean of a final training, processor and GPU
    seconds are those of all, memory is the largest of any, and ``ms_per_image`` the mean over seeds to read and embed
    an image.
    """

    contender: Contender
    seeds: int
    tuning: int
    base: int
    own: int
    wall_seconds: float | None
    cpu_seconds: float | None
    gpu_seconds: float | None
    peak_memory_mib: int | None
    peak_gpu_memory_mib: int | None
    ms_per_image: float | None
    gaps: str

    @property
    def trainings(self) -> int:
        """Number of all trainings that its results took."""
        return self.tuning + self.base + self.own


@dataclass
class _Trainings:
    """Trainings behind a contender: their records by id, None for one without a record."""

    own: dict[str, TrainRecord | None] = field(default_factory=dict)
    base: dict[str, TrainRecord | None] = field(default_factory=dict)
    tuning: dict[str, TrainRecord | None] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, TrainRecord | None]:
        return {**self.tuning, **self.base, **self.own}


def costs(store: Store, tests: Iterable[TestRecord]) -> list[CostRow]:
    """Cost of every contender, sorted by contender.

    What several contenders share, such as the base of two heads, counts in full for each: it is what a user pays who
    wants one of them.
    """
    groups: dict[Contender, list[TestRecord]] = {}
    for record in tests:
        groups.setdefault(Contender(*(getattr(record.columns, key) for key in Contender._fields)), []).append(record)
    studies: dict[Cell, list[tuple[StudyRecord, list[TrialRecord]]]] = {}
    if any(contender.trials for contender in groups):
        for study, trials in store.studies():
            studies.setdefault(study.cell, []).append((study, trials))
    return [_row(store, contender, groups[contender], studies) for contender in sorted(groups)]


def _row(store: Store, contender: Contender, tests: list[TestRecord], studies: Studies) -> CostRow:
    trainings = _Trainings()
    for test in tests:
        _add_trainings(store, test, trainings, studies)
    joint = contender.ensemble == "seeds"  # its members are among the trainings that its tests count
    tuning = max(test.role.trainings - len(test.spec.train) * joint for test in tests)
    every = trainings.all
    gaps = [*_gaps_of_trainings(every), *_gaps_of_tests(tests)]
    # Records of trials may be missing altogether, those of failed ones above all.
    lost = max(tuning - len(trainings.tuning), 0)
    if lost:
        gaps.insert(0, f"{lost} of {tuning} tuning trainings without a record")
    records = [None] * lost + list(every.values())
    measured = [record.environment.cost if record else None for record in records]
    cpu, memory, gpu_memory = (
        [getattr(cost, name) if cost else None for cost in measured]
        for name in ("cpu_seconds", "peak_memory_mib", "peak_gpu_memory_mib")
    )
    walls = [_wall(record) for record in trainings.own.values()]
    return CostRow(
        contender=contender,
        seeds=len(tests),
        tuning=tuning,
        base=len(trainings.base),
        own=len(trainings.own),
        wall_seconds=_mean(walls),
        cpu_seconds=_sum(cpu),
        gpu_seconds=_sum([_on_gpu(record) for record in records]),
        peak_memory_mib=max((value for value in memory if value is not None), default=None) if all(memory) else None,
        peak_gpu_memory_mib=max((value for value in gpu_memory if value is not None), default=None),
        ms_per_image=_mean([_ms_per_image(test) for test in tests]),
        gaps="; ".join(gaps),
    )


def _add_trainings(store: Store, test: TestRecord, found: _Trainings, studies: Studies) -> None:
    for unit in test.spec.train:
        if unit in found.own:
            continue
        record = found.own[unit] = store.trained(test.trained_cell, unit)
        if record is None:
            continue
        found.tuning |= _tuned_by(store, record.spec, test.spec.trials, studies)
        reference = record.spec.base
        if reference is not None and reference.unit not in found.base:
            base = store.trained(test.trained_cell._replace(method=reference.method), reference.unit)
            found.base[reference.unit] = base
            if base is not None:
                found.tuning |= _tuned_by(store, base.spec, test.spec.trials, studies)


def _tuned_by(store: Store, spec: TrainSpec, trials: int, studies: Studies) -> dict[str, TrainRecord | None]:
    """Trainings of the study that chose the setting of a training, if there was one."""
    if not trials:
        return {}
    found: dict[str, TrainRecord | None] = {}
    for study, every in studies.get(spec.cell, ()):
        # A study may have gone on for another command, and one without ranges has one trial.
        counted = [trial for trial in every if trial.number < trials]
        chosen = choose(study.spec.tune_for, counted)
        free = {name: getattr(spec, name) for name in _FREE}
        if chosen is None or study.spec.template.replaced(**free) != spec or not _has(spec, chosen):
            continue
        units = [unit for trial in counted for unit in trial.units]
        # Studies for different values may have chosen the same setting; only one of them has all trials.
        if len(units) > len(found):
            found = {unit: store.trained(spec.cell, unit) for unit in units}
    return found


_FREE = ("versions", "params", "optim", "replicate", "fold", "base", "crop_confidence")
"""Fields in which the trainings at the chosen setting differ from the template of the study."""


def _has(spec: TrainSpec, trial: TrialRecord) -> bool:
    """Check if a training has the tuned values of a trial."""
    groups = {"method": spec.params, "optim": spec.model_dump()["optim"]}
    names = ((name, *name.split(".", 1)) for name in trial.params)
    return all(groups[group].get(key) == trial.params[name] for name, group, key in names)


def _gaps_of_trainings(records: Mapping[str, TrainRecord | None]) -> Iterator[str]:
    found = [record for record in records.values() if record is not None]
    measured = [record.environment.cost for record in found]
    counts = {
        "without a record": len(records) - len(found),
        "made before cost was recorded": sum(cost is None for cost in measured),
        "resumed, whose time is that of the last process": sum(bool(cost and cost.resumed) for cost in measured),
        "whose memory the system does not tell": sum(bool(cost and not cost.peak_memory_mib) for cost in measured),
    }
    yield from (f"{count} of {len(records)} trainings {what}" for what, count in counts.items() if count)


def _gaps_of_tests(tests: Sequence[TestRecord]) -> Iterator[str]:
    seeds: dict[str, list[int]] = {}
    for test in tests:
        cost = test.environment.cost
        if cost is None:
            seeds.setdefault("tests made before cost was recorded", []).append(test.columns.seed)
        elif cost.ms_per_image is None:
            seeds.setdefault("too few test images to time", []).append(test.columns.seed)
    yield from (f"{what}: {seeds_text(those)}" for what, those in seeds.items())


def _resumed(cost: Cost | None) -> bool:
    return cost is not None and cost.resumed


def _wall(record: TrainRecord | None) -> float | None:
    return None if record is None or _resumed(record.environment.cost) else record.environment.seconds


def _on_gpu(record: TrainRecord | None) -> float | None:
    return 0.0 if record is not None and record.environment.device == "cpu" else _wall(record)


def _ms_per_image(test: TestRecord) -> float | None:
    cost = test.environment.cost
    if cost is None or cost.ms_per_image is None:
        return None
    # Chunks are timed model by model; embeddings side by side need all of them.
    return cost.ms_per_image * (len(test.spec.train) if test.spec.ensemble == "concatenated" else 1)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    total = _sum(values)
    return total / len(values) if total is not None and values else None


ABOUT = (
    "Trainings: all that a row took, tuning + bases + its own. s per training: wall-clock time of one of its own."
    " CPU s, GPU s: processor time of all its trainings, and wall-clock time of those on a GPU. MiB: largest resident"
    " memory of a training, and largest memory of tensors on the GPU. ms per image: time to read and embed a clean test"
    " image. A base or study that several rows share counts in full for each."
)
"""Legend of the tables of costs."""


def _measured(title: str, name: str, digits: int) -> Column[CostRow]:
    return Column(title, lambda row: number(getattr(row, name), digits), held(name))


COLUMNS: tuple[Column[CostRow], ...] = (
    CONTENDER,
    *LABELS,
    Column("seeds", fields=held("seeds")),
    Column("trainings", fields=held("trainings")),
    Column(
        "tuning + bases + own",
        lambda row: f"{row.tuning} + {row.base} + {row.own}",
        lambda row: {"tuning_trainings": row.tuning, "base_trainings": row.base, "own_trainings": row.own},
    ),
    _measured("s per training", "wall_seconds", 1),
    _measured("CPU s", "cpu_seconds", 1),
    _measured("GPU s", "gpu_seconds", 1),
    _measured("MiB", "peak_memory_mib", 0),
    _measured("GPU MiB", "peak_gpu_memory_mib", 0),
    _measured("ms per image", "ms_per_image", 2),
    Column("", fields=held("gaps")),
)
"""Columns of the tables of costs."""

_MEASURED = ("wall_seconds", "cpu_seconds", "gpu_seconds", "peak_memory_mib", "peak_gpu_memory_mib", "ms_per_image")


def cost_document(rows: Sequence[CostRow]) -> Document:
    """Tables of costs, one per data set."""
    numbers = frame_of(COLUMNS, rows)
    if not numbers.empty:
        numbers = numbers.astype(dict.fromkeys(_MEASURED, float)).astype(dict.fromkeys(_MEASURED[3:5], "Int64"))
    tables = [
        table_of(COLUMNS, own, dataset, notes=_notes(own), caption=ABOUT) for dataset, own in by_dataset(rows).items()
    ]
    return Document("cost", "Cost", ABOUT, tuple(tables), numbers, always=("method",))


def _notes(rows: Sequence[CostRow]) -> tuple[str, ...]:
    names = distinct_labels([row.contender for row in rows])
    gaps: dict[str, list[str]] = {}
    for row in rows:
        gaps.setdefault(row.gaps, []).append(names[row.contender])
    return tuple(f"Gaps of {', '.join(methods)}: {reason}." for reason, methods in gaps.items() if reason)
