"""``bench score`` and ``bench compare``: embeddings made anywhere, and methods seed by seed."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import UnknownName, UserError
from ..protocols.metrics import default_requests, metric_help
from ..registry import load_plugins
from . import completion
from .options import DEFAULT_RESULTS, Device, Json, Plugins, Results, Strict, names, option_of, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store.folder import Store


Draw = Literal["queries", "classes"]
"""Unit that a bootstrap resamples: single queries or whole classes."""

Scorers = Annotated[
    list[str] | None,
    typer.Option(
        "--scorers",
        help="Scorers to rank with, comma separated; cosine if not given.",
        metavar="S[,S..]",
        autocompletion=completion.SCORERS,
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metrics", help=metric_help(), metavar="M[,M..]", autocompletion=completion.METRICS),
]
Normalize = Annotated[
    bool | None,
    typer.Option(
        "--normalize/--no-normalize", help="L2-normalise embeddings first; by default as the file says, otherwise yes."
    ),
]
Bootstrap = Annotated[
    Draw,
    typer.Option("--bootstrap", help="Resampling unit of a comparison's intervals: queries, or whole classes of them."),
]


def score(
    files: Annotated[
        list[Path],
        typer.Argument(help="Embeddings, .npz, .safetensors or Parquet; or a folder of photographs.", metavar="FILE.."),
    ],
    scorers: Scorers = None,
    metrics: Metrics = None,
    normalize: Normalize = None,
    bootstrap: Bootstrap = "queries",
    out: Annotated[
        Path | None, typer.Option(help="Write scores.html, tables (CSV) and figures there.", metavar="DIR")
    ] = None,
    backbone: Annotated[
        str | None,
        option_of("backbone", help="Network that embeds a folder of photographs, with its weights on this machine."),
    ] = None,
    strict: Strict = False,
    device: Annotated[
        Device,
        typer.Option(help="Device for matrices of scores; cuda is faster for match and mls of diagonal normals."),
    ] = "cpu",
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Score embeddings made anywhere, and their confidences.

    Retrieval, and whether a confidence is worth anything.
    A file contains embeddings [N, D] and integer labels [N], and if you have them confidence [N] (higher = more
    confident), variance [N] or [N, D], concentration [N], quality [N] (known quality of the images, higher = better),
    is_query [N], is_gallery [N], ids [N]. With several files of the same images, the others are compared with the
    first (other minus first). Photographs, in a folder per class, are embedded by a network that was not trained on
    them (`bench embed` takes other weights than those on this machine).

    \b
    photos:   bench score photos --backbone vit_small_patch14_dinov2
    numpy:    np.savez("mine.npz", embeddings=x, labels=y, confidence=c)
    score:    bench score mine.npz --metrics recall,map_at_r,verification --out mine
    compare:  bench score mine.npz theirs.npz --bootstrap classes
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from .score_files import score_files

    load_plugins(plugin or ())
    scored = score_files(
        files,
        scorers=names(scorers, ("cosine",)),
        metrics=names(metrics, default_requests()),
        normalize=normalize,
        by=bootstrap,
        out=out,
        quiet=as_json,
        device=device,
        backbone=backbone,
        strict=strict,
    )
    if as_json:
        print_json(scored)


def compare(
    methods_or_files: Annotated[
        list[str] | None,
        typer.Argument(help="Methods of a results folder, or files of embeddings.", metavar="METHOD..|FILE.."),
    ] = None,
    results: Results = DEFAULT_RESULTS,
    scorers: Scorers = None,
    metrics: Metrics = None,
    normalize: Normalize = None,
    bootstrap: Bootstrap = "queries",
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Compare methods seed by seed, or files query by query.

    Methods of a results folder, or files of embeddings.
    The first is compared with each of the others; without names, every two methods are compared. For methods, the
    result is the mean difference (other minus first) over the seeds that both have, with its 95 % t-interval and a
    verdict: better, worse, equivalent or undecided. For files, it is what `bench score FILE FILE2` prints; --scorers,
    --metrics, --normalize and --bootstrap are for files only.

    \b
    bench compare cosface pfe dul_cls --results results/runs
    bench compare mine.npz theirs.npz
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    asked = methods_or_files or []
    if any(Path(name).suffix or Path(name).is_file() for name in asked):
        if len(asked) < 2:
            raise UserError(f"{asked[0]}: name another file to compare it with")
        score([Path(name) for name in asked], scorers, metrics, normalize, bootstrap, plugin=plugin, as_json=as_json)
        return
    from .results import open_results

    load_plugins(plugin or ())
    compare_methods(open_results(results), names(asked), as_json)


def compare_methods(store: Store, methods: tuple[str, ...], as_json: bool) -> None:
    """Print the mean differences of metrics between methods of a results folder, other minus first, paired by seed."""
    from rich.console import Console

    from ..report.frame import plain_rows
    from ..report.seeds import seed_groups
    from ..report.terminal import print_paired
    from ..report.views import paired_methods
    from ..store.check import failures
    from .results import collect_from, say_what_was_left_out

    collected, damaged = collect_from(store)
    frame = collected.frame
    if frame.empty:
        raise UserError(f"{store.root} has no finished test yet; `bench status` shows what exists")
    for name in methods:
        if name not in set(frame["method"]):
            failed = next((each for each in failures(store, ()) if name in each.place.split("/")), None)
            if failed is not None:
                said = f"{failed.what}: {failed.reason}; `bench status` lists all"
                raise UserError(f"{name} has no finished test here: {said}")
            raise UnknownName("method of these results", name, set(frame["method"]))
    lines = paired_methods(seed_groups(collected.merged), methods)
    if lines.empty or not lines["seeds"].any():
        raise UserError(_nothing_to_compare(store, sorted(set(frame["method"])), sorted(set(frame["dataset"]))))
    if as_json:
        print_json(plain_rows(lines))
        return
    say_what_was_left_out(damaged, collected.superseded, Console(stderr=True))
    print_paired(lines, Console())


def _nothing_to_compare(store: Store, methods: Sequence[str], datasets: Sequence[str]) -> str:
    """Line for results without a pair, with a command that makes one."""
    if len(methods) > 1:
        return (
            f"{store.root}: no two of {', '.join(methods)} have a common seed on one data set; `bench status` counts"
            " what each has"
        )
    from ..report.questions import base_of_recipe

    base = base_of_recipe(datasets[0])
    other = base if base and base not in methods else "METHOD"
    return (
        f"{store.root} has one method, {methods[0]}; run another with the options of that run, such as `bench run"
        f" --method {other} --dataset {datasets[0]} --results {quote(str(store.root))} ..`"
    )
