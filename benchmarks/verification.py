"""Cost of verifying what is read from a results folder: each reader with and without it, in turn, in one run.

    uv run python benchmarks/verification.py [--records 10000] [--results results/runs] [--repeats 3]

A run of two methods (trained here, unless ``--results`` names a folder) is compared with a folder of many records:
copies of its records with other seeds. Read are the records (what ``status`` and every report read), and every file
(``status --check``), each in a process of its own for its peak memory. Without verification, checksums are not
computed; everything else is the same.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from bench.cli import main as bench
from bench.report.frame import collect
from bench.store.folder import Store
from bench.store.records import TestRecord, TrainRecord, TrialRecord

GRID = ("run", "--method", "cosface,pfe", "--dataset", "ndigit_smoke", "--trials", "4", "--seeds", "2")


def many_records(of: Path, root: Path, count: int) -> None:
    """Write a folder of copies of the records of another, with other seeds and numbers of trials."""
    source, target = Store(of), Store(root)
    tests = list(source.tests())
    trials = [(study, trial) for study, held in source.studies() for trial in held]
    root.mkdir()
    (root / "store.json").write_bytes((of / "store.json").read_bytes())
    for number in range(count):
        kind, index = number % 3, number // 3
        if kind == 2:
            study, trial = trials[index % len(trials)]
            target.write_study(study)
            target.write_trial(study.cell, trial.model_copy(update={"number": index}))
            continue
        test = tests[index % len(tests)]
        record = source.trained(test.cell, test.spec.train[0])
        assert record is not None
        spec = record.spec.replaced(replicate=index)
        if kind == 0:
            target.write(record.model_copy(update={"spec": spec, "unit": spec.id, "files": {}}))
        else:
            tested = test.spec.replaced(train=(spec.id,))
            columns = test.columns.model_copy(update={"seed": index})
            target.write(test.model_copy(update={"spec": tested, "unit": tested.id, "columns": columns, "files": {}}))


def _unverified(text: str | bytes, kind: str) -> dict[str, object]:
    import json

    held: dict[str, object] = json.loads(text)
    for key in ("checksum", "kind", "schema"):
        held.pop(key, None)
    return held


@contextlib.contextmanager
def without_verification() -> Iterator[None]:
    """Compute no checksum in this context."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("bench.store.records.checked_content", _unverified))
        for kind in (TrainRecord, TestRecord, TrialRecord):
            stack.enter_context(mock.patch.object(kind, "check_identity", return_value=None))
        stack.enter_context(mock.patch("bench.store.folder.Store._is_whole", lambda store, path, digest: path.exists()))
        stack.enter_context(mock.patch("bench.store.folder.is_whole_cache", return_value=True))
        yield


def _status(root: Path) -> None:
    _bench("status", "--results", str(root))


def _check(root: Path) -> None:
    _bench("status", "--check", "--results", str(root))


def _collect(root: Path) -> None:
    collect(Store(root))


def _bench(*arguments: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = bench(list(arguments))
    assert code == 0, said.getvalue()


def _timed(read: Callable[[Path], None], root: Path, verified: bool, told: multiprocessing.queues.SimpleQueue) -> None:
    started = time.process_time()
    with contextlib.nullcontext() if verified else without_verification():
        read(root)
    told.put((time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))


def measured(read: Callable[[Path], None], root: Path, verified: bool) -> tuple[float, int]:
    """Processor seconds of reading a folder in a new process, and the peak memory of the process in MiB."""
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    process = context.Process(target=_timed, args=(read, root, verified, told))
    process.start()
    process.join()
    seconds, peak = told.get()
    return float(seconds), int(peak)


def compare(name: str, read: Callable[[Path], None], root: Path, repeats: int) -> None:
    """Print the cost of one way to read a folder, with and without verification."""
    runs = {verified: [measured(read, root, verified) for _ in range(repeats)] for verified in (True, False)}
    seconds = {verified: statistics.median(second for second, _ in found) for verified, found in runs.items()}
    peaks = {verified: max(peak for _, peak in found) for verified, found in runs.items()}
    times = f"{seconds[True]:8.2f} s {seconds[False]:8.2f} s {seconds[True] / seconds[False]:6.2f}"
    print(f"{name:<26} {times} {peaks[True]:8} MiB {peaks[False]:6} MiB", flush=True)


def main() -> None:
    """Measure both folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        few, many = options.results or Path(folder, "few"), Path(folder, "many")
        if options.results is None:
            command = [Path(sys.executable).with_name("bench"), *GRID, "--results", str(few)]
            subprocess.run(command, check=True, capture_output=True)
        many_records(few, many, options.records)
        print(f"{'':26} {'verified':>10} {'without':>10} {'ratio':>6} {'peak memory':>12} {'without':>10}")
        for root in (few, many):
            size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
            records = len(list(root.glob("*/*/*/*/*.json")))
            print(f"{records} records, {size / 2**20:.0f} MiB")
            for name, read in (("status", _status), ("records of tests", _collect), ("status --check", _check)):
                compare(f"  {name}", read, root, options.repeats)


if __name__ == "__main__":
    main()
