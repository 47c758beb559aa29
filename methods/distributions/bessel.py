"""Normaliser of the von Mises-Fisher distribution and its derivatives: any dimension, any device, no SciPy.

With nu = dim/2 - 1, the density C(k) exp(k mu.z) on the unit sphere has

    log C(k) = log C(0) - L_nu(k),   L_nu(k) = log[ Gamma(nu + 1) (2/k)^nu I_nu(k) ],   d L_nu / dk = A(k),

where A = I_{nu+1}/I_nu is the mean resultant length. Both come from the uniform (Debye) expansion at an order N >= nu
high enough for it to be exact to rounding (DLMF 10.41.3 with 10.41.9), then down by the recurrence of the ratio:

    a_j = 1 / (2 (j + 1) + k^2 a_{j+1}),   L_j = L_{j+1} + log1p(k^2 a_{j+1} / (2 (j + 1))),   a_j = A_j / k.

Every term is a sum of positive parts or a difference taken before rounding, so L and A keep their *relative* accuracy
as k goes to 0, the range that mutual likelihood scores need.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_LEAST_ORDER = {torch.float64: 30.0, torch.float32: 12.0}
_LOST = {torch.float64: 1 / 8, torch.float32: 2.0}
"""A term of the expansion below this many roundings is left out."""
_LARGEST = 1e150
"""Squares of larger concentrations are no numbers."""
LARGE = 1e4
"""Concentration from which terms are used that do not cancel; below, the cancelling ones lose up to four digits."""
_CHUNK, _GPU_CHUNK = 1 << 15, 1 << 22
"""Elements worked on at a time: the intermediates of one chunk stay in the processor's cache; a GPU has few and large
kernels. Values do not depend on it."""


@lru_cache(maxsize=1)
def _debye_polynomials(count: int) -> list[list[Fraction]]:
    """Coefficients (lowest power first) of u_0 .. u_count of the Debye expansion (DLMF 10.41.9)."""
    polynomials = [[Fraction(1)]]
    for _ in range(count):
        u = polynomials[-1]
        grown = [Fraction(0)] * (len(u) + 3)
        for power, c in enumerate(u):
            if power:
                grown[power + 1] += Fraction(power, 2) * c
                grown[power + 3] -= Fraction(power, 2) * c
            grown[power + 1] += c / (8 * (power + 1))
            grown[power + 3] -= 5 * c / (8 * (power + 3))
        polynomials.append(grown)
    return polynomials


class _Expansion(NamedTuple):
    """Constants of a dimension: the order N, S(1), and the coefficients of (S(1) - S(t))/(1 - t) and S'."""

    order: float
    steps: int
    at_one: float
    quotient: tuple[float, ...]
    slope: tuple[float, ...]


@lru_cache(maxsize=256)
def _expansion(dim: int, dtype: torch.dtype) -> _Expansion:
    nu = dim / 2 - 1
    steps = max(0, math.ceil(_LEAST_ORDER[dtype] - nu))
    order = nu + steps
    # u_j is at most about (j - 1)! / (2 pi 2^j) on [0, 1]: stop where the next one is lost in rounding.
    count = 1
    while (
        math.gamma(count + 1) / (2 * math.pi * 2 ** (count + 1)) / order ** (count + 1)
        > torch.finfo(dtype).eps * _LOST[dtype]
    ):
        count += 1
    total: list[Fraction] = [Fraction(0)] * (3 * count + 1)
    exact_order = Fraction(dim, 2) - 1 + steps
    for j, u in enumerate(_debye_polynomials(16)[: count + 1]):
        for power, c in enumerate(u):
            total[power] += c / exact_order**j
    # (S(t) - S(1)) / (t - 1) by synthetic division: no cancellation is left for t near 1, that is for small k.
    quotient: list[Fraction] = []
    carry = Fraction(0)
    for c in reversed(total[1:]):
        carry += c
        quotient.append(carry)
    slope = [power * c for power, c in enumerate(total)][1:]
    return _Expansion(
        order,
        steps,
        float(sum(total)),
        tuple(float(c) for c in quotient),
        tuple(float(c) for c in reversed(slope)),
    )


def _horner(coefficients: tuple[float, ...], t: Tensor) -> Tensor:
    """Polynomial with the highest power first."""
    value = torch.full_like(t, coefficients[0])
    for c in coefficients[1:]:
        value.mul_(t).add_(c)
    return value


def _evaluate_squared(squared: Tensor, dim: int, want_log: bool) -> tuple[Tensor | None, Tensor]:
    """L(k) (if wanted) and A(k)/k of a float32 or float64 chunk of squared concentrations."""
    e = _expansion(dim, squared.dtype)
    n = e.order
    radius = (squared + n * n).sqrt_()
    inverse = radius.reciprocal()
    t = inverse * n
    gap = squared / radius.add_(n)  # sqrt(k^2 + n^2) - n without its cancellation
    quotient, derivative = _horner(e.quotient, t), _horner(e.slope, t)
    series = quotient.mul_(gap).mul_(inverse).div_(-e.at_one)  # S(t)/S(1) - 1
    slope = derivative.div_(series + 1.0).mul_(t).div_(e.at_one).add_(0.5)  # t S'(t)/S(t) + 1/2
    ratio = radius.reciprocal_() - inverse.square_().mul_(slope)
    log = None
    if want_log:
        log = torch.log1p(gap / (2 * n)).mul_(-n).add_(gap)
        log.sub_(gap.div_(n).log1p_(), alpha=0.5).add_(series.log1p_())
    for step in range(e.steps):
        twice = 2.0 * (n - step)  # 2 (j + 1) with j = n - step - 1
        shift = squared * ratio
        if log is not None:
            log += torch.log1p(shift / twice)
        ratio = (shift + twice).reciprocal_()
    return log, ratio


def log_and_ratio(squared: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Compute log C(0) - log C(k) and A(k)/k from k^2 >= 0 in one pass, each of its shape, float32 or float64.

    C is the normaliser of the von Mises-Fisher distribution with concentration k, and A its mean resultant length. The
    results carry no gradient: they serve losses that compute their gradient by a formula, without autograd.
    """
    log, ratio = _evaluate_squared(squared, _check_dim(dim), True)
    assert log is not None
    return log, ratio


def _chunks(flat: Tensor) -> Iterator[slice]:
    """Parts of a tensor ``[N]`` that are worked on one after the other."""
    size = _CHUNK if flat.device.type == "cpu" else _GPU_CHUNK
    return (slice(start, start + size) for start in range(0, flat.numel(), size))


def _evaluate(k: Tensor, dim: int, want_log: bool) -> tuple[Tensor, Tensor]:
    """L(k) and A(k) in the dtype of ``k`` (half precisions are computed in float32)."""
    work = k.detach() if k.dtype in _LEAST_ORDER else k.detach().float()
    flat = work.reshape(-1)
    # Beyond this the square overflows; A is 1 and L is k to rounding long before.
    flat = flat.clamp(max=1e18 if flat.dtype == torch.float32 else 1e150)
    mean = torch.empty_like(flat)
    log = torch.empty_like(flat) if want_log else mean
    for part in _chunks(flat):
        chunk = flat[part]
        value, ratio = _evaluate_squared(chunk.square(), dim, want_log)
        torch.mul(ratio, chunk, out=mean[part])
        if value is not None:
            log[part] = value
    return log.reshape(k.shape).to(k.dtype), mean.clamp_(max=1.0).reshape(k.shape).to(k.dtype)


def _mean_derivative(k: Tensor, dim: int) -> Tensor:
    """A'(k) = a_nu (1 - k^2 (a_nu - a_{nu+1})), in float64 because the bracket cancels as k grows."""
    work = k.detach().double()
    flat = work.reshape(-1).clamp(max=1e150)
    out = torch.empty_like(flat)
    for part in _chunks(flat):
        chunk = flat[part]
        _, low = _evaluate_squared(chunk.square(), dim, False)
        _, high = _evaluate_squared(chunk.square(), dim + 2, False)
        out[part] = low * (1.0 - chunk.square() * (low - high))
        if (large := chunk > LARGE).any():
            out[part][large] = _large_mean_derivative(chunk[large], dim)
    return out.reshape(k.shape).to(k.dtype)


def _large_mean_derivative(k: Tensor, dim: int) -> Tensor:
    """A'(k) = 1 - A^2 - (d - 1) A / k in terms of 1 - A; by two terms of its asymptotic series where that cancels."""
    short = _evaluate_large(k, dim)[1]
    inverse = 1.0 / k
    exact = 2.0 * short - (dim - 1) * inverse - short.square() + (dim - 1) * inverse * short
    series = (dim - 1) / 2 * inverse.square() * (1.0 - (dim - 3) / 2 * inverse)
    return torch.where(k > 1e4 * dim + 1e6, series, exact)


class _Integral(torch.autograd.Function):
    """k -> L(k), with gradient A(k), or if ``large`` k - L(k), with gradient 1 - A(k)."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, dim: int, large: bool) -> Tensor:
        value, slope = _evaluate_large(k, dim) if large else _evaluate(k, dim, True)
        ctx.dim, ctx.large = dim, large
        ctx.save_for_backward(k, slope)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        k, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            slope = (vmf_shortfall if ctx.large else vmf_mean_resultant_length)(k, ctx.dim)
        return grads[0] * slope, None, None


class _Slope(torch.autograd.Function):
    """k -> A(k), with gradient A'(k), or if ``large`` 1 - A(k), with gradient -A'(k)."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, dim: int, large: bool) -> Tensor:
        ctx.dim, ctx.large = dim, large
        ctx.save_for_backward(k)
        return (_evaluate_large(k, dim) if large else _evaluate(k, dim, False))[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (k,) = ctx.saved_tensors
        derivative = grads[0] * _mean_derivative(k, ctx.dim)
        return -derivative if ctx.large else derivative, None, None


def _evaluate_large(k: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """K - L(k) and 1 - A(k) in float64, then in the dtype of ``k``: no term as large as k is left to cancel."""
    work = k.detach().double()
    flat = work.reshape(-1)
    peak, shortfall = torch.empty_like(flat), torch.empty_like(flat)
    e = _expansion(dim, flat.dtype)
    n = e.order
    for part in _chunks(flat):
        chunk = flat[part].clamp(max=_LARGEST)
        squared = chunk.square()
        radius = (squared + n * n).sqrt()
        gap = squared / (radius + n)
        quotient, derivative = _horner(e.quotient, n / radius), _horner(e.slope, n / radius)
        series = quotient * gap / radius / -e.at_one
        slope = derivative / (series + 1.0) * (n / radius) / e.at_one + 0.5
        # radius - k is n^2 / (radius + k)
        log = n - n * n / (radius + chunk) + n * torch.log1p(gap / (2 * n)) + 0.5 * torch.log1p(gap / n)
        log -= series.log1p()
        short = (n + n * n / (radius + chunk)) / (radius + n) + chunk / radius * slope / radius
        for step in range(e.steps):
            twice = 2.0 * (n - step)
            shift = chunk * (1.0 - short)
            log -= torch.log1p(shift / twice)
            short = (twice - chunk * short) / (twice + shift)
        peak[part] = log + (dim - 1) / 2 * (flat[part] / chunk.clamp_min(1.0)).clamp_min(1.0).log()
        shortfall[part] = short
    return peak.reshape(k.shape).to(k.dtype), shortfall.reshape(k.shape).to(k.dtype)


def _check_dim(dim: int) -> int:
    if int(dim) != dim or dim < 2:
        raise ValueError(f"dim must be an integer of at least 2, not {dim}")
    return int(dim)


def vmf_log_uniform(dim: int) -> float:
    """Log density of the uniform distribution on the unit sphere, log C(0) = log[Gamma(dim/2) / (2 pi^{dim/2})]."""
    half = _check_dim(dim) / 2
    return math.lgamma(half) - math.log(2.0) - half * math.log(math.pi)


def vmf_log_normalizer_ratio(concentration: Tensor, dim: int) -> Tensor:
    """Log ratio <= 0 of the von Mises-Fisher normaliser to that of the uniform distribution, log C(k) - log C(0).

    The concentrations k >= 0 have any shape and dtype, and so has the result; ``dim`` is D >= 2. Its *relative*
    accuracy is kept down to k = 0, unlike that of the difference of the two logarithms. The gradient is minus the mean
    resultant length.
    """
    result: Tensor = -_Integral.apply(concentration, _check_dim(dim), False)
    return result


def vmf_log_normalizer(concentration: Tensor, dim: int) -> Tensor:
    """Log normaliser of the von Mises-Fisher distribution on the unit sphere of R^dim, twice differentiable.

    log C(k) = (dim/2 - 1) log k - (dim/2) log 2 pi - log I_{dim/2-1}(k) (Mardia and Jupp 2000, Eq. 9.3.4), for
    concentrations k >= 0 of any shape and dtype; 0 gives the uniform distribution.

    Raises:
        ValueError: If ``dim`` is no integer of at least 2.

    Example:
        >>> round(vmf_log_normalizer(torch.tensor(1.0, dtype=torch.float64), 3).item(), 9)  # log 1 / (4 pi sinh 1)
        -2.692463609
    """
    return vmf_log_normalizer_ratio(concentration, dim) + vmf_log_uniform(dim)


def vmf_mean_resultant_length(concentration: Tensor, dim: int) -> Tensor:
    """Mean resultant length of a von Mises-Fisher distribution, A(k) = |E z| in [0, 1), differentiable once.

    A(k) = I_{dim/2}(k) / I_{dim/2-1}(k) with Bessel functions I (Mardia and Jupp 2000, Eq. 9.3.9), for concentrations k
    >= 0 of any shape and dtype, and ``dim`` of at least 2.

    Example:
        >>> round(vmf_mean_resultant_length(torch.tensor(1.0, dtype=torch.float64), 3).item(), 9)  # coth 1 - 1
        0.313035285
    """
    result: Tensor = _Slope.apply(concentration, _check_dim(dim), False)
    return result


def vmf_log_peak(concentration: Tensor, dim: int) -> Tensor:
    """Log density of the von Mises-Fisher at its mode, above that of the uniform one: k + log C(k) - log C(0) >= 0.

    It grows like log k, while k and log C(k) cancel: computed without them, and so is its gradient, the
    :func:`vmf_shortfall`. For concentrations k >= 0 of any shape and dtype, and ``dim`` of at least 2.
    """
    result: Tensor = _Integral.apply(concentration, _check_dim(dim), True)
    return result


def vmf_shortfall(concentration: Tensor, dim: int) -> Tensor:
    """One minus the mean resultant length of a von Mises-Fisher distribution, 1 - A(k), with all its digits.

    For concentrations k >= 0 of any shape and dtype, and ``dim`` of at least 2; differentiable once.
    """
    result: Tensor = _Slope.apply(concentration, _check_dim(dim), True)
    return result


def perhaps_large(concentration: Tensor) -> bool:
    """True if a concentration is beyond :data:`LARGE`, and always on a GPU, whose answer one would have to wait for."""
    on_host = concentration.device.type == "cpu"
    return not on_host or bool((concentration.detach() > LARGE).any())


def released_log_uniform(dim: int) -> float:
    """Approximate log density of the uniform distribution on the unit sphere of R^dim, as in a public code.

    The code of Probabilistic Embeddings Revisited takes the von Mises-Fisher log normaliser at k = 1e-6, by the first
    term of its series and in float32, in place of log C(0). The error is rounding of terms of size several hundred
    (1e-5 at dim = 128).
    """
    order = _check_dim(dim) / 2 - 1
    power = order * torch.tensor(1e-6, dtype=torch.float32).log()
    series = power - torch.tensor(order * math.log(2.0)) - torch.lgamma(torch.tensor(order + 1.0))
    return float(power - torch.tensor(dim / 2 * math.log(2.0 * math.pi)) - series)
