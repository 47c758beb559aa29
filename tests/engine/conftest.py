import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from bench.cli import main
from bench.datasets.corruptions.registry import CORRUPTIONS
from bench.errors import PLUGINS
from bench.methods.backbones.registry import build_backbone
from bench.methods.distributions import arrays as distributions
from bench.methods.scorers import SCORERS
from bench.protocols import declare
from bench.site import Site
from safetensors.torch import save_file

from tests.in_process import bring_workers_in, forget_determinism

TOOLS = Path(__file__).parents[2] / "benchmarks"
BENCH = Path(sys.executable).with_name("bench")
PATIENCE = 900
"""Seconds after which a process counts as hung; a busy machine takes ten times as long as an idle one."""
SMOKE = ("--dataset", "ndigit_smoke", "--set", "optim.epochs=2")
SMALL = ("--method", "cosface,pfe", *SMOKE, "--seeds", "1", "--trials", "5")
"""Arguments of the smallest run with a base, a head on it and two batches of trials each."""
TINY = (*SMOKE, "--seeds", "2", "--trials", "3", "--studies", "1")
"""Arguments of the smallest run that has everything in it."""


@contextlib.contextmanager
def loaded_tool(name):
    """A script of ``benchmarks/`` as a module."""
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


class Cli:
    """The console script, as a user types it."""

    def __init__(self, cwd):
        self.cwd = cwd

    def __call__(self, *arguments, check=True, timeout=PATIENCE):
        done = self._run(list(map(str, arguments)), timeout)
        if check:
            assert done.returncode == 0, done.stderr + done.stdout
        return done

    def _run(self, arguments, timeout):
        return subprocess.run([BENCH, *arguments], cwd=self.cwd, capture_output=True, text=True, timeout=timeout)

    def refused(self, *arguments):
        """The one line on standard error of a command that has to end with code 2."""
        done = self(*arguments, check=False)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        (line,) = done.stderr.splitlines()
        return line

    def json(self, *arguments):
        return json.loads(self(*arguments, "--json").stdout)

    def start(self, *arguments, prefix=(), **options):
        """Begin a command, after the words of ``prefix``."""
        return subprocess.Popen(
            [*prefix, BENCH, *map(str, arguments)], cwd=self.cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True, preexec_fn=heed_signals, **options,
        )  # fmt: skip


def heed_signals():
    """Undo for a new process what it would inherit: background jobs ignore Ctrl-C, those of ``nohup`` a hang-up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Inside(Cli):
    """The command line in this process, which needs no second to start: for what ends before workers do."""

    def __init__(self, cwd, captured):
        super().__init__(cwd)
        self.captured = captured

    def _run(self, arguments, timeout):
        code = main(arguments)
        out, err = self.captured.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path)


@pytest.fixture
def inside(tmp_path, monkeypatch, capsys):
    """The command line in this process; what plug-ins registered is forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    yield Inside(tmp_path, capsys)
    CORRUPTIONS.added.clear()
    SCORERS.added.clear()
    for table, module_of in ((declare._DECLARED, lambda test: test.module),
                             (distributions._CLASSES, lambda cls: cls.__module__)):  # fmt: skip
        for name in [name for name, entry in table.items() if module_of(entry).startswith(f"{PLUGINS}.")]:
            del table[name]


@pytest.fixture
def all_inside(inside, monkeypatch):
    """The command line in this process, workers included."""
    bring_workers_in(monkeypatch)
    yield inside
    forget_determinism()


@pytest.fixture(scope="session")
def small_table(tmp_path_factory):
    """The tidy table of an undisturbed small run of one worker."""
    folder = tmp_path_factory.mktemp("small")
    Cli(folder)("run", *SMALL, "--workers", "1")
    return (folder / "results" / "runs" / "metrics.csv").read_bytes()


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """One undisturbed run of three methods on the smoke data, shared by the tests that only look at it."""
    folder = tmp_path_factory.mktemp("tiny")
    Cli(folder)("run", "--method", "cosface,pfe,dul_cls", *TINY, "--workers", "2")
    return folder / "results" / "runs"


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Starting weights of the small network, in a file."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("start") / "convnet.safetensors"
    save_file(build_backbone("convnet", 1).state_dict(), path)
    return path


def records_of(root, method, kind):
    """Records of the trainings or tests of a method."""
    return [json.loads(path.read_text()) for path in root.glob(f"*/*/{method}/{kind}-*/record.json")]


def wait_for(process, moment):
    """Wait until something is true of a command that is at work."""
    while not moment():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.fixture
def site(tmp_path, weights):
    """Results of networks that start at these weights."""
    return Site(results=str(tmp_path / "runs"), weights=str(weights))


@pytest.fixture
def killer():
    def kill_when(process, moment, deadline=PATIENCE):
        """SIGKILL the parent alone once ``moment()`` is true; says whether it was killed before it finished."""
        until = time.monotonic() + deadline
        while process.poll() is None and time.monotonic() < until:
            if moment():
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                return True
            time.sleep(0.005)
        process.wait(timeout=deadline)
        return False

    return kill_when


ANSWERS = """
import json, sys, time
for job in sys.stdin:
    with open(sys.argv[2], "w") as file: file.write(job)
    for pause, said in json.loads(sys.argv[1]):
        time.sleep(pause)
        print(said, flush=True) if said else sys.exit(3)
"""


@pytest.fixture
def scripted(monkeypatch, tmp_path):
    """Function that lets the processes of workers follow a script each, the last ones the last, instead of our program.

    A script has pauses and what is said after them; if nothing, it is the end, with code 3. Gives the environments of
    those started; the last job is in the file ``job``.
    """
    start, started = asyncio.create_subprocess_exec, []

    def of(*scripts):
        waiting = list(scripts)

        async def script(*_, env, **options):
            started.append(env)
            said = json.dumps(waiting.pop(0) if len(waiting) > 1 else waiting[0])
            return await start(sys.executable, "-S", "-c", ANSWERS, said, tmp_path / "job", env=env, **options)

        monkeypatch.setattr(asyncio, "create_subprocess_exec", script)
        return started

    return of


@pytest.fixture
def alive_in_group():
    """Function that lists the processes of a group, those that are left after some seconds if it is told to wait."""

    def alive(group, *, within=0.0):
        end = time.monotonic() + within
        while True:
            listed = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True).stdout
            rows = [line.split(None, 2) for line in listed.splitlines()]
            # Brackets: it has given up its memory already and is on its way out, which takes a busy machine a while.
            left = [row for row in rows if row[0] == str(group) and "Z" not in row[1] and not row[2].startswith("[")]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.1)

    return alive
