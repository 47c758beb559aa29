"""Workers that make no progress: they are ended if a limit is given, and only then."""

import asyncio
import json
import sys

import pytest
from bench.engine import pool
from bench.engine.jobs import Alive, Done, ProposeJob, WorkerSilent
from bench.engine.pool import LocalWorker, Pool

JOB = ProposeJob(axes=("x",), space={}, sampler="tpe", numbers=(), told=(), fixed={})
STEP, DONE = Alive(step="epoch 1, batch 7").model_dump_json(), Done().model_dump_json()


@pytest.fixture
def workers(monkeypatch):
    """Let workers run a script that says lines after pauses, instead of our program."""

    def of(*script):
        text = (
            "import json, sys, time\n"
            "for line in sys.stdin:\n"
            "    for pause, said in json.loads(sys.argv[1]):\n"
            "        time.sleep(pause)\n"
            "        print(said, flush=True)\n"
        )
        start = asyncio.create_subprocess_exec

        async def scripted(*arguments, **options):
            return await start(sys.executable, "-c", text, json.dumps(script), **options)

        monkeypatch.setattr(pool.asyncio, "create_subprocess_exec", scripted)

    return of


def _run(silence):
    async def run():
        there = Pool([LocalWorker(silence)])
        try:
            return [await there.run(JOB)]
        finally:
            await there.stop()

    return asyncio.run(run())


@pytest.mark.slow
def test_a_worker_that_makes_no_progress_is_ended_and_named(workers):
    workers((0, STEP), (1000, DONE))
    with pytest.raises(
        WorkerSilent, match=r"^no progress for 0\.1 min at about 'epoch 1, batch 7'; ended \(run.stall\)$"
    ):
        _run(6.0)


@pytest.mark.slow
def test_progress_counts_and_not_the_length_of_a_job(workers):
    workers(*[(0.5, STEP)] * 14, (0, DONE))
    assert _run(6.0) == [Done()]


@pytest.mark.slow
def test_a_driver_that_was_stopped_itself_ends_no_worker(workers, monkeypatch):
    """Ctrl-Z stops driver and workers alike; when they go on, much time has passed by the clock."""
    monkeypatch.setattr(pool, "_LOOK", 0.5)
    workers((0, STEP), (3, DONE))

    async def run():
        there = Pool([LocalWorker(4.0)])
        loop = asyncio.get_running_loop()
        time, asleep = loop.time, 0.0

        def jump():
            nonlocal asleep
            asleep = 1000.0

        loop.time = lambda: time() + asleep
        loop.call_later(1, jump)
        try:
            return await there.run(JOB)
        finally:
            await there.stop()

    assert asyncio.run(run()) == Done()
