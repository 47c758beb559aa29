"""Reading what was asked for: names, pinned values, setting files and published settings."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import UserError, unknown
from ..protocols.recipes import Optim, Recipe, get_recipe
from .context import Context
from .published import DATASETS, Published, published_settings


class RunSettings(BaseModel):
    """What ``bench run`` was asked for; None leaves it to the protocol's preset."""

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
    weights: str | None = None
    dim: int | None = Field(None, ge=2)
    scorers: tuple[str, ...] = ()
    corruptions: tuple[str, ...] = ()
    sets: tuple[tuple[str, str], ...] = ()


class NothingPublished(UserError):
    """A method has no published setting for a data set and network."""


def expand(asked: tuple[str, ...], known: list[str]) -> list[str]:
    """Names from comma-separated lists; ``all`` is every known one."""
    names = [part.strip() for text in asked for part in text.split(",") if part.strip()]
    if not names:
        raise UserError("no method or data set was named; `bench list methods` and `bench list datasets` list them")
    if "all" in names:
        return known
    return list(dict.fromkeys(names))


def corruption_ranges(
    asked: tuple[str, ...], preset: Mapping[str, tuple[float, float]]
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """Which corruptions are tested, and how severe they are.

    Args:
        asked: Comma-separated ``NAME``, ``NAME:LEVEL``, ``NAME:LEVEL-LEVEL`` (levels 1 to 5 are fifths) or
            ``NAME:LOW-HIGH`` (severities in [0, 1], told from levels by a decimal point); ``all`` is every kind that is
            not named.
        preset: What is tested if nothing is asked for, and how severe that is.

    Returns:
        Smallest and largest severity by kind, and the kinds whose severities are not the usual ones, as text.

    Raises:
        UserError: If a kind is unknown or named twice, or a range is none.
    """
    from ..datasets import CORRUPTIONS

    if not asked:
        return dict(preset), []
    usual = {name: preset.get(name, (kind.low, kind.high)) for name, kind in CORRUPTIONS.items()}
    ranges: dict[str, tuple[float, float]] = {}
    named = [part.strip() for text in asked for part in text.split(",") if part.strip()]
    if "all" in named:
        named = [text for text in named if text != "all"]
        named += [name for name in CORRUPTIONS if name not in {text.partition(":")[0] for text in named}]
    if not named:
        raise UserError(f"--corruptions names none; use {', '.join(CORRUPTIONS)} or all")
    for text in named:
        name, colon, bounds = text.partition(":")
        if name not in CORRUPTIONS:
            raise unknown("corruption", name, CORRUPTIONS)
        if name in ranges:
            raise UserError(f"--corruptions {text}: {name} is named twice; one range holds every severity between")
        ranges[name] = _severities(name, text, bounds) if colon else usual[name]
    # The order in which they were typed sets nothing apart.
    ranges = {name: ranges[name] for name in CORRUPTIONS if name in ranges}
    apart = [
        f"{name}:{low}" + (f"-{high}" if high != low else "")
        for name, (low, high) in ranges.items()
        if (low, high) != usual[name]
    ]
    return ranges, apart


def _severities(name: str, text: str, bounds: str) -> tuple[float, float]:
    from ..datasets.corruptions import LEVELS, check_range

    low, dash, high = bounds.partition("-")
    ends = [low, high if dash else low]
    # A decimal point tells a severity from a level: 1 is the mildest of five, 1.0 the strongest there is.
    by_level = not any("." in end for end in ends)
    try:
        numbers = [int(end) / LEVELS if by_level else float(end) for end in ends]
        if by_level and not 0 < min(numbers) <= max(numbers) <= 1:
            raise ValueError
    except ValueError:
        raise UserError(
            f"--corruptions {text}: expected a level from 1 to {LEVELS} ({name}:3, {name}:1-4) or severities with a"
            f" decimal point ({name}:0.2-0.8)"
        ) from None
    try:
        check_range(name, numbers[0], numbers[1])
    except ValueError as error:
        raise UserError(f"--corruptions {text}: {error}") from None
    return numbers[0], numbers[1]


DATA_KEYS = ("classes_per_batch", "images_per_class", "feature_views", "freeze_norm", "epoch_repeats")


def overrides_of(settings: RunSettings, method: Any, recipe: Recipe, used: set[str]) -> dict[str, dict[str, Any]]:
    """The ``--set`` values that this method takes, by group."""
    known: dict[str, set[str]] = {
        "method": set(method.Params.model_fields),
        "optim": {f.name for f in fields(Optim)} - {"search"},
        "data": set(DATA_KEYS),
        "view": set(recipe.view),
        "augment": set(recipe.augmentation),
    }
    result: dict[str, dict[str, Any]] = {group: {} for group in known}
    reference = {
        "optim": asdict(recipe.end_to_end),
        "data": {key: getattr(recipe, key) for key in DATA_KEYS},
        "view": dict(recipe.view),
        "augment": dict(recipe.augmentation),
    }
    for key, text in settings.sets:
        group, _, field = key.partition(".")
        # How images are read is set as data.*, like everything else about them.
        group = "view" if group == "data" and field in known["view"] else group
        if group not in known or field not in known[group]:
            continue
        used.add(key)
        # pydantic converts and checks the values of a method's own parameters.
        result[group][field] = text if group == "method" else _like(reference[group][field], key, text)
    return result


def _like(default: Any, key: str, text: str, where: str = "--set") -> Any:
    """A value of the type of another one; ``where`` it came from is named if it does not fit."""
    try:
        if isinstance(default, str):
            return text
        if isinstance(default, tuple):
            numbers = [int(part) for part in text.strip("[]").split(",") if part.strip()]
            if numbers != sorted(set(numbers)) or min(numbers, default=1) < 1:
                raise ValueError
            return numbers
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        value = type(default)(text)
    except (ValueError, KeyError):
        like = f"{type(default).__name__}, like {default!r}"
        if isinstance(default, bool):
            like = "true or false"
        elif isinstance(default, tuple):
            like = "ascending numbers, like 25,50"
        raise UserError(f"{where} {key}={text}: expected {like}") from None
    if not math.isfinite(value) or value < 0 or (isinstance(value, int) and value < min(1, default)):
        raise UserError(f"{where} {key}={text}: out of range")
    return value


def unknown_key(
    key: str, settings: RunSettings, context: Context, methods: list[str], datasets: list[str]
) -> UserError:
    """The error for a ``--set`` key that no method or data set of this run has, with the nearest one."""
    known = {f"optim.{f.name}" for f in fields(Optim)} - {"optim.search"}
    known |= {f"data.{name}" for name in DATA_KEYS}
    for dataset in datasets:
        known |= {f"augment.{name}" for name in get_recipe(dataset).augmentation}
        known |= {f"data.{name}" for name in get_recipe(dataset).view}
    for name in methods:
        known |= {f"method.{field}" for field in context.methods.get(name).load().Params.model_fields}
    return unknown("--set key", key, known)


def validated(method: Any, params: dict[str, Any], name: str) -> dict[str, Any]:
    """All parameters of a method, defaults filled in.

    Raises:
        UserError: If one is unknown or does not fit.
    """
    try:
        return dict(method.Params(**params).model_dump())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = [f"method.{key}" for key in method.Params.model_fields]
            raise unknown(f"parameter of {name}:", f"method.{where}", known) from None
        raise UserError(
            f"method.{where}={first['input']!r} does not fit method {name!r}: {first['msg'].lower()}"
            f" (see `bench show {name}`)"
        ) from None


def apply_file(path: Path, name: str, template: dict[str, Any], method: Any, methods: list[str]) -> str:
    """Settings from a JSON or TOML file: ``{"method.scale": ..}`` for all methods, or ``{"cosface": {..}}``."""
    try:
        text = path.read_bytes()
        held = tomllib.loads(text.decode()) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise UserError(f"--hparams {path}: {error.strerror}; use tuned, default, published or a file") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(
            f"--hparams {path}: not valid {'TOML' if path.suffix == '.toml' else 'JSON'}: {error}"
        ) from None
    if not isinstance(held, dict):
        raise UserError(f'--hparams {path}: expected a table of settings, like {{"method.scale": 16}}')
    tables = {key: value for key, value in held.items() if isinstance(value, dict)}
    for key in tables:
        if key not in methods:
            raise unknown(f"method in {path}:", key, methods)
    # What stands at the top is for every method; a method's own table comes on top of it.
    mine = {key: value for key, value in held.items() if key not in tables} | tables.get(name, {})
    params = dict(template["params"])
    for key, value in mine.items():
        group, _, field = key.partition(".")
        if group == "method":
            params[field] = value
        elif group == "optim" and field in template["optim"]:
            template["optim"][field] = _like(template["optim"][field], key, str(value), f"--hparams {path}:")
        else:
            known = [f"optim.{k}" for k in template["optim"]] + [f"method.{k}" for k in method.Params.model_fields]
            raise unknown(f"setting in {path}", key, known)
    template["params"] = validated(method, params, name)
    # The same file name with other content must not share a label with the old one.
    return f"{path.name}#{hashlib.sha256(text).hexdigest()[:8]}"


def published_or_refuse(
    method: Any, dataset: str, base: str, network: str, fidelity: str, params: Mapping[str, Any]
) -> Published:
    """The published setting of a method for a network.

    Args:
        method: Class of the method.
        dataset: Name of the data set.
        base: Base method of two-stage methods.
        network: Backbone and embedding size, such as ``bn_inception/128``.
        fidelity: ``corrected`` or ``released``.
        params: All parameters of the method as pinned or by default; they may choose among several settings.

    Raises:
        NothingPublished: If there is none, or none for this network or form, with where there are some.
    """
    every = published_settings(method, dataset, base)
    fitting = [item for item in every if all(params.get(name) == value for name, value in item.kind.items())]
    found = {item.network: item for item in fitting}
    if every and not found:
        kinds = ", ".join(sorted({" ".join(f"{k}={v}" for k, v in item.kind.items()) for item in every}))
        raise NothingPublished(f"published settings of {method.name} on {dataset} are for {kinds}; pin one of these")
    if not found:
        on_base = f" on {base}" if method.on_base else ""
        where = [name for name in DATASETS if published_settings(method, name, base)]
        tail = f"; {method.name} has them for {', '.join(where)}" if where else ""
        raise NothingPublished(
            f"no published setting of {method.name!r}{on_base} on {dataset!r}{tail}; use --hparams tuned or default"
        )
    if network not in found:
        raise NothingPublished(
            f"published settings of {method.name} on {dataset} are for {' and '.join(found)}, not {network}; set"
            " --backbone and --dim, or use --hparams tuned or default"
        )
    if found[network].released_only and fidelity != "released":
        raise NothingPublished(
            f"the published setting of {method.name} is for what its public code computes; add --fidelity released, or"
            " use --hparams tuned or default"
        )
    return found[network]


def apply_published(
    template: dict[str, Any], method: Any, found: Published, overrides: dict[str, dict[str, Any]]
) -> None:
    """Replace the template's setting by the published one; what ``--set`` pins stays pinned."""
    params = {**template["params"], **found.params, **overrides["method"]}
    template["params"] = validated(method, params, method.name)
    template["optim"] = {**template["optim"], **found.optim, **overrides["optim"]}
