"""The official layouts load with the right splits; what is wrong or harmful in a copy is one line."""

import io
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from bench.cli import main
from bench.datasets import DataError
from bench.datasets.cars196 import Cars196
from bench.datasets.cub200 import CUB200
from bench.datasets.folder import Folder
from bench.datasets.guarded import guarded
from bench.datasets.inshop import InShop, InShopMerged
from bench.datasets.mat_file import read_annotations
from bench.datasets.sop import SOP
from PIL import Image

from tests.refusals import one_line


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


@pytest.mark.slow
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


def test_a_release_among_many_folders_is_found(releases):
    root = releases.cub()
    for i in range(120):
        (root / f"other {i}").mkdir()
    assert CUB200(root).listing.folder.name == "CUB_200_2011"


def _edited(root, pattern, change):
    """The release with other bytes in the files of a name."""
    for path in sorted(root.rglob(pattern)):
        path.write_bytes(change(path.read_bytes()))
    return root


def _without(root, pattern):
    for path in sorted(root.rglob(pattern)):
        path.unlink()
    return root


def _with(root, name):
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    return root


def _relabelled(lists):
    pairs = (line.split() for line in lists.decode().splitlines())
    return "".join(f"{number} {9 - int(label)}\n" for number, label in pairs).encode()


def _one_pixel(_):
    file = io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "png")
    return file.getvalue()


def _swapped(root, first, second):
    texts = [path.read_bytes() for path in (root / first, root / second)]
    (root / first).write_bytes(texts[1])
    (root / second).write_bytes(texts[0])
    return root


def _listed(releases, old, new):
    return _edited(releases.inshop(), "list_eval_partition.txt", lambda raw: raw.replace(old, new, 1))


LISTS = ("Stanford_Online_Products/Ebay_train.txt", "Stanford_Online_Products/Ebay_test.txt")
DAMAGES = {
    "missing list": (CUB200, lambda r: _without(r.cub(), "images.txt"), "lacks its companion"),
    "wrong counts": (CUB200, lambda r: r.cub(per_class=2), "incomplete: 16 of 24 images, 8 of 8 classes"),
    "truncated": (SOP, lambda r: _edited(r.sop(), "103_1.JPG", lambda raw: raw[:300]), "1 of 27 .*103_1.JPG: not"),
    "duplicate": (
        SOP,
        lambda r: _edited(r.sop(), "Ebay_train.txt", lambda raw: raw + raw.splitlines()[-1]),
        "1 images are listed more than once, such as bicycle_final/105_2.JPG",
    ),
    "a file": (Folder, lambda r: r.folder() / "class 1" / "0.png", "no such folder"),
    "older release": (CUB200, lambda r: _with(r.cub(), "CUB_200_2011/lists/files.txt"), r"is CUB-200 \(2010"),
    "swapped labels": (CUB200, lambda r: _edited(r.cub(), "image_class_labels.txt", _relabelled), "belong together"),
    "no image": (Folder, lambda r: _with(_without(r.folder(), "*.png"), "class 99/a.txt"), "class 0 contains no image"),
    "two": (Folder, lambda r: _edited(r.folder(), "class [56]/0.png", lambda _: b"x"), "2 of 24 .*class 5.*class 6"),
    "one pixel": (Folder, lambda r: _edited(r.folder(), "class 2/1.png", _one_pixel), "has no content to learn from"),
    "missing images": (InShop, lambda r: _without(r.inshop(), "id_00000002/*.jpg"), "4 listed ones are not there"),
    "swapped lists": (SOP, lambda r: _swapped(r.sop(), *LISTS), "are swapped"),
    "no annotation": (Cars196, lambda r: _edited(r.cars(), "*_annos.mat", lambda _: b"x"), "not an annotation file"),
    "header": (InShop, lambda r: _listed(r, b"36\n", b"35\n"), "the first line says 35 images, 36 are listed"),
    "long name": (InShop, lambda r: _listed(r, b"WOMEN/", 300 * b"W" + b"/"), "1 listed ones? (is|are) not there"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_kind_of_damage_has_its_line(releases, damage):
    cls, make, message = DAMAGES[damage]
    assert re.search(message, one_line(DataError, lambda root: cls(root).prepare(), make(releases)))


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
    assert "test      12 images     4 classes" in capsys.readouterr().out
    assert "already exists" in refusal("data", "import", "cub200", tmp_path / "CUB.tgz", "--data-root", data_root)
    with zipfile.ZipFile(tmp_path / "wrong.zip", "w") as archive:
        archive.writestr("hello.txt", "x")
    said = refusal("data", "import", "sop", tmp_path / "wrong.zip", "--data-root", data_root)
    assert "no Stanford Online Products" in said
    assert not (data_root / "sop").exists()


def test_queries_without_a_gallery_and_halves_that_share_classes_are_refused(releases, make_photo):
    root = releases.folder(roles=True)
    shutil.rmtree(root / "query")
    (root / "query").mkdir()
    with pytest.raises(DataError, match=r"query has no class folders: put images into .*query/CLASS"):
        Folder(root).test()
    make_photo(root / "query" / "class 0" / "x.png")
    with pytest.raises(DataError, match="1 classes are in both halves, such as class 0"):
        Folder(root).train_val()


def test_a_name_that_is_not_text_is_named(releases):
    root = releases.folder()
    import os

    os.rename(root / "class 1" / "0.png", os.fsencode(root / "class 1") + b"/caf\xe9.png")
    with pytest.raises(DataError, match=r"caf\\udce9.png' is not UTF-8"):
        Folder(root)


def test_a_release_is_not_imported_into_itself(releases, refusal):
    root = releases.cub()
    assert "it would be copied into itself" in refusal("data", "import", "cub200", root, "--data-root", root)
    assert not (root / "cub200").exists()


def _moved(root, old, new):
    (root / new).parent.mkdir(parents=True, exist_ok=True)
    shutil.move(root / old, root / new)
    return root


CARS, ANNOTATIONS = "stanford_cars", "cars_train_annos.mat"
READ = {
    "bom of SOP": (SOP, lambda r: _edited(r.sop(), "Ebay_*.txt", lambda raw: b"\xef\xbb\xbf" + raw)),
    "bom of In-shop": (InShop, lambda r: _edited(r.inshop(), "list_*.txt", lambda raw: b"\xef\xbb\xbf" + raw)),
    "bom of one list": (CUB200, lambda r: _edited(r.cub(), "images.txt", lambda raw: b"\xef\xbb\xbf" + raw)),
    "flat": (Cars196, lambda r: _moved(r.cars(), f"{CARS}/devkit/{ANNOTATIONS}", f"{CARS}/{ANNOTATIONS}")),
    "car_devkit": (Cars196, lambda r: _moved(r.cars(), f"{CARS}/devkit", f"{CARS}/car_devkit/devkit")),
}


@pytest.mark.parametrize("form", READ)
def test_forms_that_mirrors_make_of_a_release_are_read_as_the_release(releases, tmp_path, form):
    cls, make = READ[form]
    data, whole = cls(make(releases)), cls(make(type(releases)(tmp_path / "again")), allow_partial=True)
    assert data.listing.ids == whole.listing.ids
    assert (len(data.listing.ids), len(data.listing.names)) == cls.counts
    _check_disjoint(data)


def test_an_import_names_what_was_typed_not_where_it_was_unpacked(releases, tmp_path, refusal):
    moved = _moved(releases.cub(), "CUB_200_2011/images", "CUB_200_2011/pictures")
    data = tmp_path / "data"
    said = refusal("data", "import", "cub200", moved, "--data-root", data)
    assert f"CUB-200-2011 at {moved}/CUB_200_2011: 0 images" in said
    said = refusal("data", "import", "sop", moved, "--data-root", data)
    assert f"under {moved} (" in said
    assert f"`bench data download sop --data-root {data}`" in said


def _annotations(path, packed=False):
    from scipy.io import savemat

    held = np.empty((1, 3), dtype=[("fname", "O"), ("class", "O"), ("box", "O")])
    for i in range(3):
        held[0, i] = (f"é{i}.jpg", np.uint8(i), np.ones(4))
    savemat(path, {"other": np.ones(3), "annotations": held}, do_compression=packed)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_texts_and_single_numbers_are_read(tmp_path, packed):
    rows, _ = guarded(read_annotations, _annotations(tmp_path / "a.mat", packed))
    assert rows == [{"fname": f"é{i}.jpg", "class": i} for i in range(3)]


def _bomb(size):
    """A packed variable that says that it is an array of so many bytes, and holds a twentieth of them."""
    packing = zlib.compressobj()
    header = struct.pack("<14I", 14, size + 56, 6, 8, 6, 0, 5, 8, 1, size, 1, 0, 9, size)
    zeros = [packing.compress(bytes(10**7)) for _ in range(size // 20 // 10**7)]
    data = b"".join([packing.compress(header), *zeros, packing.flush()])
    return struct.pack("<II", 15, len(data)) + data


LENGTH_OF_NAMES, COUNT = b"\x05\x00\x04\x00\x06\x00\x00\x00", struct.pack("<IIII", 5, 8, 1, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.replace(LENGTH_OF_NAMES, b"\x05\x00\x04\x00\x33\x00\x00\x00"),  # ends the process in some SciPy
        lambda raw: raw.replace(COUNT, struct.pack("<IIII", 5, 8, 1, 2**31 - 1)),
        lambda raw: raw[:128] + struct.pack("<II", 15, 62_000) + zlib.compress(bytes(64_000_001)),
        lambda raw: raw[:128] + _bomb(2 * 10**9),
        lambda raw: raw[:300],
        lambda raw: b"MATLAB",
    ],
)
def test_annotations_that_are_damaged_or_claim_too_much(tmp_path, change):
    path = _annotations(tmp_path / "cars_annos.mat")
    raw = path.read_bytes()
    path.write_bytes(change(raw))
    assert path.read_bytes() != raw
    said = one_line(DataError, Cars196, tmp_path)
    assert re.search(r"not a MATLAB file with structures 'annotations' \(.*\); it is not", said)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("os.abort()", "its reader ended with SIGABRT"),
        ("os._exit(3)", "its reader ended with 3"),
        ("bytearray(2 * 10**9)", "asks for more memory"),
        ("print('text')", "two lines"),
        pytest.param("while True: pass", "its reader ended with SIGXCPU", marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_fails(tmp_path, monkeypatch, body, message):
    (tmp_path / "reader.py").write_text(
        f"import os\ndef read(path):\n    {body}\n    raise ValueError('two\\nlines')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match=message):
        guarded(SimpleNamespace(__module__="reader", __name__="read"), tmp_path / "reader.py")


@pytest.mark.parametrize("number", ["²", "9" * 5000, "-1", "1e3"])
def test_class_numbers_that_are_none(releases, number):
    root = releases.cub()
    path = root / "CUB_200_2011" / "image_class_labels.txt"
    path.write_text(path.read_text().replace("1 1\n", f"1 {number}\n", 1))
    with pytest.raises(DataError, match=r"not a class number|not a list of images"):
        CUB200(root)
