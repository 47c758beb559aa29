"""The soak tool: disturbed runs end with the table of an undisturbed one, and the tool notices if they do not."""

import os
import re
import subprocess
import sys

import pytest

from .conftest import TOOLS


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--rounds", "1", "--seed", "0"), ("--kills", "10", "--seed", "0")])
def test_disturbed_runs_end_with_the_undisturbed_table(options, tmp_path):
    done = subprocess.run(
        [sys.executable, TOOLS / "soak.py", *options],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    everything = re.search(r"^all +(\d+) +(\d+)$", done.stdout, re.MULTILINE)
    assert everything[1] == everything[2]
    if "--kills" in options:
        assert sum(int(count) for count in re.findall(r"^SIGKILL \w+ +(\d+)", done.stdout, re.MULTILINE)) >= 10
    assert not list(tmp_path.iterdir())
