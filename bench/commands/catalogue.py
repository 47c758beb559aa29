"""``bench list`` and ``bench show``: methods, data sets, protocols and the smaller kinds of entries."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..closure import file_of
from ..errors import UnknownName, UserError
from ..registry import Registry, load_plugins
from .options import Row, command, output

if TYPE_CHECKING:
    from ..datasets.dataset import Dataset
    from ..methods._base import Method

LISTED = (
    *("methods", "datasets", "protocols", "scorers", "corruptions"),
    *("tests", "metrics", "distributions", "backbones"),
)
"""Kinds of entries that ``bench list`` prints."""

OURS = "bench"
"""Family of the backbones of this package."""


@command()
def list_entries(
    kind: Annotated[str, typer.Argument(help=f"What to list: {', '.join(LISTED)}.")] = "",
    part: str = "",
    *,
    as_json: bool = False,
    check: bool = False,
    plugin: list[Path] | None = None,
) -> None:
    """List methods, data sets, metrics and all else that has a name.

    \b
    bench list methods
    bench list datasets --json
    bench list backbones dinov2

    Options:
        part: List only names that contain this, such as `dinov2`.
        check: Import every entry, plug-ins included: `ok`, or FAIL with the reason; a failure ends with code 1. `bench
            test` checks what they do.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    listed = _listed(kind)
    every = list_rows(listed, tuple(plugin or ()), check)
    rows = [row for row in every if part.lower() in row["name"].lower()]
    if not rows and not as_json:
        raise UserError(f"no name contains {part!r}; `bench list {listed}` has all")
    output(rows, _lines(_by_family(rows) if listed == "backbones" and not part else rows, check), as_json)
    if check and any(row.get("error") for row in rows):
        raise typer.Exit(1)


def _lines(rows: list[Row], check: bool) -> Iterator[str]:
    """A line for each entry, with its problem, below the family of a backbone."""
    width, family = max((len(row["name"]) for row in rows), default=0), ""
    for row in rows:
        if row.get("family", "") != family:
            family = row["family"]
            yield f"{family}:"
        problem = f"  [unavailable: {row['error']}]" if row.get("error") else ""
        weights = "  [weights here]" if row.get("weights") else ""
        outcome = ("FAIL  " if problem else "ok    ") if check else ""
        yield f"{outcome}{row['name']:<{width}}  {row['summary']}{weights}{problem}"


def _by_family(rows: list[Row]) -> list[Row]:
    """Our backbones, networks with weights here, and a row for each family of timm."""
    counts = Counter(row["family"] for row in rows if row["family"] != OURS)
    first = {row["family"]: row["name"] for row in reversed(rows)}
    title = "families of timm, `bench list backbones PART` has their networks"
    return [row for row in rows if row["family"] == OURS or row["weights"]] + [
        {"name": name, "summary": f"{count} networks, such as {first[name]}", "family": title}
        for name, count in counts.items()
    ]


def _listed(kind: str) -> str:
    """The kind with a name, singular or plural."""
    if not kind:
        raise UserError(f"name what to list: {', '.join(LISTED)}")
    if found := {kind, f"{kind}s"} & {*LISTED}:
        return found.pop()
    raise UnknownName("kind of entries", kind, LISTED)


@command()
def show(name: str, *, as_json: bool = False, plugin: list[Path] | None = None) -> None:
    """Show a method, a data set or a protocol.

    A method is shown with its paper, equations, parameters, search ranges and deviations from the paper, a data set
    with its recipe (default training settings), a protocol with its presets (variants).

    \b
    bench show dul_cls
    bench show folder

    Options:
        name: A method, data set or protocol.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    value = describe(name, tuple(plugin or ()))
    rest = {key: held for key, held in value.items() if key not in ("name", "kind", "summary", "document")}
    document = value["document"].splitlines()
    output(value, [f"{value['name']}: {value['summary']}", "", *document, "", *_shown(rest)], as_json)


def _shown(held: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Values by name for readers: a line for what is short, else a line for each part; what is empty is left out."""
    for key, value in held.items():
        if _is_long(value):
            yield f"{indent}{key}"
            yield from _shown(value, f"{indent}  ")
        elif isinstance(value, list) and any(len(each) > 40 for each in value if isinstance(each, str)):
            yield from (f"{indent}{key}", *(f"{indent}  - {each}" for each in value))
        elif value not in (None, "", [], {}, ()):
            yield f"{indent}{key} = {_short(value)}"


def _is_long(value: object) -> bool:
    return isinstance(value, Mapping) and (len(value) > 3 or any(map(_is_long, value.values())))


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def list_rows(kind: str, plugins: tuple[Path, ...], check: bool) -> list[Row]:
    """Entries of one kind, as ``bench list`` prints them; ``check`` imports each, and an error is part of the entry.

    Backbones have a family, and whether their weights are on this machine.
    """
    if kind == "protocols":
        from ..protocols._base import PROTOCOLS, get_protocol

        protocols = [get_protocol(name) for name in PROTOCOLS]
        return [{"name": p.name, "summary": p.summary, "presets": list(p.presets)} for p in protocols]
    if kind == "backbones":
        return _backbone_rows()
    if kind not in ("methods", "datasets"):
        load_plugins(plugins)
        return [
            {"name": name, "summary": text.strip().partition("\n")[0]} for name, text in _texts(kind, check).items()
        ]
    registry = Registry(kind, plugins)
    rows: list[Row] = []
    for entry in [*registry, *registry.broken]:
        error = entry.broken
        if check and not error:
            try:
                entry.load()
            except UserError as problem:
                error = str(problem)
        rows.append({"name": entry.name, "summary": entry.summary, "origin": entry.origin, "error": error})
    return rows


def _backbone_rows() -> list[Row]:
    """Our backbones, then timm's by family; torch and timm are not imported."""
    from importlib.util import find_spec

    from ..methods.backbones.registry import CHECKPOINTS, PACKAGES, SUMMARIES
    from ..methods.backbones.timm_names import checkpoints_here, networks

    every, files = list(networks()), checkpoints_here()
    here = {each.name.partition(".")[0] for each in every if each.here}
    here |= {name for name, file in CHECKPOINTS.items() if file in files}
    here |= {name for name, package in PACKAGES.items() if find_spec(package)}
    ours = [(name, text, OURS, name in here) for name, text in SUMMARIES.items()]
    others = [
        (each.name, each.summary, each.family, each.here)
        for each in every
        if each.name.partition(".")[0] not in SUMMARIES
    ]
    return [dict(zip(("name", "summary", "family", "weights"), row, strict=True)) for row in (*ours, *others)]


def _texts(kind: str, check: bool) -> dict[str, str]:
    """Descriptions of scorers, corruptions, tests of embeddings, metrics or distributions, plug-ins included, by name.

    Built-in scorers are read without importing them, unless each is to be checked.
    """
    if kind == "tests":
        from ..protocols.known_tests import known_groups, load_tests

        return {group: load_tests([group])[0].run.__doc__ or "" for group in known_groups()}
    if kind == "metrics":
        from ..protocols.metrics import known_metrics

        return {name: ": ".join(filter(None, (m.title, m.source))) for name, m in known_metrics().items()}
    if kind == "distributions":
        from ..methods.distributions.arrays import known_distributions

        return {name: cls.__doc__ or "" for name, cls in known_distributions().items()}
    if kind == "corruptions":
        from ..datasets.corruptions.registry import CORRUPTIONS

        return {name: corruption.summary for name, corruption in CORRUPTIONS.items()}
    from ..methods.scorers.registry import SCORERS

    if check:
        list(SCORERS.values())
    texts: dict[str, str] = {}
    for module in dict.fromkeys(SCORERS.built_in.values()):
        texts |= _formulas(module)
    return {name: SCORERS.added[name][0].formula if name in SCORERS.added else texts[name] for name in SCORERS}


def _formulas(module: str) -> dict[str, str]:
    """Formulas of a module's scorers by name, which may have its constants in them; it is not imported."""
    tree = ast.parse(file_of(module).read_text(encoding="utf-8"))
    constants: dict[str, str] = {}
    found = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Constant(value)):
                constants[name] = str(value)
            case ast.Call(func=ast.Name("ScorerSpec"), args=[ast.Constant(str(name)), text, *_]):
                parts = [part.value for part in getattr(text, "values", [text])]
                found[name] = "".join(p if isinstance(p, str) else constants[ast.unparse(p)] for p in parts)
    return found


def describe(name: str, plugins: tuple[Path, ...]) -> Row:
    """Describe a method, data set or protocol, as ``bench show --json`` prints it."""
    from ..protocols._base import PROTOCOLS, get_protocol

    methods, datasets = Registry("methods", plugins), Registry("datasets", plugins)
    if name in methods:
        return _describe_method(methods.method(name))
    if name in datasets:
        return _describe_dataset(datasets.dataset(name))
    if name not in PROTOCOLS:
        raise UnknownName("name", name, [*methods.names, *datasets.names, *PROTOCOLS])
    protocol = get_protocol(name)
    presets = {key: asdict(preset) for key, preset in protocol.presets.items()}
    about = {"summary": protocol.summary, "document": protocol.document.strip()}
    return {"name": name, **about, "version": protocol.version, "presets": presets}


def _describe_method(cls: type[Method]) -> Row:
    parameters: dict[str, Row] = {}
    for key, field in cls.Params.model_fields.items():
        extra = field.json_schema_extra
        search = extra.get("search") if isinstance(extra, dict) else None
        parameters[key] = {"default": field.default, "search": search}
    return {
        "name": cls.name,
        "kind": "method",
        "summary": cls.summary,
        "document": (sys.modules[cls.__module__].__doc__ or cls.__doc__ or "").strip(),
        "paper": None if cls.paper is None else vars(cls.paper),
        "parameters": parameters,
        "deviations": list(cls.deviations),
        "scorer": cls.scorer,
        "on_base": cls.on_base,
        "trains": list(cls.trains),
        "default_confidence": cls.default_confidence,
        "fidelities": list(cls.forms()),
        "released_behaviour": list(cls.released_behaviour),
        "fidelity_defaults": {form: dict(values) for form, values in cls.form_defaults.items()},
        "published": _published(cls),
    }


def _published(method: type[Method]) -> dict[str, dict[str, object]]:
    """Values as published, by data set and configuration, and by our names what the source has for all of its runs."""
    from ..planning.published import DATASETS, published_settings
    from ..protocols.recipes._base import recipe_of

    datasets = Registry("datasets")
    return {
        f"{dataset}, {item.network} ({item.source}: {item.variant})": {
            **item.values,
            **{f"stage 1 {key}": value for key, value in item.stage1.items()},
            "optim.grad_clip": item.optim["grad_clip"],
            **{f"data.{key}": item.data[key] for key in ("pooling", "calibrate")},
        }
        for dataset in DATASETS
        if dataset != "inshop"
        for item in published_settings(method, dataset, recipe_of(datasets.dataset(dataset)).base)
    }


def _describe_dataset(cls: type[Dataset]) -> Row:
    from ..protocols.recipes._base import recipe_of

    document, recipe = (cls.__doc__ or "").strip(), asdict(recipe_of(cls))
    return {"name": cls.name, "kind": "dataset", "summary": cls.summary, "document": document, "recipe": recipe}
