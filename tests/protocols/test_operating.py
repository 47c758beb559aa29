"""Operating points in runs: what thresholds of validation classes give on test classes, against loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from bench.methods.distributions.normal import PointMass
from bench.methods.scorers.spec import DistributionScorer

from .views import rows_of, view_of


def _view(seed, noise, classes=30, each=8, dim=6, **more):
    draw = np.random.default_rng(seed)
    labels = np.arange(classes).repeat(each)
    points = draw.normal(size=(classes, dim))[labels] + noise * draw.normal(size=(len(labels), dim))
    unit = torch.from_numpy(points / np.linalg.norm(points, axis=1, keepdims=True))
    scorer = DistributionScorer("cosine", PointMass(unit))
    confidences = {"norm": torch.from_numpy(draw.normal(size=len(labels)))}
    return view_of(torch.from_numpy(labels), scorer, confidences=confidences, directions=lambda: unit, **more)


def _rows(view):
    return rows_of(view, "operating", "metric", "variant")


def _looked_up(view, gallery=None):
    """Margin, agreement of the seven nearest and right answer of each query, by a loop over the images."""
    unit, labels = view.unit_vectors.numpy(), view.labels.numpy()
    gallery = np.arange(len(labels)) if gallery is None else gallery.numpy()
    found = []
    for query in range(len(labels)):
        others = gallery[gallery != query]
        cosines, classes = unit[others] @ unit[query], labels[others]
        answer = classes[cosines.argmax()]
        near = classes[np.argsort(-cosines)[:7]]
        margin = cosines.max() - cosines[classes != answer].max()
        found.append((margin, (near == answer).mean(), answer == labels[query]))
    return (np.array(column) for column in zip(*found))


def test_thresholds_of_validation_are_applied_to_test_images_as_by_a_loop():
    validation = _view(0, 0.4)
    view = _view(1, 0.4, validation=validation)
    found = _rows(view)
    form = validation._cache["operating points cosine"]["answer"].form
    assert set(form) <= {"margin", "agreement"}

    def sums(*gallery):
        margin, agreement, right = _looked_up(*gallery)
        return form.get("margin", 0.0) * margin + form.get("agreement", 0.0) * agreement, right

    known, right = sums(validation)
    order = np.argsort(-known)
    risk = (~right[order]).cumsum() / np.arange(1, len(order) + 1)
    threshold = known[order][np.flatnonzero(risk <= 0.05)[-1]] - 1e-6
    least = np.sort(known)[::-1][int(np.ceil(0.8 * len(known))) - 1] - 1e-6
    values, right = sums(view)
    row = found["operating_risk", "risk=0.05"]
    assert (row["confidence"], row["n_queries"]) == ("+".join(form), len(view))
    assert row["value"] == pytest.approx((~right)[values >= threshold].mean())
    assert found["operating_coverage", "risk=0.05"]["value"] == pytest.approx((values >= threshold).mean())
    assert found["operating_coverage", "coverage=0.8"]["value"] == pytest.approx((values >= least).mean())
    smaller = view._cache["smaller gallery cosine"]
    kept = torch.isin(view.labels, view.labels[smaller.gallery]).numpy()
    values, right = sums(view, smaller.gallery)
    half = found["operating_risk", "risk=0.05,gallery=half"]
    assert (half["n_queries"], half["n_lone"]) == (kept.sum(), (~kept).sum())
    assert half["value"] == pytest.approx((~right)[kept & (values >= threshold)].mean())


def test_pairs_and_unknown_queries_go_by_thresholds_of_their_own():
    view = _view(1, 0.3, validation=_view(0, 0.3))
    found = {key: row["value"] for key, row in _rows(view).items()}
    for which in ("pair", "unknown"):
        variant = f"{which},far=0.01"
        assert 2 * found["operating_far", variant] < found["operating_tar", variant]


def test_more_noise_breaks_the_promise_and_what_was_trained_on_makes_none():
    validation = _view(0, 0.3)
    alike, worse = (_rows(_view(1, noise, validation=validation)) for noise in (0.3, 0.6))
    key = ("operating_risk", "risk=0.05")
    assert alike[key]["value"] < 0.15 < 0.25 < worse[key]["value"]
    assert _rows(_view(2, 0.5)) == {}
    assert _rows(replace(_view(2, 0.5, validation=validation), validation_split="train")) == {}
