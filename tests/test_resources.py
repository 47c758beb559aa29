"""Memory that a process keeps for its next arrays, and where the C library knows no such thing."""

import ctypes
import platform
import subprocess
import sys

import pytest
from bench.resources import keep_memory, return_memory

MEASURED = """
import resource
from pathlib import Path
import numpy as np
from bench.resources import keep_memory, return_memory

def clear():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(20_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

usual = [clear(), clear()][1]
keep_memory()
kept = [clear(), clear()][1]
held = resident()
return_memory()
print(usual, kept, held - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_memory_is_kept_until_it_is_returned():
    usual, kept, returned = map(int, subprocess.check_output([sys.executable, "-c", MEASURED], timeout=600).split())
    assert kept < usual / 10  # pages that were mapped anew
    assert returned > 100  # MiB, of 152


@pytest.mark.parametrize("library", [OSError("no such library"), object()])
def test_other_c_libraries_are_left_alone(library, monkeypatch):
    def load(name):
        if isinstance(library, OSError):
            raise library
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    keep_memory()
    return_memory()
