"""A tuning study: the next proposal, the values that it maximises, and the trial that it chooses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from ..protocols.recipes._base import Range
from ..seeds import seed_for
from ..store.records import TrialRecord
from ..store.specs import Point, TuneFor

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from ..planning.plan import Plan

ONE_POINT = 0.01
"""MAP@R that a study for both gives up, at most, for a better confidence, if the noise of seeds is not known."""

TOLERANCE = 2.0
"""SDs over seeds that it gives up if they are known: a smaller difference tells settings apart by luck."""

FAR = 30
"""Times the median distance from the best of the first ten trials beyond which a trial's value tells a sampler nothing
but that it is bad; the Gaussian process scales all values by their spread, and would see no other differences."""

_ROUNDING = 1e-12


class Told(NamedTuple):
    """A finished trial of an earlier batch, as the tuner is told: values to be maximised are None if it failed."""

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
    startup: int | None = None,
) -> Point:
    """Parameters that the tuner proposes for one trial of a study.

    Trials below number ``startup`` are quasi-random, and the sampler proposes the later ones; without it, Optuna draws
    at random until ten trials are told. Where no two told values differ, a proposal is quasi-random, too, as samplers
    would ask for corners of the space again and again.

    The Optuna study is rebuilt from records, and the sampler is made and seeded anew from (axes, number), so the answer
    is the same after any kill, with any number of workers and after an edit of the code.

    A failed trial counts as a finished one with the worst value of those that have one, of each objective. Optuna's
    samplers ignore trials in state ``FAIL``, so they would go on asking for settings where every loss is non-finite. A
    trial whose value is far off (:data:`FAR`), as of a loss that diverges but stays finite, is told in the same way.

    If there are two objectives, the Gaussian process seeks the largest increase of the hypervolume below the Pareto
    front (Daulton et al. 2020, arXiv:2006.05078), and the Parzen estimator splits the trials by their rank of dominance
    (Ozaki et al. 2020).
    """
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = distributions_of(space)
    drawn = 10 if startup is None else 0
    finished = [trial.values for trial in told if trial.values is not None]
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        if number < (startup or 0) or (len(told) >= drawn and equal(finished)):
            sobol = optuna.samplers.QMCSampler(scramble=True, seed=seed_for("sampler", *axes) % 2**32)
            study = optuna.create_study(sampler=sobol)
            # The first, for want of a space, is drawn at random: that of the default setting, which nobody asks for.
            return dict([study.ask(distributions) for _ in range(number + 1)][-1].params)
        kind = optuna.samplers.GPSampler if sampler == "gp" else optuna.samplers.TPESampler
        more: dict[str, Any] = {} if sampler == "gp" else {"multivariate": True, "group": True, "constant_liar": True}
        chosen = kind(seed=seed_for("sampler", *axes, number) % 2**32, n_startup_trials=drawn, **more)
        rebuilt = optuna.create_study(directions=["maximize"] * objectives, sampler=chosen)
        worst = tuple(map(_worst, zip(*finished, strict=True))) or (0.0,) * objectives
        of_study = partial(create_trial, distributions=distributions)
        for trial in told:
            values = list(map(max, trial.values or worst, worst))
            rebuilt.add_trial(of_study(state=TrialState.COMPLETE, values=values, params=dict(trial.params)))
        for params in asked:
            rebuilt.add_trial(of_study(state=TrialState.RUNNING, params=dict(params)))
        return dict(rebuilt.ask(distributions).params)


def equal(values: Sequence[tuple[float, ...]]) -> bool:
    """Whether no two finished trials differ by more than rounding, in any objective."""
    return all(max(each) - min(each) <= _ROUNDING for each in zip(*values, strict=True))


def _worst(values: Sequence[float]) -> float:
    """The worst of the values of one objective that is not far off."""
    best = max(values)
    gaps = [best - value for value in values]
    # The first ten are drawn at random; of later ones most are near the best.
    spread = sorted(filter(None, gaps[:10])) or sorted(filter(None, gaps))
    # Shares, as MAP@R and AUROC are, cannot be far off.
    if not spread or (best <= 1 and min(values) >= 0):
        return min(values)
    return best - max(gap for gap in gaps if gap <= FAR * spread[(len(spread) - 1) // 2])


def distributions_of(space: Mapping[str, Range]) -> dict[str, BaseDistribution]:
    """Optuna's distributions of a search space, sorted by name."""
    from optuna.distributions import FloatDistribution, IntDistribution

    return {
        name: IntDistribution(int(r.low), int(r.high), log=r.log)
        if r.type == "int"
        else FloatDistribution(r.low, r.high, log=r.log)
        for name, r in sorted(space.items())
    }


def objectives(tune_for: TuneFor, trial: TrialRecord) -> tuple[float, ...] | None:
    """Values of a trial that its study maximises, two for ``both`` (MAP@R and AUROC), else one; None if it failed."""
    both = (trial.val_map_at_r, trial.val_confidence_auroc)
    found = {"retrieval": (trial.value,), "confidence": (trial.val_confidence_auroc,), "both": both}[tune_for]
    values = tuple(value for value in found if value is not None and not math.isnan(value))
    return values if len(values) == len(found) else None


def choose(tune_for: TuneFor, trials: Collection[TrialRecord], noise: float | None = None) -> TrialRecord | None:
    """The trial whose setting a study chooses; None if all of them failed.

    For ``retrieval`` it is the trial with the highest value, for ``confidence`` the one with the highest AUROC of the
    confidence. For ``both`` it is the one with the highest AUROC among those whose MAP@R is within :data:`TOLERANCE`
    SDs over seeds (``noise``) of the highest, or within one point if they are not known. Of trials with equal AUROC the
    one with the higher MAP@R is chosen; of trials that are equal in all that, up to rounding, the earlier one.
    """
    values = {trial.number: found for trial in trials if (found := objectives(tune_for, trial)) is not None}
    left = [trial for trial in trials if trial.number in values]
    if tune_for != "confidence" and left:
        tolerance = 0.0 if tune_for == "retrieval" else ONE_POINT if noise is None else TOLERANCE * noise
        least = max(value for value, *_ in values.values()) - tolerance - _ROUNDING
        left = [trial for trial in left if values[trial.number][0] >= least]
    ranked = _by_confidence if tune_for != "retrieval" else (lambda trial: ())
    return max(left, key=lambda trial: (*ranked(trial), -trial.number), default=None)


def _by_confidence(trial: TrialRecord) -> tuple[float, ...]:
    auroc, map_at_r = trial.val_confidence_auroc, trial.val_map_at_r
    assert auroc is not None
    return auroc, -math.inf if map_at_r is None else map_at_r


class Trained(NamedTuple):
    """Values of a finished training that a study needs; whole records of all would fill the driver's memory."""

    selection_value: float
    val_map_at_r: float
    val_confidence_auroc: float | None
    best_epoch: int


def measured(tune_for: TuneFor, trained: Sequence[Trained]) -> dict[str, object]:
    """Entries of the record of a finished trial that its trainings determine: means over its models, one per fold."""
    map_at_r = fmean(model.val_map_at_r for model in trained)
    aurocs = [model.val_confidence_auroc for model in trained if model.val_confidence_auroc is not None]
    auroc = fmean(aurocs) if aurocs else None
    value = fmean(model.selection_value for model in trained)
    if auroc is None and tune_for != "retrieval":
        reason = (
            "all answers on crops of validation images are right, or all wrong: a confidence cannot tell them apart"
        )
        return {"val_map_at_r": map_at_r, "reason": reason}
    return {
        "state": "complete",
        "value": {"retrieval": value, "confidence": auroc, "both": map_at_r}[tune_for],
        "val_map_at_r": map_at_r,
        "val_confidence_auroc": auroc,
        "best_epochs": tuple(model.best_epoch for model in trained),
    }


def saturated(plan: Plan, trials: Sequence[TrialRecord]) -> str:
    """What a study says if all of its trials have the same values, so that nothing was chosen; else empty."""
    values = [found for trial in trials if (found := objectives(plan.tune_for, trial)) is not None]
    if len(values) < 2 or not equal(values):
        return ""
    retrieval = "loss" if plan.template.selection.metric == "stage_loss" else "MAP@R"
    what = {"retrieval": retrieval, "confidence": "confidence AUROC", "both": "MAP@R (and AUROC)"}[plan.tune_for]
    return f"validation {what} is the same in all {len(values)} trials: the choice says nothing"


def tuning_note(plan: Plan, number: int, trials: Sequence[TrialRecord], chosen: TrialRecord | None) -> str:
    """Short note on a study for the progress display."""
    failed = sum(trial.value is None for trial in trials)
    of_study = f"study {number}: " if plan.replicate == "study" else ""
    text = f"{of_study}{len(trials)}/{plan.trials} trials"
    if chosen is not None and chosen.value is not None:
        by_loss = plan.template.selection.metric == "stage_loss"
        shown = f"best val loss {-chosen.value:.4f}" if by_loss else f"best val MAP@R {chosen.value:.4f}"
        if plan.tune_for != "retrieval":
            shown = f"chosen: val MAP@R {chosen.val_map_at_r:.4f}, confidence AUROC {chosen.val_confidence_auroc:.4f}"
        text += f", {shown}"
    auroc = chosen.val_confidence_auroc if chosen is not None else None
    if len(trials) == plan.trials and auroc is not None and auroc < 0.5:
        text += f", confidence reversed on validation crops (AUROC {auroc:.2f})"
    return ", ".join(filter(None, [text, f"{failed} failed" if failed else "", saturated(plan, trials)]))
