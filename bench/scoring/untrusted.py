"""Checks of what a file of embeddings claims, before anything of that size is allocated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np
from rich.filesize import decimal as size

from ..errors import BadInput, shortened
from .embedding_set import KEYS, MASKS

FEATURE_KEYS = ("features", "embeddings", "labels", "groups", "ids", "class_names", "about", *MASKS)
"""Names of the arrays of a file of features, besides those of corrupted images."""

Arrays = dict[str, np.ndarray]

MAX_UNPACKED = "BENCH_MAX_UNPACKED"
"""Environment variable: largest size in bytes that the arrays of a file may unpack to."""

MOST_UNPACKED = 256_000_000
"""Default of :data:`MAX_UNPACKED` for files of less than a 64th of it."""

MOST_TIMES = 64
"""Default of :data:`MAX_UNPACKED` for larger files, as a multiple of their size."""

TEXT_BYTES = 64
"""Memory of a text besides its characters."""


def check_unpacked(count: int, packed: int) -> None:
    """Check that the arrays of a file do not unpack to many more bytes; the message says how to allow it."""
    asked = os.environ.get(MAX_UNPACKED)
    if asked is not None and not (asked.isascii() and asked.isdigit() and len(asked) < 19):
        raise BadInput(f"{MAX_UNPACKED}={asked}: expected a number of bytes, such as 4000000000")
    limit = max(MOST_UNPACKED, MOST_TIMES * packed) if asked is None else max(int(asked), packed)
    if count > limit:
        raise BadInput(
            f"unpacks to {size(count)}, {count // max(1, packed)} times its own size; allowed are {size(limit)}."
            f" If you trust it, set {MAX_UNPACKED}={count}"
        )


def keys_among(names: Sequence[str], features: bool) -> Sequence[str]:
    """Names of the arrays that are read, given all names of a file: those of corrupted images have their kind."""
    if not features:
        return KEYS
    return (*FEATURE_KEYS, *(name for name in names if name.partition("_")[0] in ("corrupted", "severity")))


def known_names(names: Sequence[str], keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of arrays that are read, and those that are not.

    Raises:
        BadInput: If a name that is read is there twice, or another name is close to one that is absent: a mistyped
            ``confidence`` must not look like none.
    """
    wanted = [name for name in names if name in keys]
    for key in wanted:
        if wanted.count(key) > 1:
            raise BadInput(f"{key} is in the file {wanted.count(key)} times; keep one")
    others = [name for name in names if name not in keys]
    absent = [key for key in keys if key not in wanted]
    for name in others:
        if name.lower() in _LOGARITHMS:
            raise BadInput(f"unknown key {name!r}: call its exponential, np.exp({name}), {_LOGARITHMS[name.lower()]}")
        near = get_close_matches(name.lower(), absent, n=1, cutoff=0.75) if len(name) < 2 * _LONGEST else []
        if near:
            raise BadInput(f"unknown key {name!r}; did you mean {near[0]!r}? (known: {', '.join(keys)})")
    return wanted, [shortened(name, 100) for name in others]


_LOGARITHMS = {f"{start}{end}": key for start in ("log_", "log", "ln_") for key, ends in
               {"variance": ("variance", "var", "sigma2"), "concentration": ("concentration", "kappa")}.items()
               for end in ends}  # fmt: skip
"""Names of logarithms that many heads output, by the name of what is read."""

_LONGEST = max(map(len, KEYS))
