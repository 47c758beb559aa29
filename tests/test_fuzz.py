"""Every reader of files that are not trusted, fuzzed for 30 s; ``BENCH_FUZZ_SECONDS`` sets another time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"
READERS = ("npz", "safetensors", "parquet", "features", "settings", "records", "lists", "archives", "images")
SECONDS = os.environ.get("BENCH_FUZZ_SECONDS", "30")

PLANTED = """
import os, sys, time
sys.path.insert(0, {folder!r})
import fuzz

class Planted(fuzz.Reader):
    reads = 0

    def valid(self, rng):
        return "case.txt", b"x"

    def read(self, path):
        self.reads += 1
        if self.reads > 8:  # after those that warm up
            {body}

fuzz.READERS["npz"] = Planted
fuzz.CASE_SECONDS = 6.0
fuzz.__file__ = __file__
if __name__ == "__main__":
    sys.exit(fuzz.main())
"""


def _fuzz(tool, tmp_path, *arguments):
    command = [sys.executable, tool, *arguments, "--out", "found"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.skipif(SECONDS == "0", reason="BENCH_FUZZ_SECONDS=0")
@pytest.mark.parametrize("reader", READERS)
def test_no_file_brings_a_reader_down(tmp_path, reader):
    pytest.importorskip("pyarrow")
    done = _fuzz(TOOL, tmp_path, "--reader", reader, "--seconds", SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{reader}: 0 faults" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('k')", "KeyError at"),
        ("os.abort()", "the process ended with code -6"),
        ("time.sleep(60)", "hangs"),
        ("b'x' * 200_000_000", "memory grew by"),
        ("bytearray(10**11)", "MemoryError"),
        ("from bench.errors import UserError; raise UserError('two\\nlines')", "not a line"),
    ],
)
def test_the_fuzzer_notices_what_a_reader_must_not_do(tmp_path, body, message):
    tool = tmp_path / "planted.py"
    tool.write_text(PLANTED.format(folder=str(TOOL.parent), body=body))
    done = _fuzz(tool, tmp_path, "--reader", "npz", "--seconds", "10")
    assert done.returncode == 1, done.stdout + done.stderr
    assert message in done.stdout
    assert list((tmp_path / "found").iterdir())
