"""``bench rescore``: new tests for old records, from the files that they have kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..errors import UnitFailed, UserError, printable, require_known
from . import options

if TYPE_CHECKING:
    from ..site import Site
    from ..store.folder import Store
    from ..store.records import TestRecord


@options.command()
def rescore(
    *,
    results: Path = options.DEFAULT_RESULTS,
    tests: list[str] | None = None,
    arrays: Path | None = None,
    data_root: Path | None = None,
    plugin: list[Path] | None = None,
    as_json: bool = False,
) -> None:
    """Give finished tests new values, without a training.

    They come from the files that the tests of a results folder have kept.
    Use it after a test was changed or a plug-in test was added, also for results of older code. Tests of confidences
    need the file of queries alone; others, and those of plug-ins, need the embeddings. Each rescoring has a
    record of its own, which names the code of the test and that of the new values; the record of the test stays as it
    is. What is done already is not done again. Tests whose files are missing or damaged are named, with exit
    code 1.

    \b
    bench rescore --results results/runs --plugin angles.py
    bench rescore --results results/reference --arrays results/runs --tests clustering

    Options:
        tests (T[,T..]): Groups of tests, comma separated; those of each record and of the plug-ins if not given.
        arrays (DIR): Another results folder that has the embeddings of the tests.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    site = options.site_of(results, plugin=plugin, data_root=data_root, allow_partial=True)
    rows = rescore_results(site, options.names(tests), arrays, quiet=as_json)
    failed = sum(bool(row["failure"]) for row in rows)
    done = f"{len(rows) - failed} of {len(rows)} tests rescored; `bench report` has their values"
    options.output(rows, [done], as_json)
    if failed:
        raise typer.Exit(1)


def rescore_results(site: Site, groups: tuple[str, ...], arrays: Path | None, quiet: bool = False) -> list[options.Row]:
    """Rescore the tests of a results folder that count, one after the other, with a line for each unless it is quiet.

    Groups are those of each record and of the plug-ins if empty.
    """
    from ..protocols.known_tests import known_groups
    from ..report.frame import collect

    added = site.plugin_tests
    require_known("group of tests", groups, known_groups())
    store = options.open_results(site.store.root)
    if store.is_archive:
        raise UserError(f"{store.root} is an archive, which is never changed; put it into a folder with a store.json")
    other = None if arrays is None else options.open_results(arrays)
    collected = collect(store)
    records = (*collected.tests, *collected.splits)
    if not records:
        raise UserError(f"{store.root} has no finished test yet; `bench run` makes some")
    rows = []
    for number, record in enumerate(records, 1):
        wanted = groups or tuple(dict.fromkeys([*record.spec.tests.groups, *added]))
        rows.append(row := _rescored(record, site, wanted, other))
        if not quiet or row["failure"]:
            typer.echo(printable(f"{number}/{len(records)} {row['test']} seed {row['seed']}: {_said(row)}"), err=True)
    return rows


def _rescored(record: TestRecord, site: Site, groups: tuple[str, ...], arrays: Store | None) -> options.Row:
    from ..engine.rescoring import rescore as rescore_test
    from ..store.specs import versions_text

    row: options.Row = {"test": "/".join((*record.cell, record.unit)), "seed": record.columns.seed}
    row |= {"rescoring": "", "code": "", "values": 0, "left_out": [], "failure": ""}
    try:
        made = rescore_test(record, site, groups, arrays)
    except UnitFailed as error:
        return {**row, "failure": str(error)}
    code, left_out = versions_text(made.spec.versions), list(made.left_out)
    return {**row, "rescoring": made.unit, "code": code, "values": len(made.rows), "left_out": left_out}


def _said(row: options.Row) -> str:
    """The rest of the line about a test."""
    if row["failure"]:
        return str(row["failure"])
    text = f"{row['values']} values by code {row['code']}"
    if row["left_out"]:
        text += f"; without {', '.join(row['left_out'])}, for which too little is kept"
    return text
