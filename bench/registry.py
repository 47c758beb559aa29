"""Finding methods and data sets: folder files, entry points and ``--plugin`` files.

Listing reads the syntax tree of each file and imports nothing; a class is imported when it is used. Names come from
the class body: ``name`` and ``summary`` must be plain strings there. A plug-in is imported early only if its syntax
tree does not say whether a class is a method or a data set.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .closure import import_statements, plugin_name
from .errors import LINE, PLUGINS, UnknownName, UserError, first_line, no_such, place_of
from .names import check_name, why_not_a_name
from .resources import data_home

if TYPE_CHECKING:
    from .datasets.dataset import Dataset
    from .methods._base import Method

PACKAGES = {"methods": "bench.methods", "datasets": "bench.datasets"}
NOUNS = {"methods": "method", "datasets": "data set"}
"""One entry of each kind, in messages."""


@dataclass(frozen=True)
class Entry:
    """A method or data set that can be named; its class is imported only by :meth:`load`."""

    kind: str
    name: str
    summary: str
    origin: str
    code: str | Path
    """Dotted name of the module that defines the entry, or the file of a plug-in."""
    make: Callable[[], Any]
    entry_point: importlib.metadata.EntryPoint | None = None
    broken: str = ""

    def load(self) -> Any:
        """Import the class and return it; a UserError with the reason if its file does not import."""
        what = f"{NOUNS[self.kind]} {self.name!r} from {self.origin}"
        if self.broken:
            raise UserError(f"{what} cannot be used: {self.broken}")
        try:
            return self.make()
        except UserError:
            raise
        except BaseException as error:  # whatever a contributed file raises is its reason, not our crash
            raise UserError(f"{what} does not import: {_reason(error)}") from error

    @property
    def plugin(self) -> bool:
        """Whether it is of a file that ``--plugin`` names."""
        return isinstance(self.code, Path)

    @property
    def title(self) -> str:
        """Name of a method in a paper: the start of its docstring, up to a colon or bracket; else the name."""
        found = re.match(r"[^:(,]{1,30}(?=:| \(| as a method|,)", self.load().__doc__ or "")
        return found[0].removesuffix(" as a method") if found else self.name

    @property
    def locked_as(self) -> str:
        """Name in the lock file of versions: imported features share the code of one data set."""
        return f"{self.kind}.{FEATURES if self.code == OF_FEATURES else self.name}"


FEATURES = "features"
"""Data set whose class is that of all imported features."""

OF_FEATURES = f"{PACKAGES['datasets']}.{FEATURES}"


def _imported(folder: Path) -> type[Dataset]:
    """Class of a data set of features that `bench data features` has written to a folder."""
    from .datasets.features import Features, read_index
    from .datasets.files import DataError
    from .protocols.recipes._base import get_recipe

    try:
        index = read_index(folder)
    except DataError as error:
        raise UserError(str(error)) from None
    assert index is not None
    recipe = replace(get_recipe(FEATURES), feature_views=index["views"])
    fields = {"name": folder.name, "summary": index["about"], "recipe": recipe, "folder": folder}
    return type("Imported", (Features,), fields)


class Registry:
    """All methods or all data sets that can be named: of this package, other installed packages and plug-ins.

    Data sets also are the imported features in the folders ``homes``, by default the folder of all data sets.
    """

    def __init__(self, kind: str, plugins: tuple[Path, ...] = (), homes: tuple[Path, ...] | None = None) -> None:
        self.kind = kind
        self.entries: dict[str, Entry] = {}
        self.broken: list[Entry] = []
        package = PACKAGES[kind]
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        for path in sorted(Path(spec.origin).parent.glob("[!_]*.py")):
            self._add_file(path, f"{package}.{path.stem}")
        for point in importlib.metadata.entry_points(group=package):
            check_name(f"entry point {point.value}", point.name)
            self._add(Entry(kind, point.name, f"from {point.value}", point.value, point.module, point.load, point))
        for path in _plugin_files(plugins):
            self._add_file(path, path)
        if kind == "datasets":
            homes = (data_home(),) if homes is None else homes
            for path in (path for home in homes for path in _features_in(home)):
                if path.name not in self.entries:
                    summary, make = f"features imported to {path}", partial(_imported, path)
                    self._add(Entry(kind, path.name, summary, str(path), OF_FEATURES, make))

    def _add(self, entry: Entry) -> None:
        clash = self.entries.get(entry.name)
        if clash is not None:
            raise UserError(
                f"{NOUNS[self.kind]} {entry.name!r} is defined twice: {clash.origin} and {entry.origin}; rename one"
            )
        self.entries[entry.name] = entry

    def _add_file(self, path: Path, code: str | Path) -> None:
        try:
            found = _registered_classes(path.read_text(encoding="utf-8"), str(path))
        except (SyntaxError, UnicodeDecodeError, ValueError) as error:
            line = getattr(error, "lineno", None)
            reason = f"{type(error).__name__}: {getattr(error, 'msg', None) or error}" + (
                f" (line {line})" if line else ""
            )
            if isinstance(code, Path):
                raise UserError(f"--plugin {path}: {reason}") from error
            self.broken.append(Entry(self.kind, path.stem, "", code, code, lambda: None, broken=reason))
            return
        for kind, class_name, name, summary in found:
            entry = Entry(self.kind, name, summary, str(code), code, partial(_class_of, code, class_name))
            # A plug-in file may hold both kinds; a folder file can only hold its own.
            if not entry.plugin or (kind or self._kind_of_class(entry)) == self.kind:
                self._add(entry)

    def _kind_of_class(self, entry: Entry) -> str:
        """Kind of a class that its syntax tree does not show, found by importing it; failed imports are kept."""
        try:
            cls = entry.load()
        except UserError as error:
            self.broken.append(replace(entry, broken=str(error)))
            return ""
        from .datasets.dataset import Dataset

        return "datasets" if issubclass(cls, Dataset) else "methods"

    def get(self, name: str) -> Entry:
        """Entry by name; a UserError if there is none, or if it is known to be broken."""
        if name not in self.entries:
            for entry in self.broken:
                if entry.name == name:
                    entry.load()
            raise UnknownName(NOUNS[self.kind], name, self.entries, "; one of a plug-in needs --plugin FILE")
        return self.entries[name]

    def method(self, name: str) -> type[Method]:
        """Class of a method; a UserError if there is none of that name, or its file does not import."""
        cls: type[Method] = self.get(name).load()
        return cls

    def dataset(self, name: str) -> type[Dataset]:
        """Class of a data set; a UserError if there is none of that name, or its file does not import."""
        cls: type[Dataset] = self.get(name).load()
        return cls

    def __contains__(self, name: str) -> bool:
        return name in self.entries or any(entry.name == name for entry in self.broken)

    @property
    def names(self) -> list[str]:
        """Names of all entries, sorted."""
        return sorted(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(sorted(self.entries.values(), key=lambda entry: entry.name))


def _class_of(code: str | Path, name: str) -> Any:
    return getattr(import_file(code) if isinstance(code, Path) else importlib.import_module(code), name)


def _features_in(home: Path) -> list[Path]:
    """Folders of the imported features in a folder of data sets."""
    found = sorted(path.parent for path in home.glob("*/features.json"))
    return [path for path in found if not path.name.startswith(".") and not why_not_a_name(path.name)]


DECORATORS = {"register": "", "register_dataset": "datasets", "register_method": "methods"}
"""Decorators of registration, with the kind that their name implies."""


@cache
def _registered_classes(source: str, path: str) -> tuple[tuple[str, str, str, str], ...]:
    """Kind, class, name and summary of what a file's text registers; the kind is empty if its imports do not tell."""
    tree = ast.parse(source, filename=path)
    kinds = dict(DECORATORS)  # by what the file calls them
    for statement in import_statements(tree):
        if isinstance(statement, ast.ImportFrom):
            of = next(
                (kind for kind, package in PACKAGES.items() if f"{statement.module}.".startswith(f"{package}.")), ""
            )
            kinds |= {
                alias.asname or alias.name: DECORATORS[alias.name] or of
                for alias in statement.names
                if alias.name in DECORATORS
            }
    found = []
    for node in (each for each in tree.body if isinstance(each, ast.ClassDef)):
        names = [ast.unparse(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list]
        registering = [kinds[last] for name in names if (last := name.rpartition(".")[2]) in kinds]
        if not registering:
            continue
        literals = dict(_string_fields(node))
        if "name" not in literals:
            raise ValueError(f"class {node.name} is registered but has no plain string `name` in its body")
        if reason := why_not_a_name(literals["name"]):
            raise ValueError(f"class {node.name}: {reason}")
        found.append((registering[0], node.name, literals["name"], literals.get("summary", "")))
    return tuple(found)


PLUGIN_MODULES = "bench.plugins"
"""Group of entry points that name modules with tests, scorers, corruptions or distributions."""


def load_plugins(paths: Iterable[Path]) -> tuple[str, ...]:
    """Import plug-in files and installed plug-ins; returns the packages and modules in which they may define tests."""
    packages = []
    for point in importlib.metadata.entry_points(group=PLUGIN_MODULES):
        try:
            point.load()
            packages.append(point.module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a package that nobody asked for must not stop every command
            print(f"bench: note: entry point {point.name!r} does not import: {first_line(error)}", file=sys.stderr)
    for path in _plugin_files(paths):
        try:
            import_file(path)
        except BaseException as error:  # whatever a contributed file raises is its reason, not our crash
            raise UserError(f"--plugin {path} does not import: {_reason(error)}") from error
        packages.append(plugin_name(path).rpartition(".")[0])
    _check_names()
    return tuple(dict.fromkeys(packages))


def _check_names() -> None:
    """Check the names of all scorers, corruptions and groups of tests that were registered."""
    from .datasets.corruptions.registry import CORRUPTIONS
    from .methods.scorers.registry import SCORERS
    from .protocols.known_tests import known_groups

    for what, names in (("scorer", SCORERS), ("corruption", CORRUPTIONS), ("group of tests", known_groups())):
        for name in names:
            check_name(what, name)


def _plugin_files(paths: Iterable[Path]) -> list[Path]:
    """Files in their order, without those that were given before; each must exist."""
    found = {os.path.realpath(path): path for path in reversed(list(paths))}
    for path in reversed(found.values()):
        if not path.is_file():
            raise UserError(f"--plugin {path}: {no_such(path)}")
    return list(found.values())[::-1]


def _reason(error: BaseException) -> str:
    """Reason why a file does not import, cut so that its path, which may be long, fits on the same line."""
    return f"{type(error).__name__}: {first_line(error, LINE // 3)} ({place_of(error)})"


def _string_fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=key)], value=ast.Constant(value=str(value))):
                yield key, value
            case ast.AnnAssign(target=ast.Name(id=key), value=ast.Constant(value=str(value))):
                yield key, value


def import_file(path: Path) -> ModuleType:
    """Import a plug-in file as a module of a package made for its folder, so that ``from .sibling import x`` works."""
    name = plugin_name(path)
    if name in sys.modules:
        return sys.modules[name]
    path = path.resolve()
    folder = name.rpartition(".")[0]
    for package, places in ((PLUGINS, []), (folder, [str(path.parent)])):
        if package not in sys.modules:
            module = ModuleType(package)
            module.__path__ = places
            sys.modules[package] = module
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
