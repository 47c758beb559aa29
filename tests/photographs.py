"""Photographs of noise."""

import numpy as np
from PIL import Image


def write_photographs(root, classes, each, size=(36, 36)):
    """Random photographs of a width and height in a folder per class, which is returned; classes may be numbers."""
    rng = np.random.default_rng(0)
    for number in range(classes) if isinstance(classes, int) else classes:
        folder = root / f"c{number:02d}"
        folder.mkdir(parents=True)
        for i in range(each):
            Image.fromarray(rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return root
