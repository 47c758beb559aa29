"""Files that claim, repeat or pack what no file should: one line, and no memory for what they claim."""

import io
import itertools
import json
import re
import struct
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
from bench.errors import BadInput
from bench.scoring.embedding_set import EmbeddingSet
from bench.scoring.files import read_embeddings
from bench.scoring.untrusted import MAX_UNPACKED
from safetensors.numpy import save_file

from tests.refusals import within_memory


def _zip(path, members, packing=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, data in members:
            archive.writestr(name, data)


def _npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,", "is not a NumPy array"),  # TokenError
        ("{'descr': '<f1', 'fortran_order': False, 'shape': (3, 2)}", "are float8, which NumPy saves and cannot read"),
        ("{'descr': [], 'fortran_order': False, 'shape': (0,)}", "is not a NumPy array|0 bytes for every value"),
        ("{'descr': ('<f4',), 'fortran_order': False, 'shape': (0,)}", "is not a NumPy array"),  # IndexError
        ("{'descr': {}, 'fortran_order': False, 'shape': (0,)}", "is not a NumPy array|0 bytes for every value"),
        ("{[]: 1}", "is not a NumPy array"),  # TypeError
        ("(" * 110, "is not a NumPy array"),
        (f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1,' * 25}0)}}", "must have the shape"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (10**18,)}", "is not a NumPy array"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}", "0 bytes for every value"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (5, 0)}", "0 bytes for every value"),
    ],
)
def test_headers_of_npy_that_are_damaged(tmp_path, header, message):
    text = header.encode().ljust(117) + b"\n"
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    _zip(tmp_path / "x.npz", [("embeddings.npy", npy), ("labels.npy", _npy(np.arange(3)))])
    with pytest.raises(BadInput, match=message) as caught:
        EmbeddingSet.of(read_embeddings(tmp_path / "x.npz")[0])
    assert "\n" not in str(caught.value)


def test_packed_zeros_are_refused_until_they_are_allowed(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    zeros = np.zeros((30_000_000, 2), "i1")  # half a gigabyte of floats
    _zip(path, [("embeddings.npy", _npy(zeros)), ("labels.npy", _npy(np.arange(3)))], zipfile.ZIP_DEFLATED)
    said = rf"unpacks to 480\.0 MB, .* set {MAX_UNPACKED}=480000024"
    with within_memory(1e6), pytest.raises(BadInput, match=said):
        read_embeddings(path)
    monkeypatch.setenv(MAX_UNPACKED, "480000024")
    assert read_embeddings(path)[0]["embeddings"].shape == (30_000_000, 2)
    monkeypatch.setenv(MAX_UNPACKED, "much")
    with pytest.raises(BadInput, match="expected a number of bytes"):
        read_embeddings(path)


def _wide(path):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (1,) * 65})
    _zip(path, [("embeddings.npy", buffer.getvalue() + bytes(4))])


def _four(**more):
    return lambda path: np.savez(path, embeddings=np.eye(4), labels=np.arange(4) % 2, **more)


def _ids(*codes):
    return _four(ids=np.array([97, 98, 99, *codes], dtype="<u4").view("<U1"))


TWICE = [("labels.npy", _npy(np.arange(3))), ("labels", _npy(np.arange(3)))]
ODD = [
    (_wide, "has 65 dimensions"),
    (lambda path: _zip(path, TWICE), "labels is in the file 2 times"),
    (_ids(0xD800), "characters that Unicode does not have"),  # half a surrogate pair
    (_ids(0x110000), "characters that Unicode does not have"),  # no code point
    (_four(is_query=np.array([1, 1, 1, 2], dtype=np.uint8).view(bool)), "bytes other than 0 and 1"),
]


@pytest.mark.parametrize(("make", "said"), ODD)
def test_arrays_that_none_should_write(tmp_path, make, said):
    make(tmp_path / "x.npz")
    with pytest.raises(BadInput, match=said):
        EmbeddingSet.of(read_embeddings(tmp_path / "x.npz")[0])


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '["\\ud800", "b", "c", "d"]', "[[1], 2, 3, 4]", "{}", "[" + "9" * 5000 + "]", "[true]"]
)
def test_ids_of_safetensors_that_are_no_list_of_texts(tmp_path, text):
    arrays = {"embeddings": np.eye(4), "labels": np.arange(4) % 2}
    save_file(arrays, tmp_path / "x.safetensors", {"ids": text})
    with pytest.raises(BadInput, match=r"not a JSON list of texts|characters that Unicode does not have"):
        EmbeddingSet.of(read_embeddings(tmp_path / "x.safetensors")[0])


def test_one_long_id_does_not_widen_the_others(tmp_path):
    count = 5000
    ids = ["x" * 10_000, *map(str, range(count - 1))]
    save_file({"embeddings": np.ones((count, 1), "i1")}, tmp_path / "x.safetensors", {"ids": json.dumps(ids)})
    with within_memory(5e6):  # an array of fixed width would take 200 MB
        read_embeddings(tmp_path / "x.safetensors")


def _parquet(path, columns, **options):
    pq.write_table(pyarrow.table(columns), path, **options)
    return path


@pytest.mark.slow
def test_a_parquet_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    count = 2_000_000
    flat = pyarrow.array(np.ones(count * 20, "f4"))
    columns = {
        "embeddings": pyarrow.FixedSizeListArray.from_arrays(flat, 20),
        "labels": pyarrow.array(np.zeros(count, "i8")),
    }
    path = _parquet(tmp_path / "x.parquet", columns)
    del flat, columns
    assert path.stat().st_size < 400_000
    before = pyarrow.total_allocated_bytes()
    with pytest.raises(BadInput, match=rf"unpacks to .* MB, \d+ times its own size; .* set {MAX_UNPACKED}="):
        read_embeddings(path)
    assert pyarrow.total_allocated_bytes() - before < 1e6
    monkeypatch.setenv(MAX_UNPACKED, "1000000000")
    assert read_embeddings(path)[0]["embeddings"].shape == (count, 20)


def test_dimensions_with_a_point_in_their_names_count(tmp_path, monkeypatch):
    columns = {name: np.zeros(10_000, "i8") for name in ("labels", *(f"embeddings.{i}" for i in range(9)))}
    path = _parquet(tmp_path / "x.parquet", columns)
    monkeypatch.setenv(MAX_UNPACKED, "200000")
    with pytest.raises(BadInput, match=r"unpacks to 8..\.. kB"):
        read_embeddings(path)


def test_equal_texts_of_parquet_are_kept_once(tmp_path):
    ids = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(20_000, "i4")), ["x" * 50_000])  # a gigabyte
    columns = {"embeddings": [[1.0, 2.0]] * 20_000, "labels": np.arange(20_000) % 2, "ids": ids}
    path = _parquet(tmp_path / "x.parquet", columns)
    with within_memory(20e6), pytest.raises(BadInput, match="ids repeat"):
        EmbeddingSet.of(read_embeddings(path)[0])


def test_a_page_that_claims_more_values_than_the_footer(tmp_path):
    path = _parquet(tmp_path / "x.parquet", {"labels": np.arange(100)}, use_dictionary=False, compression="none")
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    raw = bytearray(path.read_bytes())
    values = raw[start : start + 40].index(b"\xc8\x01")  # 100 as a zigzag integer
    raw[start + values : start + values + 2] = b"\xca\x01"
    path.write_bytes(raw)
    with pytest.raises(BadInput, match="damaged"):
        read_embeddings(path)


def test_a_page_that_claims_two_gigabytes(tmp_path):
    path = _parquet(tmp_path / "x.parquet", {"labels": np.arange(100)}, use_dictionary=False, compression="gzip")
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    raw = path.read_bytes()
    assert raw[start : start + 3] == b"\x15\x00\x15"  # a data page; its size and packed size follow
    packed = (raw[start + 6] & 127) + 128 * raw[start + 7]
    sizes = b"\xfe\xff\xff\xff\x0f\x15" + bytes([packed - 6 & 127 | 128, packed - 6 >> 7])
    end = start + len(raw[start:].split(b"\x1f\x8b")[0]) + packed // 2
    path.write_bytes(raw[: start + 3] + sizes + raw[start + 8 : end - 3] + raw[end:])
    with pytest.raises(BadInput, match="more memory than a file of its size needs"):
        read_embeddings(path)


def test_texts_by_their_differences_are_refused(tmp_path):
    columns = {"embeddings": [[1.0]] * 4, "labels": [0, 0, 1, 1], "ids": list("abcd")}
    path = _parquet(tmp_path / "x.parquet", columns, use_dictionary=False, column_encoding={"ids": "DELTA_BYTE_ARRAY"})
    with pytest.raises(BadInput, match="ids has the encoding DELTA_BYTE_ARRAY"):
        read_embeddings(path)


ONE = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"embeddings_0": ONE, "embeddings_00": ONE}, "columns embeddings_0 and embeddings_00 are the same dimension"),
        ({"embeddings": ONE, "embeddings_0": ONE}, "both as one column and as one per dimension"),
        ({"embeddings_0": ONE, "embeddings_2": ONE}, "numbered without gaps"),
        ({"embeddings": [[ONE, ONE]] * 4}, "rows of the shape [2, 4]; write lists of one dimension"),
        ({"embeddings": [{"x": 1.0}] * 4}, "embeddings is a column of struct<x: double>; write numbers or text"),
        ({"embeddings": [ONE] * 4, "ids": [b"\xe9%d" % i for i in range(4)]}, r"row 0, '\udce90': bytes of another"),
    ],
)
def test_columns_that_cannot_be_read(tmp_path, columns, message):
    path = _parquet(tmp_path / "x.parquet", columns | {"labels": [0, 0, 1, 1]})
    with pytest.raises(BadInput, match=re.escape(message)):
        EmbeddingSet.of(read_embeddings(path)[0])


def test_a_column_with_a_number_of_5000_digits_is_not_read(tmp_path):
    name = "embeddings_" + "9" * 5000
    path = _parquet(tmp_path / "x.parquet", {"embeddings": [[1.0]], "labels": [0], name: [1.0]})
    _, others = read_embeddings(path)
    assert len(others) == 1
    assert len(others[0]) <= 100


@pytest.mark.slow
def test_parquet_of_many_row_groups_packings_and_pages_is_read(tmp_path):
    rows = np.random.default_rng(0).normal(size=(1000, 3)).astype("f4")
    ids = [f"image {i}" for i in range(1000)]
    packings = ("none", "snappy", "gzip", "zstd")
    for i, (version, dictionary) in enumerate(itertools.product(("1.0", "2.0"), (False, True))):
        names = ("embeddings.list.element", "labels", "ids")
        path = _parquet(
            tmp_path / "x.parquet", {"embeddings": list(rows), "labels": np.arange(1000), "ids": ids},
            data_page_version=version, compression={name: packings[i - j] for j, name in enumerate(names)},
            use_dictionary=dictionary, row_group_size=300, data_page_size=500,
        )  # fmt: skip
        found, _ = read_embeddings(path)
        assert np.array_equal(found["embeddings"], rows)
        assert found["ids"].tolist() == ids


def test_whole_numbers_as_categories_are_numbers(tmp_path):
    labels = pyarrow.array([3, 5, 3, 5]).dictionary_encode()
    path = _parquet(tmp_path / "x.parquet", {"embeddings": [[1.0]] * 4, "labels": labels})
    assert read_embeddings(path)[0]["labels"].tolist() == [3, 5, 3, 5]
