"""The official layouts load with the right splits, and what is wrong with a copy is said in one line."""

from __future__ import annotations

import shutil
import tarfile
import zipfile

import pytest
import torch
from bench.cli import main
from bench.datasets import DataError
from bench.datasets.cars196 import Cars196
from bench.datasets.cub200 import CUB200
from bench.datasets.folder import Folder
from bench.datasets.inshop import InShop, InShopMerged
from bench.datasets.sop import SOP


def _names(images):
    return set(images.class_names)


def _check_disjoint(data):
    split, test = data.train_val(), data.test()
    groups = [_names(split.train), _names(split.val), _names(test)]
    assert not groups[0] & groups[1]
    assert not (groups[0] | groups[1]) & groups[2]
    for part in (split.train, split.val, test):
        for path, name in zip(part.paths, part.ids):
            assert path.exists()
            assert str(path).endswith(name)
    return split, test


def test_cub_merges_the_official_split_and_halves_the_classes(releases):
    split, test = _check_disjoint(CUB200(releases.cub()))
    assert sorted(_names(split.train) | _names(split.val)) == [f"{c:03d}.Bird_{c}" for c in range(1, 5)]
    assert sorted(_names(split.val)) == ["001.Bird_1"]
    assert (len(split.train), len(split.val), len(test)) == (9, 3, 12)
    by_name = {name: test.class_names[label] for name, label in zip(test.ids, test.labels.tolist())}
    assert all(name.split("/")[1] == label for name, label in by_name.items())


@pytest.mark.parametrize("merged", [False, True])
def test_cars_in_both_layouts(releases, monkeypatch, merged):
    monkeypatch.setattr(Cars196, "counts", (16 if merged else 32, 8))
    split, test = _check_disjoint(Cars196(releases.cars(merged=merged)))
    assert sorted(_names(test)) == ["005", "006", "007", "008"]
    assert len(test) == (8 if merged else 16)
    assert len(split.train) + len(split.val) == len(test)
    if not merged:
        assert {name.split("/")[0] for name in test.ids} == {"cars_train", "cars_test"}


def test_sop_keeps_the_authors_class_split(releases):
    split, test = _check_disjoint(SOP(releases.sop()))
    assert _names(split.train) | _names(split.val) == {"1", "2", "3", "4", "5"}
    assert _names(test) == {"6", "7", "8", "9"}


def test_inshop_has_queries_and_gallery_and_can_be_merged(releases):
    root = releases.inshop()
    _, test = _check_disjoint(InShop(root))
    assert len(test) == 16
    assert test.queries.numel() == test.gallery.numel() == 8
    assert not set(test.queries.tolist()) & set(test.gallery.tolist())
    assert all("/00_" in test.ids[i] or "/01_" in test.ids[i] for i in test.queries.tolist())
    _, merged = _check_disjoint(InShopMerged(root))
    assert merged.queries is None
    assert merged.manifest_sha256() == test.manifest_sha256()


def test_folders_with_and_without_roles(releases):
    _, test = _check_disjoint(Folder(releases.folder()))
    assert sorted(_names(test)) == [f"class {c}" for c in range(4, 8)]
    _, test = _check_disjoint(Folder(releases.folder(roles=True)))
    assert sorted(_names(test)) == [f"class {c}" for c in range(5, 9)]
    assert test.queries.numel() == test.gallery.numel() == 12


def test_a_release_is_found_at_any_depth_and_its_manifest_does_not_depend_on_where(releases, tmp_path):
    root = releases.cub()
    before = CUB200(root).test().manifest_sha256()
    deep = tmp_path / "a" / "b"
    deep.parent.mkdir()
    shutil.move(root, deep)
    assert CUB200(tmp_path / "a").test().manifest_sha256() == before


def _damage_missing_list(r):
    root = r.cub()
    (root / "CUB_200_2011" / "images.txt").unlink()
    return CUB200, root


def _damage_wrong_counts(r):
    root = r.cub(per_class=2)
    return CUB200, root


def _damage_truncated(r):
    root = r.sop()
    path = root / "Stanford_Online_Products" / "bicycle_final" / "103_1.JPG"
    path.write_bytes(path.read_bytes()[:300])
    return SOP, root


def _damage_duplicate(r):
    root = r.sop()
    path = root / "Stanford_Online_Products" / "Ebay_train.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1]]) + "\n")
    return SOP, root


def _damage_unreadable(r):
    root = r.folder()
    return Folder, root / "class 1" / "0.png"


def _damage_wrong_cub(r):
    root = r.cub()
    (root / "CUB_200_2011" / "lists").mkdir()
    (root / "CUB_200_2011" / "lists" / "files.txt").write_text("x")
    return CUB200, root


def _damage_swapped_labels(r):
    root = r.cub()
    path = root / "CUB_200_2011" / "image_class_labels.txt"
    lines = [line.split() for line in path.read_text().splitlines()]
    path.write_text("\n".join(f"{n} {9 - int(c)}" for n, c in lines) + "\n")
    return CUB200, root


def _damage_empty_class(r):
    root = r.folder()
    (root / "class 99").mkdir()
    return Folder, root


def _damage_one_pixel(r):
    from PIL import Image

    root = r.folder()
    Image.new("RGB", (1, 1)).save(root / "class 2" / "1.png")
    return Folder, root


def _damage_missing_images(r):
    root = r.inshop()
    for path in root.rglob("id_00000002/*.jpg"):
        path.unlink()
    return InShop, root


def _damage_swapped_sop(r):
    root = r.sop()
    base = root / "Stanford_Online_Products"
    train, test = base / "Ebay_train.txt", base / "Ebay_test.txt"
    first, second = train.read_text(), test.read_text()
    train.write_text(second)
    test.write_text(first)
    return SOP, root


def _damage_not_an_annotation(r):
    root = r.cars()
    (root / "stanford_cars" / "devkit" / "cars_train_annos.mat").write_bytes(b"nothing of the kind")
    return Cars196, root


def _damage_header(r):
    root = r.inshop()
    path = next(root.rglob("list_eval_partition.txt"))
    path.write_text(path.read_text().replace("36\n", "35\n", 1))
    return InShop, root


DAMAGES = {
    _damage_missing_list: "lacks its companion",
    _damage_wrong_counts: "incomplete: 16 of 24 images, 8 of 8 classes",
    _damage_truncated: "1 of 15 images cannot be used: .*103_1.JPG: not a readable image",
    _damage_duplicate: "1 images are listed more than once, such as bicycle_final/105_2.JPG",
    _damage_unreadable: "no such folder",
    _damage_wrong_cub: r"is CUB-200 \(2010",
    _damage_swapped_labels: "do not belong together",
    _damage_empty_class: "class 99 contains no image",
    _damage_one_pixel: "1 x 1 pixels has no content to learn from",
    _damage_missing_images: "4 listed ones are not there, such as img/WOMEN/Dresses/id_00000002",
    _damage_swapped_sop: "are swapped",
    _damage_not_an_annotation: "not an annotation file of Cars196",
    _damage_header: "the first line says 35 images, 36 are listed",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__.removeprefix("_damage_"))
def test_each_kind_of_damage_has_its_line(releases, damage):
    cls, root = damage(releases)
    with pytest.raises(DataError, match=DAMAGES[damage]) as caught:
        cls(root).prepare()
    assert "\n" not in str(caught.value)


def test_every_damaged_image_is_named_at_once(releases):
    root = releases.folder()
    for c in (5, 6):
        (root / f"class {c}" / "0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"2 of 12 images cannot be used: .*class 5.*class 6"):
        Folder(root).prepare()


@pytest.mark.parametrize(
    ("mode", "suffix"), [("L", "png"), ("CMYK", "jpg"), ("P", "png"), ("RGBA", "png"), ("1", "png")]
)
def test_other_colour_modes_are_read_as_rgb_and_reported(releases, make_photo, mode, suffix):
    root = releases.folder()
    make_photo(root / "class 7" / f"odd.{suffix}", mode=mode)
    data = Folder(root)
    found = data.verify()
    assert found["converted_to_rgb"] == {mode: 1}
    assert found["damaged"] == []
    test = data.test()
    assert test.evaluation(torch.arange(len(test))).shape == (13, 3, 224, 224)


def test_a_part_of_a_release_must_be_asked_for_and_says_so(releases):
    root = releases.cub(classes=6)
    with pytest.raises(DataError, match="--allow-partial"):
        CUB200(root)
    data = CUB200(root, allow_partial=True)
    assert data.partial == "18 of 24 images, 6 of 8 classes"
    assert len(data.test().class_names) == 3
    with pytest.raises(DataError, match="has 24 images of 8 classes"):
        CUB200(releases.cub(classes=9), allow_partial=True)


def test_import_unpacks_finds_and_refuses(releases, tmp_path, capsys, refusal):
    root, data_root = releases.cub(), tmp_path / "data"
    with tarfile.open(tmp_path / "CUB.tgz", "w:gz") as archive:
        archive.add(root / "CUB_200_2011", "CUB_200_2011")
    assert main(["data", "import", "cub200", str(tmp_path / "CUB.tgz"), "--data-root", str(data_root)]) == 0
    assert "24 images, 8 classes" in capsys.readouterr().out
    assert main(["data", "verify", "cub200", "--data-root", str(data_root)]) == 0
    shown = capsys.readouterr().out
    assert "test      12 images     4 classes" in shown
    assert "already exists" in refusal("data", "import", "cub200", tmp_path / "CUB.tgz", "--data-root", data_root)
    with zipfile.ZipFile(tmp_path / "wrong.zip", "w") as archive:
        archive.writestr("hello.txt", "x")
    assert "no Stanford Online Products" in refusal(
        "data", "import", "sop", tmp_path / "wrong.zip", "--data-root", data_root
    )
    assert not (data_root / "sop").exists()


def test_large_lists_are_planned_without_opening_an_image(tmp_path, monkeypatch):
    base = tmp_path / "Stanford_Online_Products"
    base.mkdir()
    number = 0
    for part, classes, images in (("train", range(1, 11319), 59551), ("test", range(11319, 22635), 60502)):
        lines = ["image_id class_id super_class_id path"]
        count = len(classes)
        for i in range(images):
            number += 1
            lines.append(f"{number} {classes[i % count]} 1 chair_final/{number}.JPG")
        (base / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("bench.datasets.releases.os.path.exists", lambda path: True)
    data = SOP(tmp_path)
    split, test = data.train_val(), data.test()
    assert (split.train.num_classes, split.val.num_classes, test.num_classes) == (8488, 2830, 11316)
    assert (len(split.train) + len(split.val), len(test)) == (59551, 60502)


def test_queries_without_a_gallery_and_halves_that_share_classes_are_refused(releases, make_photo):
    root = releases.folder(roles=True)
    shutil.rmtree(root / "query")
    (root / "query").mkdir()
    with pytest.raises(DataError, match="0 queries and 12 gallery images cannot be ranked"):
        Folder(root).test()
    make_photo(root / "query" / "class 0" / "x.png")
    with pytest.raises(DataError, match="1 classes are in both halves, such as class 0"):
        Folder(root).train_val()


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_too_few_classes_to_split_are_refused(releases, classes):
    with pytest.raises(DataError, match="need at least 4"):
        Folder(releases.folder(classes=classes))


def test_a_release_among_many_folders_is_found(releases):
    root = releases.cub()
    for i in range(120):
        (root / f"other {i}").mkdir()
    assert CUB200(root).listing.folder.name == "CUB_200_2011"


def test_a_name_that_is_not_text_is_named(releases):
    root = releases.folder()
    import os

    os.rename(root / "class 1" / "0.png", os.fsencode(root / "class 1") + b"/caf\xe9.png")
    with pytest.raises(DataError, match=r"caf\\udce9.png' is not UTF-8"):
        Folder(root)


@pytest.mark.parametrize("kind", ["truncated", "itself", "link", "outside"])
def test_imports_that_cannot_work_end_in_one_line(releases, tmp_path, capsys, kind):
    import io
    import os

    root, data_root = releases.cub(), tmp_path / "data"
    source = tmp_path / "cub.tar"
    with tarfile.open(source, "w") as archive:
        archive.add(root / "CUB_200_2011", "CUB_200_2011")
        if kind == "outside":
            member = tarfile.TarInfo("../../out.txt")
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    if kind == "truncated":
        source.write_bytes(source.read_bytes()[:5000])
    elif kind == "itself":
        source = data_root = root
    elif kind == "link":
        os.symlink("nowhere", root / "dangling")
        source = root
    assert main(["data", "import", "cub200", str(source), "--data-root", str(data_root)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (data_root / "cub200").exists()
    assert not list(tmp_path.rglob("out.txt"))
