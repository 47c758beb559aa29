"""``bench.results``: the records of a results folder as data frames."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path

import pandas as pd

from ..commands.options import DEFAULT_RESULTS, open_results
from ..report.compare import comparisons_frame
from ..report.comparison import comparison_frame
from ..report.frame import as_texts, collect
from ..report.per_query import kept_queries
from ..report.questions import CONFIDENCE, SYSTEM
from ..report.render import to_html
from ..report.views import system_document, verdict_document
from ..report.write import Judged
from ..store.folder import Store


def results(folder: str | PathLike[str] = DEFAULT_RESULTS) -> Results:
    """Open a results folder, or the archive of one, to read its records as data frames.

    Args:
        folder: Results folder of ``bench run``.

    Returns:
        The records. In a notebook they are shown as verdicts on the confidences.

    Raises:
        UserError: If it is no results folder, or of another version.

    Example:
        ::

            r = bench.results("results/runs")
            shown = r.metrics.query("metric == 'map_at_r' and split == 'test' and scorer == 'cosine'")  # one ranking
            shown.groupby(["dataset", "method", "base", "hparams", "pinned"])["value"].mean()
            r.comparison, r.verdicts, r.trials, r.history, r.queries
    """
    return Results(open_results(Path(folder)))


class Results:
    """Records of a results folder as data frames, each made when it is first asked for.

    The records are read once: call :func:`bench.results` again after another run. Damaged files are left out, with a
    warning (``UserWarning``) for each.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        store.on_damage = lambda damage: warnings.warn(f"left out: {damage.path}: {damage.reason}", stacklevel=1)

    @cached_property
    def _judged(self) -> Judged:
        found = collect(self._store)
        self._store.keep_in_mind()
        return Judged(self._store, found)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Every value on data sets' own class splits, a row each: the table ``metrics.csv`` of ``bench report``."""
        frame = self._judged.results.frame
        return as_texts(frame).assign(pinned=frame["pinned"].map(str))

    @cached_property
    def comparison(self) -> pd.DataFrame:
        """The comparison of methods, a row each and data set: the table ``comparison.csv`` of ``bench report``."""
        return comparison_frame(self._judged.comparison)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """Verdicts on the confidences, a row each: those of ``verdicts.csv`` under the ranking that counts."""
        return verdict_document([row for row in self._judged.ask(CONFIDENCE) if row.about["chosen"]]).numbers

    @cached_property
    def systems(self) -> pd.DataFrame:
        """Methods with a confidence of their own against the plain method with a free one, as in ``systems.csv``."""
        return system_document(self._judged.ask(SYSTEM)).numbers

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """All comparisons of the report, a row each: the table ``comparisons.csv``."""
        return comparisons_frame(self._judged.comparisons)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Tuning trials of all studies, a row each, with what was tried (``method.margin``, ``optim.lr``, ..)."""
        shown = {"number", "state", "value", "reason", "val_map_at_r", "val_confidence_auroc"}
        return pd.DataFrame(
            {
                "dataset": study.cell.dataset,
                "study": study.unit,
                "method": study.cell.method,
                "metric": study.spec.template.selection.metric,
                "tune_for": study.spec.tune_for,
                **trial.model_dump(include=shown),
                **trial.params,
            }
            for study, trials in self._store.studies()
            for trial in trials
        )

    @cached_property
    def history(self) -> pd.DataFrame:
        """Epochs of all finished trainings, a row each; of those of tuning, ``seed`` is ``tuning``, and its study."""
        return pd.DataFrame(
            {
                **record.cell._asdict(),
                "seed": record.spec.replicate,
                "fold": record.spec.fold,
                "unit": record.unit,
                **epoch.model_dump(),
                "best_epoch": record.best_epoch,
            }
            for record in self._store.trainings()
            for epoch in record.history
        )

    @cached_property
    def queries(self) -> pd.DataFrame:
        """What the tests have kept of every query of the test images, clean and corrupted, a row each and scorer.

        Columns are the test (``dataset``, ``method``, ``seed``, ``unit``, ``split``), ``scorer``, ``id`` of the image,
        ``answer`` (its nearest one), ``recall_at_1``, ``average_precision``, and every confidence, as
        ``confidence.margin``. Tests of an archive without a copy of its queries are left out.
        """
        return kept_queries(self._judged.results.tests, self._store)

    def __repr__(self) -> str:
        tests = self._judged.results.tests
        methods, datasets = ({getattr(each.columns, name) for each in tests} for name in ("method", "dataset"))
        return f"<{self._store.root}: {len(tests)} tests of {len(methods)} methods on {', '.join(sorted(datasets))}>"

    def _repr_html_(self) -> str:

        chosen = [row for row in self._judged.ask(CONFIDENCE) if row.about["chosen"]]
        return "\n".join(to_html(replace(table, small="small")) for table in verdict_document(chosen).tables)
