"""What the commands do, behind the command line."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
from pathlib import Path
from typing import Any

from .errors import UserError, unknown
from .machine import cores, default_workers, pick_device
from .progress import progress_bar
from .registry import Registry
from .store import Store, read_json


def _one_line(error: Any) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _prepare_data(plans: list[Any], context: Any, console: Any) -> None:
    """Decode what the plans will read, so that a damaged image stops the command and not an epoch."""
    from .datasets.errors import DataError

    seen = set()
    for plan in plans:
        name, view = plan.cell[1], plan.template["view"]
        if not view or (name, repr(view)) in seen:
            continue
        seen.add((name, repr(view)))
        try:
            with progress_bar(console) as progress:
                for fold in plan.validate:
                    context.dataset(name, view).prepare(fold, plan.template["folds"], progress)
        except DataError as error:
            raise UserError(str(error)) from None


def run_command(
    settings: dict[str, Any],
    results: Path,
    data_root: Path | None,
    allow_partial: bool,
    workers: int | None,
    device: str,
    plugins: tuple[Path, ...],
    on_existing: str,
    dry_run: bool,
) -> int:
    """``bench run``; returns the exit code."""
    from pydantic import ValidationError
    from rich.console import Console

    from .engine.context import Context
    from .engine.settings import RunSettings
    from .engine.units import build_plans

    console = Console(stderr=True)
    try:
        asked = RunSettings(**settings)
    except ValidationError as error:
        raise UserError(_one_line(error)) from None
    context = Context(
        str(results.resolve()),
        tuple(str(path.resolve()) for path in plugins),
        None if data_root is None else str(data_root.resolve()),
        asked.weights if asked.weights in (None, "none") else str(Path(asked.weights).resolve()),
        allow_partial=allow_partial,
        threads=cores(),
    )
    left_out: list[str] = []
    plans = build_plans(asked, context, left_out)
    for line in left_out:
        console.print(f"left out: {line}", highlight=False, soft_wrap=True)
    requested = frozenset(plan.cell for plan in plans if plan.method in _names(asked, context))
    if dry_run:
        _print_plan(plans, requested, results)
        count = workers or default_workers(pick_device(device))
        _print_estimate(plans, dataclasses.replace(context, device=pick_device(device)), count)
        return 0
    device = pick_device(device)
    count = workers or default_workers(device)
    if count > 4 * (os.cpu_count() or 1):
        raise UserError(f"--workers {count}: this machine has {os.cpu_count()} cores; each worker keeps one busy")

    from .engine.pool import Pool
    from .engine.run import Run, check_existing
    from .progress import Display

    store = context.store
    store.open(asked.protocol, plans[0].version, create=True)
    store.lock()
    if on_existing == "error":
        check_existing([plan for plan in plans if plan.cell in requested], store)
    _prepare_data(plans, context, console)
    context = dataclasses.replace(context, device=device, threads=max(1, cores() // count))

    async def execute(display: Display) -> Any:
        pool = Pool(count)
        try:
            await pool.start()
            loading = asyncio.create_task(asyncio.to_thread(importlib.import_module, "bench.report.write"))
            rerun = on_existing == "rerun"
            outcome = await Run(plans, context, pool, display, rerun, requested).execute()
            await loading
            return outcome
        finally:
            await pool.stop()

    console.print(
        f"[bold]{len(plans)}[/] x (method, data set), up to {sum(plan.trainings for plan in plans)} trainings,"
        f" {count} worker{'s' if count > 1 else ''} on {context.device}; results in {results}",
        highlight=False,
    )
    try:
        with Display(console) as display:
            for plan in plans:
                display.add(plan.cell, plan.trainings * plan.template["optim"]["epochs"])
            outcome = asyncio.run(execute(display))
    except KeyboardInterrupt:
        console.print("\n[bold]Interrupted.[/] Nothing finished is lost: type the same command again to go on.")
        return 130
    from .report.frame import collect, write_metrics
    from .report.tables import print_tables
    from .report.write import write_report

    frame = write_metrics(store)
    written: list[Path] = []
    if not frame.empty:
        written = write_report(store, store.root / "report")
        print_tables(*collect(store), Console())
    _say_what_was_left_out(store, console)
    console.print(
        f"{outcome.trained} trainings done, {outcome.reused} found done; tidy table {results / 'metrics.csv'},"
        f" {len(written)} tables and figures in {results / 'report'}",
        highlight=False,
    )
    for what, reason in outcome.failures:
        console.print(f"[red]failed[/] {what}: {reason}", highlight=False)
    return 1 if outcome.failures else 0


def _names(asked: Any, context: Any) -> set[str]:
    from .engine.settings import expand

    return set(expand(asked.methods, [entry.name for entry in context.methods]))


def _print_plan(plans: list[Any], requested: frozenset[Any], results: Path) -> None:
    for plan in plans:
        role = "" if plan.cell in requested else "  (base, not asked for by name)"
        base = f" on {plan.base.method}" if plan.base else ""
        optim = plan.template["optim"]
        print(
            f"{plan.method}{base} on {plan.cell[1]}: {plan.trials} trials ({plan.hparams}) + {plan.seeds} seeds"
            f"{f', {plan.models} models each' if plan.models > 1 else ''},"
            f" at most {optim['epochs']} epochs each{role}"
        )
        if plan.trials == 0:
            params = {f"method.{key}": value for key, value in plan.template["params"].items()}
            chosen = {f"optim.{key}": optim[key] for key in ("lr", "lr_objective", "weight_decay", "schedule")}
            shown = {**params, **chosen}
            if optim["schedule"] in ("step", "multistep"):
                shown["optim.gamma"] = optim["gamma"]
            if optim["schedule"] == "multistep":
                shown["optim.milestones"] = optim["milestones"]
            if optim["head_epochs"]:
                shown["optim.head_epochs"] = optim["head_epochs"]
            shown |= {f"data.{key}": plan.template[key] for key in ("classes_per_batch", "images_per_class")}
            print("    " + ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in shown.items()))
        for name, bounds in plan.space.items():
            scale = "log" if bounds["log"] else "linear"
            print(f"    {name} in [{bounds['low']:g}, {bounds['high']:g}] {scale}, default {plan.defaults()[name]:g}")
    ranges = plans[0].tests["corruptions"].items()
    named = (f"{kind} (severity {a:g}{f' to {b:g}' if b != a else ''})" for kind, (a, b) in ranges)
    print(f"tested on clean images and under {', '.join(named)}")
    tests = sum(plan.seeds for plan in plans)
    print(f"at most {sum(plan.trainings for plan in plans)} trainings, {tests} tests; results in {results}")


def _print_estimate(plans: list[Any], context: Any, workers: int) -> None:
    """Time and disk, from a few timed steps on this machine."""
    from .datasets.errors import DataError
    from .engine.estimate import estimate, readable

    seconds, disk, decode = 0.0, {}, {}
    for plan in plans:
        try:
            found = estimate(plan, context)
        except DataError as error:
            raise UserError(str(error)) from None
        mine = found.total(plan)
        seconds += mine
        key = (plan.cell[1], repr(plan.template["view"]))
        disk[key], decode[key] = found.cache_bytes, found.decode
        print(
            f"{plan.method} on {plan.cell[1]}: {1000 * found.step:.0f} ms per step, {readable(found.training)} per"
            f" training, {readable(mine)} in one process"
        )
    total = sum(decode.values()) / max(1, cores()) + seconds / workers
    print(
        f"about {readable(total)} at most with {workers} workers on {context.device}, from timed steps; early stopping"
    )
    print("shortens it, results that are there already are not done again")
    if sum(disk.values()):
        from .datasets.pixel_cache import cache_folder

        print(f"decoded images: {sum(disk.values()) / 2**30:.1f} GiB in {cache_folder()} (BENCH_CACHE moves it)")


def test_command(methods: tuple[str, ...], plugins: tuple[Path, ...]) -> list[dict[str, Any]]:
    """``bench test``: every check of every method; returns one row each."""
    from .engine.settings import expand
    from .testing import CHECKS

    registry = Registry("methods", plugins)
    rows = []
    for name in expand(methods, [entry.name for entry in registry]):
        cls = registry.get(name).load()
        for label, run in CHECKS.items():
            reason = ""
            try:
                run(cls)
            except Exception as error:  # whatever a method raises is what the suite reports
                reason = f"{type(error).__name__}: {error}"
            rows.append({"method": name, "check": label, "passed": not reason, "reason": reason})
    return rows


def status_rows(results: Path) -> list[dict[str, Any]]:
    """Rows of ``bench status``, one per (protocol, data set, method)."""
    store = Store(results)
    _open_for_reading(store)
    rows = []
    for folder in sorted(path for path in results.glob("*/*/*") if path.is_dir()):
        trials = [read_json(path) for path in sorted(folder.glob("study-*/trial-*.json"))]
        units = {kind: [p for p in folder.glob(f"{kind}-*") if p.is_dir()] for kind in ("train", "test")}
        if not trials and not any(units.values()):
            continue
        tuned = {unit for trial in trials if trial for unit in trial["units"]}
        finished = {p.name.removeprefix("train-") for p in units["train"] if (p / "record.json").exists()}
        protocol, dataset, method = folder.relative_to(results).parts
        rows.append(
            {
                "protocol": protocol,
                "dataset": dataset,
                "method": method,
                "trials": len(trials),
                "failed_trials": sum(trial is not None and trial["state"] == "failed" for trial in trials),
                "trained": len(finished - tuned),
                "tested": sum((p / "record.json").exists() for p in units["test"]),
                "unfinished": sum((p / "checkpoint.pt").exists() for p in units["train"]),
            }
        )
    return rows


def _open_for_reading(store: Store) -> None:
    from .protocols import PROTOCOLS, get_protocol

    for name in PROTOCOLS:
        store.open(name, get_protocol(name).VERSION, create=False)


def _say_what_was_left_out(store: Store, console: Any) -> None:
    from .report.frame import superseded

    older, damaged = superseded(store), store.damaged("test")
    if older:
        results = "result" if older == 1 else "results"
        console.print(
            f"{older} older {results} of the same setting (other code or other tests) left out: the latest stands",
            highlight=False,
        )
    if damaged:
        console.print(
            f"[red]{len(damaged)} damaged record(s) left out[/], such as {damaged[0]}; run the command again to mend",
            highlight=False,
        )


def report_command(results: Path, out: Path | None, quiet: bool) -> list[Path]:
    """``bench report``; returns the files written."""
    from rich.console import Console

    from .report.frame import collect, write_metrics
    from .report.tables import print_tables
    from .report.write import write_report

    store = Store(results)
    _open_for_reading(store)
    frame = write_metrics(store)
    if frame.empty:
        raise UserError(f"{results} has no finished test yet; `bench status` says what there is")
    written = write_report(store, out or results / "report")
    _say_what_was_left_out(store, Console(stderr=True))
    if not quiet:
        print_tables(*collect(store), Console())
        for path in written:
            print(path)
    return written


def compare_command(names: tuple[str, ...], results: Path, quiet: bool) -> list[dict[str, Any]]:
    """``bench compare`` of the methods of a results folder; returns one row per pair and metric.

    Args:
        names: Methods, the first compared with each of the others; none = every two.
        results: Results folder.
        quiet: Print nothing.
    """
    from rich.console import Console

    from .report.frame import collect, plain_rows
    from .report.tables import paired_methods, print_paired

    store = Store(results)
    _open_for_reading(store)
    frame, roles = collect(store)
    if frame.empty:
        raise UserError(f"{results} has no finished test yet; `bench status` says what there is")
    held = set(frame["method"])
    for name in names:
        if name not in held:
            raise unknown("method of these results", name, held)
    lines = paired_methods(frame, roles, names)
    if lines.empty:
        raise UserError(f"{results} has no two of these settings with a common seed on one data set")
    if not quiet:
        _say_what_was_left_out(store, Console(stderr=True))
        print_paired(lines, Console())
    return plain_rows(lines)
