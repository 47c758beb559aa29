"""The search space of a study, and its next proposal: a pure function of what the trial records say."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..seeds import seed_for

Space = dict[str, dict[str, Any]]
"""``{"method.margin": {"low": .., "high": .., "log": .., "type": "float"|"int"}}``."""


def propose(
    axes: Sequence[str],
    space: Space,
    sampler: str,
    number: int,
    told: Sequence[Mapping[str, Any]],
    asked: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Parameters of trial ``number``.

    The Optuna study is rebuilt from records, and the sampler is made and seeded anew from (axes, number), so the
    answer is the same after any kill, with any number of workers and after an edit of the code.

    Args:
        axes: Protocol, data set, method and base (empty if none) of the study.
        space: What is tuned.
        sampler: ``gp`` or ``tpe``.
        number: Number of the trial that is asked for.
        told: Finished trials of earlier batches: ``{"params": .., "value": float | None}``, None = failed.
        asked: Parameters of the trials of the same batch that were asked before this one.
    """
    import optuna
    from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions: dict[str, BaseDistribution] = {
        name: (IntDistribution if r["type"] == "int" else FloatDistribution)(r["low"], r["high"], log=r["log"])
        for name, r in sorted(space.items())
    }
    seed = seed_for("sampler", *axes, number) % 2**32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
        made: optuna.samplers.BaseSampler
        if sampler == "gp":
            made = optuna.samplers.GPSampler(seed=seed)
        else:
            made = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
        rebuilt = optuna.create_study(direction="maximize", sampler=made)
        for trial in told:
            failed = trial["value"] is None
            rebuilt.add_trial(
                create_trial(
                    state=TrialState.FAIL if failed else TrialState.COMPLETE,
                    value=None if failed else trial["value"],
                    params=dict(trial["params"]),
                    distributions=distributions,
                )
            )
        for params in asked:
            rebuilt.add_trial(create_trial(state=TrialState.RUNNING, params=dict(params), distributions=distributions))
        return dict(rebuilt.ask(distributions).params)


def clip_to_space(params: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """The values of the tuned parameters, moved to the nearest value the search could propose."""
    return {name: min(max(params[name], r["low"]), r["high"]) for name, r in space.items()}
