"""What the data sets of a page are: a line about each, pictures of those that come with bench, and their order."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UserError
from ...registry import Registry
from ..render import data_uri

if TYPE_CHECKING:
    from ...datasets.dataset import Dataset

KINDS = ("photographs", "characters", "", "toy")
"""Kinds of data sets by what results on them weigh, the most first."""

PICTURES, MOST = 8, 40
"""Pictures of a data set, and the most of all together."""


@dataclass(frozen=True)
class DataSet:
    """What a data set shows, as it declares it; only the name is known of one that cannot be imported.

    Pictures are data URIs; ``test`` is the size of the test set that they are from.
    """

    name: str
    kind: str = ""
    summary: str = ""
    licence: str = ""
    citation: str = ""
    pictures: tuple[str, ...] = ()
    test: str = ""

    @property
    def title(self) -> str:
        """Its name, which says so if it is a toy."""
        return f"{self.name} (toy)" if self.kind == "toy" else self.name


def data_sets(names: Iterable[str]) -> dict[str, DataSet]:
    """Data sets by name, in the order in which a page shows them: by the weight of their kind, then by name."""
    registry = Registry("datasets")
    classes = {name: _class_of(registry, name) for name in names}
    count = min(PICTURES, MOST // max(1, sum(cls is not None and cls.embedded for cls in classes.values())))
    found = [DataSet(name) if cls is None else _declared(name, cls, count) for name, cls in classes.items()]
    return {each.name: each for each in sorted(found, key=lambda each: (KINDS.index(each.kind), each.name))}


def _class_of(registry: Registry, name: str) -> type[Dataset] | None:
    """Class of a data set; None for one that is not known here, such as that of a plug-in."""
    try:
        return registry.dataset(name)
    except UserError:
        return None


def _declared(name: str, cls: type[Dataset], count: int) -> DataSet:
    pictures, test = _pictures(cls, count) if cls.embedded else ((), "")
    kind = cls.kind if cls.kind in KINDS else ""
    return DataSet(name, kind, cls.summary, cls.licence, cls.citation, pictures, test)


def _pictures(cls: type[Dataset], count: int) -> tuple[tuple[str, ...], str]:
    """Test images of an embedded data set, evenly spaced, and the size of its test set."""
    import torch
    from PIL import Image

    images = cls().test()
    chosen = images.pixels_of(torch.linspace(0, len(images) - 1, count).long())
    found = []
    for pixels in chosen.permute(0, 2, 3, 1).numpy():
        file = io.BytesIO()
        Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
        found.append(data_uri("image/png", file.getvalue()))
    return tuple(found), f"{len(images):,} test images of {images.num_classes:,} classes"
