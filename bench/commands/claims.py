"""``bench claims``: what records say about the claims of papers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UnknownName
from ..registry import load_plugins
from .options import DEFAULT_RESULTS, Json, Plugins, names, print_json, site_of

if TYPE_CHECKING:
    from ..store.folder import Damage


def claims(
    results: Annotated[
        list[Path] | None,
        typer.Option("--results", help="Results folder; repeatable, records are taken together.", metavar="DIR"),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--claims", help="TOML file of claims; bench's own if not given.", metavar="FILE")
    ] = None,
    paper: Annotated[
        list[str] | None,
        typer.Option(help="Show claims of these papers only, comma separated, such as per,url.", metavar="KEY[,KEY]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write; report in the first results folder if not given.", metavar="DIR"),
    ] = None,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Judge claims of papers by the records of results folders: each holds, fails, or is undecided.

    Writes claims.md and claims.csv, with the command that makes the records of each claim.

    \b
    bench claims --results results/runs
    bench claims --results results/runs --results results/cub --paper per --out report
    bench claims --claims mine.toml --json
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from rich.console import Console

    from ..ledger.claims import read_ledger
    from ..ledger.write import judge, print_verdicts, to_frame, write_verdicts
    from ..report.frame import collect, plain_rows
    from .results import open_results, say_what_was_left_out

    folders = results or [DEFAULT_RESULTS]
    load_plugins(plugin or ())  # their metrics
    site = site_of(folders[0], plugin=plugin)
    ledger = read_ledger(file, site)
    for key in names(paper):
        if key not in ledger.paper:
            raise UnknownName("paper", key, ledger.paper)
    stores = [open_results(folder) for folder in folders]
    damaged: list[Damage] = []
    for store in stores:
        store.on_damage = damaged.append
    collected = collect(*stores)
    # All claims of the file are judged, so that verdicts do not depend on which of them are shown.
    verdicts = judge(ledger, collected, site)
    shown = [each for each in verdicts if not paper or each.finding.claim.paper in names(paper)]
    written = write_verdicts(ledger, shown, site, out or folders[0] / "report")
    if as_json:
        print_json(plain_rows(to_frame(shown, site)))
        return
    say_what_was_left_out(damaged, collected.superseded, Console(stderr=True))
    print_verdicts(shown, site, Console())
    for path in written:
        print(path)
