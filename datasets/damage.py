"""Damaged images: the error that names them, how many of a folder may be left out, and the list of those that were."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from .decode import decode
from .files import DataError, check_regular

FILE = "skipped.csv"
"""Name of the list in a results folder. Its columns are ``path`` (relative to the folder), ``sha256``, ``reason``."""

ALLOWED = "5 images or 1 %, whichever is more, but no more than a quarter"
"""Share of damaged images that may be left out.

A few are in most folders of photographs; more are a copy that broke off, and a result would be one of other data.
"""


class DamagedImages(DataError):
    """Images that cannot be used: the reason of each by its path; the message has the first five."""

    def __init__(self, damaged: Mapping[Path, str], count: int) -> None:
        self.damaged, self.count = dict(damaged), count
        shown = "; ".join(sorted(damaged.values())[:5]) + ("; ..." if len(damaged) > 5 else "")
        super().__init__(f"{len(damaged)} of {count} images cannot be used: {shown}")


def may_be_left_out(count: int) -> int:
    """Most images of ``count`` that may be left out, see :data:`ALLOWED`.

    Example:
        >>> [may_be_left_out(count) for count in (3, 12, 400, 3118)]
        [0, 3, 5, 31]
    """
    return min(max(5, count // 100), count // 4)


def check_few(damaged: int, count: int, said: str) -> None:
    """Raise an error, with what was said and the limit, if more images of a folder are damaged than may be."""
    if damaged > may_be_left_out(count):
        raise DataError(f"{said}; only {may_be_left_out(count)} of {count} may be left out ({ALLOWED}): repair them")


def left_out(names: Sequence[str], count: int, file: Path | str) -> str:
    """Sentence about images that were left out; ``file`` lists them."""
    verb = "is" if len(names) == 1 else "are"
    return f"{len(names)} of {count} images cannot be used and {verb} left out, such as {names[0]}: {file} lists all"


def skipped_table(folder: Path, damaged: Mapping[Path, str], file: Path | None = None) -> bytes:
    """Content of the list of damaged images of a folder, as CSV, after that of a file if there is one."""
    text = io.StringIO(file.read_text(encoding="utf-8") if file is not None and file.exists() else "", newline="")
    lines = csv.writer(text)
    if not text.seek(0, io.SEEK_END):
        lines.writerow(["path", "sha256", "reason"])
    for path, reason in sorted(damaged.items()):
        lines.writerow([path.relative_to(folder).as_posix(), _sha256(path), reason.removeprefix(f"{path}: ")])
    return text.getvalue().encode()


def read_skipped(file: Path, folder: Path) -> set[str]:
    """Paths, relative to a folder, of images in a list that are still the same files and still cannot be read.

    What was too large, or of a format that could not be read, may be readable by now.

    Raises:
        DataError: If the file is not such a list.
    """
    check_regular(file)
    try:
        with file.open(newline="", encoding="utf-8") as text:
            table = csv.DictReader(text)
            if not {"path", "sha256"} <= {*(table.fieldnames or ())}:
                raise ValueError
            rows = [(row["path"], row["sha256"]) for row in table]
            same = {path for path, digest in rows if path and digest == _sha256(folder / path)}
            return {path for path in same if not _readable(folder / path)}
    except (OSError, ValueError, TypeError, csv.Error):
        raise DataError(f"{file}: not a list of damaged images; remove it, and they are looked for again") from None


def _readable(path: Path) -> bool:
    """Check if a file can be decoded."""
    try:
        decode(path)
    except DataError:
        return False
    return True


def _sha256(path: Path) -> str:
    """Hash of a regular file; of anything else, the empty one."""
    try:
        check_regular(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, DataError):
        return ""
