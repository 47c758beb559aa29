"""A folder of photographs as people have them, and label distributions of people in a file next to it."""

import os
import re
import shutil
import struct
import unicodedata
import zlib

import numpy as np
import pytest
import torch
from bench.cli import main
from bench.datasets import DataError
from bench.datasets.damage import DamagedImages, skipped_table
from bench.datasets.decode import decode
from bench.datasets.folder import Folder, images_below, twins
from bench.datasets.photo_images import PhotoImages
from bench.datasets.scans import Scans
from bench.datasets.soft_labels import FILE
from bench.datasets.view import View
from PIL import ExifTags, Image, ImageOps, features

from tests.photographs import write_photographs
from tests.refusals import one_line

RAMP = np.linspace(0, 65535, 32 * 20).astype(np.uint16).reshape(20, 32)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_as_their_exif_orientation_says(tmp_path, make_photo, orientation):
    make_photo(tmp_path / "as-taken.png")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    for kind in ("jpg", "png", "webp"):
        path = tmp_path / f"x.{kind}"
        Image.open(tmp_path / "as-taken.png").save(path, exif=exif)
        with Image.open(path) as image:
            upright = np.array(ImageOps.exif_transpose(image))
            as_stored = np.array(image)
        assert np.array_equal(decode(path, upright=True).permute(1, 2, 0), upright)
        # The public code of the papers ignores the orientation, and so do the data sets of the papers.
        assert np.array_equal(decode(path).permute(1, 2, 0), as_stored)


def test_an_image_with_damaged_exif_data_is_read_as_it_is(tmp_path, make_photo):
    path = tmp_path / "x.png"
    make_photo(path)
    Image.open(path).save(path, exif=b"Exif\0\0neither II nor MM")
    with Image.open(path) as image, pytest.raises(SyntaxError):
        image.getexif()
    assert torch.equal(decode(path, upright=True), decode(path))


def test_folders_are_read_upright_in_evaluation_training_and_crops(tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # the top of the scene is at the left of the file
    scene = np.zeros((40, 60, 3), dtype=np.uint8)
    scene[:, :15] = 255
    for c in "abcd":
        (tmp_path / "photos" / c).mkdir(parents=True)
        Image.fromarray(scene).save(tmp_path / "photos" / c / "0.png", exif=exif)
    views = (None, View(image_size=32, resize=32, upright=True), View(image_size=32, resize=32))
    given, upright, ignored = (Folder(tmp_path / "photos", view=view).test() for view in views)
    assert given.view.upright
    one = torch.tensor([0])
    for read in (lambda images: images.evaluation(one), lambda images: images.cropped(one, torch.tensor([1.0]))):
        up, flat = read(upright)[0, 0], read(ignored)[0, 0]
        assert up[0].mean() > 0.9
        assert up[:, 0].mean() < 0.5
        assert flat[:, 0].mean() > 0.9  # no cache of the one is taken for the other's
        assert flat[0].mean() < 0.5
    assert tuple(upright.read(upright.paths[0], "training").shape) == (3, 60, 40)


@pytest.mark.parametrize("name", ["x.png", "x.tif", "x.pgm", "big-endian.tif", "12-bit.pgm"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, name):
    path = tmp_path / name
    if name == "12-bit.pgm":
        path.write_bytes(b"P5 32 20 4095\n" + (RAMP >> 4).astype(">u2").tobytes())
    elif name == "big-endian.tif":
        Image.frombytes("I;16B", (32, 20), RAMP.astype(">u2").tobytes()).save(path)
    else:
        Image.fromarray(RAMP).save(path)
    found = decode(path).numpy()
    assert found.shape == (3, 20, 32)
    assert np.abs(found[0] - RAMP / 257).max() < 0.6
    assert (found == found[0]).all()


def _tiff(grey, bits, photometric, sample, end, deflate):
    """A TIFF of one strip, written by hand: rows of 1 to 32 bits a pixel, packed as the format says."""
    if bits % 8:
        rows = ("".join(f"{value:0{bits}b}" for value in row) for row in grey.tolist())
        padded = (row + "0" * (-len(row) % 8) for row in rows)
        data = b"".join(int(row, 2).to_bytes(len(row) // 8, "big") for row in padded)
    else:
        data = grey.astype(f"{end}{'ui'[sample - 1]}{bits // 8}").tobytes()
    data = zlib.compress(data) if deflate else data
    data += bytes(len(data) % 2)
    height, width = grey.shape
    short = {256: width, 257: height, 258: bits, 259: 8 if deflate else 1, 262: photometric}
    short |= {277: 1, 278: height, 339: sample}
    entries = [struct.pack(f"{end}HHIHH", tag, 3, 1, value, 0) for tag, value in short.items()]
    entries += [struct.pack(f"{end}HHII", tag, 4, 1, value) for tag, value in ((273, 8), (279, len(data)))]
    entries.sort(key=lambda entry: struct.unpack(f"{end}H", entry[:2]))
    head = (b"II" if end == "<" else b"MM") + struct.pack(f"{end}HI", 42, 8 + len(data)) + data
    return head + struct.pack(f"{end}H", len(entries)) + b"".join(entries) + bytes(4)


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("end", "<>")
@pytest.mark.parametrize("photometric", [0, 1])
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 10, 12, 14, 16])
def test_grey_tiffs_of_any_depth_are_scaled_or_refused(tmp_path, bits, photometric, end, deflate):
    """White is zero where the photometric interpretation is 0; what Pillow cannot read is refused, never dark."""
    grey = (RAMP.astype(np.int64) * (2**bits - 1) + 32767) // 65535
    (tmp_path / "x.tif").write_bytes(_tiff(grey, bits, photometric, 1, end, deflate))
    expected = grey / (2**bits - 1) * 255
    big_endian = end == ">" and (bits == 12 or (bits, photometric) == (16, 0))
    if bits in (10, 14) or (bits, photometric) == (12, 0) or big_endian:
        with pytest.raises(DataError, match="a TIFF of a rare kind, such as 10 or 14 bits; convert it to 8 or 16"):
            decode(tmp_path / "x.tif")
        return
    found = decode(tmp_path / "x.tif").numpy()
    assert np.abs(found - (expected if photometric else 255 - expected)).max() <= 0.5


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("end", "<>")
def test_pixels_with_a_sign_are_refused(tmp_path, bits, end):
    (tmp_path / "x.tif").write_bytes(_tiff(RAMP.astype(np.int64) // 2**9 - 64, bits, 1, 2, end, False))
    with pytest.raises(DataError, match="pixels with a sign are not supported; convert it to 8 or 16 bits without one"):
        decode(tmp_path / "x.tif")


@pytest.mark.parametrize("pixels", [np.float32, np.int32])
def test_more_than_sixteen_bits_are_refused_as_their_range_is_unknown(tmp_path, pixels):
    Image.fromarray(RAMP.astype(pixels)).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match=r"(more than 16 bits\)|with a sign) are not supported; convert it to 8 or 16"):
        decode(tmp_path / "x.tif")


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("RGBA", "png"), ("LA", "png"), ("P", "png"), ("1", "pbm"), ("CMYK", "jpg"), ("L", "pgm"), ("P", "gif")],
)
def test_colour_modes_are_converted_and_reported(releases, make_photo, mode, kind):
    data_root = releases.folder()
    path = data_root / "class 7" / f"odd.{kind}"
    make_photo(path, mode=mode)
    with Image.open(path) as image:
        assert image.mode == mode
        expected = np.array(image.convert("RGB"))
    assert np.array_equal(decode(path).permute(1, 2, 0), expected)
    data = Folder(data_root)
    found = data.verify()
    assert (found["converted_to_rgb"], found["damaged"]) == ({mode: 1}, [])
    assert data.test().evaluation(torch.arange(13)).shape == (13, 3, 224, 224)


def test_a_class_is_a_folder_with_all_that_is_below_it(releases, make_photo):
    root = releases.folder()
    make_photo(root / "class 1" / "more" / "deep" / "9.PNG")
    make_photo(root / "class 1" / ".thumbnails" / "9.png")
    (root / "class 1" / "._0.png").write_bytes(b"of macOS, not an image")
    (root / "class 1" / "film.mov").write_bytes(b"no image by its name")
    (root / "class 1" / "a link").symlink_to(root / "class 2")
    for listing in (Folder(root).listing, images_below(root)[0]):
        of_class = [name for name, key in zip(listing.ids, listing.classes) if key == "class 1"]
        assert of_class == [f"class 1/{name}" for name in ("0.png", "1.png", "2.png", "more/deep/9.PNG")]
        assert len(listing.ids) == 25
        assert listing.notes == [f"{root}: 2 files not taken for images, such as class 1/a link"]


@pytest.mark.parametrize("name", ["Train", "val", "query", "gallery", "bounding_box_test"])
def test_splits_are_not_taken_for_classes(releases, make_photo, name):
    root = releases.folder()
    make_photo(root / name / "class 1" / "0.png")
    for _ in range(2):
        for read in (Folder, images_below):
            with pytest.raises(DataError, match=f"{name}( would be taken for classes; put .*|; with queries it needs)"):
                read(root)
        make_photo(root / name / "0.png")  # with images of its own it is as likely a split


def test_accents_that_are_spelled_apart_name_one_class(tmp_path, make_photo):
    for part, form in (("train", "NFC"), ("query", "NFD"), ("gallery", "NFC")):
        for name in ("café", "naïve", "é", "ü"):
            shared = unicodedata.normalize(form, f"{name} {part == 'train'}")
            for i in range(2):
                make_photo(tmp_path / part / shared / f"{part}{i}.png")
    assert len(Folder(tmp_path).test().class_names) == 4
    apart, shared = (tmp_path / "query" / unicodedata.normalize("NFD", f"café {part}") for part in (False, True))
    apart.rename(shared)
    with pytest.raises(DataError, match="in both halves, such as"):
        Folder(tmp_path).test()


def test_two_splits_of_nested_classes_are_refused_with_what_to_give(tmp_path, make_photo):
    """The layout of Omniglot: background and evaluation, alphabets, characters."""
    for split, alphabets in (("images_background", 3), ("images_evaluation", 2)):
        for alphabet in range(alphabets):
            make_photo(tmp_path / split / f"alphabet {alphabet}" / "character 1" / "0.png")
    with pytest.raises(DataError, match="taken for 2 classes, but contain folders alone, 5 with images"):
        Folder(tmp_path)
    assert len(images_below(tmp_path)[0].names) == 2  # a trained network may be tested on two classes
    make_photo(tmp_path / "images_background" / "0.png")
    with pytest.raises(DataError, match="6 images of 2 classes"):  # one of them has an image of its own
        Folder(tmp_path)


def test_a_folder_around_the_class_folders_is_named(releases):
    root = releases.folder()
    for read in (Folder, images_below):
        with pytest.raises(DataError, match=f"has one class folder, with folders below it; give {root}$"):
            read(root.parent)


@pytest.mark.parametrize(("classes", "images", "command"), [(3, 3, True), (1, 3, False), (3, 1, False)])
def test_too_few_classes_for_training_name_the_command_that_scores_without(releases, classes, images, command):
    root = releases.folder(classes=classes)
    for path in root.glob("*/*.png"):
        if int(path.stem) >= images:
            path.unlink()
    with pytest.raises(DataError, match=f"{classes * images} images of {classes} classes; .* at least 4") as error:
        Folder(root)
    said = f"10 classes are enough by default, and `bench score {root}` scores the untrained network on these"
    assert str(error.value).endswith(said) is command
    assert ("bench score" in str(error.value)) is command


@pytest.mark.parametrize("image", ["", "0.png"])
def test_without_class_folders_the_arrangement_is_explained(tmp_path, make_photo, image):
    if image:
        make_photo(tmp_path / image)
    (tmp_path / ".hidden").mkdir()
    said = r"\(.*\); put the images of each class into a folder of its own, DIR/CLASS"
    with pytest.raises(DataError, match=rf"^no image folder under {tmp_path} {said}"):
        Folder(tmp_path)


@pytest.mark.parametrize(
    ("side", "mode", "scans"), [(105, "1", True), (128, "L", True), (129, "L", False), (64, "RGB", False)]
)
def test_small_grey_images_are_said_to_need_the_recipe_of_scans(tmp_path, side, mode, scans):
    rng = np.random.default_rng(0)
    for number in range(20):
        pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
        path = tmp_path / f"c{number}" / "x.png"
        path.parent.mkdir()
        Image.fromarray(pixels).convert(mode).save(path)
    said = [*Folder(tmp_path).remarks()]
    assert len(said) == scans
    assert all(f"{side} x {side} pixels: `--dataset scans --data-root {tmp_path}`" in line for line in said)
    assert [*Scans(tmp_path).remarks()] == []


STRAY = {
    "@eaDir/0.png": "folder of storage boxes or systems left out, such as @eaDir",
    "c01/@eaDir/0.png/THUMB.png": "such as @eaDir",
    "c01/#recycle/0.png": "such as #recycle",
    "$RECYCLE.BIN/0.png": "such as $RECYCLE.BIN",
    "__MACOSX/c01/0.png": "such as __MACOSX",
    "lost+found/0.png": "such as lost+found",
    "c01/Thumbs.db": "",
    "c01/.thumbnails/0.png": "",
    "c01/0.png_original": "file not taken for images, such as c01/0.png_original",
    "c01/0.png~": "such as c01/0.png~",
    "c01/film.THM": "such as c01/film.THM",
    "c01/notes.txt": "such as c01/notes.txt",
    "c09/.x": "class folder without an image left out, such as c09",
}


@pytest.fixture
def classes(tmp_path):
    """Four classes of three different images."""
    return write_photographs(tmp_path / "photos", 4, 3, (20, 24))


@pytest.mark.parametrize("stray", STRAY)
def test_what_systems_and_editors_leave_in_a_folder_is_no_image(classes, stray):
    whole = Folder(classes).listing.ids
    path = classes / stray
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"some text" if path.suffix in (".txt", "") else (classes / "c02" / "1.png").read_bytes())
    for listing in (Folder(classes).listing, images_below(classes)[0]):
        assert listing.ids == whole
        assert len(listing.notes) == bool(STRAY[stray])
        assert all(note.startswith(f"{classes}: 1 ") and STRAY[stray] in note for note in listing.notes)


@pytest.mark.parametrize("seed", range(20))
def test_images_are_known_by_their_content_whatever_their_names(tmp_path, seed):
    """Random folders of images and other files under random suffixes, against Pillow itself."""
    rng = np.random.default_rng(seed)
    formats = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "AVIF")[: 6 if features.check("avif") else 5]
    suffixes = ("", ".jfif", ".jpe", ".jpg_medium", ".crdownload", ".avif", ".data", ".JPG", ".jpeg.1", ".html")
    expected = set()
    for c in range(4):
        (tmp_path / f"c{c}").mkdir()
        for i in range(8):
            name = f"c{c}/{i}{suffixes[rng.integers(len(suffixes))]}"
            if i < 2 or rng.random() < 0.6:
                picture = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
                picture.save(tmp_path / name, format=formats[rng.integers(len(formats))])
                expected.add(name)
            elif name.endswith(".JPG"):
                continue  # a name that says so is believed, and decoding refuses the file
            else:
                start = (b"<html>", b"%PDF-1.4", b"BMW is a car of a make", b"", b"RIFFxxxxAVI ", b"\0\0\0\x20ftypisom")
                (tmp_path / name).write_bytes(start[rng.integers(6)] + bytes(40))
    listing = Folder(tmp_path).listing
    assert set(listing.ids) == expected
    others = sum(len(files) for _, _, files in os.walk(tmp_path)) - len(expected)
    assert len(listing.notes) == bool(others)
    assert all(note.startswith(f"{tmp_path}: {others} file") for note in listing.notes)
    for name in expected:
        assert decode(tmp_path / name).shape == (3, 12, 16)


@pytest.mark.parametrize(("one", "other", "said"), [
    ("c00/0.png", "c01/x.png", "1 image is in two classes.* first c00/0.png and c01/x.png"),
    ("c00/0.png", "c00/x.png", ""),
    ("query/c00/0.png", "gallery/c00/x.png",
     "1 image is in query and gallery.* first query/c00/0.png and gallery/c00/x"),
    ("query/c00/0.png", "query/c00/x.png", ""),
])  # fmt: skip
def test_a_file_in_two_classes_or_in_query_and_gallery_is_said(classes, one, other, said):
    if one.startswith("query"):
        shutil.rmtree(classes)
        for side, (part, members) in enumerate((("query", 2), ("gallery", 2), ("train", range(2, 4))), 30):
            write_photographs(classes / part, members, 3, (side, side))
    shutil.copy(classes / one, classes / other)
    lines = [line for line in Folder(classes).remarks() if "byte by byte" in line]
    assert [*twins(Folder(classes).listing)] == lines
    assert len(lines) == bool(said)
    assert all(re.search(said, line) for line in lines)


def test_twins_are_those_of_a_comparison_of_all_pairs(tmp_path):
    rng = np.random.default_rng(0)
    for c in range(5):
        for i in range(12):
            path = tmp_path / f"c{c}" / f"{i}.jpg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes(rng.integers(0, 2, rng.integers(3, 5)).tolist()) + bytes(4096 * (i % 2)))
    listing = images_below(tmp_path)[0]
    content = [(tmp_path / name).read_bytes() for name in listing.ids]
    groups = {raw for raw in content if len({k for k, r in zip(listing.classes, content) if r == raw}) > 1}
    (line,) = twins(listing)
    assert f": {len(groups)} images are in two classes" in line


def _manifests(data):
    own = data.train_val()
    return tuple(part.manifest_sha256() for part in (own.train, own.val, data.test()))


def test_a_listed_image_that_can_be_read_by_now_is_not_left_out(classes, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_MAX_PIXELS", "1000")
    Image.new("RGB", (40, 40)).save(classes / "c01" / "0.png")
    with pytest.raises(DamagedImages, match="set BENCH_MAX_PIXELS to read it") as error:
        Folder(classes).prepare()
    file = tmp_path / "skipped.csv"
    file.write_bytes(skipped_table(classes, error.value.damaged))
    assert Folder(classes).leave_out(file)
    monkeypatch.setenv("BENCH_MAX_PIXELS", "2000")
    assert not Folder(classes).leave_out(file)


def test_damaged_images_that_a_list_names_make_another_data_set(classes, tmp_path):
    whole = _manifests(Folder(classes))
    (classes / "c01" / "0.png").write_bytes(b"no image")
    before = Folder(classes)
    with pytest.raises(DamagedImages, match=r"1 of 12 images cannot be used: .*c01/0\.png") as error:
        before.prepare()
    file = tmp_path / "skipped.csv"
    file.write_bytes(skipped_table(classes, error.value.damaged))
    data = Folder(classes)
    assert data.leave_out(file)
    assert (data.partial, len(data.listing.ids)) == ("11 of 12 images, 4 of 4 classes", 11)
    assert next(data.remarks()).startswith("1 of 12 images cannot be used and is left out, such as c01/0.png: ")
    assert len({whole, _manifests(before), _manifests(data)}) == 3
    data.prepare()
    Image.new("RGB", (9, 9)).save(classes / "c01" / "0.png")  # repaired
    assert not Folder(classes).leave_out(file)
    more = {classes / f"c{c:02d}" / "1.png": "x" for c in range(4)}
    for path in more:
        path.write_bytes(b"no image")
    file.write_bytes(skipped_table(classes, more))
    with pytest.raises(DataError, match=r"4 of 12 images cannot .*; only 3 of 12 may be left out \(5 images or 1 %"):
        Folder(classes).leave_out(file)
    file.write_text("of another kind")
    with pytest.raises(DataError, match="not a list of damaged images; remove it"):
        Folder(classes).leave_out(file)


HEADER = "path,class 0,class 5,class 6\n"


def _write(root, text):
    (root / FILE).write_bytes(os.fsencode(text))
    return root


def test_rows_find_their_images_and_others_have_none(releases):
    rows = "class 5/1.png,0.25,0.5,0.25\n./class 4/0.png,1,0,0\nclass 0/2.png,0.9999,0,0.0004\n"
    dataset = Folder(_write(releases.folder(), "\ufeff" + HEADER + rows))
    images = dataset.test()
    expected = np.full((12, 3), np.nan)
    expected[images.ids.index("class 5/1.png")] = (0.25, 0.5, 0.25)
    expected[images.ids.index("class 4/0.png")] = (1, 0, 0)
    np.testing.assert_array_equal(images.soft_labels.numpy(), expected)
    assert images.soft_labels.dtype == torch.float64
    assert len(dataset.soft_labels_sha256) == 64


def test_paths_name_the_part_that_an_image_plays(releases):
    root = _write(releases.folder(roles=True), "path,class 5\nquery/class 5/1.png,1\ntrain/class 0/0.png,1\n")
    images = Folder(root).test()
    assert [images.ids[i] for i in (~images.soft_labels.isnan().all(1)).nonzero().squeeze(1)] == ["query/class 5/1.png"]


def test_without_the_file_there_are_none(releases):
    dataset = Folder(releases.folder())
    assert dataset.test().soft_labels is None
    assert dataset.soft_labels_sha256 == ""
    assert "soft_labels" not in dataset.verify()


def test_verify_says_what_was_found(releases, capsys):
    root = _write(releases.folder(), HEADER + "class 0/1.png,1,0,0\nclass 5/1.png,0,1,0\n")
    assert main(["data", "verify", "folder", "--data-root", str(root)]) == 0
    assert "label distributions (probabilities.csv): 2 of 24 images, 1 of 12 test images, 3 classes" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a CSV table"),
        ("path,class 0\na,b,c,d\n", "not a CSV table"),
        ("path,\udcff\udcfe\n", "not a CSV table"),  # bytes that are no text
        ("image,class 0\nclass 0/1.png,1\n", "expected a column 'path'"),
        ("path\nclass 0/1.png\n", "expected a column 'path'"),
        (HEADER, "a line per image"),
        ("path,clas 0\nclass 0/1.png,1\n", "column 'clas 0' is not a class of this data set; did you mean 'class 0'"),
        ("path,class 0,class 0\nclass 0/1.png,1,0\n", "column 'class 0' appears twice"),
        (HEADER + "class 0/1.png,1,0,0\nclass 0/1.png,1,0,0\n", "'class 0/1.png' appears twice"),
        (HEADER + "class 0/9.png,1,0,0\nclass 0/1.png,1,0,0\n", "name an unknown image, such as 'class 0/9.png'"),
        (HEADER + "class 0/1.png,1.5,-0.5,0\n", "the row of 'class 0/1.png' has a negative probability"),
        (HEADER + "class 0/0.png,1,0,0\nclass 0/1.png,0.5,0.498,0\n", "'class 0/1.png' does not sum to 1 but to 0.998"),
        (HEADER + "class 0/1.png,1,,0\n", "has a value that is not a number"),
        (HEADER + "class 0/1.png,1\n", "the row of 'class 0/1.png' has a value that is not a number"),
        (HEADER + "class 0/1.png,inf,0,0\n", "has a value that is not a number"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_reason(releases, text, message):
    said = one_line(DataError, Folder, _write(releases.folder(), text))
    assert message in said
    assert FILE in said


@pytest.mark.parametrize("suffix", ["pgm", "bmp", "TIF"])
def test_uncompressed_images_are_known_by_more_than_their_size(tmp_path, monkeypatch, suffix):
    """Two folders with equal names, sizes and times: a scan and its negative. New code decodes the files again."""
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    sets = []
    for grey in (10, 245):
        path = tmp_path / str(grey) / f"0.{suffix}"
        path.parent.mkdir()
        Image.new("L", (8, 8), grey).save(path)
        os.utime(path, (1, 1))
        view = View(image_size=8, resize=8)
        sets.append(PhotoImages([path], torch.zeros(1, dtype=torch.int64), ["0"], ["a"], view=view))
    scan, negative = sets
    assert scan.manifest_sha256() != negative.manifest_sha256()
    assert [int(each.pixels_of(torch.tensor([0])).max()) for each in sets] == [10, 245]
    known = scan._cache_path("training")
    for name in ("decode.py", "view.py"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr("bench.datasets.photo_images.__file__", str(tmp_path / "photo_images.py"))
    assert scan._cache_path("training") != known
