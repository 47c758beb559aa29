"""PFE's loss of a whole validation set: the genuine pairs alone, in blocks of bounded memory."""

import pytest
import torch
import torch.nn.functional as F
from bench.methods import pfe
from bench.methods.distributions import IsotropicNormal, VonMisesFisher
from bench.methods.pfe import MutualLikelihood, genuine_pairs
from torch.overrides import TorchFunctionMode


def _set(count, dim, classes, dtype=torch.float64):
    g = torch.Generator().manual_seed(count)
    loc = F.normalize(torch.randn(count, dim, generator=g, dtype=dtype), dim=1)
    spread = 0.02 + torch.rand(count, generator=g, dtype=dtype)
    return loc, spread, torch.randint(classes, (count,), generator=g)


@pytest.mark.parametrize("limit", [1, 7, 100_000])
@pytest.mark.parametrize("with_self", [False, True])
def test_the_pairs_are_those_of_the_mask(limit, with_self):
    *_, labels = _set(60, 2, 17)
    mask = labels[:, None] == labels[None, :]
    mask.fill_diagonal_(with_self)
    blocks = list(genuine_pairs(labels, limit, with_self))
    found = [(i, j) for left, right in blocks for i, j in zip(left.tolist(), right.tolist())]
    assert sorted(found) == [tuple(pair) for pair in mask.nonzero().tolist()]
    largest = int(torch.bincount(labels).max())
    assert max(len(left) for left, _ in blocks) <= max(limit, largest)


@pytest.mark.parametrize("with_self", [False, True])
@pytest.mark.parametrize("kind", ["normal", "vmf"])
def test_it_equals_the_loss_over_the_matrix_of_all_pairs(kind, with_self, monkeypatch):
    loc, spread, labels = _set(300, 16, 40)
    d = IsotropicNormal(loc, spread) if kind == "normal" else VonMisesFisher(loc, 1.0 / spread)
    objective = MutualLikelihood(with_self)
    monkeypatch.setattr(pfe, "_BLOCK_ELEMENTS", 16 * 37)
    assert objective.validation_loss(d, labels).item() == pytest.approx(objective(d, labels).item(), rel=1e-12)


class LargestTensor(TorchFunctionMode):
    """Bytes of the largest tensor that a torch function returns."""

    bytes = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple) else (result,):
            if isinstance(each, torch.Tensor):
                self.bytes = max(self.bytes, each.untyped_storage().nbytes())
        return result


def test_twenty_thousand_images_take_little_memory():
    # The matrix of all pairs took 5.4 to 7.5 N^2 floats: 8.6 GB here.
    loc, spread, labels = _set(20_000, 64, 4_000, torch.float32)
    with LargestTensor() as seen:
        value = MutualLikelihood().validation_loss(IsotropicNormal(loc, spread), labels)
    assert torch.isfinite(value)
    assert seen.bytes <= 20e6


def test_a_set_without_genuine_pairs_is_refused():
    loc, spread, _ = _set(5, 4, 2)
    with pytest.raises(ValueError, match="at least two images"):
        MutualLikelihood().validation_loss(IsotropicNormal(loc, spread), torch.arange(5))
