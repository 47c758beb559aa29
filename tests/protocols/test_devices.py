"""Rankings of matrices that live elsewhere than the tables they go into."""

import pytest
import torch
from bench.methods.distributions import DiagonalNormal, IsotropicNormal
from bench.methods.scorers import DistributionScorer
from bench.protocols.ranking import rank


def _scorer(name, device="cpu"):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (90, 4), generator=g).double()  # ties
    if name == "match":
        return DistributionScorer(name, IsotropicNormal(x, 0.1 + torch.rand(90, generator=g)), {"scale": 2.0}, device)
    return DistributionScorer(name, DiagonalNormal(x, 0.1 + torch.rand(90, 4, generator=g)), device=device)


def _equal(a, b):
    for name in ("neighbours", "relevant", "group", "beyond", "beyond_relevant", "positives"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["match", "mls", "cosine", "l2"])
@pytest.mark.parametrize("depth", [3, 89])
def test_a_gpu_ranks_as_the_cpu(name, depth):
    labels = torch.arange(90) % 7
    _equal(rank(_scorer(name, "cuda"), labels, depth=depth), rank(_scorer(name), labels, depth=depth))
    assert _scorer(name, "cuda").matrix(torch.arange(2), torch.arange(3)).device.type == "cuda"
