"""Progress of long work: bars where there is a terminal, in a log a plain line after every half minute of silence."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from .errors import printable

if TYPE_CHECKING:
    from .store.specs import Cell


EVERY = 30.0
"""Shortest time between two lines about progress in a log, and before the first, seconds."""


def readable(seconds: float) -> str:
    """A duration in the largest unit that suits it.

    Example:
        >>> [readable(s) for s in (8, 130, 9000, 200000)]
        ['8 s', '2 min', '2.5 h', '2.3 days']
    """
    for limit, unit, name, digits in ((100, 1, "s", 0), (5400, 60, "min", 0), (129600, 3600, "h", 1)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds / 86400:.1f} days"


def _left(remaining: float, done: float, seconds: float) -> str:
    """Time left, as the end of a line, if what is done took so many seconds; empty if nothing or everything is done."""
    return f", about {readable(seconds * remaining / done)} left" if done > 0 and remaining > 0 else ""


class Lines:
    """Progress of pieces of work as lines of a log; called with the name of one, how much is done, and of how much."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._spoke = time.monotonic()
        self._began: dict[tuple[str, int], tuple[float, int]] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say it, unless something was said less than :data:`EVERY` seconds ago."""
        now = time.monotonic()
        # What was there at the first call, from an interrupted command, say, took no time.
        began, there = self._began.setdefault((what, total), (now, done))
        if now - self._spoke >= EVERY:
            self._spoke = now
            self._say(f"{what}: {done} of {total}{_left(total - done, done - there, now - began)}")


class _Epochs(ProgressColumn):
    """Epochs that are done, the time since the start and the time left."""

    def render(self, task: Task) -> Text:
        """All of it in one column, which a narrow terminal keeps whole."""
        if not task.total:
            return Text("nothing to train")
        times = [seconds and timedelta(seconds=int(seconds)) for seconds in (task.elapsed, task.time_remaining)]
        left = f" left {times[1] or '-'}" if not task.finished else ""
        return Text(f"{task.completed:g}/{task.total:g} epochs {times[0] or timedelta()}{left}")


class _Note(ProgressColumn):
    """The note of a bar: what a narrow terminal cuts first."""

    def render(self, task: Task) -> Text:
        """One line, however short."""
        return Text(str(task.fields["note"]), style="cyan", no_wrap=True, overflow="ellipsis")


class Display:
    """Progress bars of a run, one of all and one per cell, in epochs, with the best value so far and the time left.

    On a narrow terminal notes are cut first, then names.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = console.is_terminal
        self._started = self._spoke = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=max(12, console.width - 50))),
            BarColumn(bar_width=24 if console.width >= 100 else 6),
            _Epochs(table_column=Column(no_wrap=True)),
            _Note(table_column=Column()),
            console=console,
            disable=not self._live,
            speed_estimate_period=120,
        )
        self._all = self._progress.add_task("all", total=None, note="", visible=False)
        self._tasks: dict[Cell, TaskID] = {}
        self._notes: dict[Cell, tuple[str, str]] = {}
        self._seeds: dict[Cell, list[int]] = {}

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exc: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._progress.stop()

    def add(self, cell: Cell, epochs: int, seeds: int = 0) -> None:
        """Add epochs, the most that a cell can take, to the length of its bar, and seeds that will be tested."""
        self._seeds.setdefault(cell, [0, 0])[1] += seeds
        if cell not in self._tasks:
            self._tasks[cell] = self._progress.add_task(
                f"[bold]{cell.method}[/] on {cell.dataset}", total=None, note=""
            )
            self._progress.update(self._all, visible=len(self._tasks) > 1)
        self.skip(cell, -epochs)

    def advance(self, cell: Cell, epochs: int) -> None:
        """Advance the bar of a cell by epochs that were trained."""
        for task in (self._tasks[cell], self._all):
            self._progress.advance(task, epochs)

    def skip(self, cell: Cell, epochs: int) -> None:
        """Shorten the bar of a cell by epochs that need no training: done already, or their tuning trial failed."""
        for task in self._progress.tasks:
            if task.id in (self._tasks[cell], self._all):
                self._progress.update(task.id, total=max(0, (task.total or 0) - epochs))

    def note(self, cell: Cell, text: str) -> None:
        """Show a short note about the tuning of a cell next to its bar, such as the best value so far."""
        self._show(cell, (text, self._notes.get(cell, ("", ""))[1]))

    def tested(self, cell: Cell, seed: int) -> None:
        """Report that one seed of a cell is trained and tested, once for each of several settings."""
        counts = self._seeds[cell]
        counts[0] += 1
        done, of = counts[0], max(counts)
        self._show(cell, (self._notes.get(cell, ("", ""))[0], f"{done} of {of} tested"))

    def _show(self, cell: Cell, notes: tuple[str, str]) -> None:
        if self._notes.get(cell) == notes:
            return
        self._notes[cell] = notes
        text = "; ".join(filter(None, reversed(notes)))  # the newer one first: the end may be cut
        self._progress.update(self._tasks[cell], note=text)
        if not self._live:
            self.log(f"{cell.method} on {cell.dataset}: {text}")

    def working(self, step: str) -> None:
        """Hear what a worker is doing; after a silence, a log says it, with the epochs that are left."""
        now = time.monotonic()
        if self._live or now - self._spoke < EVERY:
            return
        done, total = self._progress.tasks[0].completed, self._progress.tasks[0].total or 0
        left = _left(total - done, done, now - self._started)
        self.log(f"{done:g} of {total:g} epochs{left}; now: {step}")

    def log(self, text: str) -> None:
        """Print one line above the bars; brackets in it are not read as markup."""
        self._spoke = time.monotonic()
        line = f"[dim]{self._spoke - self._started:6.0f} s[/]  {escape(printable(text))}"
        self.console.print(line, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def progress_bar(console: Console, *columns: ProgressColumn) -> Iterator[Callable[[str, int, int], None]]:
    """Show progress while images are processed, called with the name of the work, how many are done, and of all."""
    if not console.is_terminal:
        yield Lines(
            lambda text: console.print(f"bench: {printable(text)}", highlight=False, markup=False, soft_wrap=True)
        )
        return
    columns = columns or (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        tasks: dict[tuple[str, int], TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            key = (what, total)
            if key not in tasks:
                tasks[key] = bars.add_task(what, total=total or None)
            bars.update(tasks[key], completed=done)

        yield advance


@contextlib.contextmanager
def download_bar(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show progress while a file is downloaded, called with the bytes that are there and of all, or 0."""
    columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with progress_bar(console, *columns) as advance:
        unit = 1 if console.is_terminal else 10**6
        yield lambda done, total: advance("downloading, MB", done // unit, total // unit)
