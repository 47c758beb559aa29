"""bench.run: the command in a process of its own, its options by keyword."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import bench
import pytest
from bench.api.run import asked_for
from bench.errors import UnitFailed, UserError

from tests.engine.conftest import heed_signals


@pytest.mark.slow
def test_a_run_gives_its_results(tmp_path, dots, capsys):
    options = {"plugins": [dots], "results": tmp_path / "runs", "set": {"optim.epochs": 1}, "workers": 1}
    found = bench.run(methods=["cosface"], dataset="dots", seeds=1, trials=2, folds=1, **options)
    assert "trainings done" in capsys.readouterr().out
    assert set(found.metrics["method"]) == {"cosface"}
    assert found.trials["number"].tolist() == [0, 1]
    assert found.trials["method.margin"].nunique() == 2
    assert set(found.trials["dataset"]) == {"dots"}
    assert set(found.history["seed"]) == {"tuning 0"}  # the network that the study chose is the replicate


def test_every_option_of_the_command_is_a_keyword(tmp_path):
    """Those that a user types at the command line, in their places of the file of an experiment."""
    given = {"method": "all", "dataset": ["a", "b"], "seeds": None, "frozen": False, "results": "r", "dry_run": True}
    asked, words = asked_for({**given, "set": ["optim.lr=1"], "workers": 2, "plugins": Path("p.py")})
    assert (asked.methods, asked.datasets, asked.set) == (("all",), ("a", "b"), {"optim.lr": "1"})
    assert (asked.run.workers, asked.plugins, words) == (2, ("p.py",), ["--results=r", "--dry-run"])
    (tmp_path / "x.toml").write_text(asked.to_toml())
    changed = {"folds": 3, "sweep": {"method.margin": [0.1, 0.2]}, "plugins": ["p.py", Path("q.py")], "seeds": 4}
    again, words = asked_for({"file": tmp_path / "x.toml", "on_existing": "rerun", **changed})
    assert (again.methods, again.run.workers, again.tuning.folds, again.seeds) == (("all",), 2, 3, 4)
    assert (again.sweep, again.plugins) == ({"method.margin": ("0.1", "0.2")}, ("p.py", "q.py"))
    assert words == ["--on-existing=rerun"]
    with pytest.raises(UserError, match="seeds=0: input should be greater than or equal to 1"):
        bench.run("cosface", seeds=0)


@pytest.mark.parametrize(("name", "hint"), [("seed", "did you mean 'seeds'"), ("zzz", "--help-all"), ("help_all", "")])
def test_an_unknown_option_is_one_line(name, hint):
    with pytest.raises(UserError, match=f"no option '{name}'.*{hint}"):
        bench.run(methods="cosface", **{name: 1})


@pytest.mark.slow
def test_the_message_of_the_command_is_the_error(tmp_path, dots):
    with pytest.raises(UserError, match=r"^unknown method 'cosfac'.*did you mean 'cosface'"):
        bench.run(methods="cosfac", dataset="dots", plugins=dots, results=tmp_path / "runs")


@pytest.mark.slow
def test_a_failed_training_is_named(tmp_path, dots):
    options = {"plugins": dots, "results": tmp_path / "runs", "set": {"optim.epochs": 1, "optim.lr": 1e30}}
    with pytest.raises(UnitFailed, match="cosface on dots, seed 0"):
        bench.run("cosface", "dots", seeds=1, hparams="default", workers=1, **options)


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True])
def test_an_interruption_ends_the_run_and_it_goes_on_later(tmp_path, dots, group):
    """A terminal interrupts every process of a group, a notebook the kernel alone."""
    code = (
        f"import bench; r = bench.run('cosface', 'dots', seeds=1, hparams='default', workers=1, plugins={str(dots)!r},"
        f" results={str(tmp_path / 'runs')!r}, set={{'optim.epochs': 3000}})"
    )
    child = subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, start_new_session=True, preexec_fn=heed_signals)  # fmt: skip
    deadline = time.monotonic() + 120
    while not [*tmp_path.glob("runs/*/dots/cosface/train-*")]:  # on a fast machine the training takes 5 s
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (os.killpg if group else os.kill)(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=300)
    assert "Interrupted. Ending the workers." in out
    assert "Nothing finished is lost" in out
    assert err.rstrip().endswith("KeyboardInterrupt")
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)
