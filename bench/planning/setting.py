"""A setting: everything about a training that can be set, in groups; layers of it are merged once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ..errors import UnknownName, UserError, shortened
from ..store.specs import Parameters

if TYPE_CHECKING:
    from ..methods._base import Method

Values = Mapping[str, Any]
"""Values by name; their types are checked where the merged setting becomes a specification."""

LARGEST_INTEGER = 2**63 - 1
"""Largest whole number that a parameter of a method may have: more is no integer of a tensor."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Values of a training that can be set, by group.

    A complete setting has all values. A layer, which comes from one source such as a preset, has some of them.

    Attributes:
        network: ``backbone`` and ``dim``.
        params: Parameters of the method (``method.*``).
        optim: Optimiser and schedule (``optim.*``).
        batches: Composition of training batches, and how the backbone reads them (``data.*``).
        view: How photographs are read (``data.*`` too).
        augmentation: Arguments of the augmentation (``augment.*``).
    """

    network: Values = field(default_factory=dict)
    params: Values = field(default_factory=dict)
    optim: Values = field(default_factory=dict)
    batches: Values = field(default_factory=dict)
    view: Values = field(default_factory=dict)
    augmentation: Values = field(default_factory=dict)


GROUPS = tuple(item.name for item in fields(Setting))


def merge(*layers: Setting) -> Setting:
    """Merge settings value by value; a later one wins.

    Example:
        >>> merge(Setting(optim={"lr": 1.0, "epochs": 9}), Setting(optim={"lr": 2.0})).optim
        {'lr': 2.0, 'epochs': 9}
    """
    merged: dict[str, Parameters] = {group: {} for group in GROUPS}
    for layer in layers:
        for group in GROUPS:
            merged[group] |= getattr(layer, group)
    return Setting(**merged)


def checked_params(method: type[Method], params: Mapping[str, Any]) -> Parameters:
    """All parameters of a method by name, checked and with defaults filled in.

    Raises:
        UserError: If one is unknown or does not fit.
    """
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
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise UserError(f"method.{key}={shortened(str(value), 60)}: out of range")
    return checked
