"""The report of a results folder: what its records say, each computed once, and the files that show it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..site import Site
from ..store.folder import Damage, Store
from ..store.records import TestRecord
from ..store.specs import Cell, versions_text
from . import views
from .compare import Comparison, Question, comparisons_frame, decided, on_own_split
from .comparison import ComparisonRow, Part, compare_within, comparison_document, parts
from .contender import Budget, Contender, by_budget
from .cost import CostRow, cost_document, costs
from .figures.registry import Note, Source, write_automatic
from .frame import Results, confidences, provenance, scorers
from .questions import BASE, CONFIDENCE, FORM, PAIR, QUESTIONS, RIVAL, SYSTEM
from .ranks import over_datasets, rank_document
from .render import write_documents
from .seeds import SeedGroup, corruptions, divided, seed_groups
from .splits import MEAN, split_comparisons
from .studies import StudyRow, study_document, study_rows
from .table import Document, grouped


@dataclass(frozen=True)
class Judged:
    """The finished tests of a results folder, and what follows from them, computed when it is first asked for."""

    store: Store
    results: Results
    _asked: dict[str, list[Comparison]] = field(default_factory=dict, init=False)

    @property
    def tests(self) -> tuple[TestRecord, ...]:
        """The tests that count, and those on class splits."""
        return (*self.results.tests, *self.results.splits)

    @cached_property
    def groups(self) -> list[SeedGroup]:
        """Values over seeds of every contender."""
        return seed_groups(self.results.measured)

    @cached_property
    def budgets(self) -> dict[str, dict[Budget, list[ComparisonRow]]]:
        """Rows of the comparison by data set and budget, the leading budget first."""
        held = {group.contender: group for group in self.groups}
        return {
            name: {
                budget: compare_within([held[each] for each in own])
                for budget, own in by_budget(group.contender for group in groups).items()
            }
            for (name,), groups in divided(self.groups, ["dataset"]).items()
        }

    @cached_property
    def comparison(self) -> list[Part]:
        """Tables of the comparison."""
        return [part for name, budgets in self.budgets.items() for part in parts(name, budgets)]

    def ask(self, question: Question) -> list[Comparison]:
        """Comparisons of a question over seeds or replicates."""
        if question.name not in self._asked:
            self._asked[question.name] = decided(question.pairs(self.groups), question)
        return self._asked[question.name]

    @cached_property
    def splits(self) -> list[Comparison]:
        """Comparisons and means over class splits."""
        return split_comparisons(self.store, self.results)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """All comparisons of the report, over seeds and over class splits."""
        seeds = [row for question in QUESTIONS for row in self.ask(question)]
        return [*seeds, *(row for row in self.splits if row.question != MEAN)]

    @cached_property
    def costs(self) -> list[CostRow]:
        """Costs of the contenders."""
        return costs(self.store, self.results.tests)

    @cached_property
    def codes(self) -> dict[str, str]:
        """Code of each tested training whose record is there, by its id."""
        places = {unit: test.trained_cell for test in self.tests for unit in test.spec.train}
        found = (self.store.trained(cell, unit) for unit, cell in places.items())
        return {record.unit: versions_text(record.spec.versions) for record in found if record}

    @cached_property
    def mixed(self) -> list[str]:
        """Sentences about contenders whose networks were trained by different codes, yet are one row."""
        said = []
        for of, own in grouped(self.tests, lambda test: on_own_split(Contender.of_columns(test.columns))).items():
            codes = sorted({self.codes[unit] for test in own for unit in test.spec.train if unit in self.codes})
            if len(codes) > 1:
                said.append(f"{of.name} on {of.dataset}: trained by {len(codes)} codes: {'; '.join(codes)}.")
        return said

    @cached_property
    def studies(self) -> list[StudyRow]:
        """Tuning studies, by data set and method."""
        return study_rows(self.store, self.results.trained)

    @cached_property
    def over_splits(self) -> set[str]:
        """Data sets whose systems were compared over class splits: those answer, not the seeds on their own split."""
        return {row.contender.dataset for row in self.splits if row.question == SYSTEM.name and row.n > 1}

    @cached_property
    def untested(self) -> dict[str, list[str]]:
        """Methods that were begun and have no finished test, by data set."""
        tested = {record.cell for record in self.tests}
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

    asked = grouped(judged.comparisons, lambda row: row.question)
    documents = [
        comparison_document(judged.comparison, judged.untested, judged.splits),
        views.split_document(judged.splits),
        views.verdict_document(judged.ask(CONFIDENCE)),
        views.system_document(judged.ask(SYSTEM)),
        views.rival_document(asked.get(RIVAL.name, ())),
        views.decision_document(views.decisions(judged.groups, judged.ask(PAIR))),
        cost_document(judged.costs),
        views.form_document(asked.get(FORM.name, ())),
        rank_document(over_datasets(judged.groups)),
        study_document(judged.studies),
    ]
    numbers = {
        "comparisons": comparisons_frame(judged.comparisons),
        "confidences": confidences(judged.results),
        "corruptions": corruptions(judged.groups),
        "paired": views.paired_frame(judged.ask(PAIR)),
        "paired_with_base": views.base_frame(asked.get(BASE.name, ())),
        "provenance": provenance(judged.results, judged.codes),
        "scorers": scorers(judged.results),
    }
    documents += [Document(name, numbers=each) for name, each in numbers.items()]
    source = Source(site or Site(results=str(judged.store.root)), judged.results)
    tables = write_documents(documents, out)
    figures = write_automatic(source, out, note)
    pictures = [path for path in figures if path.name.startswith("images_") and path.suffix == ".png"]
    return [write_page(judged, damaged, out, pictures), *tables, *figures]
