"""Progress of a training or test: signs of life, and the sizes of its parts after memory ran out."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import OutOfMemory, first_line, is_out_of_memory
from ..protocols.ranking import Scorer
from ..resources import return_memory

T = TypeVar("T")


@dataclass
class Running:
    """Progress of a training or test: signs of life for the watchdog, and sizes that scarce memory forced on it.

    ``micro_batch`` images pass through the backbone at a time in training, ``chunk`` are embedded at a time.
    """

    alive: Callable[[str], None] = lambda step: None
    micro_batch: int | None = None
    chunk: int | None = None

    @property
    def sizes(self) -> dict[str, int | None]:
        """The sizes by name, as a checkpoint and a record hold them."""
        return {"micro_batch": self.micro_batch, "chunk": self.chunk}


def release_memory() -> None:
    """Give back memory that nothing refers to any more, on the host and on the GPU."""
    gc.collect()
    return_memory()
    torch.cuda.empty_cache()  # does nothing where no GPU is used


def in_chunks(count: int, size: int, work: Callable[[Tensor, int], T], running: Running, step: str) -> list[T]:
    """Results of some work on consecutive rows, part by part; when memory runs out, parts become half as large.

    At first a part is tried again as it is: another program may have held memory of the GPU for a while.
    """
    size = min(size, running.chunk or size)
    parts: list[T] = []
    start, freed = 0, False
    while start < count or not parts:
        running.alive(step if count <= size else f"{step}: {start} of {count}")
        rows = torch.arange(start, min(start + size, count))
        try:
            parts.append(work(rows, size))
            start, freed = start + size, False
            continue
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if freed and size == 1:
                raise OutOfMemory(f"{step}, one image at a time", first_line(error)) from error
        # Here and not above: the error refers to everything that the failed attempt has allocated.
        release_memory()
        if freed:
            size = running.chunk = size // 2
        freed = True
    return parts


class PatientScorer:
    """A scorer whose blocks of scores become smaller when memory runs out."""

    def __init__(self, scorer: Scorer, running: Running) -> None:
        self.name = scorer.name
        self._scorer = scorer
        self._running = Running(running.alive)  # the size of its blocks is not that of chunks of images
        for name in ("bound", "rough"):
            if hasattr(scorer, name):
                setattr(self, name, getattr(scorer, name))

    def matrix(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Scores ``[Q, G]`` between two lists of rows."""
        return self._in_parts(len(queries), lambda rows: self._scorer.matrix(queries[rows], gallery))

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores ``[P]`` of aligned rows."""
        return self._in_parts(len(left), lambda rows: self._scorer.pairs(left[rows], right[rows]))

    def _in_parts(self, count: int, work: Callable[[Tensor], Tensor]) -> Tensor:
        parts = in_chunks(count, count, lambda rows, _: work(rows), self._running, f"scores by {self.name}")
        return parts[0] if len(parts) == 1 else torch.cat(parts)
