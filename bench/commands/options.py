"""What several commands have in common: options, help with sections of options, and results that are read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_origin

import typer
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from ..errors import printable
from ..names import split_names
from ..planning import experiment

if TYPE_CHECKING:
    from rich.console import Console

    from ..report.frame import Results as Collected
    from ..site import Site
    from ..store.folder import Damage, Store


DEFAULT_RESULTS = Path("results/runs")

Row = dict[str, Any]
"""What ``--json`` prints of one thing."""

OTHER = "Other options"

Device = Literal["auto", "cpu", "cuda"]
"""Devices that networks run on; ``auto`` is ``cuda`` if there is a GPU, else ``cpu``."""


class Field(NamedTuple):
    """A field of an experiment that is an option: its place (``tuning.folds``), what it is, and how it is typed."""

    place: str
    info: FieldInfo
    how: experiment.Option


def _fields(model: type[experiment.Section], above: str = "") -> Iterator[tuple[str, Field]]:
    for name, info in model.model_fields.items():
        if not above and name in experiment.SECTIONS:
            yield from _fields(experiment.SECTIONS[name], f"{name}.")
        for how in info.metadata:
            if isinstance(how, experiment.Option):
                yield how.name or name, Field(f"{above}{name}", info, how)


FIELDS: dict[str, Field] = dict(_fields(experiment.Experiment))
"""Fields of an experiment by the names of their options."""


def option_of(name: str, **changes: Any) -> Any:
    """The option of a field of an experiment as Typer has it, with its help, range and names, and some changes."""
    _, info, how = FIELDS[name]
    given: Row = {
        "help": " ".join((info.description or "").split()),
        "metavar": how.metavar,
        "rich_help_panel": how.section,
    }
    for limit in info.metadata:
        given |= {"min": limit.ge} if isinstance(limit, Ge) else {"max": limit.le} if isinstance(limit, Le) else {}
    return typer.Option(f"--{name.replace('_', '-')}", **{**given, **changes})


Function = TypeVar("Function", bound=Callable[..., Any])


def takes(*names: str, after: str) -> Callable[[Function], Function]:
    """Give a command options of an experiment behind one of its parameters; its function has them as ``**typed``."""

    def with_options(function: Function) -> Function:
        own = [each for each in signature(function, eval_str=True).parameters.values() if each.kind != each.VAR_KEYWORD]
        place = [each.name for each in own].index(after) + 1
        made = [_parameter(name, FIELDS[name].info) for name in names]
        function.__signature__ = Signature([*own[:place], *made, *own[place:]])  # type: ignore[attr-defined]
        return function

    return with_options


def _parameter(name: str, info: FieldInfo) -> Parameter:
    several = get_origin(info.annotation) in (tuple, dict)
    kind: Any = list[str] | None if several else info.annotation
    default = None if several else info.default
    annotation = Annotated[kind, option_of(name)]
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def typed_fields(ctx: typer.Context) -> dict[str, object]:
    """Options of an experiment that were typed, by their names in its file; those of its sections are settings."""
    typed: dict[str, object] = {}
    settings: list[str] = []
    for name, (place, *_) in FIELDS.items():
        source, value = ctx.get_parameter_source(name), ctx.params.get(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        if "." in place:
            settings.append(f"{place}={value}")
        else:
            typed[place] = value
    return {**typed, "set": [*(ctx.params["set"] or ()), *settings]}


Results = Annotated[
    Path, typer.Option("--results", help="Results folder.", metavar="DIR", rich_help_panel=experiment.RESULTS)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        help="Folder of downloaded data sets; $BENCH_DATA, else the platform's for user data, if not given.",
        metavar="DIR",
        rich_help_panel=experiment.MACHINE,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.", rich_help_panel=experiment.NEEDED)]
Plugins = Annotated[list[Path] | None, option_of("plugin")]
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

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of every section, in the order of the sections."""
        params = self.get_params(ctx)
        for section in (*experiment.SECTIONS_OF_HELP, *(experiment.RARE_SECTIONS if ctx.meta.get(ALL) else ()), OTHER):
            with formatter.section(section):
                of = [param for param in params if (getattr(param, "rich_help_panel", None) or OTHER) == section]
                formatter.write_dl([param.get_help_record(ctx) for param in of])


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


def open_results(results: Path, damaged_marker: bool = False) -> Store:
    """Open a results folder for reading, if wanted also one with records whose marker is missing or damaged."""
    from ..protocols._base import PROTOCOLS, get_protocol
    from ..store.folder import Store

    store = Store(results, remember=True)
    recognised = damaged_marker and store.has_lost_marker() and store.marker_of_records() is not None
    for name in PROTOCOLS:
        store.open(name, get_protocol(name).version, create=recognised)
    return store


def collect_from(*stores: Store) -> tuple[Collected, list[Damage]]:
    """The results of folders, and their damaged files; more of these may be found while the stores are used."""
    from ..report.frame import collect

    damaged: list[Damage] = []
    for store in stores:
        store.on_damage = damaged.append
    return collect(*stores), damaged


def say_what_was_left_out(damaged: Iterable[Damage], older: int, console: Console) -> None:
    """Print which test results the tables leave out: damaged ones, and older ones that a later one replaces."""
    if older:
        console.print(
            f"{older} {'result' if older == 1 else 'results'} left out: older ones of the same setting (other code or"
            " other tests; the latest counts), or of runs that froze a source of randomness",
            highlight=False,
        )
    for path, reason in sorted(set(damaged)):
        say(console, f"damaged, left out: {path}: {reason}; the command that made it makes it again", "red")


def report_places(written: Sequence[Path], folder: Path) -> tuple[str, ...]:
    """Lines that say where a report is: the page first, then the folder."""
    page = folder / written[0].name
    return f"{page}  the page, to open in a browser", f"{folder}  {len(written) - 1} tables and figures"
