"""Trained networks for the functions of `import bench`, on a tiny data set of a plug-in."""

import pytest
from bench.commands.new import write_template

from tests.in_process import run_here

METHODS = ("dul_cls", "cosface", "pfe", "deep_ensemble", "untrained")


def run_dots(folder, dots, methods, *more, seeds=1, epochs=1):
    """Results folder of a short run."""
    asked = ("--method", methods, "--dataset", "dots", "--hparams", "default", "--seeds", str(seeds))
    return run_here(folder, "run", *asked, "--set", f"optim.epochs={epochs}", "--plugin", dots, *more, figures=False)


@pytest.fixture(scope="session")
def dots(tmp_path_factory):
    """Plug-in with the data set of `bench new dataset`, smaller: 60 noisy patterns of 12 x 12 pixels."""
    path = tmp_path_factory.mktemp("plugin") / "dots.py"
    write_template("dataset", "dots", path)
    path.write_text(path.read_text().replace("= 64, 8, 16", "= 60, 6, 12"))
    return path


@pytest.fixture(scope="session")
def runs(tmp_path_factory, dots):
    """Results folder with two seeds of a few methods, one epoch each."""
    return run_dots(tmp_path_factory.mktemp("runs"), dots, ",".join(METHODS), seeds=2)
