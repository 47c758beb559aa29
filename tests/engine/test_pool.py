"""The pool: jobs of dead and of silent workers go on elsewhere, workers join and leave, jobs are served by priority."""

import asyncio

import pytest
from bench.engine import pool
from bench.engine.jobs import Alive, Done, EpochDone, ProposeJob, WorkerDied, WorkerSilent
from bench.engine.pool import LocalWorker, Pool


def job(number=0):
    return ProposeJob(axes=("x",), space={}, sampler="tpe", numbers=(number,), told=(), fixed={})


class Fake:
    """A worker whose jobs do what its script says, one step a job, and then all end well.

    A step is an error to raise, or a number of epochs to report, each after a sign of life, before dying.
    """

    def __init__(self, *script, node="", usable=True):
        self.script, self.node, self.usable = list(script), node, usable
        self.ran = []

    async def start(self): ...

    async def run(self, job, on_event):
        self.ran.append(job.numbers[0])
        await asyncio.sleep(0)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, int):
            for epoch in range(step):
                on_event(Alive(step=f"in epoch {epoch + 1}"))
                on_event(EpochDone(epoch=epoch + 1))
            raise WorkerDied("died")
        elif step is not None:
            raise step
        return Done()

    async def stop(self): ...


class Held(Fake):
    """A worker whose jobs each wait until they are let go."""

    def __init__(self):
        super().__init__()
        self.go, self.stopped = asyncio.Event(), False

    async def run(self, job, on_event):
        self.ran.append(job.numbers[0])
        await self.go.wait()
        self.go.clear()
        if self.stopped:
            raise WorkerDied("killed")
        return Done()

    async def stop(self):
        self.stopped = True
        self.go.set()


async def _turns(number=10):
    for _ in range(number):
        await asyncio.sleep(0)


async def _begun(pool, *numbers):
    """Tasks of jobs that have begun or wait for a worker."""
    tasks = [asyncio.create_task(pool.run(job(number))) for number in numbers]
    await _turns()
    return tasks


async def test_a_job_is_given_up_after_three_deaths_without_an_epoch():
    worker = Fake(0, 0, 0, 0)
    with pytest.raises(WorkerDied, match=r"^died$"):
        await Pool([worker]).run(job())
    assert len(worker.ran) == 3
    assert await Pool([worker]).run(job()) == Done()


async def test_an_epoch_in_between_resets_the_count_of_deaths():
    worker, epochs, heard = Fake(0, 0, 1, 0, 2, 0), [], []
    pool = Pool([worker])
    pool.heard = heard.append
    assert await pool.run(job(), epochs.append) == Done()
    assert len(worker.ran) == 7
    assert epochs == [1, 1, 2]
    assert heard == [f"in epoch {epoch}" for epoch in epochs]
    with pytest.raises(WorkerDied):
        await Pool([Fake(0, 1, 0, 0)]).run(job())


async def test_before_each_try_it_is_asked_whether_the_job_is_needed():
    worker, answers = Fake(0, 0), iter([True, False])
    pool = Pool([worker])
    assert await pool.run(job(1), begin=lambda: next(answers)) is None
    assert worker.ran == [1]
    worker.script.clear()
    assert await pool.run(job(2)) == Done()  # the worker is free again


async def test_a_worker_that_cannot_be_used_any_more_leaves():
    worker = Fake(0, node="far", usable=False)
    pool = Pool([worker])
    [waiting] = await _begun(pool, 0)
    assert not waiting.done()
    other = Fake()
    pool.add(other)
    assert await waiting == Done()
    assert (worker.ran, other.ran) == ([0], [0])


async def test_a_removed_worker_ends_its_job_and_gets_no_further_one():
    busy, idle = Held(), Fake()
    pool = Pool([idle, busy])
    [running] = await _begun(pool, 0)
    pool.remove(busy)
    pool.remove(idle)
    pool.remove(idle)  # it has left already
    waiting = asyncio.create_task(pool.run(job(1)))
    busy.go.set()
    assert await running == Done()
    await _turns()
    assert not waiting.done()
    assert idle.ran == []
    pool.add(idle)
    assert await waiting == Done()


async def test_jobs_are_served_by_priority_then_in_the_order_they_came():
    worker = Fake()
    pool = Pool()
    order = [(2,), (1, 5), (1, 0), (2,), (0, 9)]
    jobs = [asyncio.create_task(pool.run(job(n), priority=priority)) for n, priority in enumerate(order)]
    await _turns()
    pool.add(worker)
    await asyncio.gather(*jobs)
    assert worker.ran == [4, 2, 1, 0, 3]


async def test_a_waiting_job_that_is_cancelled_gets_no_worker():
    worker = Held()
    pool = Pool([worker])
    running, cancelled, last = await _begun(pool, 0, 1, 2)
    cancelled.cancel()
    worker.go.set()
    await running
    await _turns()
    worker.go.set()
    assert await last == Done()
    assert worker.ran == [0, 2]


async def test_a_job_that_is_cancelled_when_it_has_just_got_a_worker_gives_it_back():
    """The worker was lost to the pool."""

    worker, pool = Fake(), Pool()
    [waiting] = await _begun(pool, 0)
    pool.add(worker)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert await asyncio.wait_for(pool.run(job(1)), 5) == Done()
    assert worker.ran == [1]


async def test_a_cancelled_job_gives_its_worker_back():
    worker = Held()
    pool = Pool([worker])
    [running] = await _begun(pool, 0)
    running.cancel()
    [waiting] = await _begun(pool, 1)
    worker.go.set()
    assert await waiting == Done()


async def test_stopping_ends_what_runs_and_starts_nothing_else():
    """A job that waited got the worker of the one that was ended, and started it again."""

    worker = Held()
    pool = Pool([worker])
    running, waiting = await _begun(pool, 0, 1)
    await pool.stop()
    with pytest.raises(WorkerDied):
        await running
    await _turns()
    assert worker.stopped
    assert worker.ran == [0]
    waiting.cancel()


STEP, DONE = Alive(step="epoch 1, batch 7").model_dump_json(), Done().model_dump_json()


async def _run(silence):
    there = Pool([LocalWorker(silence)])
    try:
        return await there.run(job())
    finally:
        await there.stop()


@pytest.mark.slow
async def test_a_worker_that_makes_no_progress_is_ended_and_named(scripted):
    scripted([(0, STEP), (1000, DONE)])
    with pytest.raises(
        WorkerSilent, match=r"^no progress for 0\.1 min at about 'epoch 1, batch 7'; ended \(run.stall\)$"
    ):
        await _run(6.0)


@pytest.mark.slow
async def test_progress_counts_and_not_the_length_of_a_job(scripted):
    scripted([*[(0.5, STEP)] * 14, (0, DONE)])
    assert await _run(6.0) == Done()


@pytest.mark.slow
async def test_a_driver_that_was_stopped_itself_ends_no_worker(scripted, monkeypatch):
    """Ctrl-Z stops driver and workers alike; when they go on, much time has passed by the clock."""
    monkeypatch.setattr(pool, "_LOOK", 0.5)
    scripted([(0, STEP), (3, DONE)])
    loop, asleep = asyncio.get_running_loop(), [0.0]
    time = loop.time
    loop.time = lambda: time() + asleep[-1]
    loop.call_later(1, asleep.append, 1000.0)
    assert await _run(4.0) == Done()
