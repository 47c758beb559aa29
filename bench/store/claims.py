"""Claims: which process works on what in a results folder that several processes share.

A claim is a file with the host and the process that hold it, renewed by a thread of its holder. It needs no locks of
the file system, so it works on network file systems. The claim of a dead process is taken over: at once on the same
host, otherwise after :data:`LEASE` seconds without renewal by the watcher's own clock. Two processes can in rare cases
(a holder that was stopped for longer than that) do the same work; both then write the same result.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from filelock import SoftFileLease, Timeout

from ..errors import UserError
from .files import DRIVERS, LEFT_FOR, is_running, process_name, remove_leftovers

LEASE = 30.0
"""Seconds without renewal after which a claim may be taken over."""

CLAIM = ".claim"
"""File of a unit with the claim on it."""

IN_USE = ".claim-use-"
"""Start of the names of the files that say which drivers need the weights of a training."""

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
        self._leases: dict[Path, SoftFileLease] = {}
        self._empty: dict[Path, tuple[tuple[int, int], float]] = {}

    @property
    def driver(self) -> Path:
        """Claim of this process as one of the drivers of the results folder, after :meth:`enter`."""
        return self.root / DRIVERS / self.name

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
            self._release_empty(path)
            return False
        return True

    def _release_empty(self, path: Path) -> None:
        """Let a claim be taken over that has been empty for long: its process was killed before it wrote its name.

        For filelock an empty file is held as long as it exists, but one that cannot be read is not.
        """
        now = time.monotonic()
        with contextlib.suppress(OSError), path.open("r+b") as file:
            state = os.fstat(file.fileno())
            file_of = state.st_ino, state.st_ctime_ns
            known, since = self._empty.setdefault(path, (file_of, now))
            if known != file_of:
                self._empty[path] = file_of, now
            elif not state.st_size and now - since > LEASE:
                file.write(b"abandoned\n")

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

    def in_use(self, unit: Path, by: str) -> Path:
        """Claim that announces that this process needs the weights in the folder of a training, and what for."""
        return unit / f"{IN_USE}{by}-{self.name}"

    def used_by_others(self, unit: Path) -> bool:
        """Check if another process needs the weights in the folder of a training."""
        return any(holder(path) for path in unit.glob(f"{IN_USE}*") if path not in self._leases)

    def enter(self, alone: bool, lost: Callable[[], None] = lambda: None) -> None:
        """Announce this process to the other drivers of the results folder, or as the only one, which keeps others out.

        ``lost`` is called, by another thread, if this process has to be the only driver but no longer is.
        """
        drivers, own = self.root / DRIVERS, self.driver
        # Each announces itself before it looks for the other, so that at least one of two sees the other.
        self.take(own)
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
        if there is not None and there.hostname == _this_host():
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
        units, features = f"*/*/*/*/{CLAIM}*", f".features/*/{CLAIM}*"
        paths = {*(self.root / DRIVERS).iterdir(), *self.root.glob(units), *self.root.glob(features)}
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
