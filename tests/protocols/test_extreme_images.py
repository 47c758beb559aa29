"""Rankings with planted outliers, offsets, duplicates and ties, against scores in high precision (mpmath)."""

from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from bench.methods.distributions import DiagonalNormal, IsotropicNormal, PointMass, VonMisesFisher
from bench.methods.scorers import DistributionScorer
from bench.protocols.all_pairs import all_pairs_tpr
from bench.protocols.ranking import MeanScorer, ScoreMatrix, rank
from bench.protocols.retrieval_confidence import retrieval_confidences
from bench.protocols.retrieval_sets import first_positive_ranks

from tests.retrieval_rows import retrieval_rows

mpf = mpmath.mpf
DIM, COUNT = 4, 24


def _world(kind, seed):
    """Points, variances and concentrations of eight classes of three, spoilt in the ways that the words of a kind say.

    Outliers are far by a power of 2: their directions are not rounded.
    """
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(8), 3)
    x = rng.normal(size=(8, DIM))[labels] + 0.5 * rng.normal(size=(COUNT, DIM))
    variance = 0.05 * np.exp(rng.normal(size=COUNT))
    diagonal = variance[:, None] * np.exp(0.5 * rng.normal(size=x.shape))
    k = rng.uniform(5, 60, COUNT)
    far = 2.0 ** rng.integers(10, 101)
    mixed = rng.permutation(COUNT)
    if "grid" in kind:
        x = np.round(2 * x) + (np.round(2 * x) == 0).all(1)[:, None]
    if "signs" in kind:
        x, variance, diagonal = np.sign(x), np.full(COUNT, 1e17), np.full(x.shape, 1e17)
    if "twins" in kind:
        for values in (x, variance, diagonal, k):
            values[mixed[:6]] = values[mixed[6:12]]
    if "outlier" in kind:
        for values in (x, variance, diagonal, k):
            values[mixed[0]] *= far
    if "cluster" in kind:
        x[mixed[:4]] += rng.normal(size=DIM) * min(far, 1e8)
    if "narrow" in kind:
        k[mixed[:4]] *= far
        variance[mixed[:8]] *= 10.0 ** -rng.integers(10, 30)
        diagonal[mixed[:8]] *= 10.0 ** -rng.integers(10, 30)
    if "offset" in kind:
        x += rng.normal(size=DIM) * 10.0 ** rng.integers(5, 9)
    if "float32" in kind:
        x = x.astype(np.float32).astype(float)
    return x, variance, diagonal, k, labels


def _log_ratio(k):
    """Log of the normaliser on the sphere of R^4 over that at 0: -log(2 I_1(k) / k)."""
    if k < 2e4:
        return -mpmath.log(2 * mpmath.besseli(1, k) / k)
    term = total = mpf(1)
    for j in range(1, 25):
        term *= -(4 - (2 * j - 1) ** 2) / (8 * j * k)
        total += term
    return -(k - mpmath.log(2 * mpmath.pi * k) / 2 + mpmath.log(total) + mpmath.log(2 / k))


def _exact(name, x, spread):
    """Scores of all pairs."""
    x = [[mpf(float(v)) for v in row] for row in x]
    s = None if spread is None else [np.vectorize(mpf, otypes=[object])(row) for row in spread.tolist()]
    unit = [[v / mpmath.sqrt(sum(w * w for w in row)) for v in row] for row in x]
    single = [_log_ratio(row.item()) for row in s] if name == "mls of vMFs" else []

    def score(i, j):
        squared = [(a - b) ** 2 for a, b in zip(x[i], x[j])]
        if name == "cosine":
            return sum(a * b for a, b in zip(unit[i], unit[j]))
        if name in ("l2", "raw_l2"):
            return -sum(squared)
        if name == "mls of vMFs":
            joint = mpmath.sqrt(sum((s[i].item() * a + s[j].item() * b) ** 2 for a, b in zip(unit[i], unit[j])))
            return single[i] + single[j] - _log_ratio(joint)
        total = np.broadcast_to(s[i] + s[j], (DIM,))
        if name.startswith("expected_l2"):
            return -sum(squared) - sum(total)
        return -sum(a / v + mpmath.log(v) for a, v in zip(squared, total)) / 2

    return [[score(i, j) if i != j else None for j in range(COUNT)] for i in range(COUNT)]


def _recall_and_map(scores, labels):
    """Mean Recall@1 and MAP@R over queries, and over the random orders of equal scores."""
    first, precise = [], []
    for q in range(COUNT):
        near = sorted((j for j in range(COUNT) if j != q), key=lambda j: -scores[q][j])
        groups = [[near[0]]]
        for before, j in pairwise(near):
            gap = scores[q][before] - scores[q][j]
            if gap > mpf(10) ** -60 * (abs(scores[q][j]) + mpf(10) ** -20):
                groups.append([])
            groups[-1].append(j)
        positives = int((labels == labels[q]).sum()) - 1
        place = hits = 0
        total = 0.0
        for group in groups:
            many, found = len(group), sum(labels[j] == labels[q] for j in group)
            if place == 0:
                first.append(found / many)
            for i in range(max(0, min(many, positives - place))):
                before = hits + (i * (found - 1) / (many - 1) if many > 1 else 0)
                total += found / many * (1 + before) / (place + i + 1)
            place, hits = place + many, hits + found
        precise.append(total / positives)
    return {"recall_at_1": np.mean(first), "map_at_r": np.mean(precise)}


PLANTED = ["plain", "grid", "twins", "outlier", "outlier float32", "cluster", "cluster twins", "narrow", "narrow twins"]
PLANTED += ["outlier narrow", "offset", "offset grid", "offset float32", "offset cluster twins", "signs"]


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_every_ranking_is_that_of_high_precision(kind, seed):
    x, variance, diagonal, k, labels = _world(kind, seed)
    points = torch.from_numpy(x)
    isotropic = IsotropicNormal(points, torch.from_numpy(variance))
    full = DiagonalNormal(points, torch.from_numpy(diagonal))
    cases = {
        "l2": (PointMass(points), None),
        "raw_l2": (PointMass(points), None),
        "expected_l2 of isotropic normals": (isotropic, variance[:, None]),
        "expected_l2 of diagonal normals": (full, diagonal),
        "mls of isotropic normals": (isotropic, variance[:, None]),
        "mls of diagonal normals": (full, diagonal),
    }
    # Directions of points that are far away differ by less than float64 has digits for.
    if not {"offset", "cluster"} & set(kind.split()):
        cases["cosine"] = (PointMass(points), None)
        cases["mls of vMFs"] = (VonMisesFisher(points, torch.from_numpy(k)), k[:, None])
    with mpmath.workdps(90):
        for name, (distribution, spread) in cases.items():
            rows = retrieval_rows(DistributionScorer(name.split()[0], distribution), torch.from_numpy(labels))
            found = {row["metric"]: row["value"] for row in rows}
            for metric, value in _recall_and_map(_exact(name, x, spread), labels).items():
                assert found[metric] == pytest.approx(value, abs=1e-9), (name, metric)


def _scores(outlier):
    """Scores of 12 images of 4 classes; the last image, of a class of its own, has huge ones."""
    scores = torch.rand(13, 13, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = scores + scores.mT
    scores[12, :] = scores[:, 12] = outlier
    scores[12, 12] = 0.0
    return ScoreMatrix(scores), torch.tensor([0, 1, 2, 3] * 3 + [9])


@pytest.mark.parametrize("outlier", [-1e6, -1e15, -1e300])
def test_given_scores_are_ranked_whatever_one_item_has(outlier):
    (plain, labels), (given, _) = _scores(-10.0), _scores(outlier)
    queries = torch.arange(12)
    for form in (lambda s: s, lambda s: MeanScorer([s, s])):
        a, b = (rank(form(s), labels, depth=11, queries=queries, answers=3) for s in (plain, given))
        for name in ("neighbours", "group", "relevant"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name
    assert torch.equal(*(first_positive_ranks(s, labels, queries=queries) for s in (plain, given)))
    everyone = [retrieval_confidences(s, rank(s, labels, depth=11, answers=3)) for s in (plain, given)]
    for name in ("top1_score", "margin"):
        torch.testing.assert_close(*(values[name][:12] for values in everyone), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("far", [1e6, 1e9, 1e30])
def test_pairs_are_accepted_whatever_one_item_is(far):
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(40) // 4
    x = torch.randn(10, 8, generator=rng, dtype=torch.float64)[labels] + torch.randn(40, 8, generator=rng).double()
    alone = all_pairs_tpr(DistributionScorer("raw_l2", PointMass(x)), labels, torch.ones(1, 10).long(), 0.05)
    scorer = DistributionScorer("raw_l2", PointMass(torch.cat([x, torch.full((1, 8), far, dtype=torch.float64)])))
    labels, counted = torch.cat([labels, torch.tensor([10])]), (torch.arange(11) < 10).long()[None]
    assert all_pairs_tpr(scorer, labels, counted, 0.05) == alone > 0.3
