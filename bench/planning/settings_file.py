"""Settings of a JSON or TOML file, one layer per method."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UnknownName, UserError, first_line, shortened
from ..store.specs import Parameters
from ..store.strict_json import read_json
from .experiment import LARGEST, read_toml
from .pins import convert
from .setting import Setting, Values

if TYPE_CHECKING:
    from ..methods._base import Method


@dataclass(frozen=True)
class SettingsFile:
    """Settings of a JSON or TOML file that the user gave.

    Attributes:
        path: Path of the file.
        label: Name of the file with a hash of its content, so that edited content gets another label in results.
        shared: Values for all methods, by key such as ``optim.lr``.
        by_method: Values by method and key, which override the shared ones.
    """

    path: str
    label: str
    shared: Values
    by_method: Mapping[str, Values]

    def layer(self, method: type[Method], defaults: Setting) -> Setting:
        """Settings of the file for one method.

        Args:
            method: Class of the method.
            defaults: Setting that these values override; they must have the types of its values.

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
                raise UnknownName(f"setting in {self.path}", key, known)
        return Setting(params=params, optim=optim)


def read_settings_file(name: str, methods: list[str]) -> SettingsFile:
    """Read a file of settings: ``{"method.scale": ..}`` for all methods, ``{"cosface": {..}}`` for one, or both.

    Args:
        name: Path of a JSON or TOML file.
        methods: Names of all known methods.

    Raises:
        UserError: If the file cannot be read, has a key twice, a value that no setting can have, or an unknown method.
    """
    path = Path(name)
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"--hparams {path}: {error.strerror}; use tuned, default, published or a file") from error
    if len(text) > LARGEST:
        raise UserError(f"--hparams {path}: more than {LARGEST} bytes; settings are a few lines")
    language, read = ("TOML", read_toml) if path.suffix == ".toml" else ("JSON", read_json)
    try:
        table = read(text)
    except ValueError as error:
        raise UserError(f"--hparams {path}: not valid {language}: {first_line(error)}") from None
    if not isinstance(table, dict):
        raise UserError(f'--hparams {path}: expected a table of settings, like {{"method.scale": 16}}')
    by_method = {key: value for key, value in table.items() if isinstance(value, dict)}
    for key in by_method:
        if key not in methods:
            raise UnknownName(f"method in {path}:", key, methods)
    shared = {key: value for key, value in table.items() if key not in by_method}
    for values in (shared, *by_method.values()):
        _check_values(values, path)
    return SettingsFile(str(path), f"{path.name}#{hashlib.sha256(text).hexdigest()[:8]}", shared, by_method)


def _check_values(values: Values, path: Path) -> None:
    """Refuse values that no setting can have: tables, dates, numbers that are not finite, lists of such."""
    for key, value in values.items():
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str | int | float) or (isinstance(item, float) and not math.isfinite(item)):
                raise UserError(
                    f"--hparams {path}: {shortened(key, 60)!r} must be text, a finite number, true, false or a list"
                    " of those"
                )
            if isinstance(item, str) and not item.isprintable():
                said = f"{shortened(key, 60)!r} has characters that cannot be printed: '{shortened(item, 60)}'"
                raise UserError(f"--hparams {path}: {said}")
