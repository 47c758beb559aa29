"""Errors of workers: one line that names the unit, the plug-in's line and the file with the whole traceback."""

import errno
import re

import pytest
from bench.cli import main
from bench.engine.jobs import Failure
from bench.errors import LINE
from bench.store.folder import Store

from tests import records
from tests.templates import PLAIN, written

RUN = ("--dataset", "ndigit_smoke", "--seeds", "1", "--set", "optim.epochs=1", "--workers", "1")

LOUD = "from .losses import Loud\n" + PLAIN.replace("return CosineClassifier", "return Loud")

LOSSES = """
import torch
from bench.methods import CosineClassifier


class Loud(CosineClassifier):
    def forward(self, distribution, labels):
        {body}
"""


def _plugin(folder, body="return None", text=LOUD):
    (folder / "losses.py").write_text(LOSSES.format(body=body))
    return written(folder, text)


def _failure(done):
    """The line on the training that failed."""
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("failed")]
    assert line.startswith("failed mine on ndigit_smoke, seed 0 (train ")
    return line


LONG = r'"\n".join(["the spread is\x00 not\tfinite [/bold] " + 280 * "1", *(f"tensor {i:04d}" for i in range(300))])'


@pytest.mark.slow
def test_a_long_message_in_training_is_one_line_and_kept_whole_beside_the_unit(cli, tmp_path):
    plugin = _plugin(tmp_path, f"raise RuntimeError({LONG})")
    done = cli("run", "--method", "mine", *RUN, "--hparams", "default", "--plugin", plugin, check=False)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert all(len(line) <= LINE for line in lines), max(lines, key=len)
    now, line = [line for line in lines if "RuntimeError" in line]
    assert " s  mine on ndigit_smoke, seed 0 failed: RuntimeError: the " in now  # said when it happens, and at the end
    (folder,) = tmp_path.glob("results/runs/*/*/mine/train-*")
    assert line.startswith(f"failed mine on ndigit_smoke, seed 0 ({folder.name.replace('-', ' ')}): RuntimeError: the ")
    assert "(losses.py:8); traceback: " in line
    log = tmp_path / line.rpartition("traceback: ")[2]
    assert log == folder / "error.txt"
    text = log.read_text()
    assert text.startswith("Traceback")
    assert "tensor 0299" in text
    assert "tensor" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path in folder.iterdir() if path.name == "record.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "place"),
    [
        (LOUD.replace("\n\n@register", "\nFAIL\n\n@register"), "mine.py:4"),
        (LOUD + "\n    def distribution(self, raw, spread):\n        FAIL\n", "mine.py:14"),
        (LOUD + "\n    @property\n    def trained_parts(self):\n        FAIL\n", "mine.py:15"),
    ],
)
@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (f"raise KeyError({LONG})", "KeyError: "),
        (f"raise OSError({LONG})", "OSError: "),
    ],
)
def test_a_mistake_that_stops_the_plan_names_its_line(text, place, fails, reason, tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    _plugin(tmp_path, text=text.replace("FAIL", fails))
    asked = ("run", "--method", "mine", *RUN, "--plugin", "mine.py", "--scorers", "mls", "--dry-run")
    line = refusal(*asked)
    assert len(line) <= LINE
    assert place in line
    assert reason in line


@pytest.mark.parametrize("reason", ["short", "long " * 400])
@pytest.mark.parametrize("log", ["", "results/runs/" + "a" * 100 + "/error.txt"])
def test_a_failure_is_at_most_one_line_with_its_unit_and_its_file(reason, log):
    failure = Failure(
        "a method with a long name on a data set with one, seed 0", f"train {16 * 'f'}", reason, "mine.py:3", log
    )
    line = failure.line()
    assert len(line) <= LINE
    assert re.match(r"a method .* \(train f{16}\): (short|long )", line)
    assert " (mine.py:3)" in line
    assert line.endswith(log)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0"),  # exit code 0 and silence
        ("raise BaseException('enough')", "BaseException: enough"),  # a traceback
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),  # exit code 130 and silence
    ],
)
@pytest.mark.parametrize("command", [("run", "--method", "mine", *RUN, "--dry-run"), ("list", "scorers"), ("report",)])
def test_a_plug_in_that_exits_at_import_is_one_line(statement, reason, command, tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    _plugin(tmp_path, text=f"{statement}\n{LOUD}")
    line = refusal(*command, "--plugin", "mine.py")
    assert f"does not import: {reason}" in line
    assert "(mine.py:1)" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        # It was "worker process ended in the middle of the job (exit code 0)".
        ("raise SystemExit(0)", "SystemExit: 0 (losses.py:8); traceback: "),
        ("raise KeyboardInterrupt", "KeyboardInterrupt (losses.py:8)"),
        ("import os; os._exit(0)", "ended in the middle of the job (exit code 0) at about 'epoch 1, batch 1'"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "(killed by signal 9) at about 'epoch 1, batch 1'; most likely the system ran out of memory: try fewer",
        ),
    ],
)
def test_an_objective_that_ends_its_process_is_a_failure(statement, reason, cli, tmp_path):
    plugin = _plugin(tmp_path, statement)
    done = cli("run", "--method", "mine", *RUN, "--hparams", "default", "--plugin", plugin, check=False)
    assert reason in _failure(done)
    assert "Traceback" not in done.stderr


def test_memory_that_runs_out_in_the_driver_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _plugin(tmp_path, text=LOUD + "\n    def spread_head(self, f, dim):\n        raise MemoryError\n")
    dry = ("run", "--method", "mine", *RUN, "--plugin", "mine.py", "--hparams", "default", "--dry-run")
    assert main([*dry]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "bench: out of memory: MemoryError; try smaller settings"


@pytest.mark.slow
def test_an_objective_that_never_returns_is_ended_if_asked_for(cli, tmp_path):
    (tmp_path / "other").mkdir()
    plugin = _plugin(tmp_path, "import time; time.sleep(10000)")
    done = cli(
        "run", "--method", "mine,cosface", *RUN, "--hparams", "default", "--plugin", plugin, "--set", "run.stall=1",
        check=False, timeout=400,
    )  # fmt: skip
    assert "no progress for 1 min at about 'epoch 1, batch 1'; ended (run.stall)" in _failure(done)
    assert "1 trainings done" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_an_objective_that_forks_does_not_hang_the_run(cli, tmp_path):
    body = "import os; os.fork() or __import__('time').sleep(1000); return super().forward(distribution, labels)"
    plugin = _plugin(tmp_path, body)
    done = cli("run", "--method", "mine", *RUN, "--hparams", "default", "--plugin", plugin, timeout=200)
    assert "1 trainings done" in " ".join(done.stderr.split())


def test_a_report_of_a_read_only_folder_goes_elsewhere_as_a_whole(tmp_path, monkeypatch, refusal):
    """``report --out elsewhere`` wanted to write metrics.csv into the results folder."""
    from bench.report import frame

    results, out = tmp_path / "results", tmp_path / "out"
    Store(results).mark("reality_check", 1)
    collected = frame.Results((records.of_test(records.columns(), [records.map_at_r(0.5)]),))
    monkeypatch.setattr(frame, "collect", lambda store: collected)
    monkeypatch.setattr("bench.report.write.write_report", lambda judged, out, *others: [out / "report.html"])

    def refused(path, write=frame.atomic_file):
        if path.parent == results:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return write(path)

    monkeypatch.setattr(frame, "atomic_file", refused)
    assert main(["report", "--results", str(results), "--out", str(out), "--json"]) == 0
    assert "map_at_r" in (out / "metrics.csv").read_text()
    assert "Read-only file system" in refusal("report", "--results", results)
