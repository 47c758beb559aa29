"""What the scale of the softmax does to the variance of DUL-cls: the gradient in its docstring, and the turn-over."""

import math

import pytest
import torch
from bench.methods.distributions import IsotropicNormal
from bench.methods.dul_cls import SampledClassification
from bench.methods.losses import CosFaceLoss

D, MARGIN, KL, VARIANCE, DRAWS = 64, 0.2, 1e-4, 4e-5, 20_000


@pytest.mark.parametrize(("scale", "pulled"), [(8.0, "easy"), (24.0, "between classes")])
def test_the_pull_on_log_variance_is_the_derived_one_and_turns_over(scale, pulled):
    torch.manual_seed(0)
    loss = SampledClassification(CosFaceLoss(40, D, scale, MARGIN).double(), KL)
    weights = torch.eye(40, D).double()
    loss.classifier.weight.data.copy_(weights)
    pulls, errors = {}, []
    for name, image in {"easy": weights[0] + (1 - weights.sum(0)) / 5, "between classes": weights[:8].sum(0)}.items():
        mean, log_variance = image / image.norm(), torch.tensor(math.log(VARIANCE)).double().requires_grad_()
        drawn = IsotropicNormal(mean.expand(DRAWS, D), log_variance.exp().expand(DRAWS))
        loss(drawn, torch.zeros(DRAWS, dtype=torch.long)).backward()
        cosines = weights @ mean
        p, across = (scale * (cosines - MARGIN * weights[0, :40])).softmax(-1), weights - cosines[:, None] * mean
        a, v = cosines[0] - p @ cosines, p @ across.square().sum(-1) - (p @ across).square().sum()
        pulls[name] = float(VARIANCE / 2 * (scale * (D - 1) * a + scale**2 * v))
        errors.append(float(log_variance.grad) - pulls[name] + KL * D / 2 * (1 - VARIANCE))
    assert max(map(abs, errors)) < 0.08 * max(pulls.values())
    assert max(pulls, key=pulls.get) == pulled
