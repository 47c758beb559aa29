"""The benchmark of scale at a tiny size: simulated workers leave a folder that the real commands accept."""

import gc
from collections import Counter

import pytest
from bench.commands.results import status_rows
from bench.engine.scheduler import Scheduler
from bench.site import Site
from bench.store.check import damages
from bench.store.claims import Claims
from bench.store.folder import RECORD, Store
from bench.store.records import TestRecord, TrainRecord

from .conftest import loaded_tool
from .test_sharing import Fake, _drive


@pytest.fixture(scope="module")
def scale():
    with loaded_tool("scale") as module:
        yield module


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A results folder whose first test has an array file."""
    asked = {"methods": ("cosface",), "hparams": "default", "trials": None, "seeds": 1}
    _drive(tmp_path / "template", [Fake()], monkeypatch, **asked)
    store = Store(tmp_path / "template")
    store.write(next(store.tests()).model_copy(update={"files": {"a.safetensors": ""}}))
    return tmp_path / "template"


@pytest.mark.slow
def test_simulated_workers_leave_a_whole_folder(scale, template, tmp_path, monkeypatch):
    root = tmp_path / "runs"
    asked = {"methods": ("cosface",), "datasets": ("ndigit_smoke",)}
    monkeypatch.setattr(scale, "EVERY", 10)
    first = scale.drive(scale.Grid(trials=4, seeds=1), root, 8, template, **asked)
    assert first.units == (4 + 1) * 4 + 1  # trials and seed in four folds, and the tests
    assert first.most == 8
    assert [units for units, _, _ in first.growth] == [10, 20]
    assert all(resident > 50 and files > 3 for _, resident, files in first.growth)
    assert damages(root) == []
    (found,) = status_rows(Store(root))
    assert (found["trials"], found["trained"], found["tested"], found["running"]) == (4, 4, 2, [])
    again = scale.drive(scale.Grid(trials=4, seeds=1), root, 8, template, **asked)
    assert (again.units, again.most) == (first.units, 0)


@pytest.mark.slow
def test_a_driver_looks_for_the_weights_of_a_trial_once_and_keeps_no_record(scale, template, tmp_path, monkeypatch):
    """Looks were quadratic in the number of trials, and every record stayed in memory until the end."""
    looked, drivers = Counter(), []
    monkeypatch.setattr(Claims, "used_by_others", lambda claims, unit: looked.update([unit]))
    monkeypatch.setattr(scale, "Scheduler", lambda *given: drivers.append(Scheduler(*given)) or drivers[-1])
    before = _train_records()
    asked = {"methods": ("cosface",), "datasets": ("ndigit_smoke",)}
    scale.drive(scale.Grid(trials=12, seeds=1), tmp_path / "runs", 8, template, **asked)
    assert drivers[0].outcome.trained == (12 + 1) * 4
    assert sorted(looked.values()) == (12 - 1) * 4 * [1]  # all but the best
    assert _train_records() == before
    assert not [key for key in drivers[0]._tasks if key[0] == "unit" and not key[2]]  # tasks of trials


def _train_records():
    gc.collect()
    return sum(type(found) is TrainRecord for found in gc.get_objects())


@pytest.mark.slow
def test_the_same_command_again_reads_a_finished_test_once(scale, template, tmp_path, monkeypatch):
    asked = {"methods": ("cosface",), "datasets": ("ndigit_smoke",)}
    grid, root = scale.Grid(trials=4, seeds=2), tmp_path / "runs"
    scale.drive(grid, root, 8, template, **asked)
    tests, read = len([*Store(root).tests()]), Counter()
    unwatched = Store._read
    monkeypatch.setattr(Store, "_read", lambda *given: read.update([given[2]]) or unwatched(*given))
    scale.drive(grid, root, 8, template, **asked)
    read[TestRecord] -= 1  # the template
    assert read[TestRecord] == tests


def test_a_test_is_read_again_once_its_file_has_changed(template):
    store = Store(template)
    record = next(store.tests())
    driver = Scheduler([], Site(results=str(template)), None, None)
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
