"""Rows of a record are read by their layout, and every bit of them counts."""

import contextlib
import json

import pytest
from bench.protocols.rows import row
from bench.seeds import content_id
from bench.store.records import DamagedRecord, TestRecord

from tests import records


def _test(seed, value=0.5):
    rows = [
        records.map_at_r(value, scorer="cosine", n_queries=3),
        records.map_at_r(None, scorer='a": b', variant="é\n [x]"),
        {"split": "test", **row("filter_out_map_at_r", 1e-05, confidence="norm", fraction=0.1)},
    ]
    return records.of_test(records.columns(seed=seed), rows, finished=1.0)


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
