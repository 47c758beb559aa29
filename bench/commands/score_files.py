"""Scoring of embedding files: reads the files, prints and writes tables and figures."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadInput
from ..scoring.embedding_set import EmbeddingSet
from ..scoring.files import read_set, set_of
from .options import Row

if TYPE_CHECKING:
    from ..scoring.score import Scored


def score_files(
    files: Sequence[Path],
    *,
    scorers: Sequence[str],
    metrics: Sequence[str],
    normalize: bool | None,
    by: str,
    out: Path | None,
    quiet: bool,
    device: str = "cpu",
    backbone: str | None = None,
    strict: bool = False,
) -> Row:
    """Score files of embeddings, compare the first with each of the others, and print and write the results.

    A folder of photographs per class is embedded first. ``normalize`` None does what each file says, and normalises if
    it says nothing. ``by`` is the unit that the bootstrap of the comparison resamples, ``backbone`` the network of a
    folder, of which ``strict`` refuses damaged images.
    """
    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file; name a folder")
    names = _labels(files)
    if any(path.is_dir() for path in files):
        from ..scoring.score import wanted_metrics

        wanted_metrics(metrics)  # before a folder is embedded
    elif backbone is not None:
        raise BadInput("--backbone embeds a folder of photographs, and none is given")
    sets = _read_all(files, device, backbone, out, strict)

    # A bad file is refused at once: torch takes seconds to load.
    import pandas as pd
    from rich.console import Console

    from ..report.frame import plain_rows
    from ..report.scored import print_scored, worth, write_scored
    from ..resources import pick_device
    from ..scoring.score import compare, score_set, tidy, wanted_metrics

    wanted_metrics(metrics)  # a wrong name is not the fault of a file
    where = pick_device(device)
    scored: dict[str, Scored] = {}
    for path, name, (images, normalized) in zip(files, names, sets):
        how = normalized if normalize is None else normalize
        with _named(path):
            scored[name] = score_set(
                images, scorers=scorers, metrics=metrics, normalize=how, device=where, curves=out is not None
            )
    frame = pd.concat([tidy(each, name) for name, each in scored.items()], ignore_index=True)
    differences = [
        {"first": names[0], "other": name, **line}
        for name in names[1:]
        for line in compare(scored[names[0]], scored[name], metrics, by=by)
    ]
    comparison = pd.DataFrame(differences)
    if out is not None:
        photographs = files[0] if len(files) == 1 and files[0].is_dir() else None
        written, page = write_scored(scored, frame, comparison, out, photographs)
    if not quiet:
        print_scored(scored, frame, comparison, Console())
        if out is not None:
            print(f"{len(written)} tables and figures in {out}; all on one page: {page}")
    return {
        "files": [_file_row(path, name, scored[name].given) for path, name in zip(files, names)],
        "rows": plain_rows(frame),
        "confidences": plain_rows(worth(frame)),
        "comparison": plain_rows(comparison),
    }


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name this file in errors of bad input."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _read_all(
    files: Sequence[Path], device: str, backbone: str | None, out: Path | None, strict: bool
) -> list[tuple[EmbeddingSet, bool]]:
    """Sets of all files in the order of the first one, each with whether it wants to be normalised."""
    sets: list[tuple[EmbeddingSet, bool]] = []
    for path in files:
        if path.is_dir():
            # Networks take seconds to load, and files of embeddings need none.
            from ..resources import pick_device
            from .embed import embed_untrained

            arrays = embed_untrained(path, pick_device(device), backbone, out, strict)
            images, normalized, notes = set_of(path, arrays, [])
        else:
            images, normalized, notes = read_set(path)
        if sets and images.named != sets[0][0].named:
            lacking = files[0] if images.named else path
            notes = [*notes, f"{lacking} has no ids: the rows of the files are matched by position"]
        for note in notes:
            sys.stderr.write(f"bench: note: {note}\n")
        with _named(path):
            sets.append((images.aligned_with(sets[0][0]) if sets else images, normalized))
    return sets


def _labels(files: Sequence[Path]) -> list[str]:
    stems = [path.stem or path.resolve().name for path in files]  # of the current folder, the stem is empty
    names = stems if len(set(stems)) == len(stems) else [str(path) for path in files]
    if len(set(names)) < len(names):
        raise BadInput(f"{next(name for name in names if names.count(name) > 1)} is given twice")
    return names


def _file_row(path: Path, name: str, images: EmbeddingSet) -> Row:
    return {
        "file": str(path),
        "name": name,
        "images": len(images),
        "classes": len(np.unique(images.labels)),
        "dim": images.embeddings.shape[1],
        "queries": int(images.is_query.sum()),
        "gallery": int(images.is_gallery.sum()),
    }
