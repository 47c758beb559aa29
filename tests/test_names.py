"""Names become parts of paths: whoever writes them, nothing is written outside of the results folder."""

import contextlib
import importlib.metadata
from pathlib import Path

import pytest
from bench.errors import UserError
from bench.names import check_name, part_of_path, why_not_a_name
from bench.registry import Registry
from bench.store.folder import Store
from bench.store.specs import Cell
from hypothesis import given
from hypothesis import strategies as st

from tests.templates import PLAIN

HOSTILE = [
    *("../../../escaped", "..", ".", "", "/etc/passwd", "a/b", "a\\b", "~", "-rf", ".hidden", "a b", "a\nb", "a\0b"),
    *("a,b", "a;b", "$(id)", "é", "\u202eabc", "A", "1a", "x" * 65, "con:", "a|b", "<b>", "=cmd"),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_in_one_printable_line(name):
    with pytest.raises(UserError) as caught:
        check_name("method", name)
    line = str(caught.value)
    assert line.startswith("method: ")
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 200


@given(st.text(max_size=80))
def test_a_part_of_a_path_stays_in_its_folder(text):
    root = Path("/results")
    part = ""
    with contextlib.suppress(UserError):
        part = part_of_path(text)
    if part:
        assert (root / part).parent == root
        assert (root / part).resolve() == root / part
        assert len(part) <= 128


@given(st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True))
def test_every_name_is_a_part_of_a_path(name):
    assert why_not_a_name(name) == ""
    assert part_of_path(name) == name


@pytest.mark.parametrize("name", ["../../../escaped", "..", "/tmp/x", ""])
@pytest.mark.parametrize("place", range(4))
def test_the_store_makes_no_path_out_of_its_folder(tmp_path, name, place):
    parts = ["reality_check", "ndigit", "mine", "3f2a"]
    parts[place] = name
    if place == 3 and name in ("", ".."):
        assert Store(tmp_path).unit_dir(Cell(*parts[:3]), "train", name).parent.parent.parent.parent == tmp_path
        return
    with pytest.raises(UserError, match="cannot be part of a path"):
        Store(tmp_path).unit_dir(Cell(*parts[:3]), "train", parts[3])


def test_a_plug_in_of_a_hostile_name_writes_nothing(tmp_path, refusal):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLAIN.replace('"mine"', "'../../../escaped'"))
    results = tmp_path / "deep" / "results"
    command = ["run", "--method", "../../../escaped", "--dataset", "ndigit", "--plugin", str(plugin)]
    assert "'../../../escaped' cannot be a name" in refusal(*command, "--results", results)
    assert {path.name for path in tmp_path.iterdir()} <= {"plugin.py", "__pycache__"}


REGISTERED = {
    "scorer": "from bench.methods.scorers import ScorerSpec, register_scorer\n"
    "register_scorer(ScorerSpec('{name}', 'x', None))\n",
    "corruption": "from bench.datasets.corruptions import Corruption, register_corruption\n"
    "register_corruption(Corruption('{name}', 'x', 0.0, 1.0, lambda image, severity, draw: image))\n",
    "group of tests": "from bench.protocols.declare import test\n"
    "@test(group='{name}', per='embeddings')\ndef it(view):\n    yield\n",
}


@pytest.mark.parametrize("kind", REGISTERED)
def test_other_plug_ins_of_hostile_names_are_refused(tmp_path, refusal, monkeypatch, kind):
    from bench.datasets.corruptions.registry import CORRUPTIONS
    from bench.methods.scorers import SCORERS
    from bench.protocols import declare

    for module, table in ((CORRUPTIONS, "added"), (SCORERS, "added"), (declare, "_DECLARED")):
        monkeypatch.setattr(module, table, dict(getattr(module, table)))
    plugin = tmp_path / "plugin.py"
    plugin.write_text(REGISTERED[kind].format(name="../../x"))
    line = refusal("list", "tests", "--plugin", plugin)
    assert "'../../x'" in line
    assert "lower-case letters, digits and underscores" in line


def test_an_entry_point_of_a_hostile_name_is_refused(monkeypatch):
    point = importlib.metadata.EntryPoint("../../x", "somewhere:Mine", "bench.methods")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    with pytest.raises(UserError, match=r"entry point somewhere:Mine: '../../x' cannot be a name"):
        Registry("methods")


@pytest.mark.parametrize("name", ["../../x", "/etc", "a/b"])
def test_data_import_makes_no_folder_of_an_unknown_name(tmp_path, refusal, name):
    (tmp_path / "source").mkdir()
    assert "unknown data set" in refusal("data", "import", name, tmp_path / "source", "--data-root", tmp_path / "a/b/c")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
