"""Contributed results: packing them, checking their values, and marking those that were run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..errors import UnitFailed, printable
from ..site import Site
from .options import print_json, site_of

if TYPE_CHECKING:
    from ..store.folder import Damage, Store


def pack_results(results: Path, out: Path, by: str, commit: str, as_json: bool) -> None:
    """Write the finished results of a folder to another one in the form of a contribution, and name the files."""
    from ..report.packing import pack
    from .results import open_results

    site = site_of(open_results(results).root)
    written = pack(site, out, by, commit)
    if as_json:
        print_json([str(path) for path in written])
        return
    size = sum(path.stat().st_size for path in written)
    typer.echo(f"{len(written)} files of {size / 1e6:.1f} MB in {out}; check them with `bench status --check`")


def verify_results(results: Path, claimed: Path, by: str, commit: str, as_json: bool) -> int:
    """Mark claimed results that were run again with equal values; returns the exit code, 1 if one was not equal."""
    from ..report.packing import verify
    from .results import open_results

    outcomes = verify(open_results(results), open_results(claimed), by, commit)
    rows = [{"test": "/".join((*record.cell, record.unit)), "reason": reason} for record, reason in outcomes]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            typer.echo(printable(f"{row['test']}: {row['reason'] or 'verified'}"))
    return 1 if any(row["reason"] for row in rows) else 0


def wrong_values(store: Store) -> list[Damage]:
    """Packed tests whose values do not follow from the float16 embeddings that they come with."""
    from ..store.folder import RECORD, Damage

    found = []
    for record in store.tests():
        if store.float16(record) is not None:
            from ..engine.rescoring import check_values

            try:
                check_values(record, Site(results=str(store.root)))
            except UnitFailed as error:
                found.append(Damage(store.unit_dir(record.cell, "test", record.unit) / RECORD, str(error)))
    return found
