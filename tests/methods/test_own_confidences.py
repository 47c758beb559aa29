"""Class confidences come from the objective's own logits, not from another model's cosines."""

import math

import numpy as np
import pytest
import torch
from bench.methods._model import classifier_confidences
from bench.methods.distributions import VonMisesFisher
from bench.methods.el_nivmf import ElNivmf
from bench.methods.proxy_anchor_el_nivmf import ProxyAnchorElNivmf
from bench.methods.proxy_distance import ProxyDistance
from bench.methods.vmf_loss import VmfLossMethod
from scipy import integrate, special, stats

CLASSES, DIM = 5, 4
DISTANCES = ("cosine", "l2", "nivmf", "el_vmf", "b_vmf", "kl_vmf")


def _images(count=12, dim=DIM):
    gen = torch.Generator().manual_seed(2)
    raw = 3.0 * torch.randn(count, dim, generator=gen)
    return VonMisesFisher(raw, raw.norm(dim=-1))


def _objective(cls, **params):
    torch.manual_seed(0)
    objective = cls(cls.Params(**params)).objective(CLASSES, DIM)
    with torch.no_grad():  # each class (and dimension) has another concentration
        objective.raw_concentration.add_(0.3 * torch.randn_like(objective.raw_concentration))
    return objective


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


@pytest.mark.parametrize("distance", DISTANCES)
def test_the_probabilities_of_a_distance_are_those_its_cross_entropy_trains(distance):
    """They were softmax(cosine x mean concentration / t), whatever the distance."""
    objective, images = _objective(ProxyDistance, distance=distance, temperature=0.5), _images()
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
