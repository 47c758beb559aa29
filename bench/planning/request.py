"""The request of ``bench run``, and the methods, data sets and presets that it names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ..datasets.corruptions.registry import CORRUPTIONS
from ..errors import UnknownName, UserError
from ..methods.scorers.registry import SCORERS
from ..protocols import PROTOCOLS, get_protocol
from ..protocols._base import Preset, Protocol
from ..protocols.recipes._base import Recipe
from ..site import Site
from ..store.specs import Cell
from .corruptions import corruption_ranges
from .pins import Pin, parse_pins
from .settings_file import SettingsFile, read_settings_file

FIDELITIES = ("corrected", "released")


class RunRequest(BaseModel):
    """The options of ``bench run`` that decide about values; None leaves one to the preset or the recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    methods: tuple[str, ...]
    datasets: tuple[str, ...]
    protocol: str = "reality_check"
    preset: str = "strict"
    fidelity: str = "corrected"
    seeds: int | None = Field(None, ge=1)
    trials: int | None = Field(None, ge=1)
    sampler: Literal["gp", "tpe"] = "gp"
    folds: int | None = Field(None, ge=1)
    hparams: str = "tuned"
    base: str | None = None
    backbone: str | None = None
    dim: int | None = Field(None, ge=2)
    scorers: tuple[str, ...] = ()
    corruptions: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Request:
    """One cell of an experiment, with what is pinned for it.

    Attributes:
        cell: Protocol, data set and method.
        recipe: Recipe of the data set.
        base: Cell of the base, for two-stage methods.
        requested: Whether the method was asked for by name, rather than as a base.
        pins: Settings pinned by the user. What is pinned for a method is not pinned for a base that only serves it,
            unless it concerns the data.
    """

    cell: Cell
    recipe: Recipe
    base: Cell | None
    requested: bool
    pins: tuple[Pin, ...]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A request whose names were found and whose files were read.

    Attributes:
        requests: Every cell, each base before the methods that use it.
        protocol: The protocol.
        preset_name: Name of its preset.
        preset: The preset, with the folds and corruptions that were asked for.
        methods: Methods that were asked for by name.
        datasets: Data sets that were asked for.
        fidelity: ``corrected`` or ``released``.
        seeds: Replicates.
        trials: Budget; 0 if nothing is tuned.
        sampler: ``gp`` or ``tpe``.
        hparams: ``tuned``, ``default``, ``published``, or the label of ``file``.
        file: Settings from a file.
        backbone: Backbone, if it is not the recipe's.
        dim: Embedding size, if it is not the recipe's.
        scorers: Scorers to test with in addition to the usual ones.
        pins: Settings pinned by the user.
        unusual_folds: How many blocks validate, if that is not what the preset does anyway.
        unusual_corruptions: Corruptions at severities that are not the usual ones, as text.
    """

    requests: tuple[Request, ...]
    protocol: Protocol
    preset_name: str
    preset: Preset
    methods: tuple[str, ...]
    datasets: tuple[str, ...]
    fidelity: str
    seeds: int
    trials: int
    sampler: Literal["gp", "tpe"]
    hparams: str
    file: SettingsFile | None
    backbone: str | None
    dim: int | None
    scorers: tuple[str, ...]
    pins: tuple[Pin, ...]
    unusual_folds: int | None
    unusual_corruptions: tuple[str, ...]


def resolve(request: RunRequest, site: Site) -> Experiment:
    """Look up everything that a request names.

    Raises:
        UserError: If a name or a value is not known, with what to do.
    """
    groups_of_plugins = site.plugin_tests
    _check_names(request)
    protocol = get_protocol(request.protocol)
    usual = protocol.presets[request.preset]
    if usual.trials == 0 and request.hparams == "tuned":
        raise UserError(
            f"protocol {request.protocol!r} holds out no classes, so there is nothing to tune on: use --hparams default"
            " or a file"
        )
    preset = _with_folds(usual, request)
    methods = expand(request.methods, site.methods.names)
    datasets = expand(request.datasets, site.datasets.names)
    _check_fidelity(request.fidelity, methods, site)
    pins = parse_pins(request.pins)
    requests = [each for dataset in datasets for each in _cells(request, dataset, methods, pins, site)]
    ranges, unusual = corruption_ranges(request.corruptions, preset.tests.corruptions)
    groups = tuple(dict.fromkeys([*preset.tests.groups, *groups_of_plugins]))
    file = None
    if request.hparams not in ("tuned", "default", "published"):
        file = read_settings_file(request.hparams, site.methods.names)
    return Experiment(
        requests=tuple(requests),
        protocol=protocol,
        preset_name=request.preset,
        preset=replace(preset, tests=replace(preset.tests, groups=groups, corruptions=ranges)),
        methods=methods,
        datasets=datasets,
        fidelity=request.fidelity,
        seeds=request.seeds or preset.seeds,
        trials=(request.trials or preset.trials) if request.hparams == "tuned" else 0,
        sampler=request.sampler,
        hparams=request.hparams if file is None else file.label,
        file=file,
        backbone=request.backbone,
        dim=request.dim,
        scorers=expand(request.scorers, list(SCORERS)) if request.scorers else (),
        pins=pins,
        unusual_folds=None if preset == usual else request.folds,
        unusual_corruptions=tuple(unusual),
    )


def _cells(
    request: RunRequest, dataset: str, methods: tuple[str, ...], pins: tuple[Pin, ...], site: Site
) -> Iterator[Request]:
    """Cells of a data set, each once, every base right before the first method that needs it."""
    recipe = site.recipe(dataset)
    base_name = request.base or recipe.base
    base = Cell(request.protocol, dataset, base_name)
    shared = tuple(pin for pin in pins if pin.shared)
    done: set[str] = set()
    for name in methods:
        on_base = site.methods.method(name).on_base
        if on_base and site.methods.method(base_name).on_base:
            raise UserError(f"--base {base_name}: {base_name!r} needs a base itself; name a one-stage method")
        for method in [base_name, name] if on_base else [name]:
            if method not in done:
                done.add(method)
                named = method in methods
                yield Request(
                    cell=Cell(request.protocol, dataset, method),
                    recipe=recipe,
                    base=base if on_base and method == name else None,
                    requested=named,
                    pins=pins if named else shared,
                )


def _check_names(request: RunRequest) -> None:
    """Refuse a name of a protocol, preset, fidelity, scorer or corruption that does not exist.

    Raises:
        UnknownName: With the nearest one that does.
    """
    protocols = {name: get_protocol(name) for name in PROTOCOLS}
    presets = protocols[request.protocol].presets if request.protocol in protocols else {}
    corruptions = [text.partition(":")[0] for text in split_names(request.corruptions)]
    for what, names, known in (
        ("protocol", (request.protocol,), list(protocols)),
        ("preset", (request.preset,), list(presets)),
        ("scorer", split_names(request.scorers), [*SCORERS, "all"]),
        ("corruption", corruptions, [*CORRUPTIONS, "all"]),
        ("fidelity", (request.fidelity,), list(FIDELITIES)),
    ):
        for name in names:
            if name not in known:
                raise UnknownName(what, name, [other for other in known if other != "all"])


def split_names(asked: tuple[str, ...]) -> tuple[str, ...]:
    """Names from comma-separated lists."""
    return tuple(part.strip() for text in asked for part in text.split(",") if part.strip())


def expand(asked: tuple[str, ...], known: list[str]) -> tuple[str, ...]:
    """Names from comma-separated lists; ``all`` is every known one.

    Raises:
        UserError: If none is named.

    Example:
        >>> expand(("a,b", "b"), ["a", "b", "c"]), expand(("all",), ["a", "b"])
        (('a', 'b'), ('a', 'b'))
    """
    names = split_names(asked)
    if not names:
        raise UserError("no method or data set was named; `bench list methods` and `bench list datasets` list them")
    return tuple(known) if "all" in names else tuple(dict.fromkeys(names))


def _with_folds(preset: Preset, request: RunRequest) -> Preset:
    if request.folds is None:
        return preset
    if request.folds > preset.folds or preset.folds == 1:
        raise UserError(
            f"--folds {request.folds}: preset {request.preset!r} cuts the development classes into {preset.folds}"
        )
    return replace(preset, validate=tuple(range(request.folds)))


def _check_fidelity(fidelity: str, methods: tuple[str, ...], site: Site) -> None:
    if not any(fidelity in site.methods.method(name).fidelities for name in methods):
        raise UserError(
            f"--fidelity {fidelity}: {', '.join(methods)} {'has' if len(methods) == 1 else 'have'} one form only,"
            " the corrected one (`bench show METHOD` says where a public code differs)"
        )
