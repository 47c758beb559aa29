"""The report of a results folder: what its records say, each computed once, and the files that show it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from ..site import Site
from ..store.folder import Damage, Store
from ..store.specs import Cell
from .comparison import ComparisonRow, compare, comparison_document, rows_by_budget
from .contender import Budget
from .cost import CostRow, cost_document, costs
from .figures.registry import write_automatic
from .figures.source import Note, Source
from .frame import Results, confidences, provenance, scorers
from .pairing import (
    Decision,
    decision_document,
    decisions,
    form_differences,
    form_document,
    paired_methods,
    paired_with_base,
)
from .ranks import OverDatasets, over_datasets, profile_frame, rank_document
from .render import write_documents
from .seeds import SeedGroup, corruptions, divided, seed_groups
from .splits import OverSplits, over_splits, split_document
from .systems import System, system_document, systems
from .table import Document, grouped
from .variance import SourceShare, shares_of_variance, spreads, variance_document
from .verdicts import Verdict, verdict_document, verdicts


@dataclass(frozen=True)
class Judged:
    """The finished tests of a results folder, and what follows from them, computed when it is first asked for."""

    store: Store
    results: Results

    @cached_property
    def groups(self) -> list[SeedGroup]:
        """Values over seeds of every contender."""
        return seed_groups(self.results.merged) if self.results.tests else []

    @cached_property
    def by_dataset(self) -> dict[str, list[SeedGroup]]:
        """The same, by data set."""
        return {name: groups for (name,), groups in divided(self.groups, ["dataset"]).items()}

    @cached_property
    def budgets(self) -> dict[str, dict[Budget, list[ComparisonRow]]]:
        """Rows of the comparison by data set and budget, the leading budget first."""
        return {name: rows_by_budget(groups) for name, groups in self.by_dataset.items()}

    @cached_property
    def comparison(self) -> dict[str, list[ComparisonRow]]:
        """Rows of the comparison by data set."""
        return {name: compare(groups, self.budgets[name]) for name, groups in self.by_dataset.items()}

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Verdicts on the confidences."""
        return verdicts(self.groups, apart=self.over_splits)

    @cached_property
    def systems(self) -> list[System]:
        """Methods with their own confidences against the plain method with a free one."""
        return systems(self.groups, self.over_splits)

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Differences of every two contenders."""
        return paired_methods(self.groups)

    @cached_property
    def decisions(self) -> list[Decision]:
        """Decisions against the best contender."""
        return decisions(self.groups, self.pairs)

    @cached_property
    def costs(self) -> list[CostRow]:
        """Costs of the contenders."""
        return costs(self.store, self.results.tests)

    @cached_property
    def forms(self) -> pd.DataFrame:
        """Differences between the forms of methods."""
        return form_differences(self.groups)

    @cached_property
    def over_datasets(self) -> list[OverDatasets]:
        """Values over all data sets."""
        return over_datasets(self.groups)

    @cached_property
    def splits(self) -> list[OverSplits]:
        """Values over class splits."""
        return over_splits(self.store, self.results)

    @cached_property
    def over_splits(self) -> set[str]:
        """Data sets whose systems were compared over class splits: those answer, not the seeds on their own split."""
        return {each.contender.dataset for each in self.splits if each.question and len(each.values) > 1}

    @cached_property
    def variance(self) -> list[SourceShare]:
        """Shares of the sources of randomness, and the spread over seeds and class splits."""
        shares = shares_of_variance(self.results)
        return [*shares, *spreads(self.groups, self.splits, shares)]

    @cached_property
    def numbers(self) -> dict[str, pd.DataFrame]:
        """Tables that are CSV files alone, by name."""
        return {
            "confidences": confidences(self.results.frame),
            "corruptions": corruptions(self.groups),
            "paired": self.pairs,
            "paired_with_base": paired_with_base(self.groups),
            "profiles": profile_frame(self.over_datasets),
            "provenance": provenance(self.results),
            "scorers": scorers(self.results.frame),
        }

    @cached_property
    def untested(self) -> dict[str, list[str]]:
        """Methods that were begun and have no finished test, by data set."""
        tested = {record.cell for record in (*self.results.tests, *self.results.frozen, *self.results.splits)}
        tested |= {record.trained_cell for record in self.results.tests}
        root = self.store.root
        cells = [Cell(*path.relative_to(root).parts) for path in sorted(root.glob("[!.]*/*/*"))]
        lost = (cell for cell in cells if cell not in tested and any(root.joinpath(*cell).glob("t*-*")))
        begun = grouped(lost, lambda cell: cell.dataset)
        return {dataset: [cell.method for cell in own] for dataset, own in begun.items()}


def write_report(
    judged: Judged, out: Path, note: Note, site: Site | None = None, damaged: Iterable[Damage] = ()
) -> list[Path]:
    """Write the page, tables and figures to ``out``, in this order of paths; the same records give the same files.

    With a site, pictures are drawn if its data sets are at hand.
    """
    from .page.page import write_page  # late: it is made of what this module computes

    documents = [
        comparison_document(judged.comparison, judged.untested, judged.splits),
        split_document(judged.splits),
        verdict_document(verdicts(judged.groups, every_ranking=True, apart=judged.over_splits)),
        system_document(judged.systems),
        decision_document(judged.decisions),
        cost_document(judged.costs),
        form_document(judged.forms),
        rank_document(judged.over_datasets),
        variance_document(judged.variance),
    ]
    documents += [Document(name, numbers=numbers) for name, numbers in judged.numbers.items()]
    source = Source(site or Site(results=str(judged.store.root)), judged.results)
    tables = write_documents(documents, out)
    figures = write_automatic(source, out, note)
    pictures = [path for path in figures if path.name.startswith("images_") and path.suffix == ".png"]
    return [write_page(judged, damaged, out, pictures), *tables, *figures]
