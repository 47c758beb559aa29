"""A worker process of this machine, with one thread."""

from __future__ import annotations

import asyncio
import collections
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from .failures import WorkerDied, WorkerSilent, failure
from .jobs import EVENTS, Alive, Done, Event, Failed, Job

ONE_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
}
_LINE_LIMIT = 1 << 26
_LOOK = 10.0
"""Longest time between two looks at a silent worker, seconds. Silence is counted in looks and not by a clock, so that a
run that was stopped and goes on (Ctrl-Z, a laptop that slept) ends no worker."""


class LocalWorker:
    """A worker process of this machine, with one thread, which is started again if it has ended.

    It is ended if it has a job and makes no progress for ``silence`` seconds.
    """

    usable = True
    node = ""

    def __init__(self, silence: float | None = None, variables: Mapping[str, str] | None = None) -> None:
        self._silence = silence
        self._variables = dict(variables or {})
        self._step = ""
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: collections.deque[str] = collections.deque(maxlen=20)
        self._drain: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process; its imports go on while the caller does something else."""
        # -P keeps the current directory off sys.path: a folder named `datasets` there must not be imported.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "bench.engine.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **ONE_THREAD, **self._variables},
            limit=_LINE_LIMIT,
        )
        self._drain = asyncio.create_task(self._keep_stderr(self._process))

    async def _keep_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self._stderr.append(line.decode(errors="replace").rstrip())

    async def run(self, job: Job, on_event: Callable[[Event], None]) -> Done:
        """Run a job; its errors are those of :meth:`.Pool.run`."""
        async with aclosing(self.events(job)) as events:
            async for event in events:
                if isinstance(event, Failed):
                    raise failure(event)
                if isinstance(event, Done):
                    return event
                on_event(event)
        raise AssertionError("the last event is Done or Failed")

    async def events(self, job: Job) -> AsyncGenerator[Event, None]:
        """Events of a job that is run now; the last one is :class:`Done` or :class:`Failed`."""
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
                if isinstance(event, Alive):
                    self._step = event.step
                yield event
                if isinstance(event, Done | Failed):
                    return
        except (BrokenPipeError, ConnectionResetError):
            pass
        raise await self._death(process)

    async def _death(self, process: asyncio.subprocess.Process) -> WorkerDied:
        code = await process.wait()
        self._process = None
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        tail = f": {self._stderr[-1]}" if self._stderr else ""
        if code == -signal.SIGKILL:
            tail = "; most likely the system ran out of memory: try fewer --workers or smaller batches"
        return WorkerDied(f"worker process ended in the middle of the job ({how}){self._where}{tail}")

    @property
    def _where(self) -> str:
        return f" at about {self._step!r}" if self._step else ""

    async def _event(self, process: asyncio.subprocess.Process) -> Event | None:
        """The next event; None if the process has ended. A process that is silent for too long is ended."""
        assert process.stdout is not None
        if self._silence is None:
            line = await process.stdout.readline()
            return EVENTS.validate_json(line) if line else None
        look = min(_LOOK, self._silence)
        silent = 0.0
        reading = asyncio.ensure_future(process.stdout.readline())
        try:
            while not (await asyncio.wait({reading}, timeout=look))[0]:
                silent += look
                if silent >= self._silence:
                    await self.stop()
                    self._process = None
                    raise WorkerSilent(f"no progress for {self._silence / 60:g} min{self._where}; ended (--stall)")
        finally:
            reading.cancel()
        line = reading.result()
        return EVENTS.validate_json(line) if line else None

    async def stop(self) -> None:
        """End the process at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._drain is not None:
            self._drain.cancel()
