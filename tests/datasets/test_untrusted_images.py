"""Image files that nobody vouches for: each is read as it is meant, or refused in one line that names it."""

import io
import os
import socket
import struct
import zlib

import numpy as np
import pytest
import torch
from bench.cli import main
from bench.datasets import DataError
from bench.datasets.cub200 import CUB200
from bench.datasets.decode import FORMATS, MAX_PIXELS, decode, open_image, pixel_limit
from bench.datasets.folder import Folder, images_below
from bench.datasets.soft_labels import FILE
from PIL import Image

from tests.refusals import one_line, within_memory

PIXELS = np.random.default_rng(0).integers(0, 256, (21, 17, 3), dtype=np.uint8)
KINDS = {
    "jpg": ("JPEG", {}),
    "progressive.jpg": ("JPEG", {"progressive": True}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {}),
    "lossless.webp": ("WEBP", {"lossless": True}),
    "gif": ("GIF", {}),
    "tif": ("TIFF", {}),
    "lzw.tif": ("TIFF", {"compression": "tiff_lzw"}),
    "jpeg.tif": ("TIFF", {"compression": "jpeg"}),
    "bmp": ("BMP", {}),
    "ppm": ("PPM", {}),
}


def _encoded(kind, **more):
    name, options = KINDS[kind]
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, name, **options, **more)
    return buffer.getvalue()


def _png(width, height):
    """A PNG of a few bytes that claims a size."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def _decoded(path):
    """Pixels and an empty line, or None and the reason."""
    try:
        return decode(path), ""
    except DataError as error:
        return None, str(error)


def _refusal(path):
    line = one_line(DataError, decode, path)
    assert line.startswith(str(path))
    return line


def test_every_allowed_format_is_tried():
    assert {name for name, _ in KINDS.values()} == set(FORMATS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_is_refused_or_has_every_pixel(tmp_path, kind):
    path = tmp_path / f"x.{kind}"
    content = _encoded(kind)
    path.write_bytes(content)
    whole = decode(path)
    for length in {*range(0, len(content), 31), *range(len(content) - 20, len(content))}:
        path.write_bytes(content[:length])
        pixels, line = _decoded(path)
        if pixels is None:
            assert str(path) in line
            assert "\n" not in line
        else:
            assert torch.equal(pixels, whole)
            assert length > len(content) - 30


def test_a_chunk_that_claims_gigabytes_is_not_made_room_for(tmp_path):
    path, content = tmp_path / "x.png", bytearray(_encoded("png"))
    place = content.index(b"IDAT") - 4
    content[place : place + 4] = b"\xff\xff\xff\x49"
    path.write_bytes(content)
    with within_memory(50e6):
        _decoded(path)


def test_a_file_that_is_larger_than_any_image_is_not_read(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(_encoded("png"))
    os.truncate(path, 8 * MAX_PIXELS + 1)  # a hole, which needs no disk
    with pytest.raises(DataError, match="larger than 800 MB"):
        decode(path)


def test_the_name_of_a_file_does_not_decide_its_format(tmp_path):
    path = tmp_path / "really a jpeg.png"
    path.write_bytes(_encoded("jpg", quality=95))
    assert decode(path).shape == (3, 21, 17)


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO", "TGA", "PCX", "SGI", "IM", "DIB"])
def test_other_formats_are_refused_whatever_their_name(tmp_path, kind):
    path = tmp_path / "z.png"
    Image.fromarray(PIXELS).save(path, kind)
    assert "none of JPEG, PNG, WebP, GIF, TIFF, BMP, PNM" in _refusal(path)


@pytest.mark.parametrize("side", [30_000, 12_000])
def test_an_image_above_the_limit_is_refused_before_it_is_decoded(tmp_path, side):
    path = tmp_path / "bomb.png"
    path.write_bytes(_png(side, side))
    assert "more than 100 million pixels; make it smaller, or set BENCH_MAX_PIXELS" in _refusal(path)


def test_the_limit_can_be_moved(tmp_path, monkeypatch, recwarn):
    path = tmp_path / "x.png"
    path.write_bytes(_encoded("png"))
    monkeypatch.setenv("BENCH_MAX_PIXELS", "300")
    assert "more than 0.0003 million pixels" in _refusal(path)
    path.write_bytes(_png(30_000, 30_000))
    monkeypatch.setenv("BENCH_MAX_PIXELS", "1e9")
    with open_image(path) as image:
        assert image.size == (30_000, 30_000)
    assert not recwarn.list


@pytest.mark.parametrize("text", ["many", "0", "-3", "inf", "nan"])
def test_a_limit_that_is_no_number_of_pixels_is_named(monkeypatch, text):
    monkeypatch.setenv("BENCH_MAX_PIXELS", text)
    with pytest.raises(DataError, match=f"BENCH_MAX_PIXELS={text} is not a number of pixels"):
        pixel_limit()


def _fifo(path):
    os.mkfifo(path)


def _socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as it:
            it.bind(path.name)
    finally:
        os.chdir(here)


SPECIAL = {
    "pipe": (_fifo, "a pipe, device or socket"),
    "socket": (_socket, "a pipe, device or socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a pipe, device or socket"),
    "folder": (lambda path: path.mkdir(), "a folder"),
    "itself": (lambda path: path.symlink_to(path.name), "levels of symbolic links"),
    "nothing": (lambda path: path.symlink_to("nowhere"), "no such file"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_regular_file_is_refused_without_opening_it(tmp_path, kind):
    make, line = SPECIAL[kind]
    make(tmp_path / "x.png")
    assert line in _refusal(tmp_path / "x.png")


@pytest.mark.parametrize("kind", ["pipe", "device", "bomb"])
def test_verify_names_what_the_estimate_of_a_dry_run_skips_and_a_run_refuses(releases, capsys, kind):
    path = releases.folder() / "class 7" / "odd.png"
    path.write_bytes(_png(30_000, 30_000)) if kind == "bomb" else SPECIAL[kind][0](path)
    said = "more than 100 million pixels" if kind == "bomb" else "a pipe, device or socket, not a file; remove it"
    root = path.parents[1]
    assert main(["data", "verify", "folder", "--data-root", str(root)]) == 1
    assert f"odd.png: {said}" in capsys.readouterr().out
    for purpose in ("evaluation", "training"):
        Folder(root).test().estimated_cache_bytes(purpose)
    with pytest.raises(DataError, match=r"1 of 25 images cannot be used: .*odd.png"):
        Folder(root).prepare()


def test_verify_names_every_unreadable_image_and_import_leaves_that_to_it(releases, tmp_path, capsys):
    root, data_root = releases.folder(), tmp_path / "data"
    (root / "class 1" / "0.png").write_bytes(b"no image")
    (root / "class 6" / "1.png").write_bytes(_encoded("png")[:100])
    assert main(["data", "import", "folder", str(root), "--data-root", str(data_root)]) == 0
    assert "24 images, 8 classes; `bench data verify folder" in capsys.readouterr().out
    assert main(["data", "verify", "folder", "--data-root", str(data_root / "folder")]) == 1
    shown = [line for line in capsys.readouterr().out.splitlines() if "damaged:" in line]
    assert len(shown) == 2
    assert "0.png" in shown[0]
    assert "1.png" in shown[1]


def test_a_pipe_in_a_flat_folder_is_listed_so_that_it_is_refused(tmp_path):
    _fifo(tmp_path / "x.png")
    assert images_below(tmp_path)[0].ids == ["x.png"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("cub", "CUB_200_2011/images.txt"), ("cub", "CUB_200_2011/image_class_labels.txt"), ("folder", FILE)],
)
def test_a_list_that_is_a_pipe_is_refused(releases, kind, name):
    root = getattr(releases, kind)()
    (root / name).unlink(missing_ok=True)
    _fifo(root / name)
    with pytest.raises(DataError, match=f"{name}: a pipe, device or socket"):
        {"cub": CUB200, "folder": Folder}[kind](root)


@pytest.mark.parametrize("path", ["../secret.jpg", "/etc/secret.jpg", "a/../../secret.jpg"])
def test_a_list_that_leads_out_of_its_release_is_refused(releases, path):
    from bench.datasets.sop import SOP

    root = releases.sop()
    file = root / "Stanford_Online_Products" / "Ebay_train.txt"
    file.write_text(file.read_text().replace("bicycle_final/101_0.JPG", path))
    with pytest.raises(DataError, match="not the path of a file below it; correct the list"):
        SOP(root)


@pytest.mark.parametrize("name", ["a\nb.png", "\x1b[31m.png", "a\tb.png", "\x7f.png"])
def test_names_with_control_characters_are_refused(releases, make_photo, name):
    root = releases.folder()
    make_photo(root / "class 1" / name)
    with pytest.raises(DataError, match="has a control character; rename it") as caught:
        Folder(root)
    assert str(caught.value).isprintable()


def test_links_in_place_are_followed_once(releases, tmp_path):
    from bench.datasets.releases import folders_below

    root = releases.folder()
    for i in range(8):
        (root / "class 1" / f"loop {i}").symlink_to(".")
        (root / "class 2" / f"up {i}").symlink_to("..")
    (root / ".hidden").mkdir()
    assert sorted(path.name for path in folders_below(root)) == sorted(["plain", *(f"class {c}" for c in range(8))])
    assert len(Folder(root).listing.ids) == 24
    linked = tmp_path / "linked"
    linked.mkdir()
    for c in range(8):
        (linked / f"class {c}").symlink_to(root / f"class {c}")
    assert Folder(linked).test().manifest_sha256() == Folder(root).test().manifest_sha256()


def test_heic_is_read_if_its_package_is_installed(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    path = tmp_path / "x.heic"
    smooth = np.dstack([np.add.outer(np.arange(64), np.arange(48)).astype(np.uint8)] * 3)
    pillow_heif.from_pillow(Image.fromarray(smooth)).save(path, quality=95)
    assert abs(decode(path).permute(1, 2, 0).numpy().astype(int) - smooth).mean() < 3
    path.write_bytes(path.read_bytes()[:-30])
    _refusal(path)


def test_heic_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.datasets.decode._formats", lambda: FORMATS)
    path = tmp_path / "x.jpg"
    path.write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    assert "`pip install 'probembed[heic]'`, or convert it to JPEG" in _refusal(path)


def test_no_other_module_opens_image_files():
    from pathlib import Path

    import bench.datasets

    folder = Path(bench.datasets.__file__).parent
    places = [folder, folder.parent / "bench", folder.parent / "methods", folder.parent / "protocols"]
    found = [p for place in places for p in place.rglob("*.py") if "Image.open(" in p.read_text()]
    # A corruption reads back what it has written to memory.
    assert sorted(p.name for p in found) == ["decode.py", "jpeg.py"]
