"""Archives that nobody vouches for: they unpack whole and inside their folder, or are refused in one line."""

import gzip
import io
import os
import tarfile
import zipfile
from unittest.mock import Mock

import numpy as np
import pytest
from bench.cli import main
from bench.datasets import DataError, archives
from bench.datasets.archives import BLOCK, EncryptedArchive, copy_folder, take, unpack

from tests.refusals import one_line

FILES = {f"a/b/{i}.bin": np.random.default_rng(i).bytes(700 * i) for i in range(6)}
MEMBERS = [*FILES.items()]


def _tar(path, members=MEMBERS, mode="w", fmt=tarfile.GNU_FORMAT):
    with tarfile.open(path, mode, format=fmt) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def _zip(path, members=MEMBERS, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def _held(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def _line(archive, folder):
    """Reason why an archive is refused; empty if it is not."""
    try:
        unpack(archive, folder)
    except DataError as error:
        return str(error)
    return ""


def _refusal(archive, folder, **options):
    line = one_line(DataError, unpack, archive, folder, **options)
    assert line.startswith(str(archive))
    return line


WRITERS = {
    "x.tar": _tar,
    "x.tgz": lambda path: _tar(path, mode="w:gz"),
    "x.tar.bz2": lambda path: _tar(path, mode="w:bz2"),
    "x.tar.xz": lambda path: _tar(path, mode="w:xz"),
    "pax.tar": lambda path: _tar(path, [*MEMBERS, ("ü" * 90, b"x")], fmt=tarfile.PAX_FORMAT),
    "long.tar": lambda path: _tar(path, [*MEMBERS, ("y" * 150, b"x")]),
    "x.zip": _zip,
    "stored.zip": lambda path: _zip(path, compression=zipfile.ZIP_STORED),
    "wrong name.zip": _tar,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_whole_archive_is_unpacked(tmp_path, name):
    spent = unpack(WRITERS[name](tmp_path / name), tmp_path / "out")
    held = _held(tmp_path / "out")
    assert FILES.items() <= held.items()
    assert len(held) * BLOCK <= spent <= len(held) * BLOCK + tarfile.RECORDSIZE


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_truncated_archive_is_refused_wherever_it_is_cut(tmp_path, name):
    path = WRITERS[name](tmp_path / name)
    content = path.read_bytes()
    ends = {*range(0, len(content), 512), *range(3, len(content), 701), len(content) - 1}
    for number, length in enumerate(sorted(ends)):
        path.write_bytes(content[:length])
        folder = tmp_path / f"out {number}"
        if not (line := _line(path, folder)):  # cut in the padding after the end
            assert FILES.items() <= _held(folder).items()
            assert not content[length:].strip(b"\0")
        assert "\n" not in line


@pytest.mark.parametrize("name", ["x.tgz", "x.tar.bz2", "x.tar.xz", "x.zip", "stored.zip"])
def test_flipped_bits_do_not_unpack_to_other_content(tmp_path, name):
    path = WRITERS[name](tmp_path / name)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(60):
        damaged = bytearray(content)
        damaged[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        folder = tmp_path / f"out {number}"
        line = _line(path, folder)
        assert "\n" not in line
        refused += bool(line)
        if not line:
            assert sorted(_held(folder).values()) == sorted(FILES.values())  # names of a zip have no checksum
    assert refused > 40


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/tmp/x", "..", "a/.."])
@pytest.mark.parametrize("write", [_tar, _zip])
def test_names_outside_of_the_folder_are_refused(tmp_path, name, write):
    folder = tmp_path / "deep" / "out"
    assert "is outside of the folder; unpack it yourself" in _refusal(write(tmp_path / "x", [(name, b"!")]), folder)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "x"]


def _header(path, kind, size=0, after=bytes(1 << 17), copies=1):
    info = tarfile.TarInfo("x")
    info.type, info.linkname, info.size = kind, "a/b/1.bin", size
    path.write_bytes(copies * info.tobuf() + after)


LINK = zipfile.ZipInfo("x")
LINK.external_attr = 0o120777 << 16
KINDS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, b"Z")
NOT_ARCHIVES = [b"", b"text\n" * 500, b"PK\3\4", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", bytes(100), b"\xff" * 1024]
REFUSED = [
    *(("is a link or a device", lambda path, kind=kind: _header(path, kind)) for kind in KINDS),
    ("is a link or a device", lambda path: _zip(path, [(LINK, b"/etc/passwd")])),
    *(
        ("two members are named", lambda path, name=name, of=of: of(path, [("a/x", b"1"), (name, b"2")]))
        for name in ("a/x", "./a/x", "a//x")
        for of in (_tar, _zip)
    ),
    # Before gigabytes are read
    *(
        ("a name of more than 65536 characters", lambda path, kind=kind: _header(path, kind, 8 * 10**9))
        for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
    ),
    ("", lambda path: _header(path, tarfile.XGLTYPE, after=b"", copies=5000)),
    *(("", lambda path, content=content: path.write_bytes(content)) for content in NOT_ARCHIVES),
    ("a pipe, device or socket", os.mkfifo),
]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("said", "make"), REFUSED)
def test_what_is_no_archive_of_files_is_refused(tmp_path, said, make):
    make(tmp_path / "x.zip")
    assert said in _refusal(tmp_path / "x.zip", tmp_path / "out")
    assert len(_held(tmp_path / "out")) == said.startswith("two")  # the first of them


def test_an_archive_with_a_password_is_refused(tmp_path):
    path = _zip(tmp_path / "x.zip", [("a", b"1")])
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(EncryptedArchive, match="needs a password; unpack it yourself"):
        unpack(path, tmp_path / "out")


BOMBS = {
    "zip": lambda path: _zip(path, [("zeros", bytes(20_000_000))]),
    "tgz": lambda path: _tar(path, [("zeros", bytes(20_000_000))], "w:gz"),
    "many files": lambda path: _tar(path, [(f"{i}", b"") for i in range(3000)], "w:gz"),
    "many folders": lambda path: _zip(path, [(f"{i}/", b"") for i in range(3000)]),
    "after the end": lambda path: path.write_bytes(
        gzip.compress(_tar(path.with_name("y")).read_bytes() + bytes(20_000_000))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_and_can_be_allowed(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(archives, "FREE_BYTES", 10**7)
    path = tmp_path / "x"
    BOMBS[kind](path)
    assert path.stat().st_size < 150_000 or kind == "many folders"
    limit = {"limit": 10**7} if kind == "many folders" else {}
    line = _refusal(path, tmp_path / "out", **limit)
    assert "unpacks to more than 0.01 GB; if it should, use --max-unpacked GB" in line
    assert sum(map(len, _held(tmp_path / "out").values())) < 10**7
    assert unpack(path, tmp_path / "again", limit=10**8) > 10**7


def test_max_unpacked_reaches_the_limit(releases, tmp_path, refusal):
    root, data_root = releases.folder(), tmp_path / "data"
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
        archive.add(root, ".")
    command = ["data", "import", "folder", str(tmp_path / "x.tgz"), "--data-root", str(data_root)]
    assert "unpacks to more than 1e-05 GB" in refusal(*command, "--max-unpacked", "0.00001")
    assert main([*command, "--max-unpacked", "0.001"]) == 0


def test_a_sparse_file_counts_its_holes(tmp_path):
    path = tmp_path / "x.tar"
    header = bytearray(tarfile.TarInfo("sparse").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[483:495] = b"%011o\0" % 10**12  # the size with its holes
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path.write_bytes(bytes(header) + bytes(1024))
    assert "unpacks to more than 1 GB" in _refusal(path, tmp_path / "out")


def test_a_damaged_archive_is_quoted_in_few_words(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/1.png", bytes(4000))
    content = bytearray(path.read_bytes())
    content[26:28] = (3000).to_bytes(2, "little")  # the length of the first file's name, which the error quotes
    path.write_bytes(content)
    with pytest.raises(DataError, match="a damaged or truncated zip file") as caught:
        unpack(path, tmp_path / "out")
    assert len(str(caught.value)) < 400 + len(str(path))


def test_archives_inside_are_unpacked_once_and_share_the_limit(tmp_path):
    inner = _zip(tmp_path / "inner.zip").read_bytes()
    outer = _tar(tmp_path / "outer.tar", [("d/inner.zip", inner), ("d/a/b/1.bin", b"first")])
    take(outer, tmp_path / "out")
    held = _held(tmp_path / "out")
    assert held["d/a/b/2.bin"] == FILES["a/b/2.bin"]
    assert held["d/a/b/1.bin"] == b"first"  # what is there stays
    with pytest.raises(DataError, match=r"outer.tar: d/inner.zip: unpacks to more than"):
        take(outer, tmp_path / "small", limit=6 * BLOCK)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "inner.zip").write_bytes(inner[:-40])
    with pytest.raises(DataError, match=r"broken: inner.zip: a damaged or truncated zip file"):
        take(tmp_path / "broken", tmp_path / "out 2")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        *((lambda path, to=to: path.symlink_to(to), "is a link") for to in ("/etc/passwd", "0.png", "nowhere", ".")),
        (os.mkfifo, "is a pipe, device or socket; remove it"),
    ],
)
def test_what_is_no_file_is_not_copied(tmp_path, make, said):
    source = tmp_path / "source"
    source.mkdir()
    (source / "0.png").write_bytes(b"x")
    make(source / "x.png")
    with pytest.raises(DataError, match=rf"x\.png {said}"):
        copy_folder(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_import_leaves_nothing(releases, tmp_path, monkeypatch):
    source = releases.folder()
    (source / "class 0" / "more.tar").write_bytes(_tar(tmp_path / "x.tar").read_bytes())
    (tmp_path / "data").mkdir()

    def stop(*args):
        assert list((tmp_path / "data").rglob("*.png"))  # half done
        raise KeyboardInterrupt

    monkeypatch.setattr(archives, "_members_of_tar", stop)
    assert main(["data", "import", "folder", str(source), "--data-root", str(tmp_path / "data")]) == 130
    assert not list((tmp_path / "data").iterdir())


def test_what_a_killed_import_leaves_is_not_found(releases):
    from bench.datasets.cub200 import CUB200

    root = releases.cub()
    (root / "CUB_200_2011").rename(root / ".cub200-x1y2z3")
    with pytest.raises(DataError, match="no CUB-200-2011 under"):
        CUB200(root)


def test_a_file_that_cannot_be_copied_is_named(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.mkdir()
    (source / "x.png").write_bytes(b"x")
    monkeypatch.setattr("shutil.copyfile", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(DataError, match=r"x\.png: cannot be copied \(.*Permission denied"):
        copy_folder(source, tmp_path / "out")


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    archive = _tar(tmp_path / "x.tar")
    monkeypatch.setattr("pathlib.Path.mkdir", Mock(side_effect=OSError(28, "No space left on device")))
    assert _refusal(archive, tmp_path / "out").endswith("x.tar: No space left on device")
