"""What ``bench run`` was asked for, and what its names mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ..errors import UserError, unknown
from ..protocols import PROTOCOLS, get_protocol
from ..protocols._base import Preset, Protocol
from ..site import Site
from .corruptions import corruption_ranges
from .sources import Pin, SettingsFile, read_settings_file

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
class Experiment:
    """A request whose names were found and whose files were read.

    Attributes:
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
        base: Base of two-stage methods, if it is not the recipe's.
        backbone: Backbone, if it is not the recipe's.
        dim: Embedding size, if it is not the recipe's.
        scorers: Scorers to test with in addition to the usual ones.
        pins: Values fixed by hand.
        unusual_folds: How many blocks validate, if that is not what the preset does anyway.
        unusual_corruptions: Corruptions at severities that are not the usual ones, as text.
    """

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
    base: str | None
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
    if request.protocol not in PROTOCOLS:
        raise unknown("protocol", request.protocol, PROTOCOLS)
    protocol = get_protocol(request.protocol)
    if request.preset not in protocol.presets:
        raise unknown("preset", request.preset, protocol.presets)
    usual = protocol.presets[request.preset]
    if usual.trials == 0 and request.hparams == "tuned":
        raise UserError(
            f"protocol {request.protocol!r} holds no class out, so there is nothing to tune on: use --hparams default"
            " or a file"
        )
    preset = _with_folds(usual, request)
    ranges, unusual = corruption_ranges(request.corruptions, preset.tests.corruptions)
    methods = expand(request.methods, site.methods.names)
    datasets = expand(request.datasets, site.datasets.names)
    scorers = _scorers(request.scorers)
    _check_fidelity(request.fidelity, methods, site)
    for name in datasets:
        site.datasets.get(name)
    file = None
    if request.hparams not in ("tuned", "default", "published"):
        file = read_settings_file(request.hparams, site.methods.names)
    return Experiment(
        protocol=protocol,
        preset_name=request.preset,
        preset=replace(preset, tests=replace(preset.tests, corruptions=ranges)),
        methods=methods,
        datasets=datasets,
        fidelity=request.fidelity,
        seeds=request.seeds or preset.seeds,
        trials=(request.trials or preset.trials) if request.hparams == "tuned" else 0,
        sampler=request.sampler,
        hparams=request.hparams if file is None else file.label,
        file=file,
        base=request.base,
        backbone=request.backbone,
        dim=request.dim,
        scorers=scorers,
        pins=tuple(Pin.parse(text) for text in request.pins),
        unusual_folds=None if preset == usual else request.folds,
        unusual_corruptions=tuple(unusual),
    )


def expand(asked: tuple[str, ...], known: list[str]) -> tuple[str, ...]:
    """Names from comma-separated lists; ``all`` is every known one.

    Raises:
        UserError: If none is named.

    Example:
        >>> expand(("a,b", "b"), ["a", "b", "c"]), expand(("all",), ["a", "b"])
        (('a', 'b'), ('a', 'b'))
    """
    names = [part.strip() for text in asked for part in text.split(",") if part.strip()]
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


def _scorers(asked: tuple[str, ...]) -> tuple[str, ...]:
    from ..methods.scorers.registry import SCORERS

    names = expand(asked, list(SCORERS)) if asked else ()
    for name in names:
        if name not in SCORERS:
            raise unknown("scorer", name, SCORERS)
    return names


def _check_fidelity(fidelity: str, methods: tuple[str, ...], site: Site) -> None:
    if fidelity not in FIDELITIES:
        raise unknown("fidelity", fidelity, FIDELITIES)
    if not any(fidelity in site.methods.method(name).fidelities for name in methods):
        raise UserError(
            f"--fidelity {fidelity}: {', '.join(methods)} {'has' if len(methods) == 1 else 'have'} one form only,"
            " the corrected one (`bench show METHOD` says where a public code differs)"
        )
