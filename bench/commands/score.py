"""``bench score``: embeddings made anywhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import BadInput
from ..protocols.metrics import default_requests, metric_help
from ..registry import load_plugins
from ..resources import pick_device
from . import options
from .embed import embed_untrained

if TYPE_CHECKING:
    import numpy as np

    from ..report.operating import OperatingPoints
    from ..report.scored import Line
    from ..scoring.embedding_set import EmbeddingSet
    from ..scoring.score import Scored


Draw = Literal["queries", "classes"]
"""Unit that a bootstrap resamples: single queries or whole classes."""


@options.command()
def score(
    files: list[Path],
    *,
    scorers: list[str] | None = None,
    metrics: Annotated[list[str] | None, typer.Option(help=metric_help(), metavar="M[,M..]")] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(help="L2-normalise embeddings first; by default as the file says, otherwise yes."),
    ] = None,
    bootstrap: Draw = "queries",
    out: Path | None = None,
    backbone: str | None = None,
    operate: bool = False,
    wish: str | None = None,
    groups: str | None = None,
    unknown: Path | None = None,
    strict: bool = False,
    device: options.Device = "cpu",
    plugin: list[Path] | None = None,
    as_json: bool = False,
) -> None:
    """Score embeddings made anywhere, and their confidences.

    Retrieval, and whether a confidence is worth anything.
    A file contains embeddings [N, D] and labels [N] (integers or text), and if you have them confidence [N] (higher =
    more confident), variance [N] or [N, D], concentration [N], quality [N] (known quality of the images, higher =
    better), is_query [N], is_gallery [N], ids [N], groups [N] (camera, burst or session: images of a query's class and
    group do not count), ignore [N] (images that count nowhere); of the network's own training images, train_embeddings
    [M, D] and train_labels [M], for free confidences such as mahalanobis; set_up [N], the images whose classes choose
    the thresholds of --operate. With several files of the same images, the others are compared with the first (other
    minus first). Photographs, in a folder per class, are embedded by a network that was not trained on them (`bench
    embed` takes other weights than those on this machine).

    \b
    photos:   bench score photos --backbone vit_small_patch14_dinov2
    numpy:    np.savez("mine.npz", embeddings=x, labels=y, confidence=c)
    score:    bench score mine.npz --metrics recall,map_at_r,verification --out mine
    compare:  bench score mine.npz theirs.npz --bootstrap classes
    decide:   bench score mine.npz --operate --wish risk=0.02 --out mine

    Options:
        files (FILE..): Embeddings, .npz, .safetensors or Parquet; or photographs, a folder or parquet.
        scorers (S[,S..]): Scorers to rank with, comma separated; cosine if not given.
        bootstrap: Resampling unit of a comparison's intervals: queries, or whole classes of them.
        out (DIR): Write scores.html, tables (CSV) and figures there.
        backbone (NAME): Network that embeds a folder of photographs, with its weights on this machine.
        operate: From which confidence on to accept: thresholds, chosen on half of the classes, and risks.
        wish (WISH=SHARE,..): Share of wrong ones among accepted answers, of different pairs or unknown queries
            accepted, and of queries answered that --operate grants; risk=0.05,far=0.01,coverage=0.8 if not given.
        unknown (FILE): Images of classes that the gallery lacks, as further queries: a file, or a folder if FILE is
            one.
        device: Device for matrices of scores; cuda is faster for match and mls of diagonal normals.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from ..datasets.tables import holds_images

    load_plugins(plugin or ())
    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file; name a folder")
    wanted, labels = options.names(metrics, default_requests()), _labels(files)
    photographs = [path for path in files if path.is_dir() or holds_images(path)]
    _check_unknown(unknown, files, photographs)
    if photographs:
        from ..scoring.score import wanted_metrics

        wanted_metrics(wanted)  # before a folder is embedded
    elif backbone is not None:
        raise BadInput("--backbone embeds a folder of photographs, and none is given")
    where = pick_device(device)
    embedded = partial(embed_untrained, device=where, backbone=backbone, strict=strict)
    sets = _read_all(files, photographs, partial(embedded, out=out, groups=groups), groups)

    # A bad file is refused at once: torch takes seconds to load.
    from ..report.operating import OperatingPoints
    from ..report.scored import write_scored
    from ..scoring.files import extended_by
    from ..scoring.operate import operating_points, wishes_of
    from ..scoring.score import compare as compared
    from ..scoring.score import score_set, wanted_metrics

    wanted_metrics(wanted)  # a wrong name is not the fault of a file
    wishes = wishes_of(wish or "", len(files)) if operate or wish is not None else None
    by, curves = options.names(scorers, ("cosine",)), out is not None
    scored: dict[str, Scored] = {}
    asked = embedded(unknown, searched=False) if unknown and unknown.is_dir() else unknown
    extended = None if asked is None else extended_by(sets[0][0], asked)
    scored_by = partial(score_set, scorers=by, metrics=wanted, device=where, curves=curves, unknown=extended)
    for path, name, (images, normalized) in zip(files, labels, sets):
        how = normalized if normalize is None else normalize
        with _named(path):
            scored[name] = scored_by(images, normalize=how)
    comparison = [
        {"first": labels[0], "other": name, **line}
        for name in labels[1:]
        for line in compared(scored[labels[0]], scored[name], wanted, by=bootstrap)
    ]
    with _named(files[0]):
        points = None if wishes is None else OperatingPoints(operating_points(scored[labels[0]], wishes))
    written: list[Path] = []
    if out is not None:
        picture = photographs[0] if photographs and len(files) == 1 else None
        written, page = write_scored(scored, comparison, out, picture, points)
    if as_json:
        options.output(_as_json(files, scored, comparison, points), (), as_json)
        return
    _print(scored, comparison, points)
    if out is not None:
        print(f"{len(written)} tables and figures in {out}; all on one page: {page}")
    elif points is not None:
        print("--out DIR writes them as operate.json")


def _check_unknown(unknown: Path | None, files: Sequence[Path], photographs: Sequence[Path]) -> None:
    """Check what can be known of unknown queries before anything is embedded."""
    if unknown is not None and len(files) > 1:
        raise BadInput("--unknown adds queries of one network to its file; give one FILE")
    if unknown is not None and not unknown.exists():
        raise BadInput(f"--unknown {unknown}: no such file")
    if unknown is not None and unknown.is_dir() and not photographs:
        raise BadInput(f"--unknown {unknown} is a folder: `bench embed --images` makes a file by the network of FILE")


def _as_json(
    files: Sequence[Path],
    scored: Mapping[str, Scored],
    comparison: Sequence[Line],
    points: OperatingPoints | None,
) -> options.Row:
    import pandas as pd

    from ..report.frame import plain_rows
    from ..report.scored import lines_of, worth
    from ..scoring.score import tidy

    others = {"confidences": worth(lines_of(scored)), "comparison": comparison}
    tables = {"rows": tidy(scored), **{name: pd.DataFrame(lines) for name, lines in others.items()}}
    shown: options.Row = {
        "files": [_file_row(path, name, each.given) for path, (name, each) in zip(files, scored.items())]
    }
    shown |= {name: plain_rows(table) for name, table in tables.items()}
    return shown if points is None else {**shown, "operate": points.document}


def _print(scored: Mapping[str, Scored], comparison: Sequence[Line], points: OperatingPoints | None) -> None:
    from rich.console import Console

    from ..report.operating import print_operating
    from ..report.scored import print_scored

    print_scored(scored, comparison, Console())
    if points is not None:
        print_operating(points.document, Console())


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name this file in errors of bad input."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _read_all(
    files: Sequence[Path],
    pictures: Sequence[Path],
    embedded: Callable[[Path], dict[str, np.ndarray]],
    groups: str | None,
) -> list[tuple[EmbeddingSet, bool]]:
    """Sets of all files in the order of the first one, each with whether it wants to be normalised."""
    from ..scoring.files import read_set, set_of

    if groups is not None and not pictures:
        raise BadInput("--groups reads the paths of a folder of photographs; in a file, groups is an array")
    sets: list[tuple[EmbeddingSet, bool]] = []
    for path in files:
        if path in pictures:
            images, normalized, notes = set_of(path, embedded(path), [])
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


def _file_row(path: Path, name: str, images: EmbeddingSet) -> options.Row:
    return {
        "file": str(path),
        "name": name,
        "images": len(images),
        "classes": len(set(images.labels.tolist())),
        "dim": images.embeddings.shape[1],
        "queries": int(images.is_query.sum()),
        "unknown": int(images.unknown.sum()),
        "gallery": int(images.is_gallery.sum()),
    }
