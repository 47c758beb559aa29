"""Planning: from an experiment to the plans of its methods and data sets, and what the user should be told of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..site import Site
from .asked import look_up
from .experiment import Experiment
from .plan import Plan, PlanKey, make_plan, with_frozen
from .setting import settle_all


@dataclass(frozen=True)
class Plans:
    """Plans of an experiment, with what the user should be told about them.

    Attributes:
        plans: The plans, each once, a base before the methods that are built on it.
        left_out: A line for every method and data set that is left out, since it has no published setting while others
            have one, or since a single seed makes no ensemble.
        differences: A line for every run at a published setting that differs from what its paper did.
        adapted: A line for every data set that is too small for the default batches.
        floors: A line for every method that leaves a network as it starts, if that is at random weights.
    """

    plans: tuple[Plan, ...]
    left_out: tuple[str, ...]
    differences: tuple[str, ...] = ()
    adapted: tuple[str, ...] = ()
    floors: tuple[str, ...] = ()


def build_plans(experiment: Experiment, site: Site) -> Plans:
    """Plan every method and data set of an experiment; with a sweep, at each of its values.

    Raises:
        UserError: If a name or a value is not known, with what to do.
    """
    asked = look_up(experiment, site)
    # What does not have a swept value is the same plan at all of them.
    plans: dict[PlanKey, Plan] = {}
    left_out = list(asked.left_out)
    for one in experiment.variants():
        settings, missing = settle_all(replace(asked, experiment=one))
        left_out += missing
        for setting in settings:
            plan = make_plan(setting)
            for each in (plan.base, plan):
                # A base that was asked for by name may serve as well.
                if each is not None and (each.key not in plans or each.requested):
                    plans[each.key] = each
    every = tuple(plans.values())
    differences = (
        f"{plan.cell.method} on {plan.cell.dataset}{f', stage 1 of {plan.stage}' if plan.stage else ''} is not what"
        f" its paper did: {', '.join(plan.differences)}"
        for plan in every
        if plan.differences
    )
    return Plans(
        with_frozen(every, asked.frozen_sources),
        left_out=tuple(dict.fromkeys(left_out)),
        differences=tuple(dict.fromkeys(differences)),
        adapted=tuple(dict.fromkeys(plan.adapted for plan in every if plan.adapted)),
        floors=tuple(dict.fromkeys(plan.floor for plan in every if plan.floor)),
    )
