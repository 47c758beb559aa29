"""Damage of every file of a results folder: it is named, and the command that made the folder makes it again."""

import json
import shutil
from functools import cache, partial

import pytest
import torch
from bench.cli import main
from bench.store.files import sealed_file
from PIL import Image

from tests.in_process import bring_workers_in, forget_determinism, run_here

RECORDS = ("run", "--method", "cosface", "--dataset", "ndigit_smoke", "--set", "optim.epochs=1", "--seeds", "1",
           "--trials", "2", "--studies", "1", "--workers", "1", "--results", "runs")  # fmt: skip
EVERYTHING = tuple(value.replace("cosface", "cosface,pfe") for value in RECORDS)


def _flipped(data, other):
    """One bit in the middle is another."""
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


DAMAGES = {
    "truncated": lambda data, other: data[: len(data) // 2],
    "emptied": lambda data, other: b"",
    "flipped": _flipped,
    "swapped": lambda data, other: other,
    "object": lambda data, other: b"{}",
    "array": lambda data, other: b"[]",
}


def _kind(path):
    name = path.name.rstrip("0123456789").split("-")[0]
    return path.parent.name.split("-")[0] + name + path.suffix


@pytest.fixture
def quick(monkeypatch):
    """The command line in this process, with workers in this process and without figures."""
    bring_workers_in(monkeypatch, figures=False)
    yield
    forget_determinism()


class Folder:
    """A finished results folder that is damaged and made whole again."""

    def __init__(self, cwd, command, capsys, made):
        self.root, self.command, self.capsys = cwd / "runs", command, capsys
        shutil.copytree(made(command), self.root)
        self.table = (self.root / "metrics.csv").read_bytes()
        # Files that hold results; everything else is made of them.
        held = sorted([self.root / "store.json", *self.root.glob("reality_check/**/*")])
        self.files = [path for path in held if path.is_file() and not path.name.startswith(".")]
        self.kept = cwd / "kept"
        shutil.copytree(self.root, self.kept)

    def run(self):
        """The command that made the folder; what it says is damaged."""
        self.capsys.readouterr()
        assert main([*self.command]) == 0
        stderr = self.capsys.readouterr().err
        assert "Traceback" not in stderr
        return "\n".join(line for line in stderr.splitlines() if "damaged" in line)

    def check(self):
        self.capsys.readouterr()
        code = main(["status", "--check", "--json", "--results", "runs"])
        rows = json.loads(self.capsys.readouterr().out)
        assert code == (1 if rows else 0)
        return {row["path"]: row["reason"] for row in rows}

    def survives(self, path, content):
        """Damage a file, see it named, run the command, compare; restores what was changed."""
        name = str(path.relative_to(self.root))
        path.write_bytes(content)
        assert name in self.check()
        said = self.run()
        assert path.name in said, said
        assert (self.root / "metrics.csv").read_bytes() == self.table, name
        left = self.check()
        assert left == {}, f"{name}: {left}"
        shutil.rmtree(self.root)
        shutil.copytree(self.kept, self.root)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Run a command once, without any damage; gives its results folder, to copy."""

    @cache
    def run(command):
        folder = tmp_path_factory.mktemp("made")
        run_here(folder, *command, figures=False)
        return folder / "runs"

    return run


@pytest.fixture
def folder_of(tmp_path, monkeypatch, capsys, quick, made):
    monkeypatch.chdir(tmp_path)
    return partial(Folder, tmp_path, capsys=capsys, made=made)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_file_of_a_finished_folder_may_be_damaged(damage, folder_of):
    """A changed digit was reported, a changed trial chose another setting; ``{}`` and ``[]`` were tracebacks.

    A flipped bit is tried in every file, other damages in one file of each kind.
    """
    folder = folder_of(EVERYTHING)
    assert len(folder.files) == 25
    one_of_each = {_kind(path): path for path in folder.files}.values()
    spared = []
    for path in folder.files if damage == "flipped" else one_of_each:
        whole = path.read_bytes()
        other = next((other for other in folder.files if other != path and _kind(other) == _kind(path)), path)
        content = DAMAGES[damage](whole, other.read_bytes())
        if content == whole:  # there is no other file of its kind
            spared.append(path)
        else:
            folder.survives(path, content)
    assert len(spared) <= (4 if damage == "swapped" else 0)


@pytest.mark.slow
def test_a_read_only_look_changes_nothing(folder_of):
    folder = folder_of(RECORDS)
    (record,) = folder.root.glob("*/*/*/test-*/record.json")
    record.write_bytes(b"{}")
    before = {path: path.stat().st_mtime_ns for path in folder.root.rglob("*")}
    (row,) = json.loads(_output(folder, ["status", "--json", "--results", "runs"]))
    assert (row["trained"], row["tested"], row["trials"]) == (1, 0, 2)  # the torn record was counted
    assert main(["report", "--results", "runs"]) == 2
    name = str(record.relative_to(folder.root))
    assert folder.check() == {name: "a None record of schema None, not a test record of 3"}
    assert {path: path.stat().st_mtime_ns for path in folder.root.rglob("*")} == before


def _output(folder, arguments):
    folder.capsys.readouterr()
    assert main(arguments) == 0
    return folder.capsys.readouterr().out


@pytest.mark.slow
def test_a_folder_without_its_marker_is_read_by_its_records(folder_of):
    folder = folder_of(RECORDS)
    marker = folder.root / "store.json"
    whole = _output(folder, ["status", "--results", "runs"])
    for damage in (marker.unlink, partial(marker.write_bytes, b"{}"), partial(marker.write_bytes, b'{"protocols"')):
        damage()
        assert _output(folder, ["status", "--results", "runs"]) == whole
        assert list(folder.check()) == ["store.json"]


@pytest.mark.slow
def test_a_damaged_array_of_a_unit_in_use_is_a_line_that_names_it(folder_of, tmp_path):
    """It was "incomplete metadata", naming neither the file nor what to do."""
    folder = folder_of(RECORDS)
    weights = next(path for path in folder.files if path.name == "weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    (tmp_path / "images").mkdir()
    Image.new("RGB", (30, 30)).save("images/one.png")
    assert main(["embed", "--checkpoint", str(weights), "--images", "images", "--out", "x.npz"]) == 2
    (line,) = folder.capsys.readouterr().err.splitlines()[-1:]
    assert "weights.safetensors has another SHA-256 than record.json says; it was changed or damaged" in line
    assert "same command" in line


@pytest.mark.slow
def test_a_foreign_or_damaged_checkpoint_is_set_aside_and_the_training_starts_again(folder_of):
    """A checkpoint of another unit was resumed; one of the wrong shape was "KeyError: 'model'" for ever."""
    folder = folder_of(RECORDS)
    # The seed's training, which is made again, and the best trial's, of which only the record is missed.
    units = [path.parent for path in folder.files if path.name == "weights.safetensors"]
    assert len(units) == 2
    for checkpoint in (unit / "checkpoint.pt" for unit in units):
        with sealed_file(checkpoint, "f" * 16) as file:
            torch.save({"progress": {}}, file)
        foreign = checkpoint.read_bytes()
        for content in (foreign, b""):
            for record in checkpoint.parent.glob("record.json"):
                record.unlink()
            checkpoint.write_bytes(content)
            name = str(checkpoint.relative_to(folder.root))
            assert folder.check() == {name: "it is damaged, or of another training"}
            assert "checkpoint.pt" in folder.run()
            assert (folder.root / "metrics.csv").read_bytes() == folder.table
            assert folder.check() == {}


@pytest.mark.slow
def test_a_damaged_study_is_all_that_is_named(folder_of):
    """Weights of its trials, which are not kept, were named too, and its trials were not read."""
    folder = folder_of(RECORDS)
    (study,) = folder.root.glob("*/*/*/study-*/study.json")
    study.write_bytes(b"{}")
    assert list(folder.check()) == [str(study.relative_to(folder.root))]
    (trial,) = folder.root.glob("*/*/*/study-*/trial-0001.json")
    trial.write_bytes(b"{}")
    assert len(folder.check()) == 2
    (row,) = json.loads(_output(folder, ["status", "--json", "--results", "runs"]))
    assert (row["trained"], row["tested"], row["trials"]) == (1, 1, 1)
