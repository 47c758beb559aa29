"""Official lists that were damaged or made to do harm: one line each."""

import struct
import zlib

import numpy as np
import pytest
from bench.datasets import DataError
from bench.datasets.cub200 import CUB200
from bench.datasets.mat_file import LARGEST, read_structures
from bench.datasets.sop import SOP


def _annotations(path, packed=False):
    from scipy.io import savemat

    held = np.empty((1, 3), dtype=[("fname", "O"), ("class", "O"), ("box", "O")])
    for i in range(3):
        held[0, i] = (f"é{i}.jpg", np.uint8(i), np.ones(4))
    savemat(path, {"other": np.ones(3), "annotations": held}, do_compression=packed)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_structures_are_read_as_scipy_reads_them(tmp_path, packed):
    rows = read_structures(_annotations(tmp_path / "a.mat", packed), "annotations")
    assert rows == [{"fname": f"é{i}.jpg", "class": i} for i in range(3)]


def test_a_length_of_names_that_ends_the_process_in_scipy_is_refused(tmp_path):
    path = _annotations(tmp_path / "a.mat")
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"\x05\x00\x04\x00\x06\x00\x00\x00", b"\x05\x00\x04\x00\x33\x00\x00\x00"))
    assert path.read_bytes() != raw
    with pytest.raises(DataError, match="names of fields"):
        read_structures(path, "annotations")


def test_a_variable_that_claims_or_unpacks_to_too_much(tmp_path):
    path = _annotations(tmp_path / "a.mat")
    raw = path.read_bytes()
    path.write_bytes(raw.replace(struct.pack("<IIII", 5, 8, 1, 3), struct.pack("<IIII", 5, 8, 1, 2**31 - 1)))
    with pytest.raises(DataError, match="an array of 2147483647 structures in"):
        read_structures(path, "annotations")
    bomb = zlib.compress(bytes(LARGEST + 1))
    path.write_bytes(raw[:128] + struct.pack("<II", 15, len(bomb)) + bomb)
    with pytest.raises(DataError, match="unpacks to more than 64 MB"):
        read_structures(path, "annotations")


@pytest.mark.parametrize("number", ["²", "9" * 5000, "-1", "1e3"])
def test_class_numbers_that_are_none(releases, number):
    root = releases.cub()
    path = root / "CUB_200_2011" / "image_class_labels.txt"
    path.write_text(path.read_text().replace("1 1\n", f"1 {number}\n", 1))
    with pytest.raises(DataError, match=r"not a class number|not a list of images"):
        CUB200(root)


@pytest.mark.parametrize("name", ["../../x.jpg", "/etc/passwd", "a/../../x.jpg"])
def test_paths_that_lead_out_of_the_release(releases, name):
    root = releases.sop()
    path = root / "Stanford_Online_Products" / "Ebay_train.txt"
    path.write_text(path.read_text().replace("bicycle_final/101_0.JPG", name))
    with pytest.raises(DataError, match="not the path of a file below it"):
        SOP(root)
