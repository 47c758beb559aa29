"""Workers on the nodes of a cluster: they follow the nodes, and nodes that cannot work are left out.

Ray is not needed: its workers, its nodes and the connection are made up here.
"""

import asyncio
import contextlib
import sys
from types import SimpleNamespace

import pytest
from bench.engine import ray_workers
from bench.engine.jobs import Done, JobCrashed, ReadyJob, TrainJob, WorkerDied
from bench.engine.launch import Launch
from bench.engine.needs import Needs
from bench.engine.ray_workers import Node, RayWorkers, share_of_gpu
from bench.errors import UserError
from bench.site import Site

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
        self.said, self.made, self.see_nodes, self.looked_at = [], [], None, False
        self.root = tmp_path

    def workers(self, workers=None, gpus=None, device="auto"):
        options = {"workers": workers, "device": device, "gpus_per_worker": gpus}
        launch = Launch(launcher="ray", address="10.0.0.1:6379", **options)
        needs = Needs(software={}, driver="", plans=())
        return RayWorkers(launch, needs, Site(results=str(self.root)), self.said.append)

    def watch(self, seen, pause):
        self.see_nodes, self.looked_at = seen, True
        return lambda: setattr(self, "looked_at", False)

    async def connected(self, pool):
        """The task that starts a pool, once it looks at the nodes."""
        starting = asyncio.create_task(pool.start())
        while self.see_nodes is None:
            await asyncio.sleep(0)
        return starting

    async def see(self, *nodes):
        self.see_nodes(list(nodes))
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
    monkeypatch.setattr(ray_workers, "watch_nodes", there.watch)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(shutdown=lambda: None))
    return there


@contextlib.asynccontextmanager
async def beginning(cluster, **shares):
    """Workers and the task that starts them, once it looks at the nodes."""
    pool = cluster.workers(**shares)
    try:
        yield pool, await cluster.connected(pool)
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
        (Launch(device="cpu"), 2, 0.0),
        (Launch(), 0, 0.0),
        (Launch(), 2, 1.0),
        (Launch(gpus_per_worker=0.25), 2, 0.25),
        (Launch(device="cuda"), 1, 1.0),
        (Launch(device="cuda", gpus_per_worker=0.5), 1, 0.5),
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


async def test_the_first_worker_of_a_node_checks_it_and_no_other(cluster):
    async with started(cluster, [node("a", 3), node("b", 3)]):
        for name in ("a", "b"):
            jobs = [[type(job) for job in worker.jobs] for worker in cluster.made if worker.node == name]
            assert jobs == [[ReadyJob], [], []]


async def test_a_cluster_without_workers_is_waited_for(cluster):
    async with started(cluster, [node("a")]) as pool:
        await cluster.see()
        waiting = asyncio.create_task(pool.run(JOB))
        await cluster.see()
        assert not waiting.done()
        assert "no worker is left" in cluster.said[-1]
        await cluster.see(node("b"))
        assert await asyncio.wait_for(waiting, 5) == Done()


async def test_a_worker_whose_gpu_cannot_be_used_is_given_up(cluster):
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
    assert not cluster.looked_at
    assert [line for line in cluster.said if line.endswith("; waiting 3 s for nodes to join")] == cluster.said
    assert len(cluster.said) == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            WorkerDied("worker on node a ended: ModuleNotFoundError: No module named 'bench'"),
            "worker on node a ended: ModuleNotFoundError",
        ),
        # One that nobody thought of: the run waited for ever.
        (ConnectionError("not connected\nlong story"), "not connected"),
    ],
)
async def test_a_node_that_cannot_start_a_worker_is_left_out_at_once(cluster, error, said):
    FakeWorker.starts["a"] = error
    async with started(cluster, [node("a"), node("b")]):
        await cluster.see(node("a"), node("b"))
        assert cluster.tried("a") == 1
        assert any(line.startswith(f"node a is left out: {said}") and "\n" not in line for line in cluster.said)


async def test_a_node_whose_workers_die_at_their_start_is_left_out_after_three(cluster):
    FakeWorker.starts["a"] = WorkerDied("killed")
    async with started(cluster, [node("a"), node("b")]):
        for number in (2, 3, 3):
            await cluster.see(node("a"), node("b"))
            assert cluster.tried("a") == number
        assert "node a is left out: killed" in cluster.said


# The rest


@pytest.mark.parametrize("token", [True, False])
async def test_a_cluster_without_a_token_is_named(cluster, monkeypatch, token):
    monkeypatch.setattr(ray_workers, "connect", lambda address: token)
    async with started(cluster, [node("a")]):
        pass
    assert any("has no token" in line for line in cluster.said) == (not token)
