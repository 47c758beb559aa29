"""Nodes of a Ray cluster: connecting to it, following who joins and leaves, and worker processes on them.

A Ray actor on the node starts the same worker process as a run on one machine, and passes its events on. The process
ends when its actor does, however that happens. Ray retries nothing; the pool does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import UserError, first_line, shortened
from ..resources import CARD, SHARE, cores
from .jobs import (
    EVENTS,
    JOBS,
    Done,
    Event,
    Failed,
    Job,
    ProposeJob,
    ReadyJob,
    SettingFailed,
    WorkerDied,
    WorkerSilent,
    failure,
)
from .pool import LocalWorker

T = TypeVar("T")
_PATIENCE = 60.0
"""Seconds that a cluster has to take a driver."""

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
        job = JOBS.validate_json(text)
        if not isinstance(job, ProposeJob):
            here = {"threads": self._threads} | ({"device": "cpu"} if self._on_cpu else {})
            job = job.model_copy(update={"site": job.site.model_copy(update=here)})
        try:
            async for event in self._worker.events(job):
                yield event.model_dump_json()
        except (WorkerDied, WorkerSilent) as error:
            gone, kind = not self._worker.usable, type(error).__name__
            yield Failed(error=kind, reason=str(error), place="", log="", ended=gone).model_dump_json()


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
            raise WorkerDied(f"worker on node {self.node} ended: {_reason(error)}") from None

    async def run(self, job: Job, on_event: Callable[[Event], None]) -> Done:
        """Run a job; see :class:`~bench.engine.pool.Worker`."""
        stream = self._actor.run.options(num_returns="streaming").remote(job.model_dump_json())
        while True:
            try:
                event = EVENTS.validate_json(await self._of_actor(await anext(stream)))
            except StopAsyncIteration:
                self.usable = False
                raise WorkerDied(f"worker on node {self.node} ended in the middle of the job") from None
            if isinstance(event, Done):
                return event
            if not isinstance(event, Failed):
                on_event(event)
                continue
            self.usable = not event.ended
            error = failure(event)
            if isinstance(error, SettingFailed) or isinstance(job, ReadyJob):
                raise error  # a trial's record is the same wherever it failed
            raise failure(event.model_copy(update={"reason": f"on node {self.node}: {event.reason}"}))

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
        _within(
            _PATIENCE,
            lambda: ray.init(address=address, namespace="bench", log_to_driver=False, logging_level=logging.CRITICAL),
        )
    except TimeoutError:
        raise UserError(f"--address {address}: the Ray cluster has not answered for {_PATIENCE:g} s") from None
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


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Result of some work in another thread, which is left behind if it takes too long."""
    results: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put(work())
        except Exception as error:
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        result = results.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(result, Exception):
        raise result
    return result


def watch_nodes(seen: Callable[[list[Node]], object], pause: float) -> Callable[[], None]:
    """Report, from another thread, the nodes that are alive, while the head answers; returns what ends it."""
    import ray

    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            rows = None
            with contextlib.suppress(Exception):  # the head is gone; silence says so
                rows = ray.nodes()
            if rows is not None:
                nodes = _living(rows)
                with contextlib.suppress(RuntimeError):  # whoever listens has just ended
                    seen(nodes)
            ended.wait(pause)

    threading.Thread(target=look, daemon=True).start()
    return ended.set


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
