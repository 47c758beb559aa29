"""A pool of workers: jobs wait for a free worker, and are tried again if their worker dies.

The pool is our own, since it does what executors do not: it kills running jobs at once, streams their progress, serves
by priority, and asks again whether a job is needed when a worker is free for it. On one machine it needs two thirds of
the processor time of Ray to start and end, and half of its memory (measured at commit 3fafa7f).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import Protocol

from .failures import WorkerDied
from .jobs import Done, EpochDone, Event, Job

TRIES = 3
"""Deaths of workers without a finished epoch in between after which a job is given up. One may be the out-of-memory
killer's work for another program; a fleet that is preempted now and then still gets on."""


class Worker(Protocol):
    """The interface of a worker, which runs one job at a time."""

    @property
    def usable(self) -> bool:
        """True if it can take a job; a worker that cannot any more leaves its pool."""

    @property
    def node(self) -> str:
        """Name of its machine; empty if it is this one."""

    async def start(self) -> None:
        """Start it; it returns once the worker can take a job."""

    async def run(self, job: Job, on_event: Callable[[Event], None]) -> Done:
        """Run a job, and call a function with each event before the last."""

    async def stop(self) -> None:
        """End it at once; an interrupted training can resume from its last epoch."""


def _nowhere(job: Job, node: str | None) -> None:
    pass


class Pool:
    """Pool of workers, which are reused from job to job; workers may join and leave at any time.

    Jobs that wait are served by priority, then in the order they came. ``placed`` is called with a job and the node of
    its worker when the job begins, and with None when it has ended.
    """

    lost = ""

    def __init__(self, workers: Iterable[Worker] = (), placed: Callable[[Job, str | None], None] = _nowhere) -> None:
        self._all: list[Worker] = list(workers)
        self._idle = list(self._all)
        self._placed = placed
        self._waiting: list[tuple[tuple[int, ...], int, asyncio.Future[Worker]]] = []
        self._count = 0
        self._stopping = False

    async def start(self) -> None:
        """Start every worker, so that their imports go on while the caller plans the work."""
        await asyncio.gather(*(worker.start() for worker in self._all))

    def add(self, worker: Worker) -> None:
        """Add a worker that was started."""
        self._all.append(worker)
        self._release(worker)

    def remove(self, worker: Worker) -> None:
        """Give no further job to a worker; one that it has goes on."""
        for workers in (self._all, self._idle):
            if worker in workers:
                workers.remove(worker)

    async def run(
        self,
        job: Job,
        on_epoch: Callable[[int], None] = lambda epoch: None,
        priority: tuple[int, ...] = (),
        begin: Callable[[], bool] = lambda: True,
    ) -> Done | None:
        """Run a job in a worker as soon as one is free; see :meth:`.Workers.run`.

        A job whose worker dies goes to the next free worker, and is given up after :data:`TRIES` deaths without a
        finished epoch.

        Raises:
            SettingFailed: If the job failed because of its hyper-parameters, with its reason.
            JobCrashed: If it failed for any other reason.
            WorkerDied: If its workers died too often.
            WorkerSilent: If its worker was ended because it made no progress.
        """
        deaths = 0

        def on_event(event: Event) -> None:
            nonlocal deaths
            if isinstance(event, EpochDone):
                deaths = 0
                on_epoch(event.epoch)

        self._count += 1
        place = (priority, self._count)
        while True:
            worker = await self._acquire(place)
            try:
                if not begin():
                    return None
                self._placed(job, worker.node)
                return await worker.run(job, on_event)
            except WorkerDied:
                deaths += 1
                if self._stopping or deaths == TRIES:
                    raise
            finally:
                self._placed(job, None)
                self._release(worker)

    async def _acquire(self, place: tuple[tuple[int, ...], int]) -> Worker:
        if self._idle:
            return self._idle.pop()
        future: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (*place, future))
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it was given a worker at the same moment
                self._release(future.result())
            raise

    def _release(self, worker: Worker) -> None:
        """Give a worker that has become free to the job that is next."""
        if self._stopping or worker not in self._all:
            return
        if not worker.usable:
            self._all.remove(worker)
            return
        while self._waiting:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():  # nobody waits for a cancelled one
                future.set_result(worker)
                return
        self._idle.append(worker)

    async def stop(self) -> None:
        """End every worker at once; an interrupted training can resume from its last epoch."""
        self._stopping = True
        await asyncio.gather(*(worker.stop() for worker in self._all))
