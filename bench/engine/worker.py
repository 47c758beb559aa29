"""A worker process: one thread, jobs in on standard input, events out on standard output, JSON by line.

It ends when its parent does: the parent holds the other end of standard input, and a thread here waits for it to
close. It stays in the parent's process group, so a signal to the group reaches it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

from ..errors import OutOfMemory, UnitFailed, UserError, breaks_process, first_line, is_out_of_memory, place_of
from ..planning.checks import files_hash, weights_hash
from ..planning.plan import versions_of
from ..resources import keep_memory, pick_device, return_memory
from ..site import Site
from ..store.files import write_atomic
from ..store.folder import CHECKPOINT, LOG
from ..store.specs import Point
from . import jobs


def _read_jobs(asked: queue.SimpleQueue[jobs.Job]) -> None:
    for line in sys.stdin:
        asked.put(jobs.JOBS.validate_json(line))
    # No clean-up: every file is written atomically, and a training must not outlive its parent by an epoch.
    os._exit(0)


def _become_silent(out: TextIO) -> None:
    """Keep a process that a plug-in has forked off from speaking for the worker, and from outliving it."""
    out.close()
    with contextlib.suppress(OSError, AttributeError):  # not on macOS
        end_with_parent = 1
        ctypes.CDLL(None).prctl(end_with_parent, signal.SIGKILL)


def run_job(job: jobs.Job, emit: Callable[[jobs.Event], None]) -> jobs.Done:
    """Do one job in this process: propose trials, train, test or check the machine.

    A training or test emits an event after each epoch, and at most ten a second between. When memory runs out where
    smaller parts do not help, what is not needed is freed and the job is done once more, a training from its last
    epoch: another program may have held memory of the GPU for a while.
    """
    from .running import release_memory

    freed = False

    def heard(event: jobs.Event) -> None:
        nonlocal freed
        freed = freed and not isinstance(event, jobs.EpochDone)
        emit(event)

    while True:
        try:
            return _run_job(job, heard)
        except Exception as error:
            if freed or not (isinstance(error, OutOfMemory) or is_out_of_memory(error)):
                raise
        # Here and not above: the error refers to everything that the failed attempt has allocated.
        release_memory()
        freed = True


def _run_job(job: jobs.Job, emit: Callable[[jobs.Event], None]) -> jobs.Done:
    import torch

    from .environment import Meter, open_gpu

    torch.set_num_threads(1)
    if isinstance(job, jobs.ProposeJob):
        return jobs.Done(points=_proposals(job))
    site = job.site.model_copy(update={"device": pick_device(job.site.device)})
    if site.device == "cuda":
        open_gpu(job.sharing if isinstance(job, jobs.ReadyJob) else 0)
    if isinstance(job, jobs.ReadyJob) and job.needs is None:
        return jobs.Done()
    _ = site.plugin_tests  # imports the plug-ins
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms would import torch's compiler as well
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    resumed = isinstance(job, jobs.TrainJob) and (site.store.unit_dir(*job.unit) / CHECKPOINT).exists()
    running = Meter.of(_at_most_ten_a_second(lambda step: emit(jobs.Alive(step=step))), resumed)
    if isinstance(job, jobs.ReadyJob):
        assert job.needs is not None
        check(job.needs, site, running.alive)
        return jobs.Done()
    jobs.visible(job.inputs, site.hidden_for)
    if isinstance(job, jobs.TrainJob):
        from .training import run_training

        run_training(job.spec, site, lambda epoch: emit(jobs.EpochDone(epoch=epoch)), running)
    else:
        from .testing import run_tests

        run_tests(job.specs, job.cell, site, running, job.trained, job.shared)
    return jobs.Done()


def check(needs: jobs.Needs, site: Site, alive: Callable[[str], None]) -> None:
    """Check that this machine has what a run needs, and decode the photographs of its data sets into the cache."""
    here = jobs.software()
    for name, wanted in needs.software.items():
        if here.get(name) != wanted:
            raise UserError(f"it has {name} {here.get(name)}, this run {wanted}; install the same on both")
    alive("look for the results folder")
    if not jobs.visible((Path(needs.driver),), site.hidden_for):
        raise UserError(f"it does not see the results folder {site.results}; every node needs it at the same path")
    if not os.access(site.results, os.W_OK):
        raise UserError(f"it may not write to the results folder {site.results}")
    for plan in needs.plans:
        alive(f"check code and data of {plan.template.method} on {plan.template.dataset}")
        _check_plan(plan, site)
    for key in {(plan.template.dataset, repr(plan.template.view)): plan for plan in needs.plans}.values():
        _prepare(key, site, alive)


def _check_plan(plan: jobs.PlanNeeds, site: Site) -> None:
    spec = plan.template
    what = f"{spec.method} on {spec.dataset}"
    scorers = (site.methods.method(spec.method).scorer, *plan.testing.scorers)
    if versions_of(spec, plan.testing.tests, scorers, site) != (spec.versions, plan.testing.versions):
        raise UserError(f"its code of {what} is not that of this run; give every node the same code and plug-ins")
    if weights_hash(spec.backbone, site.weights) != spec.weights:
        raise UserError(f"its weights of {spec.backbone} are not those of this run; copy the same file to every node")
    data = site.dataset(spec.dataset, spec.view)
    same = data.soft_labels_sha256 == plan.testing.soft_labels and data.partial == spec.partial
    if spec.files:  # of photographs and of features
        same &= files_hash(data, spec.fold, spec.folds) == spec.files
    if not same:
        raise UserError(f"its files of data set {spec.dataset} are not those of this run (--data-root)")


def _prepare(plan: jobs.PlanNeeds, site: Site, alive: Callable[[str], None]) -> None:
    from ..datasets.files import DataError
    from ..datasets.releases import PhotoDataset

    data = site.dataset(plan.template.dataset, plan.template.view)
    if not isinstance(data, PhotoDataset):
        return
    try:
        for fold in plan.folds:
            data.prepare(fold, plan.template.folds, lambda what, done, total: alive(f"{what}: {done} of {total}"))
    except DataError as error:
        raise UserError(str(error)) from None


def _at_most_ten_a_second(say: Callable[[str], None]) -> Callable[[str], None]:
    last = -math.inf

    def alive(step: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 0.1:
            last = now
            say(step)

    return alive


def _proposals(job: jobs.ProposeJob) -> tuple[Point, ...]:
    from .tuning import propose

    asked: list[Point] = []
    for number in job.numbers:
        about = (job.axes, job.space, job.sampler, number, job.told, asked, job.objectives, job.startup)
        asked.append(job.fixed.get(number) or propose(*about))
    return tuple(asked)


def failed(job: jobs.Job, error: BaseException) -> jobs.Failed:
    """Message for a job that ended with an error; the traceback is written to the folder of the training or test."""
    log = ""
    if isinstance(job, jobs.TrainJob | jobs.TestJob):
        path = job.site.store.unit_dir(*job.unit) / LOG
        text = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):  # a full disk is what the error says already
            write_atomic(path, text.encode(errors="replace"))
            log = str(path)
    kind = type(error).__name__
    said = isinstance(error, UnitFailed | UserError)
    reason = first_line(error) if said else f"{kind}: {first_line(error)}"
    if is_out_of_memory(error):
        reason = f"out of memory: try fewer --workers, smaller settings or more memory: {reason}"
    place = "" if said else place_of(error)
    return jobs.Failed(error=kind, reason=reason, place=place, log=log, ended=breaks_process(error))


def main() -> None:
    """Run jobs read from standard input, as JSON by line, until it closes; events go to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.register_at_fork(after_in_child=partial(_become_silent, out))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a print in a plug-in must not break the protocol
    keep_memory()
    asked: queue.SimpleQueue[jobs.Job] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(asked,), daemon=True).start()

    def emit(event: jobs.Event) -> None:
        out.write(event.model_dump_json() + "\n")

    # Before the first job, whose time is measured.
    from . import training  # noqa: F401

    while True:
        job = asked.get()
        try:
            emit(run_job(job, emit))
        except BaseException as error:  # a plug-in that calls sys.exit must not end the worker
            event = failed(job, error)
            emit(event)
            if event.ended:  # CUDA or oneDNN is beyond use, and the clean-up of CUDA may hang
                os._exit(1)
        return_memory()  # the next job may need less, and its peak is measured


if __name__ == "__main__":
    main()
