"""In-shop Clothes Retrieval (DeepFashion, Liu et al. 2016): 52,712 photographs of 7,982 clothing items."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from .dataset import register_dataset
from .files import DataError
from .releases import Listing, PhotoDataset, read_lines

LIST = "list_eval_partition.txt"
PARTS = {"train": "dev", "query": "query", "gallery": "gallery"}


class _InShop(PhotoDataset):
    official = "In-shop Clothes Retrieval"
    source = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html"
    needs = LIST
    counts = (52712, 7982)
    part_classes = (3997, 3985)
    copy_parts = ("dev", "query", "gallery")
    licence = "non-commercial research and education only, by the README of the release"
    citation = "Liu, Luo, Qiu, Wang, Tang: DeepFashion: Powering Robust Clothes Recognition and Retrieval, CVPR 2016"
    by_hand = (
        f"Eval/{LIST} and Img/img.zip (not img_highres, which has a password) of the release `In-shop Clothes Retrieval"
        " Benchmark`, both in one folder DIR"
    )
    merged: ClassVar[bool] = False

    def _copy(self, root: Path) -> Listing | None:
        copy = super()._copy(root)
        if copy and self.merged:
            copy.parts = ["dev" if part == "dev" else "test" for part in copy.parts]
        return copy

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        return (folder / LIST).exists()

    def list_images(self, folder: Path) -> Listing:
        path = folder / LIST
        rows = read_lines(path)
        if len(rows) < 3 or rows[1] != ["image_name", "item_id", "evaluation_status"]:
            raise DataError(f"{path}: the second line must be `image_name item_id evaluation_status`")
        if rows[0] != [str(len(rows) - 2)]:
            raise DataError(f"{path}: the first line says {' '.join(rows[0])} images, {len(rows) - 2} are listed")
        places = (folder, folder.parent, folder / "Img", folder.parent / "Img", folder / "img", folder.parent / "img")
        # Path.exists raises an error for a name that is too long.
        base = next((p for p in places if os.path.exists((p / rows[2][0]).parent)), None)
        if base is None:
            base = next((p for p in places if (p / "img").is_dir()), folder)
        listing = Listing(base)
        for words in rows[2:]:
            if len(words) != 3 or words[2] not in PARTS:
                raise DataError(f"{path}: the line `{' '.join(words)}` is not `image_name item_id evaluation_status`")
            image, item, status = words
            if item not in image.split("/"):
                raise DataError(f"{path}: {image} is not of item {item}; the list has been changed")
            part = PARTS[status]
            listing.add(image, item, item, "test" if self.merged and part != "dev" else part)
        if not self.merged:
            shown = {key for key, part in zip(listing.classes, listing.parts) if part == "gallery"}
            lost = [key for key, part in zip(listing.classes, listing.parts) if part == "query" and key not in shown]
            if lost and len(listing.ids) >= self.counts[0]:
                raise DataError(f"{path}: {len(lost)} queries have no item in the gallery, such as {lost[0]}")
        return listing


@register_dataset
class InShop(_InShop):
    """In-shop Clothes Retrieval (DeepFashion) with its official 14,218 queries and 12,612 gallery images.

    They show 3,985 test items. An item is a piece of clothing, which is a class here. Layout of the folder:
    ``Eval/list_eval_partition.txt`` and ``Img/img/..``, or both in one folder.
    """

    name = "inshop"
    recipe = "inshop"
    summary = "In-shop Clothes Retrieval: 52,712 photographs of 7,982 items, query to gallery"


@register_dataset
class InShopMerged(_InShop):
    """In-shop Clothes Retrieval (DeepFashion), queries and gallery merged: a test image is searched among all others.

    As in "Probabilistic Embeddings Revisited" (PER). Results are not comparable with the rest of the literature.
    """

    name = "inshop_merged"
    recipe = "inshop"
    summary = "In-shop Clothes Retrieval with queries and gallery merged, as in PER"
    merged = True
