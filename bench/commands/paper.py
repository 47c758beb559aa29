"""``bench paper``: tables and claims of the papers, ours next to the published numbers and judged by records."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import require_known
from ..planning.experiment import Run
from ..registry import load_plugins
from . import options
from .run import carry_out, say_done

if TYPE_CHECKING:
    from ..papers.items import Named
    from ..papers.run import PlannedItem
    from ..planning.plan import Plan
    from ..site import Site

ASKED = ("seeds", "trials", "backbone", "dim", "weights", "allow_partial", "plugin", "set")
RUN = [name for name, field in options.FIELDS.items() if field.place.startswith("run.")]

app = typer.Typer(
    help="Tables, figures and claims of the papers, held against records.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
@options.command()
def list_items(*, as_json: bool = False) -> None:
    """List every table and figure that can be made, with its data sets."""
    from ..papers.items import every_item

    rows: list[options.Row] = [
        {
            "name": name,
            "title": named.item.title,
            "asks": named.item.asks,
            "paper": named.paper.title,
            "datasets": list(named.item.datasets),
            "rows": [row.title for row in named.rows],
        }
        for name, named in every_item().items()
    ]
    width = max(len(row["name"]) for row in rows)
    data = [", ".join(row["datasets"]) or "no data" for row in rows]
    lines = (f"{row['name']:<{width}}  {row['title']} [{each}]" for row, each in zip(rows, data))
    options.output(rows, lines, as_json)


@app.command()
@options.command(*ASKED, *RUN, after="results")
def table(
    name: str,
    *,
    dataset: list[str] | None = None,
    hparams: str | None = None,
    data_root: Path | None = None,
    results: Path = options.DEFAULT_RESULTS,
    dry_run: bool = False,
    as_json: bool = False,
    **typed: Any,
) -> None:
    """Run a table or figure of a paper, and print both numbers.

    Trains and tests what it shows; the published values stand next to ours. What is not given is as in the paper;
    --set pins a setting in every row that has it.
    The same command again resumes where the last one stopped. Differences from the paper are listed below the table.

    \b
    bench paper table per/table5 --dataset cub200 --data-root data --weights bn_inception.pth --dry-run
    bench paper table nir/table4 --dataset ndigit --seeds 3

    Options:
        name: A table or figure, such as per/table5 (`bench paper list`).
        dataset (D[,D..]): Data sets, comma separated; the paper's if not given.
        hparams: As for `bench run`; published on the paper's data sets, else default.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    if name == "list":  # as `bench reproduce list`
        list_items(as_json=as_json)
        return
    from ..papers.items import find_item
    from ..papers.run import plan_item

    named = find_item(name)
    launch = Run(**{name: typed.pop(name) for name in RUN}).resolved()
    of_site = {name: typed.pop(name) for name in ("plugin", "weights", "allow_partial")}
    site = options.site_of(results, data_root=data_root, device=launch.device_here, **of_site)
    asked = {**typed, "hparams": hparams}
    datasets = () if named.item.kind == "drawing" else options.names(dataset, named.item.datasets)

    def plan(site: Site) -> list[PlannedItem]:
        return [plan_item(named, each, asked, site) for each in datasets]

    if dry_run:
        from .dry_run import plan_without, print_missing

        planned, site, lacking = plan_without(plan, site)
        _print_plans(planned, site, results, launch)
        print_missing(lacking, site)
        return
    raise typer.Exit(_reproduce(named, plan(site), site, results, launch, as_json))


def _print_plans(planned: list[PlannedItem], site: Site, results: Path, launch: Run) -> None:
    """Print the plan of every row, what differs from the paper, time and disk."""
    from ..papers.tables import build_table
    from ..store.folder import REPRODUCED
    from .dry_run import print_estimate, print_plan

    plans: dict[str, Plan] = {}
    for each in planned:
        empty = build_table(each, {})
        print(f"{empty.heading}: {each.named.item.title}")
        for row in each.rows:
            print(f"[{row.row.title}]" + (f" pinned: {row.plan.pinned}" if row.plan.pinned else ""))
            for plan in row.plans:
                if plan.template.id not in plans:
                    print_plan(plan)
                plans.setdefault(plan.template.id, plan)
        for text in empty.tables[0].notes:
            print(f"* {text}")
        # Without a value of ours, every row of the numbers has a published one.
        count = len(empty.numbers)
        print(f"{count or 'no'} published number{'s' * (count != 1)} to compare with")
    print(f"at most {sum(plan.trainings for plan in plans.values())} trainings; tables go to {results / REPRODUCED}")
    print_estimate(tuple(plans.values()), site, launch)


def _reproduce(named: Named, planned: list[PlannedItem], site: Site, results: Path, launch: Run, as_json: bool) -> int:
    """Train and test what the rows need, or time their steps; print and write; returns the exit code."""
    from rich.console import Console

    from ..engine.jobs import Outcome
    from ..papers.draw import draw_figure, draw_table
    from ..papers.measure import norms, timed
    from ..papers.run import batches_of, what_differs
    from ..papers.tables import build_table, measured, print_table
    from ..report.frame import collect, plain_rows, write_metrics
    from ..report.render import write_documents
    from ..store.folder import REPRODUCED

    console = Console(stderr=True)
    for each in planned:
        # Below the table, too; but by then the time is spent.
        options.say(console, f"{named.name} on {each.dataset}: {what_differs(each)}")

    def write_tables(_: Outcome) -> None:
        write_metrics(collect(site.store), site.store.root)

    outcome: Outcome | None = Outcome()
    if runs := named.item.kind == "runs":
        outcome = carry_out(batches_of(planned), site, results, launch, "skip", console, write_tables)
    if outcome is None:
        return 130
    if runs:
        found = collect(site.store)
        documents = [build_table(each, measured(each, found) | norms(each, found, site)) for each in planned]
    else:
        documents = [build_table(each, timed(each, site)) for each in planned]
    place = Path(REPRODUCED) / named.paper.key / named.item.key
    out = site.store.root / place
    out.mkdir(parents=True, exist_ok=True)
    written = write_documents(documents, out)
    written += draw_figure(named, planned, site, out, partial(console.print, markup=False))
    for each, made in zip(planned, documents):
        written += draw_table(each, made, out)
        if not as_json:
            print_table(made, Console())
    lines = () if documents else [f"* {text}" for text in named.differences]
    options.output([line for each in documents for line in plain_rows(each.numbers)], lines, as_json)
    say_done(outcome, (f"{len(written)} files in {results / place}",), console)
    return 1 if outcome.failures else 0


@app.command()
@options.command()
def claims(
    *,
    results: list[Path] | None = None,
    claims: Path | None = None,
    paper: list[str] | None = None,
    out: Path | None = None,
    plugin: list[Path] | None = None,
    as_json: bool = False,
) -> None:
    """Judge claims of papers by the records of results folders.

    Each holds, is negligible, reversed or undecided.
    Writes claims.md and claims.csv, with the command that makes the records of each claim.

    \b
    bench paper claims --results results/runs
    bench paper claims --results results/runs --results results/cub --paper per --out report
    bench paper claims --claims mine.toml --json

    Options:
        results (DIR): Results folder; repeatable, records are taken together.
        claims (FILE): TOML file of claims; bench's own if not given.
        paper (KEY[,KEY]): Show claims of these papers only, comma separated, such as per,url.
        out (DIR): Where to write; report in the first results folder if not given.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from rich.console import Console

    from ..papers.claims import read_ledger
    from ..papers.judge import judge
    from ..papers.page import to_frame, verdict_lines, write_verdicts
    from ..report.frame import plain_rows

    folders = results or [options.DEFAULT_RESULTS]
    load_plugins(plugin or ())  # their metrics
    site = options.site_of(folders[0], plugin=plugin)
    ledger = read_ledger(claims, site)
    require_known("paper", options.names(paper), ledger.paper)
    stores = [options.open_results(folder) for folder in folders]
    collected, damaged = options.collect_from(*stores)
    # All claims of the file are judged, so that verdicts do not depend on which of them are shown.
    found = judge(ledger, collected, site, stores)
    shown = [each for each in found if not paper or each.claim.paper in options.names(paper)]
    written = write_verdicts(ledger, shown, site, out or folders[0] / "report")
    if not as_json:
        options.say_what_was_left_out(damaged, collected.superseded, Console(stderr=True))
    lines = [*verdict_lines(shown, site), *map(str, written)]
    options.output(plain_rows(to_frame(shown, site)), lines, as_json)
