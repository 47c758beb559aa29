"""DSML's class distributions: their start, their densities, and the confidences that follow from them."""

import pytest
import torch
import torch.nn.functional as F
from bench.methods.distributions import PointMass
from bench.methods.dsml import Dsml

C, D = 5, 6


@pytest.mark.parametrize("kind", ["vmf", "normal"])
@pytest.mark.parametrize("fidelity", ["corrected", "released"])
def test_logits_are_the_log_densities_of_the_classes(kind, fidelity):
    torch.manual_seed(0)
    objective = Dsml(Dsml.Params(distribution=kind, form=fidelity)).objective(C, D).double()
    objective.spread.data.normal_()
    points, labels = torch.randn(9, D, dtype=torch.float64), torch.arange(9) % C
    classes, unit = objective.class_distributions(), F.normalize(points, dim=1)
    dense = classes.log_prob(unit.unsqueeze(1))
    torch.testing.assert_close(objective.class_logits(PointMass(points)), dense)
    loss = -(dense - torch.logsumexp(dense, 1, keepdim=True))[torch.arange(9), labels].mean()
    torch.testing.assert_close(objective(PointMass(points), labels), loss)


def test_classes_start_with_a_signal():
    vmf = Dsml().objective(C, 128).class_distributions()
    torch.testing.assert_close(vmf.concentration, torch.full((C,), 128.0))
    normal = Dsml(Dsml.Params(distribution="normal")).objective(C, 128).class_distributions()
    torch.testing.assert_close(normal.variance, torch.full((C,), 2 / 128))
    released = Dsml(Dsml.Params(form="released")).objective(C, 128)
    start = torch.cat([released.weight, released.spread.unsqueeze(1)], 1)
    limit = (6 / (C + 128 + 1)) ** 0.5
    assert start.abs().max() <= limit
    assert (released.class_distributions().concentration > 0.6).all()
