"""The console script: signals and streams are in order before anything is imported that takes time."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

from . import interrupt


class _Forgiving(io.FileIO):
    """A stream whose reader may go away (``bench run | head``): what it would have read is dropped."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data) or 0


def _forgiving(stream: TextIO | None, always_flush: bool) -> TextIO | None:
    if stream is None:  # closed by the shell
        return None
    raw = io.BufferedWriter(_Forgiving(stream.fileno(), "w", closefd=False))
    # A terminal without the plus-minus sign is no reason to stop.
    line_buffering = always_flush or stream.isatty()
    return io.TextIOWrapper(raw, encoding=stream.encoding, errors="replace", line_buffering=line_buffering)


def entry() -> None:
    """Run the command line of ``bench`` and exit with its code."""
    interrupt.install()
    sys.stdout = _forgiving(sys.stdout, always_flush=False)
    sys.stderr = _forgiving(sys.stderr, always_flush=True)
    from .cli import main

    code = main()
    sys.exit(interrupt.exit_code() if code == 130 else code)
