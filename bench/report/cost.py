"""Cost of every contender: trainings, processor and GPU seconds, memory, time per image."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ..engine.tuning import choose
from ..store.folder import Store
from ..store.records import StudyRecord, TestRecord, TrainRecord, TrialRecord
from ..store.specs import Cell, TrainSpec
from .contender import CONTENDER, LABELS, Contender, distinct_labels
from .seeds import seeds_text
from .table import Column, Document, frame_of, grouped, held, number, table_of

Studies = Mapping[Cell, Sequence[tuple[StudyRecord, list[TrialRecord]]]]
"""Tuning studies with their trials, by protocol, data set and method."""

Trainings = dict[str, TrainRecord | None]
"""Records of trainings by id, None for one without a record."""

Trained = Callable[[Cell, str], TrainRecord | None]
"""Reads the record of a training."""


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


def costs(store: Store, tests: Iterable[TestRecord]) -> list[CostRow]:
    """Cost of every contender, sorted by contender.

    What several contenders share, such as the base of two heads, counts in full for each: it is what a user pays who
    wants one of them.
    """
    groups = grouped(tests, lambda record: Contender.of_columns(record.columns))
    studies = grouped(store.studies(), lambda study: study[0].cell) if any(each.trials for each in groups) else {}
    trained = cache(store.trained)  # a study is behind every seed and class split
    return [_row(trained, contender, own, studies) for contender, own in sorted(groups.items())]


def _row(trained: Trained, contender: Contender, tests: list[TestRecord], studies: Studies) -> CostRow:
    own, base, tuned, repeated = _trainings(trained, tests, studies)
    every = {**tuned, **base, **own}
    joint = contender.ensemble == "seeds"  # members that are no trials are among the trainings that its tests count
    taken = [test.role.trainings for test in tests]
    members = joint and not all(each and each.spec.is_trial for each in own.values())
    tuning = sum(taken) if contender.replicate == "study" else max(taken)
    of_trials = sum(each is not None and each.spec.is_trial for each in (*own.values(), *base.values()))
    tuning -= repeated + len(own) * members + of_trials
    # Records of trials may be missing altogether, those of failed ones above all.
    lost = max(tuning - len(tuned.keys() - own.keys() - base.keys()), 0)
    gaps = [f"{lost} of {tuning} tuning trainings without a record"] * (lost > 0)
    records = [None] * lost + list(every.values())
    costs = [record.environment.cost if record else None for record in records]
    memory = [cost.peak_memory_mib if cost else None for cost in costs]
    on_gpu = [cost.peak_gpu_memory_mib for cost in costs if cost]
    return CostRow(
        contender=contender,
        seeds=len(tests),
        tuning=tuning,
        base=len(base),
        own=len(own),
        wall_seconds=_mean([_wall(record) for record in own.values()]),
        cpu_seconds=_sum([cost.cpu_seconds if cost else None for cost in costs]),
        gpu_seconds=_sum(
            [0.0 if record and record.environment.device == "cpu" else _wall(record) for record in records]
        ),
        peak_memory_mib=max((value for value in memory if value), default=None) if all(memory) else None,
        peak_gpu_memory_mib=max((each for each in on_gpu if each is not None), default=None),
        ms_per_image=_mean([_ms_per_image(test) for test in tests]),
        gaps="; ".join([*gaps, *_gaps(list(every.values()), tests)]),
    )


def _trainings(
    trained: Trained, tests: Iterable[TestRecord], studies: Studies
) -> tuple[Trainings, Trainings, Trainings, int]:
    """Trainings behind a contender: its own, those of its bases, and those of the studies that tuned them.

    Last the number of those that were not needed, because a study proposed a setting again.
    """
    own: Trainings = {}
    bases: Trainings = {}
    tuned: Trainings = {}
    times: Counter[str] = Counter()
    for test in tests:
        for unit in (unit for unit in test.spec.train if unit not in own):
            record = own[unit] = trained(test.trained_cell, unit)
            found, base = [record], record.spec.base if record else None
            if base is not None and base.unit not in bases:
                bases[base.unit] = trained(test.trained_cell._replace(method=base.method), base.unit)
                found.append(bases[base.unit])
            for each in (each for each in found if each is not None and test.spec.trials):
                units = _tuned_by(each.spec, test.spec.trials, studies)
                times |= Counter(units)  # the larger count: tests share studies
                tuned |= {unit: trained(each.spec.cell, unit) for unit in units}
    return own, bases, tuned, times.total() - len(times)


def _tuned_by(spec: TrainSpec, trials: int, studies: Studies) -> list[str]:
    """Ids of the trainings of the trials of the study that chose the setting of a training, if there was one."""
    found: list[str] = []
    for study, every in studies.get(spec.cell, ()):
        # A study may have gone on for another command, and one without ranges has one trial.
        counted = [trial for trial in every if trial.number < trials]
        units = [unit for trial in counted for unit in trial.units]
        if spec.is_trial:
            if spec.id in units:  # a network that its study has chosen
                return units
            continue
        chosen = choose(study.spec.tune_for, counted)
        free = {name: getattr(spec, name) for name in _FREE}
        if chosen is None or study.spec.template.replaced(**free) != spec or not _has(spec, chosen):
            continue
        # Studies for different values may have chosen the same setting; only one of them has all trials.
        found = max(found, units, key=len)
    return found


_FREE = ("versions", "params", "optim", "replicate", "fold", "base", "crop_confidence")
"""Fields in which the trainings at the chosen setting differ from the template of the study."""


def _has(spec: TrainSpec, trial: TrialRecord) -> bool:
    """Check if a training has the tuned values of a trial."""
    groups = {"method": spec.params, "optim": spec.model_dump()["optim"]}
    names = ((name, *name.split(".", 1)) for name in trial.params)
    return all(groups[group].get(key) == trial.params[name] for name, group, key in names)


def _gaps(records: Sequence[TrainRecord | None], tests: Sequence[TestRecord]) -> Iterator[str]:
    costs = [record.environment.cost for record in records if record is not None]
    counts = {
        "without a record": records.count(None),
        "made before cost was recorded": costs.count(None),
        "resumed, whose time is that of the last process": sum(bool(cost and cost.resumed) for cost in costs),
        "whose memory the system does not tell": sum(bool(cost and not cost.peak_memory_mib) for cost in costs),
    }
    yield from (f"{count} of {len(records)} trainings {what}" for what, count in counts.items() if count)
    untimed = [test for test in tests if _ms_per_image(test) is None]
    reasons = ("too few test images to time", "tests made before cost was recorded")
    for reason, own in grouped(untimed, lambda test: reasons[test.environment.cost is None]).items():
        yield f"{reason}: {seeds_text([test.columns.seed for test in own])}"


def _wall(record: TrainRecord | None) -> float | None:
    if record is None or (record.environment.cost and record.environment.cost.resumed):
        return None
    return record.environment.seconds


def _ms_per_image(test: TestRecord) -> float | None:
    cost = test.environment.cost
    if cost is None or cost.ms_per_image is None:
        return None
    # Chunks are timed model by model; embeddings side by side need all of them.
    return cost.ms_per_image * (len(test.spec.train) if test.spec.ensemble == "concatenated" else 1)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


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


MEASURED = (
    ("s per training", "wall_seconds", 1),
    ("CPU s", "cpu_seconds", 1),
    ("GPU s", "gpu_seconds", 1),
    ("MiB", "peak_memory_mib", 0),
    ("GPU MiB", "peak_gpu_memory_mib", 0),
    ("ms per image", "ms_per_image", 2),
)
"""What was measured: heading, name in CSV files, and decimals."""


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
    *(_measured(*each) for each in MEASURED),
    Column("", fields=held("gaps")),
)
"""Columns of the tables of costs."""


def cost_document(rows: Sequence[CostRow]) -> Document:
    """Tables of costs, one per data set."""
    types = {name: float if digits else "Int64" for _, name, digits in MEASURED}
    by_dataset = grouped(rows, lambda row: row.contender.dataset)
    tables = [table_of(COLUMNS, own, dataset, notes=_notes(own), caption=ABOUT) for dataset, own in by_dataset.items()]
    return Document("cost", "Cost", ABOUT, tuple(tables), frame_of(COLUMNS, rows, **types), always=("method",))


def _notes(rows: Sequence[CostRow]) -> tuple[str, ...]:
    names = distinct_labels([row.contender for row in rows])
    gaps = grouped(rows, lambda row: row.gaps)
    texts = {reason: ", ".join(names[row.contender] for row in own) for reason, own in gaps.items()}
    return tuple(f"Gaps of {methods}: {reason}." for reason, methods in texts.items() if reason)
