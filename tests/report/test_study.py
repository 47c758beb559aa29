"""Means of the package over class splits are those of the study's records."""

import json
import math
import tarfile
from pathlib import Path

import bench
import numpy as np
import pandas as pd
import pytest
from bench.report.splits import MEAN
from scipy import stats

RECORDS = Path(__file__).parents[2] / "results" / "study"
pytestmark = pytest.mark.slow


def _records(path):
    with tarfile.open(path) as archive:
        return [json.load(archive.extractfile(each)) for each in archive if each.name.endswith("record.json")]


@pytest.mark.parametrize("archive", ["grocery-squeezenet", "cub200-squeezenet"])
def test_means_over_class_splits_and_their_intervals_are_those_of_the_records(archive):
    path = RECORDS / f"{archive}.tar.xz"
    records = _records(path)
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
