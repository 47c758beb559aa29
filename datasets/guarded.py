"""Reading files that are not trusted with libraries that trust them, in a process of its own.

SciPy and pyarrow reserve what a file claims to hold, and end their process on some damaged files.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

MEMORY = 1 << 30
"""Address space of the process, with its libraries, before :func:`allow_memory`, bytes."""

SECONDS = 30
"""Processor time of the process besides a second per megabyte of the file."""

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_IO_THREADS": "1", "MALLOC_ARENA_MAX": "1",
                "ARROW_DEFAULT_MEMORY_POOL": "system"}  # fmt: skip
"""Threads, their arenas and the pools of memory reserve address space that they do not use."""

_VALUE = "value of the answer"

Answer = tuple[Any, Mapping[str, np.ndarray]]
"""A value that JSON can hold, and arrays of numbers by name."""


def guarded(function: Callable[..., Answer], path: Path, *more: str) -> Answer:
    """Call a function with the path of a file in a process of its own, with limits on memory and processor time.

    Args:
        function: A function of a module that is quick to import.
        path: The file.
        more: Further arguments of the function.

    Raises:
        ValueError: If the function raises an error, or its process ends; the message is one line without the path.
    """
    # -P keeps the current directory off sys.path.
    command = [sys.executable, "-P", "-m", __name__, function.__module__, function.__name__, str(path), *more]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=os.environ | _ENVIRONMENT,
    )  # fmt: skip
    code = done.returncode
    if code or not done.stdout:
        raise ValueError(f"its reader ended with {signal.Signals(-code).name if code < 0 else code}; damaged?")
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as held:
        arrays = {key: held[key] for key in held.files}
    value, error = json.loads(arrays.pop(_VALUE).tobytes())
    if error:
        raise ValueError(error)
    return value, arrays


def allow_memory(further: int) -> None:
    """In the process of :func:`guarded`, allow for some bytes of memory besides :data:`MEMORY`."""
    # macOS does not enforce this limit.
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY + further
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _main(module: str, name: str, path: str, *more: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    allow_memory(0)
    seconds = SECONDS + os.path.getsize(path) // 10**6
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    value, arrays, said = None, dict[str, np.ndarray](), ""
    try:
        value, found = getattr(importlib.import_module(module), name)(path, *more)
        arrays = dict(found)
    except MemoryError:
        said = "asks for more memory than a file of its size needs; damaged?"
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
    answer: dict[str, Any] = {**arrays, _VALUE: np.frombuffer(json.dumps([value, said]).encode(), np.uint8)}
    np.savez(out, **answer)
    out.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
