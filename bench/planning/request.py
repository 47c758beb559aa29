"""The methods, data sets and presets that an experiment names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..datasets.corruptions.registry import CORRUPTIONS
from ..errors import UnknownName, UserError
from ..methods.scorers.registry import SCORERS
from ..protocols import PROTOCOLS, get_protocol
from ..protocols._base import Preset, Protocol
from ..protocols.recipes._base import Recipe
from ..site import Site
from ..store.specs import Cell, TuneFor
from .corruptions import corruption_ranges
from .experiment import Experiment, expand, split_names
from .pins import Pin
from .settings_file import SettingsFile, read_settings_file

if TYPE_CHECKING:
    from ..methods._base import Method

FIDELITIES = ("corrected", "released", "released_per", "released_el")

_RELEASED_BY = {"reality_check": "released_per", "standardized": "released_el"}
"""The repository whose code a protocol stands for, where a method has a released form of each."""


class Place(NamedTuple):
    """Place of a method in an experiment: on its own, or as the first stage (base) of one two-stage method (head).

    Attributes:
        cell: Protocol, data set and method.
        head: Name of the two-stage method whose first stage this is, if that stage has a setting of its own; else
            empty.
    """

    cell: Cell
    head: str = ""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One cell (protocol, data set, method) of an experiment, with the settings pinned (fixed by the user) for it.

    Attributes:
        place: The cell, and the two-stage method whose first stage it is, if it serves that one alone.
        recipe: Recipe (default training settings) of the data set.
        base: Place of its base in the experiment, for two-stage methods.
        requested: Whether the method was asked for by name, rather than as a base.
        pins: Settings pinned by the user. What is pinned for a method is not pinned for a base that only serves it,
            unless it concerns the data.
    """

    place: Place
    recipe: Recipe
    base: Place | None
    requested: bool
    pins: tuple[Pin, ...]

    @property
    def cell(self) -> Cell:
        """Protocol, data set and method of the request."""
        return self.place.cell


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A request of ``bench run`` after all names were looked up and all files read.

    Attributes:
        requests: Every cell (protocol, data set, method), each base before the methods that use it.
        protocol: The protocol.
        preset_name: Name of its preset.
        preset: The preset (variant of the protocol), with the folds and corruptions that were asked for.
        methods: Methods that were asked for by name.
        left_out: A line for every method that ``all`` stands for and a single seed cannot make.
        datasets: Data sets that were asked for.
        fidelity: The fidelity asked for, one of :data:`FIDELITIES`: ``corrected``, or ``released`` (``released_per``,
            ``released_el``) for what public code computes. :func:`resolve_fidelity` finds the form of each method.
        seeds: Number of replicates (seeds).
        trials: Number of tuning trials; 0 if nothing is tuned.
        sampler: ``gp`` or ``tpe``.
        tune_for: What trials are chosen for: ``retrieval``, ``confidence`` or ``both``.
        hparams: ``tuned``, ``default``, ``published``, or the label of ``file``.
        file: Settings from a file.
        backbone: Backbone; None for that of the recipe (default training settings of a data set).
        dim: Embedding size; None for the recipe's.
        frozen: Whether the backbone stays at its starting weights.
        scorers: Scorers to test with in addition to a method's own and the cosine.
        select_by: Scorer of the validation MAP@R that selects epochs and trials; None for each method's own.
        pins: Settings pinned (fixed) by the user.
        unusual_folds: Number of blocks of development classes (all but the test classes) that validate in turn, if it
            is not the preset's; else None.
        unusual_corruptions: Corruptions asked for at severities that are not the default ones, as text.
    """

    requests: tuple[Request, ...]
    protocol: Protocol
    preset_name: str
    preset: Preset
    methods: tuple[str, ...]
    left_out: tuple[str, ...]
    datasets: tuple[str, ...]
    fidelity: str
    seeds: int
    trials: int
    sampler: Literal["gp", "tpe"]
    tune_for: TuneFor
    hparams: str
    file: SettingsFile | None
    backbone: str | None
    dim: int | None
    frozen: bool
    scorers: tuple[str, ...]
    select_by: str | None
    pins: tuple[Pin, ...]
    unusual_folds: int | None
    unusual_corruptions: tuple[str, ...]


def resolve(request: Experiment, site: Site) -> Resolved:
    """Look up all that a request names, read its file of settings, and list its cells (protocol, data set, method).

    Args:
        request: The options of ``bench run`` that decide about results.
        site: Paths, plug-ins and device.

    Raises:
        UserError: If a name or a value is not known, with what to do.
    """
    groups_of_plugins = site.plugin_tests
    _check_names(request)
    protocol = get_protocol(request.protocol)
    usual = protocol.presets[request.preset]
    _check_tune_for(request, usual)
    if usual.trials == 0 and request.hparams == "tuned":
        raise UserError(
            f"protocol {request.protocol!r} holds out no classes, so there is nothing to tune on: use --hparams default"
            " or a file"
        )
    if request.tuning.select_by is not None and usual.selection.metric == "last":
        raise UserError(
            f"--select-by {request.tuning.select_by}: protocol {request.protocol!r} keeps the last epoch and selects"
            " nothing"
        )
    if request.frozen and request.hparams == "published":
        raise UserError(
            "--frozen: published settings are those of trained backbones; use --hparams tuned, default or a file"
        )
    preset = _with_folds(usual, request)
    seeds = request.seeds or preset.seeds
    methods, left_out = _without_lone(request, expand(request.methods, site.methods.names), seeds, site)
    datasets = expand(request.datasets, site.datasets.names)
    _check_fidelity(request, methods, site)
    pins = tuple(Pin(key, text) for key, text in request.set.items())
    requests = [each for dataset in datasets for each in _cells(request, dataset, methods, pins, site)]
    ranges, unusual = corruption_ranges(request.corruptions, preset.tests.corruptions)
    groups = tuple(dict.fromkeys([*preset.tests.groups, *groups_of_plugins]))
    file = None
    if request.hparams not in ("tuned", "default", "published"):
        file = read_settings_file(request.hparams, site.methods.names)
    return Resolved(
        requests=tuple(requests),
        protocol=protocol,
        preset_name=request.preset,
        preset=replace(preset, tests=replace(preset.tests, groups=groups, corruptions=ranges)),
        methods=methods,
        left_out=left_out,
        datasets=datasets,
        fidelity=request.fidelity,
        seeds=seeds,
        trials=(request.trials or preset.trials) if request.hparams == "tuned" else 0,
        sampler=request.tuning.sampler,
        tune_for=request.tuning.tune_for,
        hparams=request.hparams if file is None else file.label,
        file=file,
        backbone=request.backbone,
        dim=request.dim,
        frozen=request.frozen,
        scorers=expand(request.scorers, list(SCORERS)) if request.scorers else (),
        select_by=request.tuning.select_by,
        pins=pins,
        unusual_folds=None if preset == usual else request.tuning.folds,
        unusual_corruptions=tuple(unusual),
    )


def _cells(
    request: Experiment, dataset: str, methods: tuple[str, ...], pins: tuple[Pin, ...], site: Site
) -> Iterator[Request]:
    """Cells of a data set, each once, every base right before the first method that needs it.

    A head with a published setting has a published first stage too: its base is there once more, for it alone.
    """
    recipe = site.recipe(dataset)
    base_name = request.base or recipe.base
    shared = tuple(pin for pin in pins if pin.shared)
    done: set[Place] = set()
    for name in methods:
        own = Place(Cell(request.protocol, dataset, name))
        on_base = site.methods.method(name).on_base
        if on_base and site.methods.method(base_name).on_base:
            raise UserError(f"--base {base_name}: {base_name!r} needs a base itself; name a one-stage method")
        if site.methods.method(name).ensemble and not _classifies(site.methods.method(base_name)):
            raise UserError(
                f"--base {base_name}: {name!r} needs a base with a classifier of the training classes;"
                f" leave --base out for the recipe's, {recipe.base!r}"
            )
        if on_base and request.base:
            _check_fit(site.methods.method(name), site.methods.method(base_name))
        base = Place(Cell(request.protocol, dataset, base_name), name if request.hparams == "published" else "")
        for place in [base, own] if on_base else [own]:
            if place not in done:
                done.add(place)
                named = place.cell.method in methods
                yield Request(
                    place=place,
                    recipe=recipe,
                    base=base if on_base and place == own else None,
                    requested=named and not place.head,
                    pins=pins if named else shared,
                )


def _classifies(method: type[Method]) -> bool:
    """Check if the objective of a one-stage method has class probabilities."""
    return hasattr(method().objective(2, 8), "class_cosines")


def _check_fit(method: type[Method], base: type[Method]) -> None:
    """Refuse a base without what a method needs of it, before the base is trained."""
    from ..methods._base import UnfitBase

    if method.ensemble or method.fitted:
        return  # they have no objective that would use the base's
    try:
        method().objective(2, 8, base().objective(2, 8))
    except UnfitBase as error:
        raise UserError(f"--base {base.name}: {error}") from None


def _check_names(request: Experiment) -> None:
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
        ("scorer", () if request.tuning.select_by is None else (request.tuning.select_by,), list(SCORERS)),
        ("corruption", corruptions, [*CORRUPTIONS, "all"]),
        ("fidelity", (request.fidelity,), list(FIDELITIES)),
    ):
        for name in names:
            if name not in known:
                raise UnknownName(what, name, [other for other in known if other != "all"])


def _without_lone(
    request: Experiment, methods: tuple[str, ...], seeds: int, site: Site
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Methods without those that a single seed cannot make, and a line about each of these.

    Raises:
        UserError: If one was asked for by name, not by ``all``.
    """
    lone = [name for name in methods if site.methods.method(name).ensemble] if seeds == 1 else []
    lines = tuple(f"{name}: an ensemble of the models of all seeds; use --seeds 2 or more" for name in lone)
    if lone and "all" not in split_names(request.methods):
        raise UserError(f"--seeds 1: {lines[0]}")
    return tuple(name for name in methods if name not in lone), lines


def _with_folds(preset: Preset, request: Experiment) -> Preset:
    folds = request.tuning.folds
    if folds is None:
        return preset
    if folds > preset.folds or preset.folds == 1:
        raise UserError(f"--folds {folds}: preset {request.preset!r} cuts the development classes into {preset.folds}")
    return replace(preset, validate=tuple(range(folds)))


def resolve_fidelity(method: type[Method], asked: str, protocol: str) -> str:
    """Form of a method that is computed if a fidelity is asked for, as stored in results and shown in tables.

    ``corrected`` follows the paper's equations, ``released`` the public code of the paper; if two repositories differ,
    the protocol chooses. ``released_per`` and ``released_el`` name the repository ("Probabilistic Embeddings
    Revisited", or EL-nivMF and NIR), whether or not the other has a form too. A method without the form that is asked
    for is used in its corrected form.

    Args:
        method: Class of the method.
        asked: The fidelity asked for, one of :data:`FIDELITIES`.
        protocol: Name of the protocol.
    """
    if asked == "released" and asked not in method.fidelities:
        asked = _RELEASED_BY.get(protocol, asked)
    if asked == f"released_{method.repository}" and asked not in method.fidelities:
        asked = "released"
    return asked if asked in method.fidelities else "corrected"


def _check_tune_for(request: Experiment, preset: Preset) -> None:
    """Refuse to tune for a confidence if nothing is tuned, or by a protocol that selects by MAP@R alone.

    Raises:
        UserError: With the reason.
    """
    if request.tuning.tune_for == "retrieval":
        return
    reason = ""
    if preset.trials == 0:
        reason = f"protocol {request.protocol!r} holds out no classes and tunes nothing"
    elif request.hparams != "tuned":
        reason = f"--hparams {request.hparams} tunes nothing; leave out one of the two"
    elif preset.selection.reranked:
        # Its trials are chosen as in public code, by a re-ranked MAP@R: there is no such confidence.
        reason = f"preset {request.preset!r} selects everything by MAP@R, as the public code does; use another preset"
    if reason:
        raise UserError(f"--tune-for {request.tuning.tune_for}: {reason}")


def _check_fidelity(request: Experiment, methods: tuple[str, ...], site: Site) -> None:
    fidelity, classes = request.fidelity, [site.methods.method(name) for name in methods]
    forms = {resolve_fidelity(each, fidelity, request.protocol) for each in classes}
    if fidelity != "corrected" and forms == {"corrected"}:
        raise UserError(
            f"--fidelity {fidelity}: {', '.join(methods)} {'has' if len(methods) == 1 else 'have'} one form only,"
            " the corrected one (`bench show METHOD` says where a public code differs)"
        )
