"""A worker process on a node of a Ray cluster.

A Ray actor on the node starts the same worker process as a run on one machine, and passes its events on. The process
ends when its actor does, however that happens. Ray retries nothing; the pool does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

from ..errors import first_line, shortened
from ..resources import cores
from .failures import SettingFailed, WorkerDied, WorkerSilent, failure
from .jobs import EVENTS, JOBS, CheckJob, Done, Event, Failed, Job, ProposeJob
from .local_worker import LocalWorker

Said = tuple[str, str]
"""Message of an actor: ``event`` and an event as JSON, or ``died`` or ``silent`` and the reason."""


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

    async def run(self, text: str) -> AsyncIterator[Said]:
        """Run a job, given as JSON; what is said last is that it is done, has failed or that the process ended."""
        job = JOBS.validate_json(text)
        if not isinstance(job, ProposeJob):
            here = {"threads": self._threads} | ({"device": "cpu"} if self._on_cpu else {})
            job = job.model_copy(update={"site": job.site.model_copy(update=here)})
        try:
            async for event in self._worker.events(job):
                yield "event", event.model_dump_json()
        except WorkerDied as error:
            yield "died", str(error)
        except WorkerSilent as error:
            yield "silent", str(error)


class RayWorker:
    """A worker process on a node of a Ray cluster; it cannot be used again after its actor has died."""

    def __init__(self, on: Node, gpus: float, silence: float | None, sharing: int) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.usable = True
        self.node = on.name
        limits = {name: value for name, value in os.environ.items() if name.startswith("BENCH_MAX_")}
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
                kind, text = await self._of_actor(await anext(stream))
            except StopAsyncIteration:
                self.usable = False
                raise WorkerDied(f"worker on node {self.node} ended in the middle of the job") from None
            if kind != "event":
                died = WorkerDied if kind == "died" else WorkerSilent
                raise died(f"on node {self.node}: {text}")
            event = EVENTS.validate_json(text)
            if isinstance(event, Done):
                return event
            if isinstance(event, Failed):
                error = failure(event)
                if isinstance(error, SettingFailed) or isinstance(job, CheckJob):
                    raise error  # a trial's record is the same wherever it failed
                raise failure(event.model_copy(update={"reason": f"on node {self.node}: {event.reason}"}))
            on_event(event)

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
