"""Files that are written as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


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


def sha256(data: bytes) -> str:
    """SHA-256 of some bytes, hexadecimal."""
    return hashlib.sha256(data).hexdigest()
