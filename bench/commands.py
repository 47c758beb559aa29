"""What the commands do, behind the command line."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from .errors import UserError, unknown
from .registry import Registry
from .store import Store, read_json


def _one_line(error: Any) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def pick_device(device: str) -> str:
    """``cpu`` or ``cuda``.

    Raises:
        UserError: If cuda is asked for and not there.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; use --device cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def default_workers(device: str) -> int:
    """One process per core this one may run on; one alone on a GPU, which they would have to share."""
    if device == "cuda":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_command(
    settings: dict[str, Any],
    results: Path,
    data_root: Path | None,
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
    from .engine.units import RunSettings, build_plans

    console = Console(stderr=True)
    try:
        asked = RunSettings(**settings)
    except ValidationError as error:
        raise UserError(_one_line(error)) from None
    context = Context(
        str(results.resolve()),
        tuple(str(path.resolve()) for path in plugins),
        None if data_root is None else str(data_root.resolve()),
        asked.weights,
    )
    plans = build_plans(asked, context)
    requested = frozenset(plan.cell for plan in plans if plan.method in _names(asked, context))
    if dry_run:
        _print_plan(plans, requested, asked.seeds, results)
        return 0
    context = Context(**{**context.as_dict(), "device": pick_device(device)})

    from .engine.pool import Pool
    from .engine.run import Run, check_existing
    from .progress import Display

    store = context.store
    store.open(asked.protocol, plans[0].version, create=True)
    store.lock()
    if on_existing == "error":
        check_existing([plan for plan in plans if plan.cell in requested], store)
    count = workers or default_workers(context.device)
    if count > 4 * (os.cpu_count() or 1):
        raise UserError(f"--workers {count}: this machine has {os.cpu_count()} cores; each worker keeps one busy")

    async def execute(display: Display) -> Any:
        pool = Pool(count)
        try:
            await pool.start()
            loading = asyncio.create_task(asyncio.to_thread(importlib.import_module, "bench.report.write"))
            rerun = on_existing == "rerun"
            outcome = await Run(plans, asked.seeds, context, pool, display, rerun, requested).execute()
            await loading
            return outcome
        finally:
            await pool.stop()

    console.print(
        f"[bold]{len(plans)}[/] x (method, data set), up to {_trainings(plans, asked.seeds)} trainings,"
        f" {count} worker{'s' if count > 1 else ''} on {context.device}; results in {results}",
        highlight=False,
    )
    try:
        with Display(console) as display:
            for plan in plans:
                display.add(plan.cell, (plan.trials + asked.seeds) * plan.template["optim"]["epochs"])
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
    from .engine.units import expand

    return set(expand(asked.methods, [entry.name for entry in context.methods]))


def _trainings(plans: list[Any], seeds: int) -> int:
    return sum(plan.trials + seeds for plan in plans)


def _print_plan(plans: list[Any], requested: frozenset[Any], seeds: int, results: Path) -> None:
    for plan in plans:
        role = "" if plan.cell in requested else "  (base, not asked for by name)"
        base = f" on {plan.base.method}" if plan.base else ""
        optim = plan.template["optim"]
        print(
            f"{plan.method}{base} on {plan.cell[1]}: {plan.trials} trials ({plan.hparams}) + {seeds} seeds,"
            f" at most {optim['epochs']} epochs each{role}"
        )
        for name, bounds in plan.space.items():
            scale = "log" if bounds["log"] else "linear"
            print(f"    {name} in [{bounds['low']:g}, {bounds['high']:g}] {scale}, default {plan.defaults()[name]:g}")
    print(f"at most {_trainings(plans, seeds)} trainings, {len(plans) * seeds} tests; results in {results}")


def list_rows(kind: str, plugins: tuple[Path, ...], check: bool) -> list[dict[str, Any]]:
    """Rows of ``bench list``: at least ``name`` and ``summary``."""
    if kind == "protocols":
        from .protocols import reality_check

        return [
            {
                "name": reality_check.NAME,
                "summary": reality_check.SUMMARY,
                "presets": list(reality_check.PRESETS),
            }
        ]
    if kind == "scorers":
        from .methods.scorers import SCORERS

        return [{"name": spec.name, "summary": spec.formula} for spec in SCORERS.values()]
    registry = Registry(kind, plugins)
    rows = []
    for entry in [*registry, *registry.broken]:
        error = entry.broken
        if check and not error:
            try:
                entry.load()
            except UserError as problem:
                error = str(problem)
        rows.append({"name": entry.name, "summary": entry.summary, "origin": entry.origin, "error": error})
    return rows


def show_entry(name: str, plugins: tuple[Path, ...]) -> tuple[dict[str, Any], str]:
    """What ``bench show`` prints: as a value and as text."""
    methods, datasets = Registry("methods", plugins), Registry("datasets", plugins)
    if name in methods.entries or name in {entry.name for entry in methods.broken}:
        return _show_method(methods.get(name).load())
    if name in datasets.entries or name in {entry.name for entry in datasets.broken}:
        return _show_dataset(datasets.get(name).load())
    from .protocols import reality_check

    if name == reality_check.NAME:
        value: dict[str, Any] = {
            "name": name,
            "summary": reality_check.SUMMARY,
            "version": reality_check.VERSION,
            "presets": {key: preset.as_dict() for key, preset in reality_check.PRESETS.items()},
        }
        lines = [name, "", (reality_check.__doc__ or "").strip(), ""]
        for key, preset in value["presets"].items():
            lines += [f"preset {key}:"] + [f"  {k} = {v}" for k, v in preset.items()]
        return value, "\n".join(lines)
    known = [*methods.entries, *datasets.entries, reality_check.NAME]
    raise unknown("name", name, known)


def _show_method(cls: Any) -> tuple[dict[str, Any], str]:
    parameters = {}
    for key, field in cls.Params.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        parameters[key] = {"default": field.default, "search": extra.get("search")}
    document = (sys.modules[cls.__module__].__doc__ or cls.__doc__ or "").strip()
    paper = None if cls.paper is None else vars(cls.paper)
    value = {
        "name": cls.name,
        "kind": "method",
        "summary": cls.summary,
        "document": document,
        "paper": paper,
        "parameters": parameters,
        "deviations": list(cls.deviations),
        "scorer": cls.scorer,
        "on_base": cls.on_base,
        "trains": list(cls.trains),
        "default_confidence": cls.default_confidence,
        "fidelities": list(cls.fidelities),
        "released_behaviour": list(cls.released_behaviour),
        "published": _published(cls.name),
    }
    lines = [f"{cls.name}: {cls.summary}", "", document, ""]
    if paper:
        arxiv = f", arXiv:{paper['arxiv']}" if paper["arxiv"] else ""
        equations = f", {paper['equations']}" if paper["equations"] else ""
        lines.append(f"paper       {paper['title']} ({paper['venue']}{arxiv}{equations})")
    lines += [
        f"scorer      {cls.scorer}",
        f"confidence  {cls.default_confidence}",
        f"trains      {', '.join(cls.trains)}" + (" on a trained base (--base)" if cls.on_base else ""),
        f"fidelity    {', '.join(cls.fidelities)}",
        "parameters" + ("" if parameters else "  none"),
    ]
    for key, info in parameters.items():
        search = info["search"]
        scale = " log" if search and search["log"] else ""
        tuned = f", tuned in [{search['low']:g}, {search['high']:g}]{scale}" if search else ""
        lines.append(f"  method.{key} = {info['default']}{tuned}")
    if cls.deviations:
        lines += ["differs from the paper"] + [f"  - {text}" for text in cls.deviations]
    if cls.released_behaviour:
        lines += ["with --fidelity released, as in the public code"] + [f"  - {t}" for t in cls.released_behaviour]
    if value["published"]:
        lines += ["published settings (PER)"]
        lines += [
            f"  {dataset}: {', '.join(f'{k}={v:g}' for k, v in found.items())}"
            for dataset, found in value["published"].items()
        ]
    return value, "\n".join(lines)


def _published(method: str) -> dict[str, dict[str, float]]:
    """Best hyper-parameters that PER published for a method, by data set and configuration."""
    import csv
    from importlib.resources import files

    table = files("bench.results.published").joinpath("pe_revisited_best_hparams.csv").read_text()
    found: dict[str, dict[str, float]] = {}
    hyphened = {"scf": "scl"}.get(method, method).replace("_", "-")
    bases = [entry.name for entry in Registry("methods")]
    mains = {hyphened, *(f"{hyphened}{part}-{base}" for part in ("", "-cont") for base in bases)}
    for row in csv.DictReader(table.splitlines()):
        if row["variant"] in mains:
            with contextlib.suppress(ValueError):
                found.setdefault(f"{row['dataset']} ({row['variant']})", {})[row["hparam"]] = float(row["value"])
    return found


def test_command(methods: tuple[str, ...], plugins: tuple[Path, ...]) -> list[dict[str, Any]]:
    """``bench test``: every check of every method; returns one row each."""
    from .engine.units import expand
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


def _show_dataset(cls: Any) -> tuple[dict[str, Any], str]:
    from dataclasses import asdict

    from .protocols.recipes import get_recipe

    document = (cls.__doc__ or "").strip()
    recipe = asdict(get_recipe(cls.name))
    value = {
        "name": cls.name,
        "kind": "dataset",
        "summary": cls.summary,
        "document": document,
        "recipe": recipe,
    }
    lines = [f"{cls.name}: {cls.summary}", "", document, "", "recipe"]
    lines += [f"  {key} = {item}" for key, item in recipe.items()]
    return value, "\n".join(lines)


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
        tuned = {trial["unit"] for trial in trials if trial}
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
    from .protocols import reality_check

    store.open(reality_check.NAME, reality_check.VERSION, create=False)


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
