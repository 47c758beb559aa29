"""SPE: stochastic prototype embeddings (Scott, Ridgeway and Mozer, 2019).

The batch is cut into two halves with images of every class in both; one half makes a prototype of each class, the
other is classified by them, then the roles change. With N(mu_i, v_i I) an image, v_i = s2_i + eps, a prototype is the
normalised product of its class's densities, and the loss is the expected softmax over prototypes:

    prototype c: N(m_c, u_c I),  1/u_c = sum_i 1/v_i,  m_c = u_c sum_i mu_i / v_i
    p(y | x) = E_{z ~ N(mu, v I)} [ p_y(z) / sum_c p_c(z) ]
             = exp MLS(x, prototype y) * E_{z ~ normalised product of x and prototype y} [ 1 / sum_c p_c(z) ]
    L = -mean log p(y | x)

The second form draws where the two densities meet, so that few draws suffice even if the classes are far apart.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ._base import MethodParams, Paper, register, tuned
from .distributions.normal import IsotropicNormal
from .heads import SpreadHead, positive_from_raw
from .host_labels import on_host, places, sent
from .learned_spread import RELEASED_HEAD, RELEASED_SPREAD, SpreadMethod
from .published import PER
from .scorers.likelihood import mutual_likelihood
from .scorers.spec import Pairs

if TYPE_CHECKING:
    from ._model import EmbeddingModel


def halves(labels: Tensor) -> Tensor:
    """Half (False or True) ``[B]`` of the batch to which each image belongs; those of a class alternate.

    Example:
        >>> halves(torch.tensor([7, 7, 3, 7, 3])).tolist()
        [False, True, False, False, True]
    """
    same = labels[:, None] == labels[None, :]
    return same.tril(-1).sum(1) % 2 == 1


def prototypes(loc: Tensor, variance: Tensor, labels: Tensor) -> tuple[Tensor, IsotropicNormal]:
    """Classes in ascending order ``[C]``, and for each the normalised product of the densities of its images.

    The S images have means ``[S, D]``, positive variances ``[S]`` and labels ``[S]``. The classes are on the CPU.
    """
    classes, inverse = on_host(labels).unique(return_inverse=True)
    place, precision = sent(inverse, loc.device), variance.reciprocal()
    total = precision.new_zeros(len(classes)).index_add(0, place, precision)
    weighted = loc.new_zeros(len(classes), loc.shape[1]).index_add(0, place, precision.unsqueeze(1) * loc)
    return classes, IsotropicNormal(weighted / total.unsqueeze(1), total.reciprocal(), validate_args=False)


def log_expected_softmax(query: IsotropicNormal, prototype: IsotropicNormal, target: Tensor, samples: int) -> Tensor:
    """Estimate ``[Q]`` of the log expected softmax of queries, log E_{z ~ query} [p_target(z) / sum_c p_c(z)].

    A query is an image to classify; p_c is the density of the prototype of class c, and ``target [Q]`` the position of
    each query's class among the prototypes. Draws are from the normalised product of query and target prototype; 0
    takes its mean instead.
    """
    own = IsotropicNormal(prototype.loc[target], prototype.variance[target], validate_args=False)
    u, v = query.variance, own.variance
    meeting = IsotropicNormal(
        (query.loc * v.unsqueeze(1) + own.loc * u.unsqueeze(1)) / (u + v).unsqueeze(1),
        u * v / (u + v),
        validate_args=False,
    )
    z = meeting.rsample((samples,)) if samples else meeting.loc.unsqueeze(0)
    squared = torch.cdist(z, prototype.loc, compute_mode="donot_use_mm_for_euclid_dist").square()
    log_density = -0.5 * (squared / prototype.variance + query.dim * (2 * math.pi * prototype.variance).log())
    log_inverse = -torch.logsumexp(log_density, -1)
    return mutual_likelihood(query, own, Pairs) + torch.logsumexp(log_inverse, 0) - math.log(max(1, samples))


def released_halves(labels: Tensor) -> Tensor:
    """Half (False or True) ``[B]`` of the batch to which each image belongs.

    The first half of a class's images is in one, the second in the other, as in the public code of Probabilistic
    Embeddings Revisited.

    Example:
        >>> released_halves(torch.tensor([7, 7, 3, 7, 3, 7])).tolist()
        [False, False, False, True, True, True]
    """
    same = labels[:, None] == labels[None, :]
    return 2 * same.tril(-1).sum(1) >= same.sum(1)


def log_released_softmax(query: IsotropicNormal, prototype: IsotropicNormal, target: Tensor, samples: int) -> Tensor:
    """Quantity ``[Q]`` that a public code takes for the log expected softmax of queries, the images to classify.

    The code is that of Probabilistic Embeddings Revisited. The softmax is p_target(z) / sum_c p_c(z), with p_c the
    density of the prototype of class c. In place of p_c(z) for one z, the sum over classes has p_c(z_c), with z_c drawn
    from the product of the query and prototype c, or its mean with 0 samples.
    """
    u, v = query.variance.unsqueeze(1), prototype.variance.unsqueeze(0)
    loc = query.loc.unsqueeze(1) * v.unsqueeze(-1) + prototype.loc.unsqueeze(0) * u.unsqueeze(-1)
    meeting = IsotropicNormal(loc / (u + v).unsqueeze(-1), u * v / (u + v), validate_args=False)
    z = meeting.rsample((samples,)) if samples else meeting.loc.unsqueeze(0)
    log_inverse = -torch.logsumexp(prototype.log_prob(z), -1)
    own = IsotropicNormal(prototype.loc[target], prototype.variance[target], validate_args=False)
    return mutual_likelihood(query, own, Pairs) + torch.logsumexp(log_inverse, 0) - math.log(max(1, samples))


class PrototypeLoss(nn.Module):
    """Loss of SPE (stochastic prototype embeddings): softmax over class prototypes that the batch makes itself.

    The batch is cut into two halves. Images of one half are classified by prototypes, normal distributions made from
    the images of the other half; then the halves change roles. The softmax is an expectation over draws per query, with
    0 samples at a mean instead. ``noise`` adds a trained variance eps to the images' variances, of queries too,
    unless ``released``, as in the public code of Probabilistic Embeddings Revisited: there it is added to the images of
    a prototype and again to the prototype, starts at exp(0.01^(2/D)), and has the learning rate and weight decay of all
    parameters of the loss.
    """

    def __init__(self, samples: int, dim: int, noise: bool = True, released: bool = False) -> None:
        super().__init__()
        self.samples, self.released = samples, released
        self.learning_rates = {} if released else {"log_noise": ("lr_objective", 0.2)}
        self.log_noise = nn.Parameter(torch.tensor(0.01 ** (2 / dim) if released else 0.0)) if noise else None

    def noise(self) -> Tensor | float:
        """Trained noise variance eps that is added to the images' variances; 0 without noise."""
        return 0.0 if self.log_noise is None else self.log_noise.exp()

    def log_probability(self, query: IsotropicNormal, prototype: IsotropicNormal, target: Tensor) -> Tensor:
        """Log probabilities ``[Q]`` of the queries' own classes, at positions ``target [Q]``, given the prototypes."""
        if not self.released:
            return log_expected_softmax(query, prototype, target, self.samples)
        noisy = IsotropicNormal(prototype.loc, prototype.variance + self.noise(), validate_args=False)
        return log_released_softmax(query, noisy, target, self.samples)

    def forward(self, distribution: IsotropicNormal, labels: Tensor) -> Tensor:
        """Scalar loss of a batch of B embeddings with class labels ``[B]``.

        Raises:
            ValueError: If no image can be classified: a batch needs two classes, and two images of one of them.
        """
        known = on_host(labels)
        half = (released_halves if self.released else halves)(known)
        variance = distribution.variance + self.noise()
        losses = []
        for asked, support in ((~half, half), (half, ~half)):
            (shown,) = places(support, variance.device)
            classes, prototype = prototypes(distribution.loc[shown], variance[shown], known[support])
            answered = asked & torch.isin(known, classes)
            (queries,) = places(answered, variance.device)
            if len(classes) < 2 or not len(queries):
                continue
            own = distribution.variance if self.released else variance
            query = IsotropicNormal(distribution.loc[queries], own[queries], validate_args=False)
            target = sent(torch.searchsorted(classes, known[answered]), variance.device)
            losses.append(-self.log_probability(query, prototype, target))
        if not losses:
            raise ValueError("SPE needs batches of at least two classes with two images each")
        return torch.cat(losses).mean()


@register
class SPE(SpreadMethod):
    """SPE (stochastic prototype embeddings): isotropic normal embedding classified by class prototypes of the batch.

    It has no classifier. The parameter ``form`` chooses: ``corrected`` follows the paper (Scott et al. 2019),
    ``released`` the public code of Probabilistic Embeddings Revisited.
    """

    name = "spe"
    summary = "normal embedding; expected softmax over the batch's own class prototypes, end to end"
    paper = Paper(
        title="Stochastic Prototype Embeddings",
        venue="arXiv 2019",
        arxiv="1909.11702",
        equations="Section 2",
    )
    deviations = (
        "one variance per image, as in PER (the paper: one per dimension)",
        "embeddings start at unit variance per dimension, the variance and the noise eps at 1 (PER's"
        " code takes the exponential of a value meant as eps, and adds it twice)",
        SpreadHead.DEVIATION,
    )
    scorer = "mls"
    published = (PER("spe"),)
    released_behaviour = (
        "the sum over classes has the density of class c at a draw of its own, not of all classes at one draw",
        "the noise is added to the images of a prototype and again to the prototype, not to queries",
        "the noise starts at exp(0.01^(2/D)), 2.54 at D = 128; it learns at lr_objective and decays",
        "the first half of a class's images, not every other one, makes a half of the batch",
        "embeddings keep the size that the network gives them (`spread` is not used)",
        RELEASED_HEAD,
    )

    class Params(MethodParams):
        """Hyper-parameters: initial standard deviation of coordinates, draws per image (0: a mean), and noise."""

        spread: float = tuned(1.0, 0.2, 5.0, log=True, gt=0)
        samples: int = Field(16, ge=0)
        noise: bool = True
        form: Literal["corrected", "released"] = "corrected"

    def distribution(self, raw: Tensor, spread: Tensor | None) -> IsotropicNormal:
        """Isotropic normal N(raw, s2 I), whose mean is not normalised, with s2 mapped from ``spread [B, 1]``."""
        assert spread is not None
        phi = positive_from_raw(spread.squeeze(-1))
        return IsotropicNormal(raw, phi + RELEASED_SPREAD if self.released else phi, validate_args=False)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the loss module: expected softmax over the prototypes of the batch."""
        p = self.params
        return PrototypeLoss(p.samples, dim, p.noise, self.released)

    @property
    def without_effect(self) -> frozenset[str]:
        """Names of the hyper-parameters that change nothing: ``spread``, in the form of the public code."""
        return frozenset({"spread"}) if self.released else frozenset()

    def initialise(self, model: EmbeddingModel, raw: Tensor, labels: Tensor) -> None:
        """Scale embeddings to the standard deviation ``spread``, a hyper-parameter, unless released."""
        if self.released:
            return
        with torch.no_grad():
            model.mean.weight.mul_(self.params.spread / raw.std())
