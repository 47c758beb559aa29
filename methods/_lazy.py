"""Names of a package that are imported on first use: what its ``__init__`` imports for type checkers, ``as`` itself."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def lazy(package: str, file: str) -> tuple[list[str], Callable[[str], object]]:
    """``__all__`` and ``__getattr__`` of a package, from its name and file."""
    imports = [node for node in ast.walk(ast.parse(Path(file).read_text())) if isinstance(node, ast.ImportFrom)]
    modules = {alias.asname: f".{node.module}" for node in imports for alias in node.names if alias.asname}

    def named(name: str) -> object:
        if name in modules:
            return getattr(import_module(modules[name], package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return sorted(modules), named
