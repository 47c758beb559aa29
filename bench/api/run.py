"""``bench.run``: the command ``bench run`` from a script or notebook."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..commands.options import DEFAULT_RESULTS, FIELDS
from ..errors import UnitFailed, UserError, nearest
from ..planning.experiment import Experiment, read_experiment, settings_of
from ..store.specs import Parameters

if TYPE_CHECKING:
    from .results import Results

START = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from bench.start import entry; entry()"
"""Ctrl-C reaches every process of a terminal; this one is told once, by SIGTERM, whoever was interrupted."""

OTHERS = ("data_root", "results", "on_existing", "dry_run", "save")
"""Options of the command that are no part of an experiment."""

INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def run(
    methods: str | Iterable[str] | None = None,
    dataset: str | Iterable[str] | None = None,
    *,
    results: str | PathLike[str] = DEFAULT_RESULTS,
    **options: Any,
) -> Results:
    """Tune, train and test methods on data sets, as the command ``bench run`` does, in processes of its own.

    What it prints is printed here, line by line. Interrupt it (Ctrl-C, or the kernel) to stop: nothing that is finished
    is lost, and the same call goes on from there.

    Args:
        methods: Names of methods, ``"all"``, or None with ``file="experiment.toml"``.
        dataset: Name of a data set, or several.
        results: Results folder.
        **options: Further options of the command (``bench run --help-all``), with underscores: ``seeds=5``,
            ``trials=15``, ``frozen=True``, ``data_root="photos"``, ``plugins=["mine.py"]``,
            ``set={"optim.epochs": 10}``.

    Returns:
        The records of the results folder (:func:`bench.results`).

    Raises:
        UserError: If an option is unknown or wrong; the message is that of the command.
        UnitFailed: If a training or test failed; the others are done.
        KeyboardInterrupt: If it was interrupted.

    Example:
        ::

            r = bench.run(methods=["cosface", "dul_cls"], dataset="ndigit", seeds=5, trials=15)
            r.verdicts
    """
    experiment, words = asked_for({"methods": methods, "datasets": dataset, "results": results, **options})
    with tempfile.TemporaryDirectory(prefix="bench-run-") as folder:
        file = Path(folder) / "experiment.toml"
        file.write_text(experiment.to_toml(), encoding="utf-8")
        command = [sys.executable, "-P", "-c", START, "run", str(file), *words]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as child:
            try:
                said = _passed_on(child)
            except BaseException:
                child.terminate()
                _passed_on(child)
                raise
    _check(child.returncode, said)
    from .results import results as opened  # pandas takes a second to load

    return opened(results)


def asked_for(given: Mapping[str, Any]) -> tuple[Experiment, list[str]]:
    """Experiment of options by name, and the other options as words of the command; None leaves an option out.

    Raises:
        UserError: If there is no such option (the message suggests the nearest), or a value does not fit.

    Example:
        >>> experiment, words = asked_for({"method": ["cosface", "pfe"], "folds": 2, "dry_run": True, "results": "r"})
        >>> experiment.methods, experiment.tuning.folds, words
        (('cosface', 'pfe'), 2, ['--dry-run', '--results=r'])
    """
    values = {name: _plain(value) for name, value in given.items() if value is not None}
    file, words = values.pop("file", None), []
    typed: Parameters = {"set": settings_of(values.pop("set", ()))}
    for name, value in values.items():
        place = FIELDS[name].place if name in FIELDS else name
        if name in OTHERS:
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [f"{option}={value}"] if value is not False else []
        elif "." in place:
            typed["set"][place] = value
        elif place in Experiment.model_fields:
            typed[place] = value
        else:
            hint = nearest(name, [*FIELDS, *OTHERS, "file"]) or "; `bench run --help-all` lists them"
            raise UserError(f"bench.run has no option {name!r}{hint}")
    return Experiment.filled({} if file is None else read_experiment(Path(file)), typed), words


def _plain(value: Any) -> Any:
    """A value as a file of an experiment has it: paths are texts, sequences lists."""
    if isinstance(value, PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return list(map(_plain, value)) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _passed_on(child: subprocess.Popen[str]) -> list[str]:
    """Print the lines of a process until it ends; the last ones."""
    said: list[str] = []
    assert child.stdout is not None
    for line in child.stdout:
        print(line, end="", flush=True)
        said = [*said, line.rstrip("\n")][-200:]
    child.wait()
    return said


def _check(code: int, said: list[str]) -> None:
    """Raise what the exit code of the command means, with its own words."""
    if code == 0:
        return
    if code in INTERRUPTED:
        raise KeyboardInterrupt
    errors = [line.removeprefix("bench: ") for line in said if line.startswith("bench: ")]
    failures = [line.removeprefix("failed ") for line in said if line.startswith("failed ")]
    if code == 1:
        raise UnitFailed("; ".join(failures or errors[-1:]) or "bench run failed")
    raise UserError(errors[-1] if errors else "\n".join(said[-1:]) or f"bench run ended with code {code}")
