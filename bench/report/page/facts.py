"""Facts that all parts of a page are made of: the tables of the report, by data set, and the names of their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from ..comparison import ComparisonRow, comparison
from ..contender import Contender, distinct_labels
from ..frame import Results
from ..seeds import COMPARED, ComparedColumn, SeedGroup, SeedStatistics, seed_groups
from ..verdicts import Verdict, verdicts

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
    """Everything that the page says about one data set.

    Attributes:
        name: Name of the data set.
        rows: Rows of the comparison, highest mean MAP@R first.
        groups: Values over seeds of each contender (method at one setting).
        verdicts: Verdicts about its confidences.
        labels: Names of the contenders, which tell them apart.
        anchors: Ids of their rows on the page.
        anchor: Id of the data set's part of the verdict.
    """

    name: str
    rows: tuple[ComparisonRow, ...]
    groups: Mapping[Contender, SeedGroup]
    verdicts: tuple[Verdict, ...]
    labels: Mapping[Contender, str]
    anchors: Mapping[Contender, str]
    anchor: str

    def is_probabilistic(self, row: ComparisonRow) -> bool:
        """True if the embedding of a method is a distribution."""
        return self.groups[row.contender].probabilistic


def dataset_facts(results: Results, anchors: Anchors) -> list[DatasetFacts]:
    """Compute the tables of the report and divide them by data set, in the order of their names.

    Args:
        results: The finished tests.
        anchors: Ids of the page; those of the rows are added.
    """
    answers = verdicts(results.frame, results.roles)
    merged = results.frame.merge(results.roles, on="unit")
    found = []
    for name, rows in comparison(results.frame, results.roles).items():
        groups = {group.contender: group for group in seed_groups(_of(merged, name))}
        labels = distinct_labels(list(groups))
        found.append(
            DatasetFacts(
                name,
                tuple(rows),
                groups,
                tuple(each for each in answers if each.contender.dataset == name),
                labels,
                {row.contender: anchors.of("result", name, labels[row.contender]) for row in rows},
                anchors.of("verdict", name),
            )
        )
    return found


def _of(frame: pd.DataFrame, dataset: str) -> pd.DataFrame:
    return frame[frame["dataset"] == dataset]


def statistics_of(row: ComparisonRow, column: ComparedColumn) -> SeedStatistics:
    """Mean and SD over seeds in one column of a row of the comparison."""
    return row.values[COMPARED.index(column)]
