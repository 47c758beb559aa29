"""The soak tool: disturbed runs end with the table of an undisturbed one, and the tool notices if they do not."""

import os
import random
import re
import subprocess
import sys

import pytest

from .conftest import TOOLS, loaded_tool


@pytest.fixture
def tool():
    with loaded_tool("soak") as module:
        yield module


class _Done:
    returncode = 0
    pid = -1

    def poll(self):
        return self.returncode

    def wait(self, timeout):
        return self.returncode


@pytest.fixture
def soak(tool, tmp_path, monkeypatch):
    """A soak whose commands have ended well; its results folder is that of the reference."""
    made = tool.Soak(tmp_path, 3, False)
    for folder in (made.root / "a" / "b" / "c" / "train-1", tmp_path / "reference", tmp_path / "tmp"):
        folder.mkdir(parents=True)
    for folder in (made.root, tmp_path / "reference"):
        (folder / "metrics.csv").write_bytes(b"table")

    def command(*arguments):
        process = _Done()
        process.returncode = made.codes.get(arguments[0], 0)
        log = tmp_path / f"{arguments[0]}.txt"
        log.write_text(made.output)
        return tool.Driver(process, log)

    made.codes, made.output = {}, "done"
    monkeypatch.setattr(made, "bench", command)
    return made


def test_a_soak_in_which_everything_holds_goes_on(soak, tool):
    tool.check(soak)


@pytest.mark.parametrize(
    ("breach", "reason"),
    [
        (lambda soak: soak.codes.update(run=2), "exit code 2"),
        (lambda soak: soak.codes.update(status=1), "finds damage"),
        (lambda soak: (soak.root / "metrics.csv").write_bytes(b"other"), r"metrics\.csv is not"),
        (lambda soak: setattr(soak, "output", "Traceback (most recent call last)"), "traceback"),
        (lambda soak: (soak.root / "a" / ".x.part").write_bytes(b""), r"left behind: .*\.x\.part"),
        (lambda soak: (soak.root / "a" / "b" / "c" / "train-1" / ".claim").write_bytes(b""), r"\.claim"),
        (lambda soak: (soak.work / "tmp" / "x").write_bytes(b""), "left behind"),
    ],
)
def test_a_soak_notices_what_must_not_be(breach, reason, soak, tool):
    breach(soak)
    with pytest.raises(tool.Failed, match=reason):
        tool.check(soak)


def test_the_seed_decides_which_file_is_damaged_and_how(soak, tool):
    contents = []
    for _ in range(2):
        (soak.root / "metrics.csv").unlink(missing_ok=True)
        for name in "abcdef":
            (soak.root / name).with_suffix(".json").write_bytes(100 * name.encode())
        for name in ("bit flipped", "file truncated", "file swapped"):
            assert tool.EVENTS[name](soak, random.Random(name))
        contents.append({path.name: path.read_bytes() for path in soak.files()})
    assert contents[0] == contents[1]
    assert len(set(map(len, contents[0].values()))) > 1


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
