"""Guards of the layout: what the repository holds, how the package imports, and who may import whom."""

import ast
import itertools
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from bench.registry import Registry

ROOT = Path(__file__).parents[1]
FOLDERS = {"bench": "bench", "methods": "bench/methods", "datasets": "bench/datasets",
           "protocols": "bench/protocols", "results": "bench"}  # fmt: skip
REFERENCE = ("results", "reference")


def _tracked():
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [Path(line) for line in listed.splitlines() if (ROOT / line).exists()]
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")


def _our_files():
    return [p for p in _tracked() if p.parts[0] in FOLDERS and "__pycache__" not in p.parts]


def test_the_reference_results_are_small_and_have_no_checkpoint():
    files = [path for path in _tracked() if path.parts[:2] == REFERENCE]
    assert sum((ROOT / path).stat().st_size for path in files) <= 20_000_000
    endings = {"".join(path.suffixes[-2:]) for path in files} - {".json", ".csv", ".md"}
    assert endings == {".tar.xz", ".queries.xz"}


def test_workflows_pin_their_actions_and_may_only_read():
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) >= 4
    for path in workflows:
        text = path.read_text()
        assert "\npermissions:\n  contents: read\n" in text, path.name
        used = re.findall(r"uses: (\S+)", text)
        # The publisher of PyPI asks for this branch, which gets its security fixes.
        loose = [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)]
        assert set(loose) <= {"pypa/gh-action-pypi-publish@release/v1"}, path.name


def test_licences_of_all_dependencies_are_listed():
    locked = {each["name"]: each for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    ours = locked["probembed"]
    found, ahead = set(), [*ours["dependencies"], *itertools.chain(*ours["optional-dependencies"].values())]
    while ahead:
        wanted = ahead.pop()
        if wanted["name"] not in found:
            found.add(wanted["name"])
            package = locked[wanted["name"]]
            ahead += package.get("dependencies", [])
            ahead += itertools.chain(
                *(package.get("optional-dependencies", {}).get(e, []) for e in wanted.get("extra", []))
            )
    table = (ROOT / "docs" / "dependencies.md").read_text().partition("## ")[0]
    listed = set(re.findall(r"[a-z0-9][a-z0-9-]*", table))
    assert len(found) > 80
    assert found <= listed


def test_no_reader_of_a_file_may_run_code_in_it():
    barred = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "yaml"}
    signs = re.compile("|".join([*barred, "load"]))
    for path in [p for p in _our_files() if p.suffix == ".py"]:
        text = (ROOT / path).read_text()
        for node in ast.walk(ast.parse(text)) if signs.search(text) else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", "")}
                assert not names & barred, path
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "load_state_dict"):
                assert {"weights_only": True} in [{k.arg: getattr(k.value, "value", None)} for k in node.keywords], path
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert node.value.value is False, path


def test_shards_of_the_slow_tests_are_whole_and_of_about_equal_weight():
    slow = runpy.run_path(str(ROOT / ".ci" / "slow"))
    shards = slow["shards"](4)
    files = [name for shard in shards for name in shard]
    tests = [path for path in _tracked() if path.parts[0] == "tests" and path.name.startswith("test_")]
    assert sorted(files) == sorted(str(path) for path in tests if re.search("mark[.]slow", (ROOT / path).read_text()))
    assert set(slow["SECONDS"]) <= set(files)
    times = [sum(map(slow["seconds"], shard)) for shard in shards]
    assert max(times) < 1.1 * min(times)


def test_no_text_has_marks_of_a_conflict():
    marks = re.compile(rb"^(<{7} |>{7} )", re.M)
    assert [path for path in _tracked() if marks.search((ROOT / path).read_bytes())] == []


def test_a_foreign_package_named_datasets_stays_importable(tmp_path):
    foreign = tmp_path / "site" / "datasets"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text("WHOSE = 'a stand-in for Hugging Face'\n")
    code = "import bench, bench.datasets, datasets; print(datasets.WHOSE, '|', bench.datasets.__name__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True,
        env={"PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    assert done.stdout.strip() == "a stand-in for Hugging Face | bench.datasets", done.stderr


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""


@pytest.mark.parametrize("leaf", ["methods", "datasets", "protocols"])
def test_leaf_folders_import_only_themselves(leaf):
    files = [p for p in _our_files() if p.parts[0] == leaf and p.suffix == ".py"]
    assert files
    for path in files:
        depth = len(path.parts) - 1  # a relative import may climb to the leaf, not above it
        for level, module in _imports(ROOT / path):
            assert level <= depth, f"{path} climbs out of {leaf}/"
            assert level or module.split(".")[0] not in {"bench", *FOLDERS}, f"{path} imports {module}"


def _modules_imported(path):
    """Dotted modules of ours that a file imports from, and the names taken from each."""
    package = [*FOLDERS[path.parts[0]].split("/"), *path.parts[1:-1]]
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            yield ".".join([*above, *filter(None, [node.module])]), tuple(alias.name for alias in node.names)


def _is_registered(path):
    return any(
        isinstance(node, ast.ClassDef) and any(ast.unparse(d).split(".")[-1] == "register" for d in node.decorator_list)
        for node in ast.parse((ROOT / path).read_text()).body
    )


def test_no_file_of_methods_imports_a_registered_method():
    # A method file is read, and hashed, alone; what two methods share is a module of its own.
    files = [p for p in _our_files() if p.parts[0] == "methods" and p.suffix == ".py"]
    methods = {f"bench.methods.{path.stem}" for path in files if len(path.parts) == 2 and _is_registered(path)}
    assert "bench.methods.arcface" in methods
    for path in files:
        for module, names in _modules_imported(path):
            reached = {module, *(f"{module}.{name}" for name in names)}
            assert not reached & methods, f"{path} imports {reached & methods}"


def test_code_imports_methods_and_data_sets_from_the_modules_that_define_them():
    # The code behind a result is found by following imports, and a package's __init__ names everything.
    packages = {"bench.methods", *(f"bench.methods.{name}" for name in ("distributions", "scorers", "backbones"))}
    packages |= {"bench.datasets", "bench.datasets.corruptions"}
    files = [p for p in _our_files() if p.parts[0] in ("bench", "methods", "datasets") and p.suffix == ".py"]
    modules = {".".join([*FOLDERS[p.parts[0]].split("/"), *p.with_suffix("").parts[1:]]) for p in files}
    for path in files:
        if path.name == "__init__.py":
            continue
        for module, names in _modules_imported(path):
            if module in packages:
                through = [name for name in names if f"{module}.{name}" not in modules | packages]
                assert not through, f"{path} imports {', '.join(through)} through {module}"


ROOMS = (
    ("_version", "errors", "interrupt", "seeds"),
    ("names",),
    ("closure", "conformance", "resources"),
    ("registry",),
    ("versions",),
    ("store",),
    ("site", "progress"),
    ("planning",),
    ("engine",),
    ("scoring",),
    ("report",),
    ("papers",),
    ("commands",),
    ("api",),
    ("__init__", "cli"),
    ("start",),
    ("__main__",),
)
"""The rooms of bench/, floor by floor: a room imports from the floors before its own only."""


def _room(path):
    return path.relative_to("bench").parts[0].removesuffix(".py")


def _rooms_imported(path):
    for module, names in _modules_imported(path):
        # The package itself is on the way to its parts; what is taken from it is a part of that name, or its content.
        for name in [module] if module != "bench" else [f"bench.{name}" for name in names or ["__init__"]]:
            top, _, rest = name.partition(".")
            if top == "bench":
                yield rest.split(".")[0] or "__init__"


def test_each_room_of_bench_imports_only_from_the_rooms_before_it():
    """Imports for type checkers and inside functions count too."""
    floors = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
    files = [p for p in _our_files() if p.parts[0] == "bench" and p.suffix == ".py"]
    assert {_room(path) for path in files} == set(floors)
    for path in files:
        for room in set(_rooms_imported(path)) - {_room(path), *FOLDERS}:
            assert room in floors, f"{path} imports bench.{room}, which is no room"
            assert floors[room] < floors[_room(path)], f"{path} imports bench.{room}"


def test_dictionaries_of_anything_stay_at_the_border_to_json():
    files = [ROOT / p for p in _our_files() if p.parts[0] == "bench" and p.suffix == ".py"]
    lines = [
        f"{path.name}: {line}" for path in files for line in path.read_text().splitlines() if "dict[str, Any]" in line
    ]
    assert len(lines) <= 15, "\n".join(lines)


def _functions(path):
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
            yield node.name, node.end_lineno - body[0].lineno + 1


def test_no_function_of_bench_is_longer_than_60_lines():
    lengths = {
        f"{path}: {name}": length
        for path in _our_files()
        if path.parts[0] == "bench" and path.suffix == ".py"
        for name, length in _functions(path)
    }
    assert len(lengths) > 300
    assert not {name: length for name, length in lengths.items() if length > 60}


def test_no_file_tells_a_method_apart_by_its_name():
    names = set(Registry("methods").names)
    assert "cosface" in names
    for path in [p for p in _our_files() if p.suffix == ".py"]:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if path.parts[0] in ("bench", "datasets"):
                # No such word stands there at all.
                named = isinstance(node, ast.Constant) and node.value in names
                assert not named, f"{path}:{node.lineno} names {node.value}"
            elif isinstance(node, ast.Compare | ast.match_case):
                # A method may be named after its own parameters' values, which are compared as such.
                parts = list(ast.walk(node))
                told = {part.value for part in parts if isinstance(part, ast.Constant)} & names
                compared = {part.attr for part in parts if isinstance(part, ast.Attribute)}
                assert not (told and compared & {"name", "method"}), f"{path} tells {told} apart"


def test_our_folders_are_never_imported_as_top_level_packages():
    ours = set(FOLDERS) - {"bench"}
    looks_like_it = re.compile(rf"^\s*(from|import)\s.*?(?<!\.)\b({'|'.join(ours)})\b", re.M)
    for path in [p for p in _tracked() if p.suffix == ".py"]:
        for level, module in _imports(ROOT / path) if looks_like_it.search((ROOT / path).read_text()) else ():
            assert level or module.split(".")[0] not in ours, f"{path} imports {module}"


def test_listing_and_help_import_nothing_heavy(tmp_path):
    lists = ("list methods", "list datasets", "list scorers", "paper list")
    for line in ("--help", *lists, "run --help", "score --help"):
        code = (
            "import sys; from bench.cli import main; code = main(sys.argv[1:]); "
            "heavy = {'torch', 'numpy', 'pandas', 'optuna', 'matplotlib'} & set(sys.modules); "
            "assert not heavy, heavy; sys.exit(code)"
        )
        subprocess.run([sys.executable, "-P", "-c", code, *line.split()], cwd=tmp_path, check=True)


def test_every_attribute_of_an_interface_is_read_somewhere():
    """What a plug-in may set has a reader: nothing is asked of its author in vain."""
    read = set()
    for path in [p for p in _our_files() if p.suffix == ".py"]:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
    for kind, file in (("Dataset", "datasets/dataset.py"), ("Method", "methods/_base.py")):
        names = set(_attributes(ROOT / file, kind))
        assert len(names) > 5
        assert names <= read


def _attributes(path, kind):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == kind:
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign):
                    yield statement.target.id


def test_one_function_writes_the_tables_of_each_format():
    writers = runpy.run_path(str(ROOT / ".ci" / "count.py"))["writers"](ROOT)
    assert writers == {
        "Markdown": ["bench/report/render.py:to_markdown"],
        "LaTeX": ["bench/report/render.py:to_latex"],
        "terminal": ["bench/report/render.py:_for_terminal"],
        "HTML": ["bench/report/page/table.tmpl"],
    }


def test_no_room_is_larger_than_its_budget():
    budget = tomllib.loads((ROOT / ".ci" / "budget.toml").read_text("utf-8"))
    found = runpy.run_path(str(ROOT / ".ci" / "count.py"))["sizes"](ROOT)
    assert found.keys() == budget.keys(), "every room has a number in .ci/budget.toml"
    over = [f"{room}: {found[room]:,} of {most:,}" for room, most in budget.items() if found[room] > most]
    assert not over, f"{'; '.join(over)}: something has to go (.ci/budget.toml says when a number may be raised)"
