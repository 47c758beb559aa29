"""Options that several commands have in common."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_RESULTS = Path("results/runs")


class Device(StrEnum):
    """Devices that networks run on; ``auto`` is ``cuda`` if there is a GPU, else ``cpu``."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Results = Annotated[Path, typer.Option("--results", help="Results folder.", metavar="DIR")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        help="Python file with methods, data sets, tests, scorers, corruptions or distributions; repeatable.",
        metavar="FILE",
    ),
]


def print_json(value: object) -> None:
    """Print a value as JSON on standard output."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def names(values: list[str] | None, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Collect names from option values, which may be repeated and comma-separated; ``default`` if there are none.

    Example:
        >>> names(["a, b", "c"]), names(None, ("x",))
        (('a', 'b', 'c'), ('x',))
    """
    found = tuple(name.strip() for value in values or [] for name in value.split(",") if name.strip())
    return found or default
