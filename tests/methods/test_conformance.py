"""Every method passes the suite that ``bench.conformance`` ships, and the suite fails what it should fail."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bench.conformance import CHECKS, ConformanceError, check
from bench.methods import PER, CosineClassifier, Method, SpreadHead, register
from bench.methods.distributions import IsotropicNormal
from bench.registry import Registry
from torch import nn

METHODS = Registry("methods")


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("method", [entry.name for entry in METHODS])
def test_conformance(method, name):
    check(name, METHODS.get(method).load())


class _Good(Method):
    """A method."""

    name, summary = "good", "softmax"

    def objective(self, num_classes, dim, base=None):
        return CosineClassifier(num_classes, dim, 12.0)


class _NoLoss(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, distribution, labels):
        return self.value * distribution.mean.square().sum()


def _with(objective):
    class Bad(_Good):
        """Bad."""

        def objective(self, num_classes, dim, base=None):
            return objective(num_classes, dim)

    return Bad


class _Drifting(CosineClassifier):
    made = 0

    def __init__(self, *args):
        super().__init__(*args)
        _Drifting.made += 1

    def forward(self, distribution, labels):
        return super().forward(distribution, labels) * _Drifting.made


class _Memory(CosineClassifier):
    """Compares with the batches before, as a cross-batch memory does; which of its state is saved is an option."""

    def __init__(self, num_classes, dim, saved=False):
        super().__init__(num_classes, dim, 12.0)
        self.calls, keep = 0, self.register_buffer if saved else self.__setattr__
        keep("queue", torch.zeros(dim))

    def forward(self, distribution, labels):
        self.calls += 1
        loss = super().forward(distribution, labels) + (distribution.mean @ self.queue).square().mean()
        self.queue = 0.5 * self.queue + distribution.mean.detach().mean(0)
        return loss


class _Unseen(CosineClassifier):
    def __init__(self, *args):
        super().__init__(*args)
        self.register_buffer("best", torch.full((3,), torch.nan))


class _Dice(CosineClassifier):
    def __init__(self, num_classes, dim):
        super().__init__(num_classes, dim, 12.0)
        self.drawn = np.random.rand()  # noqa: NPY002

    def forward(self, distribution, labels):
        return (self.drawn + np.random.rand() + random.random()) * super().forward(distribution, labels)  # noqa: NPY002


class _Listed(_Memory):
    def get_extra_state(self):
        return self.queue.tolist()

    def set_extra_state(self, state):
        self.queue = torch.tensor(state)


def _warmed(keep):
    class Warmed(_Good):
        """Weighs its loss by what it saw before the first step."""

        warm_start = True

        def initialise(self, model, raw, labels):
            keep(model.objective, raw.norm(dim=-1).mean())

        def objective(self, num_classes, dim, base=None):
            return _Weighed(num_classes, dim, 12.0)

    return Warmed


class _Weighed(CosineClassifier):
    def __init__(self, *args):
        super().__init__(*args)
        self.norm = 1.0
        self.register_buffer("saved", torch.ones(()))

    def forward(self, distribution, labels):
        return self.norm * self.saved * super().forward(distribution, labels)


class _Dead(CosineClassifier):
    def forward(self, distribution, labels):
        return super().forward(type(distribution)(distribution.mean.detach()), labels)


def _spread(variance):
    """A plug-in as in fault A6: it trains well, and underflows once its spread head is thrown out."""

    class Wide(_Good):
        """Wide."""

        name, default_confidence = "wide", "method"

        def spread_head(self, in_features, dim):
            return SpreadHead(in_features, 1)

        def distribution(self, raw, spread):
            return IsotropicNormal(F.normalize(raw, dim=-1), variance(spread.squeeze(-1)), validate_args=False)

        def confidence(self, distribution):
            return -distribution.variance

        def objective(self, num_classes, dim, base=None):
            return _Likelihood(num_classes, dim, 12.0)

    return Wide


class _Likelihood(CosineClassifier):
    share = 1.0

    def forward(self, distribution, labels):
        centres = F.normalize(self.weight, dim=-1)[labels]
        return super().forward(distribution, labels) - self.share * distribution.log_prob(centres).mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    "variance",
    [lambda s: (s / 1000).exp(), lambda s: F.softplus(s), lambda s: 1e-3 + s.square().square(), lambda s: s.sigmoid()],
)
def test_a_spread_that_underflows_or_overflows_is_found(variance):
    for name in CHECKS:
        check(name, _spread(lambda s: 0.01 + 1.0 / (1.0 + s.abs())))
    with pytest.raises(ConformanceError, match=r"a spread head at .*: the (loss is|gradient of)"):
        check("finite", _spread(variance))


class _Sampled(_Likelihood):
    """A softmax of samples, which pulls the variance to its floor, and a likelihood that is too weak to hold it."""

    share = 1e-3


def test_a_confidence_that_training_makes_constant_is_found():
    class Floored(_spread(lambda s: 0.01 + 0.5 * s.sigmoid())):
        """Confidences that vary at first."""

        def objective(self, num_classes, dim, base=None):
            return _Sampled(num_classes, dim, 16.0)

    check("learns", Floored)
    with pytest.raises(ConformanceError, match=r"after 50 steps of training, .* the same for every image \(-0\.01\)"):
        check("confidence", Floored)


def test_a_spread_that_is_refused_in_words_is_as_good_as_a_value():
    def refuses(spread):
        if not bool((spread.abs() < 50).all()):
            raise ValueError("a spread must be below 50")
        return spread.exp()

    check("finite", _spread(refuses))


def _heads(raw_of):
    class Batch(_Good):
        """Embeds an image in the light of its batch."""

        def heads(self, model, features):
            return raw_of(model.mean(features), model.training), None

    return Batch


def _judged(confidence_of):
    class Judged(_spread(lambda s: 0.01 + 1.0 / (1.0 + s.abs()))):
        """Has its own view of the variance."""

        def confidence(self, distribution):
            return confidence_of(-distribution.variance)

    return Judged


def _fitted(change):
    class Counted(_Good):
        """Fits a buffer of its spread head."""

        on_base, trains = True, ("spread",)

        def spread_head(self, in_features, dim):
            return nn.BatchNorm1d(in_features, affine=False)

        def fit(self, model, features, labels):
            change(model)

    return Counted


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("independent", _heads(lambda raw, training: raw - raw.mean(0))),
        ("independent", _heads(lambda raw, training: F.dropout(raw, 0.5))),
        ("independent", _judged(lambda own: own - own.mean())),
        ("independent", _judged(lambda own: own + 0.1 * torch.rand_like(own))),
        ("learns", _fitted(lambda model: model.spread.running_var.zero_())),
        ("learns", _fitted(lambda model: model.spread.running_var.add_(1.0))),
        ("frozen", _fitted(lambda model: model.mean.bias.add_(1.0))),
        ("finite", _with(lambda c, d: _NoLoss(float("nan")))),
        ("finite", _with(lambda c, d: _Dead(c, d, 12.0))),
        ("learns", _with(lambda c, d: _NoLoss(-0.0))),
        ("learns", _heads(lambda raw, training: torch.ones_like(raw) + 0 * raw)),
        ("deterministic", _with(lambda c, d: _Drifting(c, d, 12.0))),
        ("resumes", _with(_Memory)),
        ("resumes", _with(_Listed)),
        ("resumes", _warmed(lambda loss, norm: setattr(loss, "norm", norm))),
    ],
)
def test_the_suite_fails_what_it_should(name, method):
    check(name, _Good)
    with pytest.raises(ConformanceError):
        check(name, method)


def test_a_fit_and_dropout_in_training_alone_pass():
    check("independent", _heads(lambda raw, training: F.dropout(raw, 0.5, training)))
    for name in ("learns", "frozen"):
        check(name, _fitted(lambda model: model.spread.running_var.fill_(3.0)))


def test_state_in_buffers_a_count_that_changes_no_value_and_numpys_draws_pass():
    check("resumes", _with(lambda c, d: _Memory(c, d, saved=True)))
    check("resumes", _warmed(lambda loss, norm: loss.saved.fill_(norm)))
    check("resumes", _with(lambda c, d: _Unseen(c, d, 12.0)))
    for name in ("deterministic", "resumes"):
        check(name, _with(_Dice))


def test_published_settings_are_about_one_method_and_not_inherited():
    arcface = METHODS.get("arcface").load()
    assert arcface.published == (PER("arcface"),)

    @register
    class Mine(arcface):
        """A variation."""

        name, summary = "mine", "another margin"

    @register
    class Stated(arcface):
        """A variation with settings of its own."""

        name, summary, published = "stated", "another margin", (PER("dsml"),)

    assert Mine.published == ()
    assert Stated.published == (PER("dsml"),)
    assert arcface.published == (PER("arcface"),)
