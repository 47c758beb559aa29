"""What ``bench report`` writes on request: intervals from embeddings, forms of the papers, files of other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from ..engine.tuning import choose, distributions_of, objectives
from ..errors import UserError, require_known
from ..papers.items import every_item
from ..report.exchange import published, write_hub
from ..report.frame import as_texts
from ..report.render import write_documents
from ..report.table import Document
from ..report.write import Judged
from ..resources import require_hub
from ..scoring.parquet import check_pyarrow
from ..site import Site
from ..store.files import write_atomic
from ..store.folder import Store

PARQUET = "parquet"
OPTUNA = "optuna"

HUB = "hub"

OTHERS = (PARQUET, OPTUNA, HUB)


def check_extras(chosen: Sequence[str]) -> None:
    """Check names of extras: :data:`OTHERS` and tables of papers, such as ``per/table1``."""
    forms = [name for name, item in every_item().items() if item.columns("")]
    require_known("extra table", chosen, [*OTHERS, *forms])
    if PARQUET in chosen:
        check_pyarrow()
    if HUB in chosen:
        require_hub()


def write_extras(chosen: Sequence[str], site: Site, judged: Judged, out: Path, written: Sequence[Path]) -> list[Path]:
    """Write extra tables; of those of the report, ``written``, there are copies as Parquet."""
    results = judged.results
    paths = [path for document in _documents(chosen, judged) for path in write_documents([document], out)]
    if PARQUET in chosen:
        every = [path for path in (*written, *paths) if path.suffix == ".csv"]
        # A method may be called `null`.
        tables = {path.stem: pd.read_csv(path, keep_default_na=False, na_values=[""]) for path in every}
        metrics = as_texts(results.frame).assign(pinned=results.frame["pinned"].map(str))
        for stem, frame in {"metrics": metrics, **tables}.items():
            paths.append(out / f"{stem}.parquet")
            write_atomic(paths[-1], frame.to_parquet(index=False, engine="pyarrow"))
    paths += write_hub(published(results, site), out) if HUB in chosen else []
    return [*paths, *([write_optuna(site.store, out)] if OPTUNA in chosen else [])]


def _documents(chosen: Sequence[str], judged: Judged) -> Iterator[Document]:
    for name in chosen:
        if name not in OTHERS:
            from ..papers.tables import fill_form

            filled = fill_form(every_item()[name], judged.results)
            if not filled.tables:
                raise UserError(f"{name}: there are no results to fill it with")
            yield filled


def write_optuna(store: Store, out: Path) -> Path:
    """Write a journal with a study for each tuning of a results folder, and return its path.

    A study is called ``DATASET/METHOD/ID``. Its trials have the values that ours maximised, two of a study for both.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.study import StudyDirection
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = out / "optuna.log"
    path.unlink(missing_ok=True)
    storage = JournalStorage(JournalFileBackend(str(path)))
    for record, trials in store.studies():
        tune_for, distributions = record.spec.tune_for, distributions_of(record.spec.space)
        name = f"{record.cell.dataset}/{record.cell.method}/{record.unit}"
        directions = [StudyDirection.MAXIMIZE] * (2 if tune_for == "both" else 1)
        study = optuna.create_study(storage=storage, study_name=name, directions=directions)
        chosen = choose(tune_for, trials) if tune_for != "both" else None  # that depends on the other studies
        about = {"protocol": record.cell.protocol, "tuned for": tune_for, "chosen": chosen and chosen.number}
        for key, value in about.items():
            study.set_user_attr(key, value)
        for trial in trials:
            values = objectives(tune_for, trial)
            state = TrialState.FAIL if values is None else TrialState.COMPLETE
            attrs = {"trainings": list(trial.units), "reason": trial.reason}
            tried = partial(create_trial, params=dict(trial.params), distributions=distributions)
            study.add_trial(tried(state=state, values=values, user_attrs=attrs))
    return path
