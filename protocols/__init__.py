"""Protocols: declarative plans, training recipes, and tests as pure functions from arrays to tidy rows."""

from __future__ import annotations

from importlib import import_module

from ._base import Preset, Protocol, Selection, Tests

PROTOCOLS = ("reality_check", "standardized")

__all__ = ["PROTOCOLS", "Preset", "Protocol", "Selection", "Tests", "get_protocol"]


def get_protocol(name: str) -> Protocol:
    """Look up a protocol by its name, ``reality_check`` or ``standardized``; a ValueError if there is none."""
    if name not in PROTOCOLS:
        raise ValueError(f"unknown protocol {name!r} (known: {', '.join(PROTOCOLS)})")
    protocol: Protocol = import_module(f".{name}", __name__).PROTOCOL
    return protocol
