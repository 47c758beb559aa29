"""``bench score``: files in, tables and figures out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ._embedding_files import read_embeddings
from ._embedding_set import EmbeddingSet
from .errors import BadInput

if TYPE_CHECKING:
    from ._score import Scored


def score_command(
    files: Sequence[Path],
    *,
    scorers: Sequence[str],
    metrics: Sequence[str],
    normalize: bool | None,
    by: str,
    out: Path | None,
    quiet: bool,
    device: str = "cpu",
) -> dict[str, Any]:
    """Score files, compare the others with the first, print unless quiet, write if asked to.

    Args:
        files: Files of the same images if there are several.
        scorers: Names of scorers.
        metrics: Names of groups or metrics.
        normalize: None does what each file says, and normalises where it says nothing.
        by: What the bootstrap draws, ``queries`` or ``classes``.
        out: Folder for tables and figures.
        quiet: Print nothing on standard output.
        device: ``auto``, ``cpu`` or ``cuda``.

    Returns:
        What ``--json`` prints.
    """
    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file; name a folder")
    names = _labels(files)
    sets: list[tuple[EmbeddingSet, bool]] = []
    for path in files:
        given, normalized = _read(path)
        with _named(path):
            sets.append((given.aligned_with(sets[0][0]) if sets else given, normalized))

    # A bad file is refused at once: torch takes seconds to load.
    import pandas as pd
    from rich.console import Console

    from ._score import compare, score_set, tidy, wanted_metrics
    from .machine import pick_device
    from .report.frame import plain_rows
    from .report.scored import print_scored, worth, write_scored

    wanted_metrics(metrics)  # a wrong name is not the fault of a file
    where = pick_device(device)
    scored: dict[str, Scored] = {}
    for path, name, (given, normalized) in zip(files, names, sets):
        how = normalized if normalize is None else normalize
        with _named(path):
            scored[name] = score_set(given, scorers=scorers, metrics=metrics, normalize=how, device=where)
    frame = pd.concat([tidy(each, name) for name, each in scored.items()], ignore_index=True)
    differences = [
        {"first": names[0], "other": name, **line}
        for name in names[1:]
        for line in compare(scored[names[0]], scored[name], metrics, by=by)
    ]
    comparison = pd.DataFrame(differences)
    if out is not None:
        written = write_scored(scored, frame, comparison, out)
    if not quiet:
        print_scored(scored, frame, comparison, Console())
        if out is not None:
            print(f"{len(written)} tables and figures in {out}")
    return {
        "files": [{"file": str(path), "name": name, **_counts(scored[name])} for path, name in zip(files, names)],
        "rows": plain_rows(frame),
        "confidences": plain_rows(worth(frame)),
        "comparison": plain_rows(comparison),
    }


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """What is wrong inside is wrong with this file."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _read(path: Path) -> tuple[EmbeddingSet, bool]:
    arrays, others = read_embeddings(path)
    if others:
        shown = ", ".join(ascii(name)[1:-1] for name in others)
        sys.stderr.write(f"bench: note: {path}: not read: {shown}\n")
    with _named(path):
        normalized = arrays.get("normalize", np.array(True))
        if normalized.shape or normalized.dtype.kind != "b":
            raise BadInput("normalize must be one boolean")
        return EmbeddingSet.of(arrays), bool(normalized)


def _labels(files: Sequence[Path]) -> list[str]:
    stems = [path.stem for path in files]
    names = stems if len(set(stems)) == len(stems) else [str(path) for path in files]
    if len(set(names)) < len(names):
        raise BadInput(f"{next(name for name in names if names.count(name) > 1)} is given twice")
    return names


def _counts(scored: Scored) -> dict[str, int]:
    given = scored.given
    return {
        "images": len(given),
        "classes": len(np.unique(given.labels)),
        "dim": given.embeddings.shape[1],
        "queries": int(given.is_query.sum()),
        "gallery": int(given.is_gallery.sum()),
    }
