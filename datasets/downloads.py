"""Downloading the archive of a release: resumed after an interruption, checked, and at its place only when whole.

urllib does the transfer. The libraries made for downloads of data (pooch, torch.hub) begin anew after every
interruption, which is a long time at 3 GB from a slow server.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from .archives import SUFFIXES
from .files import DataError

TIMEOUT = 30.0
"""Seconds for which a server may send nothing before the connection is given up."""

PAUSES = (1.0, 4.0)
"""Seconds to wait before each further try; a try that received something is not counted."""

PASSING = (408, 429, 500, 502, 503, 504)
"""Answers of a server that may be others a moment later."""

AGAIN = "the same command goes on where it stopped"

_BLOCK = 1 << 20

Progress = Callable[[int, int], None]
"""Function called with the number of bytes that are there, and of all bytes (0 if unknown)."""


@dataclass(frozen=True)
class Archive:
    """The archive in which the owners of a data set serve it: address (http or https) and name of the file.

    ``size`` in bytes is 0 and ``checksum`` (``md5:HEX`` or ``sha256:HEX``) empty if the owners do not fix them, for
    instance because the archive is packed on request. Archives with the rest of the data set, if any, are ``further``.
    """

    url: str
    file: str
    size: int = 0
    checksum: str = ""
    further: tuple[Archive, ...] = ()

    def all(self) -> tuple[Archive, ...]:
        """The archives that the data set consists of, this one first."""
        return (self, *self.further)


class _Interruption(Exception):
    """A failure of the network or the server that another try may not have."""


def mirrored(archive: Archive, mirror: str) -> str:
    """Address of an archive on a mirror, named by the file itself, if it ends as archives do, or else by its folder.

    Example:
        >>> birds = Archive("https://a.org/1", "birds.tgz")
        >>> mirrored(birds, "http://b.org/x"), mirrored(birds, "http://b.org/copy.zip")
        ('http://b.org/x/birds.tgz', 'http://b.org/copy.zip')
    """
    try:
        parts = urlsplit(mirror)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and mirror.isascii()
    except ValueError:
        known = False
    if not known:
        raise DataError(f"--mirror {mirror}: not an http:// or https:// address; `bench data import` reads files here")
    if not parts.path.lower().endswith(SUFFIXES):
        return f"{mirror.rstrip('/')}/{archive.file}"
    if archive.further:
        files = " and ".join(each.file for each in archive.all())
        raise DataError(f"--mirror {mirror}: give the address of the folder that contains {files}")
    return mirror


def check_checksum(text: str) -> None:
    """Raise an error if a text is not ``md5:HEX`` or ``sha256:HEX``."""
    kind, _, digits = text.partition(":")
    lengths = {"md5": 32, "sha256": 64}
    if len(digits) != lengths.get(kind) or not set(digits.lower()) <= set("0123456789abcdef"):
        raise DataError(f"checksum {text!r}: write md5: and 32, or sha256: and 64 hexadecimal digits")


def checksum_of(path: Path, kind: str) -> str:
    """Hash of a file as ``KIND:HEX``; the kind is ``md5`` or ``sha256``."""
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def download(url: str, target: Path, *, size: int = 0, checksum: str = "", progress: Progress | None = None) -> None:
    """Download a file, and go on with what an earlier call has left.

    What has arrived is kept next to the target, as ``NAME.part`` with the server's mark of the version; the rest is
    asked for, provided the file is still that version. The target exists only when it is whole and checked; one that
    exists and has the checksum is left alone.

    Raises:
        DataError: If the server cannot be reached, serves something else or keeps breaking off, or the disk is full.
        OSError: If the folder cannot be made.
    """
    checksum = checksum.lower()
    kind = checksum.partition(":")[0]
    if target.exists() and not (checksum and checksum_of(target, kind) != checksum):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part, tries = _Part(url, target), 0
    while True:
        before = part.size
        try:
            _receive(part, size, progress)
            break
        except _Interruption as problem:
            tries = 0 if part.size > before else tries + 1
            if tries > len(PAUSES):
                kept = (
                    f"{_amount(part.size)} are kept: {AGAIN}" if part.version else "try later, or another --mirror URL"
                )
                raise DataError(f"{part.shown}: {problem}; {kept}") from None
            time.sleep(PAUSES[max(0, tries - 1)])
    if checksum and (found := checksum_of(part.path, kind)) != checksum:
        part.discard()
        raise DataError(
            f"{part.shown}: its checksum is {found}, not {checksum}: another file, or damaged on the way;"
            " nothing is kept, try again or use a --mirror URL"
        )
    os.replace(part.path, target)
    part.note.unlink(missing_ok=True)


class _Part:
    """The part of a file that has arrived, and the note of which version it is of."""

    def __init__(self, url: str, target: Path) -> None:
        address = urlsplit(url)
        self.url = url
        self.shown = unquote(f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}")
        """The address without its query and password, for messages."""
        self.path, self.note = (target.with_name(target.name + end) for end in (".part", ".part.json"))

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def version(self) -> str:
        """The server's mark of the version that the part is of; empty if it cannot be gone on with."""
        try:
            note = json.loads(self.note.read_text(encoding="utf-8"))
            return str(note["version"]) if self.size and note["url"] == self.url else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def begin(self, version: str) -> None:
        """Empty it, for the given version of the file."""
        self.path.write_bytes(b"")  # first: a note must never be of older content
        self.note.write_text(json.dumps({"url": self.url, "version": version}), encoding="utf-8")

    def discard(self) -> None:
        self.note.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


class _ToHttp(HTTPRedirectHandler):
    """Redirections to http and https: one must not lead to anything else."""

    def redirect_request(self, *given: Any) -> Request | None:
        """Request of a redirection, whose address comes last."""
        if urlsplit(given[-1]).scheme not in ("http", "https"):
            raise URLError(f"redirects to {given[-1]}")
        return super().redirect_request(*given)


def _receive(part: _Part, size: int, progress: Progress | None) -> None:
    """Receive what is missing of a file; failures of the connection or the server are an :class:`_Interruption`."""
    headers, version = {"User-Agent": "bench", "Accept-Encoding": "identity"}, part.version
    if version:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": version}
    try:
        with build_opener(_ToHttp).open(Request(part.url, headers=headers), timeout=TIMEOUT) as answer:
            _add_all(answer, part, version, size, progress)
    except HTTPError as error:
        said = f"the server answers {error.code} {(str(error.reason).splitlines() or [''])[0]}"
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and version:
            part.discard()
            said = "the part of an earlier download does not fit"
        elif error.code not in PASSING:
            raise DataError(f"{part.shown}: {said}; use a --mirror URL") from None
        raise _Interruption(said) from None
    except (OSError, http.client.HTTPException) as error:
        raise _Interruption(_reason(error)) from None


def _add_all(answer: http.client.HTTPResponse, part: _Part, version: str, size: int, progress: Progress | None) -> None:
    """Add an answer to a part: the rest of it, if that was asked for, or the whole file in its place."""
    # A server's mark of a version is a strong ETag, else the date of the last change.
    tag = str(answer.headers.get("ETag", ""))
    served = tag if tag.startswith('"') else str(answer.headers.get("Last-Modified", ""))
    rest = bool(version) and answer.status == HTTPStatus.PARTIAL_CONTENT
    have = part.size if rest else 0
    start = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    if rest and (start != str(have) or served not in ("", version)):
        raise _Interruption("the server sends another part than the one asked for")
    length = answer.headers.get("Content-Length", "")
    total = have + int(length) if length.isascii() and length.isdigit() else 0
    if size and total and total != size:
        raise DataError(f"{part.shown}: serves {total} bytes, but the archive has {size}; use a --mirror URL")
    total = total or size
    free = shutil.disk_usage(part.path.parent).free
    if total - have > free:
        raise DataError(
            f"{part.path.parent}: {_amount(total - have)} are to be downloaded, but only {_amount(free)} are free on"
            " its disk; make room, or choose another --data-root"
        )
    block = _block(answer)
    # A page of HTML or an error in JSON; no archive begins so.
    if not have and block.lstrip().startswith((b"<", b"{")):
        raise DataError(
            f"{part.shown}: answers with a web page, not an archive (of a login, a quota or an error?);"
            " open it in a browser, or use a --mirror URL"
        )
    try:
        if not have:
            part.begin(served)
        with part.path.open("ab") as file:  # open all the time: on a network file system each closing waits
            while block:
                file.write(block)
                have += len(block)
                if progress is not None:
                    progress(have, total)
                block = _block(answer)
    except OSError as error:
        kept = f"{_amount(part.size)} are kept: make room, then {AGAIN}"
        raise DataError(f"{part.path}: {error.strerror}; {kept}") from None
    if total and have > total:
        part.discard()
        raise DataError(f"{part.shown}: serves {have} bytes, but the archive has {total}; use a --mirror URL")
    if have < total:
        raise _Interruption(f"the connection ended after {_amount(have)} of {_amount(total)}")


def _block(answer: http.client.HTTPResponse) -> bytes:
    """Bytes that have arrived, at most a block; empty at the end."""
    try:
        return answer.read1(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _Interruption(_reason(error)) from None


def _reason(error: BaseException) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer in {TIMEOUT:g} s"
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return f"cannot be read ({' '.join(str(text).split())})"


def _amount(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
