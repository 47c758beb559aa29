"""What the records of a results folder say: everything that tables, page and terminal show, each computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from ..store.folder import Store
from .ambiguity import Regrets, regrets
from .budgets import Budget
from .comparison import ComparisonRow, compare, rows_by_budget
from .cost import CostRow, costs
from .decisions import Decision, decisions
from .fidelity import fidelity_table
from .frame import Results
from .over_datasets import OverDatasets, over_datasets
from .pairing import paired_methods
from .provenance import provenance_frame
from .seeds import SeedGroup, divided, seed_groups
from .verdicts import Verdict, verdicts


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
        return verdicts(self.groups)

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
    def over_datasets(self) -> list[OverDatasets]:
        """Values over all data sets."""
        return over_datasets(self.groups)

    @cached_property
    def forms(self) -> pd.DataFrame:
        """Differences between the forms of methods."""
        return fidelity_table(self.groups)

    @cached_property
    def regrets(self) -> Regrets:
        """Regrets of the confidences."""
        return regrets(self.groups)

    @cached_property
    def provenance(self) -> pd.DataFrame:
        """Who made each result, where, when and with what."""
        return provenance_frame(self.results)
