"""Trained networks for the functions of `import bench`, on a tiny data set of a plug-in."""

import re
from pathlib import Path

import pytest

from tests.in_process import run_here

METHODS = ("dul_cls", "cosface", "pfe", "deep_ensemble", "untrained")
GUIDE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture(scope="session")
def dots(tmp_path_factory):
    """Plug-in with the data set of the guide: 60 noisy patterns of 12 x 12 pixels."""
    path = tmp_path_factory.mktemp("plugin") / "dots.py"
    path.write_text(re.search(r"```python\n(# dots.py\n.*?)```", GUIDE.read_text(), re.S)[1])
    return path


@pytest.fixture(scope="session")
def runs(tmp_path_factory, dots):
    """Results folder with two seeds of a few methods, one epoch each."""
    return run_here(tmp_path_factory.mktemp("runs"), "run", "--method", ",".join(METHODS), "--dataset", "dots",
                    "--hparams", "default", "--seeds", "2", "--set", "optim.epochs=1", "--plugin", dots,
                    figures=False)  # fmt: skip
