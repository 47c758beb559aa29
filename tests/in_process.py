"""Runs of ``bench`` whose workers are this process: two seconds of imports less for every process that is not started.

For tests of what a run computes; those of processes start them.
"""

import pytest
import torch
from bench.cli import main
from bench.engine.jobs import JOBS, EpochDone
from bench.engine.worker import run_job


class Pool:
    """A pool that does its jobs in this process, one after the other, as a worker reads them."""

    lost = ""

    def __init__(self, workers, first=None):
        self.jobs = []

    async def start(self): ...
    async def stop(self): ...

    async def run(self, job, on_epoch=lambda epoch: None, priority=(), begin=lambda: True):
        if not begin():
            return None
        self.jobs.append(job)
        read = JOBS.validate_json(job.model_dump_json())
        return run_job(read, lambda event: on_epoch(event.epoch) if isinstance(event, EpochDone) else None)


def bring_workers_in(patch, figures=True):
    """Let commands of this process do their jobs here, and draw no figures if none are looked at."""
    patch.setattr("bench.engine.pool.Pool", Pool)
    if not figures:
        patch.setattr("bench.report.write.write_automatic", lambda *arguments: [])


def forget_determinism():
    """Undo what a job sets for its whole process."""
    torch.set_deterministic_debug_mode("default")  # use_deterministic_algorithms would import torch's compiler


def run_here(folder, *arguments, figures=True):
    """Run a command in a folder, workers included; returns the folder of its results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        bring_workers_in(patch, figures)
        assert main([str(argument) for argument in arguments]) == 0
    forget_determinism()
    return folder / "results" / "runs"
