"""Rosters: on which nodes of a cluster the units of living drivers run."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest
from bench.cli import main
from bench.store.claims import CLAIM, DRIVERS, NODES, Claims, Roster, nodes_of_units
from bench.store.folder import Store

UNIT = "reality_check/ndigit/pfe/train-1"


@pytest.fixture
def claims(tmp_path, monkeypatch):
    """Claims of a driver that is at work in the folder."""
    monkeypatch.setattr("bench.store.claims.PAUSE", 0.01)
    there = Claims(tmp_path)
    there.enter(alone=False, lost=lambda: None)
    yield there
    there.close()


def _after(root, name, *changes):
    """The nodes of units after some changes, and the roster that was changed."""

    async def run():
        roster = Roster(root, name)
        for unit, node in changes:
            roster.place(unit, node)
        await asyncio.sleep(0.05)
        return roster

    roster = asyncio.run(run())
    return nodes_of_units(root), roster


def test_units_are_entered_with_their_nodes_until_they_end(claims, tmp_path):
    found, _ = _after(tmp_path, claims.name, (UNIT, "a"), ("other", "b"))
    assert found == {UNIT: "a", "other": "b"}
    found, _ = _after(tmp_path, claims.name, (UNIT, "a"), ("other", "b"), (UNIT, None), ("never there", None))
    assert found == {"other": "b"}
    assert _after(tmp_path, claims.name, (UNIT, "a"), (UNIT, "b"))[0] == {UNIT: "b"}


def test_the_file_is_written_at_most_once_in_a_while(claims, tmp_path, monkeypatch):
    monkeypatch.setattr("bench.store.claims.PAUSE", 0.2)
    written = []
    monkeypatch.setattr("bench.store.claims.write_atomic", lambda path, data, sync: written.append(json.loads(data)))

    async def run():
        roster = Roster(tmp_path, claims.name)
        for number in range(100):
            roster.place(str(number), "a")
        assert written == []
        await asyncio.sleep(0.3)
        roster.place("0", None)
        roster.close()
        await asyncio.sleep(0.3)

    asyncio.run(run())
    assert [len(units) for units in written] == [100]


def test_a_folder_that_cannot_be_written_disturbs_nothing(claims, tmp_path):
    (tmp_path / NODES).write_text("")
    assert _after(tmp_path, claims.name, (UNIT, "a"))[0] == {}


def test_closing_removes_the_roster_and_the_token(claims, tmp_path):
    _, roster = _after(tmp_path, claims.name, (UNIT, "a"))
    roster.token.write_text("x")
    assert len(list((tmp_path / NODES).iterdir())) == 2
    roster.close()
    assert list((tmp_path / NODES).iterdir()) == []
    roster.close()


def _dead(root):
    """The name of a driver that was killed."""
    code = f"""
import os, signal
from pathlib import Path
from bench.store.claims import Claims
claims = Claims(Path({str(root)!r}))
claims.enter(alone=False, lost=lambda: None)
print(claims.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    return done.stdout.strip()


def test_what_dead_drivers_left_does_not_count_and_is_removed(claims, tmp_path):
    name = _dead(tmp_path)
    assert (tmp_path / DRIVERS / name).exists()
    _, mine = _after(tmp_path, claims.name, (UNIT, "a"))
    mine.token.write_text("x")
    left = [tmp_path / NODES / f"{name}.json", tmp_path / NODES / f"{name}.token"]
    for path in left:
        path.write_text(json.dumps({"other": "b"}))
    assert nodes_of_units(tmp_path) == {UNIT: "a"}
    third = Claims(tmp_path)
    third.enter(alone=False, lost=lambda: None)
    Roster(tmp_path, third.name)
    third.close()
    assert not any(path.exists() for path in left)
    assert mine.token.exists()
    assert nodes_of_units(tmp_path) == {UNIT: "a"}


def test_a_driver_whose_clock_is_ahead_takes_no_token_from_the_living(claims, tmp_path):
    """Nodes that joined later were left out: they did not see the results folder."""
    _, mine = _after(tmp_path, claims.name, (UNIT, "a"))
    mine.token.write_text("x")
    os.utime(tmp_path / DRIVERS / claims.name, (1e9, 1e9))
    Roster(tmp_path, "of another driver")
    assert mine.token.exists()


def test_what_another_driver_is_about_to_write_is_left_alone(claims, tmp_path):
    """Its token was gone before it had its name, which ended the driver."""
    (tmp_path / NODES).mkdir()
    part = tmp_path / NODES / f".{claims.name}.token.{claims.name}.part"
    part.write_text("x")
    Roster(tmp_path, "of another driver")
    assert part.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"unit": 3}', b"\xff\xfe"])
def test_a_damaged_roster_is_no_error(claims, tmp_path, content):
    (tmp_path / NODES).mkdir()
    path = tmp_path / NODES / f"{claims.name}.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert nodes_of_units(tmp_path) in ({}, {"unit": "3"})


def test_status_shows_the_node(claims, tmp_path, capsys):
    Store(tmp_path).mark("reality_check", 1)
    units = [tmp_path / UNIT, tmp_path / UNIT.replace("train", "test")]
    for unit in units:
        unit.mkdir(parents=True)
        claims.take(unit / CLAIM)
    _after(tmp_path, claims.name, (UNIT, "a\x1b[2J"))
    assert main(["status", "--json", "--results", str(tmp_path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert {unit["unit"]: unit["node"] for unit in row["running"]} == {"train 1": "a\x1b[2J", "test 1": ""}
    assert main(["status", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if f"process {os.getpid()} on " in line]
    assert [line.endswith(", at work on node a\\x1b[2J") for line in lines] == [True, False]


def test_status_of_a_folder_without_a_unit_says_so(tmp_path, capsys):
    Store(tmp_path).mark("reality_check", 1)
    assert main(["status", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: no trial, training or test has begun yet\n"


def test_the_check_of_a_folder_does_not_mind_rosters(claims, tmp_path, capsys):
    Store(tmp_path).mark("reality_check", 1)
    _, roster = _after(tmp_path, claims.name, (UNIT, "a"))
    roster.token.write_text("x")
    assert main(["status", "--check", "--results", str(tmp_path)]) == 0
    assert "everything is whole" in capsys.readouterr().out
