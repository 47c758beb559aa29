"""Table ``splits``: the split is the unit, splits pair up, and no table of methods has them."""

import json
import math
import tarfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import bench
import numpy as np
import pandas as pd
import pytest
from bench.protocols.statistics.paired import summarise_splits
from bench.report.frame import collect
from bench.report.splits import MEAN, split_comparisons
from bench.report.studies import study_document
from bench.report.terminal import print_tables
from bench.report.views import split_document
from bench.report.write import Judged, write_report
from bench.store.check import damages
from bench.store.files import write_archive
from bench.store.folder import Store
from bench.store.records import TestRecord
from bench.store.specs import Pinned
from scipy import stats

from tests import records
from tests.engine.test_sharing import Fake, _drive
from tests.report.shown import markdown, printed

RATIO = 4 / 3


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Three splits of a plain method and a head, two seeds each; 4 made up test classes and 3 training classes."""
    asked = {"methods": ("cosface", "pfe"), "hparams": "default", "seeds": 2, "set": ("data.class_splits=3",)}
    _drive(tmp_path, [Fake()], monkeypatch, **asked)
    return Store(tmp_path)


def _values(store, method):
    """Recorded value by number of the split and seed."""
    return {
        (record.columns.pinned.class_seed, record.columns.seed): record.rows[0]["value"]
        for record in store.tests()
        if record.columns.method == method
    }


def test_studies_of_class_splits_have_their_number(tmp_path, monkeypatch):
    asked = {"methods": ("cosface",), "hparams": "tuned", "trials": 2, "seeds": 1, "set": ("data.class_splits=2",)}
    _drive(tmp_path, [Fake()], monkeypatch, **asked)
    found = study_document(Judged(Store(tmp_path), collect(Store(tmp_path))).studies)
    assert found.numbers["class_split"].to_list() == [0, 1, 2]
    assert [[cell.text for cell in row.cells[:3]] for row in found.tables[0].rows] == [
        ["cosface", "0", "-"], ["cosface", "0", "1"], ["cosface", "0", "2"],
    ]  # fmt: skip


def test_the_unit_is_the_split_and_the_own_one_is_not_among_them(store):
    values = _values(store, "cosface")
    means = [fmean(values[number, seed] for seed in (0, 1)) for number in (1, 2, 3)]
    found = split_comparisons(store, collect(store))
    one = next(each for each in found if each.contender.method == "cosface" and not each.against)
    assert (one.contender.pinned, one.column.metric, one.about["seeds"]) == (Pinned(), "map_at_r", 2)
    assert [*one.values.values()] == pytest.approx(means)
    expected = summarise_splits([*one.values.values()], RATIO)
    assert (one.mean, one.low, one.high) == (expected.mean, expected.ci_low, expected.ci_high)
    numbers = split_document(found).numbers
    assert [set(numbers[name]) for name in ("splits", "metric", "test_over_train")] == [{3}, {"map_at_r"}, {RATIO}]


def test_differences_are_over_the_seeds_and_splits_of_both(store):
    head, plain = _values(store, "pfe"), _values(store, "cosface")
    gone = next(r for r in store.tests() if r.columns.method == "pfe" and r.columns.pinned.class_seed == 2)
    results = collect(store)
    kept = tuple(r for r in results.splits if r.unit != gone.unit)
    kept = tuple(r for r in kept if (r.columns.method, r.columns.pinned.class_seed) != ("cosface", 3))
    found = split_comparisons(store, replace(results, splits=kept))
    difference = next(each for each in found if each.question == "plain" and each.column.metric == "map_at_r")
    left = {0, 1} - {gone.columns.seed}
    expected = {1: fmean(head[1, s] - plain[1, s] for s in (0, 1)), 2: fmean(head[2, s] - plain[2, s] for s in left)}
    found = {number: difference.values[number] - difference.others[number] for number in difference.values}
    assert found == pytest.approx(expected)


def test_splits_that_do_not_pair_are_said_to(store):
    results = collect(store)
    columns = ((r, r.columns) for r in results.splits)
    kept = tuple(r for r, of in columns if (of.method == "cosface") == (of.pinned.class_seed == 1))
    found = split_comparisons(store, replace(results, splits=kept))
    assert {each.why for each in found if each.question == "plain"} == {"no common class split"}
    assert "no split and seed in common with cosface" in set(split_document(found).numbers["reason"])
    assert "no common class split" in markdown(split_document(found))
    assert all(math.isnan(each.mean) for each in found if each.reason)


def test_a_terminal_says_once_what_all_rows_share(store):
    table = printed(print_tables, Judged(store, collect(store))).partition("over class splits")[2]
    assert table.count("convnet") == 1


@pytest.mark.slow
def test_no_table_of_methods_has_splits_and_the_comparison_counts_them(store, tmp_path):
    judged = Judged(store, collect(store))
    assert len(judged.results.tests) == 4
    assert len(judged.results.splits) == 12
    assert {group.contender.pinned for group in judged.groups} == {Pinned()}
    assert set(judged.results.frame["pinned"]) == {Pinned()}
    written = write_report(judged, tmp_path / "report", lambda text: None)
    assert {path.suffix for path in written if path.stem == "splits"} == {".csv", ".md", ".tex"}
    assert r"Class splits left out: 3, in table \`splits\`." in (tmp_path / "report" / "comparison.md").read_text()


@pytest.mark.slow
def test_without_the_numbers_of_classes_there_is_no_interval(store):
    results = collect(store)
    older = tuple(record.model_copy(update={"test_classes": None}) for record in results.splits)
    found = split_comparisons(store, replace(results, splits=older))
    assert math.isnan(found[0].low)
    assert found[0].mean == found[0].mean
    assert "Without the numbers of classes there is no interval" in markdown(split_document(found))


@pytest.mark.slow
def test_an_archive_of_brief_records_gives_the_same_table(store, tmp_path):
    (store.root / "experiments").mkdir(exist_ok=True)
    (store.root / "experiments" / "0123abcd.toml").write_text("")
    texts = store.texts()
    for record in store.tests():
        place = (store.unit_dir(record.cell, "test", record.unit) / "record.json").relative_to(store.root).as_posix()
        extra = record.rows[0] | {"metric": "r_precision"}
        brief = record.model_copy(update={"rows": (*record.rows, extra)}).brief(lambda row: row["metric"] == "map_at_r")
        assert brief.rows == record.rows
        assert brief.brief_of not in ("", json.loads(texts[place])["checksum"])  # of the record with both values
        assert TestRecord.from_json(brief.to_json()) == brief
        texts[place] = brief.to_json()
    kept = tmp_path / "brief.tar.xz"
    write_archive(kept, texts)
    assert Store(kept).texts() == texts
    assert damages(kept) == []
    found, wanted = (split_document(split_comparisons(each, collect(each))).numbers for each in (Store(kept), store))
    assert found.equals(wanted)
    assert not found.empty


@pytest.mark.slow
def test_a_rescoring_of_a_test_on_a_class_split_counts(store):
    """As ``bench rescore`` makes it, of every test that a table has."""
    results = collect(store)
    test = next(r for r in results.splits if r.columns.method == "pfe" and r.columns.pinned.class_seed == 2)
    place = next(row for row in test.rows if row["metric"] == "map_at_r")
    store.write(records.rescored(test, {**place, "value": place["value"] + 0.2}))

    def means(of):
        found = split_comparisons(store, of)
        return next(each.values for each in found if each.contender.method == "pfe" and not each.against)

    before, after = means(results), means(collect(store))
    assert after[2] == pytest.approx(before[2] + 0.1)  # one of two seeds
    assert {k: v for k, v in after.items() if k != 2} == {k: v for k, v in before.items() if k != 2}
    assert len(collect(store).frame) == len(results.frame)


RECORDS = Path(__file__).parents[2] / "results" / "study"


@pytest.mark.slow
@pytest.mark.parametrize("archive", ["grocery-squeezenet", "cub200-squeezenet"])
def test_means_over_class_splits_and_their_intervals_are_those_of_the_records(archive):
    path = RECORDS / f"{archive}.tar.xz"
    with tarfile.open(path) as kept:
        records = [json.load(kept.extractfile(each)) for each in kept if each.name.endswith("record.json")]
    trained = {record["unit"]: record["num_classes"] for record in records if record["kind"] == "train"}
    tests = {}  # the latest of each setting
    for record in sorted((each for each in records if each["kind"] == "test"), key=lambda each: each["finished"]):
        columns = record["columns"]
        place = columns["method"], columns["pinned"]["settings"].get("data.class_seed", 0), columns["seed"]
        tests[place] = record
    rows = [
        {"method": method, "split": split, "metric": row["metric"], "value": row["value"]}
        for (method, split, _), record in tests.items()
        for row in record["rows"]
        if split and row["split"] == "test" and row["scorer"] == record["role"]["primary_scorer"]
        if row["metric"] in ("map_at_r", "recall_at_1") and not (row["confidence"] or row["variant"])
    ]
    ratio = next(each["test_classes"] / trained[each["spec"]["train"][0]] for each in tests.values())
    found = {
        (each.contender.method, each.column.metric): (each.mean, each.low, each.high)
        for each in bench.results(path)._judged.splits
        if each.question == MEAN
    }
    by_split = pd.DataFrame(rows).groupby(["method", "metric", "split"])["value"].mean()
    for place, values in by_split.groupby(["method", "metric"]):
        half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) * math.sqrt(1 / len(values) + ratio)
        assert found.pop(place) == pytest.approx((values.mean(), values.mean() - half, values.mean() + half), abs=1e-12)
    assert not found
