"""The site of a run: folders, plug-ins and device of this machine, none of which is part of a unit's id as such."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from .errors import UserError
from .registry import Registry, load_plugins
from .resources import root_of
from .seeds import seed_for
from .store.specs import CLASS_SEED, Parameters

if TYPE_CHECKING:
    from .datasets.dataset import Dataset
    from .methods._base import Method
    from .protocols.recipes._base import Recipe
    from .store.folder import Store
    from .versions import Entry, Version


class Site(BaseModel):
    """Paths and device of a process.

    Attributes:
        data_root: Folder of downloaded data sets, as the user named it.
        data_home: Folder of downloaded data sets if ``data_root`` is None, see :func:`~bench.resources.data_home`.
        weights: Backbone weights to start from: a file, ``none``, ``download`` for ImageNet's, downloaded if they are
            not on this machine, or None for those that are.
        device: ``cpu`` or ``cuda``; ``auto`` for ``cuda`` if the machine of the worker has a GPU.
        strict: Whether damaged images of a folder are refused, rather than a few of them left out.
        threads: Threads that decode and crop photographs in one process.
        outlines: Whether photographs that are not here are planned with by the numbers of their complete release.
        hidden_for: Longest time, seconds, for which the file system may hide files that another machine has written.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    results: str
    plugins: tuple[str, ...] = ()
    data_root: str | None = None
    data_home: str | None = None
    weights: str | None = None
    device: str = "cpu"
    allow_partial: bool = False
    strict: bool = False
    threads: int = 1
    outlines: bool = False
    hidden_for: float = 0.0

    @cached_property
    def store(self) -> Store:
        """The results folder."""
        from .store.folder import Store

        return Store(Path(self.results))

    @cached_property
    def methods(self) -> Registry:
        """All methods that can be named, those of plug-ins included."""
        return Registry("methods", tuple(map(Path, self.plugins)))

    @cached_property
    def datasets(self) -> Registry:
        """All data sets that can be named, those of plug-ins included."""
        homes = tuple(Path(path) for path in (self.data_root, self.data_home) if path)
        return Registry("datasets", tuple(map(Path, self.plugins)), homes)

    @cached_property
    def version(self) -> Callable[[Entry], Version]:
        """Version of the code of an entry, read once."""
        from . import versions

        return cache(versions.version)

    @cached_property
    def plugin_tests(self) -> tuple[str, ...]:
        """Names of the groups of tests that the plug-ins define; reading it imports and so registers them."""
        from .protocols.known_tests import groups_of_modules

        return groups_of_modules(load_plugins(map(Path, self.plugins)))

    def method(self, name: str, params: Mapping[str, Any]) -> Method:
        """Method with its parameters."""
        cls = self.methods.method(name)
        return cls(cls.Params(**params))

    def recipe(self, dataset: str) -> Recipe:
        """Recipe of a data set: the training settings that all methods share on it, if it is for its kind of images."""
        from .datasets.releases import PhotoDataset
        from .protocols.recipes._base import recipe_of

        cls = self.datasets.dataset(dataset)
        try:
            recipe = recipe_of(cls)
        except ValueError as error:
            raise UserError(f"data set {dataset!r}: {error}") from None
        if issubclass(cls, PhotoDataset) and not recipe.view:
            raise UserError(
                f"data set {dataset!r} has photographs, but its recipe is one of images in memory; set"
                f' recipe = "folder", or a Recipe with a view, in class {cls.__name__}'
            )
        if recipe.view and not issubclass(cls, PhotoDataset):
            raise UserError(
                f"data set {dataset!r} has a recipe of photographs, but is not a PhotoDataset; set"
                f' recipe = "default", or a Recipe without a view, in class {cls.__name__}'
            )
        return recipe

    @cached_property
    def opened(self) -> dict[tuple[str, str], Dataset]:
        """Data sets that were built already in this process.

        The keys are the name and, as text, the settings by which it is opened (``None`` if there are none).
        """
        return {}

    @cached_property
    def lacking(self) -> dict[str, str]:
        """Data sets that were planned with by their numbers, and how to get each."""
        return {}

    def dataset(self, name: str, view: Parameters | None = None) -> Dataset:
        """A data set, built once per process, class split and way of reading its photographs."""
        from .datasets.files import DataError

        key = (name, repr(view or None))
        if key not in self.opened:
            read = dict(view or {})
            number = read.pop(CLASS_SEED, 0)
            cls = self.datasets.dataset(name)
            root = root_of(cls, *(Path(path) if path else None for path in (self.data_root, self.data_home)))
            try:
                if number:
                    self.opened[key] = self.dataset(name, read).split_anew(seed_for("classes", name, number))
                else:
                    self.opened[key] = self._photographs(cls, root, view) if view else cls(root)
            except DataError as error:
                raise UserError(str(error)) from None
            lacking = [item for item in ("input_channels", "image_size") if not hasattr(self.opened[key], item)]
            if lacking:
                raise UserError(f"data set {name!r}: class {cls.__name__} must define {', '.join(lacking)}")
        return self.opened[key]

    def _photographs(self, cls: type[Dataset], root: Path | None, view: Parameters) -> Dataset:
        from .datasets.damage import FILE
        from .datasets.files import DataError, MissingRelease
        from .datasets.folder import Folder
        from .datasets.releases import PhotoDataset
        from .datasets.view import View

        if not issubclass(cls, PhotoDataset):
            raise UserError(f"data set {cls.name!r} has a recipe of photographs, but is not a PhotoDataset")
        try:
            how = View(**view)
        except TypeError:
            known = ", ".join(item.name for item in fields(View))
            raise UserError(
                f"data set {cls.name!r}: the view of its recipe has {', '.join(view)}; settings of a view: {known}"
            ) from None
        try:
            data = cls(root, view=how, allow_partial=self.allow_partial, threads=self.threads)
            skipped = Path(self.results) / FILE
            if isinstance(data, Folder) and skipped.exists() and data.leave_out(skipped) and self.strict:
                raise DataError(f"run.strict: {next(data.of_files())}")
            return data
        except MissingRelease as error:
            if not self.outlines or not cls.counts[0]:
                raise
            self.lacking[cls.name] = str(error)
            return cls.outline(how)
