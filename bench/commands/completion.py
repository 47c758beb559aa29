"""Shell completion of names: methods, data sets, protocols, presets, scorers, corruptions, tests, backbones.

Nothing here imports torch or a plug-in's dependencies: names come from syntax trees and tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from inspect import isfunction
from pathlib import Path

import typer

from ..errors import UserError

Known = Callable[[typer.Context], Iterable[str]]
Completer = Callable[[typer.Context, str], list[str]]


def _one(known: Known) -> Completer:
    """Complete a single name."""
    return lambda ctx, incomplete: _matching(known, ctx, incomplete)


def _listed(known: Known) -> Completer:
    """Complete the last item of a comma-separated list; items that are already there are not offered again."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        done, comma, last = incomplete.rpartition(",")
        given = done.split(",")
        return [f"{done}{comma}{name}" for name in _matching(known, ctx, last) if name not in given]

    return complete


def _matching(known: Known, ctx: typer.Context, start: str) -> list[str]:
    # An error message in the middle of a command line would help nobody; the command itself reports it.
    with suppress(UserError):
        return [name for name in known(ctx) if name.startswith(start)]
    return []


def _registered(kind: str, ctx: typer.Context) -> list[str]:
    from ..registry import Registry

    return Registry(kind, tuple(Path(path) for path in ctx.params.get("plugin") or ())).names


def _names(module: str, attribute: str) -> Known:
    """Names that a module has as an iterable, or as a function that returns one."""

    def known(ctx: typer.Context) -> Iterable[str]:
        found = getattr(import_module(module, __package__), attribute)
        names: Iterable[str] = found() if isfunction(found) else found
        return names

    return known


_methods, _datasets = partial(_registered, "methods"), partial(_registered, "datasets")
_protocols = _names("..protocols._base", "PROTOCOLS")
_scorers = _names("..methods.scorers.registry", "SCORERS")
_tests = _names("..protocols.known_tests", "known_groups")


def _presets(ctx: typer.Context) -> Iterable[str]:
    """Presets of the protocol that was typed before; of every protocol if there is none of that name."""
    from ..protocols._base import PROTOCOLS, get_protocol

    asked = ctx.params.get("protocol")
    names = [asked] if asked in PROTOCOLS else PROTOCOLS
    return dict.fromkeys(preset for name in names for preset in get_protocol(name).presets)


def _backbones(ctx: typer.Context) -> Iterable[str]:
    """Backbones of this package, of the recipes and of a protocol; not the thousand others of timm."""
    from ..methods.backbones.registry import MODULES
    from ..protocols.recipes._base import RECIPES, get_recipe
    from ..protocols.standardized import PHOTOGRAPHS

    return sorted({*MODULES, PHOTOGRAPHS["backbone"], *(get_recipe(name).backbone for name in RECIPES)})


def _with_all(known: Known) -> Known:
    return lambda ctx: [*known(ctx), "all"]


LISTED = _one(_names(".catalogue", "LISTED"))
METHOD = _one(_methods)
METHODS = _listed(_with_all(_methods))
DATASET = _one(_datasets)
DATASETS = _listed(_with_all(_datasets))
PROTOCOL = _one(_protocols)
PRESET = _one(_presets)
FIDELITY = _one(_names("..planning.asked", "FIDELITIES"))
SCORERS = _listed(_scorers)
SCORERS_OR_ALL = _listed(_with_all(_scorers))
CORRUPTIONS = _listed(_with_all(_names("..datasets.corruptions.registry", "CORRUPTIONS")))
METRICS = _listed(_with_all(_names("..protocols.metrics", "metric_requests")))
TESTS = _listed(_with_all(_tests))
GROUPS = _listed(_tests)
BACKBONE = _one(_backbones)
POOLING = _one(_names("..methods.backbones.registry", "POOLINGS"))
ENTRY = _one(lambda ctx: [*_methods(ctx), *_datasets(ctx), *_protocols(ctx)])
HPARAMS = _one(lambda ctx: ("tuned", "default", "published"))
