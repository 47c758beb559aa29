"""vMF-loss against a plain autograd form, Monte Carlo and the authors' closed form; vMF-FL as a cross-entropy."""

import csv
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from bench.methods._model import classifier_confidences
from bench.methods.distributions import IsotropicNormal, VonMisesFisher, vmf_log_normalizer, vmf_mean_resultant_length
from bench.methods.distributions.von_mises_fisher import released_rsample
from bench.methods.vmf_fl import LikelihoodClassifier
from bench.methods.vmf_loss import VmfLoss, VmfLossMethod, _MeanLogSum

F64 = torch.float64


@pytest.mark.parametrize("dim", [3, 16, 128])
def test_the_blocked_log_sum_equals_autograd_in_value_and_gradients(dim, monkeypatch):
    torch.manual_seed(0)
    z = F.normalize(torch.randn(21, dim, dtype=F64), dim=-1).requires_grad_()
    v = (3 * torch.randn(7, dim, dtype=F64)).requires_grad_()
    beta = torch.tensor(9.0, dtype=F64, requires_grad=True)
    k = v.square().sum(-1).sqrt()
    joint = (k.square() + beta.square() + 2 * beta * (z @ v.mT)).sqrt()
    plain = torch.logsumexp(vmf_log_normalizer(k, dim) - vmf_log_normalizer(joint, dim), 1).mean()
    truth = torch.autograd.grad(3 * plain, (z, v, beta))
    monkeypatch.setattr("bench.methods.vmf_loss._BLOCK_ELEMENTS", 40)
    value = _MeanLogSum.apply(z, v, beta)
    found = torch.autograd.grad(3 * value, (z, v, beta))
    torch.testing.assert_close(value, plain, rtol=1e-12, atol=1e-12)
    for a, b in zip(found, truth):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_the_loss_bounds_the_expected_cross_entropy_over_class_draws():
    torch.manual_seed(0)
    dim, classes = 8, 5
    params = VmfLossMethod.Params(temperature=6.0, class_length=0.5, samples=4000)
    objective = VmfLoss(classes, dim, params, released=False).double()
    x = VonMisesFisher(torch.randn(6, dim, dtype=F64), torch.full((6,), 20.0, dtype=F64))
    labels = torch.arange(6) % classes
    k = objective.weight.detach().norm(dim=-1)
    w = VonMisesFisher(objective.weight.detach(), k).sample((4000,))
    z = x.sample((4000,))
    logits = 6.0 * torch.einsum("sbd,scd->sbc", z, w)
    cross_entropy = F.cross_entropy(logits.reshape(-1, classes), labels.repeat(4000), reduction="none")
    loss = objective(x, labels).item()
    assert loss > cross_entropy.mean().item()
    # With the sum over classes in expectation, the bound is an equality: E log sum_c E_w exp(beta w.z) - E beta w_y.z.
    inner = torch.logsumexp(6.0 * torch.einsum("sbd,tcd->stbc", z[:40], w[:2000]), 1) - torch.tensor(2000.0).log()
    own = 6.0 * (x.mean * (vmf_mean_resultant_length(k, dim)[:, None] * F.normalize(objective.weight))[labels]).sum(-1)
    assert loss == pytest.approx((torch.logsumexp(inner, -1).mean() - own.mean()).item(), abs=0.05)


ROWS = list(csv.DictReader((Path(__file__).parents[1] / "golden" / "released_sampler.csv").open()))


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"d{r['M']}-k{r['kappa']}")
def test_the_released_sampler_has_the_public_sampler_s_faults(row):
    dim, kappa, n = int(row["M"]), float(row["kappa"]), 4000
    torch.manual_seed(dim)
    mu = F.normalize(torch.randn(dim, dtype=F64), dim=0)
    z = released_rsample(VonMisesFisher(mu.expand(n, dim), torch.full((n,), kappa, dtype=F64)))
    cosine = z @ mu
    error = 5 * (2 / n) ** 0.5 * float(row["ref_sd_cos"])
    assert cosine.mean().item() == pytest.approx(float(row["ref_mean_cos"]), abs=max(error, 2e-4))


@pytest.mark.parametrize("kind", ["vmf", "normal"])
def test_the_loss_is_the_cross_entropy_over_log_densities(kind):
    torch.manual_seed(0)
    mu, spread = F.normalize(torch.randn(6, 5, dtype=F64), dim=-1), 0.1 + torch.rand(6, dtype=F64)
    x = VonMisesFisher(mu, 9.0 / spread) if kind == "vmf" else IsotropicNormal(mu, spread)
    objective = LikelihoodClassifier(4, 5).double()
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    w = F.normalize(objective.weight, dim=-1)
    likelihood = torch.stack([x.log_prob(w[c]) for c in range(4)], 1)
    torch.testing.assert_close(objective(x, labels), F.cross_entropy(likelihood, labels))
    found = classifier_confidences(objective, x)
    probability = torch.softmax(likelihood, 1)
    torch.testing.assert_close(found["max_probability"], probability.amax(1).log())
    torch.testing.assert_close(found["neg_entropy"], (probability * probability.log()).sum(1))
