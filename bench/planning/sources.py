"""Where settings come from: recipe, preset, published settings, a file, pinned values. Each source gives one layer."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, unknown
from ..protocols._base import Preset
from ..protocols.recipes._base import Optim, Range, Recipe, Stage
from ..specs import Batches, Parameters
from .setting import Setting, Values

if TYPE_CHECKING:
    from ..methods._base import Method

OPTIM_KEYS = tuple(item.name for item in fields(Optim))
DATA_KEYS = tuple(Batches.model_fields)
COMMAND_LINE = {"params": "method", "optim": "optim", "batches": "data", "view": "data", "augmentation": "augment"}
"""Groups of a setting as ``--set`` and files name them."""


@dataclass(frozen=True)
class Pin:
    """A value fixed by hand: ``--set key=text``, with ``key`` such as ``method.margin``."""

    key: str
    text: str

    @classmethod
    def parse(cls, text: str) -> Pin:
        """Read ``KEY=VALUE``.

        Raises:
            UserError: If there is no equals sign.
        """
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: expected KEY=VALUE, such as method.margin=0.3")
        return cls(key.strip(), value.strip())

    @property
    def shared(self) -> bool:
        """Whether it is about the data, which a method has in common with its base."""
        return self.key.split(".")[0] in ("data", "augment")


def from_recipe(recipe: Recipe, method: str, stage: Stage) -> Setting:
    """Defaults of a data set for one stage of training."""
    return Setting(
        network={"backbone": recipe.backbone, "dim": recipe.dim},
        params=recipe.methods.get(method, {}),
        optim=stage.values(),
        batches={key: getattr(recipe, key) for key in DATA_KEYS},
        view=recipe.view,
        augmentation=recipe.augmentation,
    )


def from_preset(preset: Preset, recipe: Recipe, method: str, stage: Stage) -> Setting:
    """What a preset has instead of the recipe's values; mostly about photographs."""
    params = preset.methods.get(method, {})
    if not recipe.view:
        return Setting(params=params)
    instead = preset.photographs
    return Setting(
        network={key: instead[key] for key in ("backbone", "dim") if key in instead},
        params=params,
        optim={key: value for key, value in preset.optim.items() if key in OPTIM_KEYS}
        if instead and stage is recipe.end_to_end
        else {},
        batches={key: instead[key] for key in DATA_KEYS if key in instead},
        view=preset.view,
        augmentation=instead.get("augmentation", {}),
    )


def search_ranges(
    preset: Preset, recipe: Recipe, method: type[Method], stage: Stage, pinned: Setting
) -> dict[str, Range]:
    """What is tuned: the parameters of the method and of the optimiser that have a range and are not pinned."""
    space = {}
    for key, field in method.Params.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and isinstance(extra.get("search"), dict) and key not in pinned.params:
            space[f"method.{key}"] = Range(**extra["search"])  # type: ignore[arg-type]
    end_to_end = stage is recipe.end_to_end
    ranges: Mapping[str, Range] = stage.search
    if end_to_end and recipe.view and preset.photographs:
        ranges = preset.optim.get("search", ranges)
    trained = {"lr", "weight_decay", "gamma"} | ({"lr_objective"} if end_to_end else set())
    space |= {f"optim.{key}": r for key, r in ranges.items() if key in trained and key not in pinned.optim}
    return space


def from_pins(pins: tuple[Pin, ...], method: type[Method], recipe: Recipe) -> tuple[Setting, frozenset[str]]:
    """The pinned values that a method and a data set have, and their keys.

    Raises:
        UserError: If a value does not fit.
    """
    values: dict[str, dict[str, Any]] = {group: {} for group in COMMAND_LINE}
    defaults: dict[str, Values] = {
        "params": dict.fromkeys(method.Params.model_fields, ""),  # pydantic converts and checks these
        "optim": recipe.end_to_end.values(),
        "batches": {key: getattr(recipe, key) for key in DATA_KEYS},
        "view": recipe.view,
        "augmentation": recipe.augmentation,
    }
    taken = set()
    for pin in pins:
        prefix, _, name = pin.key.partition(".")
        for group, title in COMMAND_LINE.items():
            if title == prefix and name in defaults[group]:
                values[group][name] = convert(pin.text, defaults[group][name], f"--set {pin.key}")
                taken.add(pin.key)
    return Setting(**values), frozenset(taken)


def pinned_text(pinned: Setting) -> list[str]:
    """Pinned values as text, in the order of the groups."""
    return [
        f"{title}.{key}={value}"
        for group, title in COMMAND_LINE.items()
        for key, value in sorted(getattr(pinned, group).items())
    ]


def known_keys(methods: list[type[Method]], recipes: list[Recipe]) -> set[str]:
    """Every key that ``--set`` takes for some methods and data sets."""
    known = {f"optim.{key}" for key in OPTIM_KEYS} | {f"data.{key}" for key in DATA_KEYS}
    for recipe in recipes:
        known |= {f"augment.{key}" for key in recipe.augmentation} | {f"data.{key}" for key in recipe.view}
    for method in methods:
        known |= {f"method.{key}" for key in method.Params.model_fields}
    return known


def convert(text: str, default: Any, where: str) -> Any:
    """A value of the type of a default.

    Args:
        text: As typed.
        default: Text, a boolean, a number, or a tuple of ascending numbers.
        where: What to blame.

    Raises:
        UserError: If the text does not fit.

    Example:
        >>> convert("3", 1.0, "--set optim.lr"), convert("25,50", (), "--set optim.milestones")
        (3.0, [25, 50])
    """
    try:
        if isinstance(default, str):
            return text
        if isinstance(default, tuple | list):
            numbers = [int(part) for part in text.strip("[]()").split(",") if part.strip()]
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
        elif isinstance(default, tuple | list):
            like = "ascending numbers, like 25,50"
        raise UserError(f"{where}={text}: expected {like}") from None
    if not math.isfinite(value) or value < 0 or (isinstance(value, int) and value < min(1, default)):
        raise UserError(f"{where}={text}: out of range")
    return value


@dataclass(frozen=True)
class SettingsFile:
    """Settings of a JSON or TOML file.

    Attributes:
        label: Its name with a hash of its content: the same name with other content is another label.
        shared: Values for all methods, by key.
        by_method: Values of single methods, which win.
    """

    path: str
    label: str
    shared: Values
    by_method: Mapping[str, Values]

    def layer(self, method: type[Method], defaults: Setting) -> Setting:
        """The layer of one method.

        Args:
            method: Its class.
            defaults: Setting below, whose types the values must have.

        Raises:
            UserError: If a key is unknown or a value does not fit.
        """
        params: Parameters = {}
        optim: Parameters = {}
        for key, value in {**self.shared, **self.by_method.get(method.name, {})}.items():
            group, _, name = key.partition(".")
            if group == "method":
                params[name] = value
            elif group == "optim" and name in defaults.optim:
                optim[name] = convert(str(value), defaults.optim[name], f"--hparams {self.path}: {key}")
            else:
                known = [f"optim.{k}" for k in defaults.optim] + [f"method.{k}" for k in method.Params.model_fields]
                raise unknown(f"setting in {self.path}", key, known)
        return Setting(params=params, optim=optim)


def read_settings_file(name: str, methods: list[str]) -> SettingsFile:
    """Read ``{"method.scale": ..}`` for all methods, or ``{"cosface": {..}}``, or both.

    Raises:
        UserError: If the file cannot be read, or names an unknown method.
    """
    path = Path(name)
    try:
        text = path.read_bytes()
        table = tomllib.loads(text.decode()) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise UserError(f"--hparams {path}: {error.strerror}; use tuned, default, published or a file") from error
    except (ValueError, UnicodeDecodeError) as error:
        language = "TOML" if path.suffix == ".toml" else "JSON"
        raise UserError(f"--hparams {path}: not valid {language}: {error}") from None
    if not isinstance(table, dict):
        raise UserError(f'--hparams {path}: expected a table of settings, like {{"method.scale": 16}}')
    by_method = {key: value for key, value in table.items() if isinstance(value, dict)}
    for key in by_method:
        if key not in methods:
            raise unknown(f"method in {path}:", key, methods)
    shared = {key: value for key, value in table.items() if key not in by_method}
    return SettingsFile(str(path), f"{path.name}#{hashlib.sha256(text).hexdigest()[:8]}", shared, by_method)
