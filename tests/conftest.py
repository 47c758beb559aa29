"""Two test processes share two cores: one thread each, or they wait for one another.

Caches of images and weights are of their own: what this machine has in its own is not seen, and stays as it is.

Many tests start the console script, and without bytecode on disk each start compiles torch and all the rest anew.
"""

import asyncio
import inspect
import os
import sys
import tempfile

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
CACHES = tempfile.TemporaryDirectory()
os.environ |= {name: os.path.join(CACHES.name, name) for name in ("BENCH_CACHE", "TORCH_HOME", "HF_HUB_CACHE")}


@pytest.fixture
def refusal(capsys):
    """Function that runs a command which must end with code 2 and one line on standard error; returns the line."""
    from bench.cli import main

    def refused(*arguments):
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return refused


@pytest.fixture
def bench(capsys):
    """Function that runs a command: exit code, standard output, standard error."""
    from bench.cli import main

    def run(*arguments):
        return main([str(argument) for argument in arguments]), *capsys.readouterr()

    return run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True
