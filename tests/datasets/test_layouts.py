"""The layouts in which people have data sets: each gives the images and classes that class folders give."""

import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from bench.cli import main
from bench.datasets import DataError
from bench.datasets.cars196 import Cars196
from bench.datasets.cub200 import CUB200
from bench.datasets.folder import Folder, images_below
from bench.datasets.inshop import InShop, InShopMerged
from bench.datasets.sop import SOP
from bench.datasets.tables import unpack_parquet
from PIL import Image

NAMES = [f"kind-{c}" for c in range(9)]
SAME = [(c, i, "test" if i == 2 else "train") for c in range(8) for i in range(3)]
"""Class, number and split of each image: every class in both splits, as for a classifier."""
APART = [(c, i, "train" if c < 5 else "test") for c in range(8) for i in range(3)]
SEARCHED = [(c, i, "train" if c < 5 else "gallery" if i else "query") for c in range(9) for i in range(4)]


def _jpeg(c, i):
    out, rng = io.BytesIO(), np.random.default_rng(100 * c + i)
    Image.fromarray(rng.integers(0, 256, (12, 14, 3), dtype=np.uint8)).save(out, "JPEG")
    return out.getvalue()


def _write(path, c, i):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_jpeg(c, i))


def _folders(root, rows, names=NAMES, splits=True):
    for c, i, split in rows:
        _write(root / (split if splits else "") / names[c] / f"{i}.jpg", c, i)
    return root


def _shard(path, rows, names=NAMES, *, coded=True, image="image", given="{c}_{i}.jpg", kind="bytes", **more):
    """A parquet file as Hugging Face writes it; ``coded`` labels are integers with names in the schema."""
    cells = [{kind: _jpeg(c, i), "path": given and given.format(c=c, i=i)} for c, i, _ in rows]
    of = pyarrow.struct([(kind, pyarrow.binary()), ("path", pyarrow.string())])
    labels = pyarrow.array([c if coded else names[c] for c, _, _ in rows])
    table = pyarrow.table({image: pyarrow.array(cells, of), "label": labels, **more})
    if coded:
        features = {image: {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, row_group_size=5)
    return path


def _shards(root, rows, names=NAMES, inside="data", **how):
    for split in sorted({row[2] for row in rows}):
        of = [row for row in rows if row[2] == split]
        for number, part in enumerate((of[:4], of[4:])):
            _shard(root / inside / f"{split}-{number:05d}-of-00002.parquet", part, names, **how)
    return root


def _table(root, rows, header=("path", "identity", "split", "camera"), place="pictures/{c}{i}.jpg"):
    for c, i, _ in rows:
        _write(root / place.format(c=c, i=i), c, i)
    lines = [(place.format(c=c, i=i), NAMES[c], split, str(i % 2))[: len(header)] for c, i, split in rows]
    (root / "metadata.csv").write_text("".join(f"{','.join(line)},of 2026\n" for line in (header, *lines)))
    return root


def _tables(root, rows):
    for split in {row[2] for row in rows}:
        _table(root / split, [row for row in rows if row[2] == split], ("file_name", "label"), "{c}{i}.jpg")
    return root


def _lists(root, rows, file="{split}.txt"):
    for c, i, split in rows:
        _write(root / f"all of {c}" / f"{i}.jpg", c, i)
        with (root / file.format(split=split)).open("a", encoding="utf-8") as text:
            text.write(f"all of {c}/{i}.jpg {NAMES[c]}\n")
    return root


LAYOUTS = {
    "class folders below splits": _folders,
    "parquet": _shards,
    "parquet without a folder": lambda root, rows: _shards(root, rows, inside="."),
    "parquet with text": lambda root, rows: _shards(root, rows, coded=False, image="photo"),
    "parquet without names of files": lambda root, rows: _shards(root, rows, given=None),
    "parquet with one name of all files": lambda root, rows: _shards(root, rows, given="../../same.jpg"),
    "metadata.csv": _table,
    "metadata.csv in each split": _tables,
    "lists": _lists,
}


def _content(listing):
    """How often each class has an image of some bytes."""
    files = [(listing.folder / name).read_bytes() for name in listing.ids]
    return Counter(zip([listing.names[key] for key in listing.classes], files))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_gives_the_images_classes_and_splits_of_class_folders(tmp_path, layout):
    plain = Folder(_folders(tmp_path / "plain", SAME, splits=False))
    data = Folder(LAYOUTS[layout](tmp_path / "same", SAME))
    assert _content(data.listing) == _content(plain.listing) == _content(images_below(tmp_path / "same")[0])
    for part in (lambda d: d.train_val().train, lambda d: d.train_val().val, Folder.test):
        assert part(data).class_names == part(plain).class_names
    assert any("share 8 of 8 classes, so they are put together" in note for note in data.remarks())
    for held in ("test", "val"):  # of two splits, the second is the test
        rows = [(c, i, split.replace("test", held)) for c, i, split in APART]
        apart = Folder(LAYOUTS[layout](tmp_path / held, rows))
        assert list(apart.test().class_names) == NAMES[5:8]
        assert any("different classes: 5 to train on, 3 to test" in note for note in apart.remarks())
        assert _content(images_below(tmp_path / held)[0]) == _content(plain.listing)


def test_validation_beside_a_test_is_of_development_and_a_column_without_a_name_is_no_split(tmp_path):
    """``pandas.DataFrame.to_csv`` writes its index as a column without a name, which is neither split nor group."""
    three = [(c, i, ("train", "train", "train", "val", "test", "test", "test", "test")[c]) for c, i, _ in APART]
    for layout in (_folders, _tables):
        assert list(Folder(layout(tmp_path / layout.__name__, three)).test().class_names) == NAMES[4:8]
    for table in (tmp_path / "_tables").glob("*/metadata.csv"):
        rows = pandas.read_csv(table, index_col=False, usecols=["file_name", "label"])
        rows.to_csv(table)
    data = Folder(tmp_path / "_tables")
    assert (list(data.test().class_names), {*data.listing.groups}) == (NAMES[4:8], {""})


def test_one_file_of_a_table_is_a_source_and_groups_and_roles_go_with_its_rows(tmp_path):
    more = {"sequence": [str(i % 2) for _, i, _ in SEARCHED], "split": [split for *_, split in SEARCHED]}
    one = _shard(tmp_path / "all.parquet", SEARCHED, given=None, **more)
    csv = _table(tmp_path / "csv", SEARCHED)
    number = {_jpeg(c, i): i for c, i, _ in SEARCHED}
    for source in (one, csv, csv / "metadata.csv"):
        listing, labelled = images_below(source)
        assert labelled
        assert Counter(listing.parts) == {"query": 4, "gallery": 12}  # what is trained on is not searched
        for name, part, group in zip(listing.ids, listing.parts, listing.groups):
            i = number[(listing.folder / name).read_bytes()]
            assert (part, group) == ("gallery" if i else "query", str(i % 2))
    assert len(images_below(_lists(tmp_path / "txt", SAME, "labels.txt") / "labels.txt")[0].ids) == 24
    assert len(Folder(csv).test().queries) == 4


def _official(monkeypatch, tmp_path, cls, names):
    (tmp_path / "names.txt").write_text("\n".join(names))
    monkeypatch.setattr(cls, "class_list", str(tmp_path / "names.txt"))


def _cars_folders(releases):
    base = releases.cars() / "stanford_cars"
    for part in ("train", "test"):
        (base / f"cars_{part}").rename(base / part)
        (base / f"cars_{part}" / f"cars_{part}").parent.mkdir()
        (base / part).rename(base / f"cars_{part}" / f"cars_{part}")
    return base


ITEMS = [(c, i, "train" if c < 5 else "test") for c in range(9) for i in range(3)]
CARS = [(c, i, "train" if i else "test") for c in range(8) for i in range(4)]
COPIES = {
    "cub200, parquet": (CUB200, lambda r, root, n: _shards(root, SAME, [f"{c + 1:03d}.{x}" for c, x in enumerate(n)])),
    "cub200, parquet, plain names": (CUB200, lambda r, root, n: _shards(root, SAME, [x.replace("_", " ") for x in n])),
    "cars196, parquet": (Cars196, lambda r, root, n: _shards(root, CARS, n)),
    "cars196, train/CLASS": (Cars196, lambda r, root, n: _folders(root, CARS, [x.replace("/", "-") for x in n])),
    "cars196, nested": (Cars196, lambda r, root, n: _cars_folders(r)),
    "sop, parquet": (SOP, lambda r, root, n: _shards(root, ITEMS, [str(c) for c in range(9)])),
    "inshop, parquet": (InShop, lambda r, root, n: _shards(root, SEARCHED, [f"id_{c:08d}" for c in range(9)])),
}


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_of_a_release_is_imported_with_its_classes_and_parts(releases, tmp_path, monkeypatch, capsys, copy):
    cls, make = COPIES[copy]
    # By name and not by order: sorted they would be numbered otherwise.
    names = ["Zebra/Bird_1", "Bird_2", "Owl 3", "Crow", "Auk", "Tern_(6)", "Jay", "Ani"]
    for each in (CUB200, Cars196):
        _official(monkeypatch, tmp_path, each, names)
    source, root = make(releases, tmp_path / "copy of it", names), tmp_path / "my data"
    assert main(["data", "import", cls.name, str(source), "--data-root", str(root)]) == 0
    assert f"{cls.counts[0]} images, {cls.counts[1]} classes" in capsys.readouterr().out
    data = cls(root)
    keys = Counter(data.listing.classes)
    if cls in (CUB200, Cars196):
        assert keys == dict.fromkeys(range(1, 9), cls.counts[0] // 8)
    if "nested" not in copy:
        numbers = {_jpeg(c, i): c for c in range(9) for i in range(4)}
        for name, key in zip(data.listing.ids, data.listing.classes):
            c = numbers[(data.listing.folder / name).read_bytes()]
            assert key == (c + 1 if cls in (CUB200, Cars196) else f"id_{c:08d}" if cls is InShop else str(c))
    split, test = data.train_val(), data.test()
    assert split.train.num_classes + split.val.num_classes == (4 if cls in (CUB200, Cars196) else 5)
    assert test.num_classes == 4
    if cls is InShop:
        assert (len(test.queries), len(test.gallery)) == (4, 12)
        assert InShopMerged(root).test().queries is None
        assert len(InShopMerged(root).test()) == 16


def test_class_lists_are_those_of_the_releases():
    for cls, third, last in ((CUB200, "003.Sooty_Albatross", "200.Common_Yellowthroat"),
                             (Cars196, "Acura TL Sedan 2012", "smart fortwo Convertible 2012")):  # fmt: skip
        path = Path(sys.modules[cls.__module__].__file__).with_name(cls.class_list)
        names = path.read_text(encoding="utf-8").splitlines()
        assert (len(set(names)), names[2], names[-1]) == (cls.counts[1], third, last)


def _odd(change, **how):
    def make(root):
        path = _shard(root / "train-00000-of-00001.parquet", SAME, **how)
        pyarrow.parquet.write_table(change(pyarrow.parquet.read_table(path)), path)
        return root

    return make


def _column(place, values):
    return lambda table: table.set_column(place, table.schema[place].name, pyarrow.array(values))


def _csv(*lines):
    def make(root):
        _folders(root / "pictures", SAME, splits=False)
        (root / "metadata.csv").write_text("\n".join(lines), encoding="utf-8")
        return root

    return make


def _cut(root):
    path = _shard(root / "train.parquet", SAME)
    path.write_bytes(path.read_bytes()[:-40])
    return root


NO_BYTES = pyarrow.array([{"bytes": None, "path": "a.jpg"}] * 24, pyarrow.struct({"bytes": "binary", "path": "string"}))
REFUSED = {
    r"no column of images .* it has label": _odd(lambda t: t.drop_columns(["image"])),
    "no column of images": lambda root: _shard(root / "a.parquet", SAME, kind="blob").parent,
    "columns identity, class could each be the label; rename the one that is to `label`": _odd(
        lambda t: t.rename_columns(["image", "identity"]).append_column("class", t["label"])
    ),
    "columns a, b could each be the image": _odd(
        lambda t: t.append_column("mask", t["image"]).rename_columns(["a", "label", "b"])
    ),
    "no column of labels": _odd(lambda t: t.drop_columns(["label"])),
    "classes are integers or text": _odd(_column(1, [[1]] * 24)),
    "lists no image with a class; .* 24 rows": _odd(_column(1, pyarrow.nulls(24, pyarrow.int64()))),
    "image has no bytes in any row, only paths": _odd(_column(0, NO_BYTES)),
    "not a whole Parquet file": _cut,
    r"'\.\./secret.jpg' is listed, which is not": _csv("path,label", "../secret.jpg,a"),
    "'/etc/hostname' is listed, which is not": _csv("path,label", "/etc/hostname,a"),
    "1 images are listed more than once": _csv("path,label", *["pictures/kind-1/0.jpg,a"] * 2),
    "columns identity, class could each be": _csv("path,identity,class", "pictures/a.jpg,a,b"),
    "columns label, label could each be": _csv("path,label,label", "pictures/a.jpg,a,b"),
    "a quote that opens in a row does not close in it": _csv("path,label", 'a.jpg,"a', 'b"'),
    "unexpected end of data": _csv("path,label", 'a.jpg,"a', "b.jpg,b"),
    "has query; with queries it needs train": _csv("path,label,split", "pictures/kind-1/0.jpg,a,query"),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_read_is_one_line_and_nothing_is_written(tmp_path, refusal, said):
    source = REFUSED[said](tmp_path / "source")
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(DataError, match=said) as error:
        images_below(source)
    assert len(str(error.value).splitlines()) == 1
    line = refusal("data", "import", "folder", source, "--data-root", tmp_path / "my data")
    assert str(source) in line
    assert ".folder" not in line
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file() and "cache" not in path.parts) == before


def test_broken_images_and_rows_without_a_class_are_counted_and_the_others_kept(tmp_path):
    def change(table):
        cells = table["image"].to_pylist()
        cells[3], cells[7] = None, {"bytes": b"no image", "path": "7.jpg"}
        labels = [None, -1, *range(2, 8), *[c % 8 for c in range(16)]]
        return _column(1, labels)(_column(0, pyarrow.array(cells, NO_BYTES.type))(table))

    data = Folder(_odd(change)(tmp_path / "source"))
    assert len(data.listing.ids) == 22
    assert any("2 rows without a class are left out, the first is row 1" in note for note in data.remarks())
    assert len(data.verify()["damaged"]) == 2


def test_a_mirror_that_differs_is_said_with_what_differs(releases, tmp_path, monkeypatch, refusal):
    _official(monkeypatch, tmp_path, CUB200, NAMES[:8])
    into = ("--data-root", tmp_path / "d d")
    for rows, names, said in (
        ([row for row in SAME if row[0]], NAMES, "21 of 24 images, 7 of 8 classes, 1 of its classes have no image"),
        (SAME, ["Emu", *NAMES[1:]], "1 of 8 classes are none of CUB-200-2011, such as 'Emu'"),
        ([*SAME, (0, 3, "test")], NAMES, "has 24 images of 8 classes, "),
    ):
        copy = _shards(tmp_path / said[:9], rows, names)
        line = refusal("data", "import", "cub200", copy, *into)
        assert said in line
        assert str(copy) in line
        assert "Emu" not in said or f"`bench data download cub200 --data-root '{into[1]}'`" in line
    nested = _cars_folders(releases)
    (nested / "devkit").rename(tmp_path / "devkit")
    (nested / "cars_annos.mat").write_bytes(b"of other numbers")
    line = refusal("data", "import", "cars196", nested, *into)
    assert f"{nested}: cars_annos.mat is of the images in car_ims/; those in cars_train/" in line
    assert [*into[1].iterdir()] == []


def test_a_bomb_of_one_image_in_many_rows_stops_at_the_limit(tmp_path):
    table = pyarrow.table({"image": pyarrow.array([bytes(10**5)] * 2000), "label": ["a"] * 2000})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet", compression="zstd")
    assert (tmp_path / "b.parquet").stat().st_size < 10**6
    with pytest.raises(DataError, match=r"unpacks to more than 0.02 GB; `bench data import` has --max-unpacked GB"):
        unpack_parquet([tmp_path / "b.parquet"], tmp_path / "out", 2 * 10**7)
    written = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*"))
    assert written < 3 * 10**7


@pytest.mark.slow
def test_a_hundred_thousand_rows_in_two_row_groups_are_read_within_a_gigabyte(tmp_path):
    of = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    cells = pyarrow.array([{"bytes": _jpeg(0, 0) + bytes(4000), "path": None}] * 50_000, of)
    table = pyarrow.table({"image": cells, "label": [row % 1000 for row in range(50_000)]})
    with pyarrow.parquet.ParquetWriter(tmp_path / "train-0.parquet", table.schema, use_dictionary=False) as writer:
        for _ in range(2):
            writer.write_table(table, row_group_size=50_000)
    code = (
        "import re, resource, sys; from pathlib import Path; from bench.datasets.folder import images_below\n"
        "assert len(images_below(Path(sys.argv[1]))[0].ids) == 100_000\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    for kilobytes in subprocess.check_output([sys.executable, "-c", code, tmp_path]).split():
        assert int(kilobytes) < 2**20


def test_what_a_table_leaves_out_and_a_table_that_is_none_are_said(tmp_path):
    _folders(tmp_path / "some", SAME, splits=False)
    names = sorted(path.relative_to(tmp_path / "some").as_posix() for path in (tmp_path / "some").rglob("*.*"))
    (tmp_path / "some" / "labels.txt").write_text("".join(f"{name} x\n" for name in names[:3]))
    listing, _ = images_below(tmp_path / "some")
    assert len(listing.ids) == 3
    assert f"labels.txt lists 3 of {len(names)} images; the others are left out" in listing.notes[0]
    (tmp_path / "some" / "labels.txt").unlink()
    (tmp_path / "some" / "metadata.csv").write_text("path;label\n")
    listing, _ = images_below(tmp_path / "some")
    assert len(listing.ids) == len(names)
    assert "metadata.csv is not read" in listing.notes[0]


def test_strange_names_of_classes_and_files_are_kept_apart(tmp_path):
    names = ["metadata.csv", "\N{CJK UNIFIED IDEOGRAPH-9CE5}" * 90]
    path = _shard(tmp_path / "x.parquet", [(c, i, "train") for c in (0, 1) for i in (0, 1, 2)], names, given=names[1])
    unpack_parquet([path], tmp_path / "out")
    listing, _ = images_below(tmp_path / "out")
    assert sorted(listing.names.values()) == sorted(names)
    assert len(set(listing.ids)) == 6
    assert all((tmp_path / "out" / name).is_file() for name in listing.ids)
