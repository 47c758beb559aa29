"""The posterior of the answer against loops over the whole mixture, with mpmath's Bessel functions."""

import math
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
from bench.methods.distributions import PointMass
from bench.methods.distributions.von_mises_fisher import VonMisesFisher, shared_concentration
from bench.methods.scorers import DistributionScorer
from bench.protocols.open_set import in_smaller_gallery
from bench.protocols.ranking import NEAREST, answer_depth, rank
from bench.protocols.retrieval_confidence import posterior
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, logsumexp
from torch.nn.functional import normalize

from .views import clustered, view_of


@cache
def _log_ratio(k, dim):
    """Log normaliser of a von Mises-Fisher, above that of the uniform distribution."""
    nu = dim / 2 - 1
    return float(nu * mpmath.log(k / 2) - mpmath.loggamma(nu + 1) - mpmath.log(mpmath.besseli(nu, k)))


def _peak(k, dim):
    return k + _log_ratio(k, dim)


def _view(x, labels, concentration):
    scorer = DistributionScorer("cosine", PointMass(x))
    return view_of(labels, scorer, directions=lambda: x, concentration=concentration)


def _ranked(x, labels, **roles):
    scorer = DistributionScorer("cosine", PointMass(x))
    return rank(scorer, labels, depth=max(NEAREST + 1, answer_depth(labels)), answers=3, **roles)


def _by_hand(x, labels, query, gallery, k, kin=None):
    """Log odds from densities in a gallery without the query, of classes that are near."""
    dim = x.shape[1]
    gallery = [row for row in gallery if kin is None or kin[row] != kin[query]]
    of = {}
    for row in gallery:
        if row != query:
            of.setdefault(int(labels[row]), []).append(x[row].numpy())
    order = sorted((row for row in gallery if row != query), key=lambda row: -float(x[query] @ x[row]))
    answer = int(labels[order[0]])
    rival = next((row for row in order if int(labels[row]) != answer), None)
    asked = {int(labels[row]) for row in [*order[:NEAREST], *([] if rival is None else [rival])]}
    shared = math.log(0.5 / len(of))
    uniform = gammaln(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)
    joint = {}
    for label, rows in of.items():
        mean = np.sum(rows, 0) / np.linalg.norm(np.sum(rows, 0))
        if label in asked:
            joint[label] = shared + uniform + _log_ratio(k, dim) + k * float(mean @ x[query].numpy())
    others = [value for label, value in joint.items() if label != answer]
    return joint[answer] - logsumexp([*others, math.log(0.5) + uniform])


def _world(classes=12, each=6, dim=8, noise=0.35, seed=0):
    labels = torch.arange(classes).repeat_interleave(each)
    return clustered(labels, dim, noise * dim**0.5, seed), labels


MASKS = {
    "all": {},
    "apart": {"queries": torch.arange(0, 72, 3), "gallery": torch.tensor([i for i in range(72) if i % 3])},
    "partly": {"queries": torch.arange(30), "gallery": torch.arange(20, 72)},
    "lone": {"gallery": torch.tensor([0, *range(6, 72)])},
}


@pytest.mark.parametrize("kin", [None, torch.arange(72) // 2, torch.arange(72) // 6], ids=["", "pairs", "classes"])
@pytest.mark.parametrize("dim", [2, 3, 8, 64])
@pytest.mark.parametrize("mask", MASKS)
def test_log_odds_are_those_of_a_loop_over_the_mixture(mask, dim, kin):
    x, labels = _world(dim=dim, seed=dim)
    roles = MASKS[mask]
    ranking = _ranked(x, labels, kin=kin, **roles)
    gallery = roles.get("gallery", torch.arange(72))
    k = 1.5 * dim
    found = posterior(x, labels, ranking, roles.get("gallery"), (k, _peak(k, dim)), kin)
    assert len(found) == len(ranking.queries)
    for place, query in enumerate(ranking.queries.tolist()):
        expected = _by_hand(x, labels, query, gallery.tolist(), k, kin)
        assert found[place].item() == pytest.approx(expected, rel=1e-6, abs=1e-6), query


def test_one_class_competes_with_the_unknown_alone():
    x, labels = _world()
    gallery = (labels == 4).nonzero().squeeze(1)
    found = posterior(x, labels, _ranked(x, labels, gallery=gallery), gallery, (9.0, _peak(9.0, 8)))
    for query in (0, 25, 71):
        rows = x[[row for row in gallery.tolist() if row != query]].sum(0)
        expected = _log_ratio(9.0, 8) + 9.0 * float(x[query] @ rows / rows.norm())
        assert found[query].item() == pytest.approx(expected, abs=1e-6)


def test_an_open_answer_keeps_the_prior_and_the_order_of_images_plays_no_part():
    x, labels = _world()
    flat = torch.full((72, 4), 0.5, dtype=torch.float64)
    density = shared_concentration(flat, labels)
    assert all(map(math.isfinite, density))
    found = posterior(flat, labels, _ranked(flat, labels), None, density)
    assert found.unique().tolist() == [pytest.approx(math.log((1 / 24) / (23 / 24)))]
    x[40:46] = x[0:6]  # the same images in two classes
    x[60:72] = x[61]  # more than ten that are tied, of two classes
    order = torch.randperm(72, generator=torch.Generator().manual_seed(3))
    density = (9.0, _peak(9.0, 8))
    rankings = [_ranked(x, labels), _ranked(x[order], labels[order])]
    first = posterior(x, labels, rankings[0], None, density)
    second = posterior(x[order], labels[order], rankings[1], None, density)
    assert second.tolist() == pytest.approx(first[order].tolist(), rel=1e-6)
    tied = rankings[0].answers.tied
    assert int(tied[60:].sum()) == 12 < int(tied.sum())
    assert first[tied].tolist() == pytest.approx([math.log(1 / 23)] * int(tied.sum()))


def _drawn(classes, each, dim, k, seed):
    """Images of von Mises-Fisher classes."""
    torch.manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(each)
    means = normalize(torch.randn(classes, dim, dtype=torch.float64), dim=1)[labels]
    return VonMisesFisher(means, torch.full((len(labels),), k, dtype=torch.float64)).sample(), labels


@pytest.mark.parametrize("dim", [2, 3, 8, 64, 512])
@pytest.mark.parametrize("k", [0.5, 4.0, 40.0, 400.0])
def test_the_concentration_has_maximum_likelihood(dim, k):
    x, labels = _drawn(40, 5, dim, k, seed=1)
    x, labels = torch.cat([x, x[:1]]), torch.cat([labels, torch.tensor([40])])  # one of its own says nothing
    found, peak = shared_concentration(x, labels)
    cosines = []
    for row in range(200):
        mean = x[(labels == labels[row]) & (torch.arange(201) != row)].sum(0)
        cosines.append(float(mean @ x[row] / mean.norm()))
    if np.mean(cosines) < 0.02:  # next to nothing in common
        assert found < 0.1 * dim
        return
    best = minimize_scalar(
        lambda value: -_log_ratio(math.exp(value), dim) - math.exp(value) * np.mean(cosines),
        bounds=(-3, 9), method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    assert found == pytest.approx(math.exp(best.x), rel=1e-4)
    assert peak == pytest.approx(_peak(found, dim), rel=1e-9, abs=1e-9)


def test_it_is_missing_without_classes_to_learn_from():
    x, labels = _world()
    assert shared_concentration(x, torch.arange(72)) is None
    assert shared_concentration(x[:, :1].sign(), labels) is None
    for missing in (None, lambda: None):
        assert "posterior" not in _view(x, labels, missing).retrieval_confidences("cosine")
    smaller = in_smaller_gallery(_view(x, labels, lambda: (9.0, _peak(9.0, 8))), "cosine")
    found = smaller.retrieval_confidences("cosine")["posterior"]
    expected = _by_hand(x, labels, 3, smaller.gallery.tolist(), 9.0)
    assert found[3].item() == pytest.approx(expected, abs=1e-6)
