"""The console script: signals and streams are in order before anything is imported that takes time."""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Any, TextIO

from . import interrupt


def _drop(number: int) -> None:
    """Send what is still to be written to a file descriptor to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


class _Forgiving(io.FileIO):
    """A stream whose reader may go away (``bench run | head``): what it would have read is dropped."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            _drop(self.fileno())
            return super().write(data) or 0


class _Log(_Forgiving):
    """A stream of messages; those that cannot be written, as on a full disk, are lost, and the work goes on."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _forgiving(stream: TextIO | None, kind: type[_Forgiving]) -> TextIO:
    if stream is None:  # closed by the shell
        return open(os.devnull, "w")
    raw = io.BufferedWriter(kind(stream.fileno(), "w", closefd=False))
    # A terminal without the plus-minus sign is no reason to stop.
    line_buffering = kind is _Log or stream.isatty()
    return io.TextIOWrapper(raw, encoding=stream.encoding, errors="replace", line_buffering=line_buffering)


def _flush() -> bool:
    """Write what is left of the standard output; False if that failed, as on a full disk."""
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"bench: standard output: {error.strerror}", file=sys.stderr)
        _drop(sys.stdout.fileno())  # or Python tries again, and ends with a traceback and another code
        return False
    return True


def entry() -> None:
    """Run the command line of ``bench`` and exit with its code."""
    interrupt.install()
    # Objects of thousands of records stay to the end: looking for garbage among them cost a fifth of a report.
    gc.set_threshold(50_000, 20, 100)
    sys.stdout = _forgiving(sys.stdout, _Forgiving)
    sys.stderr = _forgiving(sys.stderr, _Log)
    from .cli import main

    code = main()
    if not _flush():
        code = code or 2
    sys.exit(interrupt.exit_code() if code == 130 else code)
