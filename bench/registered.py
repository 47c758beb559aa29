"""Registries of scorers and corruptions; this module imports nothing, so that the folders of both may use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


class Registered(Mapping[str, T]):
    """Everything of one kind by name: built-in entries, imported when they are asked for, and those of plug-ins.

    Args:
        kind: The kind of an entry, in messages.
        modules: Dotted module of each built-in entry.
        pick: Returns the entry of a name from its module.
    """

    def __init__(self, kind: str, modules: Mapping[str, str], pick: Callable[[ModuleType, str], T]) -> None:
        self.kind, self.built_in, self._pick = kind, modules, pick
        self.added: dict[str, tuple[T, str]] = {}

    def __getitem__(self, name: str) -> T:
        if name in self.added:
            return self.added[name][0]
        return self._pick(import_module(self.built_in[name]), name)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.built_in, *self.added))

    def __len__(self) -> int:
        return len(self.built_in) + len(self.added)

    # Mapping's own would import the module.
    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.added

    def module(self, name: str) -> str:
        """Dotted name of the module that defines an entry; a ValueError if there is none of that name."""
        if name not in self:
            near = get_close_matches(name, self, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown {self.kind} {name!r}{hint} (known: {', '.join(sorted(self))})")
        return self.added[name][1] if name in self.added else self.built_in[name]

    def add(self, name: str, entry: T, module: str) -> None:
        """Register an entry of a plug-in; a ValueError if another module has one of that name."""
        if name in self and (name in self.built_in or self.module(name) != module):
            raise ValueError(f"{self.kind} {name!r} is already defined in {self.module(name)}; choose another name")
        self.added[name] = (entry, module)
