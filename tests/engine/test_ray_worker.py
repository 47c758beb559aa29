"""A worker on a node of a cluster: what its actor sends, and what becomes of it here.

Ray is not needed: it is made up, and so is the worker process.
"""

import asyncio
import json
import os
import sys
from types import SimpleNamespace

import pytest
from bench.engine import jobs, pool, ray_workers
from bench.engine.ray_workers import Host, Node, RayWorker
from bench.site import Site

from tests.plans import planned

JSON = jobs.EVENTS
EVENTS = (jobs.Alive(step="epoch 1"), jobs.EpochDone(epoch=1))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    [plan], site = planned(Site(results=str(tmp_path_factory.mktemp("runs")), threads=7), "cosface", seeds=1)
    return jobs.TrainJob(spec=plan.template, site=site)


# The actor


@pytest.fixture
def process(monkeypatch):
    """Let the actor run a script that keeps the jobs it gets and says lines, instead of our program."""
    start = asyncio.create_subprocess_exec

    def of(lines, end=""):
        text = (
            "import json, sys, time\n"
            "for job in sys.stdin:\n"
            "    with open(sys.argv[2], 'w') as file: file.write(job)\n"
            "    print(*json.loads(sys.argv[1]), sep='\\n', flush=True)\n"
            f"    {end or 'pass'}\n"
        )

        async def scripted(*arguments, **options):
            lines_given = json.dumps([line.model_dump_json() for line in lines])
            return await start(sys.executable, "-S", "-c", text, lines_given, os.environ["JOBS"], **options)

        monkeypatch.setattr(pool.asyncio, "create_subprocess_exec", scripted)

    return of


def _said(job, silence=None, declared=64, sharing=1, on_cpu=True):
    async def run():
        host = Host(silence, {}, declared, sharing, on_cpu)
        assert await host.start() == os.getpid()
        try:
            return [JSON.validate_json(said) async for said in host.run(job.model_dump_json())]
        finally:
            await host._worker.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("last", [jobs.Done(), jobs.Failed(error="ValueError", reason="bad", place="", log="")])
def test_the_actor_passes_on_what_its_process_says(job, process, last, tmp_path, monkeypatch):
    monkeypatch.setenv("JOBS", str(tmp_path / "job"))
    monkeypatch.setattr(ray_workers, "cores", lambda: 8)
    process([*EVENTS, last])
    assert _said(job, sharing=3) == [*EVENTS, last]
    got = jobs.TrainJob.model_validate_json((tmp_path / "job").read_text())
    assert got.spec == job.spec
    assert got.site.threads == 2  # of the cores of its node, and not of ours
    assert _said(job, declared=4, sharing=3)
    assert jobs.TrainJob.model_validate_json((tmp_path / "job").read_text()).site.threads == 1


def test_the_actor_says_that_its_process_has_died_or_was_silent(job, process, tmp_path, monkeypatch):
    monkeypatch.setenv("JOBS", str(tmp_path / "job"))
    process(EVENTS, "sys.exit(3)")
    *said, last = _said(job)
    assert said == [*EVENTS]
    assert (last.error, last.ended) == ("WorkerDied", False)
    assert "exit code 3" in last.reason
    assert "at about 'epoch 1'" in last.reason
    process(EVENTS, "time.sleep(1000)")
    last = _said(job, silence=0.5)[-1]
    assert last.error == "WorkerSilent"
    assert "run.stall" in last.reason


# Its counterpart here


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class Stream:
    """What an actor's task yields: references that give what was said, or raise."""

    def __init__(self, *said):
        self.said = list(said)

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.said:
            raise StopAsyncIteration
        return _reference(self.said.pop(0))


async def _reference(value):
    if isinstance(value, Exception):
        raise value
    return value


@pytest.fixture
def on_node(monkeypatch):
    """A worker on node `far`, whose actor starts with one outcome and says what is given; the options of the actor."""
    options, killed = {}, []

    def remote(cls):
        assert cls is Host

        def with_options(**given):
            options.update(given)
            return SimpleNamespace(remote=lambda *arguments: options.update(arguments=arguments) or actor)

        return SimpleNamespace(options=with_options)

    actor = SimpleNamespace()
    ray = SimpleNamespace(remote=remote, kill=killed.append, exceptions=SimpleNamespace(RayError=RayError))
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)

    def of(*said, start=1):
        actor.start = SimpleNamespace(remote=lambda: _reference(start))
        streams = SimpleNamespace(remote=lambda text: Stream(*said))
        actor.run = SimpleNamespace(options=lambda num_returns: streams)
        there = RayWorker(Node("id", "far", 4.0, 1.0), 0.5, None, 2)
        there.options, there.killed = options, killed
        return there

    return of


def _event(event):
    return event.model_dump_json()


def _raised(there, job):
    async def run():
        with pytest.raises(Exception) as caught:  # noqa: PT011 (the class is compared)
            await there.run(job, lambda event: None)
        return type(caught.value), str(caught.value)

    return asyncio.run(run())


def _failed(error, reason="bad", ended=False):
    return _event(jobs.Failed(error=error, reason=reason, place="", log="", ended=ended))


@pytest.mark.parametrize(
    ("said", "expected", "usable"),
    [
        (_failed("WorkerDied", "exit code 3"), (jobs.WorkerDied, "on node far: exit code 3"), True),
        (_failed("WorkerSilent", "no progress"), (jobs.WorkerSilent, "on node far: no progress"), True),
        (_failed("WorkerDied", "GPU 0 is gone", ended=True), (jobs.WorkerDied, "on node far: GPU 0 is gone"), False),
        (_failed("ValueError"), (jobs.JobCrashed, "on node far: bad"), True),
        (_failed("FloatingPointError"), (jobs.SettingFailed, "bad"), True),
        (RayError("The actor died\nlong story"), (jobs.WorkerDied, "worker on node far ended: The actor died"), False),
        (None, (jobs.WorkerDied, "worker on node far ended in the middle of the job"), False),
    ],
)
def test_failures_name_the_node_except_those_of_a_setting(on_node, job, said, expected, usable):
    """The record of a trial must be the same wherever it failed."""
    there = on_node(_event(EVENTS[0]), *(() if said is None else (said,)))
    assert _raised(there, job) == expected
    assert there.usable is usable


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RayError("The node has left\nand more"), "The node has left"),
        (RayTaskError("Traceback:\n  File x\nValueError: bad\n"), "ValueError: bad"),
        (RayError("Failed:\nModuleNotFoundError: No module named 'bench'\nmore"),
         "ModuleNotFoundError: No module named 'bench'"),
    ],
)  # fmt: skip
def test_a_start_that_fails_says_why_in_one_line(on_node, error, reason):
    there = on_node(start=error)

    async def run():
        with pytest.raises(jobs.WorkerDied) as caught:
            await there.start()
        assert str(caught.value) == f"worker on node far ended: {reason}"
        assert not there.usable
        await there.stop()
        assert len(there.killed) == 1

    asyncio.run(run())
