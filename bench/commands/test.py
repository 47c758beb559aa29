"""``bench test``: does a method, a data set, a test of embeddings or a corruption do what each must do?"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UnitFailed, UserError, first_line, from_plugin, place_of, require_known
from ..names import expand
from ..registry import load_plugins
from .options import Row, command, output, site_of

if TYPE_CHECKING:
    from ..site import Site

Checks = Mapping[str, Callable[[Any], None]]


@command()
def check_entries(
    *,
    method: list[str] | None = None,
    dataset: list[str] | None = None,
    test: list[str] | None = None,
    corruption: list[str] | None = None,
    data_root: Path | None = None,
    as_json: bool = False,
    plugin: list[Path] | None = None,
) -> None:
    """Check methods, data sets, tests and corruptions of your own.

    Each must do what its kind does, so that results can be trusted.
    Methods: shapes, gradients, confidence, state, frozen parts. Data sets: disjoint classes, labels, identities,
    images, crops, manifests. Tests: declared metrics in their range, the same in any order of the images. Corruptions:
    8-bit images of the same shape, a change that grows with severity, random numbers that depend on the image alone.

    \b
    bench test --method mine --plugin mine.py
    bench test --dataset birds --data-root data --plugin birds.py

    Options:
        method (M[,M..]): Methods, comma-separated, or all.
        dataset (D[,D..]): Data sets, comma-separated.
        test (T[,T..]): Groups of tests, comma-separated, or all.
        corruption (C[,C..]): Corruptions, comma-separated, or all.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    if not method and not dataset and not test and not corruption:
        raise UserError("name something to check: --method, --dataset, --test or --corruption")
    load_plugins(plugin or ())
    site = site_of(Path(), plugin=plugin, data_root=data_root)
    asked = {"method": method, "dataset": dataset, "test": test, "corruption": corruption}
    rows = [row for entry in _entries(asked, site) for row in _run(*entry)]
    told = (
        f"{'ok  ' if row['passed'] else 'FAIL'}  {row['name']:<22} {row['check']:<14} {row['reason']}".rstrip()
        for row in rows
    )
    output(rows, told, as_json)
    failed = sum(not row["passed"] for row in rows)
    if failed:
        raise UnitFailed(f"{failed} of {len(rows)} checks failed", "bench test")


def _entries(asked: Mapping[str, list[str] | None], site: Site) -> Iterator[tuple[str, str, object, Checks]]:
    """What is asked for, with the checks of its kind: kind, name, entry and checks."""
    if names := asked["method"]:
        from ..conformance.method_checks import CHECKS

        for name in expand(names, site.methods.names):
            yield "method", name, site.methods.method(name), CHECKS
    if names := asked["dataset"]:
        from ..conformance.dataset_checks import DATASET_CHECKS

        for name in expand(names, site.datasets.names):
            opened = site.dataset(name, dict(site.recipe(name).view))  # photographs are read as their recipe says
            yield "dataset", name, opened, DATASET_CHECKS
    if names := asked["test"]:
        from ..conformance.embedding_test_checks import TEST_CHECKS
        from ..protocols.known_tests import known_groups, load_tests

        groups = expand(names, list(known_groups()))
        require_known("group of tests", groups, known_groups())
        for name in groups:
            yield from (("test", name, declared, TEST_CHECKS) for declared in load_tests([name]))
    if names := asked["corruption"]:
        from ..conformance.corruption_checks import CORRUPTION_CHECKS
        from ..datasets.corruptions.registry import CORRUPTIONS

        of_pixels = [name for name, kind in CORRUPTIONS.items() if kind.apply is not None and kind.of == "images"]
        for name in expand(names, of_pixels):
            if name in CORRUPTIONS and name not in of_pixels:
                raise UserError(f"--corruption {name}: data sets make it; `bench test --dataset ..` checks it")
            require_known("corruption", [name], of_pixels)
            yield "corruption", name, CORRUPTIONS[name], CORRUPTION_CHECKS


def _run(kind: str, name: str, entry: object, checks: Checks) -> Iterator[Row]:
    """Run every check of one entry; an error that stops several of them is reported once."""
    seen = set()
    for label, check in checks.items():
        reason = ""
        try:
            check(entry)
        except Exception as error:  # whatever an entry raises is what the suite reports
            reason = _reason(error)
        if reason and reason in seen:
            continue
        seen.add(reason)
        yield {"kind": kind, "name": name, "check": label, "passed": not reason, "reason": reason}


def _reason(error: Exception) -> str:
    """Message of an error, with its place if it is of a plug-in; a method that a class leaves out is named."""
    from ..conformance.failure import ConformanceError

    if isinstance(error, ConformanceError):
        return first_line(error)
    said = first_line(error)
    frame = list(traceback.walk_tb(error.__traceback__))[-1][0]
    if isinstance(error, NotImplementedError) and "self" in frame.f_locals:
        said = f"{type(frame.f_locals['self']).__name__} lacks {frame.f_code.co_name}"
    where = f" ({place_of(error)})" if from_plugin(error) else ""
    return f"{type(error).__name__}: {said}{where}"
