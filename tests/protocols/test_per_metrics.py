"""What `--preset per` adds, against numbers of PER's public code: same candidates, curves, ROC points and correlations.

The embeddings are in ``tests/golden/per/metrics.npz``, what PER's code gives for them in ``metrics.json``. Three sets:
balanced classes, classes of 1 to 12 images with lone ones, and classes of at most 5.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.methods.distributions import IsotropicNormal, PointMass, VonMisesFisher
from bench.methods.learned_spread import spread_confidence
from bench.methods.scorers.inner_products import mode_scorer
from bench.methods.scorers.spec import DistributionScorer
from bench.protocols.embeddings import Options
from bench.protocols.near_modes import NearModes, candidate_count, reranked_map_at_r, with_lone_queries
from bench.protocols.quality import spearman
from bench.protocols.query_metrics import map_at_r, per_query
from bench.protocols.ranking import ScoreMatrix, rank
from bench.protocols.reranked import kept_from_threshold
from bench.protocols.verification import verification_rows

from .views import Reranked, rows_of, view_of

GOLDEN = Path(__file__).parents[1] / "golden" / "per"
EXPECTED = json.loads((GOLDEN / "metrics.json").read_text())
KS = (1, 2, 4, 8)
CASES = [(name, case) for name, cases in EXPECTED.items() for case in cases]
WITH_CONFIDENCE = [(name, case) for name, case in CASES if "filter_out_kept" in EXPECTED[name][case]]


@pytest.fixture(scope="module")
def arrays():
    with np.load(GOLDEN / "metrics.npz") as held:
        return {key: torch.from_numpy(held[key]) for key in held}


def _distribution(arrays, name, case):
    """The distributions of a case: directions, and spreads from PER's map of the raw output of its head."""
    loc = torch.nn.functional.normalize(arrays[f"{name}/z"].double(), dim=1)
    family = case.partition("_")[2]
    if family == "dirac":
        return PointMass(loc)
    r = arrays[f"{name}/spread_{family}"]
    phi = torch.where(r < 0, 1 / (1 - r), 1 + r) + math.exp(-10)
    return VonMisesFisher(loc, 1 / phi) if family.startswith("vmf") else IsotropicNormal(loc, phi)


def _near(arrays, name, case, ks=KS):
    distribution = _distribution(arrays, name, case)
    scorer = DistributionScorer(case.partition("_")[0], distribution)
    return NearModes(scorer, mode_scorer(distribution), arrays[f"{name}/labels"], ks=ks)


def _mean(metric, values):
    return float(with_lone_queries(metric, values[metric]).mean())


def _theirs(metric):
    return "mapr" if metric == "map_at_r" else metric.replace("recall_at_", "recall@")


@pytest.mark.parametrize(("name", "case"), CASES)
def test_reranked_retrieval_is_that_of_the_public_code(arrays, name, case):
    """Candidates are chosen between modes, not between means, for every scorer, the distance of the means included."""
    expected = EXPECTED[name][case]
    assert candidate_count(arrays[f"{name}/labels"], KS) == expected["candidates"]
    values = _near(arrays, name, case).values()
    for metric in values:
        assert _mean(metric, values) == pytest.approx(expected["retrieval"][_theirs(metric)], rel=1e-6)


@pytest.mark.parametrize(("name", "case"), WITH_CONFIDENCE)
def test_reranked_curves_and_risk_areas_are_those_of_the_public_code(arrays, name, case):
    """Confidences from the threshold on are kept, R is counted anew, and lone queries are 0 in MAP@R."""
    expected = EXPECTED[name][case]
    near, confidence = _near(arrays, name, case), spread_confidence(_distribution(arrays, name, case))
    for fraction, kept in zip(Options().filter_fractions, expected["filter_out_kept"], strict=True):
        keep = kept_from_threshold(confidence, fraction)
        assert int(keep.sum()) == kept
        values = near.values(keep)
        for metric in values:
            theirs = expected["retrieval"][f"filter-out/{fraction:.3f}/{_theirs(metric)}"]
            assert _mean(metric, values) == pytest.approx(theirs, rel=1e-6)
    rows = _rows_of_battery(arrays, name, case)
    for metric, theirs in (("map_at_r", "erc-mapr"), ("recall_at_1", "erc-recall@1")):
        assert rows["aurc", f"{metric},reranked", None] == pytest.approx(expected["retrieval"][theirs], rel=1e-6)
        at_nine = expected["retrieval"][f"filter-out/0.900/{_theirs(metric)}"]
        assert rows[f"filter_out_{metric}", "reranked", 0.9] == pytest.approx(at_nine, rel=1e-6)
        whole = expected["retrieval"][_theirs(metric)]
        assert rows[metric, "reranked", None] == pytest.approx(whole, rel=1e-6)


def _rows_of_battery(arrays, name, case):
    """Rows of the group ``reranked``, as the tests of a trained model make them."""
    distribution, scorer = _distribution(arrays, name, case), case.partition("_")[0]
    labels = arrays[f"{name}/labels"]
    more = {"confidences": {"method": spread_confidence(distribution)}, "candidates": lambda: mode_scorer(distribution)}
    rows = rows_of(
        view_of(labels, DistributionScorer(scorer, distribution), scorer, **more),
        "reranked", "metric", "variant", "fraction",
    )  # fmt: skip
    return {key: row["value"] for key, row in rows.items()}


@pytest.mark.parametrize(("name", "case"), CASES)
def test_verification_reads_the_roc_where_the_public_code_does(arrays, name, case):
    expected = EXPECTED[name][case]["verification"]
    left, right = arrays[f"{name}/pairs"].long().unbind(1)
    same = arrays[f"{name}/same"].bool()
    scores = DistributionScorer(case.partition("_")[0], _distribution(arrays, name, case)).pairs(left, right)
    rows = {
        (row["metric"], row["variant"]): row["value"]
        for row in verification_rows(scores, same, None, Options(nearest_roc_point=True))
    }
    for key, theirs in (
        (("verification_accuracy", "threshold_test"), "max_accuracy"),
        (("verification_auc", ""), "auc"),
        (("verification_eer", "nearest_point"), "eer"),
        (("verification_tpr_at_fpr", "nearest_fpr=0.001"), "tpr"),
    ):
        assert rows[key] == pytest.approx(expected[theirs], rel=1e-8)  # its share of positives is a float32
    assert float(same.double().mean()) == pytest.approx(expected["pr"], rel=1e-6)


@pytest.mark.parametrize(("name", "case"), WITH_CONFIDENCE)
def test_the_correlation_with_the_crop_is_that_of_the_public_code(arrays, name, case):
    confidence = spread_confidence(_distribution(arrays, name, case))
    for crop in ("crop_0.25", "crop_0.5"):
        expected = EXPECTED[name][case][f"spearman_{crop}"]
        assert spearman(confidence, arrays[f"{name}/{crop}"]) == pytest.approx(expected, rel=1e-9)


def test_lone_queries_count_only_in_the_public_codes_map_at_r(arrays):
    distribution, labels = _distribution(arrays, "sop_like", "cosine_dirac"), arrays["sop_like/labels"]
    strict = map_at_r(DistributionScorer("cosine", distribution), labels)
    theirs = _mean("map_at_r", _near(arrays, "sop_like", "cosine_dirac").values())
    assert (strict, theirs) == pytest.approx((0.755, 0.730), abs=5e-4)
    lone = int((torch.bincount(labels) == 1).sum())
    assert theirs == pytest.approx(strict * (1 - lone / len(labels)), rel=1e-12)


def _random(seed, n=60, classes=14):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    near = torch.randint(6, (n, n), generator=g).double()  # many ties
    near = (near + near.T).fill_diagonal_(99)
    likely = torch.randint(9, (n, n), generator=g).double()
    return labels, ScoreMatrix(near, "near"), ScoreMatrix(likely, "likely"), g


@pytest.mark.parametrize("seed", range(8))
def test_the_fast_form_equals_a_ranking_of_everything(seed):
    """Ties among the candidates and at their border, subsets, queries that are not searched."""
    labels, near, likely, g = _random(seed)
    rows = torch.arange(len(labels))
    for queries, gallery in ((None, None), (rows[:20], rows[20:])):
        fast = NearModes(likely, near, labels, ks=(1, 3), queries=queries, gallery=gallery)
        searched = torch.ones(len(labels), dtype=torch.bool)
        if gallery is not None:
            searched.zero_()[gallery] = True
        for share in (1.0, 0.6, 0.2):
            keep = torch.rand(len(labels), generator=g) < share if share < 1 else torch.ones_like(searched)
            left = keep & searched
            asked = rows[keep] if queries is None else queries[keep[queries]]
            most = candidate_count(labels[left], (1, 3)) - (gallery is not None)
            ranking = rank(Reranked(likely, near, most), labels, depth=len(labels), queries=asked, gallery=rows[left])
            expected, found = per_query(ranking, (1, 3)), fast.values(keep)
            for metric in found:
                torch.testing.assert_close(found[metric], expected[metric], equal_nan=True, rtol=1e-12, atol=1e-12)


def test_selection_by_reranked_scores_looks_at_the_candidates_alone(arrays):
    distribution = _distribution(arrays, "sop_like", "mls_vmf_300")
    mls = DistributionScorer("mls", distribution)
    found = reranked_map_at_r(mls, mode_scorer(distribution), arrays["sop_like/labels"], KS)
    assert found == pytest.approx(EXPECTED["sop_like"]["mls_vmf_300"]["retrieval"]["mapr"], rel=1e-6)


def test_the_threshold_of_a_curve_is_at_numpys_grid():
    """np.linspace(0, 0.9, 10) has 3 * 0.1, not 0.3: for 16 images the rank is 5 and not round(4.5) = 4."""
    for count in (16, 36, 46, 385, 960):
        confidence = torch.arange(count).double()
        for fraction, exact in zip(Options().filter_fractions, np.linspace(0, 0.9, 10)):
            threshold = np.sort(confidence.numpy())[round((count - 1) * exact)]
            expected = int((confidence.numpy() >= threshold).sum())
            assert int(kept_from_threshold(confidence, fraction).sum()) == expected
    assert int(kept_from_threshold(torch.ones(9), 0.5).sum()) == 9  # tied confidences are all kept
