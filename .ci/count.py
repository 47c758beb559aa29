"""Count what there is to read: lines, words, files that a command reaches, options, writers of tables.

    python .ci/count.py [TREE ..]

``.ci/budget.toml`` has the most that there may be of each; ``tests/test_guards.py`` compares.

``TREE`` is a checkout, by default this one. Standard library only; options are counted in the output of the ``bench``
of ``TREE/.venv``, or of this Python.

* Lines hold at least one token that is neither a comment nor part of a docstring; lines of docstrings are apart.
* Reached files: those of ``bench/start.py``, ``bench/cli.py`` and the function of the command, and what they import
  directly or indirectly, inside functions too. Imports for type checkers alone, and entries that a registry loads by
  name, are left out. A name that a package re-exports counts for the module that defines it.
* Writers of tables: functions with a text (docstrings apart) that has a mark of a table: the rule of a Markdown table
  (``---`` next to a bar, or on its own in a function with bars), LaTeX's ``tabular`` or HTML's ``<table``, or with a
  call of rich's ``Table``, whatever the module calls it. Templates with ``<table`` count as well.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LEAVES = ("methods", "datasets", "protocols", "results")
"""Folders next to ``bench/`` that are imported as ``bench.NAME``."""

FOLDERS = ("bench", "methods", "datasets", "protocols", "tests", "benchmarks")

TEXTS = ("*.md", "docs/*.md", "examples/README.md", "results/*/README.md")

COMMANDS = {"run": "run", "report": "results", "score": "score"}
"""Command, and the module of ``bench/commands`` that has its function."""

NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

MARKS = {
    "Markdown": re.compile(r"\|\s*:?-{3}|-{3}:?\s*\|"),
    "LaTeX": re.compile(r"\\begin\{tabular"),
    "HTML": re.compile(r"<table"),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Lines(NamedTuple):
    """Lines of code, lines of docstrings, and files."""

    code: int = 0
    docstrings: int = 0
    files: int = 0


def docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    """Texts that stand alone as a statement, those below an attribute included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement


def lines_of(folder: Path) -> Lines:
    """Lines of all Python files below a folder."""
    total = Lines()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        documented: set[int] = set()
        for text_node in docstrings(ast.parse(text)):
            documented.update(range(text_node.lineno, (text_node.end_lineno or 0) + 1))
        code: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in NOT_CODE:
                code.update(range(token.start[0], token.end[0] + 1))
        total = Lines(total.code + len(code - documented), total.docstrings + len(documented), total.files + 1)
    return total


class Imports:
    """Modules of a tree and what they import, read from their syntax trees."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.parsed: dict[Path, ast.Module] = {}

    def file(self, name: str) -> Path | None:
        """File of a module by its dotted name; None for those of other packages."""
        top, *rest = name.split(".")
        if top != "bench":
            return None
        path = self.tree.joinpath(*(rest if rest and rest[0] in LEAVES else (top, *rest)))
        for candidate in (path / "__init__.py", path.with_suffix(".py")):
            if candidate.is_file():
                return candidate
        return None

    def parse(self, path: Path) -> ast.Module:
        """Syntax tree of a file."""
        if path not in self.parsed:
            self.parsed[path] = ast.parse(path.read_text(encoding="utf-8"))
        return self.parsed[path]

    def imported(self, name: str, statements: ast.AST) -> Iterator[str]:
        """Modules that statements of a module import."""
        for node in import_statements(statements):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            else:
                source = self.absolute(node, name)
                yield from (self.defining(source, alias.name) for alias in node.names)

    def absolute(self, node: ast.ImportFrom, name: str) -> str:
        """Dotted name that a ``from`` import starts from."""
        if not node.level:
            return node.module or ""
        file = self.file(name)
        parts = name.split(".") if file and file.name == "__init__.py" else name.split(".")[:-1]
        return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])

    def defining(self, source: str, name: str) -> str:
        """Module that defines a name which is imported from a module or a package."""
        if self.file(f"{source}.{name}"):
            return f"{source}.{name}"
        file = self.file(source)
        if file is not None and file.name == "__init__.py":
            for node in import_statements(self.parse(file), type_checking=True):
                if isinstance(node, ast.ImportFrom) and name in (alias.asname or alias.name for alias in node.names):
                    origin = self.absolute(node, source)
                    if origin != source:
                        return self.defining(origin, name)
        return source

    def of_function(self, module: str, function: str) -> Iterator[str]:
        """What a module imports for one of its functions: at its top, in the function, and in what that uses of it."""
        file = self.file(module)
        assert file is not None, module
        body = self.parse(file).body
        named = {node.name: node for node in body if isinstance(node, Function | ast.ClassDef)}
        used: set[str] = set()
        waiting = [function]
        while waiting:
            name = waiting.pop()
            if name not in used:
                used.add(name)
                waiting += [
                    node.id for node in ast.walk(named[name]) if isinstance(node, ast.Name) and node.id in named
                ]
        kept = [node for node in body if getattr(node, "name", None) not in named.keys() - used]
        yield from self.imported(module, ast.Module(kept, []))

    def reached(self, command: str) -> set[Path]:
        """Files that a command reaches."""
        module = f"bench.commands.{COMMANDS[command]}"
        names = [*self.of_function(module, command), "bench.start"]
        cli = self.file("bench.cli")
        assert cli is not None
        names += [name for name in self.imported("bench.cli", self.parse(cli)) if not name.startswith("bench.commands")]
        done = {module, "bench.cli"}
        while names:
            name = names.pop()
            file = self.file(name)
            if name not in done and file is not None:
                done.add(name)
                names += self.imported(name, self.parse(file))
        return {file for name in done if (file := self.file(name)) is not None}


def import_statements(tree: ast.AST, type_checking: bool = False) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements at any depth; those for type checkers only on request."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not type_checking:
            yield from import_statements(ast.Module(node.orelse, []))
        else:
            yield from import_statements(node, type_checking)


def writers(tree: Path) -> dict[str, list[str]]:
    """Functions that write a table, by format."""
    found: dict[str, list[str]] = {name: [] for name in ("Markdown", "LaTeX", "terminal", "HTML")}
    for folder in ("bench", *LEAVES):
        for path in sorted((tree / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            # Parsing takes longer than looking for what every mark contains.
            if not any(sign in text for sign in ("---", "tabular", "<table", "rich.table")):
                continue
            parsed = ast.parse(text)
            rich = {
                alias.asname or alias.name
                for node in ast.walk(parsed)
                if isinstance(node, ast.ImportFrom) and node.module == "rich.table"
                for alias in node.names
                if alias.name == "Table"
            }
            for function in ast.walk(parsed):
                if isinstance(function, Function):
                    for kind in kinds(function, rich):
                        found[kind].append(f"{path.relative_to(tree)}:{function.name}")
        for path in sorted((tree / folder).rglob("*.tmpl")):
            if "<table" in path.read_text(encoding="utf-8"):
                found["HTML"].append(str(path.relative_to(tree)))
    return found


def kinds(function: Function, rich: set[str]) -> set[str]:
    """Formats of the tables that a function itself writes, without the functions inside it."""
    others = (other for other in ast.walk(function) if isinstance(other, Function) and other is not function)
    ignored = {node for other in others for node in ast.walk(other)} | {text.value for text in docstrings(function)}
    nodes = [node for node in ast.walk(function) if node not in ignored]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    found = {kind for kind, mark in MARKS.items() if any(mark.search(text) for text in texts)}
    if any(text.strip(":") == "---" for text in texts) and any("|" in text for text in texts):
        found.add("Markdown")
    if any(isinstance(node, ast.Call) and ast.unparse(node.func) in rich for node in nodes):
        found.add("terminal")
    return found


def options(tree: Path, argument: str) -> str:
    """Number of options that ``bench run`` lists, ``--help`` and ``--help-all`` apart."""
    places = (tree / ".venv" / "bin" / "bench", Path(sys.executable).with_name("bench"))
    program = next((place for place in places if place.exists()), None)
    if program is None:
        return "not counted (no .venv)"
    done = subprocess.run([program, "run", argument], capture_output=True, text=True, check=False)
    if done.returncode:
        return "no such option"
    names = re.findall(r"^\s+(?:-\w, )?(--[a-z][a-z-]*)", done.stdout, re.MULTILINE)
    return str(len(set(names) - {"--help", "--help-all"}))


def words(tree: Path) -> tuple[int, int]:
    """Number of words of the docs, and of the texts that they are."""
    texts = {path for pattern in TEXTS for path in tree.glob(pattern)}
    return sum(len(path.read_text(encoding="utf-8").split()) for path in texts), len(texts)


def sizes(tree: Path) -> dict[str, int]:
    """What ``.ci/budget.toml`` limits: lines of code by room, words of docs, files reached, options."""
    rooms = [path for path in sorted((tree / "bench").iterdir()) if path.is_dir() and any(path.glob("*.py"))]
    found = {f"bench/{path.name}": lines_of(path).code for path in rooms}
    found["bench/*.py"] = lines_of(tree / "bench").code - sum(found.values())
    found |= {folder: lines_of(tree / folder).code for folder in FOLDERS[1:]}
    found |= {"words": words(tree)[0], "files reached by bench run": len(Imports(tree).reached("run"))}
    return found | {f"options, {name}": int(options(tree, name)) for name in ("--help", "--help-all")}


def count(tree: Path) -> None:
    """Print what there is in a tree."""
    print(tree)
    counted = {folder: lines_of(tree / folder) for folder in FOLDERS if (tree / folder).is_dir()}
    for folder, lines in counted.items():
        print(f"  {folder:12}{lines.code:7,} lines of code{lines.docstrings:7,} of docstrings{lines.files:5} files")
    product = [counted[folder] for folder in FOLDERS[:4]]
    code, documented, files = (sum(values) for values in zip(*product, strict=True))
    print(f"  {'the first 4':12}{code:7,} lines of code{documented:7,} of docstrings{files:5} files")
    number, texts = words(tree)
    print(f"  words of docs: {number:,} in {texts} texts")
    imports = Imports(tree)
    reached = (f"{command} {len(imports.reached(command))}" for command in COMMANDS)
    print(f"  files that a command reaches: {', '.join(reached)}")
    print(f"  options of bench run: --help {options(tree, '--help')}, --help-all {options(tree, '--help-all')}")
    for kind, names in writers(tree).items():
        print(f"  functions that write a table, {kind}: {len(names)} ({', '.join(names)})")


if __name__ == "__main__":
    for name in sys.argv[1:] or (Path(__file__).resolve().parents[1],):
        count(Path(name).resolve())
