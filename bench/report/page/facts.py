"""Facts that all parts of a page are made of: the tables of the report, by data set, and the names of their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...store.records import TestRecord
from ..budgets import Budget, budget_texts, is_untuned, method_names
from ..comparison import ComparisonRow
from ..contender import Contender, distinct_labels
from ..judged import Judged
from ..seeds import COMPARED, ComparedColumn, SeedGroup, SeedStatistics
from ..verdicts import Verdict

RETRIEVAL = next(column for column in COMPARED if column.metric == "map_at_r")
"""Column of the comparison by which methods are ranked."""


@dataclass
class Anchors:
    """Ids of the parts of a page, which links lead to: each is unique and a function of the names it is made of."""

    taken: set[str] = field(default_factory=set)

    def of(self, *names: str) -> str:
        """Make an id of names, in lower-case letters, digits and hyphens; equal ones get a number.

        Example:
            >>> anchors = Anchors()
            >>> anchors.of("verdict", "a <b>"), anchors.of("verdict", "A_B")
            ('verdict-a-b', 'verdict-a-b-2')
        """
        slug = re.sub(r"[^a-z0-9]+", "-", " ".join(names).lower())[:80].strip("-") or "part"
        anchor, number = slug, 1
        while anchor in self.taken:
            number += 1
            anchor = f"{slug}-{number}"
        self.taken.add(anchor)
        return anchor


@dataclass(frozen=True)
class DatasetFacts:
    """Everything that the page says about the methods of one data set at one budget, which words compare.

    Rows of the comparison are by mean MAP@R, the highest first. ``models`` are the trained networks behind one result
    of each contender: those of an ensemble or of all folds. ``methods`` are those with results at any budget. Anchors
    are ids of rows, and of this part of the verdict; ``settings`` are those of its trainings that matter most, as text.
    """

    name: str
    budget: Budget
    budget_text: str
    rows: tuple[ComparisonRow, ...]
    groups: Mapping[Contender, SeedGroup]
    verdicts: tuple[Verdict, ...]
    labels: Mapping[Contender, str]
    anchors: Mapping[Contender, str]
    anchor: str
    models: Mapping[Contender, int]
    methods: tuple[str, ...]
    settings: str = ""

    def is_probabilistic(self, row: ComparisonRow) -> bool:
        """True if the embedding of a method is a distribution."""
        return self.groups[row.contender].probabilistic

    @property
    def own(self) -> list[str]:
        """Names of the methods that have results at this budget, sorted."""
        return method_names(row.contender for row in self.rows)

    @property
    def absent(self) -> list[str]:
        """Names of the methods that the data set has results of, but none at this budget."""
        return sorted(set(self.methods) - set(self.own))

    @property
    def untuned(self) -> list[str]:
        """Names of methods with one trial among others with more, since they have nothing to tune."""
        if self.budget.trials < 2:
            return []
        return [self.labels[row.contender] for row in self.rows if is_untuned(row.contender)]


def dataset_facts(judged: Judged, anchors: Anchors) -> list[DatasetFacts]:
    """What the records say, divided by data set and budget, the leading one first; adds ids of rows to anchors."""
    answers: dict[Contender, list[Verdict]] = {}
    for each in judged.verdicts:
        answers.setdefault(each.contender, []).append(each)
    models = _models(judged.results.tests)
    found = []
    for name, budgets in judged.budgets.items():
        groups = {group.contender: group for group in judged.by_dataset[name]}
        texts = budget_texts(list(budgets))
        methods = tuple(method_names(groups))
        for place, (budget, rows) in enumerate(budgets.items()):
            contenders = [contender for contender in groups if contender in {row.contender for row in rows}]
            labels = distinct_labels(contenders)
            # The short ids are those of the leading budget.
            which = [texts[budget]] if place else []
            found.append(
                DatasetFacts(
                    name,
                    budget,
                    texts[budget],
                    tuple(rows),
                    {contender: groups[contender] for contender in contenders},
                    tuple(each for contender in contenders for each in answers.get(contender, ())),
                    labels,
                    {row.contender: anchors.of("result", name, labels[row.contender], *which) for row in rows},
                    anchors.of("verdict", name, *which),
                    models,
                    methods,
                )
            )
    return found


def contender_of(test: TestRecord) -> Contender:
    """Contender that a test is of."""
    return Contender(*(getattr(test.columns, name) for name in Contender._fields))


def _models(tests: tuple[TestRecord, ...]) -> dict[Contender, int]:
    """Number of networks of a test of each contender; of several tests, the largest."""
    found: dict[Contender, int] = {}
    for test in tests:
        contender = contender_of(test)
        found[contender] = max(len(test.spec.train), found.get(contender, 1))
    return found


def statistics_of(row: ComparisonRow, column: ComparedColumn) -> SeedStatistics:
    """Mean and SD over seeds in one column of a row of the comparison."""
    return row.values[COMPARED.index(column)]
