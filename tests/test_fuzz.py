"""Damaged files of every kind that is not trusted: each is read, or refused in one line (archives: test_archives.py).

``BENCH_FUZZ_EXAMPLES`` sets another number of cases.
"""

import contextlib
import faulthandler
import io
import json
import os
import struct
import tarfile
import zipfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from bench.datasets.cub200 import CUB200
from bench.datasets.decode import decode
from bench.datasets.files import DataError
from bench.errors import UserError
from bench.planning.experiment import read_settings_file
from bench.planning.setting import build, from_file, layer
from bench.scoring.feature_files import import_features
from bench.scoring.files import read_set, write_embeddings
from bench.seeds import content_id
from bench.site import Site
from bench.store.records import DamagedRecord, StudyRecord, TestRecord, TrainRecord, TrialRecord
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.datasets.conftest import Releases

EXAMPLES = int(os.environ.get("BENCH_FUZZ_EXAMPLES", "500"))
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:::PIL")]
HANGS = 60
"""Seconds after which a case ends the process with a traceback."""

TEXTS = (b"-1", b"1e999", b"NaN", b"null", b"{}", b"9" * 5000, b"[" * 5000, b"(" * 150, b"\\ud800", b"\xed\xa0\x80",
         b"\x00", b"\n", b"../../x", b"a" * 300, "²٣".encode())  # fmt: skip
INTEGERS = st.sampled_from([0, 1, 64, 65, 255, 65535, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
CONTENT = st.one_of(st.binary(max_size=16), st.sampled_from(TEXTS), INTEGERS.map(lambda i: struct.pack("<Q", i)))
PART = st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([0, 1, 2, 4, 8, 64, 10**9]), CONTENT)
CHANGES = st.lists(PART, min_size=1, max_size=3)
ODD = st.sampled_from(
    [None, True, 0, -1, 2**70, 1.5, float("nan"), "", "\ud800", "../../../x", "a" * 9999, [], {}, [[]]]
)
VALUES = st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=5), ODD), min_size=1, max_size=2)

RECORDS = Path(__file__).parents[1] / "results" / "study" / "glyphs-both.tar.xz"
KINDS = {kind.kind: kind for kind in (StudyRecord, TestRecord, TrainRecord, TrialRecord)}


def changed(data, changes, start=0, end=None):
    """Bytes of which some, within a part of them, are replaced by others."""
    made = bytearray(data[start:end])
    for share, width, content in changes:
        place = int(share * len(made))
        made[place : place + width] = content[:width] if width <= 8 and len(content) == 8 else content
    return data[:start] + bytes(made) + (b"" if end is None else data[end:])


def replaced(value, path, new):
    """A JSON value with another one at a place."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    made = value.copy()
    key = (sorted(value) if isinstance(value, dict) else range(len(value)))[path[0] % len(value)]
    made[key] = replaced(value[key], path[1:], new)
    return made


def check(read, path, data):
    """Require that a file is read, or refused in one line."""
    path.write_bytes(data)
    line = "read"
    faulthandler.dump_traceback_later(HANGS, exit=True)
    try:
        read(path)
    except (UserError, DataError, DamagedRecord) as error:
        line = str(error)
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert 0 < len(line) < 2000
    assert "\n" not in line


def fuzz(read, path, make, *strategies, examples=EXAMPLES):
    """Check files made from draws."""
    quick = settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    quick(given(st.tuples(*strategies))(lambda drawn: check(read, path, make(*drawn))))()


def _arrays():
    draws, names = np.random.default_rng(0), np.array([f"é/{i}" for i in range(12)])
    made = {"embeddings": draws.normal(size=(12, 6)).astype("f4"), "labels": np.arange(12) % 4, "ids": names}
    return made | {
        "confidence": draws.normal(size=12),
        "variance": draws.uniform(0.1, 1, (12, 6)),
        "is_query": names > "",
    }


def _in_npz(data, changes):
    """Members with changed headers and the checksums of what they have become."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for number, name in enumerate(old.namelist()):
            new.writestr(name, old.read(name) if number else changed(old.read(name), changes, 0, 128))
    return buffer.getvalue()


def _in_safetensors(data, changes):
    """A changed header with its right length."""
    size = 8 + struct.unpack("<Q", data[:8])[0]
    header = changed(data[8:size], changes)
    return struct.pack("<Q", len(header)) + header + data[size:]


def _in_parquet(data, changes):
    """A changed footer with its right length."""
    place = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    footer = changed(data[place:-8], changes)
    return data[:place] + footer + struct.pack("<I", len(footer)) + b"PAR1"


@pytest.mark.parametrize(
    ("suffix", "inside"), [(".npz", _in_npz), (".safetensors", _in_safetensors), (".parquet", _in_parquet)]
)
def test_files_of_embeddings_and_features(tmp_path, suffix, inside):
    pytest.importorskip("pyarrow")
    path = tmp_path / f"case{suffix}"
    write_embeddings(path, _arrays())
    whole = path.read_bytes()

    def read(path):
        with contextlib.suppress(UserError):
            import_features("mine", {"train": path, "test": path}, tmp_path / "data", lambda *_: None)
        read_set(path)[0].digest()

    count = EXAMPLES // 10 if suffix == ".parquet" else EXAMPLES  # each is read in a process of its own
    fuzz(read, path, lambda changes: inside(whole, changes), CHANGES, examples=count)
    fuzz(read, path, lambda changes: changed(whole, changes), CHANGES, examples=count)


def test_settings_and_records(tmp_path):
    site = Site(results=str(tmp_path))
    method, recipe = site.methods.method("cosface"), site.recipe("ndigit")
    table = {"optim.lr": 0.01, "optim.milestones": [2, 5], "cosface": {"method.scale": 16}}

    def read(path):
        file = read_settings_file(str(path), ["cosface"])
        values = layer(optim=recipe.end_to_end.values())
        build(method, values | from_file(file.by_method["cosface"], file.path, method, values))

    fuzz(read, tmp_path / "case.json", lambda changes: changed(json.dumps(table).encode(), changes), CHANGES)
    fuzz(read, tmp_path / "case.json", lambda values: _edited(table, values), VALUES)
    toml = b'"optim.lr" = 0.01\n"optim.milestones" = [2, 5]\n[cosface]\n"method.scale" = 16\n'
    fuzz(read, tmp_path / "case.toml", lambda changes: changed(toml, changes), CHANGES)
    with tarfile.open(RECORDS) as archive:
        every = [json.load(archive.extractfile(each)) for each in archive if each.name.endswith(".json")]
    for kind, record in {each["kind"]: each for each in every if each.get("kind") in KINDS}.items():
        _fuzz_record(KINDS[kind], {key: value for key, value in record.items() if key != "checksum"}, tmp_path / "r")


def _fuzz_record(kind, record, path):
    def read(path):
        kind.from_json(path.read_bytes()).to_json()

    whole = _edited(record, [], sealed=True)
    path.write_bytes(whole)
    read(path)
    fuzz(read, path, lambda changes: changed(whole, changes), CHANGES)
    fuzz(read, path, lambda values: _edited(record, values, sealed=True), VALUES)


def _edited(value, values, sealed=False):
    """A JSON value with others at some places, as text; a record with its checksum on request."""
    for path, new in values:
        value = replaced(value, path, new)
    if sealed and isinstance(value, dict):
        with contextlib.suppress(ValueError):
            value = {**value, "checksum": content_id(value)}
    return json.dumps(value).encode()


def test_lists_of_releases(tmp_path):
    root = Releases(tmp_path).cub() / "CUB_200_2011"
    for name in ("images.txt", "image_class_labels.txt", "classes.txt"):
        whole = (root / name).read_bytes()

        def read(path):
            data = CUB200(path.parent, allow_partial=True)
            data.train_val(), data.test()

        fuzz(read, root / name, lambda changes, whole=whole: changed(whole, changes), CHANGES)
        (root / name).write_bytes(whole)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "BMP", "PPM", "WEBP", "ICO", "TGA", "EPS", "JPEG2000"])
def test_images(tmp_path, kind):
    buffer = io.BytesIO()
    Image.effect_noise((8, 6), 90).convert("RGB").save(buffer, kind)
    whole = buffer.getvalue()
    fuzz(decode, tmp_path / "case.png", lambda changes: changed(whole, changes, 0, 64), CHANGES)
    fuzz(decode, tmp_path / "case.jpg", lambda changes: changed(whole, changes), CHANGES)
    if kind == "PNG":
        fuzz(decode, tmp_path / "case.png", partial(_in_png, whole), CHANGES)


def _in_png(data, changes):
    """A changed header with its right checksum."""
    header = changed(data[16:29], changes)[:13].ljust(13)
    return data[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + data[33:]
