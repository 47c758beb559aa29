"""``bench.run``: the command ``bench run`` from a script or notebook."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..commands.options import DEFAULT_RESULTS
from ..errors import UnitFailed, UserError, nearest

if TYPE_CHECKING:
    from os import PathLike

    from .results import Results

START = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from bench.start import entry; entry()"
"""Ctrl-C reaches every process of a terminal; this one is told once, by SIGTERM, whoever was interrupted."""

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
            ``trials=10``, ``frozen=True``, ``data_root="photos"``, ``plugins=["mine.py"]``,
            ``set={"optim.epochs": 10}``.

    Returns:
        The records of the results folder (:func:`bench.results`).

    Raises:
        UserError: If an option is unknown or wrong; the message is that of the command.
        UnitFailed: If a training or test failed; the others are done.
        KeyboardInterrupt: If it was interrupted.

    Example:
        ::

            r = bench.run(methods=["cosface", "dul_cls"], dataset="ndigit", seeds=5, trials=10)
            r.verdicts
    """
    from .results import results as opened

    given = {"method": methods, "dataset": dataset, "results": results, **options}
    command = [sys.executable, "-P", "-c", START, "run", *arguments_of(given)]
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
    return opened(results)


def arguments_of(given: Mapping[str, Any]) -> list[str]:
    """Arguments of the command for options by name; None leaves an option out.

    Raises:
        UserError: If the command has no such option; the message suggests the nearest.

    Example:
        >>> arguments_of({"method": ["cosface", "pfe"], "seeds": 2, "frozen": True, "set": {"optim.epochs": 3}})
        ['--method=cosface,pfe', '--seeds=2', '--frozen', '--set=optim.epochs=3']
    """
    import typer

    from ..commands.run import PLACES, RunCommand
    from ..commands.run import run as command

    app = typer.Typer()
    app.command(cls=RunCommand)(command)
    parameters: dict[str, Any] = {str(each.name).rstrip("_"): each for each in typer.main.get_command(app).params}
    parameters |= {of: parameters[name] for name, of in PLACES.items() if "." not in of}
    words: list[str] = []
    for name, value in given.items():
        if name not in parameters or name == "help_all":
            hint = nearest(name, parameters) or "; `bench run --help-all` lists them"
            raise UserError(f"bench.run has no option {name!r}{hint}")
        if value is None or value is False:
            continue
        parameter = parameters[name]
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif getattr(parameter, "is_flag", False):
            words.append(parameter.opts[0])
        else:
            words += [f"{parameter.opts[0]}={text}" for text in _texts(name, value)]
    return words


def _texts(name: str, value: Any) -> list[str]:
    """Texts of an option, one for each time that it is given."""
    if isinstance(value, Mapping):
        return [f"{key}={_text(of)}" for key, of in value.items()]
    if name in ("set", "sweep", "plugin", "plugins"):
        return [str(each) for each in ([value] if isinstance(value, str) or not isinstance(value, Iterable) else value)]
    return [_text(value)]


def _text(value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value)
    return ",".join(map(str, value))


def _passed_on(child: subprocess.Popen[str]) -> list[str]:
    """Print the lines of a process until it ends; the last ones."""
    said: list[str] = []
    assert child.stdout is not None
    for line in child.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
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
