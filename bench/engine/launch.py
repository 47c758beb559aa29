"""Launchers: the workers of a run, on this machine or on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..planning.experiment import Run
from ..resources import CARD, SHARE, cores, gpu_names, pick_device, worker_count
from ..site import Site
from .jobs import ReadyJob
from .needs import needs_of
from .pool import LocalWorker, Pool
from .ray_workers import HIDDEN, RayWorkers

if TYPE_CHECKING:
    from ..planning.plan import Plan


class Launch(Run):
    """Choice of the workers of a run, ``local`` ones or those of a Ray cluster.

    Without a number there is one worker per core or GPU, each with one training or test at a time.
    """

    def resolved(self) -> Launch:
        """The choice with the device of this machine, if workers are here; refuses options that do not fit."""
        local = self.launcher == "local"
        if local and self.address is not None:
            raise UserError("--address names a Ray cluster; add --launcher ray")
        device = pick_device(self.device) if local else self.device
        if self.gpus_per_worker is not None and device == "cpu":
            raise UserError(f"--gpus-per-worker {self.gpus_per_worker:g}: no GPU is used here; leave the option out")
        if local:
            worker_count(self.workers, device, self.gpus_per_worker)  # raises before anything is decoded
        return self.model_copy(update={"device": device})

    @property
    def device_here(self) -> str:
        """Device of what is timed on this machine, even if the workers are elsewhere: ``cpu`` or ``cuda``."""
        return pick_device("auto" if self.launcher == "ray" and self.device == "cuda" else self.device)

    @property
    def silence(self) -> float | None:
        """Seconds without progress after which a worker process is ended."""
        return None if self.stall is None else 60 * self.stall


def workers_of(
    launch: Launch, site: Site, plans: Iterable[Plan], driver: Path, say: Callable[[str], None]
) -> tuple[Pool, Site, str]:
    """Workers that are ready to be started, the site they work in, and their number and place for people.

    Those of this machine are refused if there is no room for them; on GPUs, each is pinned to one of them, on CPUs to
    none. Every node of a Ray cluster must have what the plans need, and see the claim of this ``driver`` on the
    results folder.
    """
    if launch.launcher == "ray":
        there = site.model_copy(update={"device": launch.device, "hidden_for": HIDDEN})
        pool = RayWorkers(launch, needs_of(plans, site, driver), there, say)
        return pool, there, f"Ray cluster {launch.address or 'of this machine'}"
    count = worker_count(launch.workers, launch.device, launch.gpus_per_worker)
    cards = gpu_names() if launch.device == "cuda" else [""]
    on_each = -(-count // len(cards))
    share = launch.gpus_per_worker or 1 / on_each
    workers = [LocalWorker(launch.silence, {CARD: cards[n % len(cards)], SHARE: str(share)}) for n in range(count)]
    place = f"{len(cards)} GPUs" if len(cards) > 1 else launch.device
    there = site.model_copy(update={"device": launch.device, "threads": max(1, cores() // count)})
    # GPUs are tried before any job.
    first = None if launch.device == "cpu" else ReadyJob(site=there, sharing=on_each if share < 1 else 0)
    return Pool(workers, first), there, f"{count} worker{'s' if count > 1 else ''} on {place}"
