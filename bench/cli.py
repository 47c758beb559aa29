"""The command line. Heavy imports wait until a command needs them, so that help and lists are instant."""

from __future__ import annotations

import errno
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from . import __version__
from .errors import UnitFailed, UserError

DEFAULT_RESULTS = Path("results/runs")

app = typer.Typer(
    name="bench",
    help=(
        "When is a probabilistic image embedding worth it? Trains probabilistic and deterministic metric-learning "
        "methods under one protocol and one tuning budget, and tests retrieval, verification and confidence.\n\n"
        "Start with:  bench run --method dul_cls --dataset ndigit --seeds 5"
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    datasets = "datasets"
    protocols = "protocols"
    scorers = "scorers"
    corruptions = "corruptions"


class OnExisting(StrEnum):
    """What to do about results that are there already."""

    skip = "skip"
    rerun = "rerun"
    error = "error"


class Sampler(StrEnum):
    """Optuna samplers."""

    gp = "gp"
    tpe = "tpe"


class Device(StrEnum):
    """Where networks run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Draw(StrEnum):
    """What a bootstrap draws."""

    queries = "queries"
    classes = "classes"


Results = Annotated[Path, typer.Option("--results", help="Results folder.", metavar="DIR")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", help="Python file with more methods or data sets; repeatable.", metavar="FILE"),
]


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Global options."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def run(
    method: Annotated[
        list[str], typer.Option("--method", help="Methods, comma separated, or `all`.", metavar="M[,M..]")
    ],
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="Data sets, comma separated; ndigit if not given.", metavar="D[,D..]"),
    ] = None,
    protocol: Annotated[str, typer.Option(help="Protocol.")] = "reality_check",
    preset: Annotated[str, typer.Option(help="Reading of the protocol.")] = "strict",
    fidelity: Annotated[
        str, typer.Option(help="`corrected`, or `released` where a paper's code differs.")
    ] = "corrected",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Replicates trained at the best setting; the preset's if not given.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Tuning budget per method; the preset's if not given.")
    ] = None,
    sampler: Annotated[Sampler, typer.Option(help="gp suits about 50 trials, tpe 100 and more.")] = Sampler.gp,
    folds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many of the four blocks of classes validate, one model each; the preset's if not given.",
        ),
    ] = None,
    hparams: Annotated[str, typer.Option(help="tuned, default, published, or a JSON/TOML file.")] = "tuned",
    base: Annotated[
        str | None,
        typer.Option(help="Base of two-stage methods; the recipe's if not given.", metavar="METHOD"),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Backbone; the recipe's if not given.", metavar="NAME")] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Backbone weights to start from (.safetensors or .pth), or `none`; those cached on this machine if not"
            " given.",
            metavar="FILE",
        ),
    ] = None,
    dim: Annotated[int | None, typer.Option(min=2, help="Embedding size; the recipe's if not given.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of downloaded data sets.", metavar="DIR")] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Accept an incomplete release; every table then says so.")
    ] = False,
    results: Results = DEFAULT_RESULTS,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core if not given.")] = None,
    device: Annotated[Device, typer.Option(help="Where to train.")] = Device.auto,
    plugin: Plugins = None,
    scorers: Annotated[
        list[str] | None,
        typer.Option(
            help="Scorers to test with besides a method's own and the cosine, comma separated, or `all`.",
            metavar="S[,S..]",
        ),
    ] = None,
    corruptions: Annotated[
        list[str] | None,
        typer.Option(
            help="Corruptions of the test images, comma separated, or `all`; crop if not given. With a level of five"
            " (blur:3, jpeg:1-5) or severities in [0, 1] (noise:0.2-1.0).",
            metavar="C[,C..]",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Pin a setting, such as method.margin=0.3 or optim.epochs=10; repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    on_existing: Annotated[
        OnExisting, typer.Option(help="Results that exist: reuse, redo, or refuse.")
    ] = OnExisting.skip,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
) -> None:
    """Tune, train and test methods on data sets; write tables and figures.

    The same command again resumes where the last one stopped: finished units are never done twice.

    \b
    bench run --method dul_cls --dataset ndigit --seeds 5
    bench run --method arcface,pfe,scf --dataset cub200 --data-root data --dry-run
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from .commands import run_command

    pins = []
    for text in set_ or []:
        key, sep, value = text.partition("=")
        if not sep:
            raise UserError(f"--set {text}: expected KEY=VALUE, such as method.margin=0.3")
        pins.append((key.strip(), value.strip()))
    code = run_command(
        settings={
            "methods": tuple(method),
            "datasets": tuple(dataset or ["ndigit"]),
            "protocol": protocol,
            "preset": preset,
            "fidelity": fidelity,
            "seeds": seeds,
            "trials": trials,
            "sampler": sampler.value,
            "folds": folds,
            "hparams": hparams,
            "base": base,
            "backbone": backbone,
            "weights": weights,
            "dim": dim,
            "scorers": tuple(scorers or ()),
            "corruptions": tuple(corruptions or ()),
            "sets": tuple(pins),
        },
        results=results,
        data_root=data_root,
        allow_partial=allow_partial,
        workers=workers,
        device=device.value,
        plugins=tuple(plugin or ()),
        on_existing=on_existing.value,
        dry_run=dry_run,
    )
    raise typer.Exit(code)


@app.command("list")
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    as_json: Json = False,
    check: Annotated[bool, typer.Option("--check", help="Import everything and report what does not.")] = False,
    plugin: Plugins = None,
) -> None:
    """List methods, data sets, protocols, scorers or corruptions.

    \b
    bench list methods
    bench list datasets --json
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from .catalogue import list_rows

    rows = list_rows(kind.value, tuple(plugin or ()), check)
    if as_json:
        _print_json(rows)
    else:
        width = max((len(row["name"]) for row in rows), default=0)
        for row in rows:
            problem = f"  [unavailable: {row['error']}]" if row.get("error") else ""
            typer.echo(f"{row['name']:<{width}}  {row['summary']}{problem}")
    if check and any(row.get("error") for row in rows):
        raise typer.Exit(1)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A method, data set or protocol.")],
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Show a method (paper, equations, parameters and ranges, deviations), data set or protocol.

    \b
    bench show dul_cls
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from .catalogue import show_entry

    value, text = show_entry(name, tuple(plugin or ()))
    if as_json:
        _print_json(value)
    else:
        typer.echo(text)


data_app = typer.Typer(
    help="Bring the data sets of image files to where `bench run` finds them, and check them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
DataRoot = Annotated[Path, typer.Option("--data-root", help="Folder of downloaded data sets.", metavar="DIR")]


@data_app.command("list")
def data_list(as_json: Json = False, plugin: Plugins = None) -> None:
    """List data sets, what each needs and where its owners publish it.

    \b
    bench data list
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from .data_commands import data_rows

    rows = data_rows(tuple(plugin or ()))
    if as_json:
        _print_json(rows)
        return
    for row in rows:
        typer.echo(f"{row['name']:<15} {row['summary']}")
        if not row["embedded"]:
            typer.echo(f"{'':<15} needs {row['needs']}; from {row['source']}")


@data_app.command("verify")
def data_verify(
    name: Annotated[str, typer.Argument(help="Data set.")],
    data_root: DataRoot,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="An incomplete release is not an error.")
    ] = False,
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Count, decode every image, and print what a run would use; exit code 1 if images are damaged.

    \b
    bench data verify cub200 --data-root data
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from .data_commands import data_verify_command

    found = data_verify_command(name, data_root, allow_partial, tuple(plugin or ()), quiet=as_json)
    if as_json:
        _print_json(found)
    if found["damaged"]:
        raise typer.Exit(1)


@data_app.command("import")
def data_import(
    name: Annotated[str, typer.Argument(help="Data set.")],
    source: Annotated[Path, typer.Argument(help="Archive (.zip, .tar, .tgz) or folder, as downloaded.")],
    data_root: DataRoot,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="An incomplete release is not an error.")
    ] = False,
) -> None:
    """Unpack or copy a download below the data root and check that it is the release it should be.

    \b
    bench data import cub200 CUB_200_2011.tgz --data-root data
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from .data_commands import data_import_command

    typer.echo(data_import_command(name, source, data_root, allow_partial))


@app.command("test")
def check_methods(
    method: Annotated[list[str], typer.Option("--method", help="Methods, comma-separated, or all.")],
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Check that a method does what every method must do: shapes, gradients, confidence, state, frozen parts.

    \b
    bench test --method mine --plugin mine.py
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from .commands import test_command

    rows = test_command(tuple(method), tuple(plugin or ()))
    if as_json:
        _print_json(rows)
    else:
        for row in rows:
            outcome = "ok  " if row["passed"] else "FAIL"
            typer.echo(f"{outcome}  {row['method']:<22} {row['check']:<14} {row['reason']}".rstrip())
    failed = sum(not row["passed"] for row in rows)
    if failed:
        raise UnitFailed(f"{failed} of {len(rows)} checks failed", "bench test")


@app.command()
def status(results: Results = DEFAULT_RESULTS, as_json: Json = False) -> None:
    """Say what a results folder holds: trials, trained and tested seeds of every cell.

    \b
    bench status --results results/runs
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from .commands import status_rows

    rows = status_rows(results)
    if as_json:
        _print_json(rows)
        return
    for row in rows:
        typer.echo(
            f"{row['protocol']}  {row['dataset']:<14} {row['method']:<20} {row['trials']} trials"
            f" ({row['failed_trials']} failed), {row['trained']} trained, {row['tested']} tested,"
            f" {row['unfinished']} unfinished"
        )


@app.command()
def report(
    results: Results = DEFAULT_RESULTS,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; RESULTS/report if not given.", metavar="DIR")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write tables (CSV, Markdown, LaTeX) and figures (PNG, SVG) from the records of a results folder.

    \b
    bench report --results results/runs --out report
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from .commands import report_command

    written = report_command(results, out, quiet=as_json)
    if as_json:
        _print_json([str(path) for path in written])


def _split(values: list[str] | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """Names from repeated and comma-separated values."""
    names = tuple(name.strip() for value in values or [] for name in value.split(",") if name.strip())
    return names or default


Scorers = Annotated[
    list[str] | None,
    typer.Option("--scorers", help="Scorers to rank with, comma separated; cosine if not given.", metavar="S[,S..]"),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metrics",
        help="Any of recall, map_at_r, r_precision, precision_at_1, map_at_1000, verification, clustering, structure,"
        " all, or single ones such as recall_at_16 or nmi. Default: recall,map_at_r,r_precision.",
        metavar="M[,M..]",
    ),
]
Normalize = Annotated[
    bool | None,
    typer.Option(
        "--normalize/--no-normalize", help="L2-normalise embeddings first; what the file says, else yes, by default."
    ),
]
Bootstrap = Annotated[
    Draw,
    typer.Option(
        "--bootstrap", help="What is drawn for the intervals of a comparison: queries, or whole classes of them."
    ),
]


@app.command()
def score(
    files: Annotated[list[Path], typer.Argument(help="Embeddings, .npz, .safetensors or Parquet.", metavar="FILE..")],
    scorers: Scorers = None,
    metrics: Metrics = None,
    normalize: Normalize = None,
    bootstrap: Bootstrap = Draw.queries,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write metrics.csv, curves.csv and figures there.", metavar="DIR")
    ] = None,
    device: Annotated[
        Device,
        typer.Option(help="Where matrices of scores are computed: cuda pays for match and mls of diagonal normals."),
    ] = Device.cpu,
    as_json: Json = False,
) -> None:
    """Score embeddings made anywhere: retrieval, and whether their confidence is worth anything.

    A file holds embeddings [N, D] and integer labels [N], and if you have them confidence [N] (higher = surer),
    variance [N] or [N, D], concentration [N], quality [N], is_query [N], is_gallery [N], ids [N]. With several files
    of the same images, the others are compared with the first.

    \b
    numpy:    np.savez("mine.npz", embeddings=x, labels=y, confidence=c)
    score:    bench score mine.npz --metrics recall,map_at_r,verification --out mine
    compare:  bench score mine.npz theirs.npz --bootstrap classes
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from .scoring.score_files import score_files

    found = score_files(
        files,
        scorers=_split(scorers, ("cosine",)),
        metrics=_split(metrics, ("recall", "map_at_r", "r_precision")),
        normalize=normalize,
        by=bootstrap.value,
        out=out,
        quiet=as_json,
        device=device.value,
    )
    if as_json:
        _print_json(found)


@app.command()
def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Methods of a results folder, or files of embeddings.", metavar="METHOD..|FILE.."),
    ] = None,
    results: Results = DEFAULT_RESULTS,
    scorers: Scorers = None,
    metrics: Metrics = None,
    normalize: Normalize = None,
    bootstrap: Bootstrap = Draw.queries,
    as_json: Json = False,
) -> None:
    """Compare methods of a results folder seed by seed, or files of embeddings query by query.

    The first is compared with each of the others; without names, every two methods are. Methods: mean difference over
    the seeds that both have, with its 95 % t-interval. Files: what `bench score FILE FILE2` prints; the options but
    --results are for them.

    \b
    bench compare cosface pfe dul_cls --results results/runs
    bench compare mine.npz theirs.npz
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    if names and any(Path(name).suffix or Path(name).is_file() for name in names):
        if len(names) < 2:
            raise UserError(f"{names[0]}: name another file to compare it with")
        score([Path(name) for name in names], scorers, metrics, normalize, bootstrap, as_json=as_json)
        return
    from .commands import compare_command

    found = compare_command(_split(names, ()), results, quiet=as_json)
    if as_json:
        _print_json(found)


@app.command()
def embed(
    images: Annotated[
        Path,
        typer.Option(
            "--images",
            help="Folder of images: DIR/CLASS/*, DIR/query/CLASS/* with DIR/gallery/.., or flat.",
            metavar="DIR",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="File to write: .npz, .safetensors or .parquet.", metavar="FILE")],
    run: Annotated[
        str | None,
        typer.Option(
            "--run", help="A trained or tested unit of the results folder, by the start of its id.", metavar="UNIT"
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", help="weights.safetensors of a trained unit, its record beside it.", metavar="FILE"
        ),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option("--backbone", help="A backbone alone, its pooled features.", metavar="NAME")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            help="Weights of the backbone (.safetensors or .pth), or `none`; those cached here if not given.",
            metavar="FILE",
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option("--image-size", min=8, help="Input side of the backbone, pixels; its own if not given."),
    ] = None,
    results: Results = DEFAULT_RESULTS,
    device: Annotated[Device, typer.Option(help="Where to embed.")] = Device.auto,
    plugin: Plugins = None,
) -> None:
    """Embed a folder of images into a file that `bench score` reads.

    A folder per class gives labels. A flat folder has none: its file cannot be scored until labels are added.
    Variance or concentration come from the network where it has them, and the confidence its method is quoted with.

    \b
    bench embed --run 3f2a --images photos --out photos.npz
    bench embed --backbone resnet50 --weights resnet50.pth --images photos --out photos.npz
    bench score photos.npz
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from ._embed import embed_command
    from .resources import pick_device

    text = embed_command(
        run=run,
        checkpoint=checkpoint,
        backbone=backbone,
        weights=weights,
        image_size=image_size,
        images=images,
        out=out,
        results=results,
        device=pick_device(device.value),
        plugins=tuple(plugin or ()),
    )
    typer.echo(text)


_CLICK_ERROR = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


def main(argv: list[str] | None = None) -> int:
    """Entry point: exit code 0 done, 1 something failed (its reason printed), 2 bad input, 130 interrupted."""
    command = typer.main.get_command(app)
    try:
        code = command.main(argv, prog_name="bench", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UserError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 2
    except UnitFailed as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    except typer.Abort:
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if error.filename is None and not full:
            raise
        # A folder that cannot be written, a disk that is full: the path and the reason are what helps.
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"bench: {where}{error.strerror}\n")
        return 2
    except Exception as error:
        if isinstance(error, _CLICK_ERROR):
            message = error.format_message()  # type: ignore[attr-defined]
            if type(error).__name__ == "NoArgsIsHelpError":
                sys.stderr.write(f"{message}\n")
            elif message:
                sys.stderr.write(f"bench: {' '.join(message.split())} (see `bench --help`)\n")
            return int(getattr(error, "exit_code", 2))
        raise


def entry() -> None:
    """Console script."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without the plus-minus sign is no reason to stop
    sys.exit(main())
