"""bench.results: the records of a folder as data frames, equal to the files of `bench report`."""

import io
import shutil
import subprocess
import sys

import bench
import numpy as np
import pandas as pd
import pytest
from bench.report.render import to_csv

pytestmark = pytest.mark.slow  # they share a run


@pytest.fixture(scope="module")
def found(runs):
    return bench.results(runs)


def test_metrics_and_verdicts_are_the_files_of_the_report(runs, found):
    assert to_csv(found.metrics) == (runs / "metrics.csv").read_text()
    written = pd.read_csv(runs / "report" / "verdicts.csv")
    counted = pd.read_csv(io.StringIO(to_csv(found.verdicts)))
    pd.testing.assert_frame_equal(counted, written[written["chosen"]].reset_index(drop=True), check_dtype=False)
    assert all(isinstance(value, str) for value in found.metrics["pinned"])
    assert to_csv(found.systems) == (runs / "report" / "systems.csv").read_text()
    assert to_csv(found.comparison) == (runs / "report" / "comparison.csv").read_text()


def test_history_has_every_epoch_of_every_training(runs, found):
    trainings = list(runs.glob("*/*/*/train-*/record.json"))
    assert len(found.history) == len(trainings) > 5
    assert set(found.history["unit"]) == {path.parent.name.removeprefix("train-") for path in trainings}
    assert set(found.history["method"]) == {"dul_cls", "cosface", "pfe", "untrained"}
    assert found.history["val_map_at_r"].between(0, 1).all()
    assert found.trials.empty


def test_queries_have_the_values_that_the_metrics_are_means_of(found):
    queries = found.queries
    for (unit, split, scorer), of_test in queries.groupby(["unit", "split", "scorer"]):
        rows = found.metrics[(found.metrics["unit"] == unit) & (found.metrics["split"] == split)]
        rows = rows[(rows["scorer"] == scorer) & (rows["confidence"] == "") & rows["fraction"].isna()]
        values = dict(zip(rows["metric"], rows["value"]))
        assert of_test["recall_at_1"].mean() == pytest.approx(values["recall_at_1"])
        assert of_test["average_precision"].mean() == pytest.approx(values["map_at_r"])
    assert set(queries["split"]) == {"test", "test_crop"}
    assert set(queries["method"]) == {"dul_cls", "cosface", "pfe", "deep_ensemble", "untrained"}
    clean = queries[queries["split"] == "test"]
    labels = dict(zip(clean["id"], clean["label"]))
    right = clean["answer"].map(labels) == clean["label"]
    assert np.array_equal(right, clean["recall_at_1"] > 0.5)
    assert {f"confidence.{name}" for name in ("method", "norm", "max_cosine", "margin")} <= set(queries.columns)
    assert "confidence.random" not in queries.columns
    assert queries[queries["method"] == "dul_cls"]["confidence.method"].notna().all()


def test_a_notebook_shows_counts_and_verdicts(found):
    shown = found._repr_html_()
    assert shown.count("<table") >= 3
    assert "before the gallery, clean images: AUROC" in shown
    assert "deep_ensemble" in shown
    assert "download" not in shown
    assert "10 tests" not in repr(found)
    assert "9 tests of 5 methods on dots" in repr(found)


def test_published_numbers_do_not_hide_the_function():
    code = (
        "import bench; first = bench.results; import bench.published; from bench.planning import published;"
        "import bench.api.results; assert bench.results is first and callable(first), bench.results"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_a_damaged_record_is_left_out_with_a_warning(runs, found, tmp_path):
    copy = shutil.copytree(runs, tmp_path / "runs")
    damaged = next(copy.glob("**/test-*/record.json"))
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.warns(UserWarning, match=f"left out: .*{damaged.parent.name}/record.json"):
        assert 0 < len(bench.results(copy).metrics) < len(found.metrics)


def test_results_are_read_when_they_are_asked_for(runs, monkeypatch):
    monkeypatch.setattr("bench.api.results.collect", lambda *stores: 1 / 0)
    found = bench.results(runs)
    assert isinstance(found.history, pd.DataFrame)
    with pytest.raises(ZeroDivisionError):
        _ = found.metrics
