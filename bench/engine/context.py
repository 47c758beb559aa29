"""What a job needs beside its specification: where things are, and on which device it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..registry import Registry
from ..store import Store

Cell = tuple[str, str, str]
"""(protocol, data set, method): the folder of a unit in the results folder."""


@dataclass(frozen=True)
class Context:
    """Paths and device; never part of a unit's identity.

    Attributes:
        results: Results folder.
        plugins: Plug-in files.
        data_root: Folder of downloaded data sets.
        weights: Backbone weights to start from: a file, ``none``, or None for those cached on this machine.
        device: ``cpu`` or ``cuda``.
        allow_partial: Accept incomplete releases of data sets.
        threads: Threads that decode and crop photographs in one process.
    """

    results: str
    plugins: tuple[str, ...] = ()
    data_root: str | None = None
    weights: str | None = None
    device: str = "cpu"
    allow_partial: bool = False
    threads: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Plain values, to send to a worker."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Context:
        """Inverse of :meth:`as_dict`, also after a trip through JSON."""
        return cls(**{**value, "plugins": tuple(value["plugins"])})

    @cached_property
    def store(self) -> Store:
        """The results folder."""
        return Store(Path(self.results))

    @cached_property
    def methods(self) -> Registry:
        """All methods."""
        return Registry("methods", tuple(map(Path, self.plugins)))

    @cached_property
    def datasets(self) -> Registry:
        """All data sets."""
        return Registry("datasets", tuple(map(Path, self.plugins)))

    def method(self, name: str, params: dict[str, Any], fidelity: str = "corrected") -> Any:
        """A method with its parameters; one without a released form is what it is in either."""
        cls = self.methods.get(name).load()
        return cls(cls.Params(**params), fidelity if fidelity in cls.fidelities else "corrected")

    def dataset(self, name: str, view: dict[str, Any] | None = None) -> Any:
        """A data set, built once per process and way of reading it.

        Args:
            name: Its name.
            view: How photographs are read; None for data sets that have only one way.

        Raises:
            UserError: If its files are not there or wrong.
        """
        from ..datasets.errors import DataError
        from ..datasets.view import View

        cache = self.__dict__.setdefault("_datasets", {})
        key = (name, repr(view))
        if key not in cache:
            cls = self.datasets.get(name).load()
            root = Path(self.data_root) if self.data_root else None
            try:
                if view:
                    cache[key] = cls(root, view=View(**view), allow_partial=self.allow_partial, threads=self.threads)
                else:
                    cache[key] = cls(root)
            except DataError as error:
                raise UserError(str(error)) from None
        return cache[key]
