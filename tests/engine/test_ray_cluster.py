"""Workers on the nodes of a cluster: they follow the nodes, and what becomes of what they say. Ray is made up."""

import asyncio
import contextlib
import os
import socket
import sys
import time
from types import SimpleNamespace

import pytest
from bench.cli import main
from bench.engine import jobs, ray_workers
from bench.engine.jobs import Done, JobCrashed, ReadyJob, TrainJob, WorkerDied
from bench.engine.ray_workers import Host, Node, RayWorker, RayWorkers, connect, living_nodes, share_of_gpu
from bench.errors import UserError
from bench.planning.experiment import Run
from bench.site import Site

from tests.plans import planned
from tests.refusals import one_line

JOB = TrainJob.model_construct()


def node(name, cpus=2, gpus=0):
    return Node(f"id of {name}", name, float(cpus), float(gpus))


class FakeWorker:
    """A worker of a node; what happens at its start and at the check of its node is set by the name of the node."""

    made: list["FakeWorker"]
    starts: dict
    checks: dict

    def __init__(self, on, gpus, silence, sharing):
        self.on, self.node, self.gpus, self.sharing = on, on.name, gpus, sharing
        self.usable, self.stopped, self.jobs = True, False, []
        self.made.append(self)

    async def start(self):
        await self.happens(self.starts)

    async def happens(self, what):
        outcome = what.get(self.node)
        if isinstance(outcome, list):
            outcome = outcome.pop(0) if outcome else None
        if isinstance(outcome, asyncio.Event):
            await outcome.wait()
        elif outcome is not None:
            raise outcome

    async def run(self, job, on_event):
        self.jobs.append(job)
        if isinstance(job, ReadyJob):
            await self.happens(self.checks)
        return Done()

    async def stop(self):
        self.usable, self.stopped = False, True


class Cluster:
    """A cluster whose nodes are what :meth:`see` said last."""

    def __init__(self, tmp_path):
        self.said, self.made, self.seen = [], [], asyncio.Queue()
        self.root = tmp_path

    def workers(self, workers=None, gpus=None, device="auto"):
        options = {"workers": workers, "device": device, "gpus_per_worker": gpus}
        launch = Run(launcher="ray", address="10.0.0.1:6379", **options)
        needs = jobs.Needs(software={}, driver="", plans=())
        return RayWorkers(launch, needs, Site(results=str(self.root)), self.said.append)

    async def see(self, *nodes):
        self.seen.put_nowait(list(nodes))
        for _ in range(50):
            await asyncio.sleep(0)

    def alive(self):
        """Number of living workers by node."""
        names = [worker.node for worker in self.made if worker.usable]
        return {name: names.count(name) for name in names}

    def tried(self, name):
        return sum(worker.node == name for worker in self.made)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    there = Cluster(tmp_path)
    monkeypatch.setattr(FakeWorker, "made", there.made, raising=False)
    monkeypatch.setattr(FakeWorker, "starts", {}, raising=False)
    monkeypatch.setattr(FakeWorker, "checks", {}, raising=False)
    monkeypatch.setattr(ray_workers, "RayWorker", FakeWorker)
    monkeypatch.setattr(ray_workers, "connect", lambda address: True)
    monkeypatch.setattr(ray_workers, "living_nodes", lambda: there.seen.get())
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(shutdown=lambda: None))
    return there


@contextlib.asynccontextmanager
async def beginning(cluster, **shares):
    """Workers and the task that starts them."""
    pool = cluster.workers(**shares)
    try:
        yield pool, asyncio.create_task(pool.start())
    finally:
        await pool.stop()


@contextlib.asynccontextmanager
async def started(cluster, first, **shares):
    """Workers that are started on the first nodes."""
    async with beginning(cluster, **shares) as (pool, starting):
        await cluster.see(*first)
        await asyncio.wait_for(starting, 5)
        yield pool


# Shares


@pytest.mark.parametrize(
    ("shares", "gpus", "expected"),
    [
        (Run(device="cpu"), 2, 0.0),
        (Run(), 0, 0.0),
        (Run(), 2, 1.0),
        (Run(gpus_per_worker=0.25), 2, 0.25),
        (Run(device="cuda"), 1, 1.0),
        (Run(device="cuda", gpus_per_worker=0.5), 1, 0.5),
    ],
)
def test_share_of_a_gpu(shares, gpus, expected):
    assert share_of_gpu(shares, [node("a"), node("b", gpus=gpus)]) == expected


# Nodes that join and leave


async def test_workers_follow_the_nodes(cluster):
    async with started(cluster, [node("a")]) as pool:
        assert cluster.alive() == {"a": 2}
        await cluster.see(node("a"), node("b", 3))
        assert cluster.alive() == {"a": 2, "b": 3}
        assert [worker.sharing for worker in cluster.made] == [2, 2, 3, 3, 3]
        # The first worker of a node checks it, and no other.
        checks = [[ReadyJob], []]
        assert [[type(job) for job in worker.jobs] for worker in cluster.made] == [*checks, *checks, []]
        await cluster.see(node("b", 3))
        assert cluster.alive() == {"b": 3}
        await asyncio.gather(*(pool.run(JOB) for _ in range(8)))
        assert {worker.node for worker in cluster.made if JOB in worker.jobs} == {"b"}
    assert cluster.said == [
        "node a has joined: 2 workers",
        "node b has joined: 3 workers",
        "node a has left; its jobs go to other workers",
    ]
    assert all(worker.stopped for worker in cluster.made if worker.node == "b")


async def test_it_stops_also_if_the_nodes_are_listed_at_the_same_moment(cluster):
    async with started(cluster, [node("a")]) as pool:
        cluster.seen.put_nowait([node("a")])
        await asyncio.sleep(0)  # the list is there, and not read yet
        await asyncio.wait_for(pool.stop(), 5)
    assert cluster.alive() == {}


async def test_a_cluster_without_workers_is_waited_for(cluster):
    async with started(cluster, [node("a")]) as pool:
        await cluster.see()
        waiting = asyncio.create_task(pool.run(JOB))
        await cluster.see()
        assert not waiting.done()
        assert "no worker is left" in cluster.said[-1]
        await cluster.see(node("b"))
        assert await asyncio.wait_for(waiting, 5) == Done()


async def test_a_worker_whose_gpu_cannot_be_used_is_replaced_and_its_node_left_out_after_three_tries(cluster):
    FakeWorker.starts["b"] = [None] + [WorkerDied("GPU 0 is gone")] * 9
    async with started(cluster, [node("a", gpus=1), node("b", gpus=1)]):
        assert cluster.alive() == {"a": 1, "b": 1}
        assert [job.needs is not None for job in cluster.made[0].jobs] == [True]
        cluster.made[1].usable = False
        for _ in range(9):
            await cluster.see(node("a", gpus=1), node("b", gpus=1))
        assert cluster.alive() == {"a": 1}
        assert cluster.tried("b") == 4
        assert cluster.said[-1] == "node b is left out: GPU 0 is gone"


async def test_workers_that_are_still_starting_are_not_started_again(cluster):
    """One of three failed at once, and two were started for it and for the one that was still starting."""
    slow = asyncio.Event()

    FakeWorker.starts["a"] = [None, WorkerDied("killed"), slow]
    async with started(cluster, [node("a", 3)]):
        await cluster.see(node("a", 3))
        await cluster.see(node("a", 3))
        assert cluster.tried("a") == 3
        slow.set()
        await cluster.see(node("a", 3))
        await cluster.see(node("a", 3))
        assert cluster.tried("a") == 4
        assert sum(worker.usable for worker in cluster.made if not worker.stopped) == 3


# The largest number of workers


async def test_the_number_of_workers_is_limited_and_the_room_of_a_node_that_leaves_goes_to_others(cluster):
    async with started(cluster, [node("a"), node("b", 4)], workers=3):
        assert cluster.alive() == {"a": 2, "b": 1}
        await cluster.see(node("a"), node("b", 4), node("c"))
        assert cluster.alive() == {"a": 2, "b": 1}
        await cluster.see(node("b", 4), node("c"))
        assert cluster.alive() == {"b": 3}


# Nodes that are left out


async def test_if_all_nodes_are_left_out_the_reason_of_the_first_is_the_error(cluster):
    FakeWorker.checks |= {"a": JobCrashed("it has torch 1, this run 2"), "b": JobCrashed("it has torch 3")}
    async with beginning(cluster) as (_, starting):
        for _ in range(2):
            await cluster.see(node("a"), node("b"))
        with pytest.raises(UserError, match=r"^node a is left out: it has torch 1, this run 2$"):
            await asyncio.wait_for(starting, 5)


@pytest.mark.parametrize(
    ("nodes", "shares", "message"),
    [
        ([node("a", 0)], {}, r"^--address 10\.0\.0\.1:6379: no node has room for a worker$"),
        ([node("a")], {"gpus": 0.25}, "^--gpus-per-worker 0.25: no node"),
        ([node("a", 0, 1)], {"gpus": 0.25}, "no node has room"),
    ],
)
async def test_a_cluster_without_room_is_an_error_after_a_while(cluster, nodes, shares, message, monkeypatch):
    monkeypatch.setattr(ray_workers, "PATIENCE", 3)
    async with beginning(cluster, **shares) as (_, starting):
        for _ in range(3):
            await cluster.see(*nodes)
            assert not starting.done()
        await cluster.see(*nodes)
        with pytest.raises(UserError, match=message):
            await asyncio.wait_for(starting, 5)
    assert [line for line in cluster.said if line.endswith("; waiting 3 s for nodes to join")] == cluster.said
    assert len(cluster.said) == 1


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (WorkerDied, "worker on node a ended: ModuleNotFoundError: No module named 'bench'"),
        (ConnectionError, "not connected"),  # one that nobody thought of: the run waited for ever
    ],
)
async def test_a_node_that_cannot_start_a_worker_is_left_out_at_once(cluster, kind, said):
    FakeWorker.starts["a"] = kind(f"{said}\nlong story")
    async with started(cluster, [node("a"), node("b")]):
        await cluster.see(node("a"), node("b"))
        assert cluster.tried("a") == 1
        assert f"node a is left out: {said}" in cluster.said


# The rest


@pytest.mark.parametrize("token", [True, False])
async def test_a_cluster_without_a_token_is_named(cluster, monkeypatch, token):
    monkeypatch.setattr(ray_workers, "connect", lambda address: token)
    async with started(cluster, [node("a")]):
        pass
    assert any("has no token" in line for line in cluster.said) == (not token)


EVENTS = (jobs.Alive(step="epoch 1"), jobs.EpochDone(epoch=1))


def _event(event):
    return event.model_dump_json()


SAID = [(0, _event(event)) for event in EVENTS]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    [plan], site = planned(Site(results=str(tmp_path_factory.mktemp("runs")), threads=7), "cosface", seeds=1)
    return jobs.TrainJob(spec=plan.template, site=site)


# The actor


async def _said(job, silence=None, declared=64, sharing=1):
    host = Host(silence, {}, declared, sharing, on_cpu=True)
    assert await host.start() == os.getpid()
    try:
        return [jobs.EVENTS.validate_json(said) async for said in host.run(job.model_dump_json())]
    finally:
        await host._worker.stop()


@pytest.mark.parametrize("last", [jobs.Done(), jobs.Failed(error="ValueError", reason="bad", place="", log="")])
async def test_the_actor_passes_on_what_its_process_says(job, scripted, last, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_workers, "cores", lambda: 8)
    scripted([*SAID, (0, _event(last))])
    assert await _said(job, sharing=3) == [*EVENTS, last]
    got = jobs.TrainJob.model_validate_json((tmp_path / "job").read_text())
    assert got.spec == job.spec
    assert got.site.threads == 2  # of the cores of its node, and not of ours
    assert await _said(job, declared=4, sharing=3)
    assert jobs.TrainJob.model_validate_json((tmp_path / "job").read_text()).site.threads == 1


async def test_the_actor_says_that_its_process_has_died_or_was_silent(job, scripted):
    scripted([*SAID, (0, "")])
    *said, last = await _said(job)
    assert said == [*EVENTS]
    assert (last.error, last.ended) == ("WorkerDied", False)
    assert "exit code 3" in last.reason
    assert "at about 'epoch 1'" in last.reason
    scripted([*SAID, (1000, "")])
    last = (await _said(job, silence=0.5))[-1]
    assert last.error == "WorkerSilent"
    assert "run.stall" in last.reason


# Its counterpart here


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


async def stream(*said):
    """What an actor's task yields: references that give what was said, or raise."""
    for value in said:
        yield _reference(value)


async def _reference(value):
    if isinstance(value, Exception):
        raise value
    return value


@pytest.fixture
def on_node(monkeypatch):
    """A worker on node `far`, whose actor starts with one outcome and says what is given."""
    killed, actor = [], SimpleNamespace()

    def remote(cls):
        assert cls is Host
        return SimpleNamespace(options=lambda **given: SimpleNamespace(remote=lambda *arguments: actor))

    ray = SimpleNamespace(remote=remote, kill=killed.append, exceptions=SimpleNamespace(RayError=RayError))
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)

    def of(*said, start=1):
        actor.start = SimpleNamespace(remote=lambda: _reference(start))
        streams = SimpleNamespace(remote=lambda text: stream(*said))
        actor.run = SimpleNamespace(options=lambda num_returns: streams)
        there = RayWorker(Node("id", "far", 4.0, 1.0), 0.5, None, 2)
        there.killed = killed
        return there

    return of


def _failed(error, reason="bad", ended=False):
    return _event(jobs.Failed(error=error, reason=reason, place="", log="", ended=ended))


@pytest.mark.parametrize(
    ("said", "expected", "usable"),
    [
        (_failed("WorkerDied", "exit code 3"), (jobs.WorkerDied, "on node far: exit code 3"), True),
        (_failed("WorkerSilent", "no progress"), (jobs.WorkerSilent, "on node far: no progress"), True),
        (_failed("WorkerDied", "GPU 0 is gone", ended=True), (jobs.WorkerDied, "on node far: GPU 0 is gone"), False),
        (_failed("ValueError"), (jobs.JobCrashed, "on node far: bad"), True),
        (_failed("FloatingPointError"), (jobs.SettingFailed, "bad"), True),
        (RayError("The actor died\nlong story"), (jobs.WorkerDied, "worker on node far ended: The actor died"), False),
        (None, (jobs.WorkerDied, "worker on node far ended in the middle of the job"), False),
    ],
)
async def test_failures_name_the_node_except_those_of_a_setting(on_node, job, said, expected, usable):
    """The record of a trial must be the same wherever it failed."""
    there = on_node(_event(EVENTS[0]), *filter(None, [said]))
    with pytest.raises(expected[0]) as caught:
        await there.run(job, lambda event: None)
    assert (caught.type, str(caught.value)) == expected
    assert there.usable is usable


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RayError("The node has left\nand more"), "The node has left"),
        (RayTaskError("Traceback:\n  File x\nValueError: bad\n"), "ValueError: bad"),
        (RayError("Failed:\nModuleNotFoundError: No module named 'bench'\nmore"),
         "ModuleNotFoundError: No module named 'bench'"),
    ],
)  # fmt: skip
async def test_a_start_that_fails_says_why_in_one_line(on_node, error, reason):
    there = on_node(start=error)
    with pytest.raises(jobs.WorkerDied) as caught:
        await there.start()
    assert str(caught.value) == f"worker on node far ended: {reason}"
    assert not there.usable
    await there.stop()
    assert len(there.killed) == 1


# Connecting: an address that cannot work is one line, with and without Ray


RUN = ("run", "--method", "cosface", "--dataset", "ndigit_smoke", "--hparams", "default", "--seeds", "1",
       "--launcher", "ray")  # fmt: skip


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """Variables that connecting sets are put back; there is no token."""
    for name in ("RAY_AUTH_MODE", "RAY_ENABLE_UV_RUN_RUNTIME_ENV", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def no_ray(environment, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.fixture
def ray(environment, monkeypatch):
    """A Ray that accepts every address."""
    asked = []
    there = SimpleNamespace(init=lambda **options: asked.append(options), asked=asked)
    monkeypatch.setitem(sys.modules, "ray", there)
    return there


def _closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("address", ["foo", "host:", ":6379", "1.2.3.4:99999", "1.2.3.4:0", "host:-1", "host:²", ""])
def test_what_is_no_address_is_refused(no_ray, address):
    with pytest.raises(UserError, match="not auto and not HOST:PORT"):
        connect(address)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (_closed_port, "no Ray cluster answers there (Connection refused)"),
        (None, "`uv sync --inexact --extra ray`"),
    ],
)
def test_the_command_line_says_so_in_one_line(no_ray, address, message, tmp_path, capsys):
    """Without Ray, a traceback came from leaving a cluster that was never joined."""
    given = address() if callable(address) else address
    options = () if given is None else ("--address", given)
    assert main([*RUN, *options, "--results", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert [line for line in said if line.startswith("bench: ")] == said[-1:]
    assert not any("Traceback" in line for line in said)
    assert not list((tmp_path / "runs" / ".drivers").iterdir())


@pytest.mark.parametrize(
    ("variables", "token"),
    [
        ({}, False),
        ({"RAY_AUTH_MODE": "token"}, True),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "x"}, False),
        ({"RAY_AUTH_TOKEN": "x"}, True),
        ({"RAY_AUTH_TOKEN_PATH": "x"}, True),
    ],
)
def test_a_token_is_used_if_there_is_one(ray, monkeypatch, variables, token):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert connect("auto") is token


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ConnectionError("Could not find any running Ray instance. Please specify"), "belongs to no Ray cluster"),
        (RuntimeError("Version mismatch: The cluster was started with:\n Ray: 2.1"), "the same Ray and Python"),
        (RuntimeError("Failed to connect to GCS at address 1.2.3.4"), "is its token the same"),
        (ValueError("something else\nat length"), "something else at length"),
    ],
)
def test_an_error_of_ray_becomes_one_line(ray, error, advice):
    def init(**options):
        raise error

    ray.init = init
    said = one_line(UserError, connect, "auto")
    assert said.startswith("--address auto: ")
    assert advice in said


def test_a_cluster_that_never_answers_is_given_up(ray, monkeypatch):
    monkeypatch.setattr(ray_workers, "PATIENCE", 0.05)
    ray.init = lambda **options: time.sleep(1)
    with pytest.raises(UserError, match=r"has not answered for 0\.05 s"):
        connect("auto")


async def test_nodes_that_are_alive_are_reported_with_their_names_and_resources(ray, monkeypatch):
    row = {"Alive": True, "NodeID": "1", "NodeManagerHostname": "box", "NodeManagerAddress": "10.0.0.1",
           "NodeName": "10.0.0.1", "Resources": {"CPU": 4.0, "GPU": 1.0, "memory": 1e9}}  # fmt: skip
    named = {**row, "NodeID": "2", "NodeName": "left", "Resources": {}}
    dead = {**row, "NodeID": "3", "Alive": False}
    ray.nodes = lambda: [row, named, dead]
    monkeypatch.setattr(ray_workers, "LOOK", 0.0)
    assert await living_nodes() == [Node("1", "box (10.0.0.1)", 4.0, 1.0), Node("2", "left", 0.0, 0.0)]


GONE = ConnectionError("no head")


@pytest.mark.parametrize(
    ("answers", "lost"),
    [([[node("a")], GONE, GONE, [node("a")], GONE, GONE], False), ([[node("a")], GONE, GONE, GONE], True)],
)
async def test_a_head_that_is_gone_ends_the_command_and_one_that_answers_again_does_not(
    cluster, monkeypatch, answers, lost
):
    async def said():
        await asyncio.sleep(0.02)
        found = answers.pop(0) if answers else await asyncio.Event().wait()
        if found is GONE:
            raise found
        return found

    monkeypatch.setattr(ray_workers, "living_nodes", said)
    monkeypatch.setattr(ray_workers, "GONE", 3.0)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    pool, cancelled = cluster.workers(), False
    await pool.start()
    try:
        await asyncio.sleep(0.5)
    except asyncio.CancelledError:
        asyncio.current_task().uncancel()
        cancelled = True
    assert (bool(pool.lost), cancelled) == (lost, lost)
    await pool.stop()
