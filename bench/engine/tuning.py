"""The search space of a study, and its next proposal: a pure function of what the trial records say."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from ..protocols.recipes._base import Range
from ..seeds import seed_for
from ..store.specs import Point


class Told(BaseModel):
    """A finished trial of an earlier batch, as the tuner is told: values to be maximised are None if it failed."""

    model_config = ConfigDict(frozen=True)

    params: Point
    values: tuple[float, ...] | None


def propose(
    axes: Sequence[str],
    space: Mapping[str, Range],
    sampler: str,
    number: int,
    told: Sequence[Told],
    asked: Sequence[Point],
    objectives: int = 1,
) -> Point:
    """Parameters that the tuner proposes for one trial of a study.

    The Optuna study is rebuilt from records, and the sampler is made and seeded anew from (axes, number), so the answer
    is the same after any kill, with any number of workers and after an edit of the code.

    A failed trial counts as a finished one with the worst value of those that have one, of each objective. Optuna's
    samplers ignore trials in state ``FAIL``, so they would go on asking for settings where every loss is non-finite.

    If there are two objectives, the Gaussian process seeks the largest increase of the hypervolume below the Pareto
    front (Daulton et al. 2020, arXiv:2006.05078), and the Parzen estimator splits the trials by their rank of dominance
    (Ozaki et al. 2020).
    """
    import optuna
    from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions: dict[str, BaseDistribution] = {
        name: IntDistribution(int(r.low), int(r.high), log=r.log)
        if r.type == "int"
        else FloatDistribution(r.low, r.high, log=r.log)
        for name, r in sorted(space.items())
    }
    seed = seed_for("sampler", *axes, number) % 2**32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
        chosen: optuna.samplers.BaseSampler
        if sampler == "gp":
            chosen = optuna.samplers.GPSampler(seed=seed)
        else:
            chosen = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
        rebuilt = optuna.create_study(directions=["maximize"] * objectives, sampler=chosen)
        finished = [trial.values for trial in told if trial.values is not None]
        worst = tuple(map(min, zip(*finished, strict=True))) or (0.0,) * objectives
        for trial in told:
            rebuilt.add_trial(
                create_trial(
                    state=TrialState.COMPLETE,
                    values=worst if trial.values is None else trial.values,
                    params=dict(trial.params),
                    distributions=distributions,
                )
            )
        for params in asked:
            rebuilt.add_trial(create_trial(state=TrialState.RUNNING, params=dict(params), distributions=distributions))
        return dict(rebuilt.ask(distributions).params)
