"""Protocols: declarative plans, training recipes, and tests as pure functions from arrays to tidy rows."""

from __future__ import annotations

from importlib import import_module
from typing import Any

PROTOCOLS = ("reality_check", "standardized")


def get_protocol(name: str) -> Any:
    """Module of a protocol: its ``NAME``, ``SUMMARY``, ``VERSION`` and ``PRESETS``."""
    if name not in PROTOCOLS:
        raise ValueError(f"unknown protocol {name!r} (known: {', '.join(PROTOCOLS)})")
    return import_module(f".{name}", __name__)
