"""Workers on all nodes of a Ray cluster: connecting to it, following who joins and leaves, and worker processes there.

A Ray actor on the node starts the same worker process as a run on one machine, and passes its events on. The process
ends when its actor does, however that happens. Ray retries nothing; the pool does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import UnitFailed, UserError, first_line, shortened
from ..planning.experiment import Run
from ..resources import CARD, SHARE, cores, per_gpu
from ..site import Site
from . import jobs
from .pool import TRIES, LocalWorker, Pool

T = TypeVar("T")
LOOK = 1.0
"""Seconds between two looks at the nodes."""

GONE = 20.0
"""Seconds without an answer from the head after which the cluster counts as lost."""

PATIENCE = 60.0
"""Seconds that a cluster has to take a driver, and then to have a node with room for a worker: a head is often there
before its nodes."""

HIDDEN = 60.0
"""Longest time, seconds, for which a network file system may hide the files that another node has written."""

_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class Node(NamedTuple):
    """A node of a Ray cluster, with the cores and GPUs that it declares; one that comes back has another id."""

    id: str
    name: str
    cpus: float
    gpus: float


class Host:
    """The actor on the node: it runs jobs in a worker process of its own, which gets its share of the declared cores.

    ``on_cpu`` is whether jobs run on the CPU, even if the node has a GPU: it may be another program's.
    """

    def __init__(
        self, silence: float | None, variables: Mapping[str, str], declared: int, sharing: int, on_cpu: bool
    ) -> None:
        self._worker = LocalWorker(silence, variables)
        self._threads = max(1, min(cores(), declared) // sharing)
        self._on_cpu = on_cpu

    async def start(self) -> int:
        """Start the process; returns the number of this actor's own."""
        await self._worker.start()
        return os.getpid()

    async def run(self, text: str) -> AsyncIterator[str]:
        """Events of a job, both as JSON; the last one is that it is done or has failed, also with its process."""
        job = jobs.JOBS.validate_json(text)
        if not isinstance(job, jobs.ProposeJob):
            here = {"threads": self._threads} | ({"device": "cpu"} if self._on_cpu else {})
            job = job.model_copy(update={"site": job.site.model_copy(update=here)})
        async for event in self._worker.events(job):
            yield event.model_dump_json()


class RayWorker:
    """A worker process on a node of a Ray cluster; it cannot be used again after its actor has died."""

    def __init__(self, on: Node, gpus: float, silence: float | None, sharing: int) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.usable = True
        self.node = on.name
        limits = {name: value for name, value in os.environ.items() if name.startswith("BENCH_MAX_")}
        limits |= {SHARE: str(gpus)} if gpus else {CARD: ""}
        # No retry of Ray's: it loses events of a job that is run again.
        actor = ray.remote(Host).options(
            num_cpus=1,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(on.id, soft=False),
        )
        self._actor: Any = actor.remote(silence, limits, int(on.cpus), sharing, gpus == 0)

    async def start(self) -> None:
        """Wait until the actor has its share of the node, and start its process."""
        await self._of_actor(self._actor.start.remote())

    async def _of_actor(self, answer: Any) -> Any:
        import ray

        try:
            return await answer
        except ray.exceptions.RayError as error:
            self.usable = False
            raise jobs.WorkerDied(f"worker on node {self.node} ended: {_reason(error)}") from None

    async def run(self, job: jobs.Job, on_event: Callable[[jobs.Event], None]) -> jobs.Done:
        """Run a job; see :class:`~bench.engine.pool.Worker`."""
        stream = self._actor.run.options(num_returns="streaming").remote(job.model_dump_json())
        while True:
            try:
                event = jobs.EVENTS.validate_json(await self._of_actor(await anext(stream)))
            except StopAsyncIteration:
                self.usable = False
                raise jobs.WorkerDied(f"worker on node {self.node} ended in the middle of the job") from None
            if isinstance(event, jobs.Done):
                return event
            if not isinstance(event, jobs.Failed):
                on_event(event)
                continue
            self.usable = not event.ended
            error = jobs.failure(event)
            if isinstance(error, jobs.SettingFailed) or isinstance(job, jobs.ReadyJob):
                raise error  # a trial's record is the same wherever it failed
            raise jobs.failure(event.model_copy(update={"reason": f"on node {self.node}: {event.reason}"}))

    async def stop(self) -> None:
        """Kill the actor; its process ends with it."""
        import ray

        self.usable = False
        with contextlib.suppress(Exception):  # the cluster may be gone
            ray.kill(self._actor)


def _reason(error: Exception) -> str:
    """Message of Ray, on one line, without the traceback that it wraps."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    missing = next((line for line in lines if line.startswith("ModuleNotFoundError")), "")
    return shortened(missing or (lines[-1] if "RayTaskError" in type(error).__name__ else first_line(error)))


def connect(address: str) -> bool:
    """Connect this process to a Ray cluster; returns True if it asks for a token, False if anybody can use it.

    Token authentication is on if ``RAY_AUTH_MODE`` says so, or if that is not set and there is a token. The address is
    ``HOST:PORT`` of the head, or ``auto`` for the cluster that this machine belongs to.
    """
    if address != "auto":
        _check_reachable(address)
    # Ray's hook for `uv run` would upload the project and build an environment on every node.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    if "RAY_AUTH_MODE" not in os.environ:
        found = any(map(os.environ.get, _TOKENS)) or (Path.home() / ".ray" / "auth_token").is_file()
        os.environ["RAY_AUTH_MODE"] = "token" if found else "disabled"
    try:
        import ray
    except ImportError:
        raise UserError("--launcher ray needs Ray, an extra: `pip install 'probembed[ray]'`") from None
    try:
        # In another thread, as it would take over the signals in the main one.
        joining = _in_thread(
            lambda: ray.init(address=address, namespace="bench", log_to_driver=False, logging_level=logging.CRITICAL)
        )
        joining.result(timeout=PATIENCE)
    except TimeoutError:
        raise UserError(f"--address {address}: the Ray cluster has not answered for {PATIENCE:g} s") from None
    except Exception as error:  # of many classes, RuntimeError and ConnectionError among them
        raise UserError(f"--address {address}: {_advice(error)}") from None
    with contextlib.suppress(Exception):  # a name of Ray's own, which may change
        from ray._private.ray_logging import global_worker_stdstream_dispatcher as lines

        lines.remove_handler("ray_print_logs")  # paragraphs about every worker that dies; ours say it in a line
    # Ray takes SIGTERM for a crash: it would print its stack, and abort this process 3 s later.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    return os.environ["RAY_AUTH_MODE"] == "token"


ADVICE = {
    "Could not find any running Ray instance": "this machine belongs to no Ray cluster; start one (`ray start --head`),"
    " or join one on this machine",
    "ersion mismatch": "nodes and driver need the same Ray and Python: {said}",
    "Failed to connect": "{said}: is it running, and is its token the same as here (RAY_AUTH_MODE=token,"
    " RAY_AUTH_TOKEN_PATH)?",
    "node_ip_address": "this machine is no node of that cluster; run `ray start --address=HOST:PORT` here first",
    "this IP address": "this machine is no node of that cluster; run `ray start --address=HOST:PORT` here first",
}
"""What to do, by what Ray says."""


def _advice(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    advice = next((text for part, text in ADVICE.items() if part in said), "{said}")
    return advice.format(said=shortened(said, 200))


def _check_reachable(address: str) -> None:
    """Refuse at once an address where nothing listens, for which Ray would wait minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UserError(f"--address {address}: not auto and not HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, UnicodeError) as error:  # the latter for names that no host can have
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--address {address}: no Ray cluster answers there ({reason})") from None


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Result of some work in another thread, which nobody has to wait for: Ray may never answer."""
    result: Future[T] = Future()

    def run() -> None:
        result.set_running_or_notify_cancel()
        try:
            result.set_result(work())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


async def living_nodes() -> list[Node]:
    """The nodes that are alive, after a pause; an error, or no answer, if the head is gone."""
    import ray

    await asyncio.sleep(LOOK)
    return _living(await asyncio.wrap_future(_in_thread(ray.nodes)))


def _living(rows: Iterable[Mapping[str, Any]]) -> list[Node]:
    """The living nodes among those that Ray lists."""
    nodes = []
    for row in rows:
        if row["Alive"]:
            host, address = row["NodeManagerHostname"], row["NodeManagerAddress"]
            given = row.get("NodeName") or address
            name = given if given != address else f"{host} ({address})"
            has = row["Resources"]
            nodes.append(Node(row["NodeID"], name, has.get("CPU", 0.0), has.get("GPU", 0.0)))
    return nodes


def share_of_gpu(launch: Run, nodes: list[Node]) -> float:
    """Share of a GPU for each worker in a cluster; 0 if workers need none."""
    asked = launch.gpus_per_worker
    there = any(node.gpus > 0 for node in nodes)
    if launch.device == "cpu" or (launch.device == "auto" and asked is None and not there):
        return 0.0
    if not there:
        option = "--device cuda" if asked is None else f"--gpus-per-worker {asked:g}"
        raise UserError(f"{option}: no node of the cluster declares a GPU (ray start --num-gpus)")
    return asked or 1.0


def slots(node: Node, gpus: float) -> int:
    """Number of workers that a node has room for, each with a core and a share of one GPU.

    Example:
        >>> slots(Node("", "", cpus=8, gpus=2), 0.4), slots(Node("", "", cpus=3, gpus=2), 0.4)
        (4, 3)
        >>> slots(Node("", "", cpus=3, gpus=0), 0.0), slots(Node("", "", cpus=3, gpus=0), 1.0)
        (3, 0)
    """
    room = math.floor(node.cpus)
    if not gpus:
        return room
    # Shares of a card are not put together from two cards.
    return min(room, math.floor(node.gpus) * per_gpu(gpus))


@dataclass
class _Member:
    """A node that is used, with the workers that were started on it and have not died, as far as is known.

    ``slots`` is the number of workers that it is to have, ``failures`` that of starts that failed, one after the other.
    """

    node: Node
    slots: int = 0
    left_out: bool = False
    workers: list[RayWorker] = field(default_factory=list)
    checked: bool = False
    failures: int = 0
    starting: asyncio.Task[None] | None = None


class RayWorkers(Pool):
    """Pool of workers on the nodes of a Ray cluster; ``lost`` says why the cluster is gone."""

    def __init__(self, launch: Run, needs: jobs.Needs, site: Site, say: Callable[[str], None]) -> None:
        super().__init__()
        self._launch, self._needs, self._site, self._say = launch, needs, site, say
        self._address = launch.address or "auto"
        self._members: dict[str, _Member] = {}
        self._left_out: list[str] = []
        self._gpus = 0.0
        self._looks = 0
        self._first: Future[None] = Future()
        """Done when there is a worker, or none will come."""
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect to the cluster, and wait for the first worker."""
        if not connect(self._address):
            self._say("the Ray cluster has no token: whoever can reach it can run code as you (see docs/cluster.md)")
        first = asyncio.wrap_future(self._first)
        driver = asyncio.current_task()
        assert driver is not None
        self._watching = asyncio.create_task(self._watch(driver))
        try:
            async with asyncio.timeout(GONE):
                await asyncio.shield(first)
        except TimeoutError:
            self._say("no worker has started yet: nodes load torch and are checked, or others hold their cores or GPUs")
            await first

    async def stop(self) -> None:
        """Kill every worker at once, and leave the cluster."""
        import atexit

        if self._watching is None:  # it was never connected, maybe for want of Ray
            return

        import ray

        tasks = [self._watching, *(each.starting for each in self._members.values() if each.starting)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.lost:
            # Ray's own end would wait for the head, and then crash: the process ends before it, as one that has failed.
            atexit.unregister(ray.shutdown)
            atexit.register(os._exit, 1)
            return
        await super().stop()
        ray.shutdown()

    async def _watch(self, driver: asyncio.Task[object]) -> None:
        """Follow the nodes; when the head has not answered for :data:`GONE` seconds, cancel the task of the driver."""
        # Silence is counted in looks and not by a clock, so that a process that was stopped (Ctrl-Z) gives up nothing.
        silent = 0.0
        while silent < GONE:
            try:
                async with asyncio.timeout(GONE / 2):  # `wait_for` of Python 3.11 forgets that it was cancelled
                    nodes = await living_nodes()
            except TimeoutError:
                silent += GONE / 2
            except Exception:  # of many classes: the head is gone
                silent += LOOK
            else:
                silent = 0.0
                self._see(nodes)
        self._lose(driver)

    def _see(self, nodes: list[Node]) -> None:
        """Use the nodes; until there is a first worker, wait a while for those that have room for one."""
        try:
            self._follow(nodes)
        except UserError as error:
            if self._first.done():
                return
            if not self._looks and not self._left_out:
                self._say(f"{error}; waiting {PATIENCE:g} s for nodes to join")
            self._looks += 1
            if self._left_out or self._looks > PATIENCE / LOOK:
                self._first.set_exception(error)

    def _lose(self, driver: asyncio.Task[object]) -> None:
        self.lost = (
            f"the head of the Ray cluster has not answered for {GONE:g} s; nothing finished is lost: start the cluster"
            " again and type the same command"
        )
        if self._first.done():
            driver.cancel()
        else:
            self._first.set_exception(UnitFailed(self.lost))

    def _follow(self, nodes: list[Node]) -> None:
        """Use nodes that have joined, forget nodes that have left, and replace workers that have died."""
        if not self._first.done():
            self._gpus = share_of_gpu(self._launch, nodes)
        there = {node.id for node in nodes}
        for key in [key for key in self._members if key not in there]:
            self._forget(self._members.pop(key))
        for node in nodes:
            self._members.setdefault(node.id, _Member(node))
        for member in self._members.values():
            if not member.left_out:
                member.slots = min(slots(member.node, self._gpus), member.slots + self._room())
            member.workers = [worker for worker in member.workers if worker.usable]
            busy = member.starting is not None and not member.starting.done()
            if len(member.workers) < member.slots and not busy:
                member.starting = asyncio.create_task(self._start_workers(member))
        if not self._first.done() and all(member.slots == 0 for member in self._members.values()):
            raise UserError(
                self._left_out[0] if self._left_out else f"--address {self._address}: no node has room for a worker"
            )

    def _room(self) -> int:
        """Number of workers that may still be started."""
        return (self._launch.workers or 1 << 30) - sum(member.slots for member in self._members.values())

    def _forget(self, member: _Member) -> None:
        if member.slots:
            self._say(f"node {member.node.name} has left; its jobs go to other workers")
        if member.starting is not None:
            member.starting.cancel()
        for worker in member.workers:
            worker.usable = False
            self.remove(worker)
        if not any(other.workers for other in self._members.values()):
            self._say("no worker is left; waiting for a node to join (the same command goes on later, too)")

    async def _start_workers(self, member: _Member) -> None:
        """Start the workers that a node has room for; the first one checks the node."""
        try:
            if not member.checked:
                await self._start_worker(member)
                member.checked = True
                count = f"{member.slots} worker{'s' if member.slots > 1 else ''}"
                self._say(f"node {member.node.name} has joined: {count}")
            starts = (self._start_worker(member) for _ in range(member.slots - len(member.workers)))
            # All are waited for: those that are still starting must not be started a second time.
            for failed in filter(None, await asyncio.gather(*starts, return_exceptions=True)):
                raise failed
            member.failures = 0
        except Exception as error:  # a JobFailed, or whatever else Ray raises: nobody else would hear of it
            died = isinstance(error, jobs.WorkerDied) and "ModuleNotFoundError" not in str(error)
            member.failures += 1
            if not died or member.failures == TRIES:
                member.slots, member.left_out = 0, True
                self._left_out.append(f"node {member.node.name} is left out: {first_line(error)}")
                self._say(self._left_out[-1])

    async def _start_worker(self, member: _Member) -> None:
        worker = RayWorker(member.node, self._gpus, self._launch.stall and 60 * self._launch.stall, member.slots)
        try:
            await worker.start()
            if self._gpus or not member.checked:
                needs = None if member.checked else self._needs
                await worker.run(jobs.ReadyJob(site=self._site, needs=needs), lambda event: None)
        except BaseException:
            with contextlib.suppress(Exception):
                await worker.stop()
            raise
        member.workers.append(worker)
        self.add(worker)
        if not self._first.done():
            self._first.set_result(None)
