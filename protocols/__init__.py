"""Protocols: declarative plans, training recipes, and tests as pure functions from arrays to tidy rows."""

from ._base import PROTOCOLS, Preset, Protocol, Selection, Tests, get_protocol

__all__ = ["PROTOCOLS", "Preset", "Protocol", "Selection", "Tests", "get_protocol"]
