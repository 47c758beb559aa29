"""What a GPU must do: a real one (``pytest -m gpu``), and some of it the simulated one."""

import asyncio
import contextlib
import time
import warnings

import pytest
import torch
from bench.commands.doctor import photographs_trainer
from bench.conformance.method_checks import build
from bench.engine.environment import open_gpu
from bench.engine.jobs import ReadyJob, TrainJob
from bench.engine.pool import UNLESS_SET, LocalWorker, Pool
from bench.engine.running import release_memory
from bench.protocols.recipes._base import Optim
from bench.resources import CARD, SHARE, cores, gpu_names
from bench.site import Site
from safetensors.torch import load_file

import tests.gpu
from tests.gpu.simulated_gpu import Gpu
from tests.gpu.steps import METHODS, DrawsOnCpu, apart, one_step, small_trainer, trained, values
from tests.in_process import forget_determinism
from tests.plans import planned

TOLERANCE = 1e-4
"""Largest relative difference of a method's step without TF32: float32 has 1e-7, a step a few hundred operations. On an
H200 the largest of 47 forms was 1.8e-5."""

FORMS = [(name, form) for name in METHODS.names for form in METHODS.get(name).load().forms()]
REAL = pytest.param("real", marks=pytest.mark.gpu)
SLOWLY = pytest.mark.parametrize("gpu", [pytest.param("simulated", marks=pytest.mark.slow), REAL], indirect=True)


class SimulatedWorker(LocalWorker):
    module = "simulated_gpu"


class Device:
    """The GPU of a test, opened as a worker opens it; ``simulated`` is that one, if it is."""

    def __init__(self, folder, simulated):
        self.folder, self.simulated = folder, simulated

    @contextlib.contextmanager
    def opened(self):
        with self.simulated or contextlib.nullcontext():
            open_gpu()
            yield

    def worker(self, share=1.0):
        card = {CARD: "0" if self.simulated else gpu_names()[0], SHARE: str(share)}
        if self.simulated:
            return SimulatedWorker(variables=card | {"PYTHONPATH": tests.gpu.__path__[0]})
        return LocalWorker(variables=card)

    def training(self, name, method="cosface", epochs=1, seed=0, seeds=1, **site):
        """Job of a training on the smallest data set, with results in a folder of this name."""
        place = Site(results=str(self.folder / name), device="cuda", threads=cores(), **site)
        plans, _ = planned(place, method, seeds=seeds, set=(f"optim.epochs={epochs}",))
        plan = next(plan for plan in plans if plan.requested)
        (spec,) = plan.train_specs(plan.defaults(), seed, None).values()
        return TrainJob(spec=spec, site=place)

    def waits(self, work):
        """How often the host waits for the GPU, a real one, in some work."""
        with warnings.catch_warnings(record=True, action="always") as said:
            torch.cuda.set_sync_debug_mode("warn")
            work()
        torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(each.message) for each in said)


@pytest.fixture
def gpu(request, monkeypatch, tmp_path):
    real = request.param == "real"
    if real and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    for name, value in UNLESS_SET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    rounding = [(kind, kind.allow_tf32) for kind in (torch.backends.cudnn, torch.backends.cuda.matmul)]
    yield Device(tmp_path, None if real else Gpu(monkeypatch.setattr))
    for kind, allowed in rounding:  # a worker turns it off
        kind.allow_tf32 = allowed
    forget_determinism()
    if real:
        torch.cuda.set_per_process_memory_fraction(1.0)
        release_memory()


async def _finish(jobs, *workers, on_epoch=lambda epoch: None):
    """Do jobs one after the other by the first worker alone, then all others by all of them; seconds of both."""
    pool = Pool(workers, ReadyJob(site=jobs[0].site, sharing=len(workers) if len(workers) > 1 else 0))
    try:
        await pool.start()
        start = time.perf_counter()
        await pool.run(jobs[0], on_epoch)
        alone = time.perf_counter()
        await asyncio.gather(*(pool.run(job) for job in jobs[1:]))
        return alone - start, time.perf_counter() - alone
    finally:
        await pool.stop()


def _taught(name, form, device):
    """Network of a method after one step or its fit."""
    cls = METHODS.get(name).load()
    method = cls(cls.Params(**cls.defaults(form)))
    if method.ensemble:
        return build(cls).to(device)
    # Adam would enlarge the rounding of gradients that are zero.
    trainer = small_trainer(method, device, Optim(epochs=1, lr=1e-3, lr_objective=1e-2, optimizer="sgd"))
    one_step(trainer)
    return trainer.model


def _differences(gpu, name, form):
    """Relative differences from the CPU: of a step's values, and of scores that a ranking swaps."""

    def on(device):
        taught = values(_taught(name, form, device), device)
        return taught, values(build(METHODS.get(name).load(), form).to(device), device)["scores"]

    with DrawsOnCpu():
        expected, expected_scores = on("cpu")
    with gpu.opened(), contextlib.nullcontext() if gpu.simulated else DrawsOnCpu():
        found, scores = on("cuda")
    wanted = expected_scores.double()
    lost = wanted.sort(descending=True).values - wanted.gather(1, scores.argsort(descending=True))
    return apart(found, expected), float(lost.abs().max() / wanted.abs().max())


@pytest.mark.parametrize(
    ("gpu", "name", "form"),
    [
        ("simulated", "cosface", "corrected"),
        ("simulated", "deep_ensemble", "corrected"),
        *(pytest.param("real", *each, marks=pytest.mark.gpu) for each in FORMS),
    ],
    indirect=["gpu"],
)
def test_a_step_and_its_rankings_are_those_of_the_cpu(gpu, name, form):
    allowed = 0 if gpu.simulated else TOLERANCE
    assert max(_differences(gpu, name, form)) <= allowed


@pytest.mark.parametrize("cls", trained(), ids=lambda cls: cls.name)
@pytest.mark.parametrize("gpu", [REAL], indirect=True)
def test_a_step_makes_the_host_wait_three_times_at_most(gpu, cls):
    """For the simulated GPU the counts are in ``test_gpu.py``."""
    with gpu.opened():
        trainer = small_trainer(cls(), "cuda")
        one_step(trainer)  # constants are made in the first one
        assert gpu.waits(lambda: one_step(trainer)) <= 3


@SLOWLY
def test_a_worker_that_is_killed_goes_on_and_ends_as_an_undisturbed_one(gpu):
    records, weights = [], []
    for name in ("undisturbed", "killed"):
        worker, job, killed = gpu.worker(), gpu.training(name, epochs=3), []

        def kill(epoch, name=name, worker=worker, killed=killed):
            if name == "killed" and not killed:
                killed.append(asyncio.ensure_future(worker.stop()))

        asyncio.run(_finish([job], worker, on_epoch=kill))
        store = job.site.store
        records.append(store.trained(job.spec.cell, job.spec.id))
        weights.append(load_file(store.weights(job.spec.cell, job.spec.id)))
    assert records[1].environment.cost.resumed
    assert apart(*weights) <= (0 if gpu.simulated else 1e-2)


@SLOWLY
def test_a_step_that_runs_out_of_memory_is_done_in_parts_with_the_same_loss(gpu, tmp_path):
    def trainer():
        made = photographs_trainer(
            tmp_path, "cuda", *(("test_resnet", 32, 12) if gpu.simulated else ("resnet50", 224, 120))
        )
        made.steps = 1
        return made

    with gpu.opened():
        first = trainer()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss = first.train_epoch(0)
        allowed = before + 0.7 * (torch.cuda.max_memory_allocated() - before)
        whole = len(next(iter(first._batches()))[0])
        second = trainer()
        del first
        release_memory()
        torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
        if gpu.simulated:
            gpu.simulated.fails = lambda op, args, to_gpu: op == "convolution" and len(args[0]) > whole // 2
        in_parts = second.train_epoch(0)
    assert second.running.micro_batch is not None, "the step did not run out of memory"
    assert in_parts == pytest.approx(loss, rel=1e-3)


@SLOWLY
def test_workers_with_equal_shares_train_at_once(gpu):
    for count in [2] if gpu.simulated else [2, max(2, min(8, cores()))]:
        jobs = [
            gpu.training(f"shares-{count}", epochs=2 if gpu.simulated else 10, seed=seed, seeds=count + 1)
            for seed in range(count + 1)
        ]
        alone, together = asyncio.run(_finish(jobs, *(gpu.worker(1 / count) for _ in range(count))))
        assert all(job.site.store.trained(job.spec.cell, job.spec.id) for job in jobs)
        assert gpu.simulated or count * alone / together > 1  # of the work of one


POISON = '''
import os, pathlib
import torch
from bench.methods import register
from bench.methods.cosface import CosFace


@register
class Poison(CosFace):
    """Breaks the GPU of the first process that uses it."""

    name = "poison"
    summary = "breaks its first GPU"

    def distribution(self, raw, spread):
        pids = pathlib.Path(__file__).with_name("pids")
        first = not pids.exists()
        with pids.open("a") as file:
            print(os.getpid(), file=file)
        if first:  # an index beyond the end is a device-side assert
            raw[torch.full((1,), 1 << 20, device=raw.device)].sum().item()
        return super().distribution(raw, spread)
'''


@SLOWLY
def test_a_worker_whose_gpu_a_kernel_has_broken_is_replaced(gpu, tmp_path):
    plugin = tmp_path / "poison.py"
    plugin.write_text(POISON)
    job = gpu.training("poisoned", "poison", plugins=(str(plugin),))
    asyncio.run(_finish([job], gpu.worker()))
    assert job.site.store.trained(job.spec.cell, job.spec.id)
    assert len(set((tmp_path / "pids").read_text().split())) == 2


@SLOWLY
def test_the_whole_command(gpu, inside, monkeypatch):
    if gpu.simulated:
        monkeypatch.setattr("bench.commands.doctor.NETWORKS", {"cuda": ("test_resnet", 32, 12)})
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: (7, 5))  # it knows no autocast
    with gpu.simulated or contextlib.nullcontext():
        report = inside.json("doctor", "--device", "cuda")
    assert (report["failed"], len(report["checks"])) == ("", 3)
    assert report["figures"]["equal"] >= (1 if gpu.simulated else 0.5)
    assert {"total", "peak", "float32", "batches", "all"} <= report["figures"].keys()
    assert len(report["advice"]) == 3
