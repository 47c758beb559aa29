"""What failed and why, as the files of a results folder tell: trials, trainings, tests, damaged and old files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...engine.jobs import LOG
from ...errors import shortened
from ...store.folder import CHECKPOINT, RECORD, Damage, Store
from ..table import Table, cells_table, headings


class Failure(NamedTuple):
    """Something of a results folder that gave no result: where it is, what happened to it, and why."""

    place: str
    what: str
    reason: str


def failures(store: Store, damaged: Iterable[Damage]) -> list[Failure]:
    """List what failed, was interrupted or cannot be read, sorted by path."""
    return sorted({*_units(store), *_trials(store), *_damages(store, damaged)})


def _units(store: Store) -> Iterator[Failure]:
    for folder in sorted(path for path in store.root.glob("*/*/*/t*-*") if path.is_dir()):
        if (folder / RECORD).exists():
            continue
        place = folder.relative_to(store.root).as_posix()
        if (folder / LOG).exists():
            yield Failure(place, "failed", _last_line((folder / LOG).read_text(errors="replace")))
        elif (folder / CHECKPOINT).exists():
            yield Failure(place, "unfinished", "it has a checkpoint; the same command goes on from there")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return shortened(lines[-1]) if lines else "no reason was written"


def _trials(store: Store) -> Iterator[Failure]:
    for study, trials in store.studies():
        for trial in trials:
            if trial.state == "failed":
                place = "/".join((*study.cell, f"study-{study.unit}", f"trial-{trial.number:04d}"))
                yield Failure(place, "failed trial", trial.reason)


def _damages(store: Store, damaged: Iterable[Damage]) -> Iterator[Failure]:
    for path, reason in damaged:
        inside = path.is_relative_to(store.root)
        yield Failure((path.relative_to(store.root) if inside else path).as_posix(), "not read", reason)


def failures_table(found: Iterable[Failure], anchor: str) -> Table:
    """Table of what failed."""
    return cells_table("What failed, and why", headings("where", "what", "why", labels=3), found, anchor=anchor)
