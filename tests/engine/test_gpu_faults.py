"""Faults of a GPU: an error that breaks it for its process, memory that runs out, and a GPU that cannot be used."""

import asyncio
import warnings
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from bench.engine.jobs import Done, Failed, ProposeJob, ReadyJob, WorkerDied
from bench.engine.pool import LocalWorker, Pool
from bench.engine.worker import failed, run_job
from bench.errors import NoGpu, OutOfMemory, UnitFailed, UserError, breaks_process, is_out_of_memory
from bench.resources import pick_device
from bench.site import Site

from tests.gpu.simulated_gpu import Gpu

from .test_failures import RUN

JOB = ProposeJob(axes=("x",), space={}, sampler="tpe", numbers=(), told=(), fixed={})
ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"
AcceleratorError = getattr(torch, "AcceleratorError", RuntimeError)


def _caused(error, cause):
    error.__cause__ = cause
    return error


CPU = "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
SHORT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("error", "memory", "broken"),
    [
        (MemoryError(), True, False),
        (SHORT, True, False),
        (RuntimeError("CUDA error: out of memory"), True, False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True, False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True, False),
        (RuntimeError("GET was unable to find an engine to execute this computation"), True, False),
        (RuntimeError(f"{CPU} 8 bytes"), True, False),
        (RuntimeError("posix_memalign failed:Cannot allocate memory (12)"), True, False),
        (RuntimeError("could not create a primitive"), True, True),
        (_caused(OutOfMemory("one image at a time", ""), SHORT), False, False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), True, True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), True, True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True, True),
        (_caused(OutOfMemory("one image at a time", ""), RuntimeError("CUDNN_STATUS_INTERNAL_ERROR")), False, True),
        (AcceleratorError(ASSERT), False, True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), False, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"), False, True),
        (_caused(ValueError("a plug-in's own words"), RuntimeError(ASSERT)), False, True),
        (NoGpu("GPU 0 is gone"), False, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm`"), False, True),
        (RuntimeError("could not create a primitive descriptor for a matmul primitive"), False, False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False, False),
        (np.exceptions.AxisError("x"), False, False),
        (ValueError("out of memory"), False, False),
        (UnitFailed("loss became nan"), False, False),
        (UserError("CUDA error"), False, False),
    ],
)
def test_what_is_for_lack_of_memory_and_what_breaks_a_process(error, memory, broken):
    assert (is_out_of_memory(error), breaks_process(error), failed(JOB, error).ended) == (memory, broken, broken)


def _ended(reason, error="RuntimeError"):
    return [(0, Failed(error=error, reason=reason, place="", log="", ended=True).model_dump_json())]


DONE = [(0, Done().model_dump_json())]


async def test_a_job_whose_worker_has_broken_its_gpu_goes_to_another_one(scripted):
    started = scripted(_ended("CUDA error"), DONE)
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


async def test_a_worker_whose_gpu_is_gone_gets_no_more_jobs(scripted):
    gone = _ended("GPU 1 is gone", error="NoGpu")
    started = scripted(gone, DONE, gone)
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


async def test_the_last_worker_of_a_machine_stays_so_that_nothing_waits_for_ever(scripted):
    scripted(_ended("GPU 0 is gone", error="NoGpu"))
    there = Pool([LocalWorker()])
    for _ in range(2):
        with pytest.raises(WorkerDied, match="GPU 0 is gone"):
            await asyncio.wait_for(there.run(JOB), 60)


@pytest.fixture
def gpu(monkeypatch):
    return Gpu(monkeypatch.setattr)


def _on_gpu(sharing=0):
    return run_job(ReadyJob(sharing=sharing, site=Site(results="unused", device="cuda")), lambda event: None)


@pytest.mark.parametrize(("share", "allowed"), [("1.0", 1.0), ("0.5", 0.5 - 0.75 / 80), ("0.01", 0.005)])
def test_a_worker_takes_no_more_memory_than_its_share(gpu, monkeypatch, share, allowed):
    monkeypatch.setenv("BENCH_GPU_SHARE", share)
    with gpu:
        assert _on_gpu() == Done()
    assert gpu.share == pytest.approx(allowed)


def test_a_share_that_others_have_taken_is_refused(gpu, monkeypatch):
    monkeypatch.setenv("BENCH_GPU_SHARE", "0.5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    gpu.room = (79 << 30, 80 << 30)  # the contexts of two workers
    with gpu:
        assert _on_gpu(sharing=2) == Done()
        gpu.room = (60 << 30, 80 << 30)
        assert _on_gpu() == Done()  # the worker has the GPU for itself, or has begun
        with pytest.raises(
            NoGpu, match=r"^GPU 3: 2 workers with a share of 0\.5 need 80\.0 GiB, but 60\.0 of 80\.0 GiB"
        ):
            _on_gpu(sharing=2)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors", "uses it alone"),
        ("No CUDA GPUs are available", "GPU 0 cannot be used: No CUDA GPUs are available$"),
    ],
)
def test_a_gpu_that_cannot_be_opened_is_one_line(gpu, monkeypatch, reason, said):
    monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=RuntimeError(reason)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with gpu, pytest.raises(NoGpu, match=said) as caught:
        _on_gpu()
    assert failed(JOB, caught.value).ended
    assert "\n" not in str(caught.value)


OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by"
NONE = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "warning", "reason", "said"),
    [
        ("cuda", None, NONE, "sees no GPU here (Found no NVIDIA driver on your system); use --device cpu"),
        ("cuda", OLD, OLD, "sees no GPU here (The NVIDIA driver on your system is too old (found version 11040));"),
        ("auto", OLD, OLD, "sees no GPU here (The NVIDIA driver on your system is too old (found version 11040));"),
        ("auto", None, NONE, None),
        ("cpu", OLD, OLD, None),
    ],
)
def test_a_driver_that_does_not_do_is_named_before_anything_is_done(
    monkeypatch, refusal, tmp_path, device, warning, reason, said
):
    def available():
        if warning:
            warnings.warn(f"CUDA initialization: {warning}", stacklevel=2)
        return False

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", available)
    monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=RuntimeError(reason)))
    if said is None:
        assert pick_device(device) == "cpu"
    else:
        assert f"--device {device}: torch {said}" in refusal("run", "--method", "cosface", *RUN, "--device", device)
        assert not list(tmp_path.iterdir())


async def test_a_gpu_that_cannot_be_used_ends_the_run_before_its_first_job(scripted):
    scripted(DONE, _ended("GPU 1 cannot be used: busy", error="NoGpu"))
    there = Pool([LocalWorker(), LocalWorker()], ReadyJob(site=Site(results="unused", device="cuda")))
    with pytest.raises(UserError, match=r"^GPU 1 cannot be used: busy$"):
        await there.start()
    await there.stop()
