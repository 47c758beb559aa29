"""Roster of a driver: on which nodes of a cluster its units run, for ``bench status``."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from .claims import DRIVERS, holder
from .files import write_atomic

FOLDER = ".nodes"
"""Folder with a roster per driver on a cluster, and the tokens by which nodes show that they share the results folder.
A file has the name of its driver's claim."""

PAUSE = 1.0
"""Seconds between two versions of the file, at least."""


class Roster:
    """Roster of a driver, a file with the name of its claim that follows its running units about a second later."""

    def __init__(self, root: Path, name: str) -> None:
        self._path = root / FOLDER / f"{name}.json"
        self._units: dict[str, str] = {}
        self._writing: asyncio.TimerHandle | None = None
        for path in (root / FOLDER).glob("[!.]*"):  # not what another driver is about to write
            if not (root / DRIVERS / path.stem).exists():
                path.unlink(missing_ok=True)

    @property
    def token(self) -> Path:
        """File of the token by which nodes show that they share the results folder."""
        return self._path.with_suffix(".token")

    def place(self, unit: str, node: str | None) -> None:
        """Enter on which node a unit, a folder relative to the results folder, runs, or that it has ended (None)."""
        if node is None:
            self._units.pop(unit, None)
        else:
            self._units[unit] = node
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(PAUSE, self._write)

    def _write(self) -> None:
        self._writing = None
        with contextlib.suppress(OSError):  # it is for information only
            self._path.parent.mkdir(exist_ok=True)
            write_atomic(self._path, json.dumps(self._units, indent=1).encode(), sync=False)

    def close(self) -> None:
        """Remove the file and the token."""
        if self._writing is not None:
            self._writing.cancel()
        for path in (self._path, self.token):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def nodes_of_units(root: Path) -> dict[str, str]:
    """Nodes that the units of living drivers run on, by the folder of the unit, relative to the results folder."""
    found: dict[str, str] = {}
    for path in sorted((root / FOLDER).glob("*.json")):
        if holder(root / DRIVERS / path.stem) is not None:
            with contextlib.suppress(OSError, ValueError):
                units: Any = json.loads(path.read_bytes())
                if isinstance(units, dict):
                    found |= {str(unit): str(node) for unit, node in units.items()}
    return found
