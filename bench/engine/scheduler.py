"""Carrying out plans: studies, seeds and tests over a pool of workers, resumable at every point.

Every step first looks for its record. What is there is not done again, so typing the same command after a kill goes
on where it stopped, and the order in which workers finish never matters. What is damaged is set aside and done again.

Several schedulers may share a results folder: a unit is claimed (:mod:`bench.store.claims`) when a worker is free for
it; what another scheduler has claimed is waited for. Proposals are not claimed: they are a pure function of the trials,
so every scheduler makes the same ones. Should two machines compute different ones, the trial that is recorded first
counts for both.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import TypeVar

from ..errors import LINE, UnitFailed, shortened
from ..planning.plan import Plan, Specs
from ..progress import Display
from ..site import Site
from ..store.claims import CLAIM, Claims, holder
from ..store.files import file_state
from ..store.folder import LOG, RECORD, WEIGHTS, Damage
from ..store.records import StudyRecord, TestRecord, TrainRecord, TrialRecord
from ..store.specs import Cell, Kind, Point, TestSpec, TrainSpec
from .jobs import Failure, JobFailed, Outcome, ProposeJob, SettingFailed, TestJob, TrainJob, visible
from .pool import Pool
from .tuning import Told, Trained, choose, measured, objectives, saturated, tuning_note

T = TypeVar("T")
POLL = 1.0
"""Seconds between two looks at a unit that another scheduler has claimed."""


class _TrialSettled(Exception):
    """Another scheduler has recorded the trial that a training was for."""


class Scheduler:
    """Carries out some plans, those of bases included: runs their trials, trainings and tests unless results exist.

    ``rerun`` repeats, once, the trainings and tests that are done already, but not those of bases that were not asked
    for by name.
    """

    def __init__(self, plans: Iterable[Plan], site: Site, workers: Pool, display: Display, rerun: bool = False) -> None:
        self.plans = tuple(plans)
        self.site = site
        self.store = site.store
        self.workers = workers
        self.display = display
        self.rerun = frozenset(plan.cell for plan in self.plans if rerun and plan.requested)
        self.outcome = Outcome()
        self._tasks: dict[tuple[object, ...], asyncio.Task[object]] = {}
        self._done_here: set[str] = set()
        self._failed: set[tuple[str, str]] = set()
        self._claims = Claims(self.store.root)
        self._trial_of: dict[str, tuple[Cell, str, int]] = {}
        self._tests: dict[Cell, dict[str, tuple[object, TestRecord]]] = {}
        self.store.on_damage = self._set_aside
        self._order = {plan.cell: index for index, plan in enumerate(self.plans)}
        self._waited = False

    def _once(self, key: tuple[object, ...], work: Callable[[], Coroutine[object, object, T]]) -> asyncio.Task[T]:
        """One task per key: what several need is done by whoever asks first."""
        if key not in self._tasks:
            self._tasks[key] = asyncio.ensure_future(work())
        return self._tasks[key]  # type: ignore[return-value]  # the key determines the type

    async def execute(self) -> Outcome:
        """Run all trials, trainings and tests of the plans; failures are collected in the outcome, not raised."""
        places = [(plan, seed) for plan in self.plans for seed in plan.replicates[: plan.tests]]
        try:
            results = await asyncio.gather(*(self._finish(*place) for place in places), return_exceptions=True)
        finally:
            self._claims.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result
            if result is not None:
                self.outcome.failures.append(result)
        return self.outcome

    async def _finish(self, plan: Plan, seed: int) -> Failure | None:
        """Train and test a replicate; a failure that is not that of another replicate is said at once and returned."""
        what = f"{plan.cell.method} on {plan.cell.dataset}, {plan.replicate} {seed}"
        try:
            await self._test(plan, seed)
            return None
        except UnitFailed as error:
            failure = Failure.of(error, what)
        if (failure.what, failure.reason) in self._failed:
            return None
        self._failed.add((failure.what, failure.reason))
        self.display.log(shortened(f"{failure.what} failed: {failure.reason}", LINE - 12))
        return failure

    def _set_aside(self, damage: Damage) -> None:
        """Move a damaged file away, so that it is made again, and say so."""
        target = self.store.set_aside(damage)
        if target is not None:
            short = [str(path).removeprefix(f"{self.store.root}/") for path in (damage.path, target)]
            self.display.log(f"damaged: {short[0]}: {damage.reason}; moved to {short[1]}, made again if needed")

    def _study(self, plan: Plan, seed: int) -> Awaitable[tuple[Point, Specs]]:
        return self._once(("study", plan.study_of(seed)), partial(self._tune, plan, seed))

    async def _tune(self, plan: Plan, seed: int) -> tuple[Point, Specs]:
        """Values and trainings of the best trial of a study; both are empty if nothing is tuned.

        Batches of trials are proposed before any of their results is reported.
        """
        if plan.trials == 0:
            return {}, {}
        _, bases = await self._begun(plan, seed)
        trials = [*await self._first(plan, seed)]
        noise = await self._noise(plan)
        chosen, specs, with_weights = None, Specs(), set[str]()
        for start in range(0, plan.trials, plan.trial_batch):
            trials += await self._batch(plan, seed, start, trials) if start else []
            chosen = choose(plan.tune_for, trials, noise)
            specs = plan.train_specs(chosen.params, plan.trial_of(seed), bases) if chosen else {}
            self.display.note(plan.cell, tuning_note(plan, seed, trials, chosen))
            batch = trials[start:]
            with_weights = self._prune(plan, with_weights.union(*(trial.units for trial in batch)), specs)
        if chosen is None:
            raise self._all_failed(plan, trials)
        if same := saturated(plan, trials):
            self.display.log(shortened(f"study of {plan.cell.method} on {plan.cell.dataset}: {same}", LINE - 12))
        return chosen.params, specs

    def _begun(self, plan: Plan, seed: int) -> Awaitable[tuple[str, Specs | None]]:
        return self._once(("begun", plan.study_of(seed)), partial(self._begin, plan, seed))

    async def _begin(self, plan: Plan, seed: int) -> tuple[str, Specs | None]:
        """Begin a study: its id, and the models that its heads are trained on."""
        below = plan.base
        bases = None
        if below is not None:
            bases = await self._once(("base", below.study_of(seed)), partial(self._tuning_bases, below, seed))
        spec = plan.study_spec(seed, bases)
        if plan.cell in self.rerun:
            self.store.remove(plan.cell, "study", spec.id)
        self.store.write_study(StudyRecord(unit=spec.id, cell=plan.cell, spec=spec))
        return spec.id, bases

    def _first(self, plan: Plan, seed: int) -> Awaitable[list[TrialRecord]]:
        """The first batch of trials of a study; the first of all is of the default setting."""
        return self._once(("first trials", plan.study_of(seed)), partial(self._batch, plan, seed, 0, []))

    async def _noise(self, plan: Plan) -> float | None:
        """SD of the first objective over the studies of a plan, at its default setting, if that is asked for."""
        if plan.tune_for != "both" or plan.replicate == "seed":
            return None
        firsts = [trials[0] for trials in await asyncio.gather(*(self._first(plan, each) for each in plan.replicates))]
        found = [values[0] for trial in firsts if (values := objectives(plan.tune_for, trial)) is not None]
        return stdev(found) if len(found) > 1 else None

    def _all_failed(self, plan: Plan, trials: list[TrialRecord]) -> JobFailed:
        """The failure of a study, with the traceback of its first trial."""
        units = {unit: self.store.unit_dir(plan.cell, "train", unit) / LOG for unit in trials[0].units}
        unit, log = next((item for item in units.items() if item[1].exists()), ("", ""))
        error = JobFailed(f"all {len(trials)} trials failed; first reason: {trials[0].reason}", "", str(log))
        error.what, error.unit = f"study of {plan.cell.method} on {plan.cell.dataset}", f"train {unit}" if unit else ""
        return error

    async def _batch(self, plan: Plan, seed: int, start: int, earlier: list[TrialRecord]) -> list[TrialRecord]:
        """Records of the batch of trials that begins at one; those that are missing are proposed and trained."""
        study, bases = await self._begun(plan, seed)
        numbers = range(start, min(start + plan.trial_batch, plan.trials))
        known = {n: self.store.trial(plan.cell, study, n) for n in numbers}
        units = {unit for record in known.values() if record is not None for unit in record.units}
        for unit in units:
            self._trained_record(plan.cell, unit, weights=False)  # says what is damaged
        await asyncio.to_thread(self.store.check_caches, plan.cell, *units)
        if all(record is not None for record in known.values()):
            self.display.skip(plan.cell, len(known) * plan.models * plan.epochs)
            return [record for record in known.values() if record is not None]
        fixed = dict(enumerate((plan.defaults(), *plan.first)))
        fixed |= {n: record.params for n, record in known.items() if record is not None}
        job = ProposeJob(
            axes=plan.sampler_axes(seed),
            space=dict(plan.space),
            sampler=plan.sampler,
            numbers=tuple(known),
            told=tuple(Told(params=trial.params, values=objectives(plan.tune_for, trial)) for trial in earlier),
            fixed=fixed,
            objectives=2 if plan.tune_for == "both" else 1,
            startup=plan.startup,
        )
        proposed = await self.workers.run(job, priority=(0, self._order[plan.cell]))
        assert proposed is not None
        if bases is not None:
            await self._whole_bases(plan, bases)
        # All of the batch is waited for, so that a crash of one does not lose the others' work.
        missing = [(n, point) for n, point in zip(known, proposed.points) if known[n] is None]
        results = await asyncio.gather(
            *(
                self._trial(plan, study, n, plan.train_specs(point, plan.trial_of(seed), bases), point)
                for n, point in missing
            ),
            return_exceptions=True,
        )
        for (n, _), result in zip(missing, results):
            if isinstance(result, BaseException):
                raise result
            known[n] = result
        return [record for record in known.values() if record is not None]

    async def _whole_bases(self, plan: Plan, bases: Specs) -> None:
        """Train the bases that heads are tuned on, unless they are there; other schedulers leave their weights alone.

        A study of more trials than ours, by another command, has another best trial, and drops the weights of ours.
        """
        assert plan.base is not None
        for spec in bases.values():
            self._claims.take(self._used(spec, "heads"))
        await self._all_trained(plan.base, bases)

    async def _trial(self, plan: Plan, study: str, number: int, specs: Specs, point: Point) -> TrialRecord:
        record = TrialRecord(
            study=study,
            number=number,
            params=point,
            units=tuple(spec.id for spec in specs.values()),
            state="failed",
            value=None,
        )
        place = (plan.cell, study, number)
        self._trial_of |= dict.fromkeys(record.units, place)
        try:
            trained = await self._all_trained(plan, specs, weights=False)
            record = record.model_copy(update=measured(plan.tune_for, trained))
        except _TrialSettled:
            settled = self.store.trial(*place)
            assert settled is not None
            self.display.skip(plan.cell, plan.models * plan.epochs)
            return settled
        except SettingFailed as error:  # a crash or a dead worker is not a result
            record = record.model_copy(update={"reason": str(error)})
            self.display.skip(plan.cell, plan.models * plan.epochs)
            what = f"{plan.cell.method} on {plan.cell.dataset}: trial {number} ({error.unit}) failed"
            # The display puts the time in front of the line.
            self.display.log(replace(Failure.of(error, what), unit="").line(LINE - 12))
        first = self.store.trial(*place)
        if first is None:
            self.store.write_trial(plan.cell, record)
        for unit in record.units:
            self._claims.give_back(self.store.unit_dir(plan.cell, "train", unit) / CLAIM)
            self._tasks.pop(("unit", unit, False), None)  # nobody asks again, and there may be 100,000 of them
        return first or record

    def _prune(self, plan: Plan, units: set[str], best: Specs) -> set[str]:
        """Drop the weights of trials that cannot be the best any more, and return the other trainings.

        The network that a study of fewer trials has chosen keeps its own, since a test is of it.
        """
        left = {spec.id for spec in best.values()} & units
        left |= {unit for _, test in self._all_tested(plan.cell).values() for unit in test.spec.train} & units
        for unit in units - left:
            folder = self.store.unit_dir(plan.cell, "train", unit)
            paths = list(folder.glob("*.safetensors"))
            if paths and self._claims.used_by_others(folder):
                left.add(unit)
                continue
            for path in paths:
                path.unlink(missing_ok=True)
        return left

    async def _tuning_bases(self, base: Plan, seed: int) -> Specs:
        """Specifications of the bases that heads are tuned on: the best trial of the base's study."""
        point, specs = await self._study(base, seed)
        return specs or base.train_specs(point, base.trial_of(seed), None)

    def _seed(self, plan: Plan, seed: int) -> asyncio.Task[Specs]:
        return self._once(("train", plan.key, seed), partial(self._train, plan, seed))

    async def _train(self, plan: Plan, seed: int) -> Specs:
        """Train one seed at the best setting, after its base, or tune a replicate; returns the specifications."""
        # The base's seed is asked for before the study ends: both can be trained at the same time.
        base = None if plan.base is None else self._seed(plan.base, seed)
        point, specs = await self._study(plan, seed)
        if plan.retrain:
            specs = plan.train_specs(point, seed, None if base is None else await base)
        else:  # another scheduler, whose study of the same trials chooses another one, would drop the weights
            for spec in specs.values():
                self._claims.take(self._used(spec, "test"))
        await self._all_trained(plan, specs)
        return specs

    async def _all_trained(self, plan: Plan, specs: Specs, weights: bool = True) -> list[Trained]:
        """Results of all models of a replicate; if one failed, that is raised once the others have ended too."""
        jobs = [
            self._once(("unit", spec.id, weights), partial(self._train_unit, plan, spec, weights))
            for spec in specs.values()
        ]
        results = await asyncio.gather(*jobs, return_exceptions=True)
        # A crash comes before a bad setting: the replicate must not be booked as failed for its setting then.
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, SettingFailed)):
            raise error
        return [result for result in results if not isinstance(result, BaseException)]

    async def _train_unit(self, plan: Plan, spec: TrainSpec, weights: bool) -> Trained:
        cell, unit, epochs = plan.cell, spec.id, spec.optim.epochs
        if cell in self.rerun and unit not in self._done_here:
            self.store.remove(cell, "train", unit)
        await self._check_caches(spec)
        seen = 0

        def on_epoch(epoch: int) -> None:
            nonlocal seen
            self.display.advance(cell, epoch - seen)
            seen = epoch

        def missing() -> TrainJob | None:
            if self._trained_record(cell, unit, weights) is not None or (not weights and self._settled(unit)):
                return None
            return TrainJob(spec=spec, site=self.site)

        asked_before = unit in self._done_here  # a study has trained the network that it chooses
        self._done_here.add(unit)
        trained_here = await self._run((cell, "train", unit), missing, 1, on_epoch)
        record = self._trained_record(cell, unit, weights)
        if record is None:
            if not trained_here:
                raise _TrialSettled
            raise UnitFailed(f"the record of train {unit} is missing after its training")
        # A trial may be as bad as it likes.
        of_loss = record.loss_note if weights else ""
        for note in filter(None, (record.note, of_loss, record.environment.memory_note)):
            self.display.log(f"{spec.method} on {spec.dataset}: train {unit}: {note}")
        if trained_here:
            self.outcome.trained += 1
            self.display.advance(cell, epochs - seen)
        elif not asked_before:
            self.outcome.reused += 1
            if plan.retrain or not weights:  # else it is a trial, which its study has counted
                self.display.skip(cell, epochs)
        return Trained(record.selection_value, record.val_map_at_r, record.val_confidence_auroc, record.best_epoch)

    async def _run(
        self,
        unit: tuple[Cell, Kind, str],
        missing: Callable[[], TrainJob | TestJob | None],
        priority: int,
        on_epoch: Callable[[int], None] = lambda _: None,
    ) -> bool:
        """Run a job until nothing is missing, here (True) or in another scheduler; a failure says which unit failed."""
        claim = self.store.unit_dir(*unit) / CLAIM

        def begin() -> bool:
            """Claim the unit; False if that fails, or if its holder before has done the job since it was asked for."""
            if self._claims.take(claim) and missing() == job:
                return True
            self._claims.let_go(claim)
            return False

        while (job := missing()) is not None:
            try:
                done = await self.workers.run(job, on_epoch, (priority, self._order[unit[0]]), begin)
            except JobFailed as error:
                _, kind, failed = job.unit
                error.unit = f"{kind} {failed}"
                # The claim on a training that its trial's setting has made fail is kept until the trial is recorded.
                if not (isinstance(error, SettingFailed) and failed in self._trial_of):
                    self._claims.give_back(claim)
                raise
            if done is not None:
                if self.site.hidden_for:  # another machine has written the records
                    await asyncio.to_thread(visible, job.outputs, self.site.hidden_for)
                self._claims.give_back(claim)
                return True
            if missing() is not None:
                there = holder(claim)
                if there is not None and not self._waited:
                    self._waited = True
                    who = f"process {there.pid} on {there.host}"
                    self.display.log(f"{who} is at work in this folder too; `bench status` shows on what")
                await asyncio.sleep(POLL)
        self._claims.give_back(claim)
        return False

    def _trained_record(self, cell: Cell, unit: str, weights: bool) -> TrainRecord | None:
        """Record of a finished training whose files are whole; those of a tuning trial may be missing."""
        record = self.store.trained(cell, unit)
        whole = record is not None and WEIGHTS in self.store.whole_files(record)
        return record if whole or not weights else None

    def _used(self, spec: TrainSpec, by: str) -> Path:
        return self._claims.in_use(self.store.unit_dir(spec.cell, "train", spec.id), by)

    def _settled(self, unit: str) -> bool:
        """Check if the trial that a training is for has a record."""
        place = self._trial_of.get(unit)
        return place is not None and self.store.trial(*place) is not None

    async def _check_caches(self, spec: TrainSpec) -> None:
        """Set aside what is damaged of the checkpoint of a training, and of the features that it reads."""
        await asyncio.to_thread(self.store.check_caches, spec.cell, spec.id)
        if spec.caches_views:
            await self._once(("features",), partial(asyncio.to_thread, self.store.check_features))
        if spec.base is not None:
            await asyncio.to_thread(self.store.check_caches, spec.base_cell, spec.base.unit)

    async def _replicates(self, plan: Plan, seed: int) -> list[Specs]:
        """Specifications of the trained models of one seed; of an ensemble, those of all seeds of its base."""
        if not plan.ensemble:
            return [await self._seed(plan, seed)]
        assert plan.base is not None
        return list(await asyncio.gather(*(self._seed(plan.base, member) for member in plan.replicates)))

    async def _test(self, plan: Plan, seed: int) -> None:
        """Train and test one seed."""
        replicates = await self._replicates(plan, seed)
        specs = plan.test_specs(*replicates)
        if plan.cell in self.rerun:
            for spec in specs:
                self.store.remove(plan.cell, "test", spec.id)
        cell = plan.cell
        trained = plan.base.cell if plan.ensemble and plan.base else None
        shared = base_is_shared(plan, self.plans)

        def missing() -> TestJob | None:
            lacking = tuple(spec for spec in specs if not self._is_tested(cell, spec))
            job = TestJob(specs=lacking, cell=cell, trained=trained, shared=shared, site=self.site)
            return job if lacking else None

        if missing() is not None:
            for trained_spec in replicates[0].values():
                await self._check_caches(trained_spec)
        # Tests go first: a seed's numbers appear as soon as it is trained.
        if await self._run((cell, "test", specs[0].id), missing, 0):
            for spec in specs:
                self._tests.get(cell, {}).pop(spec.id, None)
        for spec in specs:
            self._make_latest(cell, spec)
        for chosen in () if plan.ensemble else replicates[0].values():
            self._claims.give_back(self._used(chosen, "test"))
        self.display.tested(cell, seed)

    def _is_tested(self, cell: Cell, spec: TestSpec) -> bool:
        """Check if a test is done and its files are whole."""
        test = self._tested(cell, spec.id)
        return test is not None and self.store.whole_files(test) == test.files.keys()

    def _make_latest(self, cell: Cell, spec: TestSpec) -> None:
        """Mark a test as the latest one of its setting, whatever clocks say.

        Of two tests of a setting (with other corruptions, say) the tables show what was asked for last.
        """
        test = self._tested(cell, spec.id)
        if test is None:
            raise UnitFailed(f"the record of test {spec.id} is missing after its test")
        if note := test.environment.memory_note:
            self.display.log(f"{cell.method} on {cell.dataset}: test {spec.id}: {note}")
        tests = self._all_tested(cell).items()
        others = [one.finished for unit, (_, one) in tests if unit != spec.id and one.columns == test.columns]
        newest = max(others, default=-math.inf)
        record = self.store.tested(cell, spec.id) if test.finished <= newest else None
        if record is not None:
            after = max(newest + 1, math.nextafter(newest, math.inf))
            self.store.write(record.model_copy(update={"finished": after}))
            self._tested(cell, spec.id)

    def _all_tested(self, cell: Cell) -> dict[str, tuple[object, TestRecord]]:
        """Records of the tests of a cell, without their values, by their ids."""
        if cell not in self._tests:
            self._tests[cell] = {}
            for folder in self.store.units("test", "/".join(cell)):
                self._tested(cell, folder.name.removeprefix("test-"))
        return self._tests[cell]

    def _tested(self, cell: Cell, unit: str) -> TestRecord | None:
        """Record of a test without its values, which is read again only if its file has changed."""
        known = self._all_tested(cell)
        state = file_state(self.store.unit_dir(cell, "test", unit) / RECORD)
        if unit in known and state is not None and known[unit][0] == state:
            return known[unit][1]
        known.pop(unit, None)
        record = self.store.tested(cell, unit)
        if record is not None:
            known[unit] = state, record.model_copy(update={"rows": (), "curves": {}})
        return None if record is None else known[unit][1]


def base_is_shared(plan: Plan, plans: Iterable[Plan]) -> bool:
    """Whether several heads are trained on the base of a plan, so that their tests read the same features."""
    bases = [other.base.key for other in plans if other.base is not None and not other.ensemble]
    return plan.base is not None and bases.count(plan.base.key) > 1
