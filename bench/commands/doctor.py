"""``bench doctor``: does this machine compute what it should, how fast, and what should a run on it be told?"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import UnitFailed, first_line, place_of, printable
from .options import Device, command, output

NETWORKS = {"cpu": ("resnet18", 224, 12), "cuda": ("resnet50", 224, 120)}
"""Network, side of its crops in pixels and images of a batch that speed is measured with, by device."""

Found = tuple[str, dict[str, float]]
"""What a check found: a line for people, and figures by name."""


@command()
def doctor(*, device: Device = "auto", out: Path = Path("doctor.json"), as_json: bool = False) -> None:
    """Check that this machine computes what it should.

    Measures how fast it is, too, and says what a run should be told.
    On a GPU, the test of a training is compared with the CPU's. Attach the file to bug reports.

    \b
    bench doctor
    bench doctor --device cpu

    Options:
        device: What to check.
        out (FILE): File to write.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from ..engine.pool import UNLESS_SET
    from ..resources import cores, pick_device
    from ..store.files import write_atomic

    chosen, checks, failed = pick_device(device), [], ""
    write_atomic(out, b"{}\n")  # before a minute is spent
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-doctor-") as folder, warnings.catch_warnings(action="ignore"):
        os.environ.update({**UNLESS_SET, **os.environ, "BENCH_CACHE": folder})
        try:
            for check in (_machine, _speed, _training):  # the last makes torch repeatable, and slower
                says, found = check(chosen, Path(folder))
                checks.append(printable(says))
                figures |= found
                if not as_json:
                    print(checks[-1], flush=True)
        except Exception as error:  # whatever it is, it is what was looked for
            kind = "" if isinstance(error, UnitFailed) else f"{type(error).__name__} at {place_of(error)}: "
            failed = kind + first_line(error)
    report = {"bench": __version__, "device": chosen, "checks": checks, "figures": figures, "failed": failed}
    report["advice"] = advised = advice(chosen, cores(), figures)
    write_atomic(out, json.dumps(report, indent=1).encode() + b"\n")
    output(report, [*advised, f"written to {out}"], as_json)
    if failed:
        raise UnitFailed(failed, "bench doctor")


def _machine(device: str, folder: Path) -> Found:
    """Versions, and the GPU with its memory, bytes."""
    import torch

    from ..engine.environment import gpu_software, open_gpu, processor
    from ..resources import cores, keep_memory

    torch.set_num_threads(1)  # as a worker does
    keep_memory()
    says = f"bench {__version__}, torch {torch.__version__}, {processor()} ({cores()} usable)"
    if device == "cpu":
        return says, {}
    open_gpu()
    free, total = torch.cuda.mem_get_info()
    has = f"{torch.cuda.get_device_name()}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free, {gpu_software()}"
    return f"{says}; {has}", {"total": total}


def _planned(site: Any, dataset: str, **asked: Any) -> tuple[Any, Any]:
    """Plan of a training, and its specification."""
    from ..methods.cosface import CosFace
    from ..planning.experiment import Experiment
    from ..planning.plan import build_plans

    request = Experiment(methods=(CosFace.name,), datasets=(dataset,), hparams="default", seeds=1, **asked)
    (plan,) = build_plans(request, site).plans
    return plan, next(iter(plan.train_specs(plan.defaults(), 0, None).values()))


def photographs_trainer(folder: Path, device: str, backbone: str, side: int, batch: int) -> Any:
    """Make a training on photographs of noise, 500 x 375, ready for its first step, in batches of six classes."""
    import numpy as np
    from PIL import Image

    from ..engine.training import Trainer
    from ..site import Site

    rng = np.random.default_rng(0)
    for number in range(96):
        path = folder / "photographs" / f"c{number // 6:02d}" / f"{number % 6}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (375, 500, 3), dtype=np.uint8)).save(path)
    site = Site(results=str(folder / "speed"), device=device, data_root=str(folder / "photographs"), weights="none")
    view = (f"data.image_size={side}", f"data.resize={side * 8 // 7}")
    sizes = ("data.classes_per_batch=6", f"data.images_per_class={batch // 6}")
    trainer = Trainer(_planned(site, "folder", backbone=backbone, set=(*view, *sizes))[1], site)
    trainer.resume_or_start()
    return trainer


def _speed(device: str, folder: Path) -> Found:
    """Images per second of the network, of its batches, and of all together in the fastest precision."""
    import torch

    from ..engine import environment, estimate, inputs, networks

    backbone, side, size = NETWORKS[device]
    trainer = photographs_trainer(folder, device, backbone, side, size)
    rows, gen = torch.arange(size) % len(trainer.data.train), inputs.generator("doctor")
    images, labels = trainer.inputs.batch(rows, gen), trainer.data.train.labels[rows]
    half = device == "cuda" and torch.cuda.get_device_capability() >= (8, 0)
    names, seconds = ("float32", "tf32", "bfloat16") if half else ("float32",), {}
    specs = {name: trainer.spec.replaced(optim=replace(trainer.spec.optim, precision=name)) for name in names}
    for name, spec in specs.items():
        seconds[name] = estimate.step_seconds(trainer.model, spec, images, labels, device)
    trainer.spec = specs[min(names, key=seconds.__getitem__)]
    networks.prepare_steps(trainer.model, trainer.spec.optim)
    trainer.steps = 8 if device == "cuda" else 1
    seconds["batches"] = estimate.median_seconds(lambda: trainer.inputs.batch(rows, gen))
    seconds["all"] = estimate.median_seconds(lambda: trainer.train_epoch(0)) / trainer.steps
    rates = {name: size / each for name, each in seconds.items()}
    listed = ", ".join(f"{name} {float(f'{rate:.3g}'):,g}" for name, rate in rates.items())
    peak = torch.cuda.max_memory_allocated() + environment.OUTSIDE if device == "cuda" else 0.0
    return f"images per second, {backbone}, batches of {size}: {listed}", {"peak": peak, **rates}


def _training(device: str, folder: Path) -> Found:
    """A training and its test; on a GPU, a test of the same weights by the CPU gives about the same values.

    Two trainings could not be compared: rounding grows with every step.
    """
    import numpy as np

    from ..engine import jobs, worker
    from ..site import Site

    site, values = Site(results=str(folder / "run"), device=device), []
    plan, spec = _planned(site, "ndigit_smoke", set=("optim.epochs=2",))
    (test,) = plan.test_specs({spec.fold: spec})
    worker.run_job(jobs.TrainJob(spec=spec, site=site), lambda event: None)
    for where in dict.fromkeys((device, "cpu")):
        own = Site(results=str(folder / f"tested-{where}"), device=where)
        shutil.copytree(site.results, own.results)
        worker.run_job(jobs.TestJob(specs=(test,), cell=plan.cell, site=own), lambda event: None)
        record: Any = own.store.tested(plan.cell, test.id)
        values.append(np.nan_to_num(np.array([row["value"] for row in record.rows], dtype=float)))
    found, expected = values[0], values[-1]
    says = f"a training and its test gave {len(found)} values"
    if device == "cpu":
        return says, {}
    equal, apart = float(np.mean(found == expected)), abs(found - expected) / np.maximum(abs(expected), 1e-6)
    most = float(np.quantile(apart, 0.95))
    says += f"; the CPU's of the same weights are equal ({equal:.0%}), or differ by at most {most:.1e} (95 %; relative)"
    if most > 1e-3:
        raise UnitFailed(f"{says}; allowed is 1e-3")
    return says, {"equal": equal, "most": most}


def advice(device: str, cores: int, figures: dict[str, float]) -> list[str]:
    """Lines of advice for runs on a machine, from the figures of its checks."""
    if "all" not in figures:
        return ["no advice: the speed was not measured"]
    best = max((name for name in ("float32", "tf32", "bfloat16") if name in figures), key=figures.__getitem__)
    network, together = figures[best], figures["all"]
    slowest = "batches" if figures["batches"] < network else "network"
    lines = [f"bottleneck: the {slowest}; all together reach {together / network:.0%} of the network alone"]
    if device == "cpu":
        return [*lines, f"workers: {cores}, one per core, as without --workers", "precision: float32"]
    room = int(figures["total"] // (1.2 * figures["peak"]))
    workers = max(1, min(round(network / together), room, cores))
    # Rounded down: rounded up, one of the workers would find no room.
    share = (
        f"--gpus-per-worker {math.floor(1000 / workers) / 1000:g}" if workers > 1 else "as without --gpus-per-worker"
    )
    lines.append(f"workers: {workers} on a GPU, {share}; networks and batches of this size leave room for {room}")
    ratio = network / figures["float32"]
    faster = f"--set optim.precision={best} trains {ratio:.1f} times as fast as float32"
    return [*lines, f"precision: {faster if ratio >= 1.15 else 'float32; no other is faster by 15 %'}"]
