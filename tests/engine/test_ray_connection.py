"""Connecting to a cluster: an address that cannot work is one line, with and without Ray.

Ray itself is not needed here: it is missing, or made up.
"""

import queue
import socket
import sys
import time
from types import SimpleNamespace

import pytest
from bench.cli import main
from bench.engine import ray_workers
from bench.engine.ray_workers import Node, connect, watch_nodes
from bench.errors import UserError

from tests.refusals import one_line

RUN = ("run", "--method", "cosface", "--dataset", "ndigit_smoke", "--hparams", "default", "--seeds", "1",
       "--launcher", "ray")  # fmt: skip


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Variables that connecting sets are put back; there is no token."""
    for name in ("RAY_AUTH_MODE", "RAY_ENABLE_UV_RUN_RUNTIME_ENV", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def ray(monkeypatch):
    """A Ray that accepts every address."""
    asked = []
    there = SimpleNamespace(init=lambda **options: asked.append(options), asked=asked)
    monkeypatch.setitem(sys.modules, "ray", there)
    return there


def _closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("address", ["foo", "host:", ":6379", "1.2.3.4:99999", "1.2.3.4:0", "host:-1", "host:²", ""])
def test_what_is_no_address_is_refused(no_ray, address):
    with pytest.raises(UserError, match="not auto and not HOST:PORT"):
        connect(address)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("foo", "HOST:PORT"),
        (_closed_port, "no Ray cluster answers there (Connection refused)"),
        (None, "`uv sync --inexact --extra ray`"),
    ],
)
def test_the_command_line_says_so_in_one_line(no_ray, address, message, tmp_path, capsys):
    """Without Ray, a traceback came from leaving a cluster that was never joined."""
    given = address() if callable(address) else address
    options = () if given is None else ("--address", given)
    assert main([*RUN, *options, "--results", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert said[-1].startswith("bench: ")
    assert sum(line.startswith("bench: ") for line in said) == 1
    assert not any("Traceback" in line for line in said)
    assert not list((tmp_path / "runs" / ".drivers").iterdir())


@pytest.mark.parametrize(
    ("variables", "token"),
    [
        ({}, False),
        ({"RAY_AUTH_MODE": "token"}, True),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "x"}, False),
        ({"RAY_AUTH_TOKEN": "x"}, True),
        ({"RAY_AUTH_TOKEN_PATH": "x"}, True),
    ],
)
def test_a_token_is_used_if_there_is_one(ray, monkeypatch, variables, token):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert connect("auto") is token


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ConnectionError("Could not find any running Ray instance. Please specify"), "belongs to no Ray cluster"),
        (RuntimeError("Version mismatch: The cluster was started with:\n Ray: 2.1"), "the same Ray and Python"),
        (RuntimeError("Failed to connect to GCS at address 1.2.3.4"), "is its token the same"),
        (ValueError("something else\nat length"), "something else at length"),
    ],
)
def test_an_error_of_ray_becomes_one_line(ray, error, advice):
    def init(**options):
        raise error

    ray.init = init
    said = one_line(UserError, connect, "auto")
    assert said.startswith("--address auto: ")
    assert advice in said


def test_a_cluster_that_never_answers_is_given_up(ray, monkeypatch):
    monkeypatch.setattr(ray_workers, "PATIENCE", 0.05)
    ray.init = lambda **options: time.sleep(1)
    with pytest.raises(UserError, match=r"has not answered for 0\.05 s"):
        connect("auto")


def test_nodes_that_are_alive_are_reported_with_their_names_and_resources(ray):
    row = {"Alive": True, "NodeID": "1", "NodeManagerHostname": "box", "NodeManagerAddress": "10.0.0.1",
           "NodeName": "10.0.0.1", "Resources": {"CPU": 4.0, "GPU": 1.0, "memory": 1e9}}  # fmt: skip
    named = {**row, "NodeID": "2", "NodeName": "left", "Resources": {}}
    dead = {**row, "NodeID": "3", "Alive": False}
    ray.nodes = lambda: [row, named, dead]
    seen = queue.SimpleQueue()
    watch_nodes(seen.put, 3600.0)()
    assert seen.get(timeout=300) == [Node("1", "box (10.0.0.1)", 4.0, 1.0), Node("2", "left", 0.0, 0.0)]
