"""What a driver of thousands of trainings does once for each, with simulated workers."""

import gc
from collections import Counter

import pytest
from bench.engine.scheduler import Scheduler
from bench.site import Site
from bench.store.claims import Claims
from bench.store.folder import RECORD, Store
from bench.store.records import TestRecord, TrainRecord

from . import test_sharing
from .test_sharing import Fake, _drive

ASKED = {"methods": ("cosface",), "seeds": 1, "tuning": {"folds": 4, "studies": 1}}


@pytest.mark.slow
def test_a_driver_looks_for_the_weights_of_a_trial_once_and_keeps_no_record(tmp_path, monkeypatch):
    """Looks were quadratic in the number of trials, and every record stayed in memory until the end."""
    looked, drivers = Counter(), []
    monkeypatch.setattr(Claims, "used_by_others", lambda claims, unit: looked.update([unit]))
    monkeypatch.setattr(test_sharing, "Scheduler", lambda *given: drivers.append(Scheduler(*given)) or drivers[-1])
    before = _train_records()
    _drive(tmp_path, [Fake(8)], monkeypatch, trials=12, **ASKED)
    assert drivers[0].outcome.trained == (12 + 1) * 4
    assert sorted(looked.values()) == (12 - 1) * 4 * [1]  # all but the best
    assert _train_records() == before
    assert not [key for key in drivers[0]._tasks if key[0] == "unit" and not key[2]]  # tasks of trials


def _train_records():
    gc.collect()
    return sum(type(found) is TrainRecord for found in gc.get_objects())


@pytest.mark.slow
def test_the_same_command_again_reads_a_finished_test_once(tmp_path, monkeypatch):
    _drive(tmp_path, [Fake(8)], monkeypatch, trials=4, **ASKED)
    tests, read = len([*Store(tmp_path).tests()]), Counter()
    unwatched = Store._read
    monkeypatch.setattr(Store, "_read", lambda *given: read.update([given[2]]) or unwatched(*given))
    _drive(tmp_path, [Fake(8)], monkeypatch, trials=4, **ASKED)
    assert read[TestRecord] == tests


def test_a_test_is_read_again_once_its_file_has_changed(tmp_path, monkeypatch):
    _drive(tmp_path, [Fake()], monkeypatch, methods=("cosface",), hparams="default", trials=None, seeds=1)
    store = Store(tmp_path)
    record = next(store.tests())
    driver = Scheduler([], Site(results=str(tmp_path)), None, None)
    place = record.cell, record.unit
    assert driver._tested(*place) is driver._tested(*place)
    store.write(record.model_copy(update={"finished": record.finished + 1}))
    assert driver._tested(*place).finished == record.finished + 1
    path = store.unit_dir(record.cell, "test", record.unit) / RECORD
    path.write_bytes(path.read_bytes()[:-20])  # damaged
    driver.store.on_damage = lambda damage: None
    assert driver._tested(*place) is None
    path.unlink()
    assert driver._tested(*place) is None
