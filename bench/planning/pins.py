"""Settings pinned by the user: ``--set key=value``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UserError, shortened
from ..protocols.recipes._base import Recipe
from ..store.specs import Parameters
from .setting import Setting, Values

if TYPE_CHECKING:
    from ..methods._base import Method

COMMAND_LINE = {"params": "method", "optim": "optim", "batches": "data", "view": "data", "augmentation": "augment"}
"""Groups of a setting as ``--set`` and files name them."""

LARGEST_INTEGER = 1_000_000
"""Largest whole number that a setting of the data or the optimiser may have."""


@dataclass(frozen=True)
class Pin:
    """A setting pinned (fixed) by the user: ``--set key=text``, with ``key`` such as ``method.margin``."""

    key: str
    text: str

    @property
    def shared(self) -> bool:
        """True if the pin is about data or augmentation, which a method shares with its base (first stage)."""
        return self.key.split(".")[0] in ("data", "augment")


def by_key(setting: Setting) -> Parameters:
    """Values by their keys as typed, such as ``method.margin``."""
    return {
        f"{title}.{key}": value
        for group, title in COMMAND_LINE.items()
        for key, value in getattr(setting, group).items()
    }


def from_pins(pins: tuple[Pin, ...], method: type[Method], recipe: Recipe) -> Setting:
    """Values pinned (fixed) by the user that apply to one method on one data set; other pins are left out.

    A method that is fitted, or an ensemble of trained models, has no optimiser to set.

    Args:
        pins: All pins of a run.
        method: Class of the method.
        recipe: Recipe (default training settings) of the data set.

    Raises:
        UserError: If a value does not fit.
    """
    values: dict[str, Parameters] = {group: {} for group in COMMAND_LINE}
    defaults: dict[str, Values] = {
        "params": dict.fromkeys(method.Params.model_fields, ""),  # pydantic converts and checks these
        "optim": recipe.end_to_end.values(),
        "batches": recipe.batches(),
        "view": recipe.view,
        "augmentation": recipe.augmentation,
    }
    for pin in pins:
        prefix, _, name = pin.key.partition(".")
        for group, title in COMMAND_LINE.items():
            if group == "optim" and (method.fitted or method.ensemble):
                continue
            if title == prefix and name in defaults[group]:
                values[group][name] = convert(pin.text, defaults[group][name], f"--set {pin.key}")
    return Setting(**values)


def convert(text: str, default: Any, where: str) -> Any:
    """Convert a typed text to the type of a default value.

    Args:
        text: The value as typed.
        default: Text, a boolean, a number, or a tuple of ascending numbers.
        where: Name of the option or file that the text comes from, for the message of an error.

    Raises:
        UserError: If the text does not fit.

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
