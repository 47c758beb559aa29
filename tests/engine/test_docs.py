"""The complete plug-ins in README and CONTRIBUTING pass the checks, and run together."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _blocks():
    """Python blocks whose first line names their file, by that name."""
    text = "".join((ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md"))
    return dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL))


CHECKS = {
    "tiny.py": ("test", "--method", "tiny"),
    "shaky.py": ("test", "--method", "shaky"),
    "dots.py": ("test", "--dataset", "dots"),
    "angles.py": ("test", "--test", "angles"),
    "apart.py": ("list", "scorers", "--check"),
    "dim.py": ("list", "corruptions", "--check"),
}


def test_every_complete_block_is_checked():
    assert set(_blocks()) == set(CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_a_complete_plugin_of_the_docs_passes_its_check(inside, tmp_path, name):
    """Fault A1: the "complete" method of the README failed `bench test`."""
    (tmp_path / name).write_text(_blocks()[name])
    shown = inside(*CHECKS[name], "--plugin", name).stdout
    assert name.removesuffix(".py") in shown


@pytest.mark.slow
def test_the_plugins_of_the_docs_run_together(cli, tmp_path):
    for name, text in _blocks().items():
        (tmp_path / name).write_text(text)
    plugins = [part for name in _blocks() for part in ("--plugin", name)]
    asked = ("--method", "tiny,shaky", "--dataset", "dots", "--corruptions", "crop,dim:3", "--scorers", "apart")
    cli("run", *asked, "--hparams", "default", "--seeds", "1", "--set", "optim.epochs=1", "--workers", "2", *plugins)
    table = (tmp_path / "results" / "runs" / "metrics.csv").read_text()
    for said in ("shaky", "tiny", "apart", "test_dim", "closest", "centre"):
        assert f",{said}," in table
