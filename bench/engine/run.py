"""Carrying out a plan: studies, seeds and tests over a pool of workers, resumable at every point.

Every step first looks for its record. What is found is not done again, so typing the same command after a kill goes
on where it stopped, and the order in which workers finish never matters.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeVar

from ..errors import UnitFailed, UserError
from ..progress import Display
from ..store import RECORD, Store, read_json, write_json
from .context import Cell, Context
from .pool import Pool
from .units import TUNING, Plan, Specs, unit_id

T = TypeVar("T")
WEIGHTS = "weights.safetensors"


@dataclass
class Outcome:
    """What came of a run: failures as (what, reason), and how much was done or found done."""

    failures: list[tuple[str, str]] = field(default_factory=list)
    trained: int = 0
    reused: int = 0


@dataclass(frozen=True)
class Best:
    """The setting a study chose, its value, and the trainings of its best trial (none where nothing was tuned)."""

    setting: dict[str, Any]
    value: float = 0.0
    specs: Specs = field(default_factory=dict)


class Run:
    """One execution of some plans.

    Args:
        plans: Cells, bases included.
        context: Paths and device.
        pool: Workers.
        display: Where progress goes.
        rerun: Do again, once, what the requested cells have done before.
        requested: Cells that were asked for by name.
    """

    def __init__(
        self,
        plans: list[Plan],
        context: Context,
        pool: Pool,
        display: Display,
        rerun: bool = False,
        requested: frozenset[Cell] = frozenset(),
    ) -> None:
        self.plans = plans
        self.context = context
        self.store: Store = context.store
        self.pool = pool
        self.display = display
        self.rerun = requested if rerun else frozenset()
        self.outcome = Outcome()
        self._tasks: dict[tuple[Any, ...], asyncio.Task[Any]] = {}
        self._done_here: set[str] = set()
        self._order = {plan.cell: index for index, plan in enumerate(plans)}

    def _once(self, key: tuple[Any, ...], make: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """The one task of this key: bases are shared by whoever asks first."""
        if key not in self._tasks:
            self._tasks[key] = asyncio.ensure_future(make())
        return self._tasks[key]

    async def execute(self) -> Outcome:
        """Run everything; failures are collected, not raised."""
        jobs = [
            (plan, seed, self._once(("test", plan.cell, seed), functools.partial(self._test, plan, seed)))
            for plan in self.plans
            for seed in range(plan.seeds)
        ]
        results = await asyncio.gather(*(job for _, _, job in jobs), return_exceptions=True)
        reported: set[str] = set()
        for (plan, seed, _), result in zip(jobs, results):
            if isinstance(result, UnitFailed):
                what = result.what or f"{plan.method} on {plan.cell[1]}, seed {seed}"
                line = f"{what}: {result}"
                if line not in reported:
                    reported.add(line)
                    self.outcome.failures.append((what, str(result)))
            elif isinstance(result, BaseException):
                raise result
        return self.outcome

    async def _study(self, plan: Plan) -> Best:
        if plan.trials == 0:
            return Best({})
        bases = None
        if plan.base is not None:
            below = plan.base
            bases = await self._once(("tuning base", below.cell), lambda: self._tuning_bases(below))
        spec = plan.study_spec(bases)
        study = unit_id(spec)
        folder = self.store.unit_dir(plan.cell, "study", study)
        if plan.cell in self.rerun:
            self.store.remove(plan.cell, "study", study)
        write_json(folder / "study.json", {"spec": spec, "unit": study, "cell": list(plan.cell)})
        trials: list[dict[str, Any]] = []
        for start in range(0, plan.trials, plan.trial_batch):
            numbers = list(range(start, min(start + plan.trial_batch, plan.trials)))
            held = {n: read_json(folder / f"trial-{n:04d}.json") for n in numbers}
            if any(record is None for record in held.values()):
                fixed = {str(n): record["params"] for n, record in held.items() if record is not None}
                fixed.setdefault("0", plan.defaults())
                told = [{"params": t["params"], "value": t["value"]} for t in trials]
                job = {
                    "job": "propose",
                    "axes": [*plan.cell, plan.base.method if plan.base else ""],
                    "space": plan.space,
                    "sampler": plan.sampler,
                    "numbers": numbers,
                    "told": told,
                    "fixed": fixed,
                }
                asked = await self.pool.run(job, priority=(0, self._order[plan.cell]))
                # All of the batch is waited for, so that a crash of one does not lose the others' work.
                results = await asyncio.gather(
                    *(
                        self._trial(plan, study, n, params, bases)
                        for n, params in zip(numbers, asked)
                        if held[n] is None
                    ),
                    return_exceptions=True,
                )
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
                held = {n: read_json(folder / f"trial-{n:04d}.json") for n in numbers}
            else:
                self.display.skip(plan.cell, len(numbers) * plan.models * plan.template["optim"]["epochs"])
            trials += [record for record in held.values() if record is not None]
            best = self._best(plan, trials, bases)
            self.display.note(plan.cell, self._tuning_note(plan, trials, best))
            self._prune(plan, trials, best)
        if best is None:
            raise UnitFailed(
                f"all {len(trials)} trials failed; first reason: {trials[0]['reason']}",
                f"study of {plan.method} on {plan.cell[1]}",
            )
        return best

    async def _trial(self, plan: Plan, study: str, number: int, params: dict[str, Any], bases: Specs | None) -> None:
        specs = plan.train_specs(params, TUNING, bases)
        units = [unit_id(spec) for spec in specs.values()]
        record: dict[str, Any] = {"number": number, "params": params, "units": units, "study": study}
        try:
            trained = await self._all_trained(plan, specs, weights=False)
            record |= {
                "state": "complete",
                "value": fmean(model["selection_value"] for model in trained),
                "reason": "",
                "val_map_at_r": fmean(model["val_map_at_r"] for model in trained),
                "best_epochs": [model["best_epoch"] for model in trained],
            }
        except UnitFailed as error:
            if type(error) is not UnitFailed:
                raise  # a crash or a dead worker is not a result
            record |= {"state": "failed", "value": None, "reason": str(error), "val_map_at_r": None}
            self.display.skip(plan.cell, plan.models * plan.template["optim"]["epochs"])
            self.display.log(f"{plan.method} on {plan.cell[1]}: trial {number} failed: {error}")
        folder = self.store.unit_dir(plan.cell, "study", study)
        write_json(folder / f"trial-{number:04d}.json", record)

    def _best(self, plan: Plan, trials: list[dict[str, Any]], bases: Specs | None) -> Best | None:
        complete = [trial for trial in trials if trial["value"] is not None]
        if not complete:
            return None
        top = max(complete, key=lambda trial: (trial["value"], -trial["number"]))
        return Best(top["params"], top["value"], plan.train_specs(top["params"], TUNING, bases))

    def _tuning_note(self, plan: Plan, trials: list[dict[str, Any]], best: Best | None) -> str:
        failed = sum(trial["value"] is None for trial in trials)
        text = f"{len(trials)}/{plan.trials} trials"
        if best:
            by_map_at_r = plan.template["selection"]["metric"] == "map_at_r"
            text += f", best val MAP@R {best.value:.4f}" if by_map_at_r else f", best val loss {-best.value:.4f}"
        return text + (f", {failed} failed" if failed else "")

    def _prune(self, plan: Plan, trials: list[dict[str, Any]], best: Best | None) -> None:
        """Drop the weights of trials that cannot be the best any more: fifty networks are not worth their disk."""
        keep = {unit_id(spec) for spec in best.specs.values()} if best else set()
        for unit in {unit for trial in trials for unit in trial["units"]} - keep:
            folder = self.store.unit_dir(plan.cell, "train", unit)
            for path in folder.glob("*.safetensors"):
                path.unlink(missing_ok=True)

    async def _tuning_bases(self, base: Plan) -> Specs:
        """The bases that heads are tuned on: the best trial of the base's study."""
        best = await self._once(("study", base.cell), lambda: self._study(base))
        specs = best.specs or base.train_specs(best.setting, TUNING, None)
        await self._all_trained(base, specs)
        return specs

    async def _train(self, plan: Plan, seed: int) -> Specs:
        """Train one seed at the best setting, after its base; returns the specifications."""
        bases = None
        if plan.base is not None:
            below = plan.base
            base_job = self._once(("train", below.cell, seed), lambda: self._train(below, seed))
        best = await self._once(("study", plan.cell), lambda: self._study(plan))
        if plan.base is not None:
            bases = await base_job
        specs = plan.train_specs(best.setting, seed, bases)
        await self._all_trained(plan, specs)
        return specs

    async def _all_trained(self, plan: Plan, specs: Specs, weights: bool = True) -> list[dict[str, Any]]:
        """Records of all models of a replicate.

        Raises:
            UnitFailed: If one failed, once the others have ended too.
        """
        jobs = (self._ensure_trained(plan, spec, weights) for spec in specs.values())
        results = await asyncio.gather(*jobs, return_exceptions=True)
        # A crash comes before a bad setting: the replicate must not be booked as failed for its setting then.
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in sorted(errors, key=lambda error: type(error) is UnitFailed):
            raise error
        return [result for result in results if not isinstance(result, BaseException)]

    async def _ensure_trained(self, plan: Plan, spec: dict[str, Any], weights: bool = True) -> dict[str, Any]:
        unit = unit_id(spec)
        return await self._once(("unit", unit, weights), lambda: self._train_unit(plan, spec, unit, weights))

    async def _train_unit(self, plan: Plan, spec: dict[str, Any], unit: str, weights: bool) -> dict[str, Any]:
        if plan.cell in self.rerun and unit not in self._done_here:
            self.store.remove(plan.cell, "train", unit)
        record = self.store.record(plan.cell, "train", unit)
        has_weights = (self.store.unit_dir(plan.cell, "train", unit) / WEIGHTS).exists()
        epochs = spec["optim"]["epochs"]
        if record is not None and (has_weights or not weights):
            self.outcome.reused += 1
            self.display.skip(plan.cell, epochs)
            return record
        seen = 0

        def on_event(event: dict[str, Any]) -> None:
            nonlocal seen
            self.display.advance(plan.cell, event["epoch"] - seen)
            seen = event["epoch"]

        job = {
            "job": "train",
            "spec": spec,
            "unit": unit,
            "cell": plan.cell,
            "context": self.context.as_dict(),
        }
        self._done_here.add(unit)
        result: dict[str, Any] = await self.pool.run(job, on_event, priority=(1, self._order[plan.cell]))
        self.outcome.trained += 1
        self.display.advance(plan.cell, epochs - seen)
        return result

    async def _test(self, plan: Plan, seed: int) -> None:
        trained = await self._once(("train", plan.cell, seed), lambda: self._train(plan, seed))
        specs = {unit_id(spec): spec for spec in plan.test_specs(trained)}
        if plan.cell in self.rerun:
            for unit in specs:
                self.store.remove(plan.cell, "test", unit)
        missing = {}
        for unit, spec in specs.items():
            record = self.store.record(plan.cell, "test", unit)
            if record is None:
                missing[unit] = spec
            else:
                # Of two tests of one setting (with other corruptions, say) the tables show what was asked for last.
                write_json(self.store.unit_dir(plan.cell, "test", unit) / RECORD, record | {"finished": time.time()})
        if missing:
            job = {"job": "test", "specs": missing, "cell": plan.cell, "context": self.context.as_dict()}
            # Tests go first: a seed's numbers appear as soon as it is trained.
            await self.pool.run(job, priority=(0, self._order[plan.cell]))
        self.display.tested(plan.cell, seed)


def check_existing(plans: list[Plan], store: Store) -> None:
    """For ``--on-existing error``.

    Raises:
        UserError: If a requested cell has results already.
    """
    for plan in plans:
        for record in store.records("test"):
            columns = record["columns"]
            mine = {
                "preset": plan.preset,
                "hparams": plan.hparams,
                "trials": plan.trials,
                "pinned": plan.pinned,
                **{key: plan.template[key] for key in ("fidelity", "backbone")},
            }
            dim = plan.template["dim"]
            same = tuple(record["cell"]) == plan.cell and columns["dim"] in (dim, dim * plan.models)
            if same and all(columns[key] == value for key, value in mine.items()):
                raise UserError(
                    f"{plan.method} on {plan.cell[1]} has results in {store.root} already;"
                    " use --on-existing skip (reuse them) or rerun (do them again)"
                )
