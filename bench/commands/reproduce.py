"""``bench reproduce``: the tables and figures of the papers, ours next to the published numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import LINE, printable
from .options import (
    DEFAULT_RESULTS,
    Address,
    AllowPartial,
    DataRoot,
    Device,
    GpusPerWorker,
    Json,
    Launcher,
    LauncherOption,
    Plugins,
    Results,
    Stall,
    TrainingDevice,
    Workers,
    names,
    print_json,
    site_of,
)
from .run import OnExisting, carry_out

if TYPE_CHECKING:
    from rich.console import Console

    from ..engine.launch import Launch
    from ..engine.outcome import Outcome
    from ..planning.plan import Plan
    from ..reproduce.items import Named
    from ..reproduce.rows import Options, PlannedItem
    from ..reproduce.table import Table
    from ..site import Site

FOLDER = "reproduce"
"""Folder of the tables, inside the results folder."""


def reproduce(
    name: Annotated[str, typer.Argument(help="A table or figure, such as per/table5, or `list`.")],
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="Data sets, comma separated; the paper's if not given.", metavar="D[,D..]"),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Replicates; the paper's if not given.")] = None,
    hparams: Annotated[
        str | None,
        typer.Option(
            help="published, default, tuned, or a JSON/TOML file; published on the paper's data sets, default on"
            " others."
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Tuning budget per row, with --hparams tuned.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Another backbone than the paper's.", metavar="NAME")] = None,
    dim: Annotated[int | None, typer.Option(min=2, help="Another embedding size than the paper's.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="Backbone weights to start from, as for `bench run`.", metavar="FILE")
    ] = None,
    data_root: DataRoot = None,
    allow_partial: AllowPartial = False,
    results: Results = DEFAULT_RESULTS,
    workers: Workers = None,
    device: TrainingDevice = Device.auto,
    gpus_per_worker: GpusPerWorker = None,
    stall: Stall = None,
    launcher: LauncherOption = Launcher.local,
    address: Address = None,
    plugin: Plugins = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Pin a setting in every row that has it, such as optim.epochs=10; repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Train and test what a table or figure of a paper shows, and print our numbers next to the published ones.

    The same command again resumes where the last one stopped. Differences from the paper are listed below the table.

    \b
    bench reproduce list
    bench reproduce per/table5 --dataset cub200 --data-root data --weights bn_inception.pth --dry-run
    bench reproduce nir/table4 --dataset ndigit --seeds 3
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    if name == "list":
        _list(as_json)
        return
    from ..engine.launch import Launch
    from ..reproduce.items import find_item
    from ..reproduce.rows import Options

    named = find_item(name)
    launch = Launch(launcher.value, address, workers, device.value, gpus_per_worker, stall).resolved()
    site = site_of(
        results,
        plugin=plugin,
        data_root=data_root,
        weights=weights,
        allow_partial=allow_partial,
        device=launch.device_here,
    )
    if named.item.kind == "drawing":
        raise typer.Exit(_drawing(named, results, dry_run))
    options = Options(seeds=seeds, hparams=hparams, trials=trials, backbone=backbone, dim=dim, pins=tuple(set_ or ()))
    planned = _plan(named, names(dataset, named.item.datasets), options, site)
    if dry_run:
        _print_plans(planned, site, results, launch)
        return
    raise typer.Exit(_reproduce(planned, site, results, launch, as_json))


def _list(as_json: bool) -> None:
    """Print every table and figure."""
    from ..reproduce.items import every_item

    items = every_item()
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "title": named.item.title,
                    "asks": named.item.asks,
                    "paper": named.paper.title,
                    "datasets": list(named.item.datasets),
                    "rows": [row.title for row in named.rows],
                }
                for name, named in items.items()
            ]
        )
        return
    width = max(map(len, items))
    for name, named in items.items():
        typer.echo(f"{name:<{width}}  {named.item.title} [{', '.join(named.item.datasets) or 'no data'}]")


def _plan(named: Named, datasets: tuple[str, ...], options: Options, site: Site) -> list[PlannedItem]:
    from ..reproduce.rows import plan_item

    return [plan_item(named, dataset, options, site) for dataset in datasets]


def _print_plans(planned: list[PlannedItem], site: Site, results: Path, launch: Launch) -> None:
    """Print the plan of every row, what differs from the paper, time and disk."""
    from ..reproduce.table import build_table
    from .dry_run import print_estimate, print_plan

    plans: dict[str, Plan] = {}
    for each in planned:
        table = build_table(each, {})
        print(f"{each.named.name} on {each.dataset}: {each.named.item.title}")
        for row in each.rows:
            print(f"[{row.row.title}]" + (f" pinned: {row.plan.pinned}" if row.plan.pinned else ""))
            for plan in row.plans:
                if plan.template.id not in plans:
                    print_plan(plan)
                plans.setdefault(plan.template.id, plan)
        for text in table.remarks:
            print(f"* {text}")
        numbers = sum(cell.published is not None for line in table.lines for cell in line.cells)
        print(f"{numbers} published numbers to compare with" if numbers else "no published number to compare with")
    print(f"at most {sum(plan.trainings for plan in plans.values())} trainings; tables go to {results / FOLDER}")
    print_estimate(tuple(plans.values()), site, launch)


def _reproduce(planned: list[PlannedItem], site: Site, results: Path, launch: Launch, as_json: bool) -> int:
    """Run, print and write; returns the exit code."""
    from rich.console import Console

    from ..report.frame import plain_rows
    from ..reproduce.draw import draw_results, draw_table
    from ..reproduce.table import what_differs
    from ..reproduce.write import print_table, to_frame, write_table

    named, console = planned[0].named, Console(stderr=True)
    for each in planned:
        # Below the table, too; but by then the time is spent.
        text = printable(f"{named.name} on {each.dataset}: {what_differs(each)}")
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    outcome, tables = _tables(planned, site, results, launch, console)
    if outcome is None:
        return 130
    out = site.store.root / FOLDER / named.paper.key / named.item.key
    written, shown = draw_results(planned, site, out, partial(console.print, markup=False)), []
    for table in tables:
        written += [*write_table(table, out), *draw_table(table, out)]
        shown += plain_rows(to_frame(table))
        if not as_json:
            print_table(table, Console())
    if as_json:
        print_json(shown)
    where = results / FOLDER / named.paper.key / named.item.key
    console.print(
        f"{outcome.trained} trainings done, {outcome.reused} found done; {len(written)} files in {where}",
        highlight=False,
        markup=False,
    )
    for failure in outcome.failures:
        line = failure.line(LINE - len("failed "))
        console.print(f"failed {printable(line)}", style="red", highlight=False, markup=False, soft_wrap=True)
    return 1 if outcome.failures else 0


def _tables(
    planned: list[PlannedItem], site: Site, results: Path, launch: Launch, console: Console
) -> tuple[Outcome | None, list[Table]]:
    """Train and test what the rows need, or time their steps, and make the tables."""
    from ..engine.outcome import Outcome
    from ..report.frame import collect, write_metrics
    from ..reproduce.cells import measured
    from ..reproduce.norms import norms
    from ..reproduce.rows import batches_of
    from ..reproduce.table import build_table
    from ..reproduce.timings import timed

    if planned[0].named.item.kind == "timings":
        return Outcome(), [build_table(each, timed(each, site)) for each in planned]

    def write_tables(_: Outcome) -> None:
        write_metrics(collect(site.store), site.store.root)

    batches = batches_of(planned)
    outcome = carry_out(batches, site, results, launch, OnExisting.skip, console, write_tables)
    if outcome is None:
        return None, []
    collected = collect(site.store)
    return outcome, [build_table(each, measured(each, collected) | norms(each, collected, site)) for each in planned]


def _drawing(named: Named, results: Path, dry_run: bool) -> int:
    """Draw a figure that needs no data; returns the exit code."""
    from ..reproduce.draw import draw_theory

    out = results / FOLDER / named.paper.key / named.item.key
    print(f"{named.name}: {named.item.title}")
    if dry_run:
        print(f"nothing is trained; figures go to {out}")
        return 0
    for path in draw_theory(named, out):
        print(path)
    for text in named.differences:
        print(f"* {text}")
    return 0
