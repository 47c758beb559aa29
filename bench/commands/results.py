"""``bench status``, ``bench report`` and ``bench compare``: what a results folder contains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer

from ..errors import UnknownName, UserError, printable
from ..registry import load_plugins
from ..site import Site
from . import options

if TYPE_CHECKING:
    from ..report.frame import Results as Collected
    from ..store.folder import Damage, Store
    from ..store.specs import Kind

KINDS: tuple[Kind, Kind] = ("train", "test")
"""Kinds of units that a status counts."""


@options.command()
def status(
    *,
    results: Path = options.DEFAULT_RESULTS,
    check: bool = False,
    archive: Path | None = None,
    as_json: bool = False,
) -> None:
    """Count the finished trials, trainings and tests.

    Names the processes at work in the results folder, too.
    There is one line per protocol, data set and method. Damaged files are not counted; the command that made such a
    file makes it again.

    \b
    bench status --results results/runs
    bench status --results results/runs --check
    bench status --results results/runs --archive ndigit_jane_doe.tar.xz

    Options:
        check: Verify every file; name the damaged ones, with exit code 1.
        archive (FILE): Write all records to this file, NAME.tar.xz, to contribute.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    if archive is not None:
        archive_results(results, archive)
        return
    if check:
        raise typer.Exit(_check(results, as_json))
    rows = status_rows(options.open_results(results))
    lines = chain(*map(_lines, rows)) if rows else (f"{results}: no trial, training or test has begun yet",)
    options.output(rows, lines, as_json)


def _lines(row: options.Row) -> Iterator[str]:
    """What ``bench status`` says of a protocol, data set and method."""
    yield (
        f"{row['protocol']}  {row['dataset']:<14} {row['method']:<20} {row['trials']} trials"
        f" ({row['failed_trials']} failed), {row['trained']} trained, {row['tested']} tested,"
        f" {row['unfinished']} unfinished, {len(row['failed'])} failed"
    )
    yield from (f"    {unit}: {reason}" for unit, reason in row["failed"].items())
    yield from (f"    {busy['unit']}: process {busy['pid']} on {busy['host']}" for busy in row["running"])
    if len(row["codes"]) > 1:
        yield f"    {', '.join(f'{count} {code}' for code, count in row['codes'].items())}"


def _check(results: Path, as_json: bool) -> int:
    """Name every damaged file of a results folder; returns the exit code."""
    from ..store.check import damages

    store = options.open_results(results)
    base = results.parent if store.is_archive else results
    rows = [{"path": str(each.path.relative_to(base)), "reason": each.reason} for each in damages(store.root)]
    lines = [f"{row['path']}: {row['reason']}" for row in rows] or [f"{results}: everything is whole"]
    options.output(rows, lines, as_json)
    return 1 if rows else 0


def archive_results(results: Path, out: Path) -> None:
    """Write all records of a results folder to an archive.

    Raises:
        UserError: If there is none, one is damaged, or ``out`` has not the name of an archive.
    """
    from ..store.check import damages
    from ..store.files import ARCHIVE, write_archive

    if not out.name.endswith(ARCHIVE) or out.is_dir():
        raise UserError(f"--archive {out}: name a file that ends with {ARCHIVE}")
    texts = options.open_results(results).texts()
    if any(damage.path.relative_to(results).as_posix() in texts for damage in damages(results)):
        raise UserError(
            f"{results} has damaged records; `bench status --check --results {quote(str(results))}` names them"
        )
    write_archive(out, texts)
    typer.echo(f"{out}: {len(texts)} files, {out.stat().st_size / 1e6:.1f} MB; check it with `bench status --check`")


@options.command()
def report(
    *,
    results: Path = options.DEFAULT_RESULTS,
    out: Path | None = None,
    figures: list[str] | None = None,
    also: list[str] | None = None,
    data_root: Path | None = None,
    plugin: list[Path] | None = None,
    as_json: bool = False,
) -> None:
    """Write the page, tables and figures of a results folder.

    One page (HTML), tables (CSV, Markdown, LaTeX) and figures (PNG, SVG, CSV).
    The page, report.html, can be read offline and sent; the pictures that are drawn are part of it.

    \b
    bench report --results results/runs --out report
    bench report --also per/table1,parquet
    bench report --figures spectra,images
    bench report --figures densities --out theory

    Options:
        out (DIR): Where to write; RESULTS/report if not given.
        figures (NAME[,NAME]): Draw these figures only, comma separated, or `all`: filter_out, risk_coverage,
            confidence, sweeps, pictures (which every report has), convergence, spectra, images, and densities, which
            needs no results.
        also (NAME[,NAME]): Write these, too, comma separated: parquet (a copy of every table), optuna (a journal of all
            tuning), hub (headers of model cards, .eval_results), or a table of a paper to fill with these results, such
            as per/table1 (`bench paper list`).
        data_root (DIR): Folder of downloaded data sets, for pictures; if not given, that of the last run.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    if out is None and results.is_file():
        raise UserError(f"{results} is a file; name a folder with --out")
    site = options.site_of(
        results, plugin=plugin, data_root=data_root or options.last_data_root(results), allow_partial=True
    )
    if figures is not None:
        drawn = [str(path) for path in _draw(options.names(figures), site, results, out)]
        options.output(drawn, drawn, as_json)
        return
    from rich.console import Console

    from ..report.frame import write_metrics
    from ..report.terminal import print_tables
    from ..report.write import Judged, write_report
    from .extra_tables import check_extras, write_extras

    check_extras(options.names(also))
    load_plugins(plugin or ())  # titles and directions of their metrics
    store = options.open_results(results)
    collected, damaged = options.collect_from(store)
    judged = Judged(store, collected)
    folder = out or results / "report"
    if not (collected.tests or collected.splits):
        raise UserError(f"{results} has no finished test yet; `bench status` shows what exists, and what failed")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    messages = Console(stderr=True)
    written = write_report(judged, folder, lambda line: options.say(messages, f"not drawn: {line}"), site, damaged)
    if also:
        written += write_extras(options.names(also), site, judged, folder, written)
    try:
        write_metrics(collected, store.root)
    except OSError:
        if out is None:
            raise
        write_metrics(collected, out)  # the results folder is read-only, say
    store.keep_in_mind()
    options.say_what_was_left_out(damaged, collected.superseded, messages)
    _say_what_was_rescored(collected)
    if not as_json:
        print_tables(judged, Console())
    options.output([str(path) for path in written], options.report_places(written, folder), as_json)


def _draw(chosen: tuple[str, ...], site: Site, results: Path, out: Path | None) -> list[Path]:
    """Draw figures by name, or ``all``, with a line for each that cannot be drawn; returns them, the page first."""
    from ..report.figures.registry import THEORY, Source, kinds_of, write_kinds
    from ..report.frame import Results
    from ..report.page.page import write_page
    from ..report.write import Judged

    kinds = kinds_of(chosen)
    load_plugins(map(Path, site.plugins))  # their distributions, and titles of their metrics
    if set(kinds) <= THEORY.keys() and out is None and not (site.store.root / "store.json").exists():
        raise UserError(f"{site.results} holds no results; name a folder for the figures with --out")
    collected, damaged = Results(()), list["Damage"]()
    if results.exists() or not set(kinds) <= THEORY.keys():
        store = options.open_results(results)
        collected, damaged = options.collect_from(store)
    folder = out or results / "report"
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    drawn = write_kinds(kinds, Source(site, collected), folder, lambda note: typer.echo(printable(note), err=True))
    if not drawn:
        raise UserError(f"no figure of {', '.join(chosen)} could be drawn from {site.results}")
    if not collected.tests:
        return drawn
    pictures = [path for path in drawn if path.suffix == ".png"]
    return [write_page(Judged(store, collected), damaged, folder, pictures), *drawn]


@options.command()
def compare(
    methods: list[str] | None = None,
    *,
    results: Path = options.DEFAULT_RESULTS,
    plugin: list[Path] | None = None,
    as_json: bool = False,
) -> None:
    """Compare methods seed by seed.

    The first is compared with each of the others; without names, every two methods are compared. The result is the mean
    difference (other minus first) over the seeds that both have, with its 95 % t-interval and a verdict: better, worse,
    equivalent, undecided or depends on tuning. Files of embeddings are compared by `bench score FILE FILE2`.

    \b
    bench compare cosface pfe dul_cls --results results/runs

    Options:
        methods (METHOD..): Methods of a results folder.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from rich.console import Console

    from ..report.compare import decided
    from ..report.frame import plain_rows
    from ..report.questions import PAIR, pairs_of
    from ..report.seeds import seed_groups
    from ..report.terminal import print_paired
    from ..report.views import paired_frame
    from ..store.check import failures

    if any(Path(name).is_file() for name in methods or ()):
        raise UserError(f"`bench score {' '.join(methods or ())}` compares files; name methods of a results folder")
    load_plugins(plugin or ())
    store, named = options.open_results(results), options.names(methods)
    collected, damaged = options.collect_from(store)
    tested = {each.columns.method for each in collected.tests}
    alone = {each.columns.method for each in collected.splits} - tested
    if on_splits := alone.intersection(named) if tested or named else alone:
        raise UserError(f"{', '.join(sorted(on_splits))}: tested on class splits alone, which `bench report` compares")
    if not tested:
        raise UserError(f"{store.root} has no finished test yet; `bench status` shows what exists")
    for name in named:
        if name not in tested:
            failed = next((each for each in failures(store, ()) if name in each.place.split("/")), None)
            if failed is not None:
                said = f"{failed.what}: {failed.reason}; `bench status` lists all"
                raise UserError(f"{name} has no finished test here: {said}")
            raise UnknownName("method of these results", name, tested)
    rows = decided(pairs_of(seed_groups(collected.measured), named), PAIR)
    if not any(row.n for row in rows):
        raise UserError(
            f"{store.root} has no two methods with a common seed on one data set (of {', '.join(sorted(tested))});"
            " `bench status` counts what each has, and `bench run` with the options of their run adds another"
        )
    if as_json:
        options.output(plain_rows(paired_frame(rows)), (), as_json)
        return
    options.say_what_was_left_out(damaged, collected.superseded, Console(stderr=True))
    print_paired(rows, Console())


def status_rows(store: Store) -> list[options.Row]:
    """Count trials, trained and tested seeds in a results folder, one row per protocol, data set and method.

    ``trained`` are finished trainings that belong to no trial, ``unfinished`` those that have a checkpoint and no
    result; ``failed`` has the reason of the last failure by the folder of the unit, ``running`` the process that works
    on one, ``codes`` the number of tests and rescorings by the versions of their code.
    """
    from ..store.check import failures
    from ..store.claims import CLAIM, holder
    from ..store.folder import CHECKPOINT
    from ..store.specs import Cell, versions_text

    failed: dict[tuple[str, ...], dict[str, str]] = {}
    for each in failures(store, ()):
        if each.what == "failed":
            *cell_of, unit = each.place.split("/")
            failed.setdefault(tuple(cell_of), {})[unit] = each.reason
    rescorings = list(store.rescorings())
    rows: list[options.Row] = []
    for folder in sorted({path.parent for kind in (*KINDS, "study") for path in store.units(kind)}):
        cell = Cell(*folder.relative_to(store.root).parts)
        trials = list(store.trials(cell))
        train, test = ([path.name for path in store.units(kind, "/".join(cell))] for kind in KINDS)
        if not trials and not train and not test:
            continue
        trained = [record for name in train if (record := store.trained(cell, name[6:])) is not None]
        tested = [done for name in test if (done := store.tested(cell, name[5:])) is not None]
        holders = {name: holder(folder / name / CLAIM) for name in (*train, *test)}
        codes = [("tested", record.spec.versions) for record in tested]
        codes += [("rescored", record.spec.versions) for record in rescorings if record.cell == cell]
        rows.append(
            {
                "protocol": cell.protocol,
                "dataset": cell.dataset,
                "method": cell.method,
                "trials": len(trials),
                "failed_trials": sum(trial.state == "failed" for trial in trials),
                "trained": sum(not record.spec.is_trial for record in trained),
                "tested": len(tested),
                "unfinished": sum((folder / name / CHECKPOINT).exists() for name in train),
                "failed": failed.get(cell, {}),
                "running": [
                    {"unit": name.replace("-", " "), "host": who.host, "pid": who.pid}
                    for name, who in holders.items()
                    if who is not None
                ],
                "codes": dict(Counter(f"{what} by code {versions_text(versions)}" for what, versions in codes)),
            }
        )
    store.keep_in_mind()
    return rows


def _say_what_was_rescored(collected: Collected) -> None:
    """Print which values are not those of the tests' own records, and which code made them."""
    from ..store.specs import versions_text

    made = {record.unit: record.spec for record in collected.rescorings}
    codes = {unit: versions_text(spec.versions) for unit, spec in made.items()}
    for code in sorted({*codes.values()}):
        of_code = {unit for unit in made if codes[unit] == code}
        tests = len({made[unit].test for unit in of_code})
        count = sum(unit in of_code for each in collected.measured for unit in each.units)
        typer.echo(
            f"{count} values of {tests} tests are rescored by code {code}; provenance.csv has both codes", err=True
        )
