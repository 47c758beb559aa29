"""MagFace, AdaFace and CR-FIQA against plain loops, hand derivatives and the losses that they turn into at limits."""

import math

import pytest
import torch
from bench.conformance.method_checks import build
from bench.methods.adaface import MOMENTUM, AdaFace, AdaFaceLoss
from bench.methods.cr_fiqa import BETA, CRFIQA, CertaintyRatioLoss
from bench.methods.distributions import PointMass, RatedPoint
from bench.methods.losses import ArcFaceLoss, CosFaceLoss, arcface_cosines, cross_entropies, shifted_cosines
from bench.methods.magface import HIGHEST, LOWEST, MagFace, MagFaceLoss

F64 = torch.float64
SCALE, MARGIN = 7.0, 0.4
LABELS = torch.tensor([0, 4, 2, 2, 1, 3])


def _points(seed=1, size=20.0):
    """Points of 6 images with norms from about 0.3 to 2 times the size, as leaves in float64."""
    gen = torch.Generator().manual_seed(seed)
    norms = size * torch.linspace(0.3, 2, 6, dtype=F64)[:, None]
    directions = torch.randn(6, 4, dtype=F64, generator=gen)
    return (norms * torch.nn.functional.normalize(directions, dim=-1)).requires_grad_()


def _made(cls, *options):
    torch.manual_seed(0)
    return cls(5, 4, SCALE, *options).double()


def _angles(objective, points):
    """Angles of each point with each class weight, one number after another."""
    weight = objective.weight.detach().tolist()
    return [
        [math.acos(sum(a * b for a, b in zip(z, w)) / math.hypot(*z) / math.hypot(*w)) for w in weight]
        for z in points.tolist()
    ]


def _entropy(angles, label, target):
    """Cross-entropy of one image whose target cosine is another number."""
    logits = [SCALE * (target if c == label else math.cos(angle)) for c, angle in enumerate(angles)]
    return math.log(sum(map(math.exp, logits))) - logits[label]


def _widened(theta, m):
    return math.cos(theta) - m * math.sin(m) if theta + m >= math.pi else math.cos(max(theta + m, 0.0))


def _require_same(ours, theirs, embed=PointMass, also_loss=True):
    """Two objectives with equal weights have equal gradients, and losses."""
    points = _points()
    found = [objective(embed(points), LABELS) for objective in (ours, theirs)]
    slopes = [torch.autograd.grad(loss, (points, of.weight)) for loss, of in zip(found, (ours, theirs))]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-9, atol=1e-12)
    if also_loss:
        torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_cosines_with_margins_of_their_own_are_those_of_a_plain_loop():
    theta = torch.linspace(0.01, math.pi - 0.01, 30, dtype=F64)[:, None]
    for margin in (-1.5, -0.3, 0.0, 0.2, 1.0, 3.0):
        margins = torch.full_like(theta, margin)
        wanted = [_widened(angle, margin) for angle in theta.squeeze(1).tolist()]
        assert shifted_cosines(theta.cos(), margins).squeeze(1).tolist() == pytest.approx(wanted, abs=1e-9)
        if margin >= 0:
            torch.testing.assert_close(shifted_cosines(theta.cos(), margins), arcface_cosines(theta.cos(), margin))
    mixed = torch.linspace(-0.9, 1.4, 30, dtype=F64)[:, None]
    wanted = [_widened(angle, m) for angle, m in zip(theta.flatten().tolist(), mixed.flatten().tolist())]
    assert shifted_cosines(theta.cos(), mixed).flatten().tolist() == pytest.approx(wanted, abs=1e-9)


def _magface(margin_range=0.35, norm_weight=3.0, unit=1.0):
    params = MagFace.Params(scale=SCALE, margin=MARGIN, margin_range=margin_range, norm_weight=norm_weight)
    torch.manual_seed(0)
    objective = MagFaceLoss(5, 4, params).double()
    objective.unit.fill_(unit)
    return objective


@pytest.mark.parametrize("unit", [1.0, 0.2])
def test_the_loss_of_magface_is_that_of_a_plain_loop(unit):
    """Norms of 6 to 40, or 30 to 200 in the unit 0.2, leave the range at either end."""
    objective, points = _magface(unit=unit), _points()
    losses = []
    for z, angles, label in zip(points.tolist(), _angles(objective, points), LABELS.tolist()):
        a = min(max(math.hypot(*z) / unit, 10.0), 110.0)
        m = MARGIN + 0.35 * (a - 10) / 100
        losses.append(_entropy(angles, label, _widened(angles[label], m)) + 3.0 * (1 / a + a / 110**2))
    assert objective(PointMass(points), LABELS).item() == pytest.approx(sum(losses) / 6, rel=1e-12)
    assert torch.autograd.gradcheck(lambda z: objective(PointMass(z), LABELS), points)


@pytest.mark.parametrize(("scale", "weight", "low", "extra"), [(64.0, 35.0, 0.45, 0.35), (16.0, 3.5, 0.18, 0.14)])
def test_the_best_norm_lies_inside_the_range_and_rises_with_the_cosine(scale, weight, low, extra):
    """At the paper's constants and at the defaults, as large beside the bound of the paper's proof."""
    slope = extra / (HIGHEST - LOWEST)
    bound = scale * slope * LOWEST**2 * HIGHEST**2 / (HIGHEST**2 - LOWEST**2)
    assert weight / bound == pytest.approx(1.55, abs=0.01)
    params = MagFace.Params(scale=scale, margin=low, margin_range=extra, norm_weight=weight)
    objective = MagFaceLoss(2, 3, params).double()
    with torch.no_grad():
        objective.weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    norms, labels = torch.linspace(LOWEST, HIGHEST, 4001, dtype=F64), torch.zeros(4001, dtype=torch.long)
    best = []
    for theta in (1.0, 0.9, 0.8, 0.7):  # and a cosine of 0.6 to the other class; theta + m stays below pi / 2
        direction = torch.tensor([math.cos(theta), math.sqrt(0.64 - math.cos(theta) ** 2), 0.6], dtype=F64)
        logits = objective.training_logits(PointMass(norms[:, None] * direction), labels)
        losses = cross_entropies(logits, labels) + weight * (1 / norms + norms / 110**2)
        best.append(norms[losses.argmin()].item())
    assert LOWEST < best[0] < best[1] < best[2] < best[3] < HIGHEST


def test_without_range_and_regulariser_magface_is_arcface():
    _require_same(_magface(0.0, 0.0), _made(ArcFaceLoss, MARGIN))


def test_the_unit_of_the_norms_is_set_once_and_kept_with_the_network():
    model = build(MagFace)
    raw = torch.randn(40, 8) * torch.rand(40, 1)
    model.method.initialise(model, raw, torch.zeros(40))
    assert (raw.norm(dim=1) / model.objective.unit).mean().item() == pytest.approx(512**0.5, rel=1e-5)
    other = build(MagFace)
    other.load_state_dict(model.state_dict())
    assert other.objective.unit == model.objective.unit


def test_the_loss_of_adaface_is_that_of_a_plain_loop_over_batches():
    objective = _made(AdaFaceLoss, MARGIN, 0.8)
    mean = std = weight = 0.0
    for step in range(4):
        points = _points(step, size=1.0 + step)
        norms = [math.hypot(*z) for z in points.tolist()]
        now = sum(norms) / 6
        mean, std, weight = (
            0.99 * old + 0.01 * new
            for old, new in ((mean, now), (std, math.sqrt(sum((a - now) ** 2 for a in norms) / 6)), (weight, 1.0))
        )
        losses = []
        for a, angles, label in zip(norms, _angles(objective, points), LABELS.tolist()):
            q = min(max(0.8 * (a - mean / weight) / (std / weight), -1.0), 1.0)
            target = _widened(angles[label], -MARGIN * q) - MARGIN * (1 + q)
            losses.append(_entropy(angles, label, target))
        assert objective(PointMass(points), LABELS).item() == pytest.approx(sum(losses) / 6, rel=1e-9)


def test_adaface_is_cosface_without_h_and_arcface_for_the_worst_images():
    _require_same(_made(AdaFaceLoss, MARGIN, 0.0), _made(CosFaceLoss, MARGIN))
    objective = _made(AdaFaceLoss, MARGIN, 1.0).eval()
    objective.averages.copy_(torch.tensor([1e3, 1.0, 1.0]))  # that rate norms
    _require_same(objective, _made(ArcFaceLoss, MARGIN))


def test_no_gradient_of_adaface_goes_through_the_norm():
    points = _points()
    (slope,) = torch.autograd.grad(_made(AdaFaceLoss, MARGIN, 0.8)(PointMass(points), LABELS), points)
    along = (slope * points).sum(1)
    torch.testing.assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-12)
    assert (slope.abs().sum(1) > 1e-3).all()


def test_evaluation_neither_moves_the_averages_nor_depends_on_the_batch():
    objective, points = _made(AdaFaceLoss, MARGIN, 0.8), _points()
    objective(PointMass(points), LABELS)
    restored = _made(AdaFaceLoss, MARGIN, 0.8)
    restored.load_state_dict(objective.state_dict())
    kept = objective.averages.clone()
    together = objective.eval().training_logits(PointMass(points), LABELS)
    alone = [restored.eval().training_logits(PointMass(points[i : i + 1]), LABELS[i : i + 1]) for i in range(6)]
    torch.testing.assert_close(torch.cat(alone), together, rtol=1e-12, atol=1e-12)
    assert torch.equal(objective.averages, kept)


def test_batches_of_one_image_or_of_equal_norms_have_the_mean_quality():
    for points in (torch.ones(1, 4, dtype=F64), torch.ones(3, 4, dtype=F64)):
        assert _made(AdaFaceLoss, MARGIN, 0.8).quality(points).abs().max() < 1e-6


def _rate(points):
    return RatedPoint(points, torch.linspace(-2, 1, 6, dtype=F64))


def _ratios(objective, points):
    ratios = []
    for angles, label in zip(_angles(objective, points), LABELS.tolist()):
        nearest = max(math.cos(angle) for c, angle in enumerate(angles) if c != label)
        ratios.append(math.cos(angles[label]) / (nearest + (1 + 1e-9)))
    return ratios


def test_the_loss_of_cr_fiqa_is_that_of_a_plain_loop():
    objective, points = _made(CertaintyRatioLoss, MARGIN, 10.0), _points()
    total = 0.0
    predictions = (-_rate(points).uncertainty).tolist()
    for angles, label, ratio, found in zip(
        _angles(objective, points), LABELS.tolist(), _ratios(objective, points), predictions
    ):
        e = abs(found - ratio)
        total += _entropy(angles, label, _widened(angles[label], MARGIN)) + 10 * (e * e if e < 0.5 else e - 0.25)
    assert objective(_rate(points), LABELS).item() == pytest.approx(total / 6, rel=1e-12)


def test_predictions_of_ratios_are_pulled_to_them_and_do_not_change_what_the_embedding_learns():
    objective, points = _made(CertaintyRatioLoss, MARGIN, 10.0), _points()
    _require_same(objective, _made(ArcFaceLoss, MARGIN), _rate, also_loss=False)
    _require_same(_made(CertaintyRatioLoss, MARGIN, 0.0), _made(ArcFaceLoss, MARGIN), _rate)
    ratios = torch.tensor(_ratios(objective, points), dtype=F64)
    uncertainty = torch.linspace(-2, 1, 6, dtype=F64).requires_grad_()
    (slope,) = torch.autograd.grad(objective(RatedPoint(points, uncertainty), LABELS), uncertainty)
    wanted = 10 * (2 * (uncertainty + ratios)).clamp(-1, 1) / 6
    torch.testing.assert_close(slope, wanted.detach(), rtol=1e-9, atol=1e-12)


def test_the_gradient_of_predicted_ratios_reaches_the_backbone_and_they_are_the_confidence():
    model = build(CRFIQA)
    embedding = model(torch.randn(4, 1, 20, 20)).distribution
    found = torch.autograd.grad(embedding.uncertainty.sum(), list(model.backbone.parameters()), allow_unused=True)
    assert any(gradient is not None and bool(gradient.abs().sum() > 0) for gradient in found)
    spread = torch.tensor([[0.4], [-0.1]])
    assert torch.equal(model.method.confidence(model.method.distribution(torch.ones(2, 3), spread)), spread.squeeze(1))
    assert CRFIQA.default_confidence == "method"


def test_constants_are_the_published_ones():
    assert (LOWEST, HIGHEST, MOMENTUM, BETA) == (10, 110, 0.99, 0.5)
    assert (AdaFace.Params().h, CRFIQA.Params().prediction_weight) == (0.33, 10)
    assert MagFace.default_confidence == AdaFace.default_confidence == "norm"
