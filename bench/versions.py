"""Versions of code, which are part of the ids of results: a value is never reused for code that may give another.

Methods, data sets, tests of embeddings, scorers, corruptions, backbones and the engine each declare an integer. The
lock file has the hash of the import closure of each at that version. Code that differs from the lock counts as
``VERSION+edited.HASH``, and a plug-in, which the lock does not have, as ``file.HASH``.

    python -m bench.versions            say whether the lock fits the code
    python -m bench.versions --renew    write it anew
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .closure import closure_hash
from .datasets.corruptions.registry import CORRUPTIONS, corruption_module
from .datasets.corruptions.registry import NAMES as CORRUPTION_NAMES
from .methods.backbones.registry import MODULES as BACKBONE_MODULES
from .methods.backbones.registry import VERSIONS as BACKBONES
from .methods.backbones.registry import backbone_module
from .methods.scorers.registry import MODULES as SCORER_MODULES
from .methods.scorers.registry import get_scorer, scorer_module
from .protocols.known_tests import BUILT_IN, load_tests
from .registry import Registry

LOCK = Path(__file__).with_name("versions.lock")
ENGINE = {"training": 2, "frozen": 3, "testing": 3}
"""Versions of the parts of the engine: raise one if it gives other values than before.

``frozen`` is training on the features of a backbone at its starting weights, ``training`` any other.
"""

_ROOTS = {
    "training": ("bench.engine.training",),
    "frozen": ("bench.engine.training",),
    "testing": ("bench.engine.testing", "bench.engine.rescoring"),
}

Version = int | str


class Entry(NamedTuple):
    """What has a version: its name in the lock, the declared version, and the modules or plug-in file of its code."""

    name: str
    version: int
    roots: tuple[str | Path, ...]


def engine(part: str) -> Entry:
    """Entry of a part of the engine, see :data:`ENGINE`."""
    return Entry(f"engine.{part}", ENGINE[part], _ROOTS[part])


def registered(registry: Registry, name: str) -> Entry:
    """Entry of a method or data set."""
    found = registry.get(name)
    return Entry(found.locked_as, found.load().version, (found.code,))


def backbone(name: str) -> Entry:
    """Entry of the module that builds a backbone."""
    module = backbone_module(name)
    stem = module.rpartition(".")[2]
    return Entry(f"backbones.{stem}", BACKBONES[stem], (module,))


def scorer(name: str) -> Entry:
    """Entry of a scorer."""
    return Entry(f"scorers.{name}", get_scorer(name).version, (scorer_module(name),))


def corruption(name: str) -> Entry:
    """Entry of a corruption."""
    return Entry(f"corruptions.{name}", CORRUPTIONS[name].version, (corruption_module(name),))


def test(group: str) -> Entry:
    """Entry of a group of tests."""
    tests = load_tests([group])
    return Entry(f"tests.{group}", max(test.version for test in tests), tuple(sorted({test.module for test in tests})))


test.__test__ = False  # type: ignore[attr-defined]  # not a test of ours, whatever pytest makes of its name


def version(entry: Entry) -> Version:
    """Version of an entry for the ids of results: the declared one if the lock has its code, else a hash as well."""
    found = closure_hash(*entry.roots)
    if not all(isinstance(root, str) and root.startswith("bench.") for root in entry.roots):
        return f"file.{found}"
    locked = _locked(LOCK.stat().st_mtime_ns).get(entry.name)
    return entry.version if locked == (entry.version, found) else f"{entry.version}+edited.{found}"


@cache
def _locked(edited: int) -> dict[str, tuple[int, str]]:
    """Version and hash of every entry of the lock file; the argument is the time of its last change."""
    lines = (line.split() for line in LOCK.read_text(encoding="utf-8").splitlines())
    return {name: (int(number), found) for name, number, found in lines}


def built_in() -> Iterator[Entry]:
    """Entries of everything that comes with the package."""
    yield from map(engine, ENGINE)
    for kind in ("methods", "datasets"):
        registry = Registry(kind)
        yield from (registered(registry, entry.name) for entry in registry if entry.entry_point is None)
    yield from {backbone(name) for name in BACKBONE_MODULES}
    yield from map(scorer, SCORER_MODULES)
    yield from map(corruption, CORRUPTION_NAMES)
    yield from map(test, BUILT_IN)


def main(arguments: list[str]) -> int:
    """Check the lock file, or renew it; returns the exit code."""
    present = LOCK.read_text(encoding="utf-8") if LOCK.exists() else ""
    wanted = "".join(f"{name} {number} {closure_hash(*roots)}\n" for name, number, roots in sorted(built_in()))
    stale = sorted({line.split()[0] for line in set(present.splitlines()) ^ set(wanted.splitlines())})
    if stale and arguments == ["--renew"]:
        LOCK.write_text(wanted, encoding="utf-8")
        print(f"renewed: {', '.join(stale)}")
        return 0
    if stale:
        print(
            f"{LOCK.name} does not have the present code of {', '.join(stale)}. Either show that its values are equal"
            " to those of before, bit for bit on the CPU, or raise its `version`; then: python -m bench.versions"
            " --renew",
            file=sys.stderr,
        )
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
