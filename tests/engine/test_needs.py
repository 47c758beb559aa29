"""Machines of a cluster: what differs from the driver is named, and files of another machine are waited for."""

import os
import threading
import time

import numpy as np
import pytest
from bench.engine import jobs, worker
from bench.engine.jobs import TestJob, TrainJob, needs_of, software, visible
from bench.engine.worker import check
from bench.errors import UserError
from bench.methods.backbones.registry import build_backbone
from bench.scoring.feature_files import import_features
from bench.site import Site
from bench.store.folder import RECORD, WEIGHTS
from bench.store.specs import TUNING
from PIL import Image
from safetensors.torch import save_file

from tests.photographs import write_photographs
from tests.plans import planned
from tests.refusals import one_line
from tests.templates import PLAIN


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """Plans of a plug-in's method on photographs, with weights; site, folder of the files."""
    root = tmp_path_factory.mktemp("needs")
    write_photographs(root / "data", classes=16, each=2)
    (root / "mine.py").write_text(PLAIN)
    save_file(build_backbone("convnet", 3).state_dict(), root / "start.safetensors")
    site = Site(
        results=str(root / "runs"),
        plugins=(str(root / "mine.py"),),
        data_root=str(root / "data"),
        weights=str(root / "start.safetensors"),
    )
    pins = ("data.image_size=32", "data.resize=36", "data.classes_per_batch=2")
    return *planned(site, "mine", datasets=("folder",), backbone="convnet", seeds=1, set=pins), root


@pytest.fixture
def needs(mine, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    plans, site, _ = mine
    driver = tmp_path / "runs" / ".drivers" / "driver"
    driver.parent.mkdir(parents=True)
    driver.touch()
    return needs_of(plans, site, driver)


@pytest.fixture
def machine(mine, tmp_path):
    """Site of another machine: nothing is remembered, and the results folder is its own."""

    def of(**update):
        return Site(**{**mine[1].model_dump(), "results": str(tmp_path / "runs"), **update})

    return of


def _refused(needs, site):
    return one_line(UserError, check, needs, site, lambda step: None)


def test_an_equal_machine_passes_and_decodes_the_photographs(needs, machine, tmp_path):
    steps = []
    check(needs, machine(), steps.append)
    assert steps[:2] == ["look for the results folder", "check code and data of mine on folder"]
    assert steps[-1].endswith(": 16 of 16")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["Python", "torch", "probembed", "numpy", "of a later version of bench"])
def test_other_software_is_named(needs, machine, name):
    said = _refused(needs.model_copy(update={"software": {**needs.software, name: "0.1"}}), machine())
    assert said == f"it has {name} {software().get(name)}, this run 0.1; install the same on both"


def test_edited_code_is_named(needs, machine, mine, tmp_path):
    edited = tmp_path / "mine.py"
    edited.write_text(PLAIN.replace("12.0", "13.0"))
    said = _refused(needs, machine(plugins=(str(edited),)))
    assert said.startswith("its code of mine on folder is not that of this run")
    edited.write_text("# A comment counts for nothing.\n" + PLAIN)
    os.utime(edited, (1e9, 1e9))
    check(needs, machine(plugins=(str(edited),)), lambda step: None)


def test_other_weights_are_named(needs, machine, tmp_path):
    other = tmp_path / "start.safetensors"
    other.write_bytes(b"other weights")
    said = _refused(needs, machine(weights=str(other)))
    assert said.startswith("its weights of convnet are not those of this run")
    other.unlink()
    assert "start.safetensors" in _refused(needs, machine(weights=str(tmp_path / "gone" / "start.safetensors")))


def test_other_photographs_are_named(needs, machine, tmp_path):
    write_photographs(tmp_path / "data", classes=16, each=2)
    check(needs, machine(data_root=str(tmp_path / "data")), lambda step: None)
    Image.new("RGB", (36, 36)).save(tmp_path / "data" / "c15" / "1.png")
    said = _refused(needs, machine(data_root=str(tmp_path / "data")))
    assert said == "its files of data set folder are not those of this run (--data-root)"


def test_other_features_are_named(machine, tmp_path):
    """Features of two machines under one name, which have the shapes and classes of one another."""
    for home in ("one", "other"):
        for split, start in (("train", 0), ("test", 12)):
            labels = np.repeat(np.arange(start, start + 12), 4)
            made = np.random.default_rng(len(home)).normal(size=(48, 6)).astype(np.float32)
            np.savez(tmp_path / f"{split}.npz", features=made, labels=labels)
        files = {split: tmp_path / f"{split}.npz" for split in ("train", "test")}
        import_features("birds", files, tmp_path / home, lambda *said: None)
    site = machine(data_root=None, weights=None, data_home=str(tmp_path / "one"))
    plans, _ = planned(site, "cosface", datasets=("birds",), seeds=1)
    (tmp_path / "runs").mkdir()
    needs = needs_of(plans, site, tmp_path)
    check(needs, site, lambda step: None)
    said = _refused(needs, machine(data_root=None, weights=None, data_home=str(tmp_path / "other")))
    assert said == "its files of data set birds are not those of this run (--data-root)"


def test_a_results_folder_that_is_not_shared_is_named(needs, machine, tmp_path):
    (tmp_path / "runs" / ".drivers" / "driver").unlink()
    assert _refused(needs, machine()).startswith(f"it does not see the results folder {tmp_path / 'runs'}")


def test_a_results_folder_that_cannot_be_written_is_named(needs, machine, tmp_path, monkeypatch):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path / "runs") and access(path, mode))
    assert _refused(needs, machine()) == f"it may not write to the results folder {tmp_path / 'runs'}"


# Files of other machines


def _later(path, seconds=0.15):
    """Let a file appear as one that another machine has written."""
    part = path.with_name("part")
    part.write_bytes(b"")
    threading.Timer(seconds, part.rename, [path]).start()


@pytest.fixture
def looks(monkeypatch):
    monkeypatch.setattr(jobs, "LOOK", 0.02)


def test_a_file_that_appears_later_is_found(tmp_path, looks):
    there = tmp_path / "there"
    there.write_bytes(b"")
    _later(tmp_path / "late")
    assert visible([there, tmp_path / "late"], 30)
    assert (tmp_path / "late").exists()


def test_a_file_that_does_not_appear_is_given_up_in_time(tmp_path, looks):
    started = time.monotonic()
    assert not visible([tmp_path / "never", tmp_path / "no folder" / "never"], 0.2)
    assert 0.2 <= time.monotonic() - started < 5


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory):
    return planned(tmp_path_factory.mktemp("runs"), "pfe", seeds=1)


def _specs(plans, replicate=TUNING):
    """Specifications of one replicate of a base and of the head on it."""
    head = next(plan for plan in plans if plan.base is not None)
    bases = head.base.train_specs(head.base.defaults(), replicate, None)
    return head, bases, head.train_specs(head.defaults(), replicate, bases)


def test_a_job_reads_the_weights_and_records_of_the_units_below(two_stages):
    plans, site = two_stages
    head, bases, specs = _specs(plans, 0)
    fold = head.validate_folds[0]
    base = site.store.unit_dir(bases[fold].cell, "train", bases[fold].id)
    assert TrainJob(spec=bases[fold], site=site).inputs == ()
    assert TrainJob(spec=specs[fold], site=site).inputs == (base / RECORD, base / WEIGHTS)
    trained = site.store.unit_dir(head.cell, "train", specs[fold].id)
    tests = tuple(head.test_specs(specs))
    inputs = TestJob(specs=tests, cell=head.cell, site=site).inputs
    assert {trained / RECORD, trained / WEIGHTS} <= set(inputs)
    assert len(inputs) == len(set(inputs)) == 2 * len(specs)
    assert TrainJob(spec=specs[fold], site=site).outputs == (trained / RECORD,)
    records = {site.store.unit_dir(head.cell, "test", spec.id) / RECORD for spec in tests}
    assert set(TestJob(specs=tests, cell=head.cell, site=site).outputs) == records


@pytest.mark.parametrize("hidden_for", [0.0, 30.0])
def test_a_worker_waits_for_what_its_job_reads_only_if_files_can_be_hidden(
    two_stages, tmp_path, looks, monkeypatch, hidden_for
):
    plans, site = two_stages
    head, _, specs = _specs(plans)
    site = site.model_copy(update={"results": str(tmp_path), "hidden_for": hidden_for})
    job = TrainJob(spec=specs[head.validate_folds[0]], site=Site(**site.model_dump()))
    for path in job.inputs:
        path.parent.mkdir(parents=True, exist_ok=True)
    job.inputs[0].write_bytes(b"")
    if hidden_for:
        _later(job.inputs[1])
    there = []
    monkeypatch.setattr("bench.engine.training.run_training", lambda *_: there.append(job.inputs[1].exists()))
    monkeypatch.setattr("torch.set_deterministic_debug_mode", lambda *_, **__: None)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    worker.run_job(job, lambda event: None)
    assert there == [hidden_for > 0]
