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
from pathlib import Path
from typing import NamedTuple

from bench.engine.jobs import EVENTS, Done, EpochDone, Event, Job, ProposeJob, TestJob, TrainJob
from bench.engine.pool import Pool
from bench.engine.scheduler import Scheduler
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.progress import Display
from bench.protocols.recipes._base import Range
from bench.seeds import seed_for
from bench.site import Site
from bench.store.files import sha256, write_atomic
from bench.store.folder import WEIGHTS, Store
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
    """Cost of a step: processor and wall seconds, and the peak memory of its process in MiB."""

    cpu: float
    wall: float
    peak: float


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
    before, wall, peak = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), 0.0
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(arguments, stdout=out)
        while process.poll() is None:
            with contextlib.suppress(OSError):
                peak = max(peak, memory("VmHWM", process.pid))
            time.sleep(0.02)
        wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode != 0:
            raise SystemExit(f"exit code {process.returncode}: {' '.join(map(str, arguments))}")
        out.seek(0)
        said = out.read()
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, peak), said


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


def main() -> None:
    """Measure folders of several sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[3000, 10_000, 100_000])
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--template", type=Path, help="folder of results whose first test is copied")
    parser.add_argument("--commands", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--drive", type=int, nargs=2, help=argparse.SUPPRESS)  # the process of a driver
    options = parser.parse_args()
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
