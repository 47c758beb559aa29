"""Versions of code: an edit makes anew what uses the edited code and nothing else, under every version of Python."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from bench import versions
from bench.closure import closure, closure_hash
from bench.registry import Registry
from bench.versions import Entry, built_in, version

ROOT = Path(__file__).parents[1]
FOLDERS = ("methods", "datasets", "protocols", "results")
METHODS = [entry.origin for entry in Registry("methods")]
ENGINE = ("bench.engine.training", "bench.engine.testing")


def _names(*roots):
    return {module.name for module in closure(*roots)}


def _layout(root, copied=()):
    """The package as it is imported, as links to the checkout; some folders and the lock as copies for editing."""
    package = root / "bench"
    package.mkdir(parents=True)
    for entry in (ROOT / "bench").iterdir():
        (package / entry.name).symlink_to(entry)
    for folder in FOLDERS:
        if folder in copied:
            shutil.copytree(ROOT / folder, package / folder, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (package / folder).symlink_to(ROOT / folder)
    (package / "versions.lock").unlink()
    shutil.copy(ROOT / "bench" / "versions.lock", package)
    return root


# The lock


def test_the_lock_has_the_present_code_of_everything(capsys):
    assert versions.main([]) == 0, capsys.readouterr().err


def test_a_stale_lock_fails_and_says_what_to_do(tmp_path, monkeypatch, capsys):
    stale = tmp_path / "versions.lock"
    stale.write_text(versions.LOCK.read_text().replace("methods.dul_cls 1 ", "methods.dul_cls 1 0"))
    monkeypatch.setattr(versions, "LOCK", stale)
    assert versions.main([]) == 1
    said = capsys.readouterr().err
    assert "does not have the present code of methods.dul_cls. Either show that its values are equal" in said
    assert "or raise its `version`; then: python -m bench.versions --renew" in said
    assert versions.main(["--renew"]) == 0
    assert capsys.readouterr().out == "renewed: methods.dul_cls\n"
    assert versions.main([]) == 0


def test_what_the_lock_has_counts_as_declared_and_all_else_names_its_code(tmp_path):
    entries = {entry.name: entry for entry in built_in()}
    assert {entry.version for entry in entries.values()} == {version(entry) for entry in entries.values()}
    found = entries["methods.dul_cls"]
    hashed = closure_hash(*found.roots)
    assert version(found._replace(version=2)) == f"2+edited.{hashed}"  # raised, and the lock not renewed
    assert version(Entry("methods.new", 1, found.roots)) == f"1+edited.{hashed}"
    plugin = tmp_path / "mine.py"
    plugin.write_text("x = 1\n")
    assert version(Entry("methods.mine", 1, (plugin,))) == f"file.{closure_hash(plugin)}"


EDITS = """
import json, os, sys
from pathlib import Path

from bench import versions
from bench.planning.plan import build_plans
from bench.planning.experiment import Experiment
from bench.site import Site

place = Path(versions.__file__).parent
request = Experiment(methods=("all",), datasets=("ndigit_smoke",), hparams="default", preset="per")


def ids():
    plans = build_plans(request, Site(results="unused")).plans
    return {plan.cell.method: (plan.template.id, plan.testing.versions) for plan in plans}


def edit(name, *changes):
    path = place / name
    text = path.read_text()
    for old, new in changes:
        assert old in text, (name, old)
        text = text.replace(old, new)
    path.write_text(text)
    clock[0] += 10**9
    os.utime(path, ns=(clock[0], clock[0]))


clock = [10**18]
before = ids()


def changed():
    return sorted(name for name, found in ids().items() if found != before[name])


edit("methods/dul_cls.py", ("self.kl_weight *", "2 * self.kl_weight *"))
print(json.dumps(changed()))
edit("methods/dul_cls.py", ("2 * self.kl_weight *", "self.kl_weight *"))
print(json.dumps(changed()))
edit("methods/losses.py", ("self._base", "self._trained"))  # another name for the same value
print(json.dumps(changed()))
print(versions.main([]), versions.main(["--renew"]), versions.main([]), file=sys.stderr)
print(json.dumps(changed()))
"""


@pytest.mark.slow
def test_an_edit_in_a_checkout_makes_anew_what_uses_it_and_a_renewed_lock_nothing(tmp_path):
    layout = _layout(tmp_path, copied=("methods",))
    done = subprocess.run(
        [sys.executable, "-P", "-c", EDITS], capture_output=True, text=True, cwd=layout,
        env={**os.environ, "PYTHONPATH": str(layout)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    edited, restored, shared, _, renewed = done.stdout.splitlines()
    assert json.loads(edited) == ["dul_cls"]
    assert json.loads(restored) == json.loads(renewed) == []
    assert {"arcface", "cosface", "dul_cls"} < set(json.loads(shared))
    assert "laplace" not in json.loads(shared)
    assert done.stderr.splitlines()[-1] == "1 0 0"


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
        return closure_hash(tmp_path / "mine.py")

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
    assert {"bench.methods.losses", "bench.methods._base", "bench.methods.distributions.normal"} <= names
    assert not names & {"bench", "bench.methods", "bench.methods.distributions", "bench.methods.nir"}


@pytest.mark.parametrize(
    "source", ["import bench.methods\n", "from bench import methods\n", "from bench.methods import *\n"]
)
def test_a_package_taken_as_a_whole_is_everything_that_it_names(plugin, tmp_path, source):
    plugin(mine=source)
    assert {"bench.methods.losses", "bench.methods.heads"} <= _names(tmp_path / "mine.py")


# Our own modules


def test_no_closure_contains_a_package_that_names_everything():
    lazy = {f"bench.{name}" for name in ("methods", "datasets", "protocols")}
    lazy |= {f"bench.methods.{name}" for name in ("backbones", "distributions", "scorers")}
    lazy |= {"bench", "bench.datasets.corruptions"}
    for entry in built_in():
        assert not _names(*entry.roots) & lazy, entry.name
    assert len(METHODS) >= 20


def test_the_engine_contains_no_report_no_registry_and_nothing_that_a_specification_names():
    names = _names(*ENGINE)
    for room in ("report", "progress", "scoring", "commands", "planning", "store", "conformance", "registry", "site"):
        assert not [name for name in names if name.startswith(f"bench.{room}")], room
    assert not [name for name in names if name.endswith((".registry", ".known_tests"))]
    assert {"bench.engine.networks", "bench.engine.optim", "bench.methods._model", "bench.seeds"} <= names
    assert not names & {*METHODS, *(entry.origin for entry in Registry("datasets"))}


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
    for number in ("3.11", "3.12", "3.13", "3.14"):
        paths = [place / f"python{number}" for place in places]
        paths += [Path(word) for line in listed.splitlines() for word in line.split() if f"python{number}" in word]
        for path in paths:
            # A shim of pyenv may stand for a version that is not there.
            command = [str(path), "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            if path.is_file() and subprocess.run(command, capture_output=True, text=True).stdout.strip() == number:
                found[number] = path
                break
    return found


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_version_of_python_gives_the_same_hashes(version, tmp_path):
    if version not in _interpreters():
        pytest.skip(f"no Python {version} on this machine")
    # With nothing but the standard library, and where a wheel has the files.
    code = "import json, sys; from bench.closure import closure_hash; "
    code += "print(json.dumps({name: closure_hash(name) for name in json.load(sys.stdin)}))"
    layout, roots = _layout(tmp_path), [*METHODS, *ENGINE]
    command, own = [_interpreters()[version], "-S", "-P", "-c", code], {**os.environ, "PYTHONPATH": str(layout)}
    found = subprocess.check_output(command, input=json.dumps(roots), text=True, cwd=layout, env=own)
    assert json.loads(found) == {name: closure_hash(name) for name in roots}
