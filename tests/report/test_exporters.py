"""The file of another program: Optuna reads back what the records have."""

import optuna
from bench.commands.extra_tables import write_optuna
from bench.engine.tuning import choose
from bench.store.folder import Store
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from tests.engine.test_sharing import Fake, _drive


def _loaded(path, record):
    name = f"{record.cell.dataset}/{record.cell.method}/{record.unit}"
    return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(path))))


def test_a_reloaded_study_has_the_trials_and_the_best_value_of_the_records(tmp_path, monkeypatch):
    _drive(tmp_path, [Fake()], monkeypatch, methods=("cosface", "arcface"), trials=6, seeds=1)
    store = Store(tmp_path)
    studies = list(store.studies())
    assert len(studies) == 2
    record, trials = studies[0]
    failed = trials[2].model_copy(update={"number": 6, "state": "failed", "value": None, "reason": "loss is nan"})
    store.write_trial(record.cell, failed)
    (tmp_path / "out").mkdir()
    for _ in range(2):  # a second report replaces the journal of the first
        path = write_optuna(store, tmp_path / "out")
    for record, trials in store.studies():
        study = _loaded(path, record)
        best = choose(record.spec.tune_for, trials)
        assert study.best_value == best.value
        assert study.user_attrs["chosen"] == best.number == study.best_trial.number
        assert [trial.value for trial in study.trials] == [trial.value for trial in trials]
        assert [trial.params for trial in study.trials] == [dict(trial.params) for trial in trials]
    study = _loaded(path, studies[0][0])
    assert (study.trials[6].state, study.trials[6].user_attrs["reason"]) == (TrialState.FAIL, "loss is nan")


def test_a_study_for_both_has_two_objectives(tmp_path, monkeypatch):
    _drive(tmp_path, [Fake()], monkeypatch, methods=("cosface",), trials=4, seeds=1)
    store = Store(tmp_path)
    ((record, trials),) = store.studies()
    spec = record.spec.model_copy(update={"tune_for": "both"})
    store.write_study(record.model_copy(update={"spec": spec, "unit": spec.id}))
    for trial in trials:
        auroc = 0.9 - trial.number / 100
        store.write_trial(
            record.cell, trial.model_copy(update={"study": spec.id, "val_confidence_auroc": auroc, "reason": ""})
        )
    record, trials = next(found for found in store.studies() if found[0].unit == spec.id)
    (tmp_path / "out").mkdir()
    study = _loaded(write_optuna(Store(tmp_path), tmp_path / "out"), record)
    wanted = [[trial.val_map_at_r, trial.val_confidence_auroc] for trial in trials]
    assert [trial.values for trial in study.trials] == wanted
