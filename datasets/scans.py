"""Small grey images of characters or symbols, one folder per class."""

from __future__ import annotations

from collections.abc import Iterator

from .dataset import register_dataset
from .folder import Folder


@register_dataset
class Scans(Folder):
    """Your own scans of characters or symbols: the layout of ``folder``, with the recipe of a small network."""

    name = "scans"
    recipe = "scans"
    summary = "your own small grey images, such as characters: the layout of folder, a small network"
    official = "folder of scans"
    source = "your own images"
    needs = "folders of images"

    def remarks(self) -> Iterator[str]:
        """Lines about files alone: scans are what the recipe is for."""
        yield from self.of_files()
