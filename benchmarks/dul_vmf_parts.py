"""Search for the part of the public code that makes DUL-cls collapse with a vMF: one change per method.

    uv run bench run --method dul_faulty_sampler,dul_start_at_one,dul_both --plugin benchmarks/dul_vmf_parts.py \
        --dataset ndigit --hparams default --seeds 1 --set method.distribution=vmf --results results/dul_vmf

* ``dul_faulty_sampler``: corrected, but draws come from the public sampler;
* ``dul_start_at_one``: corrected, but the concentration starts at 1 (PER's code) instead of D;
* ``dul_both``: both.
"""

from __future__ import annotations

from bench.methods import register
from bench.methods.distributions import VonMisesFisher
from bench.methods.distributions.von_mises_fisher import released_rsample
from bench.methods.dul_cls import DulCls
from bench.methods.heads import positive_from_raw
from torch import Tensor
from torch.distributions import Distribution


class FaultyVmf(VonMisesFisher):
    """A vMF that draws as the public code does."""

    def rsample(self, sample_shape: object = ()) -> Tensor:
        """One draw."""
        return released_rsample(self)


class _Part(DulCls):
    faulty, start_at_one = False, False

    def distribution(self, raw: Tensor, spread: Tensor | None) -> Distribution:
        """vMF(raw/|raw|, k)."""
        assert spread is not None
        start = 1.0 if self.start_at_one else float(raw.shape[-1])
        k = start / positive_from_raw(spread.squeeze(-1))
        # In training only: an embedding that is stored and tested is a plain vMF.
        faulty = self.faulty and raw.requires_grad
        return (FaultyVmf if faulty else VonMisesFisher)(raw, k, validate_args=False)


@register
class FaultySampler(_Part):
    """The public sampler alone."""

    name = "dul_faulty_sampler"
    summary = "DUL-cls with a vMF, public sampler"
    faulty = True


@register
class StartAtOne(_Part):
    """The start at a concentration of 1 alone."""

    name = "dul_start_at_one"
    summary = "DUL-cls with a vMF, concentration 1 at the start"
    start_at_one = True


@register
class Both(_Part):
    """Both changes: the public sampler and the start at 1."""

    name = "dul_both"
    summary = "DUL-cls with a vMF, public sampler and concentration 1 at the start"
    faulty, start_at_one = True, True
