"""Options that several commands have in common, and help with sections of options."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from ..errors import printable
from ..names import split_names

if TYPE_CHECKING:
    from rich.console import Console

    from ..site import Site


DEFAULT_RESULTS = Path("results/runs")


class Launcher(StrEnum):
    """Places of workers: processes of this machine (``local``) or of all nodes of a Ray cluster (``ray``)."""

    local = "local"
    ray = "ray"


class Device(StrEnum):
    """Devices that networks run on; ``auto`` is ``cuda`` if there is a GPU, else ``cpu``."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Results = Annotated[Path, typer.Option("--results", help="Results folder.", metavar="DIR")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        help="Folder of downloaded data sets; $BENCH_DATA, else the platform's for user data, if not given.",
        metavar="DIR",
    ),
]
AllowPartial = Annotated[
    bool, typer.Option("--allow-partial", help="Accept an incomplete release; every table then says so.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; one per core if not given.")]
TrainingDevice = Annotated[Device, typer.Option(help="Where to train.")]
LauncherOption = Annotated[
    Launcher,
    typer.Option("--launcher", help="Where workers are: on this machine, or on all nodes of a Ray cluster."),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="With --launcher ray: the head of the cluster; auto (if not given) is the cluster of this machine.",
        metavar="auto|HOST:PORT",
    ),
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        max=1.0,
        help="Share of a GPU for each worker, such as 0.25; a whole one if not given.",
        metavar="SHARE",
    ),
]
Stall = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        help="End a training or test that has made no progress for so long; without it a hung plug-in is waited for.",
        metavar="MINUTES",
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        help="Python file with methods, data sets, tests, scorers, corruptions or distributions; repeatable.",
        metavar="FILE",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse damaged photographs. Without it, up to 5 or 1 % of them, whichever is more (but no more than a"
        " quarter), are left out and listed in skipped.csv; more are a copy that broke off.",
    ),
]


def site_of(
    results: Path,
    *,
    plugin: list[Path] | None = None,
    data_root: Path | None = None,
    weights: str | None = None,
    allow_partial: bool = False,
    strict: bool = False,
    device: str = "cpu",
) -> Site:
    """Site of a command: the paths, plug-ins, weights and device that its options name.

    All paths are made absolute, so that they mean the same in every process. A loop of links stays as it is: reading it
    is an error with its name.
    """
    from ..resources import cores, data_home
    from ..site import Site

    return Site(
        results=os.path.realpath(results),
        plugins=tuple(map(os.path.realpath, plugin or ())),
        data_root=None if data_root is None else os.path.realpath(data_root),
        data_home=str(data_home()),
        weights=weights if weights in (None, "none", "download") else os.path.realpath(weights),
        device=device,
        allow_partial=allow_partial,
        strict=strict,
        threads=cores(),
    )


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text as one line of any length; nothing in it is read as markup or moves the cursor."""
    console.print(printable(text), style=style, highlight=False, markup=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Print a value as JSON on standard output."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def names(values: list[str] | None, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Collect names from option values, which may be repeated and comma-separated; ``default`` if there are none.

    Example:
        >>> names(["a, b", "c"]), names(None, ("x",))
        (('a', 'b', 'c'), ('x',))
    """
    return split_names(values or ()) or default


class SectionedCommand(TyperCommand):
    """A command whose ``--help`` lists its options in sections, and ``--help-all`` the rarely needed ones too.

    Typer's own panels are boxes drawn by Rich, which are slow to import and of no use in a pipe.
    """

    sections: ClassVar[Mapping[str, tuple[str, ...]]]
    """Names of parameters by the title of their section; parameters without a section come last."""
    rare: ClassVar[Mapping[str, tuple[str, ...]]]
    """Further sections, which only ``--help-all`` shows."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of every section, in the order of :attr:`sections`, and then all other options."""
        records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for sections, shown in ((self.sections, True), (self.rare, ctx.meta.get(ALL, False))):
            for title, names in sections.items():
                chosen = [records.pop(name) for name in names]
                if shown:
                    with formatter.section(title):
                        formatter.write_dl(chosen)
        with formatter.section("Other options"):
            formatter.write_dl([record for record in records.values() if record])


ALL = "bench.help_all"


def _help_all(ctx: typer.Context, asked: bool) -> None:
    if asked:
        ctx.meta[ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", help="Show every option and exit.", is_eager=True, callback=_help_all)
]


DATA_ROOT = ".data_root"
"""File of a results folder with the data root of its last run, so that a report finds the images."""


def last_data_root(results: Path) -> Path | None:
    """Data root that the last run into a results folder named."""
    with suppress(OSError, UnicodeDecodeError):
        return Path((results / DATA_ROOT).read_text(encoding="utf-8"))
    return None
