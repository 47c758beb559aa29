"""bench.score in a notebook: files, summary, verdicts and the queries that fail."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import bench
import numpy as np
import pytest
from bench.cli import main


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    labels = np.repeat([f"c{i}" for i in range(8)], 5)
    centres = np.repeat(rng.normal(size=(8, 6)), 5, 0)
    noise = rng.uniform(0.2, 1.5, 40)
    embeddings = centres + noise[:, None] * rng.normal(size=(40, 6))
    return {"embeddings": embeddings, "labels": labels, "confidence": -noise}


@pytest.fixture
def file(arrays, tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays, ids=np.array([f"image {i}" for i in range(39, -1, -1)]))
    return tmp_path / "mine.npz"


def test_a_file_is_scored_as_its_arrays(arrays, file):
    with pytest.warns(UserWarning, match=r"mine.npz: labels are text: 8 classes are numbered") as said:
        of_file = bench.score(str(file))
    assert len(said) == 1
    with pytest.warns(UserWarning, match="^labels are text: 8 classes"):
        of_arrays = bench.score(**arrays)
    columns = ["metric", "confidence", "variant", "value"]
    values = {tuple(row[:3]): row[3] for row in of_file.table[columns].values.tolist() if row[1] != "random"}
    again = {tuple(row[:3]): row[3] for row in of_arrays.table[columns].values.tolist() if row[1] != "random"}
    assert values["map_at_r", "", ""] == again["map_at_r", "", ""]
    assert values.keys() == again.keys()


@pytest.mark.filterwarnings("ignore:.*labels are text")
def test_the_summary_is_what_the_command_prints(file, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["score", str(file)]) == 0
    printed = capsys.readouterr().out.rstrip()
    scores = bench.score(file)
    assert [line.split() for line in scores.summary().splitlines()] == [line.split() for line in printed.splitlines()]
    assert repr(scores) == scores.summary()
    assert scores._repr_html_().startswith("<pre>mine: 40 images")


@pytest.mark.filterwarnings("ignore:.*labels are text")
def test_queries_say_which_fail(arrays, file):
    x = arrays["embeddings"] / np.linalg.norm(arrays["embeddings"], axis=1, keepdims=True)
    scores = x @ x.T
    np.fill_diagonal(scores, -np.inf)
    right = arrays["labels"][scores.argmax(1)] == arrays["labels"]
    for given in (bench.score(**arrays), bench.score(file)):
        queries = given.queries
        assert queries["row"].tolist() == list(range(40))
        assert (queries["recall_at_1"] > 0.5).tolist() == right.tolist()
        assert queries["label"].tolist() == arrays["labels"].tolist()
        assert queries["confidence.given"].to_numpy() == pytest.approx(arrays["confidence"])
        assert queries["confidence.norm"].to_numpy() == pytest.approx(np.linalg.norm(arrays["embeddings"], axis=1))
        table = given.table
        map_at_r = table[(table["metric"] == "map_at_r") & (table["confidence"] == "")]["value"].iloc[0]
        assert queries["average_precision"].mean() == pytest.approx(map_at_r)
        assert {"confidence.margin", "confidence.top1_score"} <= set(queries.columns)
        assert not {"confidence.random", "confidence.r_precision", "confidence.recall_at_2"} & set(queries)
    assert "id" not in bench.score(**arrays).queries
    assert bench.score(file).queries["id"].tolist() == [f"image {i}" for i in range(39, -1, -1)]


def test_queries_are_those_that_were_asked_for(arrays):
    labels = np.repeat(np.arange(8), 5)
    is_query = np.arange(40) % 5 == 2
    found = bench.score(arrays["embeddings"], labels, is_query=is_query, scorers=["cosine", "l2"]).queries
    assert found["row"].tolist() == np.flatnonzero(is_query).tolist() * 2
    assert found["scorer"].tolist() == ["cosine"] * 8 + ["l2"] * 8
    assert found["label"].tolist() == list(range(8)) * 2
    assert bench.score(arrays["embeddings"], labels, metrics=["nmi"]).queries.empty


def test_verdicts_judge_every_confidence(arrays):
    labels = np.repeat(np.arange(8), 5)
    verdicts = bench.score(arrays["embeddings"], labels, confidence=arrays["confidence"]).verdicts
    assert {"given", "norm", "margin", "random", "oracle"} <= set(verdicts["confidence"])
    table = bench.score(arrays["embeddings"], labels, confidence=arrays["confidence"]).table
    auroc = table[(table["metric"] == "confidence_auroc") & (table["confidence"] == "given")]["value"].iloc[0]
    assert verdicts.set_index("confidence").loc["given", "confidence_auroc"] == auroc


def test_a_file_says_whether_to_normalise_and_arrays_replace_its_own(arrays, tmp_path):
    labels = np.repeat(np.arange(8), 5)
    np.savez(tmp_path / "raw.npz", embeddings=arrays["embeddings"], labels=labels, normalize=np.array(False))
    raw = bench.score(arrays["embeddings"], labels, scorers=["l2"], normalize=False).table["value"]
    unit = bench.score(arrays["embeddings"], labels, scorers=["l2"]).table["value"]
    assert bench.score(tmp_path / "raw.npz", scorers=["l2"]).table["value"].equals(raw)
    assert bench.score(tmp_path / "raw.npz", scorers=["l2"], normalize=True).table["value"].equals(unit)
    assert "given" in set(bench.score(tmp_path / "raw.npz", confidence=arrays["confidence"]).table["confidence"])


def test_rows_without_ids_in_one_file_are_matched_by_position(arrays, file, tmp_path, capsys):
    np.savez(tmp_path / "bare.npz", **arrays)
    assert main(["score", str(file), str(tmp_path / "bare.npz")]) == 0
    assert "bare.npz has no ids: the rows of the files are matched by position" in capsys.readouterr().err


def test_few_wrong_answers_are_said_to_tell_little():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 9)
    rows = rng.normal(size=(90, 10))
    few = bench.score(4 * np.eye(10)[labels] + rows, labels)
    wrong = int((few.queries["recall_at_1"] < 0.5).sum())
    assert 0 < wrong < 20
    assert f"{wrong} wrong answers; AUROC and AURC of so few say little." in few.summary()
    assert "say little" not in bench.score(np.eye(10)[labels] + rows, labels).summary()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: bench.score([[1.0]], [0], confidences=[1.0]), "did you mean 'confidence'?"),
        (lambda: bench.score([[1.0]], [0], [1.0]), "by name: confidence=.., variance=.."),
        (lambda: bench.load(runs="dul_cls"), "did you mean 'run'?"),
    ],
)
def test_a_wrong_argument_is_answered_with_the_right_one(call, said):
    with pytest.raises(TypeError, match=re.escape(said)):
        call()


FORKED = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import bench, numpy as np, torch

def value(_):
    torch.set_num_threads(max(2, torch.get_num_threads())) if _ is None else None
    x = np.random.default_rng(0).normal(size=(1500, 64)).astype("float32")
    scores = bench.score(x, np.arange(len(x)) % 30, confidence=abs(x[:, 0]), metrics=("map_at_r",))
    return torch.get_num_threads(), scores.table.to_csv()

threads, here = value(None)
pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))
assert list(pool.map(value, range(2))) == [(1, here)] * 2 and threads > 1
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_after_scoring_scores_too(tmp_path):
    """It waited without end for the threads of its parent."""
    process = subprocess.Popen([sys.executable, "-c", FORKED], cwd=tmp_path, start_new_session=True)
    try:
        assert process.wait(timeout=200) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
