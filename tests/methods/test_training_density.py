"""Free confidences of the training data against loops, scikit-learn and SciPy, and in worlds of known answers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bench.methods import training_density
from bench.methods.distributions.von_mises_fisher import shared_concentration
from bench.methods.training_density import TrainingDensity
from scipy.special import logsumexp
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import NearestNeighbors

NAMES = ("knn_density", "mahalanobis", "relative_mahalanobis", "vmf_mixture")


def unit(values: torch.Tensor) -> torch.Tensor:
    return F.normalize(values.double(), dim=-1)


def world(count: int, classes: int, dim: int, noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    centres = unit(torch.randn(classes, dim, generator=draw))
    labels = torch.randint(classes, (count,), generator=draw)
    return unit(centres[labels] + noise * torch.randn(count, dim, generator=draw)), labels


def found(train: torch.Tensor, labels: torch.Tensor, test: torch.Tensor) -> dict[str, np.ndarray]:
    density = TrainingDensity.of(train.__getitem__, labels)
    return {name: values.numpy() for name, values in density.confidences(test.__getitem__, len(test)).items()}


@pytest.mark.parametrize(("count", "classes", "dim"), [(1500, 12, 6), (40, 5, 60), (30, 1, 4), (1200, 1100, 3)])
def test_values_equal_loops_with_other_libraries(count: int, classes: int, dim: int) -> None:
    (train, labels), (test, _) = world(count, classes, dim, 0.4), world(90, 7, dim, 0.5, seed=1)
    values = found(train, labels, test)
    x, y, z = train.numpy(), labels.numpy(), test.numpy()
    shown = [*dict.fromkeys(y.tolist())][: training_density.CLASSES]
    means = {c: x[y == c].mean(0) for c in set(y.tolist())}
    residuals = np.array([row - means[c] for row, c in zip(x, y.tolist())])
    within = np.linalg.inv(LedoitWolf(assume_centered=True).fit(residuals).covariance_ + 1e-12 * np.eye(dim))
    total = np.linalg.inv(LedoitWolf().fit(x).covariance_ + 1e-12 * np.eye(dim))
    near, _ = NearestNeighbors(n_neighbors=10, algorithm="brute").fit(x).kneighbors(z)
    density = TrainingDensity.of(train.__getitem__, labels)
    concentration, peak = shared_concentration(train, labels)
    assert (density.concentration, density.peak) == pytest.approx((concentration, peak), rel=1e-12)
    share = np.array([(y == c).sum() for c in shown]) / np.isin(y, shown).sum()
    for place, row in enumerate(z):
        distance = min((row - means[c]) @ within @ (row - means[c]) for c in shown)
        of_all = (row - x.mean(0)) @ total @ (row - x.mean(0))
        logits = [density.concentration * row @ means[c] / np.linalg.norm(means[c]) for c in shown]
        expected = (1 - np.mean(near[place] ** 2) / 2, -distance, of_all - distance, logsumexp(logits, b=share))
        for name, value in zip(NAMES, expected):
            assert values[name][place] == pytest.approx(value, rel=1e-6, abs=1e-7), name


def test_many_embeddings_have_the_values_of_few_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    (train, labels), (test, _) = world(3000, 40, 32, 0.3), world(2500, 30, 32, 0.4, seed=1)
    exact = found(train, labels, test)
    monkeypatch.setattr(training_density, "EXACT", 10)
    for name, values in found(train, labels, test).items():
        np.testing.assert_allclose(values, exact[name], rtol=2e-5, atol=2e-6, err_msg=name)


def test_large_concentrations_keep_their_order_in_many_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    (train, labels), (test, _) = world(2000, 300, 64, 1e-4), world(400, 30, 64, 1e-4, seed=1)
    exact = found(train, labels, test)["vmf_mixture"]
    monkeypatch.setattr(training_density, "EXACT", 10)
    np.testing.assert_allclose(found(train, labels, test)["vmf_mixture"], exact, rtol=1e-9)


def test_only_the_first_are_sought_and_every_image_counts_for_the_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    (train, labels), (test, _) = world(600, 20, 8, 0.3), world(50, 7, 8, 0.4, seed=1)
    whole = found(train, labels, test)
    monkeypatch.setattr(training_density, "SOUGHT", 100)
    fewer = found(train, labels, test)
    cosines = np.sort(test.numpy() @ train[:100].numpy().T, axis=1)[:, -10:].mean(1)
    np.testing.assert_allclose(fewer["knn_density"], cosines, rtol=1e-12)
    np.testing.assert_array_equal(fewer["mahalanobis"], whole["mahalanobis"])


@pytest.mark.parametrize("what", ["equal", "one image", "single images", "one class", "wide", "two", "pairs"])
def test_degenerate_training_data_give_finite_values(what: str) -> None:
    train, labels = world(60, 4, 5, 0.3)
    if what == "equal":
        train = train[:1].expand(60, -1)
    elif what == "one image":
        train, labels = train[:1], labels[:1]
    elif what == "single images":
        labels = torch.arange(60)
    elif what == "one class":
        labels = torch.zeros(60, dtype=torch.long)
    elif what == "two":  # the noise of two equally frequent embeddings is exactly 0, and nothing is shrunk
        train, labels = unit(torch.randn(2, 16)).repeat(30, 1), torch.zeros(60, dtype=torch.long)
    elif what == "pairs":
        train, labels = unit(torch.randn(2, 64)).repeat(30, 1), torch.arange(60) % 2
        train[::4] = -train[::4]
    else:
        train = unit(torch.randn(20, 300, generator=torch.Generator().manual_seed(0)))
        labels = torch.arange(20) // 4
    test = world(30, 6, train.shape[1], 0.5, seed=3)[0]
    for name, values in found(train, labels, test).items():
        assert np.isfinite(values).all(), name
    if what in ("one image", "one class", "two"):
        assert not found(train, labels, test)["relative_mahalanobis"].any()
    if what in ("one image", "single images"):
        assert np.ptp(found(train, labels, test)["vmf_mixture"]) == 0
