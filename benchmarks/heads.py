"""Where the time of training a head on frozen features goes, by the number of features, and against another checkout.

    uv run python benchmarks/heads.py --before /other/.venv/bin/python --pin model.head_start=random

Features of 100 classes of 40 images in 4 views are drawn and imported; a head of 128 dimensions is trained on them for
20 epochs, or until its early stop, with one thread. With ``--before``, an interpreter in whose environment another
checkout is installed, the trainings of both take turns, each in a process of its own; ratios are medians over the
pairs, and ``--pin`` is for this checkout alone. Times are processor times of an epoch, which other load disturbs less
than wall times.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTS = ("gathering", "forward", "loss", "backward", "optimiser", "validation", "checkpoint")


def _import_features(folder: Path, width: int) -> None:
    """Import features of training and test classes as the data set ``made``."""
    import numpy as np
    from bench.cli import main

    for name, classes, each, first in (("train", 100, 40, 0), ("test", 20, 10, 100)):
        rng = np.random.default_rng(first)
        labels = np.repeat(np.arange(classes), each)
        clean = rng.normal(size=(classes, width))[labels] + 1.5 * rng.normal(size=(len(labels), width))
        views = clean[:, None] + 0.3 * rng.normal(size=(len(labels), 4, width))
        np.savez(folder / name, features=views.astype(np.float32), labels=labels + first)
    files = ["--train", str(folder / "train.npz"), "--test", str(folder / "test.npz")]
    try:
        main(["data", "features", "made", *files])
    except SystemExit as end:
        if end.code:
            raise


def measure(width: int, method: str, pins: list[str]) -> dict[str, Any]:
    """Processor milliseconds of an epoch of the second of two trainings, in all and by part, and its last MAP@R."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["BENCH_DATA"] = str(folder / "data")
        sys.stdout, out = sys.stderr, sys.stdout
        _import_features(folder, width)
        sys.stdout = out

        import torch
        from bench.engine import inputs, optim, training
        from bench.planning.experiment import Experiment
        from bench.planning.plan import build_plans
        from bench.site import Site

        torch.set_num_threads(1)
        spent = dict.fromkeys(PARTS, 0.0)

        def timed(holder: Any, name: str, part: str) -> None:
            work: Callable[..., Any] = getattr(holder, name)

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                start = time.process_time()
                try:
                    return work(*args, **kwargs)
                finally:
                    spent[part] += time.process_time() - start

            setattr(holder, name, wrapped)

        timed(inputs.Features, "of_training", "gathering")
        timed(inputs.CachedFeatures, "embed_batch", "forward")
        timed(training.Trainer, "_loss", "loss")
        timed(optim.Optimisation, "backward", "backward")
        timed(optim.Optimisation, "update", "optimiser")
        timed(training.Trainer, "validate", "validation")
        timed(training.Trainer, "save_checkpoint", "checkpoint")
        site = Site(results=str(folder / "runs"), data_home=str(folder / "data"))
        request = Experiment(methods=(method,), datasets=("made",), hparams="default", set=pins)
        (plan,) = (plan for plan in build_plans(request, site).plans if plan.cell.method == method)
        for seed in (0, 1):
            (spec,) = plan.train_specs({}, seed, None).values()
            spent.update(dict.fromkeys(PARTS, 0.0))
            start = time.process_time()
            record = training.run_training(spec, site, lambda epoch: None)
            total = time.process_time() - start
    epochs = record.history[-1].epoch
    parts = {part: 1e3 * seconds / epochs for part, seconds in spent.items()}
    return {
        "epoch": 1e3 * total / epochs,
        "parts": parts | {"other": 1e3 * total / epochs - sum(parts.values())},
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "map_at_r": record.history[-1].val_map_at_r,
    }


def _measured(python: str, width: int, method: str, pins: list[str]) -> dict[str, Any]:
    command = [python, __file__, "--one", str(width), "--method", method, *(f"--pin={pin}" for pin in pins)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr.decode()[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="384,768,1280")
    parser.add_argument("--method", default="cosface")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--before", metavar="PYTHON")
    parser.add_argument("--pin", action="append", default=[], metavar="KEY=VALUE", help="a setting of this checkout")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.method, options.pin)))
        return
    sides = {"before": options.before, "now": sys.executable} if options.before else {"now": sys.executable}
    for width in map(int, options.widths.split(",")):
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for _ in range(options.repeats):
            for side, python in sides.items():
                pins = options.pin if side == "now" else []
                runs[side].append(_measured(python, width, options.method, pins))
        print(f"\n{width} features, {options.method}: ms of an epoch, median of {options.repeats}")
        print("side    epoch  " + "  ".join(f"{part:>10}" for part in (*PARTS, "other")) + "  peak MiB  val MAP@R")
        for side, found in runs.items():
            cells = [statistics.median(each["parts"][part] for each in found) for part in (*PARTS, "other")]
            epoch, memory = (statistics.median(each[name] for each in found) for name in ("epoch", "memory"))
            texts = "  ".join(f"{cell:10.1f}" for cell in cells)
            print(f"{side:6}  {epoch:5.0f}  {texts}  {memory:8.0f}  {found[0]['map_at_r']:.6f}")
        if options.before:
            ratios = sorted(a["epoch"] / b["epoch"] for a, b in zip(runs["before"], runs["now"]))
            print(f"before / now: {statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]")


if __name__ == "__main__":
    main()
