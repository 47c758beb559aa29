"""The regret of a confidence: 0 for the observer, positive for every other order of the expected risks."""

import math

import pytest
import torch
from bench.protocols.ambiguity import ambiguity, answer_probability
from bench.protocols.confidence import augrc
from bench.protocols.declare import run_battery
from bench.protocols.embeddings import Options
from bench.protocols.known_tests import load_tests
from bench.protocols.ranking import rank
from bench.protocols.rows import OBSERVER, OBSERVER_IMAGE, kind_of

from .views import view_of

CLASSES, QUERIES = 6, 240
RHO = "spearman_posterior_entropy"


def _view(seed=0, each=2, tied=False, **changes):
    """Queries whose classes are drawn from their posterior, against a gallery of some images of each class."""
    g = torch.Generator().manual_seed(seed)
    given = torch.Generator().manual_seed(99)  # the posterior and the answers are the same in every draw of the classes
    p = (torch.randn(QUERIES, CLASSES, generator=given, dtype=torch.float64) * 2).softmax(1)
    drawn = torch.multinomial(p, 1, generator=g).squeeze(1)
    gallery = torch.arange(CLASSES).repeat_interleave(each)
    labels = torch.cat([drawn, gallery])
    n = len(labels)
    # The model sees the posterior through noise, so that it often answers with another class than the likeliest.
    seen = p.log() + torch.randn(QUERIES, CLASSES, generator=given, dtype=torch.float64)
    noise = 0.01 * torch.rand(QUERIES, len(gallery), generator=given, dtype=torch.float64)
    scores = torch.zeros(n, n, dtype=torch.float64)
    if not tied:
        scores[:QUERIES, QUERIES:] = seen[:, gallery] + noise
    known = torch.cat([p, torch.full((len(gallery), CLASSES), math.nan, dtype=p.dtype)])
    settings = {"confidences": {"random": torch.rand(n, generator=given, dtype=torch.float64)}}
    settings |= {"queries": torch.arange(QUERIES), "gallery": torch.arange(QUERIES, n), "posterior": known.clone}
    return view_of(**({"labels": labels, "scores": scores} | settings | changes))


def _regrets(view):
    return {row["confidence"]: row["value"] for row in ambiguity(view, "cosine") if row["metric"] == "augrc_regret"}


def _answers(view):
    return answer_probability(view.posterior()[view.queries], view.labels, view.ranking("cosine"))


def test_the_observer_has_no_regret_and_chance_has():
    view = _view()
    known = torch.zeros(len(view), dtype=torch.float64)
    known[view.queries] = _answers(view)
    noise = view.confidences["random"]
    found = _regrets(_view(confidences={"norm": known, "random": noise, "method": -known}))
    assert found["norm"] == 0.0
    assert 0.05 < found["random"] < found["method"]
    of_ranking = {"top1_score", "margin", "agreement", "spread", "norm+margin", "method+margin"}
    assert set(found) == {"norm", "method", "random", OBSERVER_IMAGE} | of_ranking


def test_the_probability_of_an_answer_is_the_posterior_of_the_class_of_the_nearest():
    view = _view()
    nearest = view.scorer("cosine").matrix(view.queries, view.gallery).argmax(1)
    expected = view.posterior()[view.queries].gather(1, view.labels[view.gallery][nearest][:, None]).squeeze(1)
    assert torch.equal(_answers(view), expected)


def test_over_draws_of_the_classes_regrets_have_the_expected_mean():
    """The area is linear in the risks, so its mean over draws is the area of the expected risks."""
    views = [_view(seed) for seed in range(60)]
    found = [_regrets(view) for view in views]
    posterior, p = views[0].posterior()[:QUERIES], _answers(views[0])
    confidences = {OBSERVER_IMAGE: posterior.amax(1), "random": views[0].confidences["random"][:QUERIES]}
    confidences["margin"] = views[0].retrieval_confidences("cosine")["margin"]
    for name, values in confidences.items():
        drawn = torch.tensor([each[name] for each in found], dtype=torch.float64)
        expected = augrc(values, 1 - p) - augrc(p, 1 - p)
        assert expected > 0
        assert abs(float(drawn.mean()) - expected) < 3.5 * float(drawn.std()) / len(drawn) ** 0.5


def test_tied_answers_count_by_their_mean_however_many_they_are():
    # Every image of the gallery is as near as any other.
    few, options = torch.arange(10), Options(filter_fractions=())
    view = _view(each=40, tied=True, queries=few, options=options)
    assert bool((view.ranking("cosine").beyond > 0).all())
    with pytest.raises(ValueError, match="tied for the nearest place; rank the whole gallery"):
        _answers(view)
    whole = rank(view.scorer("cosine"), view.labels, depth=len(view), queries=view.queries, gallery=view.gallery)
    p = answer_probability(view.posterior()[few], view.labels, whole)
    torch.testing.assert_close(p, torch.full((10,), 1 / CLASSES, dtype=torch.float64))
    # All answers are equally uncertain: every confidence is as good as the observer.
    assert _regrets(view)["random"] == pytest.approx(0, abs=1e-12)


def test_queries_without_a_posterior_or_a_positive_are_left_out():
    view = _view()
    p = view.posterior()
    p[:40] = math.nan
    labels = view.labels.clone()
    labels[40:50] = CLASSES
    p = torch.cat([p, torch.zeros(len(p), 1, dtype=p.dtype)], 1)
    rows = [row for row in ambiguity(_view(posterior=lambda: p, labels=labels), "cosine") if row["metric"] != RHO]
    assert {(row["n_queries"], row["n_lone"]) for row in rows} == {(QUERIES - 50, 10)}
    kept = torch.arange(50, QUERIES)
    positions = torch.cat([kept, view.gallery])
    scores = view.scorer("cosine").matrix(torch.arange(len(view)), torch.arange(len(view)))
    given = {"labels": view.labels[positions], "confidences": {"random": view.confidences["random"][positions]}}
    roles = {"queries": torch.arange(len(kept)), "gallery": torch.arange(len(kept), len(positions))}
    of = {"scores": scores[positions][:, positions], "posterior": lambda: view.posterior()[positions]}
    alone = view_of(**given, **roles, **of)
    found = {row["confidence"]: row["value"] for row in rows}
    for row in (row for row in ambiguity(alone, "cosine") if row["metric"] != RHO):
        assert row["value"] == pytest.approx(found[row["confidence"]], abs=1e-12), row["confidence"]


def test_nothing_is_said_if_no_query_has_a_posterior():
    view = _view(posterior=lambda: torch.full((QUERIES + 2 * CLASSES, CLASSES), math.nan))
    assert list(ambiguity(view, "cosine")) == []


def test_confidences_follow_the_entropy_of_the_posterior():
    p = _view().posterior()
    certainty = torch.nan_to_num((p * p.log()).sum(1))
    view = _view(confidences={"norm": certainty, "method": -certainty, "random": torch.zeros(len(certainty))})
    found = {row["confidence"]: row["value"] for row in ambiguity(view, "cosine") if row["metric"] == RHO}
    assert found["norm"] == pytest.approx(1)
    assert found["method"] == pytest.approx(-1)
    assert math.isnan(found["random"])  # a constant has no correlation


def test_known_ambiguity_is_that_of_clean_images():
    tests = load_tests(["ambiguity"])
    assert {row["metric"] for row in run_battery(_view(), tests)} == {"augrc_regret", "observer_augrc", RHO}
    assert run_battery(_view(clean=False), tests) == []
    assert run_battery(_view(posterior=None), tests) == []


def test_observers_do_not_compete():
    assert kind_of(OBSERVER) == kind_of(OBSERVER_IMAGE) == "control"
