"""Label distributions given by people, from a CSV file next to the images."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .files import DataError, check_regular

FILE = "probabilities.csv"
"""Name of the table of label distributions.

Its first column is ``path``, relative to the folder of the file; then comes a column per class. Rows sum to 1.
"""

LONGEST = 1000
"""Longest cell, characters."""

TOLERANCE = 1e-3
"""Largest deviation of a row's sum from 1: published tables are rounded."""


@dataclass(frozen=True)
class SoftLabels:
    """Label distributions ``[M, K]`` that people gave to some images, read from a CSV file, which has an SHA-256."""

    ids: tuple[str, ...]
    probabilities: Tensor
    sha256: str

    def of(self, ids: Sequence[str]) -> Tensor:
        """Label distributions of N images, float64 ``[N, K]`` for K classes; rows of nan for images without one."""
        place = {identity: row for row, identity in enumerate(self.ids)}
        rows = torch.tensor([place.get(identity, -1) for identity in ids], dtype=torch.long)
        # Row -1 is the nan that is put last.
        return torch.cat([self.probabilities, torch.full_like(self.probabilities[:1], torch.nan)])[rows]


def read_soft_labels(path: Path, ids: Collection[str], class_names: Collection[str]) -> SoftLabels:
    """Read label distributions given by people from a CSV file, a :data:`FILE`.

    A class without a column has probability 0 everywhere; an image without a row has no distribution.

    Raises:
        DataError: If the file is not such a table, names an unknown image or class, or contains a row that is not a
            distribution.
    """
    check_regular(path)
    try:
        content = path.read_bytes()
        text = io.StringIO(content.decode("utf-8-sig"))
        table = pd.read_csv(text, header=None, dtype=str, keep_default_na=False)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path}: not a CSV table ({str(error).strip().splitlines()[-1]})") from None
    if table.map(len).to_numpy().max() > LONGEST:
        raise DataError(f"{path}: a cell has more than {LONGEST} characters")
    header = [name.strip() for name in table.iloc[0]]
    if header[0] != "path" or len(header) < 2 or len(table) < 2:
        raise DataError(f"{path}: expected a column 'path', a column per class, and a line per image")
    names = header[1:]
    if len(set(names)) != len(names):
        raise DataError(f"{path}: column {_repeated(names)!r} appears twice")
    for name in names:
        if name not in class_names:
            raise DataError(f"{path}: column {name!r} is not a class of this data set{_nearest(name, class_names)}")
    images = [PurePosixPath(name).as_posix() for name in table.iloc[1:, 0]]
    if len(set(images)) != len(images):
        raise DataError(f"{path}: {_repeated(images)!r} appears twice")
    known = set(ids)
    strange = [name for name in images if name not in known]
    if strange:
        raise DataError(
            f"{path}: {len(strange)} of {len(images)} paths name an unknown image, such as {strange[0]!r};"
            f" they are relative to {path.parent}"
        )
    values = table.iloc[1:, 1:].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    total = values.sum(1)
    for wrong, what in (
        (~np.isfinite(values).all(1), "has a value that is not a number"),
        ((values < 0).any(1), "has a negative probability"),
        (np.abs(total - 1) > TOLERANCE, "does not sum to 1"),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            shown = f" but to {total[row]:g}" if what.startswith("does") else ""
            raise DataError(f"{path}: the row of {images[row]!r} {what}{shown} ({int(wrong.sum())} such rows)")
    return SoftLabels(tuple(images), torch.tensor(values), hashlib.sha256(content).hexdigest())


def _repeated(names: Sequence[str]) -> str:
    return next(name for name, count in Counter(names).items() if count > 1)


def _nearest(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
