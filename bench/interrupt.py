"""Ctrl-C, SIGTERM and SIGHUP: the command ends at once, at any moment, with one line and the usual exit code."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_received: list[int] = []
_cancel: list[Callable[[], object]] = []


def install() -> None:
    """Make Ctrl-C, SIGTERM and SIGHUP end the program at once, except those that the shell ignores (``nohup``)."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)


def exit_code() -> int:
    """128 + number of the first signal received (130 for Ctrl-C or none, 143 for SIGTERM, 129 for SIGHUP)."""
    return 128 + (_received[0] if _received else signal.SIGINT)


@contextlib.contextmanager
def cancelling(cancel: Callable[[], object]) -> Iterator[None]:
    """Context in which Ctrl-C, SIGTERM or SIGHUP calls ``cancel`` instead of ending the program at once."""
    _cancel.append(cancel)
    try:
        yield
    finally:
        _cancel.pop()


def _handle(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if _cancel:
        _cancel[-1]()
        return
    # Files are written as a whole or not at all, so there is nothing to clean up. An exception could come in the midst
    # of an import or of a finaliser, which print a traceback then.
    show_cursor = "\x1b[?25h" if os.isatty(2) else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{show_cursor}\nbench: interrupted; nothing finished is lost\n".encode())
    os._exit(exit_code())
