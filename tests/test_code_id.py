"""Code ids: an edit makes anew what uses the edited code and nothing else, under every version of Python."""

import ast
import itertools
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from bench.code_id import OUTSIDE, closure, code_id, file_of
from bench.datasets.corruptions import corruption_module
from bench.methods.backbones.registry import MODULES as BACKBONES
from bench.methods.backbones.registry import backbone_module
from bench.methods.scorers.registry import SCORERS, scorer_module
from bench.protocols.known_tests import BUILT_IN, modules_of
from bench.registry import Registry

ROOT = Path(__file__).parents[1]
FOLDERS = ("methods", "datasets", "protocols", "results")
METHODS = [entry.origin for entry in Registry("methods")]
ENGINE = ("bench.engine.training", "bench.engine.testing")


def _names(*roots):
    return {module.name for module in closure(*roots)}


def _layout(root, copied=()):
    """The package as it is imported, as links to the checkout; some folders as copies that can be edited."""
    package = root / "bench"
    package.mkdir(parents=True)
    for entry in (ROOT / "bench").iterdir():
        (package / entry.name).symlink_to(entry)
    for folder in FOLDERS:
        if folder in copied:
            shutil.copytree(ROOT / folder, package / folder, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (package / folder).symlink_to(ROOT / folder)
    return root


def _ids(layout, roots, python=sys.executable):
    """Ids of lists of roots, computed by an interpreter with nothing but the standard library."""
    code = (
        "import json, sys; from bench.code_id import code_id, file_of; "
        "print(json.dumps([[code_id(*roots) for roots in json.load(sys.stdin)], str(file_of('bench.code_id'))]))"
    )
    done = subprocess.run(
        [python, "-S", "-P", "-c", code], input=json.dumps([list(names) for names in roots]), capture_output=True,
        text=True, cwd=layout, env={**os.environ, "PYTHONPATH": str(layout)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ids, place = json.loads(done.stdout)
    assert Path(place).is_relative_to(layout)
    return dict(zip(roots, ids))


# A plug-in and the files next to it


@pytest.fixture
def plugin(tmp_path):
    """Writes files next to one another, each edit later than the one before; gives the id of ``mine.py``."""
    clock = itertools.count(10**18, 10**9)

    def write(**files):
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.write_text(text)
            stamp = next(clock)
            os.utime(path, ns=(stamp, stamp))
        return code_id(tmp_path / "mine.py")

    return write


def test_an_id_covers_what_is_imported_directly_or_not(plugin, tmp_path):
    first = plugin(mine="from .near import f\n", near="from . import far\nf = far.g\n", far="g = 1\n", other="x = 1\n")
    assert [module.path.stem for module in closure(tmp_path / "mine.py")] == ["far", "mine", "near"]
    assert plugin(other="x = 2\n") == first
    edited = plugin(far="g = 2\n")
    assert edited != first
    assert plugin(near="from . import far\nf = -far.g\n") not in (first, edited)
    assert plugin(near="from . import far\nf = far.g\n", far="g = 1\n") == first


@pytest.mark.parametrize(
    "source",
    [
        "from .near import f\n",
        "from .near import f as g\n",
        "from . import near\n",
        "from .near import *\n",
        "def late():\n    from .near import f\n    return f\n",
        "try:\n    import numpy\nexcept ImportError:\n    from .near import f\n",
        "class A:\n    from .near import f\n",
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    pass\nelse:\n    from .near import f\n",
        "from .pack import f\n",
        "from .pack.inner import f\n",
        "from . import pack\n",
    ],
)
def test_every_form_of_import_counts(plugin, tmp_path, source):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("from .inner import f\n")
    (tmp_path / "pack" / "inner.py").write_text("from ..near import f\n")
    first = plugin(mine=source, near="f = 1\n")
    assert plugin(near="f = 2\n") != first


def test_what_is_imported_for_type_checkers_only_does_not_count(plugin):
    source = "import typing\nif typing.TYPE_CHECKING:\n    from .near import F\n\ndef f(x: 'F'): return x\n"
    assert plugin(mine=source, near="F = 1\n") == plugin(near="F = 2\n")


def test_comments_docstrings_and_layout_do_not_count(plugin):
    near = 'class A:\n    """Doc."""\n    def f(self, x):\n        """Doc."""\n'
    near += '        return [x, f"{x} b", "a" "b"]  # why\n'
    first = plugin(mine='"""Doc."""\nfrom .near import A\n', near=near)
    other = near.replace("Doc.", "Documentation.").replace("  # why", "").replace('"a" "b"', '(\n"ab")')
    other = "# about A\n\n\n" + other.replace("self, x", "self,   x,").replace('f"{x} b"', 'f"{x}" " b"')
    assert plugin(near=other, mine="from .near import (\n    A,\n)\n") == first
    assert plugin(near=near.replace('"a" "b"', '"b"')) != first
    assert plugin(near=near.replace('f"{x} b"', 'f"{x!r} b"')) != first


def test_a_cycle_ends(plugin):
    first = plugin(mine="from .near import f\n", near="from . import mine\nf = 1\n")
    assert plugin(near="from . import mine\nf = 2\n") != first


def test_names_of_a_package_lead_to_the_modules_that_define_them(plugin, tmp_path):
    plugin(
        mine="from bench.methods import CosineClassifier, Method\nfrom bench.methods.distributions import PointMass\n"
    )
    names = _names(tmp_path / "mine.py")
    assert {"bench.methods.losses", "bench.methods._base", "bench.methods.distributions.point"} <= names
    assert not names & {"bench", "bench.methods", "bench.methods.distributions", "bench.methods.nir"}


@pytest.mark.parametrize(
    "source", ["import bench.methods\n", "from bench import methods\n", "from bench.methods import *\n"]
)
def test_a_package_taken_as_a_whole_is_everything_that_it_names(plugin, tmp_path, source):
    plugin(mine=source)
    assert {"bench.methods.losses", "bench.methods.heads"} <= _names(tmp_path / "mine.py")


# Our own modules


def test_no_id_contains_a_package_that_names_everything():
    entries = [*METHODS, *(entry.origin for entry in Registry("datasets"))]
    entries += [*map(backbone_module, BACKBONES), *map(scorer_module, SCORERS), *modules_of(BUILT_IN)]
    entries += [corruption_module(name) for name in ("crop", "blur", "jpeg", "noise", "occlusion")]
    lazy = {f"bench.{name}" for name in ("methods", "datasets", "protocols")}
    lazy |= {f"bench.methods.{name}" for name in ("backbones", "distributions", "scorers")}
    lazy |= {"bench", "bench.datasets.corruptions"}
    for name in (*entries, *ENGINE):
        assert not _names(name) & lazy, name
    assert len(METHODS) >= 20


def test_a_training_contains_no_test_no_report_and_no_registry():
    names = _names("bench.engine.training")
    tests = {module for module in modules_of(BUILT_IN) if not module.endswith(".battery")}
    assert {f"bench.protocols.{name}" for name in ("structure", "filter_out", "clustering", "confidence")} <= tests
    assert not names & (tests | {"bench.protocols.battery", "bench.engine.testing"})
    for room in ("report", "progress", "scoring", "commands", "planning", "protocols.recipes.", "conformance"):
        assert not [name for name in names if name.startswith(f"bench.{room}") and not name.endswith("._base")], room
    # It holds what decides about its values, and of the methods and data sets none that it does not train.
    assert {"bench.engine.networks", "bench.engine.optim", "bench.methods._model", "bench.seeds"} <= names
    assert not names & {*METHODS, *(entry.origin for entry in Registry("datasets"))}


def test_what_is_left_out_exists_and_no_id_contains_it():
    for name in OUTSIDE:
        assert file_of(name).is_file(), name
    for root in (*ENGINE, *METHODS):
        assert not _names(root) & OUTSIDE


def _defines(name):
    """The module of ours that defines a class."""
    (found,) = [
        path
        for path in (ROOT / "methods").glob("**/*.py")
        if any(isinstance(node, ast.ClassDef) and node.name == name for node in ast.parse(path.read_text()).body)
    ]
    return found


@cache
def _plan_roots():
    """What the ids of the units of two methods cover, as the planner names it: trainings, tests."""
    from bench.planning import plan
    from bench.planning.planner import build_plans
    from bench.planning.request import RunRequest
    from bench.site import Site

    roots = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "code_id", lambda *names: "\n".join(map(str, names)))
        request = RunRequest(methods=("nir", "cosface"), datasets=("ndigit_smoke",), hparams="default")
        for built in build_plans(request, Site(results="unused")).plans:
            roots[built.cell.method] = tuple(built.template.code.split()), tuple(built.testing.code.split())
    return roots


def test_an_edit_of_a_loss_makes_anew_the_methods_that_use_it(tmp_path):
    defining = _defines("ProxyAnchorLoss")
    assert defining in {module.path.resolve() for module in closure("bench.methods.nir")}
    roots = [names for units in _plan_roots().values() for names in units] + [(name,) for name in METHODS]
    layout = _layout(tmp_path, copied=("methods",))
    before = _ids(layout, roots)
    assert len(set(before.values())) == len(set(roots))
    copy = layout / "bench" / "methods" / defining.relative_to(ROOT / "methods")
    copy.write_text(copy.read_text() + "\n\nEDITED = 1\n")
    after = _ids(layout, roots)
    changed = {names for names in roots if before[names] != after[names]}
    nir, cosface = (_plan_roots()[name][0] for name in ("nir", "cosface"))
    assert nir in changed
    assert cosface not in changed
    users = {name for name in METHODS if defining in {module.path.resolve() for module in closure(name)}}
    assert {name for (name,) in changed - {nir}} == users
    assert {"bench.methods.nir", "bench.methods.proxy_anchor", "bench.methods.proxy_anchor_el_nivmf"} <= users
    assert "bench.methods.cosface" not in users


def test_a_new_file_and_an_edited_registry_make_nothing_anew(tmp_path):
    roots = [names for units in _plan_roots().values() for names in units] + [(name,) for name in METHODS]
    layout = _layout(tmp_path, copied=("methods", "protocols"))
    before = _ids(layout, roots)
    methods, protocols = layout / "bench" / "methods", layout / "bench" / "protocols"
    recipe = (protocols / "recipes" / "folder.py").read_text()
    (protocols / "recipes" / "birds.py").write_text(recipe)
    (protocols / "kurtosis.py").write_text((protocols / "structure.py").read_text())
    (methods / "mine.py").write_text((methods / "cosface.py").read_text())
    for registry in (protocols / "recipes" / "__init__.py", protocols / "known_tests.py", protocols / "metrics.py",
                     methods / "scorers" / "registry.py", methods / "backbones" / "registry.py"):  # fmt: skip
        registry.write_text(registry.read_text() + "\n\nNEW_ENTRY = 1\n")
    assert _ids(layout, roots) == before
    # An edited test makes the tests anew that run it, and no training.
    path = protocols / "confidence.py"
    path.write_text(path.read_text() + "\n\nEDITED = 1\n")
    changed = {names for names, name in _ids(layout, roots).items() if name != before[names]}
    assert changed == {tests for _, tests in _plan_roots().values()}


# Other versions of Python


@cache
def _interpreters():
    """Interpreters of this machine by version, 3.11 and later."""
    places = [Path(name) for name in os.environ.get("PATH", "").split(os.pathsep) if name]
    places += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    listed = ""
    if shutil.which("uv"):
        command = ["uv", "python", "list", "--only-installed"]
        listed = subprocess.run(command, capture_output=True, text=True).stdout
    found = {}
    for version in ("3.11", "3.12", "3.13", "3.14"):
        paths = [place / f"python{version}" for place in places]
        paths += [Path(word) for line in listed.splitlines() for word in line.split() if f"python{version}" in word]
        for path in paths:
            # A shim of pyenv may stand for a version that is not there.
            command = [str(path), "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            if path.is_file() and subprocess.run(command, capture_output=True, text=True).stdout.strip() == version:
                found[version] = path
                break
    return found


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_version_of_python_gives_the_same_ids(version, tmp_path):
    if version not in _interpreters():
        pytest.skip(f"no Python {version} on this machine")
    roots = [(name,) for name in (*METHODS, *ENGINE)]
    theirs = _ids(_layout(tmp_path), roots, str(_interpreters()[version]))
    assert theirs == {names: code_id(*names) for names in roots}
