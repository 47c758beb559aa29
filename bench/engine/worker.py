"""A worker process: one thread, jobs in on standard input, events out on standard output, JSON by line.

It ends when its parent does: the parent holds the other end of standard input, and a thread here waits for it to
close. It stays in the parent's process group, so a signal to the group reaches it too.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Job = dict[str, Any]


def _read_jobs(jobs: queue.SimpleQueue[Job]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    # No clean-up: every file is written atomically, and a training must not outlive its parent by an epoch.
    os._exit(0)


def run_job(job: Job, emit: Callable[[dict[str, Any]], None]) -> Any:
    """Do one job: ``propose``, ``train`` or ``test``."""
    if job["job"] == "propose":
        from .space import propose

        asked: list[dict[str, Any]] = []
        for number in job["numbers"]:
            asked.append(job["fixed"].get(str(number)) or _propose(propose, job, number, asked))
        return asked

    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    from .context import Context

    context = Context.from_dict(job["context"])
    cell = tuple(job["cell"])
    if job["job"] == "train":
        from .train import run_training

        return run_training(job["spec"], job["unit"], cell, context, emit)
    from .evaluate import run_tests

    return run_tests(job["specs"], cell, context)


def _propose(propose: Callable[..., Any], job: Job, number: int, asked: list[dict[str, Any]]) -> Any:
    import torch

    torch.set_num_threads(1)
    return propose(job["axes"], job["space"], job["sampler"], number, job["told"], asked)


def main() -> None:
    """Serve jobs until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a print in a plug-in must not break the protocol
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()

    def emit(event: dict[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")

    # What every job needs loads while the first one is still being planned; torch's optimisers need _dynamo.
    import torch._dynamo  # noqa: F401

    from . import train  # noqa: F401

    while True:
        job = jobs.get()
        try:
            emit({"event": "done", "result": run_job(job, emit)})
        except Exception as error:
            kind = type(error).__name__
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f" ({Path(where.filename).name}:{where.lineno})"
            reason = str(error) if kind in ("UnitFailed", "UserError") else f"{kind}: {error}{place}"
            emit({"event": "failed", "kind": kind, "reason": reason, "traceback": traceback.format_exc()})


if __name__ == "__main__":
    main()
