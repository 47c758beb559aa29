"""Faults of a GPU: an error that breaks it for its process, memory that runs out, and a GPU that cannot be used."""

import asyncio
import sys

import pytest
import torch
from bench.engine import pool
from bench.engine.jobs import Done, Failed, ProposeJob, WorkerDied
from bench.engine.pool import LocalWorker, Pool
from bench.engine.worker import failed
from bench.errors import NoGpu, OutOfMemory, UnitFailed, UserError, breaks_gpu

from .test_failures import RUN, _plugin

JOB = ProposeJob(axes=("x",), space={}, sampler="tpe", numbers=(), told=(), fixed={})
ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"
AcceleratorError = getattr(torch, "AcceleratorError", RuntimeError)


def _caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AcceleratorError(ASSERT), True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True),
        (_caused(ValueError("a plug-in's own words"), RuntimeError(ASSERT)), True),
        (_caused(OutOfMemory("one image at a time", ""), RuntimeError("CUDNN_STATUS_INTERNAL_ERROR")), True),
        (NoGpu("GPU 0 is gone"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), False),
        (RuntimeError("CUDA error: out of memory"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), False),
        (_caused(OutOfMemory("one image at a time", ""), torch.OutOfMemoryError("CUDA out of memory.")), False),
        (RuntimeError("shapes do not match"), False),
        (UnitFailed("loss became nan"), False),
        (UserError("CUDA error"), False),
    ],
)
def test_what_breaks_a_gpu(error, said):
    assert breaks_gpu(error) is said
    assert failed(JOB, error).ended is said


@pytest.fixture
def processes(monkeypatch):
    """Let the processes of workers each answer a job by one of the given events; gives the numbers of those started."""
    started = []

    def of(*said):
        start = asyncio.create_subprocess_exec
        text = "import sys\nfor line in sys.stdin:\n    print(sys.argv[1], flush=True)"
        waiting = [line.model_dump_json() for line in said]

        async def scripted(*arguments, **options):
            process = await start(sys.executable, "-c", text, waiting.pop(0), **options)
            started.append(process.pid)
            return process

        monkeypatch.setattr(pool.asyncio, "create_subprocess_exec", scripted)
        return started

    return of


def _ended(reason, error="RuntimeError"):
    return Failed(error=error, reason=reason, place="", log="", ended=True)


async def test_a_job_whose_worker_has_broken_its_gpu_goes_to_another_one(processes):
    started = processes(_ended("CUDA error"), Done(), Done())
    first, second = LocalWorker(), LocalWorker()
    there = Pool([first, second])
    try:
        assert await there.run(JOB) == Done()
        assert len(started) == 2
        assert second._process is None  # its process was ended
        assert await there.run(JOB) == Done()
        assert len(started) == 2
    finally:
        await there.stop()


async def test_a_job_that_breaks_every_gpu_is_given_up_with_its_reason(processes):
    started = processes(*[_ended("CUDA error: device-side assert triggered")] * 3)
    there = Pool([LocalWorker()])
    with pytest.raises(WorkerDied, match=r"^CUDA error: device-side assert triggered$"):
        await there.run(JOB)
    assert len(started) == 3


async def test_a_worker_whose_gpu_is_gone_gets_no_more_jobs(processes):
    gone = _ended("GPU 1 is gone", error="NoGpu")
    started = processes(gone, Done(), gone, gone)
    lives, dies = LocalWorker(), LocalWorker()
    there = Pool([lives, dies])
    try:
        for _ in range(3):
            assert await there.run(JOB) == Done()
            there._idle.reverse()  # the one without a GPU is taken first
        assert len(started) == 4
        assert there._all == there._idle == [lives]
    finally:
        await there.stop()


async def test_the_last_worker_of_a_machine_stays_so_that_nothing_waits_for_ever(processes):
    processes(*[_ended("GPU 0 is gone", error="NoGpu")] * 6)
    there = Pool([LocalWorker()])
    for _ in range(2):
        with pytest.raises(WorkerDied, match="GPU 0 is gone"):
            await asyncio.wait_for(there.run(JOB), 60)


BREAKS_ONCE = """import os, pathlib
        pids = pathlib.Path(__file__).with_name("pids")
        first = not pids.exists()
        with pids.open("a") as file:
            print(os.getpid(), file=file)
        if first:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return super().forward(distribution, labels)"""


@pytest.mark.slow
def test_a_run_goes_on_after_an_error_of_cuda(cli, tmp_path):
    plugin = _plugin(tmp_path, BREAKS_ONCE)
    done = cli("run", "--method", "mine", *RUN, "--hparams", "default", "--plugin", plugin)
    assert "1 trainings done" in " ".join(done.stderr.split())
    first, *others = (tmp_path / "pids").read_text().split()
    assert len(set(others)) == 1
    assert first not in others
