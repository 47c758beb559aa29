"""The checks of ``bench doctor``; as a program, one of them in a process of its own.

Each is a function of :class:`Here` that returns what it found. A worker's one thread and settings of CUDA apply.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from .._version import __version__
from ..conformance.failure import ConformanceError, require
from ..conformance.method_checks import build
from ..engine.environment import processor
from ..engine.estimate import median_seconds, step_seconds
from ..engine.gpu import OUTSIDE, open_gpu, software
from ..engine.inputs import AugmentedImages, generator
from ..engine.jobs import TestJob, TrainJob
from ..engine.launch import OnGpus
from ..engine.networks import prepare_steps
from ..engine.pool import LocalWorker, Pool
from ..engine.running import release_memory
from ..engine.training import Trainer
from ..engine.worker import run_job
from ..errors import first_line, place_of
from ..methods._model import EmbeddingModel
from ..methods.cosface import CosFace
from ..planning.experiment import Experiment
from ..planning.plan import Plan, build_plans
from ..protocols.recipes._base import Optim
from ..resources import CARD, SHARE, cores, gpu_names, keep_memory
from ..site import Site
from ..store.specs import TrainSpec
from .simulated_gpu import Gpu
from .steps import METHODS, DrawsOnCpu, apart, loss_step, one_step, photograph, small_trainer, values

TOLERANCE = 1e-4
"""Largest relative difference of a method's step without TF32: float32 has 1e-7, a step a few hundred operations. On an
H200 the largest of 47 forms was 1.8e-5."""


class _SimulatedWorker(LocalWorker):
    module = "bench.doctor.simulated_gpu"


@dataclass(frozen=True)
class Here:
    """Device and empty folder of a check; the GPU if it is the simulated one."""

    device: str
    folder: Path
    gpu: Gpu | None = None

    @contextlib.contextmanager
    def on(self, device: str) -> Iterator[None]:
        """Context of work on a device, which a worker would open likewise."""
        if device == "cpu":
            yield
            return
        with self.gpu or contextlib.nullcontext():
            open_gpu()
            yield

    def site(self, name: str, device: str = "", **given: Any) -> Site:
        """Site with a results folder of this name."""
        return Site(results=str(self.folder / name), device=device or self.device, threads=cores(), **given)

    def worker(self, share: float = 1.0) -> LocalWorker:
        """A worker process with a share of the first GPU."""
        kind = _SimulatedWorker if self.gpu else LocalWorker
        card = "" if self.device == "cpu" else "0" if self.gpu else gpu_names()[0]
        return kind(variables={CARD: card, SHARE: str(share)})


Found = tuple[str, dict[str, float]]
"""What a check found: a line for people, and figures by name."""


def versions(here: Here) -> Found:
    """Versions, and the GPU with its memory."""
    says = f"bench {__version__}, torch {torch.__version__}, {processor()} ({cores()} usable)"
    if here.device == "cpu":
        return says, {}
    with here.on("cuda"):
        free, total = torch.cuda.mem_get_info()
        says += f"; {torch.cuda.get_device_name()}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free, {software()}"
    return says, {"total": total, "free": free}


def trained() -> list[Any]:
    """Methods that are trained by steps."""
    classes = [METHODS.get(name).load() for name in METHODS.names]
    return [cls for cls in classes if not cls.ensemble and cls.by_steps]


def _taught(name: str, form: str, device: str) -> Any:
    """Network of a method after one step or its fit."""
    cls = METHODS.get(name).load()
    method = cls(cls.Params(**cls.defaults(form)))
    if method.ensemble:
        return build(cls).to(device)
    # Adam would enlarge the rounding of gradients that are zero.
    trainer = small_trainer(method, device, Optim(epochs=1, lr=1e-3, lr_objective=1e-2, optimizer="sgd"))
    one_step(trainer)
    return trainer.model


def _untaught(name: str, form: str, device: str) -> Any:
    return build(METHODS.get(name).load(), form).to(device)


def _compared(
    here: Here,
    network: Callable[[str, str, str], Any],
    difference: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], float],
    what: str,
) -> Found:
    """Differences between GPU and CPU in the values of some networks, one of every method and form."""
    found = {}
    for name in METHODS.names:
        for form in METHODS.get(name).load().forms():
            with DrawsOnCpu():
                expected = values(network(name, form, "cpu"), "cpu")
            with here.on("cuda"), contextlib.nullcontext() if here.gpu else DrawsOnCpu():
                found[f"{name} {form}"] = difference(values(network(name, form, "cuda"), "cuda"), expected)
    most = max(found, key=found.__getitem__)
    says = f"{len(found)} forms of methods, {what} by {found[most]:.1e} at most ({most})"
    require(found[most] <= TOLERANCE, f"{says}; allowed is {TOLERANCE:g}")
    return says, found


def methods(here: Here) -> Found:
    """A step of every method and form: gradients, weights, embeddings, confidences and scores as on the CPU."""
    return _compared(here, _taught, apart, "whose steps differ from the CPU's (relative)")


def rankings(here: Here) -> Found:
    """Every method's own scorer ranks as on the CPU, but for scores that are equal up to rounding."""

    def swapped(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
        scores = expected["scores"].double()
        lost = scores.sort(descending=True).values - scores.gather(1, found["scores"].argsort(descending=True))
        return float(lost.abs().max() / scores.abs().max())

    return _compared(here, _untaught, swapped, "whose swapped scores differ (relative)")


def _plan(site: Site, dataset: str = "ndigit_smoke", **asked: Any) -> Plan:
    method = asked.pop("method", CosFace.name)
    request = Experiment(methods=(method,), datasets=(dataset,), hparams="default", **asked)
    return next(plan for plan in build_plans(request, site).plans if plan.requested)


def _spec(plan: Plan, seed: int = 0) -> TrainSpec:
    (spec,) = plan.train_specs(plan.defaults(), seed, None).values()
    return spec


def run(here: Here) -> Found:
    """A whole training and its test; on a GPU, a test of the same weights by the CPU gives about the same values.

    Two trainings could not be compared: rounding grows with every step.
    """
    values = []
    site = here.site("run")
    plan = _plan(site, seeds=1, set=("optim.epochs=2",))
    spec = _spec(plan)
    (test,) = plan.test_specs({spec.fold: spec})
    with here.on(here.device):
        run_job(TrainJob(spec=spec, site=site), lambda event: None)
    for device in dict.fromkeys((here.device, "cpu")):
        own = here.site(f"tested-{device}", device)
        shutil.copytree(site.results, own.results)
        with here.on(device):
            run_job(TestJob(specs=(test,), cell=plan.cell, site=own), lambda event: None)
        record = own.store.tested(plan.cell, test.id)
        assert record is not None
        values.append(torch.tensor([row["value"] for row in record.rows], dtype=torch.float64).nan_to_num())
    found, expected = values[0], values[-1]
    says = f"a training and its test gave {len(found)} values"
    if here.device == "cpu":
        return says, {}
    equal = float((found == expected).double().mean())
    most = float(((found - expected).abs() / expected.abs().clamp_min(1e-6)).quantile(0.95))
    says += f"; the CPU's of the same weights are equal ({equal:.0%}), or differ by at most {most:.1e} (95 %; relative)"
    require(most <= 1e-3, f"{says}; allowed is 1e-3")
    return says, {"equal": equal, "most": most}


async def _finish(workers: list[LocalWorker], jobs: list[TrainJob], on_epoch: Any = lambda epoch: None) -> list[float]:
    """Do jobs one after the other by the first worker alone, then all by all of them; seconds of both."""
    cuda = jobs[0].site.device == "cuda"
    pool = OnGpus(workers, len(workers) if len(workers) > 1 else 0, jobs[0].site) if cuda else Pool(workers)
    try:
        await pool.start()
        start = time.perf_counter()
        await pool.run(jobs[0], on_epoch)
        alone = time.perf_counter()
        await asyncio.gather(*(pool.run(job) for job in jobs[1:]))
        return [alone - start, time.perf_counter() - alone]
    finally:
        await pool.stop()


def resume(here: Here) -> Found:
    """A worker that is killed after an epoch: its training goes on, and ends as an undisturbed one."""
    weights, records = [], []
    for name in ("undisturbed", "killed"):
        site, worker = here.site(name), here.worker()
        killed: list[object] = []
        spec = _spec(_plan(site, seeds=1, set=("optim.epochs=3",)))

        def kill(epoch: int, name: str = name, worker: LocalWorker = worker, killed: list[object] = killed) -> None:
            if name == "killed" and not killed:
                killed.append(asyncio.ensure_future(worker.stop()))

        asyncio.run(_finish([worker], [TrainJob(spec=spec, site=site)], kill))
        record = site.store.trained(spec.cell, spec.id)
        assert record is not None
        records.append(record)
        weights.append(load_file(site.store.whole_weights(spec.cell, spec.id)))
    cost = records[1].environment.cost
    require(cost is not None and cost.resumed, "the training began anew")
    difference = apart(weights[1], weights[0])
    require(difference <= 1e-2, f"weights differ by {difference:.1e} (relative) from those of an undisturbed training")
    same = "to the last bit" if records[0].files == records[1].files else f"up to {difference:.1e}"
    return f"the training went on, and its weights are the undisturbed one's {same}", {"difference": difference}


def _waits(gpu: Gpu | None, work: Callable[[], object]) -> int:
    """How often the host waits for the GPU in some work."""
    if gpu:
        gpu.waits.clear()
        work()
        return gpu.waits.total()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        work()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in said)


def waits(here: Here) -> Found:
    """How often a training step makes the host wait for the GPU, by method."""
    counts: dict[str, float] = {}
    with here.on("cuda"):
        for cls in trained():
            trainer = small_trainer(cls(), "cuda")
            one_step(trainer)  # constants are made in the first one
            counts[cls.name] = _waits(here.gpu, partial(one_step, trainer))
    few, *_, most = sorted(counts, key=counts.__getitem__)
    if counts[few] == counts[most]:
        return f"{counts[few]} for a step of any method", counts
    return f"{counts[few]} ({few}) to {counts[most]} ({most}) for a step", counts


def _photographs(here: Here) -> Trainer:
    """A training on photographs, ready for its first step: ResNet-50 at 224 px on a GPU."""
    if here.gpu:
        return photographs_trainer(here, "test_resnet", 32, 12, (48, 36))
    return photographs_trainer(here, *(("resnet18", 224, 12) if here.device == "cpu" else ("resnet50", 224, 120)))


def photographs_trainer(
    here: Here, backbone: str, side: int, batch: int, size: tuple[int, int] = (500, 375), *, precision: str = "float32"
) -> Trainer:
    """A training on photographs that were made for it, ready for its first step, in batches of six classes."""
    rng = np.random.default_rng(0)
    for number in range(96):
        path = here.folder / "photographs" / f"c{number // 6:02d}" / f"{number % 6}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            photograph(rng, size).save(path, quality=90)
    site = here.site("photographs-run", data_root=str(here.folder / "photographs"), weights="none")
    pins = (f"image_size={side}", f"resize={side * 8 // 7}", "classes_per_batch=6", f"images_per_class={batch // 6}")
    set_ = (*(f"data.{pin}" for pin in pins), f"optim.precision={precision}")
    plan = _plan(site, "folder", seeds=1, backbone=backbone, set=set_)
    trainer = Trainer(_spec(plan), site)
    trainer.resume_or_start()
    return trainer


def speed(here: Here) -> Found:
    """Images per second of batches, network and all together, in one thread; share of each loss in its step.

    All together are timed in the precision in which the network is fastest.
    """
    device = here.device
    with here.on(device):
        trainer = _photographs(here)
        spec, inputs = trainer.spec, trainer.inputs
        assert isinstance(inputs, AugmentedImages)
        size, gen = spec.batches.classes_per_batch * spec.batches.images_per_class, generator("doctor")
        rows = torch.arange(size) % len(trainer.data.train)
        there, labels = inputs.batch(rows, gen), trainer.data.train.labels[rows]
        seconds = {"batches": median_seconds(lambda: inputs.batch(rows, gen))}
        half = device == "cuda" and torch.cuda.get_device_capability() >= (8, 0) and not here.gpu
        specs = {
            name: spec.replaced(optim=replace(spec.optim, precision=name))
            for name in (("float32", "tf32", "bfloat16") if half else ("float32",))
        }
        for name, at in specs.items():
            seconds[name] = step_seconds(trainer.model, at, there, labels, device)
        precision = min(specs, key=seconds.__getitem__)
        trainer.spec = specs[precision]
        prepare_steps(trainer.model, trainer.spec.optim)
        trainer.steps = 8 if device == "cuda" else 1
        seconds["all"] = median_seconds(lambda: trainer.train_epoch(0)) / trainer.steps
        peak = torch.cuda.max_memory_allocated() + OUTSIDE if device == "cuda" else 0.0
        rounds = 1 if here.gpu else 3  # speeds of a simulated GPU mean nothing
        share = _shares_of_losses(trainer, there, labels, device, seconds[precision], rounds)
    top = ", ".join(f"{name} {share[name]:.1%}" for name in sorted(share, key=lambda name: -share[name])[:3])
    rates = {name: size / second for name, second in seconds.items()}
    listed = ", ".join(f"{name} {float(f'{rate:.3g}'):,g}" for name, rate in rates.items())
    says = f"images per second, {spec.backbone}, batches of {size}: {listed} ({precision}); largest losses: {top} of a"
    return f"{says} step", {"peak": peak, **rates, **{f"loss {name}": part for name, part in share.items()}}


class _NoLoss(nn.Module):
    """Mean of all embeddings, in place of a loss."""

    def forward(self, distribution: Any, labels: Tensor) -> Tensor:
        """A scalar that depends on every embedding."""
        return distribution.mean.mean()  # type: ignore[no-any-return]


def _shares_of_losses(
    trainer: Trainer, images: Tensor, labels: Tensor, device: str, step: float, rounds: int
) -> dict[str, float]:
    """Share of every loss in the seconds of a step, which are those of the trainer's own.

    A GPU is still busy with the network while the host launches a loss, so there whole steps are timed, of methods that
    train the network, in turns with steps without a loss: its pace changes by more than many losses take.
    """
    size = len(labels)
    if device == "cpu":
        alone = {cls.name: median_seconds(loss_step(cls(), 100, 128, size, device)) for cls in trained()}
        return {name: own / (own + step - alone[CosFace.name]) for name, own in alone.items()}
    without = EmbeddingModel(CosFace(), trainer.model.backbone, 100, 128).to(device)
    without.objective = _NoLoss()
    shares = {}
    for cls in trained():
        method: Any = cls()
        if method.on_base:
            continue
        model = EmbeddingModel(method, trainer.model.backbone, 100, 128).to(device)
        times = [
            [step_seconds(each, trainer.spec, images, labels % 100, device) for each in (without, model)]
            for _ in range(rounds)
        ]
        shares[method.name] = statistics.median(max(0.0, 1 - bare / whole) for bare, whole in times)
    return shares


def memory(here: Here) -> Found:
    """A step that needs more memory than there is: it is done in parts, with the same loss."""
    losses = []
    with here.on("cuda"):
        trainer = _photographs(here)
        trainer.steps = 1
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        losses.append(trainer.train_epoch(0))
        allowed = before + 0.7 * (torch.cuda.max_memory_allocated() - before)
        whole = len(next(iter(trainer._batches()))[0])
        trainer = _photographs(here)
        trainer.steps = 1
        release_memory()
        torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
        if here.gpu:
            here.gpu.fails = lambda op, args, to_gpu: op == "convolution" and len(args[0]) > whole // 2
        losses.append(trainer.train_epoch(0))
    part = trainer.running.micro_batch
    require(part is not None, "the step did not run out of memory")
    says = f"a step on {whole} images went on in parts of {part}; its loss is {losses[1]:.5f}, {losses[0]:.5f} at once"
    require(abs(losses[1] - losses[0]) <= 1e-3 * abs(losses[0]), says)
    return says, {}


def shares(here: Here) -> Found:
    """Workers with equal shares of a GPU train at once."""
    gains = {}
    for count in [2] if here.gpu else [2, max(2, min(8, cores()))]:
        site = here.site(f"shares-{count}")
        plan = _plan(site, seeds=count + 1, set=(f"optim.epochs={2 if here.gpu else 10}",))
        jobs = [TrainJob(spec=_spec(plan, seed), site=site) for seed in range(count + 1)]
        alone, together = asyncio.run(_finish([here.worker(1 / count) for _ in range(count)], jobs))
        gains[count] = count * alone / together
    listed = ", ".join(f"{count} do {gain:.1f} times" for count, gain in gains.items())
    return f"small trainings at once: {listed} the work of one", {
        f"gain {count}": gain for count, gain in gains.items()
    }


POISON = '''
import os, pathlib
import torch
from bench.methods import register
from bench.methods.cosface import CosFace


@register
class Poison(CosFace):
    """Breaks the GPU of the first process that uses it."""

    name = "doctor_poison"
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


def poisoned(here: Here) -> Found:
    """A worker whose GPU a kernel has broken ends, and its training goes on in another process."""
    plugin = here.folder / "doctor_poison.py"
    plugin.write_text(POISON)
    site = here.site("poisoned", plugins=(str(plugin),))
    spec = _spec(_plan(site, method="doctor_poison", seeds=1, set=("optim.epochs=1",)))
    asyncio.run(_finish([here.worker()], [TrainJob(spec=spec, site=site)]))
    processes = dict.fromkeys(plugin.with_name("pids").read_text().split())
    require(len(processes) == 2, f"the training was done by {len(processes)} processes, 2 were expected")
    return "the worker ended, and the training was done by another process", {}


CHECKS: dict[str, Callable[[Here], Found]] = {
    check.__name__: check
    for check in (versions, methods, rankings, run, resume, waits, speed, memory, shares, poisoned)
}


def main(name: str, device: str, simulated: bool, folder: Path) -> None:
    """Do a check, and write what it found to ``result.json`` in its folder."""
    os.environ["BENCH_CACHE"] = str(folder / "cache")
    torch.set_num_threads(1)
    keep_memory()
    here = Here(device, folder, Gpu() if simulated else None)
    with contextlib.suppress(OSError, AttributeError):  # not on macOS
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # end with the parent
    try:
        says, figures = CHECKS[name](here)
        result = {"state": "ok", "says": says, "figures": figures}
    except Exception as error:  # whatever it is, it is what the check reports
        kind = "" if isinstance(error, ConformanceError) else f"{type(error).__name__} at {place_of(error)}: "
        result = {"state": "FAIL", "says": kind + first_line(error), "figures": {}}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "simulated", Path(sys.argv[4]))
