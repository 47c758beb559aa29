"""Official lists that were damaged or made to do harm: one line each."""

import struct
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from bench.datasets import DataError
from bench.datasets.cars196 import Cars196
from bench.datasets.cub200 import CUB200
from bench.datasets.guarded import guarded
from bench.datasets.mat_file import read_annotations


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
    with pytest.raises(DataError, match=r"not a MATLAB file with structures 'annotations' \(.*\); it is not") as caught:
        Cars196(tmp_path)
    assert "\n" not in str(caught.value)


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
