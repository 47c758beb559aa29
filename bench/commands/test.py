"""``bench test``: does a method do what every method must do?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypedDict

import typer

from ..errors import UnitFailed, first_line
from ..registry import Registry
from .options import Json, Plugins, print_json


class CheckResult(TypedDict):
    """One check of one method."""

    method: str
    check: str
    passed: bool
    reason: str


def check_methods(
    method: Annotated[list[str], typer.Option("--method", help="Methods, comma-separated, or all.")],
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Check that a method does what every method must do: shapes, gradients, confidence, state, frozen parts.

    \b
    bench test --method mine --plugin mine.py
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    rows = run_checks(tuple(method), tuple(plugin or ()))
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            outcome = "ok  " if row["passed"] else "FAIL"
            typer.echo(f"{outcome}  {row['method']:<22} {row['check']:<14} {row['reason']}".rstrip())
    failed = sum(not row["passed"] for row in rows)
    if failed:
        raise UnitFailed(f"{failed} of {len(rows)} checks failed", "bench test")


def run_checks(methods: tuple[str, ...], plugins: tuple[Path, ...]) -> list[CheckResult]:
    """Every check of some methods."""
    from ..conformance import CHECKS
    from ..planning.request import expand

    registry = Registry("methods", plugins)
    rows: list[CheckResult] = []
    for name in expand(methods, registry.names):
        cls = registry.method(name)
        for label, check in CHECKS.items():
            reason = ""
            try:
                check(cls)
            except Exception as error:  # whatever a method raises is what the suite reports
                reason = f"{type(error).__name__}: {first_line(error)}"
            rows.append({"method": name, "check": label, "passed": not reason, "reason": reason})
    return rows
