"""Published settings of PER's methods give the loss that PER's code computes with them."""

import pytest
import torch
import torch.nn.functional as F
from bench.methods.distributions import PointMass
from bench.planning.published import published_settings
from bench.registry import Registry

METHODS = Registry("methods")


def test_published_proxy_nca_is_on_squared_distances_as_they_are():
    # It had half its scale.
    cls = METHODS.get("proxy_nca").load()
    (found,) = published_settings(cls, "cub200", "arcface")
    torch.manual_seed(0)
    objective = cls(cls.Params(**found.params)).objective(5, 8).double()
    points, labels = torch.randn(12, 8, dtype=torch.float64), torch.arange(12) % 5
    distance = torch.cdist(F.normalize(points, dim=1), F.normalize(objective.weight, dim=1)).square()
    terms = [distance[i, y] + torch.logsumexp(-torch.cat([distance[i, :y], distance[i, y + 1 :]]), 0)
             for i, y in enumerate(labels.tolist())]  # fmt: skip
    assert objective(PointMass(points), labels).item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-12)


@pytest.mark.parametrize("dataset", ["cub200", "cars196", "inshop_merged", "sop"])
@pytest.mark.parametrize(
    "method", ["arcface", "cosface", "hib", "spe", "dsml", "vmf_loss", "vmf_fl", "multi_similarity"]
)
def test_every_data_set_of_per_has_a_published_setting(method, dataset):
    cls = METHODS.get(method).load()
    (found,) = published_settings(cls, dataset, "arcface")
    cls.Params(**found.params)
    assert found.source == "PER"


@pytest.mark.parametrize("method", ["hib", "vmf_loss", "spe"])
def test_scalars_learn_at_the_objectives_own_rate_and_decay_when_released(method):
    cls = METHODS.get(method).load()
    assert cls(cls.Params(**cls.defaults("released"))).objective(5, 8).learning_rates == {}
    assert {factor for _, factor in cls().objective(5, 8).learning_rates.values()} <= {0.1, 0.2}
    assert "log_scale" not in dict(cls(cls.Params(**cls.defaults("released"))).objective(5, 8).named_parameters())
