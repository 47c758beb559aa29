"""Progress of a run on the terminal: bars where there is a terminal, plain lines where there is none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from .errors import printable

if TYPE_CHECKING:
    from .store.specs import Cell


class Display:
    """Progress bars of a run, one per cell, in epochs, with the best value so far and the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = console.is_terminal
        self._started = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("epochs"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            TextColumn("{task.fields[note]}", style="cyan"),
            console=console,
            disable=not self._live,
            speed_estimate_period=120,
        )
        self._tasks: dict[Cell, TaskID] = {}
        self._notes: dict[Cell, str] = {}
        self._seeds: dict[Cell, int] = {}

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exc: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._progress.stop()

    def add(self, cell: Cell, epochs: int) -> None:
        """Add epochs, the most that a cell can take, to the length of its bar."""
        if cell in self._tasks:
            self.skip(cell, -epochs)
            return
        self._tasks[cell] = self._progress.add_task(f"[bold]{cell.method}[/] on {cell.dataset}", total=epochs, note="")

    def advance(self, cell: Cell, epochs: int) -> None:
        """Advance the bar of a cell by epochs that were trained."""
        self._progress.advance(self._tasks[cell], epochs)

    def skip(self, cell: Cell, epochs: int) -> None:
        """Shorten the bar of a cell by epochs that need no training: done already, or their tuning trial failed."""
        task = self._progress.tasks[list(self._tasks).index(cell)]
        self._progress.update(self._tasks[cell], total=max(0, (task.total or 0) - epochs))

    def note(self, cell: Cell, text: str) -> None:
        """Show a short note next to the bar of a cell, such as its best value so far."""
        if self._notes.get(cell) == text:
            return
        self._notes[cell] = text
        self._progress.update(self._tasks[cell], note=text)
        if not self._live:
            self.log(f"{cell.method} on {cell.dataset}: {text}")

    def tested(self, cell: Cell, seed: int) -> None:
        """Report that one seed of a cell is trained and tested, once for each of several settings."""
        seeds = self._seeds[cell] = self._seeds.get(cell, 0) + 1
        tuning = self._notes.get(cell, "").split("; ")[0]
        self.note(cell, "; ".join(filter(None, [tuning, f"{seeds} seed{'s' if seeds > 1 else ''} tested"])))

    def log(self, text: str) -> None:
        """Print one line above the bars; brackets in it are not read as markup."""
        line = f"[dim]{time.monotonic() - self._started:6.0f} s[/]  {escape(printable(text))}"
        self.console.print(line, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar while images are processed, called with the name of the work, how many are done, and of how many."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Where there is no terminal a bar would leave an empty line.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[tuple[str, int], TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            key = (what, total)
            if key not in tasks:
                tasks[key] = bars.add_task(what, total=total)
            bars.update(tasks[key], completed=done)

        yield advance


@contextlib.contextmanager
def download_bar(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while a file is downloaded, called with the bytes that are there and of all, or 0."""
    columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total or None)
