"""Workers: processes, here or on a cluster, and a pool in which jobs wait for a free one, again if a worker dies.

The pool is our own, since it does what executors do not: it kills running jobs at once, streams their progress, serves
by priority, and asks again whether a job is needed when a worker is free for it. On one machine it needs two thirds of
the processor time of Ray to start and end, and half of its memory (measured at commit 3fafa7f).
"""

from __future__ import annotations

import asyncio
import collections
import heapq
import math
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..errors import NoGpu, UserError
from ..planning.experiment import Run
from ..resources import CARD, SHARE, cores, gpu_names, worker_count
from ..site import Site
from . import jobs

if TYPE_CHECKING:
    from ..planning.plan import Plan
    from .ray_workers import RayWorker

TRIES = 3
"""Deaths of workers without a finished epoch in between after which a job is given up. One may be the out-of-memory
killer's work for another program; a fleet that is preempted now and then still gets on."""


ONE_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
}
UNLESS_SET = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Settings of CUDA that a user may have made already: without the first, matrix products are not repeatable; without
the second, memory that is free but in pieces is lost."""

_LINE_LIMIT = 1 << 26
_LOOK = 10.0
"""Longest time between two looks at a silent worker, seconds. Silence is counted in looks and not by a clock, so that a
run that was stopped and goes on (Ctrl-Z, a laptop that slept) ends no worker."""


class LocalWorker:
    """A worker process of this machine, with one thread, which is started again if it has ended.

    Like a :class:`.RayWorker` it runs one job at a time, and leaves its pool once it is not ``usable``; ``node`` is the
    name of another machine.

    It is ended if it has a job and makes no progress for ``silence`` seconds. It is not usable once :data:`TRIES`
    processes of it, one after the other, had no GPU.
    """

    node = ""
    module = "bench.engine.worker"
    """What the process runs."""

    def __init__(self, silence: float | None = None, variables: Mapping[str, str] | None = None) -> None:
        self._silence = silence
        self._variables = dict(variables or {})
        self._step = ""
        self._without_gpu = 0
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: collections.deque[str] = collections.deque(maxlen=20)
        self._drain: asyncio.Task[None] | None = None

    @property
    def usable(self) -> bool:
        """True unless its GPU is gone."""
        return self._without_gpu < TRIES

    async def start(self) -> None:
        """Start the process."""
        # -P keeps the current directory off sys.path: a folder named `datasets` there must not be imported.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            self.module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**UNLESS_SET, **os.environ, **ONE_THREAD, **self._variables},
            limit=_LINE_LIMIT,
        )
        self._drain = asyncio.create_task(self._keep_stderr(self._process))

    async def _keep_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self._stderr.append(line.decode(errors="replace").rstrip())

    async def run(self, job: jobs.Job, on_event: Callable[[jobs.Event], None]) -> jobs.Done:
        """Run a job; its errors are those of :meth:`.Pool.run`."""
        async with aclosing(self.events(job)) as events:
            async for event in events:
                if isinstance(event, jobs.Failed):
                    raise jobs.failure(event)
                if isinstance(event, jobs.Done):
                    return event
                on_event(event)
        raise AssertionError("the last event is Done or Failed")

    async def events(self, job: jobs.Job) -> AsyncGenerator[jobs.Event, None]:
        """Events of a job that is run now; the last is :class:`Done` or :class:`Failed`, also if the process ends."""
        self._step = ""
        if self._process is None or self._process.returncode is not None:
            await self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(job.model_dump_json().encode() + b"\n")
            await process.stdin.drain()
            while event := await self._event(process):
                if isinstance(event, jobs.Alive):
                    self._step = event.step
                if isinstance(event, jobs.Failed) and event.ended:
                    self._without_gpu += event.error == NoGpu.__name__
                    await self._end()
                    event = event.model_copy(update={"error": jobs.WorkerDied.__name__, "ended": not self.usable})
                if isinstance(event, jobs.Done):
                    self._without_gpu = 0
                yield event
                if isinstance(event, jobs.Done | jobs.Failed):
                    return
        except (BrokenPipeError, ConnectionResetError):
            pass
        yield await self._death(process)

    async def _death(self, process: asyncio.subprocess.Process) -> jobs.Failed:
        code = await process.wait()
        self._process = None
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        tail = f": {self._stderr[-1]}" if self._stderr else ""
        if code == -signal.SIGKILL:
            tail = "; most likely the system ran out of memory: try fewer --workers or smaller batches"
        reason = f"worker process ended in the middle of the job ({how}){self._where}{tail}"
        return jobs.Failed(error=jobs.WorkerDied.__name__, reason=reason)

    @property
    def _where(self) -> str:
        return f" at about {self._step!r}" if self._step else ""

    async def _event(self, process: asyncio.subprocess.Process) -> jobs.Event | None:
        """The next event; None if the process has ended. A process that is silent for too long is ended."""
        assert process.stdout is not None
        allowed = self._silence or math.inf
        look = min(_LOOK, allowed)
        silent = 0.0
        reading = asyncio.ensure_future(process.stdout.readline())
        try:
            while not (await asyncio.wait({reading}, timeout=look))[0]:
                silent += look
                if silent >= allowed:
                    await self._end()
                    reason = f"no progress for {allowed / 60:g} min{self._where}; ended (run.stall)"
                    return jobs.Failed(error=jobs.WorkerSilent.__name__, reason=reason)
        finally:
            reading.cancel()
        line = reading.result()
        return jobs.EVENTS.validate_json(line) if line else None

    async def _end(self) -> None:
        """End the process; the next job has another one."""
        await self.stop()
        self._process = None

    async def stop(self) -> None:
        """End the process at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._drain is not None:
            self._drain.cancel()


if TYPE_CHECKING:
    Worker: TypeAlias = "LocalWorker | RayWorker"


class Pool:
    """Pool of workers, which are reused from job to job; workers may join and leave at any time.

    Every worker that is there from the start does the ``first`` job before any other (:meth:`start`).
    Jobs that wait are served by priority, then in the order they came. ``heard`` is called with what a worker says that
    it is doing.
    """

    lost = ""
    heard: Callable[[str], None] = staticmethod(lambda step: None)

    def __init__(self, workers: Iterable[Worker] = (), first: jobs.ReadyJob | None = None) -> None:
        self._all: list[Worker] = list(workers)
        self._first_job = first
        self._idle = list(self._all)
        self._waiting: list[tuple[tuple[int, ...], int, asyncio.Future[Worker]]] = []
        self._count = 0
        self._stopping = False

    async def start(self) -> None:
        """Have every worker do the first job, if there is one; its process starts with the first that it is given.

        Raises:
            UserError: If the first job fails, as on a GPU that cannot be used.
        """
        if self._first_job is not None:
            try:
                await asyncio.gather(*(worker.run(self._first_job, lambda event: None) for worker in self._all))
            except jobs.JobFailed as error:
                raise UserError(str(error)) from None

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
        job: jobs.Job,
        on_epoch: Callable[[int], None] = lambda epoch: None,
        priority: tuple[int, ...] = (),
        begin: Callable[[], bool] = lambda: True,
    ) -> jobs.Done | None:
        """Run a job as soon as a worker is free; of the jobs that wait, the smallest priority is served first.

        ``begin`` is asked when a worker is free; if it returns False, the job is not run and the result is None. A job
        whose worker dies goes to the next free worker, and is given up after :data:`TRIES` deaths without a finished
        epoch.

        Raises:
            SettingFailed: If the job failed because of its hyper-parameters, with its reason.
            JobCrashed: If it failed for any other reason.
            WorkerDied: If its workers died too often.
            WorkerSilent: If its worker was ended because it made no progress.
        """
        deaths = 0

        def on_event(event: jobs.Event) -> None:
            nonlocal deaths
            if isinstance(event, jobs.EpochDone):
                deaths = 0
                on_epoch(event.epoch)
            elif isinstance(event, jobs.Alive):
                self.heard(event.step)

        self._count += 1
        place = (priority, self._count)
        while True:
            worker = await self._acquire(place)
            died = False
            try:
                if not begin():
                    return None
                return await worker.run(job, on_event)
            except jobs.WorkerDied:
                deaths += 1
                died = True
                if self._stopping or deaths == TRIES:
                    raise
            finally:
                self._release(worker, last=died)

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

    def _release(self, worker: Worker, last: bool = False) -> None:
        """Give a worker that has become free to the job that is next; the ``last`` choice is one that has just died."""
        if self._stopping or worker not in self._all:
            return
        # No other worker will join those of this machine, and without any the jobs would wait for ever.
        if not worker.usable and (worker.node or any(other.usable for other in self._all if other is not worker)):
            self._all.remove(worker)
            return
        while self._waiting:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():  # nobody waits for a cancelled one
                future.set_result(worker)
                return
        self._idle.insert(0 if last else len(self._idle), worker)

    async def stop(self) -> None:
        """End every worker at once; an interrupted training can resume from its last epoch."""
        self._stopping = True
        await asyncio.gather(*(worker.stop() for worker in self._all))


def workers_of(
    launch: Run, site: Site, plans: Iterable[Plan], driver: Path, say: Callable[[str], None]
) -> tuple[Pool, Site, str]:
    """Workers that are ready to be started, the site they work in, and their number and place for people.

    Those of this machine are refused if there is no room for them; on GPUs, each is pinned to one of them, on CPUs to
    none. Every node of a Ray cluster must have what the plans need, and see the claim of this ``driver`` on the
    results folder.
    """
    if launch.launcher == "ray":
        from .ray_workers import HIDDEN, RayWorkers

        there = site.model_copy(update={"device": launch.device, "hidden_for": HIDDEN})
        pool = RayWorkers(launch, jobs.needs_of(plans, site, driver), there, say)
        return pool, there, f"Ray cluster {launch.address or 'of this machine'}"
    count = worker_count(launch.workers, launch.device, launch.gpus_per_worker)
    cards = gpu_names() if launch.device == "cuda" else [""]
    on_each = -(-count // len(cards))
    share = launch.gpus_per_worker or 1 / on_each
    silence = launch.stall and 60 * launch.stall
    workers = [LocalWorker(silence, {CARD: cards[n % len(cards)], SHARE: str(share)}) for n in range(count)]
    place = f"{len(cards)} GPUs" if len(cards) > 1 else launch.device
    there = site.model_copy(update={"device": launch.device, "threads": max(1, cores() // count)})
    # GPUs are tried before any job.
    first = None if launch.device == "cpu" else jobs.ReadyJob(site=there, sharing=on_each if share < 1 else 0)
    return Pool(workers, first), there, f"{count} worker{'s' if count > 1 else ''} on {place}"
