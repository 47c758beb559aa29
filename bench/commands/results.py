"""``bench status`` and ``bench report``: what a results folder contains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from ..errors import UserError
from ..registry import load_plugins
from ..site import Site
from .options import DEFAULT_RESULTS, Json, Plugins, Results, names, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ..store.folder import Store


class StatusRow(TypedDict):
    """Units of one (protocol, data set, method) cell."""

    protocol: str
    dataset: str
    method: str
    trials: int
    failed_trials: int
    trained: int
    tested: int
    unfinished: int


def status(results: Results = DEFAULT_RESULTS, as_json: Json = False) -> None:
    """Count what a results folder contains: trials, trained and tested seeds of every cell.

    \b
    bench status --results results/runs
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    rows = status_rows(open_results(results))
    if as_json:
        print_json(rows)
        return
    for row in rows:
        typer.echo(
            f"{row['protocol']}  {row['dataset']:<14} {row['method']:<20} {row['trials']} trials"
            f" ({row['failed_trials']} failed), {row['trained']} trained, {row['tested']} tested,"
            f" {row['unfinished']} unfinished"
        )


def report(
    results: Results = DEFAULT_RESULTS,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; RESULTS/report if not given.", metavar="DIR")
    ] = None,
    figures: Annotated[
        list[str] | None,
        typer.Option(
            help="Draw these figures only, comma separated, or `all`: filter_out, confidence, tuning, convergence"
            " (which every report has), filter_out_probability, spectra, norms, images, and, without any results,"
            " densities, distances, normalisers.",
            metavar="NAME[,NAME]",
        ),
    ] = None,
    reference: Annotated[
        str,
        typer.Option(
            help="Method by whose answers the figure `norms` splits all others; the most accurate deterministic one if"
            " not given.",
            metavar="METHOD",
        ),
    ] = "",
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of downloaded data sets, for the figure `images`.", metavar="DIR")
    ] = None,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Write tables (CSV, Markdown, LaTeX) and figures (PNG, SVG, CSV) from the records of a results folder.

    \b
    bench report --results results/runs --out report
    bench report --figures spectra,norms
    bench report --figures densities,normalisers --out theory
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    if figures is not None:
        site = Site(
            results=str(results), plugins=tuple(map(str, plugin or ())), data_root=data_root and str(data_root),
            allow_partial=True,
        )  # fmt: skip
        draw_figures(names(figures), site, out, reference, as_json)
        return
    from rich.console import Console

    from ..report.frame import collect, write_metrics
    from ..report.terminal import print_tables
    from ..report.write import write_report

    load_plugins(plugin or ())  # titles and directions of their metrics
    store = open_results(results)
    collected = collect(store)
    if write_metrics(collected, store.root) is None:
        raise UserError(f"{results} has no finished test yet; `bench status` says what there is")
    written = write_report(store, collected, out or results / "report")
    say_what_was_left_out(store, collected.superseded, Console(stderr=True))
    if as_json:
        print_json([str(path) for path in written])
        return
    print_tables(collected.frame, collected.roles, Console())
    for path in written:
        print(path)


def draw_figures(chosen: tuple[str, ...], site: Site, out: Path | None, reference: str, as_json: bool) -> None:
    """Draw figures by name; say in one line each what cannot be drawn.

    Args:
        chosen: Names, or ``all``.
        site: The results folder, plug-ins and folder of data sets.
        out: Folder for the files; RESULTS/report if None.
        reference: Method by whose answers the norms of others are split; empty for the default.
        as_json: Print the files as JSON.

    Raises:
        UserError: If a name is unknown, the results folder is needed and none, or nothing could be drawn.
    """
    from ..report.figures.registry import kinds_of, write_kinds
    from ..report.figures.source import Source
    from ..report.frame import Results, collect

    kinds = kinds_of(chosen)
    load_plugins(map(Path, site.plugins))  # their distributions, and titles of their metrics
    empty = all(kind.needs == "nothing" for kind in kinds)
    if empty and out is None and not (site.store.root / "store.json").exists():
        raise UserError(f"{site.results} holds no results; name a folder for the figures with --out")
    collected = Results.of(()) if empty else collect(open_results(Path(site.results)))
    notes: list[str] = []
    written = write_kinds(kinds, Source(site, collected, reference), out or site.store.root / "report", notes.append)
    for note in notes:
        typer.echo(note, err=True)
    if not written:
        raise UserError(f"no figure of {', '.join(chosen)} could be drawn from {site.results}")
    if as_json:
        print_json([str(path) for path in written])
        return
    for path in written:
        print(path)


def open_results(results: Path) -> Store:
    """A results folder for reading.

    Raises:
        UserError: If it is none, or has results of another version.
    """
    from ..protocols import PROTOCOLS, get_protocol
    from ..store.folder import Store

    store = Store(results)
    for name in PROTOCOLS:
        store.open(name, get_protocol(name).version, create=False)
    return store


def status_rows(store: Store) -> list[StatusRow]:
    """One row per (protocol, data set, method)."""
    from ..store.folder import CHECKPOINT, RECORD
    from ..store.specs import Cell

    rows: list[StatusRow] = []
    for folder in sorted(path for path in store.root.glob("*/*/*") if path.is_dir()):
        cell = Cell(*folder.relative_to(store.root).parts)
        studies = {path.parent.name.removeprefix("study-") for path in folder.glob("study-*/trial-*.json")}
        numbers = [
            (study, int(path.stem.removeprefix("trial-")))
            for study in sorted(studies)
            for path in sorted(folder.glob(f"study-{study}/trial-*.json"))
        ]
        trials = [store.trial(cell, study, number) for study, number in numbers]
        train, test = (list(folder.glob(f"{kind}-*")) for kind in ("train", "test"))
        if not trials and not train and not test:
            continue
        tuned = {unit for trial in trials if trial for unit in trial.units}
        finished = {path.name.removeprefix("train-") for path in train if (path / RECORD).exists()}
        rows.append(
            {
                "protocol": cell.protocol,
                "dataset": cell.dataset,
                "method": cell.method,
                "trials": len(trials),
                "failed_trials": sum(trial is not None and trial.state == "failed" for trial in trials),
                "trained": len(finished - tuned),
                "tested": sum((path / RECORD).exists() for path in test),
                "unfinished": sum((path / CHECKPOINT).exists() for path in train),
            }
        )
    return rows


def say_what_was_left_out(store: Store, older: int, console: Console) -> None:
    """Say how many older and how many damaged results the tables leave out."""
    damaged = store.damaged_tests()
    if older:
        console.print(
            f"{older} older {'result' if older == 1 else 'results'} of the same setting (other code or other tests)"
            " left out: the latest counts",
            highlight=False,
        )
    if damaged:
        console.print(
            f"[red]{len(damaged)} damaged record(s) left out[/], such as {damaged[0]}; run the command again to"
            " replace them",
            highlight=False,
        )
