"""vMF-FL is a cross-entropy over class likelihoods, whichever way the likelihoods are computed."""

import pytest
import torch
import torch.nn.functional as F
from bench.methods._model import classifier_confidences
from bench.methods.distributions import IsotropicNormal, VonMisesFisher
from bench.methods.vmf_fl import LikelihoodClassifier

F64 = torch.float64


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
