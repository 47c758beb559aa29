"""Tiny copies of the official layouts, as their owners publish them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def photo(path, seed=0, size=(40, 30), mode="RGB"):
    """An image file of sharp random blocks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST).convert(mode).save(path)


class Releases:
    """Builders; each returns the folder that would be given as the data root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def cub(self, classes=8, per_class=3):
        base = self.root / "cub" / "CUB_200_2011"
        lines, labels, number = [], [], 0
        for c in range(1, classes + 1):
            for i in range(per_class):
                number += 1
                path = f"{c:03d}.Bird_{c}/Bird_{c}_{i:04d}.jpg"
                photo(base / "images" / path, seed=number)
                lines.append(f"{number} {path}")
                labels.append(f"{number} {c}")
        (base / "images.txt").write_text("\n".join(lines) + "\n")
        (base / "image_class_labels.txt").write_text("\n".join(labels) + "\n")
        names = [f"{c} {c:03d}.Bird_{c}" for c in range(1, classes + 1)]
        (base / "classes.txt").write_text("\n".join(names) + "\n")
        (base / "train_test_split.txt").write_text("\n".join(f"{n + 1} {n % 2}" for n in range(number)) + "\n")
        return base.parent

    def _annotations(self, path, rows, name):
        from scipy.io import savemat

        path.parent.mkdir(parents=True, exist_ok=True)
        kinds = [(name, "O"), ("class", "O"), ("test", "O")]
        held = np.empty((1, len(rows)), dtype=kinds)
        for i, (file, c) in enumerate(rows):
            held[0, i] = (file, np.array([[c]], dtype=np.uint8), np.array([[0]], dtype=np.uint8))
        savemat(path, {"annotations": held})

    def cars(self, classes=8, merged=False):
        base = self.root / ("cars_merged" if merged else "cars") / "stanford_cars"
        if merged:
            rows = [(f"car_ims/{2 * c + i:06d}.jpg", c) for c in range(1, classes + 1) for i in range(2)]
            for n, (file, _) in enumerate(rows):
                photo(base / file, seed=n)
            self._annotations(base / "cars_annos.mat", rows, "relative_im_path")
            return base.parent
        for part, file in (("train", "cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
            rows = [(f"{2 * c + i:05d}.jpg", c) for c in range(1, classes + 1) for i in range(2)]
            for n, (name, _) in enumerate(rows):
                photo(base / f"cars_{part}" / name, seed=n)
            where = base / "devkit" / file if part == "train" else base / file
            self._annotations(where, rows, "fname")
        return base.parent

    def sop(self, train=5, test=4):
        base = self.root / "sop" / "Stanford_Online_Products"
        number = 0
        for part, classes in (("train", range(1, train + 1)), ("test", range(train + 1, train + test + 1))):
            lines = ["image_id class_id super_class_id path"]
            for c in classes:
                for i in range(3):
                    number += 1
                    path = f"bicycle_final/{100 + c}_{i}.JPG"
                    photo(base / path, seed=number)
                    lines.append(f"{number} {c} 1 {path}")
            base.mkdir(parents=True, exist_ok=True)
            (base / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")
        return base.parent

    def inshop(self, train=5, test=4):
        base = self.root / "inshop" / "In-shop Clothes Retrieval Benchmark"
        rows = []
        for item in range(train + test):
            name = f"id_{item:08d}"
            for i in range(4):
                path = f"img/WOMEN/Dresses/{name}/{i:02d}_1_front.jpg"
                photo(base / "Img" / path, seed=10 * item + i)
                status = "train" if item < train else ("query" if i < 2 else "gallery")
                rows.append(f"{path:<60} {name} {status}")
        text = "\n".join([str(len(rows)), "image_name item_id evaluation_status", *rows]) + "\n"
        (base / "Eval").mkdir(parents=True, exist_ok=True)
        (base / "Eval" / "list_eval_partition.txt").write_text(text)
        return base.parent

    def folder(self, classes=8, roles=False):
        base = self.root / ("roles" if roles else "plain")
        parts = {"train": range(5), "query": range(5, 9), "gallery": range(5, 9)} if roles else {"": range(classes)}
        for part, members in parts.items():
            for c in members:
                for i in range(3):
                    photo(base / part / f"class {c}" / f"{i}.png", seed=10 * c + i)
        return base


@pytest.fixture
def releases(tmp_path, monkeypatch):
    """Builders in a temporary folder, with a cache of its own; counts of whole releases are those of the copies."""
    from bench.datasets.cars196 import Cars196
    from bench.datasets.cub200 import CUB200
    from bench.datasets.inshop import InShop, InShopMerged
    from bench.datasets.sop import SOP

    monkeypatch.setattr(CUB200, "counts", (24, 8))
    monkeypatch.setattr(Cars196, "counts", (32, 8))
    monkeypatch.setattr(SOP, "counts", (27, 9))
    monkeypatch.setattr(SOP, "part_classes", (5, 4))
    for cls in (InShop, InShopMerged):
        monkeypatch.setattr(cls, "counts", (36, 9))
        monkeypatch.setattr(cls, "part_classes", (5, 4))
    return Releases(tmp_path)


@pytest.fixture
def make_photo():
    return photo
