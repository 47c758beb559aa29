"""Comparing files query by query and methods seed by seed."""

import json
import shutil

import numpy as np
import pytest
from bench.protocols.statistics.bootstrap import paired_bootstrap
from bench.scoring.files import write_embeddings
from bench.store.specs import Pinned

from tests import records


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
    (said,) = ((line["first"], line["other"], line["metric"], line["resampled"]) for line in found)
    assert said == ("a", "b", "map_at_r", by)
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
def test_files_of_other_images_are_refused(arrays, refused, tmp_path, change, message):
    arrays["ids"] = np.arange(41)
    write_embeddings(tmp_path / "a.npz", arrays)
    write_embeddings(tmp_path / "b.npz", arrays | {key: make(arrays) for key, make in change.items()})
    line = refused("score", "a.npz", "b.npz")
    assert line.startswith("bench: b.npz: ")
    assert message in line


def test_files_of_other_sizes_or_ignored_rows_are_refused(arrays, refused, tmp_path):
    write_embeddings(tmp_path / "a.npz", arrays)
    write_embeddings(tmp_path / "b.npz", {key: value[1:] for key, value in arrays.items()})
    assert "40 images against 41" in refused("score", "a.npz", "b.npz")
    for row in range(2):
        write_embeddings(tmp_path / f"without_{row}.npz", arrays | {"ignore": np.arange(41) == row})
    assert "ignore leaves other rows" in refused("score", "without_0.npz", "without_1.npz")


@pytest.mark.slow
def test_an_interval_of_few_units_is_not_called_one_of_95_percent(bench, tmp_path):
    """120 queries of 6 classes."""
    labels, rng = np.repeat(np.arange(6), 20), np.random.default_rng(0)
    for name in "ab":
        write_embeddings(tmp_path / f"{name}.npz", {"embeddings": rng.normal(size=(120, 4)), "labels": labels})
    queries = bench("score", "a.npz", "b.npz")[1]
    classes = bench("score", "a.npz", "b.npz", "--bootstrap", "classes")[1]
    assert "[95 %]" in queries
    assert "nominally" not in queries
    assert "[95 %]" not in classes
    assert "the interval, nominally of 95 %, covers less with so few" in classes.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("score", "a.npz", "a.npz"), "given twice"),
        (("score", "a.npz", "--out", "a.npz"), "is a file"),
        (("score", "a.npz", "--scorers", "mls"), "not defined for embeddings that are points"),
        (("score",), "Missing argument"),
        (("compare", "cosface"), "contains no results"),
        (("compare", "a.npz", "b.npz"), "`bench score a.npz b.npz` compares files"),
    ],
)
def test_a_wrong_command_gives_one_line(two, refused, arguments, message):
    assert message in refused(*arguments)


def test_the_command_compares_the_methods_of_a_results_folder(bench, refused, tmp_path):
    made = [
        records.of_test(records.columns(method=method, seed=seed), [records.map_at_r(value, scorer="cosine")])
        for method, seed, value in (("one", 0, 0.5), ("one", 1, 0.6), ("two", 0, 0.6), ("two", 1, 0.8))
    ]
    records.stored(tmp_path / "runs", made)
    code, out, err = bench("compare", "one,two", "--results", "runs")
    assert (code, err) == (0, "")
    assert "+15.0" in out
    found = json.loads(bench("compare", "--results", "runs", "--json")[1])
    assert [(line["first"], line["other"], line["metric"]) for line in found] == [("one", "two", "map_at_r")]
    assert found[0]["difference_mean"] == pytest.approx(0.15)
    assert "did you mean 'two'" in refused("compare", "one", "tow", "--results", "runs")
    on_split = records.of_test(records.columns(method="four", pinned=Pinned().on_split(1)), [])
    for folder, named in (("runs", ["one", "four"]), ("splits", [])):
        records.stored(tmp_path / folder, [on_split])
        said = "four: tested on class splits alone, which `bench report` compares"
        assert said in refused("compare", *named, "--results", folder)
    failed = next((tmp_path / "runs" / "reality_check").iterdir()) / "three" / "train-0123456789abcdef"
    failed.mkdir(parents=True)
    (failed / "error.txt").write_text("Traceback ..\nValueError: no luck\n")
    err = bench("compare", "one", "three", "--results", "runs")[2]
    assert "three has no finished test here: failed: ValueError: no luck" in err
    for unit in (tmp_path / "runs" / "reality_check").glob("*/two/*"):
        shutil.rmtree(unit)
    said = "has no two methods with a common seed on one data set (of one); `bench status` counts"
    assert said in refused("compare", "--results", "runs")
