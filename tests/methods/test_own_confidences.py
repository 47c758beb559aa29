"""Confidences of classes and of the training data against loops, scikit-learn and SciPy."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bench.methods import training_density
from bench.methods._model import classifier_confidences
from bench.methods.distributions import VonMisesFisher
from bench.methods.distributions.von_mises_fisher import shared_concentration
from bench.methods.el_nivmf import ElNivmf
from bench.methods.proxy_anchor_el_nivmf import ProxyAnchorElNivmf
from bench.methods.proxy_distance import ProxyDistance
from bench.methods.training_density import TrainingDensity
from bench.methods.vmf_loss import VmfLossMethod
from scipy import integrate, special, stats
from scipy.special import logsumexp
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import NearestNeighbors

CLASSES, DIM = 5, 4


def _images(count=12, dim=DIM):
    raw = 3.0 * torch.randn(count, dim, generator=torch.Generator().manual_seed(2))
    return VonMisesFisher(raw, raw.norm(dim=-1))


def _log_c(k, dim=DIM):
    return (dim / 2 - 1) * np.log(k) - dim / 2 * np.log(2 * np.pi) - np.log(special.ive(dim / 2 - 1, k)) - k


def _similarity(distance, z, mu, k):
    """-d of an image z and a proxy, with SciPy's Bessel functions (EL-nivMF paper, section 4)."""
    kz = np.linalg.norm(z)
    unit = z / kz
    cosine = unit @ mu
    if distance == "cosine":
        return cosine
    if distance == "l2":
        return -np.square(k * mu - z).sum()
    if distance == "nivmf":
        kt = np.linalg.norm(k * mu)
        inner = (k * unit) @ (k * mu) / np.linalg.norm(k * unit)
        return _log_c(kt) + np.log(k).sum() - np.log(kt) + inner
    if distance == "kl_vmf":
        ratio = special.ive(DIM / 2, kz) / special.ive(DIM / 2 - 1, kz)
        return -(_log_c(kz) - _log_c(k) + ratio * (kz - k * cosine))
    order = 1.0 if distance == "el_vmf" else 0.5
    joint = np.linalg.norm(z + k * mu)
    return -(_log_c(order * joint) - order * (_log_c(kz) + _log_c(k)))


@pytest.mark.parametrize("distance", ["cosine", "l2", "nivmf", "el_vmf", "b_vmf", "kl_vmf"])
def test_the_probabilities_of_a_distance_are_those_its_cross_entropy_trains(distance):
    """They were softmax(cosine x mean concentration / t), whatever the distance."""
    torch.manual_seed(0)
    method = ProxyDistance(ProxyDistance.Params(distance=distance, temperature=0.5))
    objective, images = method.objective(CLASSES, DIM), _images()
    with torch.no_grad():  # each class (and dimension) has another concentration
        objective.raw_concentration.add_(0.3 * torch.randn_like(objective.raw_concentration))
    z = (images.loc * images.concentration[:, None]).double().numpy()
    mu, k = objective.directions().detach().double().numpy(), objective.concentration().detach().double().numpy()
    logits = np.array([[_similarity(distance, row, mu[c], k[c]) / 0.5 for c in range(CLASSES)] for row in z])
    p = special.softmax(logits, axis=1)
    found = classifier_confidences(objective, images)
    np.testing.assert_allclose(found["max_probability"].detach(), np.log(p.max(1)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["neg_entropy"].detach(), -stats.entropy(p, axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["max_cosine"].detach(), (images.loc.numpy() @ mu.T).max(1), rtol=1e-5)
    loss = objective(images, torch.arange(12) % CLASSES).item()
    assert loss == pytest.approx(-np.log(p[np.arange(12), np.arange(12) % CLASSES]).mean(), rel=1e-5)


@pytest.mark.parametrize("cls", [ElNivmf, ProxyAnchorElNivmf])
@pytest.mark.parametrize("fidelity", ["corrected", "released"])
def test_expected_likelihood_confidences_repeat_and_leave_the_random_state_alone(cls, fidelity):
    torch.manual_seed(0)
    objective, images = cls(cls.Params(form=fidelity)).objective(CLASSES, DIM), _images()
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    first = classifier_confidences(objective, images)
    assert torch.equal(torch.rand(3), wanted)
    second = classifier_confidences(objective, images)
    for name, value in first.items():
        assert torch.equal(value, second[name])


def test_expected_likelihood_probabilities_are_those_of_the_integral():
    """With K a multiple of the identity it is closed form: C(k) C(k_c) / C(|z + k_c mu|)."""
    torch.manual_seed(0)
    objective = ElNivmf(ElNivmf.Params(samples=20_000, concentration=4.0, temperature=0.7)).objective(CLASSES, DIM)
    images = _images()
    z, mu = (images.loc * images.concentration[:, None]).double(), objective.directions().detach().double()
    joint = (z[:, None] + 4.0 * mu).norm(dim=-1).numpy()
    log_p = special.log_softmax(-_log_c(joint) / 0.7, axis=1)
    found = classifier_confidences(objective, images)
    np.testing.assert_allclose(found["max_probability"].detach(), log_p.max(1), atol=0.05)
    np.testing.assert_allclose(found["neg_entropy"].detach(), (np.exp(log_p) * log_p).sum(1), atol=0.05)


def test_vmf_loss_probabilities_are_expected_likelihoods_of_its_classes():
    """p_c is proportional to E exp(beta w.m) over w ~ vMF_c, m the mean of the image: by quadrature over the cosine."""
    torch.manual_seed(0)
    method = VmfLossMethod(VmfLossMethod.Params(temperature=6.0))
    objective, images = method.objective(CLASSES, DIM), _images()
    weight, mean = objective.weight.detach().double(), images.mean.double()
    logits = np.empty((len(mean), CLASSES))
    for c, v in enumerate(weight):
        k = v.norm().item()
        for i, m in enumerate(mean):
            tilted = (v + 6.0 * m).norm().item()

            def mass(t):  # surface integral of exp(t cos) up to what depends on D only
                return integrate.quad(lambda w: math.exp(t * w) * (1 - w * w) ** ((DIM - 3) / 2), -1, 1)[0]

            logits[i, c] = math.log(mass(tilted) / mass(k))
    p = special.softmax(logits, axis=1)
    found = classifier_confidences(objective, images)
    np.testing.assert_allclose(found["max_probability"].detach(), np.log(p.max(1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["neg_entropy"].detach(), -stats.entropy(p, axis=1), rtol=1e-4, atol=1e-5)


def test_vmf_loss_with_point_classes_is_a_softmax_of_scaled_inner_products():
    torch.manual_seed(0)
    objective = VmfLossMethod(VmfLossMethod.Params(temperature=6.0, classes="point")).objective(CLASSES, DIM)
    images = _images()
    weight = objective.weight.detach().double().numpy()
    unit = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    log_p = special.log_softmax(6.0 * images.mean.double().numpy() @ unit.T, axis=1)
    found = classifier_confidences(objective, images)
    np.testing.assert_allclose(found["max_probability"].detach(), log_p.max(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [13.7, torch.tensor(5.3), 20 * torch.rand(70, 1)])
def test_blocks_of_images_change_no_bit_of_the_confidences_of_many_classes(scale):
    """The probabilities of many classes are made block by block; once they were made for all images together."""
    objective, g = torch.nn.Module(), torch.Generator().manual_seed(0)
    cosines = 2 * torch.rand(70, 5003, generator=g) - 1
    objective.class_cosines = lambda points: (cosines, scale)
    log_p = torch.log_softmax(scale * cosines.double(), dim=-1)
    found = classifier_confidences(objective, None)
    assert torch.equal(found["max_probability"], log_p.amax(-1))
    assert torch.equal(found["neg_entropy"], (log_p.exp() * log_p).sum(-1))
    objective.class_logits = lambda points: cosines
    log_p = torch.log_softmax(cosines.double(), dim=-1)
    assert torch.equal(classifier_confidences(objective, None)["neg_entropy"], (log_p.exp() * log_p).sum(-1))


def unit(values: torch.Tensor) -> torch.Tensor:
    return F.normalize(values.double(), dim=-1)


def world(count: int, classes: int, dim: int, noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    centres = unit(torch.randn(classes, dim, generator=draw))
    labels = torch.randint(classes, (count,), generator=draw)
    return unit(centres[labels] + noise * torch.randn(count, dim, generator=draw)), labels


def found(train: torch.Tensor, labels: torch.Tensor, test: torch.Tensor) -> dict[str, np.ndarray]:
    density = TrainingDensity(train.__getitem__, labels)
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
    density = TrainingDensity(train.__getitem__, labels)
    concentration, peak = shared_concentration(train, labels)
    assert (density.concentration, density.peak) == pytest.approx((concentration, peak), rel=1e-12)
    share = np.array([(y == c).sum() for c in shown]) / np.isin(y, shown).sum()
    for place, row in enumerate(z):
        distance = min((row - means[c]) @ within @ (row - means[c]) for c in shown)
        of_all = (row - x.mean(0)) @ total @ (row - x.mean(0))
        logits = [density.concentration * row @ means[c] / np.linalg.norm(means[c]) for c in shown]
        expected = (1 - np.mean(near[place] ** 2) / 2, -distance, of_all - distance, logsumexp(logits, b=share))
        for name, value in zip(("knn_density", "mahalanobis", "relative_mahalanobis", "vmf_mixture"), expected):
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


SIGNS = torch.where(torch.arange(60) % 4 == 0, -1.0, 1.0)[:, None]
DEGENERATE = {
    "equal": lambda x, y: (x[:1].expand(60, -1), y),
    "one image": lambda x, y: (x[:1], y[:1]),
    "single images": lambda x, y: (x, torch.arange(60)),
    "one class": lambda x, y: (x, torch.zeros(60, dtype=torch.long)),
    "wide": lambda x, y: (unit(torch.randn(20, 300)), torch.arange(20) // 4),
    # The noise of two equally frequent embeddings is exactly 0, and nothing is shrunk.
    "two": lambda x, y: (unit(torch.randn(2, 16)).repeat(30, 1), torch.zeros(60, dtype=torch.long)),
    "pairs": lambda x, y: (SIGNS * unit(torch.randn(2, 64)).repeat(30, 1), torch.arange(60) % 2),
}


@pytest.mark.parametrize("what", DEGENERATE)
def test_degenerate_training_data_give_finite_values(what: str) -> None:
    train, labels = DEGENERATE[what](*world(60, 4, 5, 0.3))
    test = world(30, 6, train.shape[1], 0.5, seed=3)[0]
    for name, values in found(train, labels, test).items():
        assert np.isfinite(values).all(), name
    if what in ("one image", "one class", "two"):
        assert not found(train, labels, test)["relative_mahalanobis"].any()
    if what in ("one image", "single images"):
        assert np.ptp(found(train, labels, test)["vmf_mixture"]) == 0
