"""What several commands have in common: options, help with sections of options, and results that are read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from inspect import Parameter, Signature, cleandoc, signature
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


class Shared(experiment.Section):
    """Options that several commands have; another help of the same name is that of an experiment."""

    results: Annotated[Path, experiment.Option(experiment.RESULTS, "DIR")]
    """Results folder."""

    data_root: Annotated[Path | None, experiment.Option(experiment.MACHINE, "DIR")]
    """Folder of downloaded data sets; $BENCH_DATA, else the platform's for user data, if not given."""

    dry_run: Annotated[bool, experiment.Option(experiment.NEEDED)]
    """Print the plan and stop."""

    as_json: Annotated[bool, experiment.Option(OTHER)]
    """Print JSON on standard output."""

    allow_partial: Annotated[bool, experiment.Option(OTHER)]
    """Accept an incomplete release."""

    strict: Annotated[bool, experiment.Option(OTHER)]
    """Refuse damaged photographs. Without it, up to 5 or 1 % of them, whichever is more (but no more than a quarter),
    are left out and listed in skipped.csv; more are a copy that broke off."""

    groups: Annotated[str | None, experiment.Option(OTHER, "PATTERN")]
    """Regular expression whose (..) is the camera, burst or session in the path of a photograph below its folder, as in
    _c(\\d+)_; images of a query's class and group do not count."""


SHARED: dict[str, Field] = FIELDS | dict(_fields(Shared))


def _option(name: str, said: str, about: Iterable[object], metavar: str = "", *, argument: bool = False) -> Any:
    """An option or argument with its help, and what its type is annotated with: a range, a section, a word for it."""
    given: Row = {"help": " ".join(said.split()), "metavar": metavar or None}
    for each in about:
        if isinstance(each, Ge):
            given["min"] = each.ge
        elif isinstance(each, Le):
            given["max"] = each.le
        elif isinstance(each, experiment.Option):
            given |= {"rich_help_panel": each.section, "metavar": each.metavar}
    # Without a name, a switch would have its opposite as well.
    typed = f"--{name.removeprefix('as_').replace('_', '-')}"
    return typer.Argument(**given) if argument else typer.Option(typed, **given)


Function = TypeVar("Function", bound=Callable[..., Any])

DESCRIBED = re.compile(r"^    (\w+)(?: \((\S+)\))?: (.+(?:\n     .+)*)", re.MULTILINE)
"""What is said of a parameter of a command: its name, a word that stands for its value, and its help."""


def command(*names: str, after: str = "") -> Callable[[Function], Function]:
    """Make a function a command.

    Parameters before ``*`` are arguments, those behind it options. Their help stands in the section ``Options`` of the
    docstring, as ``name (VALUE): help``, or is that of the same option elsewhere. Behind a parameter, there may be
    options of an experiment, which the function has as ``**typed``.
    """

    def with_options(function: Function) -> Function:
        text, _, listed = cleandoc(function.__doc__ or "").partition("\n\nOptions:\n")
        said = {name: (help, metavar) for name, metavar, help in DESCRIBED.findall(listed)}
        function.__doc__ = text
        own, made = signature(function, eval_str=True).parameters, list[Parameter]()
        assert said.keys() <= own.keys(), f"{function.__name__} has no {', '.join(said.keys() - own.keys())}"
        for each in own.values():
            kind, argument = each.annotation, each.kind != Parameter.KEYWORD_ONLY
            if each.name in said:
                help, metavar = said[each.name]
                about = getattr(kind, "__metadata__", ())
                kind = Annotated[kind, _option(each.name, help, about, metavar, argument=argument)]
            elif each.name in SHARED:
                kind = Annotated[kind, _option_of(each.name, SHARED[each.name])]
            if each.kind != Parameter.VAR_KEYWORD:
                made.append(each.replace(annotation=kind))
            if each.name == after:
                made += [_parameter(name, FIELDS[name]) for name in names]
        function.__signature__ = Signature(made)  # type: ignore[attr-defined]
        return function

    return with_options


def _option_of(name: str, field: Field) -> Any:
    return _option(name, field.info.description or "", field.info.metadata)


def _parameter(name: str, field: Field) -> Parameter:
    several = get_origin(field.info.annotation) in (tuple, dict)
    kind: Any = list[str] | None if several else field.info.annotation
    default = None if several else field.info.default
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, _option_of(name, field)])


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


def output(value: object, lines: Iterable[str], as_json: bool) -> None:
    """Print a value on standard output, as JSON or as the lines that people read."""
    text = json.dumps(value, indent=1) if as_json else "\n".join(map(printable, lines))
    if text:
        typer.echo(text)


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


def open_results(results: Path) -> Store:
    """Open a results folder for reading."""
    from ..protocols._base import PROTOCOLS, get_protocol
    from ..store.folder import Store

    store = Store(results, remember=True)
    for name in PROTOCOLS:
        store.open(name, get_protocol(name).version, create=False)
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
