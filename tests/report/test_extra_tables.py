"""Tables on request: intervals from kept embeddings, forms of the papers, copies as Parquet."""

import optuna
import pandas as pd
import pytest
from bench.commands.extra_tables import check_extras, write_extras, write_optuna
from bench.engine.tuning import choose
from bench.errors import UserError
from bench.papers.items import every_item
from bench.papers.tables import fill_form
from bench.report.frame import collect
from bench.report.write import Judged
from bench.site import Site
from bench.store.folder import Store
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from tests.engine.test_sharing import Fake, _drive
from tests.report.shown import latex, markdown


@pytest.fixture
def results(tmp_path, monkeypatch):
    _drive(tmp_path, [Fake()], monkeypatch, methods=("cosface", "arcface"), hparams="default", seeds=2)
    return collect(Store(tmp_path))


def test_names_of_extra_tables_are_checked():
    check_extras(["parquet", "per/table1", "el/table1", "nir/table3"])
    for name in ("per/table99", "el/figure2", "boot"):
        with pytest.raises(UserError, match="unknown extra table"):
            check_extras([name])


def test_a_form_has_the_columns_of_the_paper_and_a_row_for_every_method(results):
    named = every_item()["per/table1"]
    document = fill_form(named, results)
    table = document.numbers
    assert set(table["method"]) == {"cosface", "arcface"}
    assert list(dict.fromkeys(table["column"])) == [column.title for column in named.columns("ndigit_smoke")]
    own = results.frame[(results.frame["method"] == "cosface") & (results.frame["metric"] == "map_at_r")]["value"]
    shown = table[(table["method"] == "cosface") & (table["column"] == "MAP@R")].iloc[0]
    assert shown["mean"] == pytest.approx(100 * own.mean())
    assert shown["seeds"] == 2
    other = table[(table["method"] == "cosface") & (table["column"] != "MAP@R")]
    assert other["mean"].isna().all()
    assert "| cosface |" in markdown(document)
    assert " | \\- |" in markdown(document)
    assert "cosface & " in latex(document)


def test_parquet_has_the_tables_and_equal_records_give_equal_bytes(results, tmp_path):
    pytest.importorskip("pyarrow")
    csv = tmp_path / "scorers.csv"
    csv.write_text("a,b\n1,null\n,x\n")
    outs = [tmp_path / name for name in ("one", "two")]
    for out in outs:
        judged = Judged(Store(tmp_path), results)
        write_extras(["parquet", "per/table1"], Site(results=str(tmp_path)), judged, out, [csv])
    names = {path.name for path in outs[0].iterdir()}
    assert {"metrics.parquet", "scorers.parquet", "form_per_table1.parquet", "form_per_table1.tex"} <= names
    assert all((outs[1] / name).read_bytes() == (outs[0] / name).read_bytes() for name in names)
    assert pd.read_parquet(outs[0] / "metrics.parquet")["value"].tolist() == results.frame["value"].tolist()
    assert pd.read_parquet(outs[0] / "scorers.parquet").isna().values.tolist() == [[False, False], [True, False]]


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
        changed = {"study": spec.id, "val_confidence_auroc": 0.9 - trial.number / 100, "reason": ""}
        store.write_trial(record.cell, trial.model_copy(update=changed))
    record, trials = next(found for found in store.studies() if found[0].unit == spec.id)
    (tmp_path / "out").mkdir()
    study = _loaded(write_optuna(Store(tmp_path), tmp_path / "out"), record)
    wanted = [[trial.val_map_at_r, trial.val_confidence_auroc] for trial in trials]
    assert [trial.values for trial in study.trials] == wanted
