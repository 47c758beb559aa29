"""Errors that the command line turns into one line and an exit code."""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

PLUGINS = "bench_plugins"
"""Package of plug-in files; each folder with plug-ins is a package below it."""

LINE = 300
"""Longest message of an error, in characters; the whole traceback is kept next to the unit."""


class UserError(Exception):
    """An error the user can fix: one line that says what to do. Exit code 2."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Words that suggest the nearest known name; empty if none is near.

    Example:
        >>> nearest("dulcls", ["dul_cls", "pfe"]), nearest("x", ["dul_cls"])
        ("; did you mean 'dul_cls'?", '')
    """
    near = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def no_such(path: Path, what: str = "file") -> str:
    """Words about a path that is not there, with the nearest name that is."""
    try:
        there = [each.name for each in path.absolute().parent.iterdir()]
    except OSError:
        there = []
    return f"no such {what}{nearest(path.name, there)}"


class UnknownName(UserError):
    """An unknown name; the message suggests the nearest known one or lists all, and ``elsewhere`` to look."""

    def __init__(self, what: str, name: str, known: Iterable[str], elsewhere: str = "") -> None:
        names = sorted(known)
        near = nearest(name, names)
        hint = f"{near} {elsewhere.removeprefix('; ')}".rstrip() if near else f" (known: {', '.join(names)}{elsewhere})"
        super().__init__(f"unknown {what} {shortened(name, 100)!r}{hint}")


def require_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise :class:`UnknownName` for the first name that is not known."""
    for name in names:
        if name not in known:
            raise UnknownName(what, name, known)


class NoGpu(UserError):
    """The GPU that was asked for is not there, or this process may not use it."""


class MissingWeights(UserError):
    """Weights that a backbone should start from are not on this machine."""


class BadInput(UserError, ValueError):
    """Arrays or a file that cannot be scored: one line on the command line, a ``ValueError`` from Python."""


class UnitFailed(Exception):
    """A training or test that cannot give a result; its reason goes into the summary. Exit code 1."""

    def __init__(self, reason: str, what: str = "") -> None:
        super().__init__(reason)
        self.what = what


class OutOfMemory(UnitFailed):
    """Memory ran out where smaller parts of the work do not help; the message says what does."""

    def __init__(self, what: str, said: str, further: str = "") -> None:
        super().__init__(
            f"out of memory ({what}): try lower data.classes_per_batch, data.images_per_class or"
            f" data.image_size{further}, fewer --workers: {shortened(said, LINE // 2)}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Check if an error says that memory ran out: of Python and NumPy, or of torch on the host or on a GPU.

    Some errors of cuBLAS and cuDNN may have another reason (:func:`breaks_process`).

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes do not match"))
        (True, False)
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        any(words in text for words in _ALLOCATORS + _PERHAPS) or text.endswith(_OF_ONEDNN)
    )


_ALLOCATORS = (
    "DefaultCPUAllocator",
    "Cannot allocate memory",
    "not enough memory",
    "out of memory",
    "std::bad_alloc",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""Words of the ``RuntimeError`` by which torch and the libraries below it say that memory ran out."""

_OF_ONEDNN = "could not create a primitive"
"""All that oneDNN says where memory ran out; with more behind it, it is something else."""

_PERHAPS = (
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "nable to find an engine to execute this computation",
)
"""Words of errors of cuBLAS and cuDNN that mostly say that there was no memory for a handle or a workspace."""


def breaks_process(error: BaseException) -> bool:
    """Check if after an error this process can do no more of its work, which a fresh process may be able to.

    CUDA reports what a kernel did wrong from then on at every call, and a thread in which oneDNN once had no memory for
    a kernel makes no new one. An error of cuBLAS or cuDNN may also be a lack of memory; it counts once smaller parts
    have not helped.

    Example:
        >>> breaks_process(RuntimeError("CUDA error: an illegal memory access was encountered"))
        True
        >>> breaks_process(RuntimeError("CUDA error: out of memory"))
        False
    """
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause)
        of_cuda = type(cause).__name__ == "AcceleratorError" or any(words in text for words in _OF_CUDA)
        lasts = text.endswith(_OF_ONEDNN) or (of_cuda and not any(words in text for words in _ALLOCATORS))
        if isinstance(cause, NoGpu) or (isinstance(cause, RuntimeError) and lasts):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


_OF_CUDA = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS", "CUSOLVER_STATUS")
"""Words of the ``RuntimeError`` by which torch passes on an error of CUDA and its libraries."""


def first_line(error: BaseException, limit: int = LINE) -> str:
    """Message of an error as one line of at most ``limit`` characters."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return shortened(lines[0].strip() if lines else type(error).__name__, limit)


def printable(text: str) -> str:
    r"""A text on one line that moves no cursor and changes no colour: what is not printable is shown as its escape.

    Example:
        >>> printable("a\nb \x1b[2J")
        'a b \\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else c.encode("unicode_escape").decode() for c in text)


def installable(text: str) -> str:
    """A message in which ``pip install 'probembed[EXTRA]'`` is the command that installs the extra here."""
    if Path(__file__).parents[1].joinpath("pyproject.toml").exists():  # a checkout, whose environment uv keeps
        return re.sub(r"pip install 'probembed\[(\w+)\]'", r"uv sync --inexact --extra \1", text)
    return text if find_spec("pip") else text.replace("pip install 'probembed[", "uv pip install 'probembed[")


def shortened(text: str, limit: int = LINE) -> str:
    """A printable text on one line, cut to at most ``limit`` characters with an ellipsis."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def place_of(error: BaseException) -> str:
    """File and line where an error arose, such as ``mine.py:12``; empty if the error has no traceback.

    If the traceback passes through a plug-in file of the user, this is the last line in it.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return ""
    frame, line = ([item for item in frames if _of_plugin(item[0])] or frames)[-1]
    return f"{Path(frame.f_code.co_filename).name}:{line}"


def from_plugin(error: BaseException) -> bool:
    """Check if the traceback of an error passes through a plug-in file of the user."""
    return any(_of_plugin(frame) for frame, _ in traceback.walk_tb(error.__traceback__))


def _of_plugin(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(f"{PLUGINS}.")
