"""Files that a user gives: experiments, and settings that ``--hparams`` names."""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import UnknownName, UserError, first_line, shortened
from ..store.files import read_json

Values = Mapping[str, Any]
"""Values by key as ``--set`` has them, such as ``method.margin`` or ``optim.lr``; ``model.backbone`` and ``model.dim``
have options of their own. A layer has some of the keys; a later layer wins."""

LARGEST = 64_000
"""Largest file, bytes."""

MOST_DOTS = 100
"""Most dots on a line of TOML: the time of its parser grows with the square of the parts of a key, or faster."""


@dataclass(frozen=True)
class SettingsFile:
    """Settings of a JSON or TOML file that the user gave, for all methods and for single ones.

    The label has a hash of the content, so that edited content gets another label in results.
    """

    path: str
    label: str
    shared: Values
    by_method: Mapping[str, Values]

    def of(self, method: str) -> Values:
        """Values for a method, by key."""
        return {**self.shared, **self.by_method.get(method, {})}


def read_experiment(path: Path) -> Values:
    """Values of the TOML file of an experiment, which :meth:`.Experiment.filled` checks."""
    text = _read(path, str(path), "`bench run` takes options (--method M --dataset D) or a TOML file of them")
    table: Values = _parsed(text, "TOML", str(path))
    return table


def read_settings_file(name: str, methods: list[str]) -> SettingsFile:
    """Read a file of settings: ``{"method.scale": ..}`` for all methods, ``{"cosface": {..}}`` for one, or both."""
    path, what = Path(name), f"--hparams {Path(name)}"
    text = _read(path, what, "use tuned, default, published or a file")
    table = _parsed(text, "TOML" if path.suffix == ".toml" else "JSON", what)
    if not isinstance(table, dict):
        raise UserError(f'{what}: expected a table of settings, like {{"method.scale": 16}}')
    by_method = {key: value for key, value in table.items() if isinstance(value, dict)}
    for key in by_method:
        if key not in methods:
            raise UnknownName(f"method in {path}:", key, methods)
    shared = {key: value for key, value in table.items() if key not in by_method}
    for values in (shared, *by_method.values()):
        _check_values(values, path)
    return SettingsFile(str(path), f"{path.name}#{hashlib.sha256(text).hexdigest()[:8]}", shared, by_method)


def _read(path: Path, what: str, instead: str) -> bytes:
    """Content of a file that is named ``what`` in messages, or else what to type ``instead``."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{what}: {error.strerror}; {instead}") from error
    if len(text) > LARGEST:
        raise UserError(f"{what}: more than {LARGEST} bytes; settings are a few lines")
    return text


def _parsed(text: bytes, language: Literal["TOML", "JSON"], what: str) -> Any:
    try:
        return read_toml(text) if language == "TOML" else read_json(text)
    except ValueError as error:
        raise UserError(f"{what}: not valid {language}: {first_line(error)}") from None


def read_toml(text: bytes) -> dict[str, Any]:
    """Value of a TOML text that a user gave; a ValueError if it is not valid TOML, or nested too deeply."""
    if any(line.count(b".") > MOST_DOTS for line in text.splitlines()):
        raise ValueError(f"a line has more than {MOST_DOTS} dots")
    try:
        return tomllib.loads(text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


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
