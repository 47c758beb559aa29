"""Rows are read by their layout, and what commands remember of records is believed only if it is whole and of now."""

import contextlib
import errno
import json
import os
import shutil

import pytest
from bench.protocols.rows import row
from bench.report.frame import collect
from bench.seeds import content_id
from bench.store import folder, remembered
from bench.store.check import damages
from bench.store.folder import Store
from bench.store.records import DamagedRecord, TestRecord

from tests import records


def _test(seed, value=0.5):
    rows = [
        records.map_at_r(value, scorer="cosine", n_queries=3),
        records.map_at_r(None, scorer='a": b', variant="é\n [x]"),
        {"split": "test", **row("filter_out_map_at_r", 1e-05, confidence="norm", fraction=0.1)},
    ]
    return records.of_test(records.columns(seed=seed), rows, finished=1.0)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(remembered, "MANY", 1)
    records.stored(tmp_path, map(_test, range(3)))
    return tmp_path


def _read(root):
    """Tests of a folder as a command reads them; what it remembers is kept."""
    store, found = Store(root, remember=True), []
    store.on_damage = found.append
    tests = list(store.tests())
    store.keep_in_mind()
    return tests, found


def _path(root, seed=0):
    record = _test(seed)
    return Store(root).unit_dir(record.cell, "test", record.unit) / "record.json"


# Rows by their layout


def test_values_of_all_kinds_come_back_and_tests_share_their_keys():
    values = [0.1, 1e-05, -0.0, 1e16, 5e-324, 1.5, None, -1e-07]
    for make in (
        lambda value: _test(0, value),
        lambda value: records.of_test(records.columns(), [records.map_at_r(value)]),
    ):
        read = [TestRecord.from_json(make(value).to_json()) for value in values]
        assert [json.dumps(each.rows[0]["value"]) for each in read] == [json.dumps(value) for value in values]
        assert [each.to_json() for each in read] == [make(value).to_json() for value in values]
        assert len({each.rows.layout for each in read}) == 1
        assert read[0] == make(0.1) != make(0.2)


@pytest.mark.parametrize("plain", [True, False])
def test_every_bit_of_a_record_with_rows_counts(plain):
    rows = [records.map_at_r(0.25), records.map_at_r(0.5, variant="v")]
    record = records.of_test(records.columns(), rows) if plain else _test(0, 0.25)
    data = record.to_json()
    for place in range(data.index(b'"rows"'), data.index(b'"schema"')):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        with contextlib.suppress(DamagedRecord):
            assert TestRecord.from_json(bytes(flipped)) == record


@pytest.mark.parametrize("edit", [
    lambda text: text.replace(b'"value": 0.5', b'"value": 0.5,\n   "value": 0.5'),
    lambda text: text.replace(b'"value": 0.5', b'"value": NaN'),
    lambda text: text.replace(b'"value": 0.5', b'"value": "x"'),
    lambda text: text.replace(b'"metric": "map_at_r",\n', b"", 1),
])  # fmt: skip
def test_rows_that_no_record_has_are_damage_even_with_a_checksum_of_theirs(edit):
    text = edit(records.of_test(records.columns(), [records.map_at_r(0.5)]).to_json())
    held = json.loads(text)
    checksum = held.pop("checksum")
    with contextlib.suppress(ValueError):  # NaN
        text = text.replace(checksum.encode(), content_id(held).encode())
    with pytest.raises(DamagedRecord):
        TestRecord.from_json(text)


# What is remembered


def test_what_was_read_is_not_read_again_and_is_the_same(root, monkeypatch):
    first, _ = _read(root)
    monkeypatch.setattr(Store, "text", lambda store, path: pytest.fail(f"{path} is read again"))
    again, found = _read(root)
    assert again == first == list(sorted(map(_test, range(3)), key=lambda each: each.unit))
    assert not found
    assert [each.to_json() for each in again] == [each.to_json() for each in first]


def test_a_record_that_was_written_anew_damaged_or_removed_is_what_it_is_now(root):
    _read(root)
    changed = _test(0, 0.75)
    Store(root).write(changed)
    path, gone = _path(root, 1), _path(root, 2)
    state = path.stat()
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6"))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # the time of change tells
    gone.unlink()
    for _ in range(2):
        tests, found = _read(root)
        assert tests == [changed]
        assert [each.path for each in found] == [path]


def test_a_check_believes_nothing(root, monkeypatch):
    monkeypatch.setattr(folder, "file_state", lambda path: (0, 0, 0, 0))  # as if the disk had changed a file by itself
    _read(root)
    path = _path(root)
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6"))
    assert len(_read(root)[0]) == 3
    assert [each.path for each in damages(root)] == [path]


@pytest.mark.parametrize("spoil", [
    lambda data: b"", lambda data: data[: len(data) // 2], lambda data: data + b"x", lambda data: b"\0" * len(data),
    lambda data: data.replace(b"map_at_r", b"map_at_s"),
])  # fmt: skip
def test_a_damaged_copy_is_passed_over_and_made_again(root, spoil):
    first, _ = _read(root)
    file = root / remembered.FILE
    whole = file.read_bytes()
    file.write_bytes(spoil(whole))
    assert _read(root)[0] == first
    assert file.read_bytes() == whole


def test_the_copy_of_another_version_is_passed_over(root, monkeypatch):
    assert len(_read(root)[0]) == 3
    monkeypatch.setattr(remembered, "VERSION", "another")
    assert remembered.Remembered(root)._old == {}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing_keeps_what_it_has(root, monkeypatch, code):
    def refused(descriptor):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refused)
        full.setattr("pathlib.Path.replace", lambda path, target: refused(0))
        assert len(_read(root)[0]) == 3
    assert not list(root.glob(".*records*"))
    assert len(_read(root)[0]) == 3


def test_a_folder_that_is_gone_is_not_made_again(root):
    store = Store(root, remember=True)
    assert len(list(store.tests())) == 3
    shutil.rmtree(root)
    store.keep_in_mind()
    assert not root.exists()


def test_of_two_writers_at_once_either_leaves_a_whole_copy_and_tables_are_the_same(root):
    stores = [Store(root, remember=True) for _ in range(2)]
    frames = [collect(store).frame for store in stores]
    for store in stores:
        store.keep_in_mind()
    frames.append(collect(Store(root, remember=True)).frame)
    assert frames[0].equals(frames[1])
    assert frames[0].equals(frames[2])
