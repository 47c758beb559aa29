"""Match probability of hedged instance embeddings (HIB, Oh et al., ICLR 2019, Eq. 2-3)."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.bessel import vmf_log_normalizer, vmf_mean_resultant_length
from ..distributions.normal import IsotropicNormal, PointMass
from .spec import CANCELLED, Layout, Pairs, ScorerSpec

SAMPLES = 8
"""Draws per image of the sampled score, as in PER."""

_PAIR_ELEMENTS = 1 << 18
_ALONG_BLOCK, _ACROSS_BLOCK = 16, 128
_UNIT = 2.0**-24
_ALONG, _ACROSS = 10, 6
_RADIAL_BELOW, _RADIAL = 16, 40
_KNOTS = 1 << 13
_STEP = math.asinh(1e9) / (_KNOTS - 1)
_BLOCK_ELEMENTS = 1 << 18
_RADIAL_ELEMENTS = 1 << 13


def _golub_welsch(diagonal: Tensor, off_diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights (summing to 1) of the Gauss rule with this Jacobi matrix."""
    jacobi = torch.diag(diagonal) + torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
    nodes, vectors = torch.linalg.eigh(jacobi)
    return nodes, vectors[0].square()


@lru_cache(maxsize=64)
def _rule(dim: int) -> tuple[tuple[float, float, float], ...]:
    """Nodes (n, c) and weights: n standard normal, c chi-square with dim - 1 degrees of freedom."""
    i = torch.arange(1, _ALONG, dtype=torch.float64)
    along, along_weight = _golub_welsch(torch.zeros(_ALONG, dtype=torch.float64), i.sqrt())
    if dim == 1:
        return tuple((n, 0.0, w) for n, w in zip(along.tolist(), along_weight.tolist()))
    alpha = (dim - 3) / 2
    j = torch.arange(_ACROSS, dtype=torch.float64)
    across, across_weight = _golub_welsch(2 * j + 1 + alpha, (j[1:] * (j[1:] + alpha)).sqrt())
    return tuple(
        (n, 2.0 * c, wn * wc)
        for n, wn in zip(along.tolist(), along_weight.tolist())
        for c, wc in zip(across.tolist(), across_weight.tolist())
    )


@lru_cache(maxsize=8)
def _legendre(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on [0, 1], each ``[count]``."""
    i = torch.arange(1, count, dtype=torch.float64)
    nodes, weights = _golub_welsch(torch.zeros(count, dtype=torch.float64), i / (4.0 * i.square() - 1.0).sqrt())
    return ((nodes + 1.0) / 2.0).to(device), weights.to(device)


@lru_cache(maxsize=16)
def _log_normalizer_table(dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Values and slopes of log C(k) + k at equal steps of asinh(k), from 0 to the largest k that is asked for."""
    place = torch.arange(_KNOTS, dtype=torch.float64) * _STEP
    k = place.sinh()
    values, slopes = vmf_log_normalizer(k, dim) + k, (1.0 - vmf_mean_resultant_length(k, dim)) * place.cosh() * _STEP
    return values.to(device), slopes.to(device)


def _scaled_log_normalizer(k: Tensor, dim: int) -> Tensor:
    """Log C(k) + k by cubic Hermite interpolation, within 1e-10: the exact one takes a hundred times as long."""
    values, slopes = _log_normalizer_table(dim, k.device)
    where = k.asinh() / _STEP
    knot = where.long().clamp_max(_KNOTS - 2)
    t = where - knot
    rise = values[knot + 1] - values[knot]
    low, high = slopes[knot] - rise, rise - slopes[knot + 1]
    return values[knot] + t * rise + t * (1.0 - t) * (low * (1.0 - t) + high * t)


def _radial(squared: Tensor, variance: Tensor, dim: int, scale: Tensor, bias: Tensor) -> Tensor:
    """Match probabilities ``[P]`` from the density of the distance itself: a noncentral chi, smooth up to zero.

    With lambda = |delta| / sqrt(v) and rho = |z_a - z_b| / sqrt(v),

        f(rho) = rho^(D-1) (2 pi)^(-D/2) exp(-(rho - lambda)^2 / 2 - [log C(rho lambda) + rho lambda]).

    Two Gauss-Legendre rules meet where the sigmoid is 1/2, and reach as far as the sigmoid's exponential tail moves the
    mass of f.
    """
    # A spread far below the distance does not matter; the normaliser would lose its digits.
    sigma = torch.maximum(variance.clamp_min(1e-24).sqrt(), 1e-4 * squared.sqrt())
    away = squared.sqrt() / sigma
    steep = scale * sigma + 1e-300  # not 0
    # Mode and width of f times the sigmoid's tail exp(-steep rho).
    moved = ((away - steep) + ((away - steep).square() + 4.0 * (dim - 1)).sqrt()) / 2.0
    width = (1.0 + (dim - 1) / moved.square()).rsqrt()
    low = (torch.minimum(away, moved) - 9.0).clamp_min(0.0)
    high = torch.maximum(away, moved) + dim**0.5 + 9.0
    middle = torch.minimum(torch.maximum(bias / steep, low), high)
    reach = torch.maximum(middle, moved) + 10.0 * width + 30.0 / (1.0 + (steep - away).clamp_min(0.0))
    high = torch.minimum(high, reach)
    nodes, weights = _legendre(_RADIAL, squared.device)
    total = torch.zeros_like(squared)
    for start, end in ((low, middle), (middle, high)):
        for node, weight in zip(nodes, weights):
            rho = start + (end - start) * node
            log_f = (dim - 1) * rho.clamp_min(1e-300).log() - 0.5 * (rho - away).square()
            log_f = log_f - _scaled_log_normalizer(rho * away, dim) - dim / 2 * math.log(2 * math.pi)
            total = total + weight * (end - start) * log_f.exp() * torch.sigmoid(bias - scale * sigma * rho)
    return total


def match_probability(
    a: Distribution, b: Distribution, layout: Layout, scale: float | Tensor = 1.0, bias: float | Tensor = 0.0
) -> Tensor:
    """Match probability E sigmoid(-scale |z_a - z_b| + bias) of draws of isotropic normals or points, D >= 2.

    The difference of two isotropic normals has v = v_a + v_b, and |z_a - z_b|^2 = (delta + sqrt(v) n)^2 + v c, with
    delta the distance of the means, n standard normal and c chi-square: a two-dimensional Gauss rule replaces HIB's 8 x
    8 draws per pair. Its relative error is 1e-3 if scale sqrt(v) is 1.4; steeper sigmoids make it too small (by half at
    5.7). Below 16 dimensions, where the distance of close pairs has a kink that this rule cannot follow, the integral
    is over the distance itself, ten times slower.

    Raises:
        ValueError: If a distribution is neither an isotropic normal nor a point.
    """
    for d in (a, b):
        if not isinstance(d, (IsotropicNormal, PointMass)):
            raise ValueError(f"the match probability needs isotropic normals or points, not {type(d).__name__}")
    variance = [d.variance if isinstance(d, IsotropicNormal) else d.mean.new_zeros(d.mean.shape[:-1]) for d in (a, b)]
    u, v = layout.outer(variance[0], variance[1])
    squared = layout.squared_distance(a.mean, b.mean)
    total = (u + v).expand(squared.shape)
    dim = a.mean.shape[-1]
    rule = _rule(dim) if dim >= _RADIAL_BELOW else ()
    block = _BLOCK_ELEMENTS if rule else _RADIAL_ELEMENTS
    parts = []
    for s, t in zip(squared.reshape(-1).split(block), total.reshape(-1).split(block)):
        if not rule:
            slope, shift = (torch.as_tensor(x, dtype=torch.float64, device=s.device) for x in (scale, bias))
            parts.append(_radial(s.double(), t.double(), dim, slope, shift).to(s.dtype))
            continue
        delta, sigma = s.clamp_min(1e-24).sqrt(), t.clamp_min(1e-24).sqrt()
        value = torch.zeros_like(s)
        for n, c, weight in rule:
            distance = ((delta + sigma * n).square() + t * c).clamp_min(1e-24).sqrt()
            value = value + weight * torch.sigmoid(bias - scale * distance)
        parts.append(value)
    return torch.cat(parts).reshape(squared.shape) if parts else squared


def draws_of(d: Distribution, samples: int = SAMPLES, seed: int = 0) -> Tensor:
    """Draws ``[N, samples, D]``, the same for the same seed; the global random state does not change."""
    with torch.random.fork_rng(devices=[d.mean.device] if d.mean.is_cuda else []), torch.no_grad():
        torch.manual_seed(seed)
        return d.sample((samples,)).transpose(0, 1)


def mean_match(a: Tensor, b: Tensor, layout: Layout, scale: float | Tensor = 1.0, bias: float | Tensor = 0.0) -> Tensor:
    """Mean of sigmoid(-scale |z_a - z_b| + bias) over all pairs of draws ``[N, K, D]`` of two images.

    It is how Probabilistic Embeddings Revisited estimates HIB's match probability. In the layout of a matrix it has no
    gradient.
    """
    if layout is Pairs:
        parts = []
        for x, y in zip(*(each.split(max(1, _PAIR_ELEMENTS // (a.shape[1:].numel() * b.shape[1]))) for each in (a, b))):
            squared = Pairs.squared_distance(x.unsqueeze(2), y.unsqueeze(1))
            parts.append(torch.sigmoid(bias - scale * squared.sqrt()).mean((1, 2)))
        return torch.cat(parts)
    mean, least, squares = _by_products(a, b, a.dtype, scale, bias)
    # Where little is left of the squares, so are few of their digits: these pairs are computed anew.
    row, column = (least < CANCELLED * squares).nonzero(as_tuple=True)
    for part in torch.arange(len(row), device=a.device).split(1 << 12):
        i, j = row[part], column[part]
        mean[i, j] = mean_match(a[i], b[j], Pairs, scale, bias)
    return mean


def _by_products(
    a: Tensor, b: Tensor, dtype: torch.dtype, scale: float | Tensor, bias: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean of the sigmoid, least squared distance, and largest sum of two squares of all pairs of images ``[Na, Nb]``.

    Distances are by products in this precision. Blocks of draws stay in a processor's cache.
    """
    # A median, because an image far away must not be the centre of the others.
    centre, bias = b[:: 1 + len(b) // 64, 0].median(0).values, torch.as_tensor(bias, dtype=dtype, device=a.device)
    left = a - centre
    of_left = left.square().sum(-1, keepdim=True)
    left = torch.cat([-2.0 * left, of_left, torch.ones_like(of_left)], -1).to(dtype)
    squares = of_left.amax(1).repeat(1, len(b))
    mean, least = left.new_empty(2, len(a), len(b))
    width = _ACROSS_BLOCK << 5 * a.is_cuda
    for start in range(0, len(b), width):
        across = slice(start, start + width)
        right = b[across].transpose(0, 1) - centre
        of_right = right.square().sum(-1, keepdim=True)
        squares[:, across] += of_right.amax(0).mT
        right = torch.cat([right, torch.ones_like(of_right), of_right], -1).to(dtype).flatten(0, 1).mT
        for along in range(0, len(a), _ALONG_BLOCK):
            here = slice(along, along + _ALONG_BLOCK), across
            block = (left[here[0]].flatten(0, 1) @ right).clamp_min_(0.0)
            of_images = block.view(-1, a.shape[1] * b.shape[1], right.shape[1] // b.shape[1])
            least[here] = of_images.amin(1)
            torch.sub(bias, block.sqrt_(), alpha=float(scale), out=block).sigmoid_()
            mean[here] = of_images.mean(1)
    return mean, least, squares


def _rough_match(a: Distribution, b: Distribution, scale: float = 1.0, bias: float = 0.0) -> tuple[Tensor, Tensor]:
    """Sampled match in float32, and a bound on its error, infinite where that is not small.

    The products err as :func:`bench.protocols.search.product_error` has it, of vectors as long as their terms. A
    sigmoid changes by its own value times the change of its argument at most, but for the curvature.
    """
    left, right = _draws(a), _draws(b)
    mean, least, squares = _by_products(left, right, torch.float32, scale, bias)
    error = 2.1 * (left.shape[-1] + 12) * _UNIT * squares + 1e-30
    argument = abs(scale) * torch.minimum(error.sqrt(), error / least.double().sqrt())
    argument += 3.0 * _UNIT * (abs(scale) * (2.0 * squares).sqrt() + abs(bias))
    mean = mean.double()
    return mean, torch.where(argument < 0.1, mean * (1.1 * argument + 200 * _UNIT) + 1e-37, math.inf)


def _sampled_point(d: Distribution, seed: int = 0) -> PointMass:
    """The draws of each image, one after another in one vector."""
    return PointMass(draws_of(d, seed=seed).flatten(1), validate_args=False)


def _draws(d: Distribution) -> Tensor:
    return torch.unflatten(d.mean, 1, (SAMPLES, -1))


def _sampled_match(
    a: Distribution, b: Distribution, layout: Layout, scale: float | Tensor = 1.0, bias: float | Tensor = 0.0
) -> Tensor:
    return mean_match(_draws(a), _draws(b), layout, scale, bias)


SPECS = (
    ScorerSpec(
        "match",
        "HIB's match probability E sigmoid(-scale ||z1 - z2|| + bias) by quadrature, trained scale and bias",
        match_probability,
        options=("scale", "bias"),
        invariant=True,
    ),
    ScorerSpec(
        "sampled_match",
        f"mean of sigmoid(-scale ||z1 - z2|| + bias) over {SAMPLES} x {SAMPLES} draws, as in PER: a noisy match",
        _sampled_match,
        _sampled_point,
        options=("scale", "bias"),
        prepare_once=True,
        rough=_rough_match,
    ),
)
