"""The results folder: one directory per unit, one atomic JSON record as its done marker.

    <root>/store.json                                           schema and protocol versions
    <root>/<protocol>/<dataset>/<method>/<kind>-<id>/record.json

Everything else (tables, figures) is a function of the records and can be deleted.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import UserError

SCHEMA_VERSION = 1
RECORD = "record.json"


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a restart after a kill, sees all of it or none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically; refuses NaN, which JSON does not have."""
    write_atomic(path, (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any | None:
    """The value of a JSON file, or None if it is missing or torn."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None


class Store:
    """A results folder.

    Args:
        root: Folder, made on first write.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: Any = None

    def open(self, protocol: str, version: int, *, create: bool) -> None:
        """Check that the folder is ours and of this version.

        Raises:
            UserError: If it holds another schema or protocol version, or something else altogether.
        """
        marker = self.root / "store.json"
        if self.root.exists() and not self.root.is_dir():
            raise UserError(f"--results {self.root} is a file; name a folder")
        if not marker.exists():
            if not create:
                raise UserError(
                    f"{self.root} holds no results; `bench run` makes some, or name the folder with --results"
                )
            if self.root.is_dir() and any(p for p in self.root.iterdir() if not p.name.startswith(".")):
                raise UserError(f"{self.root} is not empty and not a results folder; name another with --results")
            write_json(marker, {"schema": SCHEMA_VERSION, "protocols": {protocol: version}})
            return
        held = read_json(marker)
        if not isinstance(held, dict) or not isinstance(held.get("protocols"), dict):
            raise UserError(f"{marker} is damaged; move the folder away or name another with --results")
        if held.get("schema") != SCHEMA_VERSION:
            raise UserError(
                f"{self.root} has results of schema {held.get('schema')}, this bench writes schema {SCHEMA_VERSION}; "
                "the two are never mixed: name another folder with --results"
            )
        if held["protocols"].get(protocol, version) != version:
            raise UserError(
                f"{self.root} has results of {protocol} version {held['protocols'][protocol]}, this bench runs version "
                f"{version}; the two are never mixed: name another folder with --results"
            )
        if create and protocol not in held["protocols"]:
            held["protocols"][protocol] = version
            write_json(marker, held)

    def lock(self) -> None:
        """Hold the folder for writing until this process ends, however it ends.

        Raises:
            UserError: If another process holds it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        handle = open(self.root / ".lock", "w")  # noqa: SIM115 (held open for the life of the process)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another bench run is writing to {self.root}; wait for it, or name another folder with --results"
            ) from None
        self._lock = handle

    def unit_dir(self, cell: tuple[str, str, str], kind: str, unit: str) -> Path:
        """Directory of a unit of a (protocol, dataset, method) cell."""
        return self.root.joinpath(*cell, f"{kind}-{unit}")

    def record(self, cell: tuple[str, str, str], kind: str, unit: str) -> dict[str, Any] | None:
        """Record of a finished unit, or None."""
        value = read_json(self.unit_dir(cell, kind, unit) / RECORD)
        return value if isinstance(value, dict) else None

    def records(self, kind: str) -> Iterator[dict[str, Any]]:
        """Every record of one kind, in the order of its path."""
        for path in sorted(self.root.glob(f"*/*/*/{kind}-*/{RECORD}")):
            value = read_json(path)
            if isinstance(value, dict):
                yield value

    def damaged(self, kind: str) -> list[Path]:
        """Records of one kind that cannot be read."""
        paths = sorted(self.root.glob(f"*/*/*/{kind}-*/{RECORD}"))
        return [path for path in paths if not isinstance(read_json(path), dict)]

    def remove(self, cell: tuple[str, str, str], kind: str, unit: str) -> None:
        """Forget a unit."""
        shutil.rmtree(self.unit_dir(cell, kind, unit), ignore_errors=True)
