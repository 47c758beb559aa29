"""A file of another program that shows tuning: a journal of Optuna."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..engine.tuning import choose, distributions_of, objectives
from ..store.folder import Store


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
        chosen = choose(tune_for, trials)
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
