"""Ten kills at random moments of one run: the table is that of an undisturbed run, and nothing is trained twice."""

import os
import random
import shutil
import signal
import time

import pytest


@pytest.mark.slow
def test_ten_kills_at_random_moments(tiny_run, cli, tiny, tmp_path, alive_in_group):
    root = tmp_path / "results" / "runs"
    arguments = ("run", "--method", "arcface,cosface,pfe,dul_cls", *tiny, "--workers", "2")
    draw = random.Random(0)
    kills, stamps = 0, {}
    while kills < 10:
        process = cli.start(*arguments)
        # From the first moments of start-up to well into training; what is left to do shrinks with every try.
        time.sleep(draw.uniform(2.0, 16.0))
        if process.poll() is not None:
            # It finished first: take some of its work away, so that there is something left to be killed at.
            for unit in draw.sample(sorted(root.glob("reality_check/*/*/t*-*")), 12):
                shutil.rmtree(unit)
            for trial in draw.sample(sorted(root.rglob("trial-*.json")), 6):
                trial.unlink()
            stamps = {p: t for p, t in stamps.items() if p.exists()}
            continue
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        assert not alive_in_group(process.pid, within=10), "workers outlived their parent"
        for path, stamp in stamps.items():
            assert path.stat().st_mtime_ns == stamp, f"{path} was trained twice"
        stamps = {p: p.stat().st_mtime_ns for p in root.rglob("train-*/record.json")}
    cli(*arguments)
    for path, stamp in stamps.items():
        assert path.stat().st_mtime_ns == stamp, f"{path} was trained twice"
    assert (root / "metrics.csv").read_bytes() == (tiny_run / "metrics.csv").read_bytes()
