"""Worker processes, one thread each, as an asyncio resource."""

from __future__ import annotations

import asyncio
import collections
import os
import signal
import sys
from collections.abc import Callable

from ..errors import UnitFailed
from .jobs import EVENTS, Alive, Done, EpochDone, Event, Failed, Job

ONE_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
}
_LINE_LIMIT = 1 << 26
_LOOK = 10.0
"""Longest time between two looks at a silent worker, seconds. Silence is counted in looks and not by a clock, so that a
run that was stopped and goes on (Ctrl-Z, a laptop that slept) ends no worker."""


class JobFailed(UnitFailed):
    """A job (training, test or proposal of trials) of a worker process ended with an error.

    Args:
        reason: Why, on one line.
        place: File and line where the error arose; empty if the reason says it all.
        log: File with the traceback; empty if there is none.
    """

    def __init__(self, reason: str, place: str = "", log: str = "") -> None:
        super().__init__(reason)
        self.place, self.log, self.unit = place, log, ""


class SettingFailed(JobFailed):
    """A job failed because of its setting (hyper-parameters), for example because its loss is not finite."""


class WorkerDied(JobFailed):
    """A worker process ended in the middle of a job: killed, out of memory, or crashed in native code."""


class WorkerSilent(JobFailed):
    """A worker process was ended because it had made no progress for too long."""


class JobCrashed(JobFailed):
    """A job ended with an error that its setting (hyper-parameters) is not to blame for: a bug, a missing file."""


SETTING_ERRORS = {
    "UnitFailed",
    "NonFiniteEmbeddings",
    "FloatingPointError",
    "OverflowError",
    "ZeroDivisionError",
    "LinAlgError",
}
"""What a bad hyper-parameter can cause. Only these make a trial count as failed; anything else stops its study
unrecorded, so that a fixed bug or a freed disk is not remembered as a bad setting."""


class _Worker:
    def __init__(self, silence: float | None) -> None:
        self.silence = silence
        self.step = ""
        self.process: asyncio.subprocess.Process | None = None
        self.stderr: collections.deque[str] = collections.deque(maxlen=20)
        self._drain: asyncio.Task[None] | None = None

    async def start(self) -> None:
        # -P keeps the current directory off sys.path: a folder named `datasets` there must not be imported.
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "bench.engine.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
            limit=_LINE_LIMIT,
        )
        self._drain = asyncio.create_task(self._keep_stderr())

    async def _keep_stderr(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.stderr.append(line.decode(errors="replace").rstrip())

    async def run(self, job: Job, on_epoch: Callable[[int], None]) -> Done:
        self.step = ""
        if self.process is None or self.process.returncode is not None:
            await self.start()
        process = self.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(job.model_dump_json().encode() + b"\n")
            await process.stdin.drain()
            while event := await self._event(process):
                if isinstance(event, EpochDone):
                    on_epoch(event.epoch)
                elif isinstance(event, Alive):
                    self.step = event.step
                elif isinstance(event, Failed):
                    failure = SettingFailed if event.error in SETTING_ERRORS else JobCrashed
                    raise failure(event.reason, event.place, event.log)
                else:
                    return event
        except (BrokenPipeError, ConnectionResetError):
            pass
        code = await process.wait()
        self.process = None
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        tail = f": {self.stderr[-1]}" if self.stderr else ""
        if code == -signal.SIGKILL:
            tail = "; most likely the system ran out of memory: try fewer --workers or smaller batches"
        raise WorkerDied(f"worker process ended in the middle of the job ({how}){self._where}{tail}")

    @property
    def _where(self) -> str:
        return f" at about {self.step!r}" if self.step else ""

    async def _event(self, process: asyncio.subprocess.Process) -> Event | None:
        """The next event; None if the process has ended.

        Raises:
            WorkerSilent: If none came for so long that the process was ended.
        """
        assert process.stdout is not None
        if self.silence is None:
            line = await process.stdout.readline()
            return EVENTS.validate_json(line) if line else None
        look = min(_LOOK, self.silence)
        silent = 0.0
        reading = asyncio.ensure_future(process.stdout.readline())
        try:
            while not (await asyncio.wait({reading}, timeout=look))[0]:
                silent += look
                if silent >= self.silence:
                    await self.stop()
                    self.process = None
                    raise WorkerSilent(f"no progress for {self.silence / 60:g} min{self._where}; ended (--stall)")
        finally:
            reading.cancel()
        line = reading.result()
        return EVENTS.validate_json(line) if line else None

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        if self._drain is not None:
            self._drain.cancel()


class Pool:
    """Pool of worker processes, which are reused from job to job.

    Jobs that wait are served by priority, then in the order they came.

    Args:
        size: Number of workers, each with one job at a time.
        silence: Seconds without progress after which a worker that has a job is ended; None for no limit.
    """

    def __init__(self, size: int, silence: float | None = None) -> None:
        self._idle: list[_Worker] = [_Worker(silence) for _ in range(size)]
        self._all = list(self._idle)
        self._waiting: list[tuple[tuple[int, ...], int, asyncio.Future[_Worker]]] = []
        self._count = 0
        self._stopping = False

    async def start(self) -> None:
        """Start every worker, so that their imports go on while the caller plans the work."""
        await asyncio.gather(*(worker.start() for worker in self._all))

    async def run(
        self,
        job: Job,
        on_epoch: Callable[[int], None] = lambda epoch: None,
        priority: tuple[int, ...] = (),
        begin: Callable[[], bool] = lambda: True,
    ) -> Done | None:
        """Run a job in a worker as soon as one is free.

        A job whose worker dies is tried once more.

        Args:
            job: The job.
            on_epoch: Called with the number of finished epochs after each.
            priority: Of the jobs that wait, the smallest is served first.
            begin: Called when a worker is free; if it returns False, the job is not run.

        Returns:
            The result of the job; None if it was not run.

        Raises:
            SettingFailed: If the job failed because of its hyper-parameters, with its reason.
            JobCrashed: If it failed for any other reason.
            WorkerDied: If its worker died twice.
            WorkerSilent: If its worker was ended because it made no progress.
        """
        worker = await self._acquire(priority)
        try:
            if not begin():
                return None
            try:
                return await worker.run(job, on_epoch)
            except WorkerDied:
                if self._stopping:
                    raise
                # Once may be another program's out-of-memory killer; the job goes on from its checkpoint.
                return await worker.run(job, on_epoch)
        finally:
            self._release(worker)

    async def _acquire(self, priority: tuple[int, ...]) -> _Worker:
        if self._idle:
            return self._idle.pop()
        self._count += 1
        future: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        self._waiting.append((priority, self._count, future))
        return await future

    def _release(self, worker: _Worker) -> None:
        self._waiting = [entry for entry in self._waiting if not entry[2].done()]
        if self._waiting:
            entry = min(self._waiting, key=lambda e: e[:2])
            self._waiting.remove(entry)
            entry[2].set_result(worker)
        else:
            self._idle.append(worker)

    async def stop(self) -> None:
        """Kill every worker at once; an interrupted training can resume from its last epoch."""
        self._stopping = True
        await asyncio.gather(*(worker.stop() for worker in self._all))
