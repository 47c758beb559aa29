"""Soak test of a results folder: kills, full disks, damage and concurrent starts, for a set time.

    uv run python benchmarks/soak.py --minutes 30 --seed 0 [--processes 3]
    uv run python benchmarks/soak.py --kills 40             # SIGKILL alone, until 40 have hit drivers and workers

Every round takes some finished work away, starts up to ``--processes`` drivers of one small grid at the same instant
in one results folder, each with its methods in another order, and disturbs them. It ends with the same command once
more, undisturbed. Then these must hold: exit code 0; ``metrics.csv`` is that of an undisturbed run, byte by byte; no
output of any driver has a traceback; no temporary file, claim or process is left; ``bench status --check`` finds
nothing. At the first failure the folder and all outputs are kept, and the exit code is 1.

The seed decides what is done, in which order and after which delays. When it happens in the life of a driver depends
on the machine, so a failure may need a few tries with its seed.

The disk is filled for real if ``unshare -rm`` may mount a file system; otherwise the size of files is limited. The
clock is not changed: times of files are moved into the past and the future instead.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.store.claims import DRIVERS, LEASE
from filelock import SoftFileLease

BENCH = Path(sys.executable).with_name("bench")
METHODS = ["cosface", "pfe"]
GRID = ("--dataset", "ndigit_smoke", "--set", "optim.epochs=3", "--seeds", "1", "--trials", "3", "--workers", "1")
NAMESPACE = "BENCH_SOAK_NAMESPACE"
"""Set in the environment of a soak that may mount file systems."""

DISK_MIB = 512
PATIENCE = 600.0
"""Seconds after which a command that does not end has failed."""

ENDS = {0, 1, 2, 129, 130, 143, *(-number for number in (1, 2, 9, 15))}
"""Exit codes of disturbed drivers: done, failures, refused, ended by a signal."""


class Failed(Exception):
    """An error for a state that must not be; the message says which."""


class Member(NamedTuple):
    """A process of a session."""

    pid: int
    parent: int
    state: str


def members(session: int) -> list[Member]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, _, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state not in "ZX":
                found.append(Member(int(path.parent.name), int(parent), state))
    return sorted(found)


@dataclass
class Driver:
    """A ``bench run`` in a session of its own, and the file of its output."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def ended(self) -> bool:
        """Is true once it has ended."""
        return self.process.poll() is not None

    def wait(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not end within {PATIENCE:.0f} s") from None


@dataclass
class Soak:
    """Folder, drivers of the present round, and the events tried and survived so far."""

    work: Path
    processes: int
    mounted: bool
    drivers: list[Driver] = field(default_factory=list)
    rounds: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)

    @property
    def disk(self) -> Path:
        """Folder that may be a file system of its own."""
        return self.work / "disk"

    @property
    def root(self) -> Path:
        """The results folder."""
        return self.disk / "runs"

    def bench(self, *arguments: str) -> Driver:
        """Start a command."""
        log = self.work / "output" / f"{time.time_ns()}.txt"
        log.parent.mkdir(exist_ok=True)
        (self.work / "tmp").mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(self.work / "tmp"), "COLUMNS": "200"}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.work / "torch")  # torch makes it at import
        with log.open("wb") as out:
            process = subprocess.Popen(
                [BENCH, *arguments], cwd=self.work, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env=environment, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
            )  # fmt: skip
        return Driver(process, log)

    def start(self, draw: random.Random, root: Path | None = None) -> Driver:
        """Start a driver with its methods in a random order."""
        methods = ",".join(draw.sample(METHODS, len(METHODS)))
        driver = self.bench("run", "--method", methods, *GRID, "--results", str(root or self.root))
        self.drivers.append(driver)
        return driver

    def alive(self) -> list[Driver]:
        """Drivers that have not ended."""
        return [driver for driver in self.drivers if not driver.ended]

    def files(self) -> list[Path]:
        """Files of the results folder, but for what was set aside."""
        found = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(name for name in folders if name != ".damaged")
            found += [Path(folder, name) for name in sorted(names)]
        return found


Event = Callable[[Soak, random.Random], bool]
"""Disturbs; returns False if there was nothing to disturb."""


def _signalling(number: int, whom: str) -> Event:
    """Sends a signal to a driver, to one of its workers or to all its processes at once, as Ctrl-C does."""

    def send(soak: Soak, draw: random.Random) -> bool:
        targets = _targets(soak, draw, whom)
        for pid in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(targets)

    return send


def _targets(soak: Soak, draw: random.Random, whom: str) -> list[int]:
    alive = soak.alive()
    if not alive:
        return []
    driver = draw.choice(alive).process.pid
    if whom == "driver":
        return [driver]
    found = [member.pid for member in members(driver)]
    if whom == "all":
        return found
    workers = [pid for pid in found if pid != driver]
    return [draw.choice(workers)] if workers else []


def _stopping(whom: str) -> Event:
    """Stops a process for some seconds, now and then for longer than a claim lasts."""

    def stop(soak: Soak, draw: random.Random) -> bool:
        targets = _targets(soak, draw, whom)
        for number, seconds in ((signal.SIGSTOP, draw.choice([0.5, 2.0, 5.0, 5.0, 40.0])), (signal.SIGCONT, 0.0)):
            for pid in targets:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(seconds if targets else 0.0)
        return bool(targets)

    return stop


def _damaging(damage: Callable[[bytes, bytes, random.Random], bytes]) -> Event:
    """Overwrites a random file in place."""

    def overwrite(soak: Soak, draw: random.Random) -> bool:
        files = soak.files()
        if len(files) < 2:
            return False
        path = draw.choice(files)
        others = [other for other in files if other != path and other.suffix == path.suffix] or files
        with contextlib.suppress(FileNotFoundError):
            path.write_bytes(damage(path.read_bytes(), draw.choice(others).read_bytes(), draw))
            return True
        return False

    return overwrite


def _flipped(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return data
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]


def _deleting(pattern: str, share: float = 0.0) -> Event:
    """Deletes a random file or folder that a pattern matches, or a share of them."""

    def delete(soak: Soak, draw: random.Random) -> bool:
        found = sorted(soak.disk.glob(pattern))
        chosen = draw.sample(found, min(len(found), max(1, round(share * len(found)))))
        for path in chosen:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True) if not path.is_dir() else None
        return bool(chosen)

    return delete


def _full_disk(soak: Soak, draw: random.Random) -> bool:
    """Fills the disk but for some KiB, for some seconds."""
    room, seconds = draw.choice([0, 4, 64, 512]), draw.uniform(0.5, 5.0)
    filler = soak.disk / "filler"
    free = os.statvfs(soak.disk).f_bavail * os.statvfs(soak.disk).f_frsize
    with contextlib.suppress(OSError), filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free - 1024 * room))
    time.sleep(seconds)
    filler.unlink()
    return True


def _limited_files(soak: Soak, draw: random.Random) -> bool:
    """Lets no file of a driver and its workers grow beyond some KiB, for some seconds."""
    targets, size, seconds = _targets(soak, draw, "all"), draw.choice([0, 4, 64]) * 1024, draw.uniform(0.5, 5.0)
    for pid in targets:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    time.sleep(seconds)
    for pid in targets:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return bool(targets)


def _shifting(pattern: str) -> Event:
    """Moves the times of some files by up to a year, into the past or the future."""

    def shift(soak: Soak, draw: random.Random) -> bool:
        found = [path for path in sorted(soak.root.rglob(pattern)) if path.is_file()]
        for path in draw.sample(found, (len(found) + 1) // 2):
            when = time.time() + draw.choice([-1, 1]) * draw.choice([60.0, 3600.0, 86400.0, 3e7])
            with contextlib.suppress(FileNotFoundError):
                os.utime(path, (when, when))
        return bool(found)

    return shift


def _joining(soak: Soak, draw: random.Random) -> bool:
    """Starts one more driver, if there may be one more."""
    if len(soak.alive()) >= soak.processes:
        return False
    soak.start(draw)
    return True


KILLS: dict[str, Event] = {
    f"SIGKILL {whom}": _signalling(signal.SIGKILL, whom) for whom in ("driver", "worker")
}  # fmt: skip
EVENTS: dict[str, Event] = {
    **KILLS,
    **{
        f"{number.name} {whom}": _signalling(number, whom)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        for whom in ("driver", "worker", "all")
    },
    "SIGKILL all": _signalling(signal.SIGKILL, "all"),
    "driver stopped": _stopping("driver"),
    "worker stopped": _stopping("worker"),
    "one more driver": _joining,
    "file truncated": _damaging(lambda data, other, draw: data[: draw.randrange(len(data) + 1)]),
    "file emptied": _damaging(lambda data, other, draw: b""),
    "bit flipped": _damaging(lambda data, other, draw: _flipped(data, draw)),
    "file swapped": _damaging(lambda data, other, draw: other),
    "file {}": _damaging(lambda data, other, draw: b"{}"),
    "file []": _damaging(lambda data, other, draw: b"[]"),
    "claim deleted": _deleting("runs/*/*/*/*/.claim"),
    "driver's claim deleted": _deleting("runs/.drivers/*"),
    "all claims deleted": _deleting("runs/.drivers"),
    "marker deleted": _deleting("runs/store.json"),
    "unit deleted": _deleting("runs/*/*/*/*"),
    "record deleted": _deleting("runs/*/*/*/*/*.json"),
    "folder deleted": _deleting("runs"),
    "full disk": _full_disk,
    "files limited": _limited_files,
    "times of claims shifted": _shifting(".*"),
    "times of files shifted": _shifting("*"),
}


def play(soak: Soak, draw: random.Random, events: dict[str, Event]) -> None:
    """One round: take work away, start drivers at the same instant, disturb them, and wait for them."""
    happened: Counter[str] = Counter()
    soak.drivers = []
    _deleting("runs/*/*/*/*", share=draw.choice([0.3, 0.6, 1.0]))(soak, draw)
    if draw.random() < 0.1 or events is not EVENTS:
        _deleting("runs")(soak, draw)
    count = draw.randint(1, soak.processes)
    for _ in range(count if events is EVENTS else soak.processes):
        soak.start(draw)
    happened[f"{len(soak.drivers)} drivers at the same instant"] += 1
    for number in range(draw.randint(8, 20)):
        seeded = random.Random(draw.random())  # what an event draws must not change the events after it
        time.sleep(draw.choice([0.5, 2.0, 4.0, 6.0]) * draw.uniform(0.5, 1.0))
        name, again = draw.choice(sorted(events)), draw.random() < 0.6
        if not soak.alive() and number:
            break
        if events[name](soak, seeded):
            happened[name] += 1
        while (again or events is not EVENTS) and len(soak.alive()) < count:
            soak.start(seeded)
    soak.tried += happened
    for driver in soak.drivers:
        driver.wait()
    check(soak)
    soak.survived += happened


def check(soak: Soak) -> None:
    """Run the command once more, undisturbed, and check everything that must hold."""
    began = time.time()
    last = soak.start(random.Random(0))
    code = last.wait()
    if code != 0:
        raise Failed(f"the undisturbed command ended with exit code {code}; its output is {last.log}")
    _check_drivers(soak)
    if (soak.root / "metrics.csv").read_bytes() != (soak.work / "reference" / "metrics.csv").read_bytes():
        raise Failed("metrics.csv is not that of the undisturbed run")
    left = [path for path in soak.files() if path.name.startswith(".") or path.parent.name == DRIVERS]
    left = [path for path in left if not _too_young(path, began)]
    left += (soak.work / "tmp").iterdir()
    if left:
        raise Failed(f"left behind: {', '.join(map(str, left))}")
    status = soak.bench("status", "--check", "--results", str(soak.root))
    if status.wait() != 0:
        raise Failed(f"status --check finds damage; its output is {status.log}")


def _too_young(path: Path, began: float) -> bool:
    """Check if a file is the claim of a driver, damaged in the last minute before a command, which keeps it."""
    if path.parent.name != DRIVERS or SoftFileLease(path).owner is not None:
        return False
    return began - 2 * LEASE < path.stat().st_mtime < began


def _check_drivers(soak: Soak) -> None:
    until = time.monotonic() + 20
    for driver in soak.drivers:
        pid = driver.process.pid
        while members(pid) and time.monotonic() < until:
            time.sleep(0.1)
        if members(pid):
            raise Failed(f"processes outlive driver {pid}: {members(pid)}")
        output = driver.log.read_text(errors="replace")
        if "Traceback" in output:
            raise Failed(f"traceback in {driver.log}")
        if driver.process.returncode not in ENDS:
            raise Failed(f"exit code {driver.process.returncode} of a driver; its output is {driver.log}")
        driver.log.unlink()


def table(soak: Soak, seconds: float) -> str:
    """Numbers of events tried and survived, a line each."""
    lines = [
        f"{soak.rounds} rounds in {seconds:.0f} s; the results were {'' if soak.mounted else 'not '}on a disk to fill"
    ]
    lines.append(f"{'event':<36} {'tried':>6} {'survived':>9}")
    lines += [f"{name:<36} {count:>6} {soak.survived[name]:>9}" for name, count in sorted(soak.tried.items())]
    lines.append(f"{'all':<36} {soak.tried.total():>6} {soak.survived.total():>9}")
    return "\n".join(lines)


def mounted(disk: Path) -> bool:
    """Mount a file system of :data:`DISK_MIB` MiB; returns False if that is not permitted."""
    disk.mkdir(parents=True)
    if NAMESPACE not in os.environ:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)]
    return subprocess.run(command, capture_output=True).returncode == 0


def enter_namespace() -> None:
    """Start again where file systems may be mounted, if that is permitted."""
    unshare = ["unshare", "-rm"]
    if NAMESPACE in os.environ or shutil.which("unshare") is None:
        return
    if subprocess.run([*unshare, "true"], capture_output=True).returncode == 0:
        os.execvpe("unshare", [*unshare, sys.executable, *sys.argv], {**os.environ, NAMESPACE: "1"})


def run(soak: Soak, options: argparse.Namespace) -> None:
    """Play rounds until time, rounds or kills are used up."""
    began = time.monotonic()
    reference = soak.start(random.Random(0), soak.work / "reference")
    if reference.wait() != 0:
        raise Failed(f"the reference ended with an error; its output is {reference.log}")
    while True:
        kills = sum(soak.tried[name] for name in KILLS)
        late = time.monotonic() - began > 60 * options.minutes
        if soak.rounds == options.rounds or (kills >= options.kills if options.kills else late):
            return
        play(soak, random.Random(f"{options.seed} {soak.rounds}"), KILLS if options.kills else EVENTS)
        soak.rounds += 1
        print(f"round {soak.rounds}: {soak.tried.total()} events survived", flush=True)


def main() -> int:
    """Soak; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="end after this many rounds, whatever the time")
    parser.add_argument("--kills", type=int, default=0, help="only SIGKILL; end after this many")
    options = parser.parse_args()
    enter_namespace()
    work = Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(work, options.processes, mounted(work / "disk"))
    began, error = time.monotonic(), None
    try:
        run(soak, options)
    except Failed as failed:
        error = failed
    finally:
        for driver in soak.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.process.pid, signal.SIGKILL)
    print(table(soak, time.monotonic() - began))
    if error is None:
        if soak.mounted:
            subprocess.run(["umount", str(soak.disk)], check=False)
        shutil.rmtree(work, ignore_errors=True)
        return 0
    if soak.mounted:  # the file system goes with this process
        shutil.copytree(soak.disk, work / "kept", symlinks=True)
    print(f"failed with --seed {options.seed}: {error}\nkept: {work / ('kept' if soak.mounted else 'disk')}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
