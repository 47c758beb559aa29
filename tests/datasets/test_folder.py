"""A folder of photographs as people have them: any format, turned by EXIF, nested, and what cannot be used is named."""

import numpy as np
import pytest
import torch
from bench.datasets import DataError
from bench.datasets.decode import decode
from bench.datasets.folder import Folder, images_below
from bench.datasets.scans import Scans
from bench.datasets.view import View
from PIL import ExifTags, Image, ImageOps

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


def test_folders_are_read_upright_in_evaluation_training_and_crops(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
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


@pytest.mark.parametrize("pixels", [np.float32, np.int32])
def test_more_than_sixteen_bits_are_refused_as_their_range_is_unknown(tmp_path, pixels):
    Image.fromarray(RAMP.astype(pixels)).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match=r"more than 16 bits\) are not supported; convert it to 8 or 16"):
        decode(tmp_path / "x.tif")


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("RGBA", "png"), ("LA", "png"), ("P", "png"), ("1", "pbm"), ("CMYK", "jpg"), ("L", "pgm"), ("P", "gif")],
)
def test_colour_modes_are_converted(tmp_path, make_photo, mode, kind):
    make_photo(tmp_path / f"x.{kind}", mode=mode)
    with Image.open(tmp_path / f"x.{kind}") as image:
        assert image.mode == mode
        expected = np.array(image.convert("RGB"))
    assert np.array_equal(decode(tmp_path / f"x.{kind}").permute(1, 2, 0), expected)


def test_a_class_is_a_folder_with_all_that_is_below_it(releases, make_photo):
    root = releases.folder()
    make_photo(root / "class 1" / "more" / "deep" / "9.PNG")
    make_photo(root / "class 1" / ".thumbnails" / "9.png")
    (root / "class 1" / "._0.png").write_bytes(b"of macOS, not an image")
    (root / "class 1" / "film.mov").write_bytes(b"no image by its name")
    for listing in (Folder(root).listing, images_below(root)[0]):
        of_class = [name for name, key in zip(listing.ids, listing.classes) if key == "class 1"]
        assert of_class == [f"class 1/{name}" for name in ("0.png", "1.png", "2.png", "more/deep/9.PNG")]
        assert len(listing.ids) == 25


@pytest.mark.parametrize("name", ["Train", "val"])
def test_splits_are_not_taken_for_classes(releases, make_photo, name):
    root = releases.folder()
    make_photo(root / name / "class 1" / "0.png")
    for read in (Folder, images_below):
        with pytest.raises(DataError, match=f"{name} would be taken for classes; put the class folders into one"):
            read(root)
    make_photo(root / name / "0.png")  # a class of trains
    assert len(Folder(root).listing.names) == 9


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
    said = (
        rf"^no image folder under {tmp_path} \(.*\); put the images of each class into a folder of its own, DIR/CLASS"
    )
    with pytest.raises(DataError, match=said):
        Folder(tmp_path)


@pytest.mark.parametrize(
    ("side", "mode", "scans"), [(105, "1", True), (128, "L", True), (129, "L", False), (64, "RGB", False)]
)
def test_small_grey_images_are_said_to_need_the_recipe_of_scans(tmp_path, side, mode, scans):
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    for number in range(20):
        path = tmp_path / f"c{number}" / "x.png"
        path.parent.mkdir()
        Image.fromarray(pixels).convert(mode).save(path)
    said = [*Folder(tmp_path).remarks()]
    assert len(said) == scans
    assert all(f"{side} x {side} pixels: `--dataset scans --data-root {tmp_path}`" in line for line in said)
    assert [*Scans(tmp_path).remarks()] == []
