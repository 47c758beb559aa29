"""Claims: which process works on what in a results folder that several processes share, and on which node.

A claim is a file with the host and the process that hold it, renewed by a thread of its holder. It needs no locks of
the file system, so it works on network file systems. The claim of a dead process is taken over: at once on the same
host, otherwise after :data:`LEASE` seconds without renewal by the watcher's own clock. Two processes can in rare cases
(a holder that was stopped for longer than that) do the same work; both then write the same result.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from filelock import SoftFileLease, Timeout

from ..errors import UserError
from .files import LEFT_FOR, is_running, process_name, remove_leftovers, write_atomic

NODES = ".nodes"
"""Folder with a roster per driver on a cluster, and the tokens by which nodes show that they share the results folder.
A file has the name of its driver's claim."""

PAUSE = 1.0
"""Seconds between two versions of the file, at least."""


LEASE = 30.0
"""Seconds without renewal after which a claim may be taken over."""

CLAIM = ".claim"
"""File of a unit with the claim on it."""

IN_USE = ".claim-use-"
"""Start of the names of the files that say which drivers need the weights of a training."""

DRIVERS = ".drivers"
"""Folder with a claim per driver, one of the driver that has the folder to itself, and one on the tables."""

ALONE = "alone"
TABLES = "tables"


class Holder(NamedTuple):
    """The process that holds a claim, the right to work on a part of a shared results folder, and its machine."""

    host: str
    pid: int


class Claims:
    """Claims of this process on parts of a results folder that several processes share, renewed while it lives."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = process_name()
        self._host = ""
        self._leases: dict[Path, SoftFileLease] = {}

    def take(self, path: Path, wait: float = 0.0, lost: Callable[[], None] | None = None) -> bool:
        """Claim a part of the results folder by a file that exists meanwhile; False if another process holds it.

        A holder on another host counts as dead after :data:`LEASE` seconds without a renewal, which only repeated calls
        on the same object can notice. ``lost`` is called, by another thread, if another process takes over the claim.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if path not in self._leases:
            told = None if lost is None else lambda _: lost()
            self._leases[path] = SoftFileLease(path, lease_duration=LEASE, on_compromise=told)
        try:
            self._leases[path].acquire(timeout=wait, poll_interval=0.2)
        except Timeout:
            return False
        return True

    def let_go(self, path: Path) -> None:
        """Release a claim that this process will ask for again: its file is deleted if this process holds it.

        The times at which another process was seen to renew it are kept; by them :meth:`take` notices a dead holder.
        """
        lease = self._leases.get(path)
        if lease is not None and lease.is_locked:
            lease.release(force=True)

    def give_back(self, path: Path) -> None:
        """Release a claim that this process will not ask for again, and forget who was seen to renew it."""
        lease = self._leases.pop(path, None)
        if lease is not None:
            with contextlib.suppress(OSError):  # the folder may be gone
                lease.release(force=True)

    def close(self) -> None:
        """Give back every claim that this process holds."""
        for path in list(self._leases):
            self.give_back(path)

    def use(self, unit: Path) -> None:
        """Announce, until :meth:`close`, that this process needs the weights in the folder of a training."""
        self.take(unit / f"{IN_USE}{self.name}")

    def used_by_others(self, unit: Path) -> bool:
        """Check if another process needs the weights in the folder of a training."""
        return any(holder(path) for path in unit.glob(f"{IN_USE}*") if path not in self._leases)

    def enter(self, alone: bool, lost: Callable[[], None]) -> None:
        """Announce this process to the other drivers of the results folder, or as the only one, which keeps others out.

        ``lost`` is called, by another thread, if this process has to be the only driver but no longer is.
        """
        drivers = self.root / DRIVERS
        own = drivers / self.name
        # Each announces itself before it looks for the other, so that at least one of two sees the other.
        self.take(own)
        mine = self._leases[own].owner
        self._host = mine.hostname if mine is not None else ""
        if alone and not self.take(drivers / ALONE, lost=lost):
            self._refuse(drivers / ALONE)
        now = own.stat().st_mtime
        there = set(drivers.iterdir()) - self._leases.keys() - {drivers / TABLES}
        for other in sorted(there if alone else there & {drivers / ALONE}):
            if not self._given_up(other, now):
                self._refuse(other)
        self._clean(now)
        remove_leftovers(self.root, now)

    @contextlib.contextmanager
    def on_tables(self) -> Iterator[None]:
        """Context in which this process collects results and writes tables, to be entered by one process at a time.

        It waits up to 10 :data:`LEASE` seconds for another process to leave, so that the tables written last have all
        results. After that it enters all the same: files are replaced in one step, and a later report makes them anew.
        """
        path = self.root / DRIVERS / TABLES
        self.take(path, wait=10 * LEASE)
        try:
            yield
        finally:
            self.give_back(path)

    def _given_up(self, path: Path, now: float) -> bool:
        """Check if a claim is that of a dead process, and remove it then."""
        if self.take(path):  # which takes over from a process of this host that has ended
            self.give_back(path)
            return True
        del self._leases[path]
        there = SoftFileLease(path, lease_duration=LEASE).owner
        if there is not None and there.hostname == self._host:
            return False  # alive, whatever clocks say
        left_for = 2 * LEASE if there is None else LEFT_FOR  # nobody can renew a damaged claim
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > left_for:
                path.unlink()
                return True
        return not path.exists()

    def _refuse(self, other: Path) -> None:
        there = holder(other)
        who = f" (process {there.pid} on {there.host})" if there else ""
        self.close()
        raise UserError(
            f"another bench run is writing to {self.root}{who}; wait for it, or name another folder with --results"
        )

    def _clean(self, now: float) -> None:
        """Remove the claims of the dead, and what was left when they took claims over."""
        paths = {*(self.root / DRIVERS).iterdir(), *self.root.glob(f"*/*/*/*/{CLAIM}*")}
        for path in sorted(paths - self._leases.keys()):
            self._given_up(path, now)


def holder(path: Path) -> Holder | None:
    """Process that seems to hold a claim, judged without trying to take it; None if there is none."""
    owner = SoftFileLease(path, lease_duration=LEASE).owner
    if owner is None:
        return None
    try:
        if time.time() - path.stat().st_mtime > 2 * LEASE:
            return None
    except FileNotFoundError:
        return None
    if owner.hostname == _this_host() and not is_running(owner.pid):
        return None
    return Holder(re.sub(r"\?pidns-[0-9a-f]+$", "", owner.hostname), owner.pid)


@functools.cache
def _this_host() -> str:
    """Name of this machine and its table of processes in claims, for which filelock has no function."""
    with (
        contextlib.suppress(OSError),
        tempfile.TemporaryDirectory() as folder,
        SoftFileLease(Path(folder) / "claim", lease_duration=LEASE) as lease,
    ):
        if lease.owner is not None:
            return lease.owner.hostname
    return socket.gethostname()


class Roster:
    """Roster of a driver, a file with the name of its claim that follows its running units about a second later."""

    def __init__(self, root: Path, name: str) -> None:
        self._path = root / NODES / f"{name}.json"
        self._units: dict[str, str] = {}
        self._writing: asyncio.TimerHandle | None = None
        for path in (root / NODES).glob("[!.]*"):  # not what another driver is about to write
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
    for path in sorted((root / NODES).glob("*.json")):
        if holder(root / DRIVERS / path.stem) is not None:
            with contextlib.suppress(OSError, ValueError):
                units: Any = json.loads(path.read_bytes())
                if isinstance(units, dict):
                    found |= {str(unit): str(node) for unit, node in units.items()}
    return found
