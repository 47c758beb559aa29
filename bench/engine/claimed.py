"""Units that several schedulers of a results folder share: each is run by the one that has claimed it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..site import Site
from ..store.claims import CLAIM, Claims, holder
from ..store.specs import Cell, Kind
from .jobs import JobFailed, SettingFailed, TestJob, TrainJob
from .needs import visible
from .pool import Pool

if TYPE_CHECKING:
    from ..progress import Display

POLL = 1.0
"""Seconds between two looks at a unit that another scheduler has claimed."""


class ClaimedUnits:
    """Runs jobs of units, each only once this scheduler has claimed it."""

    def __init__(
        self,
        site: Site,
        workers: Pool,
        display: Display,
        claims: Claims,
        order: Mapping[Cell, int],
        of_trials: Container[str],
    ) -> None:
        self._site = site
        self._store = site.store
        self._workers = workers
        self._display = display
        self._claims = claims
        self._order = order
        self._of_trials = of_trials
        self._waited = False

    async def run(
        self,
        unit: tuple[Cell, Kind, str],
        missing: Callable[[], TrainJob | TestJob | None],
        priority: int,
        on_epoch: Callable[[int], None] = lambda _: None,
    ) -> bool:
        """Run a job until nothing is missing, here (True) or in another scheduler; a failure says which unit failed."""
        claim = self._store.unit_dir(*unit) / CLAIM
        while (job := missing()) is not None:
            begin = partial(self._begin, claim, job, missing)
            try:
                done = await self._workers.run(job, on_epoch, (priority, self._order[unit[0]]), begin)
            except JobFailed as error:
                _, kind, failed = job.unit
                error.unit = f"{kind} {failed}"
                # The claim on a training that its trial's setting has made fail is kept until the trial is recorded.
                if not (isinstance(error, SettingFailed) and failed in self._of_trials):
                    self._claims.give_back(claim)
                raise
            if done is not None:
                if self._site.hidden_for:  # another machine has written the records
                    await asyncio.to_thread(visible, job.outputs, self._site.hidden_for)
                self._claims.give_back(claim)
                return True
            if missing() is not None:
                self._say_who_is_waited_for(claim)
                await asyncio.sleep(POLL)
        self._claims.give_back(claim)
        return False

    def give_back(self, unit: tuple[Cell, Kind, str]) -> None:
        """Give back the claim on a unit that was done before."""
        self._claims.give_back(self._store.unit_dir(*unit) / CLAIM)

    def _begin(self, claim: Path, job: TrainJob | TestJob, missing: Callable[[], TrainJob | TestJob | None]) -> bool:
        """Claim a unit; False if that fails, or if its holder before has done the job since it was asked for."""
        if self._claims.take(claim) and missing() == job:
            return True
        self._claims.let_go(claim)
        return False

    def _say_who_is_waited_for(self, claim: Path) -> None:
        there = holder(claim)
        if there is not None and not self._waited:
            self._waited = True
            who = f"process {there.pid} on {there.host}"
            self._display.log(f"{who} is at work in this folder too; `bench status` shows on what")
