"""Workers on all nodes of a Ray cluster, which follow the nodes that join and leave."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import UnitFailed, UserError, first_line
from ..resources import per_gpu
from ..site import Site
from .jobs import ReadyJob, WorkerDied
from .needs import Needs
from .pool import TRIES, Pool
from .ray_nodes import Node, RayWorker, connect, watch_nodes

if TYPE_CHECKING:
    from .launch import Launch

LOOK = 1.0
"""Seconds between two looks at the nodes."""

GONE = 20.0
"""Seconds without an answer from the head after which the cluster counts as lost."""

PATIENCE = 60
"""Seconds for which a first node with room for a worker is waited for: a head is often there before its nodes."""

HIDDEN = 60.0
"""Longest time, seconds, for which a network file system may hide the files that another node has written."""


def share_of_gpu(launch: Launch, nodes: list[Node]) -> float:
    """Share of a GPU for each worker in a cluster; 0 if workers need none."""
    asked = launch.gpus_per_worker
    there = any(node.gpus > 0 for node in nodes)
    if launch.device == "cpu" or (launch.device == "auto" and asked is None and not there):
        return 0.0
    if not there:
        option = "--device cuda" if asked is None else f"--gpus-per-worker {asked:g}"
        raise UserError(f"{option}: no node of the cluster declares a GPU (ray start --num-gpus)")
    return asked or 1.0


def slots(node: Node, gpus: float) -> int:
    """Number of workers that a node has room for, each with a core and a share of one GPU.

    Example:
        >>> slots(Node("", "", cpus=8, gpus=2), 0.4), slots(Node("", "", cpus=3, gpus=2), 0.4)
        (4, 3)
        >>> slots(Node("", "", cpus=3, gpus=0), 0.0), slots(Node("", "", cpus=3, gpus=0), 1.0)
        (3, 0)
    """
    room = math.floor(node.cpus)
    if not gpus:
        return room
    # Shares of a card are not put together from two cards.
    return min(room, math.floor(node.gpus) * per_gpu(gpus))


@dataclass
class _Member:
    """A node that is used, with the workers that were started on it and have not died, as far as is known.

    ``slots`` is the number of workers that it is to have, ``failures`` that of starts that failed, one after the other.
    """

    node: Node
    slots: int = 0
    left_out: bool = False
    workers: list[RayWorker] = field(default_factory=list)
    checked: bool = False
    failures: int = 0
    starting: asyncio.Task[None] | None = None


class RayWorkers(Pool):
    """Pool of workers on the nodes of a Ray cluster; ``lost`` says why the cluster is gone."""

    def __init__(self, launch: Launch, needs: Needs, site: Site, say: Callable[[str], None]) -> None:
        super().__init__()
        self._launch, self._needs, self._site, self._say = launch, needs, site, say
        self._address = launch.address or "auto"
        self._members: dict[str, _Member] = {}
        self._left_out: list[str] = []
        self._gpus = 0.0
        self._looks = 0
        self._first: asyncio.Future[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._end_looking: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Connect to the cluster, and wait for the first worker."""
        loop = asyncio.get_running_loop()
        token = connect(self._address)
        if not token:
            self._say("the Ray cluster has no token: whoever can reach it can run code as you (see docs/cluster.md)")
        self._first = loop.create_future()
        seen: asyncio.Queue[list[Node]] = asyncio.Queue()
        self._end_looking = watch_nodes(lambda nodes: loop.call_soon_threadsafe(seen.put_nowait, nodes), LOOK)
        driver = asyncio.current_task()
        assert driver is not None
        self._watching = asyncio.create_task(self._watch(seen, driver))
        try:
            await asyncio.wait_for(asyncio.shield(self._first), GONE)
        except TimeoutError:
            self._say("no worker has started yet: nodes load torch and are checked, or others hold their cores or GPUs")
            await self._first

    async def stop(self) -> None:
        """Kill every worker at once, and leave the cluster."""
        import atexit

        if self._first is None:  # it was never connected, maybe for want of Ray
            return

        import ray

        self._end_looking()
        tasks = [task for task in (self._watching, *(each.starting for each in self._members.values())) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.lost:
            # Ray's own end would wait for the head, and then crash: the process ends before it, as one that has failed.
            atexit.unregister(ray.shutdown)
            atexit.register(os._exit, 1)
            return
        await super().stop()
        ray.shutdown()

    async def _watch(self, seen: asyncio.Queue[list[Node]], driver: asyncio.Task[object]) -> None:
        """Follow the nodes; when the head has not answered for :data:`GONE` seconds, cancel the task of the driver."""
        assert self._first is not None
        # Silence is counted in looks and not by a clock, so that a process that was stopped (Ctrl-Z) gives up nothing.
        silent = 0
        while not self.lost:
            try:
                nodes = await asyncio.wait_for(seen.get(), GONE / 2)
                silent = 0
                self._follow(nodes)
            except TimeoutError:
                silent += 1
                if silent == 2:
                    self._lose(driver)
            except UserError as error:
                if self._first.done():
                    continue
                if not self._looks and not self._left_out:
                    self._say(f"{error}; waiting {PATIENCE} s for nodes to join")
                self._looks += 1
                if self._left_out or self._looks > PATIENCE / LOOK:
                    self._first.set_exception(error)

    def _lose(self, driver: asyncio.Task[object]) -> None:
        assert self._first is not None
        self.lost = (
            f"the head of the Ray cluster has not answered for {GONE:g} s; nothing finished is lost: start the cluster"
            " again and type the same command"
        )
        if self._first.done():
            driver.cancel()
        else:
            self._first.set_exception(UnitFailed(self.lost))

    def _follow(self, nodes: list[Node]) -> None:
        """Use nodes that have joined, forget nodes that have left, and replace workers that have died."""
        assert self._first is not None
        if not self._first.done():
            self._gpus = share_of_gpu(self._launch, nodes)
        there = {node.id for node in nodes}
        for key in [key for key in self._members if key not in there]:
            self._forget(self._members.pop(key))
        for node in nodes:
            self._members.setdefault(node.id, _Member(node))
        for member in self._members.values():
            if not member.left_out:
                member.slots = min(slots(member.node, self._gpus), member.slots + self._room())
            member.workers = [worker for worker in member.workers if worker.usable]
            busy = member.starting is not None and not member.starting.done()
            if len(member.workers) < member.slots and not busy:
                member.starting = asyncio.create_task(self._start_workers(member))
        if not self._first.done() and all(member.slots == 0 for member in self._members.values()):
            raise UserError(
                self._left_out[0] if self._left_out else f"--address {self._address}: no node has room for a worker"
            )

    def _room(self) -> int:
        """Number of workers that may still be started."""
        return (self._launch.workers or 1 << 30) - sum(member.slots for member in self._members.values())

    def _forget(self, member: _Member) -> None:
        if member.slots:
            self._say(f"node {member.node.name} has left; its jobs go to other workers")
        if member.starting is not None:
            member.starting.cancel()
        for worker in member.workers:
            worker.usable = False
            self.remove(worker)
        if not any(other.workers for other in self._members.values()):
            self._say("no worker is left; waiting for a node to join (the same command goes on later, too)")

    async def _start_workers(self, member: _Member) -> None:
        """Start the workers that a node has room for; the first one checks the node."""
        try:
            if not member.checked:
                await self._start_worker(member)
                member.checked = True
                count = f"{member.slots} worker{'s' if member.slots > 1 else ''}"
                self._say(f"node {member.node.name} has joined: {count}")
            missing = range(member.slots - len(member.workers))
            starts = (self._start_worker(member) for _ in missing)
            # All are waited for: those that are still starting must not be started a second time.
            for failed in filter(None, await asyncio.gather(*starts, return_exceptions=True)):
                raise failed
            member.failures = 0
        except Exception as error:  # a JobFailed, or whatever else Ray raises: nobody else would hear of it
            died = isinstance(error, WorkerDied) and "ModuleNotFoundError" not in str(error)
            member.failures += 1
            if not died or member.failures == TRIES:
                member.slots, member.left_out = 0, True
                self._left_out.append(f"node {member.node.name} is left out: {first_line(error)}")
                self._say(self._left_out[-1])

    async def _start_worker(self, member: _Member) -> None:
        assert self._first is not None
        worker = RayWorker(member.node, self._gpus, self._launch.silence, member.slots)
        try:
            await worker.start()
            if self._gpus or not member.checked:
                needs = None if member.checked else self._needs
                await worker.run(ReadyJob(site=self._site, needs=needs), lambda event: None)
        except BaseException:
            with contextlib.suppress(Exception):
                await worker.stop()
            raise
        member.workers.append(worker)
        self.add(worker)
        if not self._first.done():
            self._first.set_result(None)
