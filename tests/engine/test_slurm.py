"""The job files of examples/cluster/slurm, as they are, in a SLURM of a controller and two nodes, each a host."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.engine.clusters import table_of_one_host, wait_until
from tests.engine.hosts import Hosts, refused

FILES = Path(__file__).parents[2] / "examples" / "cluster" / "slurm"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
MISSING = [
    *(name for name in PROGRAMS if shutil.which(name) is None),
    *(["ray"] if importlib.util.find_spec("ray") is None else []),
]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"not here: {', '.join(MISSING)}")]

GRID = ("--method", "cosface,pfe", "--dataset", "ndigit_smoke", "--set", "optim.epochs=40", "--seeds", "2")
GRID = (*GRID, "--trials", "4", "--set", "data.epoch_repeats=8")
"""Arguments of a run of 12 trainings that are long enough for a node to leave and come back."""

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
"""States of a job that has ended."""

CONFIGURATION = """
ClusterName=bench
SlurmctldHost=control
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
MailProg=/bin/true
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=30
SlurmdParameters=config_overrides
NodeName=n1,n2 CPUs=1
PartitionName=all Nodes=n1,n2 Default=YES State=UP
"""


class Slurm:
    """A SLURM of the nodes n1 and n2, one core each, and the host ``control``, which share a munge of their own."""

    def __init__(self, folder, hosts):
        self.folder, self._hosts = folder, hosts
        self.clusters = folder / "clusters"
        self._daemons = []
        # What marks the processes of this SLURM, down to the workers of bench.
        self._mark = f"SLURM_CONF={folder}/slurm.conf"
        self.environment = os.environ | {
            "SLURM_CONF": f"{folder}/slurm.conf",
            "BENCH_CLUSTERS": str(self.clusters),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        folder = self.folder
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder))
        files = ("socket", "key-file", "log-file", "pid-file", "seed-file")
        self._daemon(
            "control", "munged", "--foreground", *(f"--{name}={folder}/munge.{name.split('-')[0]}" for name in files)
        )
        wait_until(lambda: (folder / "munge.socket").exists(), 20, "munge's socket")
        self._daemon("control", "slurmctld", "-D")
        for name in ("n1", "n2"):
            self._daemon(name, "slurmd", "-D")
        wait_until(lambda: self._run("sinfo", "-h", "-t", "idle", "-o", "%D", check=False) == "2", 60, "two idle nodes")

    def __exit__(self, *_):
        self._run("scancel", "--user=root", check=False)
        end = time.monotonic() + 90
        while self._run("squeue", "-h", check=False) and time.monotonic() < end:
            time.sleep(1)
        self._signal(signal.SIGTERM)
        try:
            wait_until(lambda: not self.processes(), 60, "the end of every daemon")
        finally:
            self._signal(signal.SIGKILL)
            for daemon in self._daemons:
                daemon.wait()

    def _signal(self, number):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _daemon(self, host, *command):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        on = self._hosts.on(host, self.folder)
        self._daemons.append(subprocess.Popen([*on, *command], env=self.environment, **quiet))

    def _run(self, *command, cwd="/", check=True):
        command = [*self._hosts.on("control", cwd), *command]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    def submit(self, *arguments, cwd):
        """Submit a job; returns its id."""
        return self._run("sbatch", "--parsable", *map(str, arguments), cwd=cwd)

    def requeue(self, job):
        self._run("scontrol", "requeue", job)

    def state(self, job):
        """State of a job and how it ended, such as ``RUNNING 0:0``."""
        said = self._said(job)
        return f"{said['JobState']} {said['ExitCode']}"

    def _said(self, job):
        rows = self._run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(row.split("=", 1) for row in rows if "=" in row)

    def cut_for(self, job, seconds):
        """Cut the cable of the node of a job for so many seconds."""
        self._hosts.cut_for(self._said(job)["NodeList"], seconds)

    def processes(self, mark="SLURM_CONF="):
        """Processes of this SLURM whose environment has a variable."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = path.read_text(errors="replace").split("\0")
            except OSError:  # it has ended
                continue
            if self._mark in variables and any(variable.startswith(mark) for variable in variables):
                found.append(int(path.parent.name))
        return found


@pytest.fixture(scope="module")
def slurm():
    if reason := refused():
        pytest.skip(reason)
    with (
        tempfile.TemporaryDirectory(prefix="bench-slurm-", dir="/tmp") as folder,  # sockets need a short path
        Hosts("control", "n1", "n2") as hosts,
    ):
        os.chmod(folder, 0o755)
        with Slurm(Path(folder), hosts) as started:
            yield started


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The tidy table of the run without a cluster."""
    return table_of_one_host(tmp_path_factory.mktemp("local"), GRID)


class Run:
    """The grid in two jobs, the head's with the command and a node's."""

    def __init__(self, slurm, folder):
        self.slurm, self.folder = slurm, folder
        self.root = folder / "results" / "runs"
        one = "--cpus-per-task=1"
        self.head = slurm.submit(one, FILES / "head.sbatch", "bench", "run", *GRID, cwd=folder)
        self.node = slurm.submit(one, f"--dependency=after:{self.head}", FILES / "node.sbatch", self.head, cwd=folder)

    def log(self, kind):
        return "".join(path.read_text() for path in self.folder.glob(f"bench-{kind}-*.log"))

    def joined(self):
        """How often the node's job has joined a cluster."""
        return self.log("node").count("Ray runtime started")

    def recorded(self):
        """Times of the records of trainings, trials and tests."""
        return {path: path.stat().st_mtime_ns for path in self.root.rglob("record.json")}

    def in_training(self):
        return len(list(self.root.rglob("checkpoint.pt")))

    def finish(self):
        wait_until(lambda: self.slurm.state(self.head).startswith(ENDED), 1200, "the end of the command")
        assert self.slurm.state(self.head) == "COMPLETED 0:0", self.log("head")
        wait_until(lambda: self.slurm.state(self.node) == "COMPLETED 0:0", 120, "the end of the node's job")


def _left(slurm, agents):
    """Command lines of what is left of the jobs, with or without the agents of Ray."""
    found = []
    for pid in slurm.processes("SLURM_JOB_ID="):
        with contextlib.suppress(OSError):  # it has ended
            found.append(Path(f"/proc/{pid}/cmdline").read_text().strip("\0"))
    return [command for command in found if agents or command != "ray::DashboardAgent"]


def _nothing_left(slurm):
    try:
        wait_until(lambda: not _left(slurm, agents=False), 20, "the end of the jobs")
        # An agent whose Ray died first waits for it: 62 and 123 s without our code. SLURM with cgroups ends it.
        wait_until(lambda: not _left(slurm, agents=True), 180, "the end of Ray's agents")
    except AssertionError as error:
        raise AssertionError(f"{error}: {_left(slurm, agents=True)}") from None
    assert not list(slurm.clusters.iterdir()), "a token was left behind"


def test_a_node_is_queued_again_in_mid_training_and_rejoins(slurm, table, tmp_path):
    run = Run(slurm, tmp_path)
    wait_until(lambda: run.joined() == 1 and run.in_training() == 2 and run.recorded(), 600, "two trainings at once")
    before = run.recorded()
    slurm.requeue(run.node)
    wait_until(lambda: run.joined() == 2, 300, "the node's return")
    assert slurm.state(run.head).startswith("RUNNING"), "the run ended before the node was back"
    run.finish()
    assert run.log("head").count(" has joined: 1 worker") == 3
    assert (run.root / "metrics.csv").read_bytes() == table
    assert before.items() <= run.recorded().items(), "a recorded unit was made again"
    _nothing_left(slurm)


def test_a_head_is_queued_again_in_mid_training_and_resumes(slurm, table, tmp_path):
    run = Run(slurm, tmp_path)
    wait_until(lambda: run.in_training() and len(run.recorded()) >= 3, 600, "a training after three")
    before = run.recorded()
    slurm.requeue(run.head)
    run.finish()
    assert run.joined() >= 2, run.log("node")
    assert run.log("head").count("Nothing finished is lost") == 1
    assert "SIGTERM received" not in run.log("head"), "Ray's handler has ended the command"
    assert (run.root / "metrics.csv").read_bytes() == table
    assert before.items() <= run.recorded().items(), "a recorded unit was made again"
    _nothing_left(slurm)
