"""The error about the files of a data set, and checks of files that somebody else made, before they are opened."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class DataError(ValueError):
    """Error about the files of a data set; its message is one line that says what to do."""


class MissingRelease(DataError):
    """The release of a data set is not where it is looked for."""


def check_regular(path: Path) -> None:
    """Refuse what is not a regular file, without opening it: to open a pipe waits for ever, a device may never end."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(mode):
        raise DataError(f"{path}: a folder, not a file; rename or remove it")
    if not stat.S_ISREG(mode):
        raise DataError(f"{path}: a pipe, device or socket, not a file; remove it")
