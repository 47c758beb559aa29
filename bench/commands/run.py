"""``bench run``: tune, train and test methods on data sets; write tables and figures."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .. import interrupt
from ..errors import LINE, UnitFailed, UserError
from ..planning.experiment import EXISTING, FILES, Experiment, Run, read_experiment
from . import options

if TYPE_CHECKING:
    from rich.console import Console

    from ..engine.jobs import Outcome
    from ..engine.pool import Pool
    from ..planning.plan import Plan
    from ..site import Site
    from ..store.folder import Damage, Store
    from ..store.records import Columns


OnExisting = Literal["skip", "rerun", "error"]
"""Treatment of results that exist: reuse them (``skip``), make them again (``rerun``) or refuse (``error``)."""


@options.takes(*options.FIELDS, after="data_root")
def run(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="File of an experiment, as --save writes it; options override it.",
            metavar="FILE.toml",
            rich_help_panel=FILES,
        ),
    ] = None,
    data_root: options.DataRoot = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write these options as the file of an experiment, then go on; with --dry-run, stop after the plan.",
            metavar="FILE.toml",
            rich_help_panel=FILES,
        ),
    ] = None,
    dry_run: options.DryRun = False,
    results: options.Results = options.DEFAULT_RESULTS,
    on_existing: Annotated[
        OnExisting, typer.Option(help="Results that exist: reuse, redo, or refuse.", rich_help_panel=EXISTING)
    ] = "skip",
    help_all: options.HelpAll = False,
    **typed: object,
) -> None:
    """Tune, train and test methods on data sets.

    Writes tables and figures. The same command again resumes where the last one stopped: finished trainings and tests
    are never done twice.

    \b
    bench run --method dul_cls --dataset ndigit --seeds 5
    bench run --method arcface,pfe,scf --dataset cub200 --data-root data --dry-run
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    table = {} if file is None else read_experiment(file)
    experiment = Experiment.filled(table, options.typed_fields(ctx), str(file or ""))
    site = options.site_of(
        results,
        plugin=[Path(name) for name in experiment.plugins],
        data_root=data_root,
        weights=experiment.weights,
        allow_partial=experiment.allow_partial,
        strict=experiment.run.strict,
    )
    raise typer.Exit(run_experiment(experiment, site, results, on_existing, dry_run=dry_run, save=save))


def run_experiment(
    experiment: Experiment,
    site: Site,
    results: Path,
    on_existing: OnExisting,
    *,
    dry_run: bool,
    save: Path | None = None,
    told: Collection[str] = (),
) -> int:
    """Carry out an experiment, or print its plan; ``told`` are lines that the user has been told already.

    Returns:
        Exit code: 0 if all is done, 1 if something failed, 130 if it was interrupted.
    """
    from rich.console import Console

    from ..planning.plan import build_plans
    from ..store.files import write_atomic

    console = Console(stderr=True)
    plan = partial(build_plans, experiment)
    lacking: tuple[str, ...] = ()
    if dry_run:
        from .dry_run import plan_without, print_dry_run, print_missing

        built, site, lacking = plan_without(plan, site)
    else:
        built = plan(site)
    for line in built.lines:
        if line not in told:
            options.say(console, line)
    if save is not None:
        write_atomic(save, experiment.to_toml().encode())
    launch = experiment.run.resolved()
    if experiment.frozen and launch.device == "cuda" and launch.workers is None and launch.gpus_per_worker is None:
        options.say(
            console, "heads leave a GPU idle most of the time: --gpus-per-worker 0.12 trains eight at once on each"
        )
    if dry_run:
        print_dry_run(built.plans, site, results, launch)
        print_missing(lacking, site)
        return 0

    write_tables = partial(_summarise, site=site, results=results, console=console)
    try:
        outcome = carry_out((built.plans,), site, results, launch, on_existing, console, write_tables, (experiment,))
    except ImagesLeftOut:  # the plan is of other data now
        site.opened.clear()
        return run_experiment(experiment, site, results, on_existing, dry_run=False, told=built.lines)
    if outcome is None:
        return 130
    return 1 if outcome.failures else 0


def carry_out(
    batches: Sequence[tuple[Plan, ...]],
    site: Site,
    results: Path,
    launch: Run,
    on_existing: OnExisting,
    console: Console,
    write_tables: Callable[[Outcome], None],
    experiments: Iterable[Experiment] = (),
) -> Outcome | None:
    """Train and test everything that is planned, one batch after the other in the same worker processes.

    Returns:
        Failures, and counts of trainings that were done or reused; None if the run was interrupted.
    """
    import asyncio

    from ..engine.pool import workers_of
    from ..store.claims import Claims
    from ..store.files import write_atomic
    from ..store.remembered import Remembered

    plans = tuple(plan for batch in batches for plan in batch)
    store = site.store
    store.remembered = Remembered(store.root)
    protocol, version = plans[0].cell.protocol, plans[0].template.protocol_version
    store.open(protocol, version, create=True)
    rerun = on_existing == "rerun"
    with closing(Claims(store.root)) as claims:
        # Not SIGINT, which a background job of a script ignores.
        claims.enter(rerun, lost=lambda: os.kill(os.getpid(), signal.SIGTERM))
        if on_existing == "error":
            _check_none([plan for plan in plans if plan.requested], store)
        if launch.launcher == "local":  # on a cluster, every node does so
            try:
                _prepare_data(plans, site, console)
            except ImagesLeftOut:
                _mark(store, protocol, version, console)
                raise
        _mark(store, protocol, version, console)
        if site.data_root is not None:
            write_atomic(store.root / options.DATA_ROOT, site.data_root.encode())
        for experiment in experiments:
            store.keep_experiment(experiment.to_toml(without=("run",)))
        pool, there, workers = workers_of(launch, site, plans, claims.driver, partial(options.say, console))
        trainings = sum(plan.trainings for plan in plans)
        done = f"{len(plans)} x (method, data set), up to {trainings} trainings, {workers}"
        options.say(console, f"{done}; results in {results}")
        for line in dict.fromkeys(_network(plan, site) for plan in plans):
            options.say(console, line)
        outcome: Outcome | None = None
        try:
            outcome = _execute(batches, pool, there, console, rerun)
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("\n[bold]Interrupted.[/] Ending the workers.")
        if outcome is None:
            console.print("Nothing finished is lost: run the same command again to resume.", soft_wrap=True)
            return None
        with claims.on_tables():
            write_tables(outcome)
    return outcome


def _check_none(plans: Iterable[Plan], store: Store) -> None:
    """Refuse plans that have results at the same setting already, as ``--on-existing error`` asks."""
    tested = [(record.cell, record.columns) for record in store.tests()]
    for plan in plans:
        if any(cell == plan.cell and _is_of(columns, plan) for cell, columns in tested):
            raise UserError(
                f"{plan.cell.method} on {plan.cell.dataset} has results in {store.root} already;"
                " use --on-existing skip (reuse them) or rerun (do them again)"
            )


def _is_of(columns: Columns, plan: Plan) -> bool:
    names = ("preset", "hparams", "trials", "replicate", "pinned", "fidelity", "backbone")
    template = plan.template
    mine = (plan.preset, plan.hparams, plan.trials, plan.replicate, plan.pinned, template.form, template.backbone)
    dims = (template.dim * plan.seeds,) if plan.ensemble else (template.dim, template.dim * plan.models)
    of_base = columns.base == (plan.base.cell.method if plan.base else "") and columns.seed in plan.replicates
    return of_base and mine == tuple(getattr(columns, name) for name in names) and columns.dim in dims


def _network(plan: Plan, site: Site) -> str:
    """Data set, network, where its weights come from, and the size of its images, in words."""
    from ..methods.backbones.registry import GIVEN

    template = plan.template
    if template.backbone == GIVEN:
        return f"{plan.cell.dataset}: features that were given"
    weights = "random weights"
    if template.weights is not None:
        weights = "pretrained" if site.weights in (None, "download") else Path(site.weights).name
    frozen = ", frozen" if template.frozen else ""
    photographs = template.photographs
    sizes = [photographs["image_size"]] if photographs else site.dataset(plan.cell.dataset).image_size
    size = " x ".join(str(side) for side in dict.fromkeys(sizes)) + " px"
    return f"{plan.cell.dataset}: {template.backbone}, {weights}{frozen}, images of {size}"


def _mark(store: Store, protocol: str, version: int, console: Console) -> None:
    """Write into the marker of the folder what it is going to have; a damaged marker is named and made again."""
    from ..store.files import MARKER

    def set_aside(damage: Damage) -> None:
        if damage.path.name == MARKER:
            store.set_aside(damage)
            options.say(console, f"{damage.reason}; made again")

    store.on_damage = set_aside
    store.mark(protocol, version)


class ImagesLeftOut(Exception):
    """Damaged images of a folder were written to the list of those that are left out."""


def _prepare_data(plans: tuple[Plan, ...], site: Site, console: Console) -> None:
    """Decode what the plans will read, so that a damaged image stops the command and not an epoch.

    Raises:
        ImagesLeftOut: If a few images of a folder are damaged, which are in the list of the results folder now.
    """
    from ..datasets.damage import FILE, DamagedImages, check_few, skipped_table
    from ..datasets.folder import Folder
    from ..datasets.releases import PhotoDataset
    from ..progress import progress_bar
    from ..store.files import write_atomic

    read = {(plan.cell.dataset, repr(plan.view)): plan for plan in plans if plan.template.view}
    for plan in read.values():
        dataset = site.dataset(plan.cell.dataset, plan.view)
        assert isinstance(dataset, PhotoDataset)
        try:
            with progress_bar(console) as progress:
                for fold in plan.validate_folds:
                    dataset.prepare(fold, plan.template.folds, progress)
        except DamagedImages as error:
            if site.strict or not isinstance(dataset, Folder):
                raise
            check_few(len(error.damaged), len(dataset.listing.ids), str(error))
            file = site.store.root / FILE
            write_atomic(file, skipped_table(dataset.listing.folder, error.damaged, file))
            raise ImagesLeftOut from None


def _execute(batches: Sequence[tuple[Plan, ...]], pool: Pool, site: Site, console: Console, rerun: bool) -> Outcome:
    import asyncio
    import importlib

    from ..engine.jobs import Outcome
    from ..engine.scheduler import Scheduler
    from ..progress import Display

    async def execute() -> Outcome:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        total = Outcome()
        with interrupt.cancelling(lambda: loop.call_soon_threadsafe(task.cancel)):
            try:
                await pool.start()
                loading = asyncio.create_task(asyncio.to_thread(importlib.import_module, "bench.report.write"))
                for plans in batches:
                    with Display(console) as display:
                        pool.heard = display.working
                        for plan in plans:
                            display.add(plan.cell, plan.trainings * plan.epochs, plan.tests)
                        total.add(await Scheduler(plans, site, pool, display, rerun).execute())
                await loading
                return total
            except asyncio.CancelledError:
                if pool.lost:
                    raise UnitFailed(pool.lost) from None
                raise
            finally:
                await pool.stop()

    return asyncio.run(execute())


def _summarise(outcome: Outcome, site: Site, results: Path, console: Console) -> None:
    """Write tables and figures, and say what was done and what failed."""
    from rich.console import Console as Terminal

    from ..report.frame import write_metrics
    from ..report.terminal import print_tables
    from ..report.write import Judged, write_report

    store = site.store
    collected, damaged = options.collect_from(store)
    metrics = write_metrics(collected, store.root)
    places: tuple[str, ...] = ("no test finished, so there is no table",)
    if metrics is not None or collected.splits:
        judged, missing = Judged(store, collected), lambda line: options.say(console, f"not drawn: {line}")
        written = write_report(judged, store.root / "report", missing, site, damaged)
        print_tables(judged, Terminal())
        values = (f"{results / 'metrics.csv'}  every value",) if metrics is not None else ()
        places = (*options.report_places(written, results / "report"), *values)
    store.keep_in_mind()
    options.say_what_was_left_out(damaged, collected.superseded, console)
    for damage in set(damaged):
        store.set_aside(damage)
    console.print(f"{outcome.trained} trainings done, {outcome.reused} already done", highlight=False, markup=False)
    for place in places:
        console.print(place, highlight=False, markup=False, soft_wrap=True)
    for failure in outcome.failures:
        options.say(console, f"failed {failure.line(LINE - len('failed '))}", "red")
