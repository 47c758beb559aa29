"""Tuning studies as readers see them: what validation cannot tell apart, and what it says of a confidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import stdev
from typing import NamedTuple

from ..engine.tuning import choose, objectives
from ..store.folder import Store
from ..store.records import StudyRecord, TrialRecord
from ..store.specs import CLASS_SEED, TUNING
from .table import GAP, Column, Document, frame_of, grouped, held, label, percent, table_of

TIE = 2.8
"""SDs over seeds by which two trainings at one setting differ in 5 % of cases."""


class StudyRow(NamedTuple):
    """A tuning study with its finished trials, of which it chose one.

    ``noise`` is the SD of the value of the default setting, the first trial of every study, over the studies of the
    method; nan with a single one. ``ties`` are the trials whose value is within :data:`TIE` of these SDs of the best.
    """

    study: StudyRecord
    trials: Sequence[TrialRecord]
    chosen: TrialRecord
    noise: float
    ties: Sequence[TrialRecord]

    @property
    def aurocs(self) -> list[float]:
        """AUROC of the confidence on crops of validation images of the ties, sorted."""
        return sorted(trial.val_confidence_auroc for trial in self.ties if trial.val_confidence_auroc is not None)

    @property
    def is_reversed(self) -> bool:
        """Whether the confidence of the chosen network runs against right answers on crops of validation images."""
        return self.chosen.val_confidence_auroc is not None and self.chosen.val_confidence_auroc < 0.5

    @property
    def ranges(self) -> str:
        """Smallest and largest tuned values of the ties, as text."""
        names = self.chosen.params
        ends = {name: [trial.params[name] for trial in self.ties] for name in names}
        return ", ".join(f"{name.partition('.')[2]} {_range(values)}" for name, values in ends.items())


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def study_rows(store: Store, tested: frozenset[str]) -> list[StudyRow]:
    """Studies with a trial that did not fail, by data set and method; ``tested`` are ids of trainings."""
    studies = (
        (study, [trial for trial in trials if _value(study, trial) is not None]) for study, trials in store.studies()
    )
    rows: list[StudyRow] = []
    for own in grouped((each for each in studies if each[1]), lambda each: _alike(each[0])).values():
        # Of several studies of a number, as heads have on several bases, the longest is taken.
        longest = sorted(own, key=lambda each: len(each[1]))
        firsts = {_number(study): _value(study, trials[0]) or 0.0 for study, trials in longest if not trials[0].number}
        noise = stdev(firsts.values()) if len(firsts) > 1 else float("nan")
        for study, trials in own:
            # What a study for both chose depended on the replicates that were asked for with it.
            of_tests = [trial for trial in trials if not tested.isdisjoint(trial.units)]
            chosen = choose(study.spec.tune_for, of_tests or trials)
            assert chosen is not None
            values = [_value(study, trial) or 0.0 for trial in trials]
            ties = [trial for trial, value in zip(trials, values) if value >= max(values) - TIE * noise]
            rows.append(StudyRow(study, trials, chosen, noise, ties or [chosen]))
    return sorted(rows, key=lambda row: (row.study.cell, _split(row), _alike(row.study), _number(row.study)))


def _value(study: StudyRecord, trial: TrialRecord) -> float | None:
    found = objectives(study.spec.tune_for, trial)
    return None if found is None else found[0]


def _alike(study: StudyRecord) -> tuple[object, ...]:
    """What studies share that differ in their number alone, and in the bases that have it."""
    spec = study.spec
    return spec.template.replaced(replicate=TUNING).id, spec.tune_for, spec.sampler, spec.validate_folds


def _number(study: StudyRecord) -> int:
    return -1 if study.spec.template.replicate == TUNING else study.spec.template.number


def _split(row: StudyRow) -> int:
    return int(row.study.spec.template.view.get(CLASS_SEED) or 0)


def _confidence(row: StudyRow) -> str:
    found, aurocs = row.chosen.val_confidence_auroc, row.aurocs
    spread = f" [{percent(aurocs[0], 1)} to {percent(aurocs[-1], 1)}]" if len(aurocs) > 1 else ""
    return f"{percent(found, 1)}{spread}{': reversed on validation' * row.is_reversed}"


COLUMNS: tuple[Column[StudyRow], ...] = (
    label("method", lambda row: row.study.cell.method),
    label("study", lambda row: GAP if _number(row.study) < 0 else str(_number(row.study)), "its number"),
    label("class split", lambda row: str(_split(row) or GAP), "none: the own one", fields=held("class_split", _split)),
    Column("", fields=lambda row: {**row.study.cell._asdict(), "study": _number(row.study), "unit": row.study.unit}),
    Column("", fields=lambda row: {"tune_for": row.study.spec.tune_for, "chosen": row.chosen.number}),
    Column("trials", lambda row: str(len(row.trials)), held("trials", lambda row: len(row.trials))),
    Column(
        "tied",
        lambda row: str(len(row.ties)) if row.noise == row.noise else GAP,
        held("tied", lambda row: len(row.ties)),
        note=f"trials within {TIE} SDs over seeds of the best value",
    ),
    Column("", fields=held("seed_sd", lambda row: row.noise)),
    Column("tuned values of these", lambda row: row.ranges, held("ranges", lambda row: row.ranges), number=False),
    Column(
        "confidence on validation crops",
        _confidence,
        held("val_confidence_auroc", lambda row: row.chosen.val_confidence_auroc),
        number=False,
        note="AUROC of the default confidence of the chosen network [range of tied trials]; below 50 it is reversed",
    ),
    Column("", fields=lambda row: dict(zip(("tied_auroc_low", "tied_auroc_high"), row.aurocs[:1] + row.aurocs[-1:]))),
    Column("", fields=held("reversed", lambda row: row.is_reversed)),
)

ABOUT = (
    "What tuning cannot see: trials whose validation value is within the noise of seeds of the best one, the values of"
    " the tuned parameters among them, and the AUROC of the default confidence on crops of validation images, before"
    " any test. The noise is the SD of the default setting, the first trial of every study, over the studies."
)


def study_document(rows: Sequence[StudyRow]) -> Document:
    """A line for each tuning study."""
    tables = tuple(
        table_of(COLUMNS, own, f"{dataset}: tuning studies")
        for dataset, own in grouped(rows, lambda row: row.study.cell.dataset).items()
    )
    return Document("studies", "Tuning studies", ABOUT, tables, frame_of(COLUMNS, rows), always=("method",))


def study_lines(rows: Iterable[StudyRow]) -> Iterator[str]:
    """A line for each method with several studies: what its tuning cannot see."""
    several = (row for row in rows if row.noise == row.noise)
    for own in grouped(several, lambda row: _alike(row.study)).values():
        (_, dataset, method), split = own[0].study.cell, _split(own[0])
        where = f"{dataset}, class split {split}" if split else dataset
        tied, of = _range([len(row.ties) for row in own]), max(len(row.trials) for row in own)
        text = (
            f"tuning of {method} on {where}: {tied} of {of} trials of a study are as good as its best up to seed noise"
        )
        if aurocs := [100 * auroc for row in own for auroc in row.aurocs]:
            text += f"; AUROC on validation crops {min(aurocs):.0f} to {max(aurocs):.0f}"
        if turned := [str(_number(row.study)) for row in own if row.is_reversed]:
            text += f", reversed in {len(turned)} of {len(own)} studies ({', '.join(turned)})"
        yield text
