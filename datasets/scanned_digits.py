"""The 1797 handwritten digits of scikit-learn, read without importing it: that takes as long as the import of torch.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998), its test part as in
``sklearn.datasets.load_digits``.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import distribution

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=1)
def scanned_digits() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read the scans ``[1797, 64]`` of 8 x 8 pixels, values 0..16, and which digit each is, ``[1797]``."""
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",", dtype=np.int64)
    return table[:, :-1], table[:, -1]
