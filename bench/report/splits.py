"""Results over class splits: means whose unit is the split, and the questions of a report with that unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from ..protocols.statistics.paired import summarise_splits
from ..store.folder import Store
from .compare import NAN, Comparison, decided, on_own_split, over_units
from .contender import Contender, by_budget
from .frame import Results
from .questions import CONFIDENCE, OVER_SPLITS, PLAIN, RETRIEVAL, RIVAL, SYSTEM, against_plain, plain_of, rivals
from .seeds import ComparedColumn, SeedGroup, defined_values, mean_of, seed_groups
from .table import grouped

MEAN = "mean"
"""Question of a value that is compared with nothing."""

BySplit = Mapping[int, SeedGroup]
"""Values over seeds of one contender by the number of the class split."""


def groups_by_split(results: Results) -> dict[Contender, dict[int, SeedGroup]]:
    """Values over seeds of every contender on class splits that are not the data set's own."""
    found: dict[Contender, dict[int, SeedGroup]] = {}
    for group in seed_groups(Results(results.splits, rescorings=results.rescorings).measured):
        found.setdefault(on_own_split(group.contender), {})[group.contender.pinned.class_seed] = group
    return found


def test_over_train(splits: BySplit, results: Results, *stores: Store) -> float:
    """Test over training classes of the first test of a contender whose training is here; nan if there is none."""
    units = {unit for group in splits.values() for each in group.tests for unit in each.units}
    for record in results.splits:
        if record.unit in units and record.test_classes is not None:
            every = (store.trained(record.trained_cell, record.spec.train[0]) for store in stores)
            trained = next(filter(None, every), None)
            if trained is not None:
                return record.test_classes / trained.num_classes
    return NAN


def split_comparisons(store: Store, results: Results) -> list[Comparison]:
    """Comparisons over class splits, and means, which are compared with nothing, by data set and budget."""
    every = groups_by_split(results)
    ratios = {contender: test_over_train(splits, results, store) for contender, splits in every.items()}
    found: list[Comparison] = []
    for of_dataset in grouped(every, lambda contender: contender.dataset).values():
        for place, contenders in enumerate(by_budget(of_dataset).values()):
            here, start = {each: every[each] for each in contenders}, len(found)
            numbers = sorted({number for splits in here.values() for number in splits})
            by_split = {number: [s[number] for s in here.values() if number in s] for number in numbers}
            asked = {}
            for question in OVER_SPLITS:
                pairs = {number: question.pairs(groups) for number, groups in by_split.items()}
                asked[question] = list(over_units(pairs, "split", ratios.__getitem__))
            chosen = (row for row in asked[CONFIDENCE] if row.about["chosen"])
            first = plain_of(next(iter(splits.values())) for splits in here.values())  # one for all of its class splits
            plain = on_own_split(first.contender) if first else None
            for question in (SYSTEM, PLAIN):
                asked[question] = against_plain(asked[question], dict.fromkeys(contenders, plain))
            asked[PLAIN] += _without_plain(here, plain, asked[PLAIN])
            own = grouped([*decided(chosen, CONFIDENCE), *decided(asked[PLAIN], PLAIN)], lambda row: row.contender)
            for contender in contenders:
                found += _means(contender, every[contender], ratios[contender])
                found += own.get(contender, [])
            against_each = [*rivals(asked[SYSTEM])]
            systems = grouped(decided(asked[SYSTEM], SYSTEM), lambda row: (row.use, row.column.split))
            found += [row for alike in systems.values() for row in alike]
            found += decided(against_each, RIVAL)
            for question in OVER_SPLITS:
                if question not in (CONFIDENCE, PLAIN, SYSTEM):  # these have rules of their own above
                    found += decided(asked[question], question)
            for row in found[start:]:
                row.leads = not place
    return found


def _without_plain(
    every: Mapping[Contender, BySplit], plain: Contender | None, asked: Sequence[Comparison]
) -> Iterator[Comparison]:
    """Rows without values for contenders that have no class split in common with the plain method."""
    about = {"seeds": 0, "variant": "", "left_out": ""}
    lost = every.keys() - {plain, *(row.contender for row in asked)} if plain else ()
    for contender in (each for each in lost if plain and each.common == plain.common):
        yield Comparison(question=PLAIN.name, contender=contender, against=plain, column=RETRIEVAL[0], values={},
                         others={}, unit="split", about=about)  # fmt: skip


def _means(contender: Contender, splits: BySplit, ratio: float) -> Iterator[Comparison]:
    for column in RETRIEVAL:
        means = {number: mean_of(group.column(column)) for number, group in splits.items()}
        about = {"seeds": max(group.seeds for group in splits.values())}
        row = mean_row(contender, column, means, unit="split", test_over_train=ratio, about=about)
        yield from [row] if row.n else []


def mean_row(contender: Contender, column: ComparedColumn, values: Mapping[int, float], **more: Any) -> Comparison:
    """Mean over units, which is compared with nothing."""
    known = defined_values(values)
    row = Comparison(question=MEAN, contender=contender, column=column, values=known, others={}, **more)
    if known:
        found = summarise_splits([*known.values()], row.test_over_train)
        row.mean, row.sd, row.low, row.high, row.n = astuple(found)
    return row
