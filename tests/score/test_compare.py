"""Comparing files query by query and methods seed by seed."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from bench.protocols.statistics.bootstrap import paired_bootstrap
from bench.scoring.files import write_embeddings
from bench.store.folder import Store
from bench.store.records import KEYS, ROW_KEYS, Columns, Role
from bench.store.specs import Pinned
from scipy import stats

from tests import records
from tests.report.shown import paired_methods


@pytest.fixture
def two(arrays, tmp_path):
    """Files of the same images: the second has noisier embeddings."""
    noise = np.random.default_rng(1).normal(size=arrays["embeddings"].shape)
    other = arrays | {"embeddings": (arrays["embeddings"] + noise).astype(np.float32)}
    write_embeddings(tmp_path / "a.npz", arrays)
    write_embeddings(tmp_path / "b.safetensors", other)
    return arrays, other


def _precisions(given):
    """MAP@R of every query by a loop, with the identity of each row."""
    x = given["embeddings"].astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = []
    for i, row in enumerate(x @ x.T):
        others = sorted((j for j in range(len(x)) if j != i), key=lambda j: -row[j])
        hits = np.array([given["labels"][j] == given["labels"][i] for j in others], dtype=float)
        r = int(hits.sum())
        found.append((hits[:r] * hits[:r].cumsum() / np.arange(1, r + 1)).mean() if r else np.nan)
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["queries", "classes"])
def test_differences_are_those_of_a_direct_bootstrap(two, bench, by):
    arrays, other = two
    code, out, _ = bench("score", "a.npz", "b.safetensors", "--metrics", "map_at_r", "--bootstrap", by, "--json")
    assert code == 0
    found = json.loads(out)["comparison"]
    assert [(line["first"], line["other"], line["metric"], line["resampled"]) for line in found] == [
        ("a", "b", "map_at_r", by)
    ]
    # In no particular order of rows: the direct computation has its own draws, so the ends agree up to their noise.
    first, second = _precisions(arrays), _precisions(other)
    counted = ~np.isnan(first)
    difference = (second - first)[counted]
    groups = arrays["labels"][counted] if by == "classes" else None
    interval = paired_bootstrap(second[counted, None], first[counted, None], groups, resamples=20000, seed=3)[0]
    assert found[0]["difference"] == pytest.approx(difference.mean())
    assert found[0]["ci95_low"] == pytest.approx(interval.ci_low, abs=0.01)
    assert found[0]["ci95_high"] == pytest.approx(interval.ci_high, abs=0.01)
    assert found[0]["units"] == (8 if by == "classes" else 40)


@pytest.mark.slow
def test_rows_are_matched_by_ids(two, bench, tmp_path):
    arrays, other = two
    ids = np.array([f"image {i}" for i in range(len(arrays["labels"]))])
    order = np.random.default_rng(2).permutation(len(ids))
    write_embeddings(tmp_path / "c.npz", arrays | {"ids": ids})
    write_embeddings(tmp_path / "d.npz", other | {"ids": ids})
    write_embeddings(tmp_path / "shuffled" / "d.npz", {k: v[order] for k, v in (other | {"ids": ids}).items()})
    straight = json.loads(bench("score", "c.npz", "d.npz", "--json")[1])
    shuffled = json.loads(bench("score", "c.npz", "shuffled/d.npz", "--json")[1])
    assert straight["comparison"] == shuffled["comparison"]
    assert straight["rows"] == shuffled["rows"]


def test_the_same_file_differs_by_nothing(two, bench, tmp_path):
    (tmp_path / "copy.npz").write_bytes((tmp_path / "a.npz").read_bytes())
    for line in json.loads(bench("score", "a.npz", "copy.npz", "--json")[1])["comparison"]:
        assert (line["difference"], line["ci95_low"], line["ci95_high"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": lambda a: a["labels"][::-1]}, "labels differ in"),
        ({"is_query": lambda a: a["labels"] > 2}, "is_query differ in 22 of 41 rows"),
        ({"ids": lambda a: np.arange(1, 42)}, "such as '0'; 40 are in both: keep the rows np.isin(ids, other['ids'])"),
    ],
)
def test_files_of_other_images_are_refused(arrays, bench, tmp_path, change, message):
    arrays["ids"] = np.arange(41)
    write_embeddings(tmp_path / "a.npz", arrays)
    write_embeddings(tmp_path / "b.npz", arrays | {key: make(arrays) for key, make in change.items()})
    code, out, err = bench("score", "a.npz", "b.npz")
    assert (code, out) == (2, "")
    assert err.startswith("bench: b.npz: ")
    assert message in err
    assert err.count("\n") == 1


def test_files_of_other_sizes_are_refused(arrays, bench, tmp_path):
    write_embeddings(tmp_path / "a.npz", arrays)
    write_embeddings(tmp_path / "b.npz", {key: value[1:] for key, value in arrays.items()})
    code, _, err = bench("score", "a.npz", "b.npz")
    assert code == 2
    assert "40 images against 41" in err


@pytest.mark.slow
def test_compare_prints_the_same_for_files(two, bench):
    assert bench("compare", "a.npz", "b.safetensors") == bench("score", "a.npz", "b.safetensors")
    assert "paired bootstrap over 40 queries" in bench("compare", "a.npz", "b.safetensors")[1]


@pytest.mark.slow
def test_an_interval_of_few_units_is_not_called_one_of_95_percent(bench, tmp_path):
    """120 queries of 6 classes."""
    labels, rng = np.repeat(np.arange(6), 20), np.random.default_rng(0)
    for name in "ab":
        write_embeddings(tmp_path / f"{name}.npz", {"embeddings": rng.normal(size=(120, 4)), "labels": labels})
    queries = bench("compare", "a.npz", "b.npz")[1]
    classes = bench("compare", "a.npz", "b.npz", "--bootstrap", "classes")[1]
    assert "[95 %]" in queries
    assert "nominally" not in queries
    assert "[95 %]" not in classes
    assert "the interval, nominally of 95 %, covers less with so few" in classes.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "a.npz"), "name another file"),
        (("score", "a.npz", "a.npz"), "given twice"),
        (("score", "a.npz", "--out", "a.npz"), "is a file"),
        (("score", "a.npz", "--scorers", "mls"), "not defined for embeddings that are points"),
        (("score", "a.npz", "--metrics", "recal"), "did you mean 'recall'"),
        (("score",), "Missing argument"),
        (("compare", "cosface"), "contains no results"),
    ],
)
def test_a_wrong_command_gives_one_line(two, bench, arguments, message):
    code, _, err = bench(*arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def _results(values):
    """A tidy table of MAP@R: {method: {seed: value}}."""
    settings = {
        "protocol": "p",
        "preset": "s",
        "dataset": "d",
        "fidelity": "corrected",
        "hparams": "default",
        "trials": 0,
    }
    settings |= {
        "base": "",
        "replicate": "seed",
        "pinned": Pinned(),
        "backbone": "convnet",
        "dim": 8,
        "ensemble": "",
        "split": "test",
        "scorer": "cosine",
    }
    settings |= {"confidence": "", "variant": "", "metric": "map_at_r", "fraction": np.nan}
    rows = [
        settings | {"method": method, "seed": seed, "value": value, "unit": f"{method}{seed}"}
        for method, by_seed in values.items()
        for seed, value in by_seed.items()
    ]
    roles = {"primary_scorer": "cosine", "default_confidence": "norm", "probabilistic": False, "trainings": 0}
    roles |= {"train": "", "base_train": ""}
    return pd.DataFrame(rows), pd.DataFrame([{"unit": row["unit"]} | roles for row in rows])


def test_methods_are_compared_by_the_seeds_they_share():
    values = {
        "one": {0: 0.50, 1: 0.55, 2: 0.60, 7: 0.0},
        "two": {0: 0.52, 1: 0.58, 2: 0.59},
        "three": {0: 0.4, 1: 0.4, 2: 0.4},
    }
    lines = paired_methods(*_results(values))
    assert list(zip(lines["first"], lines["other"])) == [("one", "three"), ("one", "two"), ("three", "two")]
    line = lines[lines["other"].eq("two") & lines["first"].eq("one")].iloc[0]
    test = stats.ttest_rel([0.52, 0.58, 0.59], [0.50, 0.55, 0.60]).confidence_interval(0.95)
    assert line["difference_mean"] == pytest.approx((0.02 + 0.03 - 0.01) / 3)
    assert (line["ci95_low"], line["ci95_high"]) == pytest.approx((test.low, test.high))
    assert line["seeds"] == 3
    named = paired_methods(*_results(values), names=("two", "one", "three"))
    assert list(zip(named["first"], named["other"])) == [("two", "one"), ("two", "three")]
    assert named["difference_mean"].iloc[0] == pytest.approx(-line["difference_mean"])


def test_the_command_compares_the_methods_of_a_results_folder(bench, tmp_path):
    store = Store(tmp_path / "runs")
    store.mark("reality_check", 1)
    frame, roles = _results({"one": {0: 0.5, 1: 0.6}, "two": {0: 0.6, 1: 0.8}})
    for row, role in zip(frame.to_dict("records"), roles.to_dict("records")):
        columns = Columns(**{key: row[key] for key in KEYS} | {"protocol": "reality_check"})
        item = {key: row[key] for key in (*ROW_KEYS, "value")} | {"fraction": None, "n_queries": 9, "n_lone": 0}
        role = Role(**{key: role[key] for key in Role.model_fields if key in role})
        store.write(records.of_test(columns, [item], role=role))
    code, out, err = bench("compare", "one,two", "--results", "runs")
    assert (code, err) == (0, "")
    assert "+15.0" in out
    found = json.loads(bench("compare", "--results", "runs", "--json")[1])
    assert [(line["first"], line["other"], line["metric"]) for line in found] == [("one", "two", "map_at_r")]
    assert found[0]["difference_mean"] == pytest.approx(0.15)
    code, _, err = bench("compare", "one", "tow", "--results", "runs")
    assert code == 2
    assert "did you mean 'two'" in err
    failed = next((tmp_path / "runs" / "reality_check").iterdir()) / "three" / "train-0123456789abcdef"
    failed.mkdir(parents=True)
    (failed / "error.txt").write_text("Traceback ..\nValueError: no luck\n")
    assert (
        "three has no finished test here: failed: ValueError: no luck"
        in bench("compare", "one", "three", "--results", "runs")[2]
    )
    for unit in (tmp_path / "runs" / "reality_check").glob("*/two/*"):
        shutil.rmtree(unit)
    code, _, err = bench("compare", "--results", "runs")
    assert code == 2
    assert "has no two methods with a common seed on one data set (of one); `bench status` counts" in err
