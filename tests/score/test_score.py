"""bench.score: values against loops and against the protocols, whatever the order of the rows."""

import doctest
import importlib
import subprocess
import sys

import bench
import numpy as np
import pytest
import torch
from bench.cli import main
from bench.methods.distributions import DiagonalNormal, IsotropicNormal, VonMisesFisher
from bench.methods.scorers import DistributionScorer
from bench.protocols.quality import spearman
from bench.protocols.retrieval import map_at_k
from bench.protocols.rows import RETRIEVAL_CONFIDENCES, kind_of
from bench.protocols.structure import structure_rows
from bench.store.records import COLUMNS
from scipy import stats
from sklearn.metrics import roc_auc_score

from tests.protocols.views import view_of
from tests.retrieval_rows import retrieval_rows

KEYS = [name for name in COLUMNS if name != "value"]


def _value(frame, metric, scorer="cosine", confidence="", variant="", fraction=None):
    rows = frame[(frame["metric"] == metric) & (frame["scorer"] == scorer) & (frame["confidence"] == confidence)]
    rows = rows[rows["variant"] == variant]
    rows = rows[rows["fraction"].isna()] if fraction is None else rows[np.isclose(rows["fraction"], fraction)]
    assert len(rows) == 1
    return rows["value"].iloc[0]


def _similarities(embeddings):
    x = embeddings.astype(np.float64)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


def _loop(similarities, labels, queries=None, gallery=None):
    """Recall@1, Recall@4, MAP@R and R-precision of every query with a positive, by a loop over sorted lists."""
    found = {}
    for i in range(len(labels)) if queries is None else queries:
        others = [j for j in (range(len(labels)) if gallery is None else gallery) if j != i]
        others.sort(key=lambda j: -similarities[i, j])
        hits = [labels[j] == labels[i] for j in others]
        r = sum(hits)
        if r:
            precisions = [sum(hits[: k + 1]) / (k + 1) * hits[k] for k in range(r)]
            found[i] = (float(hits[0]), float(any(hits[:4])), sum(precisions) / r, sum(hits[:r]) / r)
    return found


def test_retrieval_is_what_a_loop_finds(arrays):
    frame = bench.score(arrays["embeddings"], arrays["labels"], metrics=["recall", "map_at_r", "r_precision"]).table
    expected = np.mean(list(_loop(_similarities(arrays["embeddings"]), arrays["labels"]).values()), axis=0)
    names = ("recall_at_1", "recall_at_4", "map_at_r", "r_precision")
    assert [_value(frame, name) for name in names] == pytest.approx(expected)
    assert set(frame["n_lone"]) == {1}
    assert set(frame["n_queries"]) == {len(arrays["labels"]) - 1}
    recalls = {f"recall_at_{k}" for k in (1, 2, 4, 8)}
    assert set(frame[frame["confidence"] == ""]["metric"]) == recalls | {"map_at_r", "r_precision"}


def test_queries_and_gallery_are_kept_apart(arrays):
    is_query = np.arange(len(arrays["labels"])) % 3 == 0
    frame = bench.score(arrays["embeddings"], arrays["labels"], is_query=is_query, is_gallery=~is_query).table
    roles = np.flatnonzero(is_query), np.flatnonzero(~is_query)
    found = _loop(_similarities(arrays["embeddings"]), arrays["labels"], *roles)
    assert _value(frame, "map_at_r") == pytest.approx(np.mean([values[2] for values in found.values()]))
    assert frame["n_queries"].iloc[0] == len(found)


def test_filter_out_and_risk_are_what_a_loop_finds(arrays):
    frame = bench.score(arrays["embeddings"], arrays["labels"], confidence=arrays["confidence"]).table
    labels, confidence = arrays["labels"], arrays["confidence"]
    similarities = _similarities(arrays["embeddings"])
    found = _loop(similarities, labels)
    order = np.argsort(-confidence)
    norms = np.linalg.norm(arrays["embeddings"].astype(np.float64), axis=1)
    for name, ranked in (("given", order), ("norm", np.argsort(-norms))):
        kept = ranked[: round(0.6 * len(labels))]
        by_query = np.mean([found[i][2] for i in ranked if i in found][: round(0.6 * len(found))])
        both = _loop(similarities, labels, sorted(kept), sorted(kept))
        filtered = _value(frame, "filter_out_map_at_r", confidence=name, variant="query_only", fraction=0.4)
        assert filtered == pytest.approx(by_query)
        filtered = _value(frame, "filter_out_map_at_r", confidence=name, variant="query_and_gallery", fraction=0.4)
        assert filtered == pytest.approx(np.mean([values[2] for values in both.values()]))
        risks = [1 - found[i][0] for i in ranked if i in found]
        running = [sum(risks[: n + 1]) / (n + 1) for n in range(len(risks))]
        assert _value(frame, "aurc", confidence=name, variant="recall_at_1") == pytest.approx(np.mean(running))
        counted = [i for i in ranked if i in found]
        scores = (confidence if name == "given" else norms)[counted]
        expected = roc_auc_score([found[i][0] for i in counted], scores)
        assert _value(frame, "confidence_auroc", confidence=name) == pytest.approx(expected)
    assert _value(frame, "e_aurc", confidence="oracle", variant="map_at_r") == pytest.approx(0)
    of_images = {name for name in frame["confidence"] if kind_of(name) in ("image", "control")}
    assert of_images == {"", "given", "norm", "random", "oracle"}


def test_free_confidences_are_judged_without_any_being_given(arrays):
    x, labels = arrays["embeddings"], arrays["labels"]
    frame = bench.score(x, labels, scorers=["cosine", "l2"]).table
    judged = frame[frame["metric"] == "confidence_auroc"]
    known = [name for name in RETRIEVAL_CONFIDENCES if name not in ("posterior", "view_agreement")]
    assert judged["confidence"].tolist() == 2 * ["norm", "random", "oracle", *known, "norm+margin"]
    assert not frame["metric"].str.startswith("filter_out").any()
    similarities = _similarities(x)
    np.fill_diagonal(similarities, -np.inf)
    found = {name: [] for name in known if name != "consistency"}  # random halves: tested elsewhere
    k = int(np.clip(np.quantile(np.bincount(labels), 0.5, method="lower") - 1, 1, 10))
    counted = [i for i in range(len(labels)) if (labels == labels[i]).sum() > 1]
    for i in counted:
        order = np.argsort(-similarities[i])
        scores, classes = similarities[i][order], labels[order]
        found["top1_score"].append(scores[0])
        found["margin"].append(scores[0] - scores[classes != classes[0]][0])
        found["agreement"].append((classes[:k] == classes[0]).mean())
        found["spread"].append(scores[0] - scores[9])
    right = [labels[np.argsort(-similarities[i])[0]] == labels[i] for i in counted]
    for name, values in found.items():
        expected = roc_auc_score(right, values)
        assert _value(frame, "confidence_auroc", confidence=name) == pytest.approx(expected), name
    both = stats.rankdata(np.linalg.norm(x.astype(float), axis=1)[counted]) + stats.rankdata(found["margin"])
    combined = _value(frame, "confidence_auroc", confidence="norm+margin")
    assert combined == pytest.approx(roc_auc_score(right, both), abs=0.02)  # the ranks are among all queries


def test_quality_is_correlated_with_every_confidence(arrays):
    frame = bench.score(**arrays).table
    for metric, correlation in (("spearman_crop", stats.spearmanr), ("kendall_crop", stats.kendalltau)):
        expected = correlation(arrays["confidence"], arrays["quality"]).statistic
        assert _value(frame, metric, scorer="", confidence="given", variant="quality") == pytest.approx(expected)
    norm = torch.from_numpy(np.linalg.norm(arrays["embeddings"].astype(np.float64), axis=1))
    expected = spearman(norm, torch.from_numpy(arrays["quality"]))
    assert _value(frame, "spearman_crop", scorer="", confidence="norm", variant="quality") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("spread", "scorer"), [("isotropic", "mls"), ("diagonal", "expected_cosine"), ("concentration", "mls")]
)
def test_probabilistic_scores_are_those_of_the_distribution(arrays, spread, scorer):
    rng = np.random.default_rng(3)
    x = torch.from_numpy(arrays["embeddings"].astype(np.float64))
    unit = torch.nn.functional.normalize(x, dim=-1)
    shape = (len(x), 6) if spread == "diagonal" else (len(x),)
    values = rng.uniform(0.05, 0.5, shape) if spread != "concentration" else rng.uniform(1.0, 40.0, shape)
    made = {"isotropic": IsotropicNormal, "diagonal": DiagonalNormal, "concentration": VonMisesFisher}[spread]
    key = "concentration" if spread == "concentration" else "variance"
    frame = bench.score(x, arrays["labels"], **{key: values}, scorers=["cosine", scorer], metrics=["all"]).table
    distribution = made(unit, torch.from_numpy(values))
    labels = torch.from_numpy(arrays["labels"])
    for row in retrieval_rows(DistributionScorer(scorer, distribution), labels):
        assert _value(frame, row["metric"], scorer=scorer) == pytest.approx(row["value"])
    for row in map_at_k(view_of(labels, DistributionScorer(scorer, distribution)), "cosine"):
        assert _value(frame, row["metric"], scorer=scorer, variant=row["variant"]) == pytest.approx(row["value"])
    for row in structure_rows(unit, labels):
        assert _value(frame, row["metric"], variant=row["variant"]) == pytest.approx(row["value"])
    certainty = np.log(values) if spread == "concentration" else -np.log(values.reshape(len(x), -1)).mean(1)
    found = _loop(_similarities(arrays["embeddings"]), arrays["labels"])
    surest = [i for i in np.argsort(-certainty) if i in found][: round(0.5 * len(found))]
    kept = _value(frame, "filter_out_recall_at_1", confidence="method", variant="query_only", fraction=0.5)
    assert kept == pytest.approx(np.mean([found[i][0] for i in surest]))


def test_nothing_depends_on_the_order_of_the_rows(arrays):
    """To the last bit, with rows that are equal, too."""
    arrays["embeddings"][[3, 20, 30]] = arrays["embeddings"][0]
    arrays["embeddings"][4] = arrays["embeddings"][5]
    arrays["confidence"] = arrays["confidence"].round(1)
    frame = bench.score(**arrays, metrics=["all"]).table
    order = np.random.default_rng(0).permutation(len(arrays["labels"]))
    shuffled = bench.score(**{key: value[order] for key, value in arrays.items()}, metrics=["all"]).table
    assert frame.equals(shuffled)


def test_numbers_of_classes_and_kinds_of_arrays_do_not_matter(arrays):
    """To the last bit, with rows that are equal, too."""
    arrays["embeddings"] = np.sign(arrays["embeddings"][:, :3])
    arrays["confidence"], arrays["quality"] = arrays["confidence"].round(), arrays["quality"].round(1)
    frame = bench.score(**arrays, metrics=["all"]).table
    renumbered = arrays | {"labels": (10**15 - arrays["labels"] * 7).tolist()}
    tensors = {key: torch.as_tensor(value) for key, value in renumbered.items()}
    lists = {key: np.asarray(value).tolist() for key, value in renumbered.items()}
    for other in (tensors, lists):
        again = bench.score(**other, metrics=["all"]).table
        assert frame.drop(columns="unit").equals(again.drop(columns="unit"))


def test_the_table_is_tidy(arrays):
    arrays["variance"] = np.full(len(arrays["labels"]), 0.1)
    frame = bench.score(**arrays, scorers=["cosine", "mls"], metrics=["all"]).table
    assert list(frame.columns) == list(COLUMNS)
    assert not frame.duplicated(KEYS).any()
    assert set(frame["scorer"]) == {"", "cosine", "mls"}
    signed = ["spearman_crop", "kendall_crop", "spearman_confidences", "ami", "edc_pauc"]
    unbounded = ["spectral_decay", "density"]
    ranged = frame[~frame["metric"].isin([*signed, *unbounded, "set_size_at_90"])]
    assert ranged["value"].dropna().between(0, 1 + 1e-12).all()
    # A constant confidence has no rank correlation, and nothing else may be missing where nothing was removed.
    missing = frame[frame["value"].isna() & frame["fraction"].isna()]
    of_two = missing["metric"] == "spearman_confidences"
    assert all("method" in pair for pair in missing[of_two][["confidence", "variant"]].values)
    missing = missing[~of_two]
    assert sorted(missing["metric"]) == ["kendall_crop", "spearman_crop"]
    assert set(missing["confidence"]) == {"method"}


def test_the_verification_threshold_never_saw_the_classes_it_is_tested_on(arrays):
    """Scores in two halves on scales of their own: no threshold of the one half is of use to the other."""
    frame = bench.score(arrays["embeddings"], arrays["labels"], metrics=["verification"]).table
    all_pairs = {f"all_pairs,fpr=0.001{end}" for end in ("", ",ci95_low", ",ci95_high")}
    assert set(frame["variant"]) == all_pairs | {"threshold_test", "threshold_held_out_classes", "fpr=0.001", ""}
    rows = frame.set_index("variant")
    assert rows.loc["threshold_held_out_classes", "n_queries"] < rows.loc["threshold_test", "n_queries"]
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(200), 4)
    noise = bench.score(rng.normal(size=(800, 4)), labels, metrics=["verification"]).table.set_index("variant")["value"]
    # A random scorer: the threshold of the tested pairs flatters it, the held-out one does not.
    assert noise["threshold_test"] > 0.5
    assert abs(noise["threshold_held_out_classes"] - 0.5) < 0.04


def test_norms_that_differ_by_rounding_are_no_confidence(arrays):
    unit = arrays["embeddings"] / np.linalg.norm(arrays["embeddings"], axis=1, keepdims=True)
    for rounded in (unit, torch.from_numpy(unit).half(), 64 * unit):
        frame = bench.score(rounded, arrays["labels"], confidence=arrays["confidence"]).table
        assert _value(frame, "confidence_auroc", confidence="norm") == 0.5


def test_a_reversed_confidence_is_said(arrays):
    right = np.nan_to_num(bench.score(**arrays).queries["recall_at_1"].to_numpy())
    noise = np.random.default_rng(0).normal(size=len(right))
    for sign, said in ((-1.0, True), (1.0, False)):
        given = {**arrays, "confidence": sign * right + 0.1 * noise}
        text = " ".join(bench.score(**given).summary().split())
        assert ("reversed, higher where answers are wrong (AUROC below 50): given" in text) is said


def test_a_constant_confidence_says_nothing(arrays, tmp_path, capsys):
    n = len(arrays["labels"])
    np.savez(tmp_path / "dead.npz", embeddings=arrays["embeddings"], labels=arrays["labels"], confidence=np.ones(n))
    assert main(["score", str(tmp_path / "dead.npz")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"confidence 'given': constant for all {n:,} images, it says nothing." in said
    assert "least confident half" not in said


def test_unnormalised_embeddings_are_scored_as_they_are(arrays):
    raw = bench.score(arrays["embeddings"], arrays["labels"], scorers=["l2"], normalize=False).table
    x = arrays["embeddings"].astype(np.float64)
    distances = -((x[:, None] - x[None]) ** 2).sum(-1)
    expected = np.mean([values[2] for values in _loop(distances, arrays["labels"]).values()])
    assert _value(raw, "map_at_r", scorer="l2") == pytest.approx(expected)
    unit = bench.score(arrays["embeddings"], arrays["labels"], scorers=["cosine", "l2"]).table
    assert _value(unit, "map_at_r", scorer="l2") == pytest.approx(_value(unit, "map_at_r"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scorers": ["cosin"]}, "did you mean 'cosine'"),
        ({"scorers": ["mls"]}, "these are: cosine, l2, raw_l2, poincare, expected_cosine"),
        ({"scorers": []}, "no scorer"),
        ({"metrics": ["map"]}, "did you mean 'map_at_r'"),
        ({"metrics": []}, "no metric"),
        ({"metrics": ["recall_at_0"]}, "unknown metric"),
        ({"labels": [[0, 1]]}, "labels must have the shape"),
        ({"embeddings": [[1.0], [1.0, 2.0]]}, "different lengths"),
        ({"embeddings": None}, "embeddings missing"),
        ({"labels": None}, "labels missing"),
        *(({key: 2**60 + np.arange(41)}, rf"{key} - {key}\.min") for key in ("confidence", "quality")),
    ],
)
def test_what_is_wrong_is_said(arrays, change, message):
    with pytest.raises(ValueError, match=message):
        bench.score(**{"embeddings": arrays["embeddings"], "labels": arrays["labels"]} | change)


def test_single_names_can_be_asked_for(arrays):
    frame = bench.score(arrays["embeddings"], arrays["labels"], metrics=["recall_at_3", "nmi"]).table
    assert sorted(frame[frame["confidence"] == ""]["metric"]) == ["nmi", "recall_at_3"]
    frame = bench.score(arrays["embeddings"], arrays["labels"], metrics="map_at_r", scorers="l2").table
    assert frame[frame["confidence"] == ""][["scorer", "metric"]].values.tolist() == [["l2", "map_at_r"]]


def test_metrics_of_decisions_are_computed_on_request(arrays):
    """Sizes of sets, OPIS and errors versus discard, each by its name or by that of its group."""

    def names(*metrics):
        frame = bench.score(arrays["embeddings"], arrays["labels"], metrics=metrics).table
        assert frame["value"].notna().all()
        return set(frame["metric"])

    assert names("discard") == {"edc_fnmr", "edc_pauc"}
    assert names("edc_pauc", "opis") == {"edc_pauc", "opis"}
    assert names("open_set") == {"open_set_auroc", "open_set_oscr", "open_set_tar"}
    assert names("confidence_correlation") == {"spearman_confidences"}
    assert names("retrieval_sets") == {"set_size_at_90", "set_coverage_at_90"}
    assert not {"edc_pauc", "opis", "set_size_at_90", "ece_top1"} & names("recall_at_1")


def test_what_is_printed_needs_no_pandas(tmp_path):
    np.savez(tmp_path / "mine.npz", embeddings=np.eye(4), labels=[0, 0, 1, 1])
    code = "import sys; from bench.cli import main; print(main(sys.argv[1:]), 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code, "score", tmp_path / "mine.npz"], capture_output=True)
    assert done.stdout.split()[-2:] == [b"0", b"False"], done.stderr


def test_the_example_of_the_docstring_runs():
    found = doctest.testmod(importlib.import_module("bench.api.score"))
    assert found.attempted
    assert not found.failed


def _world(size=1.0, one=1.0, offset=0.0):
    """Twenty classes of ten points, one in the middle of the rows scaled and all moved, and their labels."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    x = size * (rng.normal(size=(20, 16))[labels] + 0.3 * rng.normal(size=(200, 16))) + offset
    x[77] *= one
    return x, labels


RETRIEVAL = ["recall_at_1", "map_at_r"]


@pytest.mark.parametrize(
    ("scorer", "world"),
    [
        *(("raw_l2", {"one": one}) for one in (1e8, 1e30)),
        *(("raw_l2", {"offset": offset}) for offset in (1e6, 1e8)),
        *(("cosine", {"size": size}) for size in (1e-200, 1e160, 1e300)),
        ("cosine", {"one": 1e200}),
        ("cosine", {"size": 1e-6, "offset": 1.0}),
    ],
)
def test_extreme_embeddings_are_scored_as_by_exact_arithmetic(scorer, world):
    x, labels = _world(**world)
    table = bench.score(x, labels, scorers=[scorer], metrics=RETRIEVAL, normalize=False).table
    wide = x.astype(np.longdouble)
    if scorer == "cosine":
        wide /= np.sqrt((wide * wide).sum(1, keepdims=True))
        scores = wide @ wide.T
    else:
        # Without the square of the query, which is the same for all in a row, longdouble has the digits.
        scores = np.stack([(2 * (wide - x[3]) * (q - x[3])).sum(1) - ((wide - x[3]) ** 2).sum(1) for q in wide])
    expected = np.mean(list(_loop(scores, labels).values()), axis=0)
    assert [_value(table, name, scorer) for name in RETRIEVAL] == pytest.approx(expected[[0, 2]])


BLAMED = r"'{}' gave \d+ scores .* most of them with row 77 \(from 0\)"


@pytest.mark.parametrize(
    ("scorer", "world", "said"),
    [
        *((scorer, {"one": 1e200}, BLAMED.format(scorer)) for scorer in ("raw_l2", "l2", "match")),
        ("raw_l2", {"size": 1e200}, "finite; scale the embeddings,"),
        ("raw_l2", {"size": 1e-200}, "too small to compare"),
        ("raw_l2", {}, r"most of them with row 77 of unknown \(from 0\)"),
    ],
)
def test_a_row_is_blamed_for_scores_out_of_range_only_if_it_stands_out(scorer, world, said):
    unknown = None if world else _world(one=1e200)[0]
    with pytest.raises(ValueError, match=said):
        bench.score(*_world(**world), scorers=[scorer], metrics=RETRIEVAL, normalize=False, unknown=unknown)
