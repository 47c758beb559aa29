"""Files that are written as a whole or not at all, and read only if they are whole."""

import errno
import io
import os
import subprocess

import numpy as np
import pytest
import torch
from bench.datasets.pixel_cache import PixelCache
from bench.store import files
from bench.store.records import Marker, read_marker


def _seal(path, owner, *parts):
    with files.sealed_file(path, owner) as file:
        for part in parts:
            file.write(part)


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "x"
    files.write_atomic(path, b"old")
    with pytest.raises(TypeError):
        _seal(path, "me", b"new", "no bytes")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def _left(folder, name, age):
    path = folder / name
    path.write_bytes(b"")
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def test_temporary_files_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path, monkeypatch):
    """Killed runs left theirs behind; a clock that jumps must not make a living process lose its own."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    here = f".metrics.csv.{files.host()}-{{}}-01234567.part".format
    gone = [
        _left(tmp_path, here(dead.pid), age=0),
        _left(tmp_path, ".metrics.csv.elsewhere-1-01234567.part", age=files.LEFT_FOR + 1),
        _left(tmp_path, ".comparison.csv.a1b2c3d4", age=files.LEFT_FOR + 1),
    ]
    kept = [
        _left(tmp_path, here(os.getpid()), age=1e6),
        _left(tmp_path, ".metrics.csv.elsewhere-1-89abcdef.part", age=0),
        _left(tmp_path, "metrics.csv", age=1e6),
    ]
    files.remove_leftovers(tmp_path, 1e9)
    assert not [path for path in gone if path.exists()]
    assert [path for path in kept if path.exists()] == kept


def test_a_full_disk_in_a_checkpoint_is_named(tmp_path, monkeypatch):
    """It was "unexpected pos 785536"."""

    class Full(io.FileIO):
        def write(self, data):
            if self.tell() + len(data) > 20_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    monkeypatch.setattr("pathlib.Path.open", lambda path, mode: Full(path, mode))
    said = r"No space left on device: '.*checkpoint.pt'"
    with pytest.raises(OSError, match=said), files.sealed_file(tmp_path / "checkpoint.pt", "unit") as file:
        torch.save({"a": torch.zeros(100_000)}, file)
    assert not list(tmp_path.iterdir())


def test_every_bit_of_a_sealed_file_counts_and_so_does_its_owner(tmp_path):
    path = tmp_path / "sealed"
    _seal(path, "unit", b"some ", b"content")
    assert files.read_sealed(path, "unit") == b"some content"
    with pytest.raises(files.DamagedFile):
        files.read_sealed(path, "another")
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
            with pytest.raises(files.DamagedFile):
                files.read_sealed(path, "unit")
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(files.DamagedFile):
            files.read_sealed(path, "unit")


def test_a_digest_is_computed_again_when_the_file_has_changed(tmp_path):
    path = tmp_path / "x"
    for content in (b"one", b"two", b"three"):
        files.write_atomic(path, content)
        assert files.file_sha256(path) == files.sha256(content)


def test_every_bit_of_the_marker_counts(tmp_path):
    path, marker = tmp_path / "store.json", Marker(schema_version=2, protocols={"a": 1})
    assert read_marker(path) is None
    whole = marker.to_json()
    path.write_bytes(whole)
    assert read_marker(path) == marker
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
            try:
                assert read_marker(path) == marker
            except files.DamagedFile:
                continue
    for text in (b"", b"[]", b"{}", b"null", b'{"schema": 3, "protocols": []}', b"[" * 10_000):
        path.write_bytes(text)
        with pytest.raises(files.DamagedFile):
            read_marker(path)


@pytest.fixture
def pixels(tmp_path):
    """Two caches of pixels of one size; the first is whole."""
    draw = torch.Generator().manual_seed(0)
    for name in ("one", "two"):
        images = [torch.randint(0, 256, (3, 5, 4), generator=draw, dtype=torch.uint8) for _ in range(3)]
        PixelCache.build(tmp_path / name, images)
    assert PixelCache.is_whole(tmp_path / "one")
    return tmp_path


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),  # rc 130 and silence
        lambda path: path.write_bytes(path.read_bytes()[:-40]),  # BadZipFile
        lambda path: path.write_bytes(bytes(path.stat().st_size)),  # zeroed pixels gave other embeddings
        _flip,
        lambda path: path.write_bytes(path.with_name(path.name.replace("one", "two")).read_bytes()),
        lambda path: np.savez(path.open("wb"), offsets=np.array(["x"])),
    ],
)
@pytest.mark.parametrize("suffix", [".pixels", ".index.npz"])
def test_a_damaged_cache_of_pixels_is_named_and_not_whole(damage, suffix, pixels, capsys):
    damage(pixels / f"one{suffix}")
    assert not PixelCache.is_whole(pixels / "one")
    assert "one.pixels are damaged; decoding again" in capsys.readouterr().err


def test_a_cache_of_pixels_is_checked_once(pixels, monkeypatch):
    monkeypatch.setattr("bench.datasets.pixel_cache._has_checksums", None)
    assert PixelCache.is_whole(pixels / "one")
