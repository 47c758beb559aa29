"""Several drivers in one results folder: no unit runs twice, the dead are taken over from, every table is the whole."""

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from bench.cli import main
from bench.engine.jobs import SettingFailed
from bench.engine.scheduler import Scheduler
from bench.engine.tuning import propose
from bench.engine.worker import run_job
from bench.errors import UserError
from bench.report.frame import collect
from bench.store.check import damages
from bench.store.claims import CLAIM, Claims, holder
from bench.store.files import sha256, write_atomic
from bench.store.folder import WEIGHTS, Store

from tests import records
from tests.plans import planned

from .conftest import SMALL, wait_for


class Quiet:
    """A display that keeps what is logged, and counts epochs that are done or need not be."""

    def __init__(self):
        self.lines, self.epochs = [], 0

    def advance(self, cell, epochs):
        self.epochs += epochs

    skip = advance

    def note(self, cell, text): ...
    def tested(self, cell, seed): ...

    def log(self, text):
        self.lines.append(text)


class Fake:
    """Workers that make up results from the ids of units, in a moment; those in ``fails`` fail for their setting."""

    def __init__(self, size=2, fails=()):
        self.free = asyncio.Semaphore(size)
        self.ran = []
        self.proposed = {}
        self.fails = fails

    async def run(self, job, on_epoch=lambda epoch: None, priority=(), begin=lambda: True):
        async with self.free:
            if not begin():
                return None
            if job.job == "propose":
                return self.propose(job)
            if job.job == "tested_features":
                return object()
            cell, kind, unit = job.unit
            self.ran.append((kind, unit))
            await asyncio.sleep(0.05)
            store = job.site.store
            if kind == "test":
                for spec in job.specs:
                    store.write(_tested(spec, cell, store))
            elif job.spec.method in self.fails:
                raise SettingFailed("nan")
            else:
                weights = unit.encode()
                write_atomic(store.weights(cell, unit), weights)
                store.write(_trained(job.spec, weights, self.value(unit)))
            return object()

    def value(self, unit):
        return int(unit, 16) / 2**64

    def propose(self, job):
        done = run_job(job, None)
        assert self.proposed.setdefault((job.axes, job.numbers), done.points) == done.points
        return done


class Rising(Fake):
    """Of two trainings, the later one has the larger value."""

    values = itertools.count()

    def value(self, unit):
        return next(self.values)


def _trained(spec, weights, value):
    confidence = None if spec.crop_confidence is None else 1 - value
    return records.of_training(spec, value, files={WEIGHTS: sha256(weights)}, val_confidence_auroc=confidence)


def _tested(spec, cell, store, finished=1.0):
    train = store.trained(cell, spec.train[0]).spec
    columns = records.columns(
        protocol=cell.protocol, preset=spec.preset, dataset=cell.dataset, method=cell.method,
        base=train.base.method if train.base else "", fidelity=train.form, hparams=spec.hparams,
        trials=spec.trials, pinned=spec.pinned, backbone=train.backbone, dim=train.dim, ensemble=spec.ensemble,
        seed=train.number, replicate=spec.replicate,
    )  # fmt: skip
    rows = [records.map_at_r(int(spec.id, 16) / 2**64, n_queries=1)]
    role = records.role(train=spec.train[0])
    return records.of_test(columns, rows, spec, role=role, finished=finished, test_classes=4)


ONE = {"methods": ("cosface",), "seeds": 1, "hparams": "default", "trials": None}
"""A run of one training and its test."""


def _plans(root, **asked):
    return planned(root, **{"methods": ("cosface", "pfe"), "hparams": "tuned", "seeds": 2, "trials": 6, **asked})


def _drive(root, fakes, monkeypatch, study=(), **asked):
    """Run one scheduler per fake at once in one folder; outcomes and displays."""
    monkeypatch.setattr("bench.engine.scheduler.POLL", 0.02)
    plans, site = _plans(root, **asked)
    plans = tuple(replace(plan, **dict(study)) for plan in plans)
    displays = [Quiet() for _ in fakes]

    async def drive():
        schedulers = [
            Scheduler(plans, site.model_copy(), fake, display) for fake, display in zip(fakes, displays, strict=True)
        ]
        return await asyncio.gather(*(scheduler.execute() for scheduler in schedulers))

    return asyncio.run(drive()), displays


def _table(root):
    return collect(Store(root)).frame.to_csv()


@pytest.mark.slow
@pytest.mark.parametrize("drivers", [2, 3])
def test_drivers_share_the_units_and_none_runs_twice(drivers, tmp_path, monkeypatch):
    alone = Fake()
    _drive(tmp_path / "alone", [alone], monkeypatch)
    fakes = [Fake() for _ in range(drivers)]
    outcomes, displays = _drive(tmp_path / "shared", fakes, monkeypatch)
    ran = [unit for fake in fakes for unit in fake.ran]
    assert sorted(ran) == sorted(alone.ran)
    assert len(set(ran)) == len(ran)
    assert all(fake.ran for fake in fakes)
    assert not any(outcome.failures for outcome in outcomes)
    assert sum(outcome.trained for outcome in outcomes) == sum(kind == "train" for kind, _ in alone.ran)
    assert _table(tmp_path / "shared") == _table(tmp_path / "alone")
    assert any("at work in this folder too" in line for display in displays for line in display.lines)
    assert not list((tmp_path / "shared").rglob(CLAIM))
    assert damages(tmp_path / "shared") == [(tmp_path / "shared" / "store.json", "it is missing")]


@pytest.mark.parametrize("retrain", [False, True])
def test_every_epoch_is_counted_once_and_once_more_by_the_same_command(retrain, tmp_path, monkeypatch):
    asked = {"methods": ("cosface",), "set": (f"tuning.retrain={str(retrain).lower()}",)}
    whole = sum(plan.trainings * plan.epochs for plan in _plans(tmp_path, **asked)[0])
    for _ in range(2):
        _, [display] = _drive(tmp_path, [Fake()], monkeypatch, **asked)
        assert display.epochs == whole


def test_a_training_that_its_setting_makes_fail_is_not_tried_by_the_other_driver(tmp_path, monkeypatch):
    fakes = [Fake(fails=("cosface",)) for _ in range(2)]
    outcomes, _ = _drive(tmp_path, fakes, monkeypatch, methods=("cosface",))
    ran = [unit for fake in fakes for unit in fake.ran]
    assert len(ran) == len(set(ran)) == 6
    assert len(list(tmp_path.rglob("trial-*.json"))) == 6
    assert [len(outcome.failures) for outcome in outcomes] == [1, 1] or all(outcome.failures for outcome in outcomes)
    assert not list(tmp_path.rglob(CLAIM))


def test_of_two_machines_that_propose_different_trials_the_one_that_is_first_counts(tmp_path, monkeypatch):
    """The later one replaced the trial, after which the two had different best settings."""
    recorded = []
    write_trial = Store.write_trial

    def write(store, cell, record):
        recorded.append((record.study, record.number))
        write_trial(store, cell, record)

    monkeypatch.setattr(Store, "write_trial", write)

    class Elsewhere(Fake):
        def propose(self, job):
            done = super().propose(job)
            moved = [{**point, "optim.lr": point["optim.lr"] * (1 + 1e-12)} for point in done.points]
            return done.model_copy(update={"points": tuple(moved)})

    fakes = [Fake(), Elsewhere()]
    outcomes, _ = _drive(tmp_path, fakes, monkeypatch, methods=("cosface",))
    assert len({unit for fake in fakes for unit in fake.ran}) > 6 + 2 + 2  # some trials were trained by both
    assert not any(outcome.failures for outcome in outcomes)
    assert len(set(recorded)) == len(recorded) == 6
    assert len(list(Store(tmp_path).tests())) == 2


def test_a_study_tries_given_points_first_and_says_that_it_chose_nothing(tmp_path, monkeypatch):
    asked = {"methods": ("cosface",), "seeds": 1}
    plan, fake = _plans(tmp_path, **asked)[0][0], Fake()
    given = {**plan.defaults(), "method.scale": 20.0}
    fake.value = lambda unit: 1.0
    _, [display] = _drive(tmp_path, [fake], monkeypatch, {"first": (given,)}, **asked)
    [(_, trials)] = Store(tmp_path).studies()
    quasi_random = [propose(plan.sampler_axes(0), plan.space, "gp", number, [], [], 1, 6) for number in range(2, 6)]
    points = {trial.number: trial.params for trial in trials}
    assert [points[number] for number in range(6)] == [plan.defaults(), given, *quasi_random]
    assert any("validation MAP@R is the same in all 6 trials: the choice says nothing" in x for x in display.lines)


def _best_base(root, trials):
    """Folder of the best training of the base among its first trials."""
    [(study, held)] = [each for each in Store(root).studies() if each[0].cell.method == "cosface"]
    best = max(held[:trials], key=lambda trial: trial.value)
    return Store(root).unit_dir(study.cell, "train", best.units[0])


@pytest.mark.slow
def test_weights_that_another_command_tunes_heads_on_are_not_dropped(tmp_path, monkeypatch):
    """A longer study had another best trial and dropped the weights of the shorter one's, which was at work."""
    asked = {"methods": ("pfe",), "tuning": {"studies": 1}}
    _drive(tmp_path, [Rising()], monkeypatch, trials=4, **asked)
    short = _best_base(tmp_path, 4)
    assert (short / WEIGHTS).exists()
    other = Claims(tmp_path)
    other.take(other.in_use(short, "heads"))
    _drive(tmp_path, [Rising()], monkeypatch, trials=12, **asked)
    assert _best_base(tmp_path, 12) != short
    assert (short / WEIGHTS).exists()
    other.close()
    _drive(tmp_path, [Rising()], monkeypatch, trials=12, **asked)
    assert not (short / WEIGHTS).exists()
    assert not list(short.glob(".*"))


def _dead_claim(path):
    """A claim whose holder was killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = f"""
import os, signal
from pathlib import Path
from bench.store.claims import Claims
claims = Claims(Path({str(path.parent)!r}))
assert claims.take(Path({str(path)!r}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code])
    assert done.returncode == -signal.SIGKILL
    assert path.exists()


CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


@pytest.mark.parametrize("prefix", [(), CONTAINER], ids=["machine", "container"])
def test_a_holder_is_named_until_it_dies(prefix, tmp_path):
    """Also in a container, which has a table of processes of its own."""
    if prefix and subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("processes cannot be given a table of their own here")
    code = """
import os, signal, subprocess, sys
from pathlib import Path
from bench.store.claims import Claims, holder
claim = Path("claim")
if len(sys.argv) == 1:
    code = Path("code.py")
    theirs = subprocess.Popen([sys.executable, code, "child"], stdout=subprocess.PIPE)
    theirs.stdout.read(1)
    living = holder(claim)
    theirs.kill()
    theirs.wait()
    assert living == (os.uname().nodename, theirs.pid), living
    assert claim.exists()
    assert holder(claim) is None, holder(claim)
else:
    claims = Claims(Path())
    assert claims.take(claim)
    print("x", flush=True)
    signal.pause()
"""
    (tmp_path / "code.py").write_text(code)
    subprocess.run([*prefix, sys.executable, "code.py"], cwd=tmp_path, check=True)


def test_a_unit_claimed_by_a_dead_process_of_this_host_is_taken_over_at_once(tmp_path, monkeypatch):
    plans, site = _plans(tmp_path, **ONE)
    spec = plans[0].train_specs(plans[0].defaults(), 0, None)[plans[0].validate_folds[0]]
    _dead_claim(site.store.unit_dir(spec.cell, "train", spec.id) / CLAIM)
    started = time.monotonic()
    fake = Fake()
    (outcome,), _ = _drive(tmp_path, [fake], monkeypatch, **ONE)
    assert not outcome.failures
    assert ("train", spec.id) in fake.ran
    assert time.monotonic() - started < 10


def test_the_dead_of_another_host_are_taken_over_from_when_they_renew_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.store.claims.LEASE", 1.0)
    claim = tmp_path / "unit" / CLAIM
    theirs = Claims(tmp_path)
    assert theirs.take(claim)
    text = claim.read_text()
    theirs.close()
    claim.write_text(re.sub("host=.*", "host=elsewhere", text))
    claims = Claims(tmp_path)
    assert not claims.take(claim)
    assert not claims.take(claim)
    time.sleep(1.2)
    assert claims.take(claim)
    claims.close()
    assert not claim.exists()


def test_a_claim_without_a_name_is_taken_over_after_a_while(tmp_path, monkeypatch):
    """A driver was killed between the making of its file and the writing: others waited for it for ever."""
    monkeypatch.setattr("bench.store.claims.LEASE", 0.4)
    monkeypatch.setattr("filelock._soft.MALFORMED_LOCK_AGE_THRESHOLD", 0.1)
    claim, claims = tmp_path / CLAIM, Claims(tmp_path)
    claim.touch()
    started = time.monotonic()
    while not claims.take(claim):
        assert time.monotonic() - started < 20
        time.sleep(0.05)
    assert time.monotonic() - started > 0.4
    assert holder(claim).pid == os.getpid()
    claims.close()


@pytest.mark.slow
def test_a_claim_that_is_renewed_is_not_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.store.claims.LEASE", 0.6)
    holder, watcher = Claims(tmp_path), Claims(tmp_path)
    assert holder.take(tmp_path / "claim")
    until = time.monotonic() + 2
    while time.monotonic() < until:
        assert not watcher.take(tmp_path / "claim")
        time.sleep(0.1)
    holder.close()
    assert watcher.take(tmp_path / "claim")
    watcher.close()


def test_claims_of_the_dead_are_removed_and_a_clock_that_jumps_takes_none_from_the_living(tmp_path):
    """What is left when a process is killed while it takes a claim over was never removed."""
    unit = tmp_path / "a" / "b" / "c" / "train-1"
    theirs = Claims(tmp_path)
    living = [unit / CLAIM, tmp_path / ".drivers" / "other"]
    for path in living:
        theirs.take(path)
        os.utime(path, (1e9, 1e9))
    dead = [unit / f"{CLAIM}.break.1.{32 * '0'}", unit / f"{CLAIM}-use-x", tmp_path / ".drivers" / "dead"]
    dead.append(tmp_path / ".features" / "x" / f"{CLAIM}-view0-")
    for path in dead:
        _dead_claim(path)
    dead += [tmp_path / "report" / ".comparison.md.12_abcde", unit / ".checkpoint.pt.77"]
    dead[-2].parent.mkdir()
    for path in dead[-2:]:
        path.write_bytes(b"")
        os.utime(path, (1e9, 1e9))
    ours = Claims(tmp_path)
    ours.enter(alone=False, lost=lambda: None)
    assert not [path for path in dead if path.exists()]
    assert [path for path in living if path.exists()] == living
    ours.close()
    with pytest.raises(UserError, match="another bench run is writing"):
        ours.enter(alone=True, lost=lambda: None)
    theirs.close()


def test_status_says_who_is_at_work_on_what(tmp_path, monkeypatch, capsys):
    _drive(tmp_path, [Fake()], monkeypatch, **ONE)
    Store(tmp_path).mark("reality_check", 1)
    (unit,) = tmp_path.rglob("test-*")
    ours = Claims(tmp_path)
    ours.take(unit / CLAIM)
    (train,) = tmp_path.rglob("train-*")
    _dead_claim(train / CLAIM)
    assert main(["status", "--json", "--results", str(tmp_path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    running = {"unit": unit.name.replace("-", " "), "host": socket.gethostname(), "pid": os.getpid()}
    assert row["running"] == [running]
    assert main(["status", "--results", str(tmp_path)]) == 0
    assert f"{running['unit']}: process {os.getpid()} on {socket.gethostname()}" in capsys.readouterr().out
    ours.close()


def test_of_two_tests_of_a_setting_the_one_asked_for_last_counts_whatever_the_clock_says(tmp_path, monkeypatch):
    """A `finished` in the future hid every later test of its setting."""
    _drive(tmp_path, [Fake()], monkeypatch, **ONE)
    store = Store(tmp_path)
    (first,) = store.tests()
    store.write(first.model_copy(update={"finished": 4e9}))  # the year 2096
    _drive(tmp_path, [Fake()], monkeypatch, corruptions=("blur",), **ONE)
    (other,) = (test for test in store.tests() if test.unit != first.unit)
    assert [test.unit for test in collect(store).tests] == [other.unit]
    _drive(tmp_path, [Fake()], monkeypatch, **ONE)
    assert [test.unit for test in collect(store).tests] == [first.unit]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")}
    _drive(tmp_path, [Fake()], monkeypatch, **ONE)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")}


def test_a_folder_deleted_in_the_middle_is_a_failure(tmp_path, monkeypatch):
    """The run ended with exit code 0 and nothing else."""

    class Deleting(Fake):
        async def run(self, job, *arguments):
            done = await super().run(job, *arguments)
            for folder in (tmp_path / "runs").glob("*/*/*/test-*"):
                shutil.rmtree(folder)
            return done

    (outcome,), _ = _drive(tmp_path / "runs", [Deleting()], monkeypatch, **{**ONE, "seeds": 2})
    assert len(outcome.failures) == 2


@pytest.mark.parametrize("when", ["write_documents", "write_automatic", "write_page"])
def test_a_report_does_not_bring_back_a_results_folder_that_was_deleted(when, tmp_path, monkeypatch):
    """A folder with nothing but files of a report was refused by the same command: no results folder."""
    from bench.report import write
    from bench.report.frame import write_metrics
    from bench.report.page import page

    root = tmp_path / "runs"
    _drive(root, [Fake()], monkeypatch, methods=("cosface",), seeds=1, trials=2)
    store = Store(root)
    judged = write.Judged(store, collect(store))
    owner = page if when == "write_page" else write
    wrapped = getattr(owner, when)

    def deleted_before(*given):
        shutil.rmtree(root, ignore_errors=True)
        return wrapped(*given)

    monkeypatch.setattr(owner, when, deleted_before)
    with pytest.raises(FileNotFoundError, match="runs"):
        write.write_report(judged, root / "report", print)
    with pytest.raises(FileNotFoundError, match="runs"):
        write_metrics(judged.results, root)
    assert not root.exists()


@pytest.mark.slow
@pytest.mark.parametrize("folds", [1, 2])
@pytest.mark.parametrize("hidden_for", [0.0, 30.0])
def test_a_record_that_another_machine_has_written_is_waited_for(hidden_for, folds, tmp_path, monkeypatch):
    """A network file system can show it a while after the worker has said that it is there.

    With two folds there are two tests of a seed, and the record of the second one is hidden.
    """

    class Hiding(Fake):
        async def run(self, job, *arguments):
            done = await super().run(job, *arguments)
            record = job.outputs[-1]
            hidden = record.rename(record.with_name("hidden"))
            if hidden_for:
                threading.Timer(0.1, hidden.rename, [record]).start()
            return done

    monkeypatch.setattr("bench.engine.jobs.LOOK", 0.02)
    plans, site = _plans(tmp_path, **ONE, tuning={"folds": folds})
    site = site.model_copy(update={"hidden_for": hidden_for})
    outcome = asyncio.run(Scheduler(plans, site, Hiding(), Quiet()).execute())
    if hidden_for:
        assert not outcome.failures
    else:
        assert "is missing after its training" in outcome.failures[0].reason


# With processes, as users have them.

RUN = ("run", *SMALL, "--workers", "1")


def _trainings(stderr):
    return int(re.search(r"(\d+) trainings done", " ".join(stderr.split()))[1])


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [(), ("unshare", "-u", "sh", "-c", 'hostname other && exec "$@"', "sh")])
def test_a_killed_run_is_taken_over_from(prefix, small_table, cli, tmp_path):
    if prefix and subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("host names cannot be changed here")
    root = tmp_path / "results" / "runs"
    first = cli.start(*RUN, prefix=prefix)
    wait_for(first, lambda: any(root.rglob("trial-*.json")))
    second = cli.start(*RUN)
    wait_for(second, lambda: len(list((root / ".drivers").iterdir())) > 1)
    done = len(list(root.rglob("train-*/record.json")))
    while len(list(root.rglob(f"*/{CLAIM}"))) < 1 or len(list(root.rglob("train-*/record.json"))) == done:
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    recorded = {path: path.stat().st_mtime_ns for path in root.rglob("train-*/record.json")}
    _, stderr = second.communicate(timeout=1200)
    assert second.returncode == 0, stderr
    assert (root / "metrics.csv").read_bytes() == small_table
    for path, stamp in recorded.items():
        assert path.stat().st_mtime_ns == stamp, f"{path} was trained twice"
    assert damages(root) == []


WRONG_CLOCK = """
import time
right = time.time
def wrong():
    with open(OFF) as file:
        return right() + float(file.read() or 0)
time.time = wrong
"""
"""What Python runs at its start. With libfaketime, ``time.sleep`` failed in one of two tries."""


@pytest.mark.slow
@pytest.mark.parametrize("jump", [(), (3600, -3600)], ids=["ten minutes apart", "a clock that jumps by hours"])
def test_hosts_need_not_agree_about_the_time(jump, small_table, cli, tmp_path):
    off, root = tmp_path / "off", tmp_path / "results" / "runs"
    off.write_text("600")
    (tmp_path / "sitecustomize.py").write_text(WRONG_CLOCK.replace("OFF", repr(str(off))))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", "-c", "import time; print(time.time())"]
    assert abs(float(subprocess.check_output(command, env=environment)) - time.time()) > 500
    processes = [cli.start(*RUN), cli.start(*RUN, env=environment)]
    for count, moved in enumerate(jump, 1):
        wait_for(processes[1], lambda count=count: len(list(root.rglob("trial-*.json"))) >= 2 * count)
        off.write_text(f"{moved}")
    texts = [process.communicate(timeout=1200)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], texts
    assert (root / "metrics.csv").read_bytes() == small_table
    assert sum(map(_trainings, texts)) == 10
    assert damages(root) == []


class Watched(Fake):
    """Before a test, whether other drivers see that its networks are in use."""

    async def run(self, job, *given, **named):
        if job.job == "test":
            store = job.site.store
            folders = [store.unit_dir(job.cell, "train", unit) for spec in job.specs for unit in spec.train]
            self.proposed[job.unit] = all(Claims(store.root).used_by_others(folder) for folder in folders)
        return await super().run(job, *given, **named)


def test_a_network_that_was_chosen_is_kept_for_its_test_and_not_longer(tmp_path, monkeypatch):
    """Another driver, whose study of the same trials chooses another one, dropped its weights."""
    fake = Watched()
    _drive(tmp_path, [fake], monkeypatch, methods=("cosface",))
    assert [kept for key, kept in fake.proposed.items() if key[1] == "test"] == [True, True]
    assert not list(tmp_path.rglob(".claim*"))


def test_weights_of_a_base_are_made_again_if_and_only_if_a_trial_needs_them(tmp_path, monkeypatch):
    """The base of a shorter study that was finished was trained again after a longer one."""
    asked = {"methods": ("pfe",), "tuning": {"studies": 1}}
    for trials in (4, 12):
        _drive(tmp_path, [Rising()], monkeypatch, trials=trials, **asked)
    short = _best_base(tmp_path, 4)
    assert not (short / WEIGHTS).exists()
    again = Rising()
    _drive(tmp_path, [again], monkeypatch, trials=4, **asked)
    assert again.ran == []
    for trial in tmp_path.glob("*/*/pfe/study-*/trial-0003.json"):
        trial.unlink()
    _drive(tmp_path, [again], monkeypatch, trials=4, **asked)
    assert ("train", short.name.removeprefix("train-")) in again.ran
