"""Loss prediction against a plain loop, its optimum and the paths of its gradients."""

import math

import pytest
import torch
from bench.conformance.method_checks import build
from bench.methods.distributions import PointMass, RatedPoint
from bench.methods.loss_prediction import GAP, LossPrediction, PredictedCrossEntropy, order_loss
from bench.methods.losses import CosineClassifier

F64 = torch.float64
SCALE, WEIGHT = 7.0, 0.3


@pytest.fixture
def objective():
    torch.manual_seed(0)
    params = LossPrediction.Params(scale=SCALE, prediction_weight=WEIGHT)
    return PredictedCrossEntropy(5, 4, params).double()


@pytest.fixture
def batch():
    """Points, predictions and labels of 6 images."""
    gen = torch.Generator().manual_seed(1)
    points = 3.0 * torch.randn(6, 4, dtype=F64, generator=gen)
    return points, 2.0 * torch.rand(6, dtype=F64, generator=gen), torch.tensor([0, 4, 2, 2, 1, 3])


def _cross_entropies(objective, points, labels):
    """Loss of each image, one number after another."""
    weight = objective.weight.detach().tolist()
    losses = []
    for z, label in zip(points.tolist(), labels.tolist()):
        logits = [SCALE * sum(a * b for a, b in zip(z, w)) / math.hypot(*z) / math.hypot(*w) for w in weight]
        losses.append(math.log(sum(map(math.exp, logits))) - logits[label])
    return losses


def test_the_loss_is_that_of_a_plain_loop(objective, batch):
    points, predicted, labels = batch
    losses = _cross_entropies(objective, points, labels)
    errors = [(u - loss) ** 2 for u, loss in zip(predicted.tolist(), losses)]
    wanted = sum(losses) / 6 + WEIGHT * sum(errors) / 6
    assert objective(RatedPoint(points, predicted), labels).item() == pytest.approx(wanted, rel=1e-12)


def test_predictions_are_pulled_to_the_losses_and_do_not_change_what_the_embedding_learns(objective, batch):
    points, predicted, labels = (x.requires_grad_() if x.is_floating_point() else x for x in batch)
    losses = torch.tensor(_cross_entropies(objective, points, labels), dtype=F64)
    found = torch.autograd.grad(objective(RatedPoint(points, predicted), labels), (points, predicted, objective.weight))
    plain = CosineClassifier.forward(objective, PointMass(points), labels)
    for_points, for_weight = torch.autograd.grad(plain, (points, objective.weight))
    torch.testing.assert_close(found[0], for_points, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found[1], 2 * WEIGHT * (predicted - losses).detach() / 6, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found[2], for_weight, rtol=1e-12, atol=1e-14)


def test_the_loss_of_the_order_is_that_of_a_plain_loop(batch):
    points, predicted, labels = batch
    params = LossPrediction.Params(scale=SCALE, prediction_weight=WEIGHT, predict="order")
    objective = PredictedCrossEntropy(5, 4, params).double()
    losses, u = _cross_entropies(objective, points, labels), predicted.tolist()
    hinges = [
        max(0.0, GAP - (u[i] - u[j]) * (1 if losses[i] > losses[j] else -1)) for i in range(6) for j in range(i + 1, 6)
    ]
    wanted = sum(losses) / 6 + WEIGHT * sum(hinges) / 15
    assert objective(RatedPoint(points, predicted), labels).item() == pytest.approx(wanted, rel=1e-12)


def test_the_loss_of_the_order_is_of_no_scale_and_vanishes_for_the_right_order():
    losses, predicted = torch.rand(2, 8, dtype=F64, generator=torch.Generator().manual_seed(3))
    assert order_loss(predicted, 100 * losses) == order_loss(predicted, losses)
    ranks = losses.argsort().argsort().double()
    assert order_loss(GAP * ranks, losses) == pytest.approx(0, abs=1e-12)
    assert order_loss(-GAP * ranks, losses) > GAP
    assert order_loss(predicted[:1], losses[:1]) == 0
    assert order_loss(predicted, torch.ones(8, dtype=F64)).item() == pytest.approx(GAP)


@pytest.mark.parametrize("stop", [False, True])
def test_the_gradient_of_the_prediction_reaches_the_backbone_unless_it_is_stopped(stop):
    model = build(LossPrediction, stop_gradient=stop)
    uncertainty = model(torch.randn(4, 1, 20, 20)).distribution.uncertainty
    backbone, head = list(model.backbone.parameters()), list(model.spread.parameters())
    found = torch.autograd.grad(uncertainty.sum(), backbone + head, allow_unused=True)
    assert all(gradient is not None for gradient in found[len(backbone) :])
    reached = [gradient is not None and bool(gradient.abs().sum() > 0) for gradient in found[: len(backbone)]]
    assert any(reached) is not stop


def test_the_confidence_is_the_negative_predicted_loss():
    method = LossPrediction()
    raw, spread = torch.randn(3, 4), torch.tensor([[-40.0], [0.0], [30.0]])
    embedding = method.distribution(raw, spread)
    assert torch.equal(embedding.mean, raw)
    wanted = [-math.log1p(math.exp(s)) for s in (-40.0, 0.0, 30.0)]
    assert method.confidence(embedding).tolist() == pytest.approx(wanted, rel=1e-6)
    assert (method.probabilistic, method.default_confidence) == (True, "method")


def test_the_gradient_of_the_order_is_the_count_of_wrong_pairs(batch):
    """Each pair within the gap pulls the prediction of the larger loss up by 1 / 15, and the other one down."""
    losses = torch.tensor([5.0, 1.0, 3.0, 2.0, 6.0, 4.0], dtype=F64)
    u = (0.07 * torch.arange(6, dtype=F64)).requires_grad_()
    (slope,) = torch.autograd.grad(order_loss(u, losses), u)
    wanted = [0.0] * 6
    for i in range(6):
        for j in range(6):
            if losses[i] > losses[j] and u[i] - u[j] < GAP:
                wanted[i] -= 1 / 15
                wanted[j] += 1 / 15
    torch.testing.assert_close(slope, torch.tensor(wanted, dtype=F64), rtol=1e-12, atol=1e-14)
