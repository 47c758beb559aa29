"""``bench claims``: what it prints and writes, and how it takes several results folders together."""

from __future__ import annotations

import json

import pytest
from bench.store.folder import Store

from tests.papers.conftest import HEAD, claim, runs


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Results folders ``one`` and ``two``: each has one half of a claim."""
    for name, records in {
        "one": runs("dul_cls", [0.60, 0.62, 0.61]),
        "two": runs("cosface", [0.50, 0.521, 0.508]),
    }.items():
        store = Store(tmp_path / name)
        store.mark("reality_check", 1)
        for each in records:
            store.write(each)
    (tmp_path / "mine.toml").write_text(HEAD + claim())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_records_of_several_folders_are_taken_together(folders, bench):
    code, out, err = bench("paper", "claims", "--claims", "mine.toml", "--results", "one")
    assert (code, err) == (0, "")
    assert "no records of cosface" in out
    code, out, err = bench(
        "paper", "claims", "--claims", "mine.toml", "--results", "one", "--results", "two", "--out", "here"
    )
    assert (code, err) == (0, "")
    assert "+10.03" in out
    assert out.splitlines()[1].endswith("holds")
    assert sorted(path.name for path in (folders / "here").iterdir()) == ["claims.csv", "claims.md"]
    assert "| holds |" in (folders / "here/claims.md").read_text()
    found = json.loads(
        bench("paper", "claims", "--claims", "mine.toml", "--results", "two", "--results", "one", "--json")[1]
    )
    corrected = [line for line in found if line["fidelity"] == "corrected"]
    assert [(line["claim"], line["verdict"], line["seeds"]) for line in corrected] == [("one", "holds", 3)]


def test_the_shipped_claims_say_which_command_makes_their_records(folders, bench):
    code, out, _ = bench("claims", "--results", "one", "--paper", "hib")
    assert code == 0
    assert "    bench run --method hib,margin --dataset ndigit --seeds 5 --hparams default" in out
    assert "per-" not in out


def test_bad_input_is_one_line(folders, refusal):
    for arguments, said in (
        (("--results", "one", "--paper", "hib2"), "unknown paper 'hib2'; did you mean 'hib'?"),
        (("--results", "one", "--claims", "none.toml"), "none.toml: No such file or directory"),
        (("--results", "nowhere"), "nowhere"),
    ):
        assert said in refusal("claims", *arguments)
