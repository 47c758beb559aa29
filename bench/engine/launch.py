"""Launchers: the workers of a run, on this machine or on the nodes of a Ray cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import UserError
from ..resources import CARD, SHARE, cores, gpu_names, pick_device, worker_count
from ..site import Site
from ..store.claims import Roster
from .jobs import GpuJob, Job, JobFailed, TestJob, TrainJob
from .needs import needs_of
from .pool import LocalWorker, Pool
from .ray_cluster import HIDDEN, RayWorkers, Shares

if TYPE_CHECKING:
    from ..planning.plan import Plan


@dataclass(frozen=True)
class Launch:
    """Choice of the workers of a run, ``local`` ones or those of a Ray cluster.

    Without a number there is one worker per core or GPU, each with one training or test at a time. ``gpus_per_worker``
    is the share of a GPU for each, in (0, 1]; ``stall`` the minutes without progress after which a job is given up.
    """

    launcher: str = "local"
    address: str | None = None
    workers: int | None = None
    device: str = "auto"
    gpus_per_worker: float | None = None
    stall: float | None = None

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
        return replace(self, device=device)

    @property
    def device_here(self) -> str:
        """Device of what is timed on this machine, even if the workers are elsewhere: ``cpu`` or ``cuda``."""
        return pick_device("auto" if self.launcher == "ray" and self.device == "cuda" else self.device)

    @property
    def silence(self) -> float | None:
        """Seconds without progress after which a worker process is ended."""
        return None if self.stall is None else 60 * self.stall


@dataclass(frozen=True)
class Launched:
    """Workers of a run that are ready to be started, the site they work in, and their number and place for people."""

    pool: Pool
    site: Site
    text: str


class OnGpus(Pool):
    """Pool of workers on GPUs of this machine, ``sharing`` on each if it is shared, which are tried before any job."""

    def __init__(self, workers: Sequence[LocalWorker], sharing: int, site: Site) -> None:
        super().__init__(workers)
        self._try = GpuJob(sharing=sharing, site=site)

    async def start(self) -> None:
        """Start every worker; a UserError says which GPU cannot be used and why."""
        await super().start()
        try:
            await asyncio.gather(*(worker.run(self._try, lambda event: None) for worker in self._all))
        except JobFailed as error:
            raise UserError(str(error)) from None


def local(launch: Launch, site: Site) -> Launched:
    """Workers of this machine, if there is room for them; on GPUs, each is pinned to one of them, on CPUs to none."""
    count = worker_count(launch.workers, launch.device, launch.gpus_per_worker)
    cards = gpu_names() if launch.device == "cuda" else [""]
    on_each = -(-count // len(cards))
    share = launch.gpus_per_worker or 1 / on_each
    workers = [LocalWorker(launch.silence, {CARD: cards[n % len(cards)], SHARE: str(share)}) for n in range(count)]
    place = f"{len(cards)} GPUs" if len(cards) > 1 else launch.device
    there = site.model_copy(update={"device": launch.device, "threads": max(1, cores() // count)})
    return Launched(
        Pool(workers) if launch.device == "cpu" else OnGpus(workers, on_each if share < 1 else 0, there),
        there,
        f"{count} worker{'s' if count > 1 else ''} on {place}",
    )


def on_ray(launch: Launch, site: Site, plans: Iterable[Plan], roster: Roster, say: Callable[[str], None]) -> Launched:
    """Workers on the nodes of a Ray cluster, every one of which must have what the plans need."""
    there = site.model_copy(update={"device": launch.device, "hidden_for": HIDDEN})
    root = site.store.root

    def placed(job: Job, node: str | None) -> None:
        if isinstance(job, TrainJob | TestJob):
            roster.place(str(site.store.unit_dir(*job.unit).relative_to(root)), node)

    pool = RayWorkers(
        "auto" if launch.address is None else launch.address,
        Shares(launch.workers, launch.gpus_per_worker, launch.device),
        needs_of(plans, site, roster.token),
        there,
        launch.silence,
        say,
        placed,
    )
    return Launched(pool, there, f"Ray cluster {launch.address or 'of this machine'}")
