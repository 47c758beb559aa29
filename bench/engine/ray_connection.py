"""Connecting to a Ray cluster, and the nodes that it has."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UserError, shortened
from .ray_worker import Node

T = TypeVar("T")

_PATIENCE = 60.0
"""Seconds that a cluster has to take a driver."""

_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def connect(address: str) -> bool:
    """Connect this process to a Ray cluster; returns True if it asks for a token, False if anybody can use it.

    Token authentication is on if ``RAY_AUTH_MODE`` says so, or if that is not set and there is a token. The address is
    ``HOST:PORT`` of the head, or ``auto`` for the cluster that this machine belongs to.
    """
    if address != "auto":
        _check_reachable(address)
    # Ray's hook for `uv run` would upload the project and build an environment on every node.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    if "RAY_AUTH_MODE" not in os.environ:
        found = any(map(os.environ.get, _TOKENS)) or (Path.home() / ".ray" / "auth_token").is_file()
        os.environ["RAY_AUTH_MODE"] = "token" if found else "disabled"
    try:
        import ray
    except ImportError:
        raise UserError("--launcher ray needs Ray, which is an extra: install bench[ray]") from None
    try:
        # In another thread, as it would take over the signals in the main one.
        _within(
            _PATIENCE,
            lambda: ray.init(address=address, namespace="bench", log_to_driver=False, logging_level=logging.CRITICAL),
        )
    except TimeoutError:
        raise UserError(f"--address {address}: the Ray cluster has not answered for {_PATIENCE:g} s") from None
    except Exception as error:  # of many classes, RuntimeError and ConnectionError among them
        raise UserError(f"--address {address}: {_advice(error)}") from None
    with contextlib.suppress(Exception):  # a name of Ray's own, which may change
        from ray._private.ray_logging import global_worker_stdstream_dispatcher as lines

        lines.remove_handler("ray_print_logs")  # paragraphs about every worker that dies; ours say it in a line
    # Ray takes SIGTERM for a crash: it would print its stack, and abort this process 3 s later.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    return os.environ["RAY_AUTH_MODE"] == "token"


def _advice(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    if "Could not find any running Ray instance" in said:
        return "this machine belongs to no Ray cluster; start one (`ray start --head`), or join one on this machine"
    if "ersion mismatch" in said:
        return f"nodes and driver need the same Ray and Python: {shortened(said, 200)}"
    if "Failed to connect" in said:
        return (
            f"{said[:80]}: is it running, and is its token the same as here (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN_PATH)?"
        )
    if "node_ip_address" in said or "this IP address" in said:
        return "this machine is no node of that cluster; run `ray start --address=HOST:PORT` here first"
    return shortened(said, 200)


def _check_reachable(address: str) -> None:
    """Refuse at once an address where nothing listens, for which Ray would wait minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UserError(f"--address {address}: not auto and not HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, UnicodeError) as error:  # the latter for names that no host can have
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--address {address}: no Ray cluster answers there ({reason})") from None


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Result of some work in another thread, which is left behind if it takes too long."""
    results: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put(work())
        except Exception as error:
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        result = results.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(result, Exception):
        raise result
    return result


def watch_nodes(seen: Callable[[list[Node]], object], pause: float) -> Callable[[], None]:
    """Report, from another thread, the nodes that are alive, while the head answers; returns what ends it."""
    import ray

    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            rows = None
            with contextlib.suppress(Exception):  # the head is gone; silence says so
                rows = ray.nodes()
            if rows is not None:
                nodes = _living(rows)
                with contextlib.suppress(RuntimeError):  # whoever listens has just ended
                    seen(nodes)
            ended.wait(pause)

    threading.Thread(target=look, daemon=True).start()
    return ended.set


def _living(rows: Iterable[Mapping[str, Any]]) -> list[Node]:
    """The living nodes among those that Ray lists."""
    nodes = []
    for row in rows:
        if row["Alive"]:
            host, address = row["NodeManagerHostname"], row["NodeManagerAddress"]
            given = row.get("NodeName") or address
            name = given if given != address else f"{host} ({address})"
            has = row["Resources"]
            nodes.append(Node(row["NodeID"], name, has.get("CPU", 0.0), has.get("GPU", 0.0)))
    return nodes
