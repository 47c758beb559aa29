"""Scale in simulation: one driver, hundreds of workers that train in no time, up to 100,000 records in a folder.

    uv run python benchmarks/scale.py [--records 3000 10000 100000] [--workers 500] [--template results/runs]

All methods are tuned on the four data sets that need no download, with four models each: about 100 studies, which try
four settings at a time, so that about 1,660 trainings can run at once. The number of records is reached by more trials
and, a tenth as many, more seeds. Plans, scheduler, pool, claims and store are the real ones. The workers are objects in
the driver's process that write valid records at once, and weights of a few bytes; their processor and wall seconds are
subtracted. They propose random settings.

A record of a test is as large as a real one: its rows are those of the first test in ``--template``, or of one that is
made here, which takes a minute. Every step runs in a process of its own, for its peak memory: a run, the same command
again once everything is there, ``bench status``, ``bench status --check`` and ``bench report``.

    uv run python benchmarks/scale.py --features sop [--methods cosface pfe]

Or features of many images: a data set of the size of SOP, a million images or 200,000 classes, is generated, and every
phase of a tuned experiment on it is timed alone, with one thread: the import, the dry run, an epoch and its validation,
a test by group, the report. The sum for 50 trials and five seeds of 20 epochs, which early stopping would shorten,
follows. To
compare two commits, run this file with the Python of either checkout (``uv run --project CHECKOUT python ..``).

Memory is that of one process: its own (anonymous), and with the mapped files and libraries, which processes share.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from bench.engine import testing
from bench.engine.jobs import EVENTS, Done, EpochDone, Event, Job, ProposeJob, TestJob, TrainJob
from bench.engine.pool import Pool
from bench.engine.scheduler import Scheduler
from bench.engine.training import Trainer, run_training
from bench.planning.experiment import Experiment
from bench.planning.plan import Plan, Specs, build_plans
from bench.progress import Display
from bench.protocols import declare
from bench.protocols.recipes._base import Range
from bench.scoring.files import Column, held, write_columns
from bench.seeds import seed_for
from bench.site import Site
from bench.store.files import sha256, write_atomic
from bench.store.folder import CHECKPOINT, WEIGHTS, Store
from bench.store.records import Columns, Epoch, Role, TestRecord, TrainRecord
from bench.store.specs import Cell, Point, TestSpec, TrainSpec
from rich.console import Console

BENCH = Path(sys.executable).with_name("bench")
DATASETS = ("glyphs", "ndigit", "ndigit_quick", "ndigit_smoke")
FOLDS = 4
STUDIES = 104
"""Cells of the grid at present; only the choice of the number of trials depends on it."""

EVERY = 5000
"""Units between two looks at memory and open files."""

TEMPLATE = ("--method", "cosface", "--dataset", "ndigit_smoke", "--hparams", "default", "--seeds", "1", "--folds", "1")
COMMANDS = {"status": ("status",), "status --check": ("status", "--check"), "report": ("report",)}


class Cost(NamedTuple):
    """Cost of a step: processor and wall seconds, the peak memory of its process in MiB, and that of its own."""

    cpu: float
    wall: float
    peak: float
    own: float = 0.0


class Driven(NamedTuple):
    """Processor and wall seconds without those of the simulated workers, memory in MiB, and what the driver did."""

    cpu: float
    wall: float
    peak: float
    start: float
    planning: float
    units: int
    most: int
    threads: int
    growth: Sequence[tuple[int, float, int]]
    """Units carried out, memory then in MiB, and open files then, every few thousand units."""


class Step(NamedTuple):
    """Measured step: its name, its cost, and the number of units or records that it went through."""

    name: str
    cost: Cost
    items: int


class Grid(NamedTuple):
    """Trials of every study, and seeds of every method at its best setting."""

    trials: int
    seeds: int

    @classmethod
    def of(cls, records: int) -> Grid:
        """The grid with about this many records, but at least four trials and one seed."""
        each = records / STUDIES - 1  # the study itself
        # Of 10 trials and a seed: a record per trial, a training per fold of both, two tests.
        tens = each / (10 + (10 + 1) * FOLDS + 2)
        return cls(max(4, 4 * round(10 * tens / 4)), max(1, round(tens)))


def memory(key: str, pid: int | str = "self") -> float:
    """Memory of a process in MiB, ``VmRSS`` for now and ``VmHWM`` for its peak; 0 once it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:")), 0.0)


class Workshop:
    """State that simulated workers share: the template of tests, their own cost and how many are at work."""

    def __init__(self, template: TestRecord) -> None:
        self.template = template
        self.cpu = self.wall = 0.0
        self.busy = self.most = self.units = self.threads = 0
        self.growth: list[tuple[int, float, int]] = []

    def __enter__(self) -> None:
        self._began = time.thread_time(), time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        self.cpu += time.thread_time() - self._began[0]
        self.wall += time.perf_counter() - self._began[1]

    def make(self, job: Job) -> Done:
        """Do what a worker process would, but for the training and the tests themselves."""
        if isinstance(job, ProposeJob):
            return Done(points=tuple(job.fixed.get(n) or _random_point(job, n) for n in job.numbers))
        store = job.site.store
        if isinstance(job, TrainJob):
            self._train(job, store)
        elif isinstance(job, TestJob):
            for spec in job.specs:
                self._test(job, spec, store)
        return Done()

    def _train(self, job: TrainJob, store: Store) -> None:
        spec, unit = job.spec, job.spec.id
        value = int(unit, 16) / 2**64
        write_atomic(store.weights(spec.cell, unit), unit.encode())
        epochs = range(1, spec.optim.epochs + 1)
        record = TrainRecord(
            unit=unit, cell=spec.cell, spec=spec, files={WEIGHTS: sha256(unit.encode())}, num_classes=100, channels=1,
            manifests=self.template.manifests, best_epoch=1, selection_value=value, val_map_at_r=value,
            history=tuple(Epoch(epoch=n, loss=value / n, val_map_at_r=value) for n in epochs),
            environment=self.template.environment,
        )  # fmt: skip
        store.write(record)

    def _test(self, job: TestJob, spec: TestSpec, store: Store) -> None:
        trained = store.trained(job.trained or job.cell, spec.train[0])
        assert trained is not None
        folder = store.unit_dir(job.cell, "test", spec.id)
        files = {} if spec.ensemble == "concatenated" else dict.fromkeys(self.template.files, sha256(spec.id.encode()))
        for name in files:
            write_atomic(folder / name, spec.id.encode())
        update = {"unit": spec.id, "cell": job.cell, "spec": spec, "files": files, "finished": time.time()}
        update |= {"columns": _columns(spec, job.cell, trained.spec), "role": self._role(spec, trained.spec)}
        store.write(self.template.model_copy(update=update))

    def _role(self, spec: TestSpec, trained: TrainSpec) -> Role:
        base = trained.base.unit if trained.base else ""
        return self.template.role.model_copy(update={"train": " ".join(spec.train), "base_train": base})


def _columns(spec: TestSpec, cell: Cell, trained: TrainSpec) -> Columns:
    base = trained.method if spec.ensemble == "seeds" else trained.base.method if trained.base else ""
    return Columns(
        protocol=trained.protocol, preset=spec.preset, dataset=trained.dataset, method=cell.method,
        base=base, fidelity=trained.form, hparams=spec.hparams,
        trials=spec.trials, pinned=spec.pinned, backbone=trained.backbone, dim=trained.dim, ensemble=spec.ensemble,
        seed=int(trained.replicate),
    )  # fmt: skip


def _random_point(job: ProposeJob, number: int) -> Point:
    draw = random.Random(seed_for("scale", *job.axes, number))
    return {name: _between(space, draw.random()) for name, space in sorted(job.space.items())}


def _between(space: Range, share: float) -> float | int:
    if space.log:
        value = math.exp(math.log(space.low) + share * (math.log(space.high) - math.log(space.low)))
    else:
        value = space.low + share * (space.high - space.low)
    return round(value) if space.type == "int" else value


class SimulatedWorker:
    """A worker of the pool without a process: it is done as soon as every other has had its turn."""

    usable = True
    node = ""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop

    async def start(self) -> None:
        """Be ready."""

    async def stop(self) -> None:
        """End."""

    async def run(self, job: Job, on_event: Callable[[Event], None]) -> Done:
        """Do a job; messages are made and read as they are between processes."""
        shop = self.shop
        job.model_dump_json()
        shop.busy += 1
        shop.most = max(shop.most, shop.busy)
        await asyncio.sleep(0)
        with shop:
            shop.threads = max(shop.threads, len(os.listdir("/proc/self/task")))
            epochs = job.spec.optim.epochs if isinstance(job, TrainJob) else 0
            lines = [EpochDone(epoch=epoch).model_dump_json() for epoch in range(1, epochs + 1)]
            done = shop.make(job).model_dump_json()
        for line in lines:
            on_event(EVENTS.validate_json(line))
        shop.busy -= 1
        if isinstance(job, TrainJob | TestJob):
            shop.units += 1
            if shop.units % EVERY == 0:
                shop.growth.append((shop.units, memory("VmRSS"), len(os.listdir("/proc/self/fd"))))
        found = EVENTS.validate_json(done)
        assert isinstance(found, Done)
        return found


def drive(grid: Grid, root: Path, workers: int, template: Path, **asked: tuple[str, ...]) -> Driven:
    """Plan all methods and carry the plans out with simulated workers; test rows are those of ``template``."""
    began = time.process_time()
    site = Site(results=str(root))
    names = {"methods": ("all",), "datasets": DATASETS, **asked}
    plans = build_plans(
        Experiment(**names, tuning={"folds": FOLDS, "studies": 1}, trials=grid.trials, seeds=grid.seeds), site
    ).plans
    planning = time.process_time() - began
    site.store.mark(plans[0].cell.protocol, plans[0].template.protocol_version)
    shop = Workshop(next(Store(template).tests()))
    pool = Pool(SimulatedWorker(shop) for _ in range(workers))
    start = memory("VmRSS")
    cpu, wall = time.process_time(), time.perf_counter()
    with Path(os.devnull).open("w") as nowhere, Display(Console(file=nowhere)) as display:
        for plan in plans:
            display.add(plan.cell, plan.trainings * plan.epochs)
        outcome = asyncio.run(Scheduler(plans, site, pool, display).execute())
    cpu, wall = time.process_time() - cpu - shop.cpu, time.perf_counter() - wall - shop.wall
    units = sum(plan.trainings + plan.tests for plan in plans)
    assert not outcome.failures, outcome.failures[0]
    assert shop.units in (0, units), f"{shop.units} units were carried out, not {units}"
    return Driven(cpu, wall, memory("VmHWM"), start, planning, units, shop.most, shop.threads, shop.growth)


def command(*arguments: str | Path) -> tuple[Cost, str]:
    """Run a program in a process of its own; returns its cost and its standard output."""
    before, wall, peak, own = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), 0.0, 0.0
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(arguments, stdout=out)
        while process.poll() is None:
            with contextlib.suppress(OSError):
                peak, own = max(peak, memory("VmHWM", process.pid)), max(own, memory("RssAnon", process.pid))
            time.sleep(0.02)
        wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode != 0:
            raise SystemExit(f"exit code {process.returncode}: {' '.join(map(str, arguments))}")
        out.seek(0)
        said = out.read()
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, peak, own), said


def drive_alone(grid: Grid, root: Path, workers: int, template: Path) -> Driven:
    """The function :func:`drive` in a process of its own."""
    options = ("--drive", str(grid.trials), str(grid.seeds), "--results", root, "--workers", str(workers))
    _, said = command(sys.executable, __file__, *options, "--template", template)
    return Driven(*json.loads(said))


def measure(root: Path, grid: Grid, workers: int, template: Path, commands: Iterable[str]) -> tuple[int, list[Step]]:
    """Fill a folder and read it; returns its number of records and the cost of every step."""
    steps = []
    for name in ("run", "run again"):
        driven = drive_alone(grid, root, workers, template)
        steps.append(Step(name, Cost(driven.cpu, driven.wall, driven.peak), driven.units))
        print(
            f"  {name}: {driven.units} units, planned in {driven.planning:.1f} s of a processor;"
            f" {driven.start:.0f} MiB before the first unit, then"
            f" {1024 * (driven.peak - driven.start) / driven.units:.1f} KiB per unit;"
            f" up to {driven.most} jobs and {driven.threads} threads at once",
            flush=True,
        )
        for done, resident, files in driven.growth:
            print(f"    after {done} units: {resident:.0f} MiB, {files} open files", flush=True)
    records = sum(1 for _ in root.glob("*/*/*/*/*.json"))
    for name in commands:
        cost, _ = command(BENCH, *COMMANDS[name], "--results", root)
        steps.append(Step(name, cost, records))
    return records, steps


def table(measured: dict[int, list[Step]]) -> str:
    """Costs of every step at every number of records, and the exponents of their growth from the size before."""
    heads = f"{'processor':>11} {'wall':>11} {'per item':>9} {'peak memory':>12}  growth with records"
    lines = [f"{'':16} {'records':>8} {heads}"]
    for place in range(len(next(iter(measured.values())))):
        before: tuple[int, Cost] | None = None
        for records, steps in measured.items():
            name, cost, items = steps[place]
            texts = f"{cost.cpu:9.1f} s {cost.wall:9.1f} s {1e3 * cost.cpu / items:6.2f} ms {cost.peak:8.0f} MiB"
            growth = "" if before is None else _growth(records / before[0], before[1], cost)
            lines.append(f"{name:16} {records:8} {texts}  {growth}".rstrip())
            before = records, cost
    return "\n".join(lines)


def _growth(factor: float, before: Cost, now: Cost) -> str:
    powers = [math.log(new / old) / math.log(factor) for old, new in zip(before[:3], now[:3])]
    return f"processor n^{powers[0]:.2f}, wall n^{powers[1]:.2f}, memory n^{powers[2]:.2f}"


# Features of many images


class Size(NamedTuple):
    """Training and test images, their classes, number and type of the features; queries of a test, None for all."""

    images: tuple[int, int]
    classes: tuple[int, int]
    width: int
    dtype: str
    queries: int | None = None
    epoch_repeats: float = 1.0
    crops: bool = True


SIZES = {
    "small": Size((2400, 2400), (400, 400), 32, "float32"),
    "sop": Size((59_551, 60_502), (11_318, 11_316), 384, "float32"),
    "classes": Size((800_000, 2400), (200_000, 400), 64, "float16", 1000, 0.05, crops=False),
    "million": Size((500_000, 500_000), (50_000, 50_000), 1024, "float16", 10_000, 0.05, crops=False),
}
"""Data sets by name; an epoch before a test is a part of one if it would take many minutes."""

BUDGET = (50, 5, 20)
"""Trials, seeds and epochs of the experiment whose time is extrapolated."""

_LATENT, _SHARED, _OWN = 64, 1.2, 1.6
"""Dimensions of the classes, and sizes of the noise: MAP@R of the features is about 25, of trained heads 50."""


def write_features(folder: Path, size: Size) -> dict[str, Path]:
    """Write generated features, clean and perhaps cropped: a class centre and noise, some of it in few directions."""
    mix = np.random.default_rng(0).standard_normal((2 * _LATENT, size.width), dtype=np.float32) / _LATENT**0.5
    paths = {}
    for number, (split, images, classes) in enumerate(zip(("train", "test"), size.images, size.classes)):
        draw = np.random.default_rng(number + 1)
        # Two images of every class, the others to random ones: from 2 to about 14, as in SOP.
        labels = np.concatenate([np.repeat(np.arange(classes), 2), draw.integers(classes, size=images - 2 * classes)])
        draw.shuffle(labels)
        centres, severity = draw.standard_normal((classes, _LATENT), dtype=np.float32), draw.random(images) / 2

        def blocks(extra: np.ndarray, number: int = number, labels: np.ndarray = labels, centres=centres):
            for start in range(0, len(labels), 4096):
                rows = slice(start, start + 4096)
                again = np.random.default_rng([number, start])  # the same noise for clean and cropped images
                shared = _SHARED * again.standard_normal((len(labels[rows]), _LATENT), dtype=np.float32)
                noise = again.standard_normal((2, len(shared), size.width), dtype=np.float32)
                level = np.exp(0.3 * again.standard_normal((len(shared), 1), dtype=np.float32))
                made = np.concatenate([centres[labels[rows]], shared], 1) @ mix + _OWN * level * noise[0]
                yield (made + 2 * _OWN * extra[rows, None] * noise[1]).astype(size.dtype)

        shape, kind = (images, size.width), np.dtype(size.dtype)
        columns = {
            "features": Column(shape, kind, partial(blocks, np.zeros(images, np.float32))),
            "labels": held(labels + number * size.classes[0]),
        }
        if size.crops:
            columns["corrupted_crop"] = Column(shape, kind, partial(blocks, severity.astype(np.float32)))
            columns["severity_crop"] = held(severity)
        paths[split] = folder / f"{split}.safetensors"
        write_columns(paths[split], columns)
    return paths


def _plans(site: Site, method: str, size: Size) -> tuple[Plan, ...]:
    queries = {} if size.queries is None else {"data": {"test_queries": size.queries}}
    fixed = {"optim.epochs": "1", "data.epoch_repeats": str(size.epoch_repeats)}
    asked = {"methods": (method,), "datasets": ("generated",), "hparams": "default", "seeds": 1, "set": fixed}
    return build_plans(Experiment.checked({**asked, **queries}), site).plans


def _trained(site: Site, plans: Iterable[Plan], known: dict[object, Specs]) -> Specs:
    """Specifications of the trainings of the last plan, after one epoch each."""
    for plan in plans:
        specs = known[plan.key] = plan.train_specs({}, 0, known.get(plan.base.key) if plan.base else None)
        for spec in specs.values():
            if site.store.trained(spec.cell, spec.id) is None:
                run_training(spec, site, lambda epoch: None)
    return specs


def training_phases(site: Site, method: str, size: Size, steps: int = 40) -> dict[str, float]:
    """Processor seconds of an epoch's steps, from some of them, of its validation and of its checkpoint."""
    plans, known = _plans(site, method, size), {}
    if plans[-1].base is not None:
        _trained(site, plans[:-1], known)
    base = plans[-1].base
    trainer = Trainer(plans[-1].train_specs({}, 0, known[base.key] if base else None)[0], site)
    trainer.resume_or_start()
    trainer.model.train()
    batches, passed = trainer._batches(after=(0,)), 0
    for rows, batch in islice(batches, 5):  # to warm up
        trainer.micro_batches.gradients(batch, partial(trainer._loss, trainer.data.train.labels[rows], "scale"))
    clock = [time.process_time()]
    for rows, batch in islice(batches, steps):
        trainer.micro_batches.gradients(batch, partial(trainer._loss, trainer.data.train.labels[rows], "scale"))
        trainer.optimisation.update()
        passed += 1
    every = trainer.steps / size.epoch_repeats
    clock.append(time.process_time())
    row = trainer.validate(0, 0.0)
    clock.append(time.process_time())
    trainer.book(row)
    trainer.save_checkpoint()
    clock.append(time.process_time())
    (trainer.folder / CHECKPOINT).unlink()  # the model that is tested is trained for a whole epoch
    spent = [after - before for before, after in pairwise(clock)]
    return {"steps of an epoch": spent[0] / max(1, passed) * every, "validation": spent[1], "checkpoint": spent[2]}


def test_phases(site: Site, method: str, size: Size) -> dict[str, float]:
    """Processor seconds of a test: embedding, each group of tests on clean and on cropped images, and what is kept."""
    plans, known = _plans(site, method, size), {}
    specs = _trained(site, plans, known)
    spent: dict[str, float] = {}
    check, embed = declare._in_range, testing.EmbeddedModel.of

    def timed(name: str, work: Callable[..., object], *given: object) -> object:
        began = time.process_time()
        made = work(*given)
        spent[name] = spent.get(name, 0.0) + time.process_time() - began
        return made

    declare._in_range = lambda of, rows: check(of, timed(of.group, list, rows))  # type: ignore[assignment,arg-type]
    testing.EmbeddedModel.of = partial(timed, "embedding", embed)  # type: ignore[method-assign]
    began = time.process_time()
    testing.run_tests(plans[-1].test_specs(specs), plans[-1].cell, site)
    whole = time.process_time() - began
    return {**spent, "other (files, queries)": whole - sum(spent.values())}


PHASES: dict[str, Callable[[Site, str, Size], dict[str, float]]] = {
    "training": training_phases,
    "test": test_phases,
}


def phase(name: str, size: str, method: str, root: Path) -> None:
    """Run a phase and print its parts; the process has one thread, as a worker has."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    site = Site(results=str(root / "runs"), data_home=str(root / "data"), threads=1)
    protocol = _plans(site, method, SIZES[size])[-1].template
    site.store.mark(protocol.protocol, protocol.protocol_version)
    print(json.dumps(PHASES[name](site, method, SIZES[size])))


def measure_features(name: str, methods: Iterable[str]) -> str:
    """Costs of every phase on a data set of a size, and what they add up to for each method."""
    size, lines = SIZES[name], []

    def add(what: str, cost: Cost) -> None:
        lines.append(f"{what:34} {cost.cpu:9.1f} s {cost.wall:9.1f} s {cost.own:8.0f} {cost.peak:8.0f} MiB")
        print(lines[-1], flush=True)

    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        root = Path(folder)
        os.environ["BENCH_DATA"] = str(root / "data")
        files = write_features(root, size)
        print(f"{'':34} {'processor':>11} {'wall':>11} {'own':>8} {'peak memory':>12}")
        add("import", command(BENCH, "data", "features", "generated", *_options(files))[0])
        ask = ("--dataset", "generated", "--seeds", "5")
        add("dry run", command(BENCH, "run", "--method", next(iter(methods)), *ask, "--dry-run")[0])
        for method in methods:
            parts: dict[str, dict[str, float]] = {}
            for each in PHASES:
                options = ("--phase", each, "--features", name, "--methods", method, "--results", root)
                cost, said = command(sys.executable, __file__, *options)
                parts[each] = json.loads(said.splitlines()[-1])
                add(f"{method}: {each}, everything", cost)
                for part, seconds in parts[each].items():
                    print(f"    {part:30} {seconds:9.1f} s", flush=True)
            trials, seeds, epochs = BUDGET
            hours = (trials + seeds) * epochs * sum(parts["training"].values()) + seeds * sum(parts["test"].values())
            lines.append(
                f"{method}: {trials} trials and {seeds} seeds of {epochs} epochs, {seeds} tests:"
                f" {hours / 3600:.2f} processor hours, {hours / 7200:.2f} on two cores"
            )
            print(lines[-1], flush=True)
        add("report", command(BENCH, "report", "--results", root / "runs")[0])
    return "\n".join(lines)


def _options(files: dict[str, Path]) -> list[str | Path]:
    return [item for split, path in files.items() for item in (f"--{split}", path)]


def main() -> None:
    """Measure folders of several sizes, or a data set of features."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[3000, 10_000, 100_000])
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--template", type=Path, help="folder of results whose first test is copied")
    parser.add_argument("--commands", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--features", choices=SIZES, help="a data set of features in place of records")
    parser.add_argument("--methods", nargs="+", default=["cosface", "pfe"])
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)  # the process of a phase
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--drive", type=int, nargs=2, help=argparse.SUPPRESS)  # the process of a driver
    options = parser.parse_args()
    if options.phase:
        phase(options.phase, options.features, options.methods[0], options.results)
        return
    if options.features:
        measure_features(options.features, options.methods)
        return
    if options.drive:
        print(json.dumps(drive(Grid(*options.drive), options.results, options.workers, options.template)))
        return
    measured = {}
    for count in sorted(options.records):
        with tempfile.TemporaryDirectory(prefix="scale-") as folder:
            template = options.template or Path(folder, "template")
            if options.template is None:
                command(BENCH, "run", *TEMPLATE, "--results", template)
            grid = Grid.of(count)
            print(f"{grid.trials} trials and {grid.seeds} seeds for {count} records", flush=True)
            records, steps = measure(Path(folder, "runs"), grid, options.workers, template, options.commands)
            measured[records] = steps
    print(table(measured))


if __name__ == "__main__":
    main()
