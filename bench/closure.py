"""Import closures: the modules that a module imports, directly or not, and a hash of their code.

Modules are read as syntax trees and not imported. Comments, docstrings and layout do not count, and every version of
Python gives the same hash.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .errors import PLUGINS
from .seeds import content_id

COMPUTING = ("bench.engine.", "bench.methods.", "bench.datasets.", "bench.protocols.", "bench.seeds.")
"""Starts of the names of our modules that compute values; the others move values about or put them into ids."""

REGISTRIES = (".registry", ".known_tests")
"""Ends of the names of modules that only list entries; whoever uses an entry has its code in a closure of its own."""


class Module(NamedTuple):
    """A Python module: its dotted name and its file. The folder of a plug-in counts as its package."""

    name: str
    path: Path

    @property
    def package(self) -> str:
        """Dotted name of the package that relative imports of the module start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def plugin_name(path: Path) -> str:
    """Dotted name under which a plug-in file is imported, which shadows no package: ``bench_plugins.folder_HASH.NAME``.

    ``HASH`` is made of the path of the folder, and ``NAME`` is the file's name without ``.py``.
    """
    folder = str(path.resolve().parent)
    package = f"{PLUGINS}.folder_{hashlib.sha256(folder.encode()).hexdigest()[:12]}"
    _plugin_folders[package] = folder
    return f"{package}.{path.stem}"


_plugin_folders: dict[str, str] = {}
"""Folders with plug-ins by the packages that stand for them."""


def closure_hash(*roots: str | Path) -> str:
    """Hash, 16 hexadecimal digits, of the code of the modules of :func:`closure`."""
    return content_id(sorted(digest(module.path) for module in closure(*roots)))


def closure(*roots: str | Path) -> list[Module]:
    """The given modules, names or files of plug-ins, and those that they import, directly or not, sorted by name.

    Imports count if they are from ``bench``, from the importing module's own top-level package, or from the folder of a
    plug-in. Of ``bench``, only what computes values counts, and registries do not.
    """
    waiting = [
        Module(plugin_name(root), root.resolve()) if isinstance(root, Path) else Module(root, file_of(root))
        for root in roots
    ]
    reached: dict[Path, Module] = {}
    while waiting:
        module = waiting.pop()
        if module.path not in reached:
            reached[module.path] = module
            waiting += filter(_computes, _imported(module, _edited(module.path)))
    return sorted(reached.values())


def _computes(module: Module) -> bool:
    ours = module.name.partition(".")[0] == "bench"
    return not ours or (f"{module.name}.".startswith(COMPUTING) and not module.name.endswith(REGISTRIES))


@cache
def _imported(module: Module, edited: int) -> tuple[Module, ...]:
    """Modules that a module imports, through re-exports to where a name is defined."""
    targets: list[Module | None] = []
    # A package that is taken as a whole gives every name that it has, those too that it loads when they are asked for.
    package = module.path.name == "__init__.py"
    for node in import_statements(_tree(module.path), type_checking=package):
        if isinstance(node, ast.Import):
            targets += [_find(alias.name, module) for alias in node.names]
        else:
            source = _absolute(node, module)
            targets += [_defining(source, alias.name, module) for alias in node.names]
    return tuple(dict.fromkeys(target for target in targets if target is not None))


_HOLD_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


def import_statements(tree: ast.AST, type_checking: bool = False) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements of a syntax tree at any depth, in the order of the source; for type checkers on request."""
    for node in ast.iter_child_nodes(tree):
        if not type_checking and isinstance(node, ast.If) and _for_type_checkers(node.test):
            for other in node.orelse:
                yield from import_statements(ast.Module([other], []))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, _HOLD_STATEMENTS):
            yield from import_statements(node, type_checking)


def _for_type_checkers(test: ast.expr) -> bool:
    return ast.unparse(test).endswith("TYPE_CHECKING") and not isinstance(test, ast.UnaryOp)


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    """Dotted name that a ``from`` import starts from."""
    if not node.level:
        return node.module or ""
    parts = module.package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _defining(source: str, name: str, importer: Module) -> Module | None:
    """Module that defines ``name`` of ``source``: a submodule, or what the package imports it from, or itself."""
    submodule = _find(f"{source}.{name}", importer)
    if submodule is not None:
        return submodule
    package = _find(source, importer)
    if package is None or package.path.name != "__init__.py":
        return package
    # What a package imports for type checkers only is what it loads when it is asked for.
    for node in ast.walk(_tree(package.path)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _defining(_absolute(node, package), alias.name, importer)
    return package


def _find(name: str, importer: Module) -> Module | None:
    """Module by name, if it is of the importer's package or of ours; None for third parties."""
    top, *rest = importer.name.split(".")
    if top == PLUGINS:  # a name without dots may be that of a file next to it, too
        folder = f"{top}.{rest[0]}."
        near = _file_of(folder + name.removeprefix(folder))
        if near is not None:
            return near
    return _file_of(name) if name.partition(".")[0] in (top, "bench") else None


def file_of(name: str) -> Path:
    """File of a module by its dotted name, found without importing it; raises ValueError if there is none."""
    module = _file_of(name)
    if module is None:
        raise ValueError(f"no module {name}")
    return module.path


@cache
def _file_of(name: str) -> Module | None:
    """A module, found as an import would find it, without importing it or a package above it."""
    parts = name.split(".")
    above = parts[:2] if parts[0] == PLUGINS else []
    places = [_plugin_folders.get(".".join(above), "")] if above else None
    spec = None
    for end in range(len(above) + 1, len(parts) + 1):
        reached = ".".join(parts[:end])
        spec = next(filter(None, (finder.find_spec(reached, places) for finder in sys.meta_path)), None)
        if spec is None or (end < len(parts) and spec.submodule_search_locations is None):
            return _loaded(name)
        # A folder without an __init__.py finds its own places by the packages above it, if they are imported.
        folder = spec.origin and [str(Path(spec.origin).parent)]
        places = folder or [str(Path(place, parts[end - 1])) for place in places or sys.path]
    return _module(name, None if spec is None else spec.origin)


def _loaded(name: str) -> Module | None:
    """A module that is not where its name says, but was loaded from a file."""
    return _module(name, getattr(sys.modules.get(name), "__file__", None))


def _module(name: str, file: str | None) -> Module | None:
    return Module(name, Path(file)) if file is not None and file.endswith(".py") else None


def _edited(path: Path) -> int:
    """Time of a file's last change; as a cache key it keeps one process from using an outdated syntax tree."""
    return path.stat().st_mtime_ns


def _tree(path: Path) -> ast.Module:
    return _parsed(path, _edited(path))


@cache
def _parsed(path: Path, edited: int) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def digest(path: Path) -> str:
    """SHA-256 (hexadecimal) of the syntax tree of a Python file without docstrings, equal for every Python version."""
    return _digest(path, _edited(path))


@cache
def _digest(path: Path, edited: int) -> str:
    return hashlib.sha256(_text(_parsed(path, edited)).encode()).hexdigest()


_BODIES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _text(node: object) -> str:
    """A syntax tree as text; fields that are empty are left out, since newer versions of Python add some."""
    if isinstance(node, list):
        return f"[{','.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, _BODIES) and ast.get_docstring(node, clean=False) is not None:
            value = value[1:]
        if name == "values" and isinstance(node, ast.JoinedStr):
            value = _joined(value)
        if value is not None and value != []:
            fields.append(f"{name}={_text(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """Parts of an f-string, its constants joined: versions of Python cut them differently."""
    merged: list[ast.expr] = []
    for value in values:
        last = merged[-1] if merged else None
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            merged[-1] = ast.Constant(last.value + value.value)  # type: ignore[operator]
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            merged.append(value)
    return merged
