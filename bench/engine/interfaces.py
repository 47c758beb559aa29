"""Interfaces between the scheduler and what it is given: workers that run jobs, and a display of progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..store.specs import Cell
from .jobs import Done, Job


class Workers(Protocol):
    """The interface of a pool of workers, as the scheduler uses it."""

    async def run(
        self,
        job: Job,
        on_epoch: Callable[[int], None] = ...,
        priority: tuple[int, ...] = ...,
        begin: Callable[[], bool] = ...,
    ) -> Done | None:
        """Run a job as soon as a worker is free; of the jobs that wait, the smallest priority is served first.

        ``begin`` is asked when a worker is free; if it returns False, the job is not run and the result is None.
        """


class Display(Protocol):
    """Interface of a progress display with one bar per cell."""

    def advance(self, cell: Cell, epochs: int) -> None:
        """Advance the bar of a cell by epochs that were trained."""

    def skip(self, cell: Cell, epochs: int) -> None:
        """Shorten the bar of a cell by epochs that need no training."""

    def note(self, cell: Cell, text: str) -> None:
        """Show a short note next to the bar of a cell, such as its best value so far."""

    def tested(self, cell: Cell, seed: int) -> None:
        """Report that one seed of a cell is trained and tested."""

    def log(self, text: str) -> None:
        """Print one line above the progress bars."""
