"""Values of a setting by key, in layers of which a later one wins: their types, ranges and search ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from ..datasets.view import View
from ..errors import UnknownName, UserError, shortened
from ..methods._base import Method
from ..protocols._base import Preset
from ..protocols.recipes._base import BATCHES, Optim, Range, Recipe, Stage
from ..store.specs import HEAD_START, TRAIN_FROM, HeadStart, Parameters
from .experiment import Data, Values

M = TypeVar("M", bound=Method)

LARGEST_INTEGER = 1_000_000
"""Largest whole number that a setting of the data or the optimiser may have."""

LARGEST_PARAMETER = 2**63 - 1
"""Largest whole number that a parameter of a method may have: more is no integer of a tensor."""

OPTIM_KEYS = tuple(item.name for item in fields(Optim))

FROZEN_OBJECTIVE_RATE = Range(1e-3, 1e-1, log=True)
"""Range of the learning rate of class weights and proxies if ``--frozen`` freezes the backbone: the frozen stage of a
recipe is made for heads of two-stage methods, which need none."""

USUAL_START: HeadStart = "pca"
"""Start of the mean head on a frozen backbone; chosen on validation classes (docs/measurements.md)."""

_RELEASED_BY = {"reality_check": "released_per", "standardized": "released_el"}
"""The repository whose code a protocol stands for, where a method has a released form of each."""


def resolve_fidelity(method: type[Method], asked: str, protocol: str) -> str:
    """Form of a method that is computed if a fidelity is asked for, as stored in results and shown in tables.

    ``corrected`` follows the paper's equations, ``released`` the public code of the paper; if two repositories differ,
    the protocol chooses. ``released_per`` and ``released_el`` name the repository ("Probabilistic Embeddings
    Revisited", or EL-nivMF and NIR), whether or not the other has a form too. A method without the form that is asked
    for is used in its corrected form.
    """
    if asked == "released" and asked not in method.forms():
        asked = _RELEASED_BY.get(protocol, asked)
    if asked == f"released_{method.repository}" and asked not in method.forms():
        asked = "released"
    return asked if asked in method.forms() else "corrected"


def part(values: Values, group: str) -> Parameters:
    """Values of one group without its name; ``batches`` and ``view`` are the two parts of ``data``.

    Example:
        >>> part({"optim.lr": 0.1, "data.resize": 64, "data.pooling": "avg"}, "view")
        {'resize': 64}
    """
    if group in ("batches", "view"):
        return {key: value for key, value in part(values, "data").items() if (key in BATCHES) == (group == "batches")}
    return {key.removeprefix(f"{group}."): value for key, value in values.items() if key.startswith(f"{group}.")}


def layer(**groups: Values) -> Parameters:
    """A layer of values from groups of them.

    Example:
        >>> layer(optim={"lr": 0.1}, data={"pooling": "avg"})
        {'optim.lr': 0.1, 'data.pooling': 'avg'}
    """
    return {f"{group}.{key}": value for group, values in groups.items() for key, value in values.items()}


def head_start(method: type[Method], frozen: bool) -> Parameters:
    """Start of the mean head by name, if it is one on a frozen backbone that no base has trained; else nothing."""
    starts = frozen and method.by_steps and not method.on_base and "mean" in method.trains
    return {"head_start": USUAL_START} if starts else {}


def from_user(texts: Mapping[str, str], method: type[Method], recipe: Recipe, frozen: bool) -> Values:
    """Values fixed by the user that apply to one method on one data set; others are left out."""
    trains_backbone = not frozen and (method.on_base or "backbone" in method.trains)
    defaults = layer(
        model={**head_start(method, frozen), **({"train_from": ""} if trains_backbone else {})},
        method=dict.fromkeys(method.Params.model_fields, ""),  # pydantic converts and checks these
        optim=recipe.end_to_end.values() if method.by_steps else {},
        data={**_view(recipe), **recipe.batches()},
        augment=recipe.augmentation,
    )
    fixed = {key: convert(text, defaults[key], f"--set {key}") for key, text in texts.items() if key in defaults}
    start, known = fixed.get(HEAD_START, USUAL_START), get_args(HeadStart)
    if start not in known:
        raise UserError(f"--set {HEAD_START}={shortened(start, 60)}: expected {' or '.join(known)}")
    return fixed


def _view(recipe: Recipe) -> Parameters:
    """Settings of how photographs are read that can be fixed, also those that the recipe leaves at their defaults."""
    return {**asdict(View()), **recipe.view} if recipe.view else {}


def from_file(held: Values, path: str, method: type[Method], values: Values) -> Values:
    """Values of a file of settings for one method, of the types of the values that they override."""
    found = {}
    for key, value in held.items():
        if key.startswith("optim.") and key in values:
            value = convert(str(value), values[key], f"--hparams {path}: {key}")
        elif not key.startswith("method."):
            known = layer(optim=part(values, "optim"), method=method.Params.model_fields)
            raise UnknownName(f"setting in {path}", key, known)
        found[key] = value
    return found


def convert(text: str, default: Any, where: str) -> Any:
    """Convert a typed text to the type of a default value: text, a boolean, a number or a tuple of ascending numbers.

    ``where`` is the option or file that the text comes from, for the message of an error.

    Example:
        >>> convert("3", 1.0, "--set optim.lr"), convert("25,50", (), "--set optim.milestones")
        (3.0, [25, 50])
    """
    shown = f"{where}={shortened(text, 60)}"
    try:
        if isinstance(default, str):
            return text
        if isinstance(default, tuple | list):
            numbers = [int(part) for part in text.strip("[]()").split(",") if part.strip()]
            if numbers != sorted(set(numbers)) or min(numbers, default=1) < 1:
                raise ValueError
            if max(numbers, default=1) > LARGEST_INTEGER:
                raise UserError(f"{shown}: out of range")
            return numbers
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        value = type(default)(text)
    except (ValueError, KeyError):
        like = f"{type(default).__name__}, like {default!r}"
        if isinstance(default, bool):
            like = "true or false"
        elif isinstance(default, tuple | list):
            like = "ascending numbers, like 25,50"
        raise UserError(f"{shown}: expected {like}") from None
    if isinstance(value, int):
        fits = min(1, default) <= value <= LARGEST_INTEGER
    else:
        fits = math.isfinite(value) and value >= 0
    if not fits:
        raise UserError(f"{shown}: out of range")
    return value


def build(method: type[M], values: Values) -> M:
    """A method with the parameters among some values, which are checked, and its defaults for the others."""
    try:
        params = method.Params(**part(values, "method"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = [f"method.{key}" for key in method.Params.model_fields]
            raise UnknownName(f"parameter of {method.name}:", f"method.{where}", known) from None
        # Pydantic's prefix of what a validator raises.
        reason = first["msg"].removeprefix("Value error, ").lower()
        raise UserError(
            f"method.{where}={shortened(repr(first['input']), 60)} does not fit method {method.name!r}: {reason}"
            f" (see `bench show {method.name}`)"
        ) from None
    for key, value in params.model_dump().items():
        if isinstance(value, int) and abs(value) > LARGEST_PARAMETER:
            raise UserError(f"method.{key}={shortened(str(value), 60)}: out of range")
    return method(params)


def search_ranges(
    preset: Preset,
    recipe: Recipe,
    method: Method,
    stage: Stage,
    values: Values,
    base: Method | None,
    frozen: bool = False,
) -> dict[str, Range]:
    """Search ranges of a tuning study: of values of the method and its optimiser that have a range and an effect."""
    space = {}
    for key, field in method.Params.model_fields.items():
        extra = field.json_schema_extra
        if key not in method.without_effect and isinstance(extra, dict) and isinstance(extra.get("search"), dict):
            space[f"method.{key}"] = Range(**extra["search"])  # type: ignore[arg-type]
    if not method.by_steps:
        return space
    end_to_end = stage is recipe.end_to_end
    ranges: Mapping[str, Range] = stage.search
    if end_to_end and recipe.view and preset.photographs:
        ranges = preset.optim.get("search", ranges)
    trained = {"lr", "weight_decay"}
    if values["optim.schedule"] in ("step", "multistep"):
        trained.add("gamma")
    if uses_objective_rate(method, base):
        trained.add("lr_objective")
        ranges = {"lr_objective": FROZEN_OBJECTIVE_RATE, **ranges} if frozen or not end_to_end else ranges
    return space | layer(optim={key: r for key, r in ranges.items() if key in trained})


def uses_objective_rate(method: Method, base: Method | None = None) -> bool:
    """Check if a trained parameter of a method's objective learns at ``lr_objective``, the rate of class weights."""
    if "objective" not in method.trained_parts:
        return False
    try:
        objective = method.objective(2, 8, None if base is None else base.objective(2, 8))
    except Exception:  # of a plug-in; its training will say what is wrong with it
        return True
    special = dict(getattr(objective, "learning_rates", {}))
    for name, parameter in objective.named_parameters():
        rates = (rate for prefix, (rate, _) in special.items() if name.startswith(prefix))
        if parameter.requires_grad and next(rates, "lr_objective") == "lr_objective":
            return True
    return False


def known_keys(methods: list[type[Method]], recipes: list[Recipe]) -> set[str]:
    """Keys that ``--set`` accepts for some methods and data sets, such as ``method.margin``."""
    known = {f"optim.{key}" for key in OPTIM_KEYS} | {*layer(data=Data.model_fields)} | {HEAD_START, TRAIN_FROM}
    for recipe in recipes:
        known |= {*layer(augment=recipe.augmentation, data={**recipe.batches(), **_view(recipe)})}
    for method in methods:
        known |= {*layer(method=method.Params.model_fields)}
    return known
