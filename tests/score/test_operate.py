"""`bench score --operate`: what it says against loops, what its file does without bench, and what it refuses."""

import json
import re
from pathlib import Path

import bench as package
import numpy as np
import pytest
from bench.protocols.operate import document_of
from bench.scoring.embedding_set import EmbeddingSet
from bench.scoring.view import distribution_of, view_of

DOCS = Path(__file__).parents[2] / "docs" / "score.md"


def _world(classes=40, each=8, seed=0, spread=0.9, dim=8):
    rng = np.random.default_rng(seed)
    labels = np.arange(classes).repeat(each)
    noise = spread * rng.uniform(0.5, 1.5, (len(labels), 1)) * rng.normal(size=(len(labels), dim))
    return {"embeddings": rng.normal(size=(classes, dim))[labels] + noise, "labels": labels}


def _cosines(arrays):
    x = arrays["embeddings"] / np.linalg.norm(arrays["embeddings"], axis=1, keepdims=True)
    return x @ x.T


def _applied(made, scores, labels, folder, monkeypatch):
    """What the lines of the docs say of a query."""
    block = DOCS.read_text("utf-8").split("operate.json` (`--out DIR`")[1]
    code = "\n".join(re.findall(r"```python\n(.*?)```", block.split("\n## ")[0], re.S))
    (folder / "operate.json").write_text(json.dumps(made))
    monkeypatch.chdir(folder)
    names = {"scores": scores, "labels": labels}
    exec(code, names)
    return names


@pytest.fixture(scope="module")
def world():
    arrays = _world()
    set_up = arrays["labels"] % 2 == 0
    points = package.score(**arrays, set_up=set_up).operate(risk=0.2, far=0.05, coverage=0.7)
    return arrays, set_up, points


def test_what_is_reported_is_what_the_docs_lines_do_on_the_other_classes(world, tmp_path, monkeypatch):
    arrays, set_up, points = world
    cosines, labels = _cosines(arrays), arrays["labels"]
    accepted, right, chances, verdicts, mistaken = {}, [], [], set(), []
    for i in np.flatnonzero(~set_up):
        others = np.arange(len(labels)) != i
        names = _applied(points.document, cosines[i][others], labels[others], tmp_path, monkeypatch)
        answer, known = names["accept"]["answer", "risk", None], names["accept"]["known", "far", None]
        assert names["verdict"] == (("match" if answer else "not sure") if known else "unknown")
        verdicts.add(names["verdict"])
        for key, value in names["accept"].items():
            accepted.setdefault(key, []).append(value)
        right.append(labels[others][names["top"]] == labels[i])
        chances.append(names["probability"]["answer"])
        others = labels != labels[i]
        unknown = _applied(points.document, cosines[i][others], labels[others], tmp_path, monkeypatch)
        mistaken.append(unknown["accept"]["known", "far", None])
    assert verdicts == {"unknown", "match", "not sure"}
    right = np.array(right)
    for point in points.document["points"]:
        key = point["decision"], point["wish"], point["guarantee"]
        if point["decision"] == "answer" and point["threshold"] is not None:
            taken = np.array(accepted[key])
            assert point["coverage"] == pytest.approx(taken.mean(), abs=1e-9)
            assert point["risk"] == pytest.approx(1 - right[taken].mean(), abs=1e-9)
        if key == ("known", "far", None):
            assert point["far"] == pytest.approx(np.mean(mistaken), abs=1e-9)
            assert point["tar"] == pytest.approx(np.mean(accepted[key]), abs=1e-9)
    found = points.document["reliability"]["answer"]
    assert found["brier"] == pytest.approx(np.mean((np.array(chances) - right) ** 2), abs=1e-4)
    assert np.array(accepted["pair", "far", None]).shape == (set_up.size - set_up.sum(), set_up.size - 1)


def test_the_threshold_is_that_of_a_loop_over_the_classes_that_choose(world):
    arrays, set_up, points = world
    cosines, labels = _cosines(arrays), arrays["labels"]
    np.fill_diagonal(cosines, -np.inf)
    form = points.document["points"][2]["confidence"]
    top = cosines.argmax(1)
    right = labels[top] == labels
    rival = np.where(labels[None] == labels[top][:, None], -np.inf, cosines).max(1)
    near = np.argsort(-cosines, 1)[:, : points.document["nearest"]]
    best, tenth = cosines.max(1), np.sort(cosines, 1)[:, -10]
    values = {"top1_score": best, "margin": best - rival, "spread": best - tenth}
    values["agreement"] = (labels[near] == labels[top][:, None]).mean(1)
    confidence = sum(weight * values[name] for name, weight in form.items())
    kept = [t for t in confidence[set_up] if (~right)[set_up][confidence[set_up] >= t].mean() <= 0.2]
    plain = points.table.query("decision == 'answer' and wish == 'risk' and guarantee.isna()").iloc[0]
    below = max(confidence[set_up & (confidence < min(kept))])
    assert plain["threshold"] == pytest.approx((min(kept) + below) / 2, abs=1e-6)
    assert plain["risk_low"] <= plain["risk"] <= plain["risk_high"]
    assert plain["half_gallery_coverage"] > 0


def test_pairs_are_of_a_query_and_a_gallery_image():
    arrays, query = _world(classes=80, dim=32), np.arange(640) % 8 < 2
    arrays["embeddings"][query] += 1.5  # queries are like each other, not like the gallery
    made = package.score(**arrays, is_query=query, is_gallery=~query, set_up=arrays["labels"] % 2 == 0).operate(
        far=0.05
    )
    point, labels = made.document["points"][0], arrays["labels"]
    met = (query[:, None] & ~query) & (labels[:, None] != labels) & (labels[:, None] % 2 == 1) & (labels % 2 == 1)
    assert point["far_low"] <= (_cosines(arrays)[met] >= point["threshold"]).mean() <= point["far_high"]


def test_no_threshold_lies_on_tied_scores():
    arrays = _world(dim=24)
    arrays["embeddings"] = np.sign(arrays["embeddings"])  # their cosines are multiples of 1/12
    points = package.score(**arrays).operate(far=0.02).table.query("decision == 'pair'")
    assert points["threshold"].to_numpy() * 12 % 1 == pytest.approx(0.5)


def test_the_command_says_it_in_a_sentence_and_writes_file_pictures_and_page(bench, tmp_path):
    np.savez("mine.npz", **_world())
    code, out, err = bench("score", "mine.npz", "--wish", "risk=0.2,far=0.05", "--out", "made")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    said = r"Accept an answer if .* >= [-\d.]+: \d+ % of queries .* are answered, [\d.]+ % \[.*\] of these wrongly"
    assert re.search(said, text)
    assert "measured on 20 others" in text
    assert "on other images, classes or galleries it does not hold by itself: without half of the gallery's" in text
    made = json.loads((tmp_path / "made" / "operate.json").read_text())
    expected = [("pair", "far", 0.05), ("answer", "risk", 0.2), ("answer", "coverage", 0.8), ("known", "far", 0.05)]
    assert [(p["decision"], p["wish"], p["value"]) for p in made["points"][::2]] == expected
    page = (tmp_path / "made" / "scores.html").read_text()
    assert page.count("<svg") == 4
    assert "Accept an answer if" in page
    assert made == json.loads(bench("score", "mine.npz", "--wish", "risk=0.2,far=0.05", "--json")[1])["operate"]
    assert made == package.score("mine.npz").operate(risk=0.2, far=0.05).document
    assert "--out DIR writes them as operate.json" in bench("score", "mine.npz", "--operate")[1]
    np.savez("other.npz", **_world())
    assert "--operate is for one file" in bench("score", "mine.npz", "other.npz", "--operate")[2]


def test_the_order_of_the_rows_changes_nothing():
    arrays = _world(classes=12)
    order = np.random.default_rng(1).permutation(len(arrays["labels"]))
    shuffled = {name: values[order] for name, values in arrays.items()}
    assert package.score(**arrays).operate().document == package.score(**shuffled).operate().document


def test_queries_that_are_really_unknown_decide_in_place_of_simulated_ones():
    arrays = _world()
    odd = np.arange(320) % 2 == 1
    images = EmbeddingSet.of({**arrays, "is_query": ~odd, "is_gallery": odd & (arrays["labels"] % 4 > 0)}).in_order()
    view = view_of(images, distribution_of(images), ("cosine",))
    labels = view.labels.new_tensor(images.labels)  # those of the view are numbered anew
    assert (view.unknown == (labels[view.queries] % 4 == 0)).all()
    made = document_of(view, "cosine", {"far": 0.2}, labels < 20)
    point = next(p for p in made["points"] if p["decision"] == "known")
    values = {**view.confidences_of_queries(), **view.retrieval_confidences("cosine")}
    accepted = sum(weight * values[name] for name, weight in point["confidence"].items()) >= point["threshold"]
    known, reported = ~view.unknown, labels[view.queries] >= 20
    assert point["far"] == pytest.approx(accepted[~known & reported].double().mean().item())
    assert point["tar"] == pytest.approx(accepted[known & reported].double().mean().item())
    chosen = accepted[~known & ~reported]
    assert 0.1 < chosen.double().mean() <= 0.2  # of 20 or so, as many as may be


@pytest.mark.parametrize(
    ("change", "wish", "message"),
    [
        ({"labels": np.zeros(320, int)}, "", "labels are of one class only"),
        ({"is_query": np.arange(320) < 8, "is_gallery": np.arange(320) > 7}, "", "all 8 queries are of classes that"),
        ({"labels": np.arange(320) % 3}, "", "queries of 4 classes, half to choose, half to report: 3"),
        ({"set_up": np.arange(320) < 100}, "", "set_up: 1 classes are on both sides; a class chooses or is reported"),
        ({"set_up": np.ones(320, bool)}, "", "set_up: no query is left to report"),
        ({"set_up": np.arange(320)}, "", "set_up must be"),
        ({}, "far=1e-320", "wish far=1e-320 is no share"),
        ({}, "risk=0.1,risk=0.2", "risk is given twice"),
        ({}, "risk=0", "wish risk=0.0 is no share: give a number between 0 and 1, such as 0.05"),
        ({}, "far=nan", "wish far=nan is no share"),
        ({}, "risk", "--wish risk: write it as --wish risk=0.02,far=0.001,coverage=0.9"),
        ({}, "rsik=0.1", "unknown wish 'rsik'"),
    ],
)
def test_bad_input_is_one_line(change, wish, message, refused):
    np.savez("mine.npz", **{**_world(), **change})
    assert message in refused("score", "mine.npz", "--operate", *(["--wish", wish] if wish else []))


@pytest.mark.parametrize(
    ("arrays", "wishes", "decision", "reason"),
    [
        (_world(spread=0.01), {"risk": 0.05}, "answer", "no wrong case was seen, so all are accepted"),
        (_world(), {"far": 1e-4}, "pair", "needs 10,000 different pairs that choose, there are 160"),
        (_world(spread=9), {"risk": 0.02}, "answer", "no threshold grants it"),
        ({"embeddings": np.ones((320, 4)), "labels": np.arange(320) // 8}, {"risk": 0.05}, "answer", "constant"),
        ({"embeddings": np.eye(9), "labels": np.arange(9) % 8}, {"far": 0.1}, "pair", "a class with at least two"),
    ],
)
def test_what_data_cannot_carry_has_a_reason_in_its_row(arrays, wishes, decision, reason):
    points = package.score(**arrays).operate(**wishes)
    row = points.table.query("decision == @decision and guarantee.isna()").iloc[0]
    assert reason in row["reason"]
    assert np.isnan(row["threshold"]) == (reason != "no wrong case was seen, so all are accepted")
    assert reason in " ".join(repr(points).split())
    json.dumps(points.document, allow_nan=False)
