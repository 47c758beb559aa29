"""The tidy table has the latest result of every setting, and reads each record once."""

import json

import pandas as pd
import pytest
from bench.errors import UserError
from bench.report.contender import CONTENDER_KEYS
from bench.report.frame import as_texts, collect, plain_rows, write_metrics
from bench.store.records import COLUMNS, KEYS

from tests import records


def _record(unit, seed, finished, value, images="t"):
    rows = [records.map_at_r(value, scorer="cosine")]
    made = {"manifests": {"test": images}, "finished": finished, "role": records.role(trainings=3)}
    return records.of_test(records.columns(dim=2, seed=seed), rows, **made).model_copy(update={"unit": unit})


@pytest.fixture
def store():
    return records.Folder(_record("a", 1, 5.0, 0.1), _record("b", 0, 1.0, None), _record("c", 1, 9.0, 0.3))


def test_texts_are_categories_inside_and_texts_for_users(store):
    frame = collect(store).frame
    texts = as_texts(frame)
    assert isinstance(frame["unit"].dtype, pd.CategoricalDtype)
    assert not [kind for kind in texts.dtypes if isinstance(kind, pd.CategoricalDtype)]
    assert texts.map(str).values.tolist() == frame.map(str).values.tolist()


def test_roles_join_the_rows_of_their_units(store):
    results = collect(store)
    roles = pd.DataFrame([{"unit": each.unit, **dict(each.role)} for each in results.tests])
    expected = as_texts(results.frame).merge(roles, on="unit")
    assert as_texts(results.rows()).map(str).values.tolist() == expected.map(str).values.tolist()
    assert list(results.rows().columns) == list(expected.columns)


def test_of_two_results_of_a_setting_the_later_one_counts(store):
    results, copy = collect(store), records.Folder(*store.records)
    assert results.superseded == collect(copy, copy).superseded == 1
    assert [record.unit for record in results.tests] == ["c", "b"]
    assert results.frame["unit"].tolist() == ["b", "c"]
    assert tuple(results.frame.columns) == COLUMNS
    assert results.rows()["trainings"].tolist() == [3, 3]
    assert store.reads == 1


def test_two_data_sets_with_one_name_are_refused():
    other = _record("b", 0, 2.0, 0.2, images="others")
    with pytest.raises(UserError, match=r"two data sets are called d: .* m \(seed 1\) and m \(seed 0\) differ"):
        collect(records.Folder(_record("a", 1, 1.0, 0.1), other))
    # What does not count any more is no conflict.
    assert len(collect(records.Folder(_record("a", 0, 1.0, 0.1), other)).tests) == 1


def test_a_rescoring_of_other_arrays_does_not_count():
    """Another machine's test has the same id; models side by side have the arrays of those one by one."""
    name, tests = "embeddings.safetensors", [records.of_test(records.columns(ensemble="concatenated"))]
    tests.append(records.of_test(records.columns(ensemble="separated"), files={name: "ours"}))
    store = records.Folder(*tests)
    store.rescorings = lambda: [records.rescored(test, **{name: of}) for test in tests for of in ("ours", "theirs")]
    assert [each.spec.arrays[name] for each in collect(store).rescorings] == ["ours", "ours"]


def test_an_infinite_value_is_named():
    with pytest.raises(UserError, match="m on d, seed 1: map_at_r is infinite"):
        collect(records.Folder(_record("a", 1, 5.0, float("inf"))))


def test_an_empty_folder_gives_empty_tables_and_no_file(tmp_path):
    results = collect(records.Folder())
    assert results.frame.empty
    assert tuple(results.frame.columns) == COLUMNS
    assert write_metrics(results, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_metrics_csv_is_the_tidy_table(store, tmp_path):
    path = write_metrics(collect(store), tmp_path)
    head, first, _ = path.read_text().splitlines()
    assert path == tmp_path / "metrics.csv"
    assert head == ",".join(COLUMNS)
    assert first.endswith(",map_at_r,,,0,0,b")


def test_rows_for_json_have_null_for_what_does_not_exist(store):
    rows = plain_rows(collect(store).frame)
    assert rows[0]["value"] is None
    assert rows[1]["value"] == 0.3
    assert json.loads(json.dumps(rows)) == rows


def test_a_contender_is_what_its_seeds_share():
    assert tuple(key for key in KEYS if key != "seed") == CONTENDER_KEYS
