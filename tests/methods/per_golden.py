"""Golden numbers of the public code of "Probabilistic Embeddings Revisited", and the seams that inject its draws."""

from pathlib import Path

import numpy as np
import torch

F64 = torch.float64
FOLDER = Path(__file__).parents[1] / "golden" / "per"


def load(name, dtype=F64, folder=FOLDER):
    """Arrays of a file as tensors; floats in one precision."""
    with np.load(folder / f"{name}.npz") as held:
        found = {key: torch.from_numpy(np.asarray(held[key])) for key in held.files}
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in found.items()}


def error(found, golden):
    """Largest difference, relative to the largest entry of the golden values."""
    golden = golden.detach().to(F64)
    scale = golden.abs().max().clamp_min(1e-300)
    return float((found.detach().to(F64).reshape(golden.shape) - golden).abs().max() / scale)


def normal_draws(monkeypatch, *draws):
    """Let the next calls of ``torch.randn`` return these, and no other call happen."""
    waiting = list(draws)

    def drawn(*size, dtype=F64, device=None):
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
        draw = waiting.pop(0)
        assert tuple(shape) == tuple(draw.shape), (tuple(shape), tuple(draw.shape))
        return draw.to(dtype)

    monkeypatch.setattr(torch, "randn", drawn)


def vmf_draws(monkeypatch, proposal, tangent, samples=None):
    """Let the released vMF sampler use these proposals ``[B * K, 1]`` and tangents ``[B * K, D - 1]``, images first."""
    proposal, tangent = proposal.to(F64).squeeze(-1), tangent.to(F64)
    if samples is not None:
        count = len(proposal) // samples
        proposal = proposal.reshape(count, samples).T
        tangent = tangent.reshape(count, samples, -1).transpose(0, 1)

    def drawn(k, dim):
        assert k.shape == proposal.shape
        return proposal, tangent

    monkeypatch.setattr("bench.methods.distributions.von_mises_fisher.released_draws", drawn)
