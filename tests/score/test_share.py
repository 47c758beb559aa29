"""bench share, and hf://ORG/NAME in place of a unit, with a folder in place of the Hugging Face Hub."""

import shutil
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
from bench.api.load import load
from bench.errors import UserError
from bench.report.exchange import EVAL_RESULTS
from bench.scoring.files import read_embeddings
from bench.store.folder import RECORD, WEIGHTS, Store
from bench.store.hub import fetch

from tests import records
from tests.photographs import write_photographs
from tests.untrained import untrained_unit

URL = "hf://me/birds"


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """The folder of all repositories; each upload is a commit, and each download a copy."""
    top = tmp_path / "hub"

    class Api:
        def __init__(self, **more):
            self.more = more

        def create_repo(self, name, exist_ok):
            assert exist_ok
            (top / name).mkdir(parents=True, exist_ok=True)

        def create_commit(self, name, operations, commit_message, revision):
            if name.startswith("others/"):
                raise RuntimeError("403 Forbidden\nand more lines")
            for each in operations:
                place = top / name / each.path_in_repo
                place.parent.mkdir(exist_ok=True)
                with each.as_file() as file:
                    place.write_bytes(file.read())
            return SimpleNamespace(commit_url=f"https://hub/{name}/commit/1")

        def snapshot_download(self, name, revision, allow_patterns):
            if not (top / name).is_dir():
                raise RuntimeError("404 Client Error. (Request ID: 1)\nRepository Not Found")
            target = tmp_path / "cache" / str(revision)
            target.mkdir(parents=True, exist_ok=True)
            for file in allow_patterns:
                if (top / name / file).exists():
                    shutil.copy(top / name / file, target)
            return str(target)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return top


@pytest.fixture
def shared(bench, remote, tmp_path):
    """A unit that was shared as :data:`URL`, and its folder."""
    _, folder = untrained_unit(tmp_path, "dul_cls")
    unit = folder.name.removeprefix("train-")
    assert bench("share", unit[:8], URL, "--results", "runs") == (0, "https://hub/me/birds/commit/1\n", "")
    return unit, folder


def test_a_round_trip_gives_equal_bytes_and_equal_embeddings(shared, bench, remote, tmp_path):
    unit, folder = shared
    assert {path.name for path in (remote / "me" / "birds").iterdir()} == {RECORD, WEIGHTS, "README.md"}
    found = fetch(URL)
    assert all((found / name).read_bytes() == (folder / name).read_bytes() for name in (RECORD, WEIGHTS))
    photos = write_photographs(tmp_path, 1, 3) / "c00"
    for run, out in ((unit, "a.npz"), (f"{URL}@main", "b.npz")):
        code, _, err = bench("embed", "--run", run, "--results", "runs", "--images", photos, "--out", out)
        assert (code, err) == (0, "")
    (ours, _), (theirs, _) = read_embeddings(tmp_path / "a.npz"), read_embeddings(tmp_path / "b.npz")
    assert all(np.array_equal(ours[name], theirs[name]) for name in ("embeddings", "variance"))
    loaded = load(URL).embed([photos / f"{number}.png" for number in range(3)])
    assert np.array_equal(loaded.mean, ours["embeddings"])


def test_the_model_card_says_what_was_trained_and_how_to_use_it(shared, remote):
    text = (remote / "me" / "birds" / "README.md").read_text()
    held = huggingface_hub.ModelCard(text).data
    assert (held.library_name, "dul_cls" in held.tags) == ("probembed", True)
    assert "# dul_cls on ndigit_smoke" in text
    assert f"bench embed --run {URL} " in text
    assert shared[0] in text


def test_the_results_of_a_tested_network_and_the_paper_of_its_method_are_in_the_card(bench, remote, tmp_path):
    _, folder = untrained_unit(tmp_path, "dul_cls")
    unit = folder.name.removeprefix("train-")
    columns = records.columns(dataset="sop", method="dul_cls")
    spec = records.spec_of(columns, train=(unit,))
    test = records.of_test(columns, [records.map_at_r(0.5)], spec)
    for record in (test, records.rescored(test, *records.of_test(columns, [records.map_at_r(0.25)]).rows)):
        Store(tmp_path / "runs").write(record)
    assert bench("share", unit, URL, "--results", "runs")[0] == 0
    held = huggingface_hub.ModelCard((remote / "me" / "birds" / "README.md").read_text()).data
    assert "arxiv:2003.11339" in held.tags
    assert [(each.metric_type, each.metric_value) for each in held.eval_results] == [("map_at_r", 0.25)]
    assert '"task_id": "map_at_r"' in (remote / "me" / "birds" / EVAL_RESULTS).read_text()


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (WEIGHTS, lambda data: data[:-1] + bytes([data[-1] ^ 1]), f"{WEIGHTS} has another SHA-256 than {RECORD} says"),
        (RECORD, lambda data: data.replace(b'"seed"', b'"sead"', 1)[:-9], f"{RECORD} is not a record of a training"),
        (WEIGHTS, None, f"{URL} has no {WEIGHTS}: it is no training"),
    ],
)
def test_what_was_changed_is_refused_in_one_line(shared, refused, remote, tmp_path, name, change, said):
    path = remote / "me" / "birds" / name
    path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))
    write_photographs(tmp_path, 1, 1)
    assert said in refused("embed", "--run", URL, "--images", "c00", "--out", "x.npz")


def test_damaged_weights_are_not_shared(refused, remote, tmp_path):
    _, folder = untrained_unit(tmp_path, "cosface")
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes() + b"x")
    assert "another SHA-256" in refused("share", folder.name.removeprefix("train-"), URL, "--results", "runs")
    assert not remote.exists()


def test_what_the_hub_refuses_is_one_line(shared, refused, remote):
    line = refused("share", shared[0], "hf://others/birds", "--results", "runs")
    assert line == "bench: hf://others/birds: 403 Forbidden\n"
    with pytest.raises(UserError, match=r"^hf://me/none: 404 Client Error"):
        fetch("hf://me/none")


@pytest.mark.parametrize("url", ["hf://me", "hf://me/a/b", "me/birds", "hf://me/../x", "hf://me/a b"])
def test_other_addresses_are_refused(refused, remote, tmp_path, url):
    _, folder = untrained_unit(tmp_path, "cosface")
    assert "write hf://ORG/NAME" in refused("share", folder.name.removeprefix("train-"), url, "--results", "runs")


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("bench.resources.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'probembed\[hub\]'"):
        fetch(URL)
