"""``bench run --dry-run``: the plan of a run, its time and its disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ..datasets.pixel_cache import cache_folder
from ..engine.estimate import estimate
from ..errors import MissingWeights, UserError
from ..planning.experiment import Run
from ..planning.plan import Plan, PlanKey
from ..progress import readable
from ..resources import cores, worker_count
from ..site import Site
from ..store.specs import HEAD_START, TEST_QUERIES, TRAIN_FROM

T = TypeVar("T")


def plan_without(plan: Callable[[Site], T], site: Site) -> tuple[T, Site, tuple[str, ...]]:
    """Plan something without photographs and weights: the plan, its site, and a line about missing weights."""
    site, lacking = site.model_copy(update={"outlines": True}), ()
    try:
        return plan(site), site, lacking
    except MissingWeights as error:
        # What would be done does not depend on weights, nor does its time.
        site = site.model_copy(update={"weights": "none"})
        try:
            return plan(site), site, (str(error),)
        except UserError:
            raise error from None  # a frozen network has to have some


def print_missing(lacking: tuple[str, ...], site: Site) -> None:
    """Print what is not on this machine, and how to get it."""
    for line in (*lacking, *site.lacking.values()):
        print(f"missing: {line}")


def print_dry_run(plans: tuple[Plan, ...], site: Site, results: Path, launch: Run) -> None:
    """Print what a run would do, with estimates of its time and disk space."""
    for plan in plans:
        if not plan.beside_own:
            print_plan(plan)
    if splits := {plan.class_seed for plan in plans if plan.beside_own}:
        numbers = "class split 1" if len(splits) == 1 else f"class splits 1 to {max(splits)}"
        anew = any(plan.replicate == "study" for plan in plans)
        print(f"all of them, {'tuned anew' if anew else 'at these settings'}, on {numbers}, too")
    ranges = plans[0].testing.tests.corruptions.items()
    named = (f"{kind} (severity {a:g}{f' to {b:g}' if b != a else ''})" for kind, (a, b) in ranges)
    queries = plans[0].pinned.settings.get(TEST_QUERIES)
    searched = "" if queries is None else f"{queries} queries, drawn, of "
    print(f"tested on {searched}clean images{' and under ' if ranges else ''}{', '.join(named)}")
    tests = sum(plan.tests for plan in plans)
    trainings = sum(plan.trainings for plan in plans)
    print(f"at most {_count(trainings, 'training')}, {_count(tests, 'test')}; results in {results}")
    print_estimate(plans, site, launch)


def print_plan(plan: Plan) -> None:
    """Print the plan of a method on a data set: numbers of trials and seeds, setting, and search ranges if tuned."""
    role = "" if plan.requested else "  (added)" if plan.added else "  (base, not asked for by name)"
    base = f" on {plan.base.cell.method}" if plan.base else ""
    base += f" (stage 1 of {plan.base.pinned.stage})" if plan.base and plan.base.pinned.stage else ""
    what = f"{plan.cell.method}{base} on {plan.cell.dataset}"
    role = f"  (stage 1 of {plan.pinned.stage})" if plan.pinned.stage else role
    role += f"  (class split {plan.class_seed})" if plan.class_seed else ""
    if plan.ensemble:
        print(f"{what}: one ensemble of {_count(plan.seeds, 'model')}, nothing to train")
        return
    goal = "retrieval and confidence" if plan.tune_for == "both" else plan.tune_for
    source = plan.hparams if plan.tune_for == "retrieval" else f"{plan.hparams} for {goal}"
    work = f"{_count(plan.trials, 'trial')} ({source}) + {_count(plan.seeds, 'seed')}"
    if plan.replicate == "study":
        tested = "trained anew and tested" if plan.retrain else "tested"
        work = (
            f"{_count(plan.seeds, 'replicate')}, each a study of {_count(plan.trials, 'trial')} ({source}) whose chosen"
            f" network is {tested}"
        )
    print(
        f"{what}: {work}"
        f"{f', {plan.models} models each' if plan.models > 1 else ''},"
        f" at most {plan.epochs} epochs each{', on a frozen backbone' if plan.template.frozen else ''}{role}"
    )
    shown = (_fixed_setting(plan) if plan.trials == 0 else {}) | _of_unit(plan)
    print("    " + ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in shown.items()))
    for name, r in plan.space.items():
        scale = "log" if r.log else "linear"
        print(f"    {name} in [{r.low:g}, {r.high:g}] {scale}, default {plan.defaults()[name]:g}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _fixed_setting(plan: Plan) -> dict[str, object]:
    """The setting of a plan that tunes nothing, by the names that ``--set`` has."""
    optim, batches = plan.template.optim, plan.template.batches
    shown: dict[str, object] = {f"method.{key}": value for key, value in plan.template.params.items()}
    shown |= {f"optim.{key}": getattr(optim, key) for key in ("lr", "lr_objective", "weight_decay", "schedule")}
    if optim.schedule in ("step", "multistep"):
        shown["optim.gamma"] = optim.gamma
    if optim.schedule == "multistep":
        shown["optim.milestones"] = list(optim.milestones)
    if optim.head_epochs:
        shown["optim.head_epochs"] = optim.head_epochs
    return shown | {f"data.{key}": getattr(batches, key) for key in ("classes_per_batch", "images_per_class")}


def _of_unit(plan: Plan) -> dict[str, object]:
    """Settings of the network and its gradients that are never tuned."""
    batches = plan.template.batches
    names = ("pooling", "calibrate", "freeze_norm")
    given = {HEAD_START: plan.template.head_start, TRAIN_FROM: plan.template.train_from}
    shown = {"optim.grad_clip": plan.template.optim.grad_clip} | {f"data.{k}": getattr(batches, k) for k in names}
    return shown | {name: value for name, value in given.items() if value}


def print_estimate(plans: tuple[Plan, ...], site: Site, launch: Run) -> None:
    """Print estimates of the run time and disk space of some plans, from a few steps that are timed on this machine."""
    device = launch.device_here
    workers = launch.workers or worker_count(None, device, launch.gpus_per_worker)
    site = site.model_copy(update={"device": device})
    seconds, disk, decode, maps = 0.0, {}, {}, {}
    longest: dict[PlanKey, float] = {}
    of_study: dict[PlanKey, list[Plan]] = {}
    for name in site.lacking:
        print(f"{name} is not here: no estimate of its time and disk")
    for plan in plans:  # the same training on other class splits or with other draws is timed once
        if plan.cell.dataset not in site.lacking:
            of_study.setdefault(plan.study_key, []).append(plan)
    for plan, *others in of_study.values():
        estimated = estimate(plan, site)
        if plan.template.caches_features and plan.template.features in maps:  # made once, for all methods
            estimated = replace(estimated, features=0.0)
        of_plans = sum(map(estimated.total, (plan, *others)))
        seconds += of_plans
        longest[plan.study_key] = estimated.longest(plan)
        key = (plan.cell.dataset, repr(plan.template.view))
        disk[key], decode[key] = estimated.cache_bytes, estimated.decode
        # The trainings of every class split read maps of their own images.
        splits = len({each.class_seed for each in (plan, *others)})
        maps[plan.template.features] = estimated.maps_bytes * splits
        print(
            f"{plan.cell.method} on {plan.cell.dataset}: {1000 * estimated.step:.0f} ms per step,"
            f" {readable(estimated.training)} per training, {readable(of_plans)} in one process"
        )
    if not of_study:
        return
    # A head waits for its base, and one training is not divided among workers.
    chains = (
        of + (longest.get(plan.base.study_key, 0.0) if plan.base else 0.0)
        for (plan, *_), of in zip(of_study.values(), longest.values())
    )
    total = sum(decode.values()) / max(1, cores()) + max(seconds / workers, *chains, 0.0)
    print(f"at most about {readable(total)} with {_count(workers, 'worker')} on {device}, from timed steps;")
    print("early stopping shortens it, and results that exist are not computed again")
    if sum(disk.values()):
        print(f"decoded images: {sum(disk.values()) / 2**30:.1f} GiB in {cache_folder()} (BENCH_CACHE moves it)")
    if sum(maps.values()):
        print(f"what enters the trained layers: {sum(maps.values()) / 2**30:.2f} GiB in the results folder (.features)")
