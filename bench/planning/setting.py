"""A setting: everything about one method on one data set, merged from layers of values by key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ..errors import UnknownName, UserError, shortened
from ..protocols._base import Preset, Protocol
from ..protocols.recipes._base import BATCHES, Optim, Range, Recipe, Stage
from ..store.specs import Cell, Parameters, TuneFor
from .experiment import Experiment

if TYPE_CHECKING:
    from ..methods._base import Method

Values = Mapping[str, Any]
"""Values by key as ``--set`` has them, such as ``method.margin`` or ``optim.lr``; ``model.backbone`` and ``model.dim``
have options of their own. A layer has some of the keys; a later layer wins."""

LARGEST_INTEGER = 1_000_000
"""Largest whole number that a setting of the data or the optimiser may have."""

LARGEST_PARAMETER = 2**63 - 1
"""Largest whole number that a parameter of a method may have: more is no integer of a tensor."""

OPTIM_KEYS = tuple(item.name for item in fields(Optim))

FROZEN_OBJECTIVE_RATE = Range(1e-3, 1e-1, log=True)
"""Range of the learning rate of class weights and proxies if ``--frozen`` freezes the backbone: the frozen stage of a
recipe is made for heads of two-stage methods, which need none."""

FIDELITIES = ("corrected", "released", "released_per", "released_el")

_RELEASED_BY = {"reality_check": "released_per", "standardized": "released_el"}
"""The repository whose code a protocol stands for, where a method has a released form of each."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything about one method on one data set; the last fields are what checks of data and weights found.

    Attributes:
        requested: Whether the method was asked for by name, rather than as a base.
        select_by: Scorer that selects epochs and trials, if the user named one.
        differences: How a run at a published setting differs from what its authors ran.
        stage: Method of which this base is the first stage, at the setting published for it; else empty.
        corruptions: Corruptions asked for at severities that are not the default ones, as texts.
        folds: Number of folds that was asked for, if it is not the preset's.
        partial: Files that the data set lacks, if incomplete data are allowed.
        files: Hash of the content of its image files; empty for data sets that come with the installation.
        soft_labels: SHA-256 of label distributions by people; empty if there are none.
        weights: SHA-256 of the starting weights of the backbone; None for random ones.
        scorers: The scorers asked for that are defined for the method's distributions.
        adapted: Line about default batches that the data set is too small for, or empty.
        floor: Line about a network that stays as it starts, at random weights, or empty.
    """

    experiment: Experiment
    protocol: Protocol
    preset: Preset
    cell: Cell
    base: Setting | None = None
    requested: bool
    method: Method
    values: Values
    fixed: Values
    hparams: str
    space: Mapping[str, Range]
    select_by: str | None
    tune_for: TuneFor
    differences: tuple[str, ...] = ()
    stage: str = ""
    corruptions: tuple[str, ...]
    folds: int | None
    partial: str = ""
    files: str = ""
    soft_labels: str = ""
    weights: str | None = None
    scorers: tuple[str, ...] = ()
    adapted: str = ""
    floor: str = ""


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


def from_recipe(recipe: Recipe, stage: Stage) -> Values:
    """Default values of a data set for one stage of training: all but the method's parameters."""
    model = {"backbone": recipe.backbone, "dim": recipe.dim}
    data = {**recipe.batches(), **recipe.view}
    return layer(model=model, optim=stage.values(), data=data, augment=recipe.augmentation)


def from_preset(preset: Preset, recipe: Recipe, stage: Stage) -> Values:
    """Values by which a preset overrides the recipe of a data set of photographs; its stage only if that is trained."""
    if not recipe.view:
        return {}
    instead = preset.photographs
    optim = preset.optim if instead and stage is recipe.end_to_end else {}
    return layer(
        model={key: instead[key] for key in ("backbone", "dim") if key in instead},
        optim={key: value for key, value in optim.items() if key in OPTIM_KEYS},
        data={**{key: instead[key] for key in BATCHES if key in instead}, **preset.view},
        augment=instead.get("augmentation", {}),
    )


def from_fidelity(fidelity: str, recipe: Recipe) -> Values:
    """No public code divides the features of photographs by a constant, as is done by default."""
    return {"data.calibrate": False} if recipe.view and fidelity != "corrected" else {}


def usual_params(recipe: Recipe, preset: Preset, method: type[Method], form: str) -> Values:
    """Parameters that replace a method's own defaults: of its form, the data set and the preset; the last wins."""
    name = method.name
    return {**method.defaults(form), **recipe.methods.get(name, {}), **preset.methods.get(name, {})}


def from_user(texts: Mapping[str, str], method: type[Method], recipe: Recipe) -> Values:
    """Values fixed by the user that apply to one method on one data set; others are left out."""
    defaults = layer(
        method=dict.fromkeys(method.Params.model_fields, ""),  # pydantic converts and checks these
        optim=recipe.end_to_end.values() if method.by_steps else {},
        data={**recipe.view, **recipe.batches()},
        augment=recipe.augmentation,
    )
    return {key: convert(text, defaults[key], f"--set {key}") for key, text in texts.items() if key in defaults}


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


def checked_params(method: type[Method], params: Values) -> Parameters:
    """All parameters of a method by name, checked and with defaults filled in."""
    try:
        checked: Parameters = method.Params(**params).model_dump()
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
    for key, value in checked.items():
        if isinstance(value, int) and abs(value) > LARGEST_PARAMETER:
            raise UserError(f"method.{key}={shortened(str(value), 60)}: out of range")
    return checked


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
    if (end_to_end or frozen) and uses_objective_rate(method, base):
        trained.add("lr_objective")
        ranges = {"lr_objective": FROZEN_OBJECTIVE_RATE, **ranges} if frozen else ranges
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
    known = {f"optim.{key}" for key in OPTIM_KEYS}
    for recipe in recipes:
        known |= {*layer(augment=recipe.augmentation, data={**recipe.batches(), **recipe.view})}
    for method in methods:
        known |= {*layer(method=method.Params.model_fields)}
    return known
