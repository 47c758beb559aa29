"""A data set of features that were computed before: equal to the images that they are of, or refused in one line."""

import json
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
from bench.cli import main
from bench.datasets.features import Features
from bench.datasets.view import View
from bench.engine.testing import drawn_queries
from bench.methods.backbones.registry import build_backbone
from bench.registry import Registry
from bench.scoring import feature_files, feature_parts, files
from bench.scoring.files import held, write_columns, write_embeddings
from bench.site import Site
from PIL import Image
from safetensors.torch import load_file

from tests.photographs import write_photographs

from ..in_process import run_here

PLUGIN = '''
"""Photographs under a name of their own."""

from bench.datasets import register_dataset
from bench.datasets.folder import Folder


@register_dataset
class Shots(Folder):
    """Random photographs."""

    name = "shots"
    summary = "random photographs"
'''


def _arrays(classes=8, each=4, first=0, views=2, width=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    clean = rng.normal(size=(classes, width))[labels] + 0.5 * rng.normal(size=(len(labels), width))
    made = clean[:, None] + 0.1 * rng.normal(size=(len(labels), views, width))
    return {"features": made.astype(np.float32), "labels": labels + first}


def _files(folder, train=None, test=None):
    """Paths of a training and a test file, written from arrays."""
    np.savez(folder / "train.npz", **(_arrays() if train is None else train))
    np.savez(folder / "test.npz", **(_arrays(first=8, seed=1) if test is None else test))
    return "--train", folder / "train.npz", "--test", folder / "test.npz"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """A folder with photographs, weights, a plug-in that reads them, and their features as files."""
    folder = tmp_path_factory.mktemp("shots")
    write_photographs(folder / "photos", classes=16, each=4)
    (folder / "shots.py").write_text(PLUGIN)
    torch.manual_seed(0)
    torch.save(build_backbone("squeezenet1_0", 3).body.state_dict(), folder / "start.pth")
    network = ("--backbone", "squeezenet1_0", "--weights", folder / "start.pth", "--image-size", 32)
    source = ("--dataset", "shots", "--plugin", folder / "shots.py", "--data-root", folder / "photos")
    more = ("--views", 2, "--corruptions", "crop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        for split in ("train", "test"):
            out = folder / f"{split}.safetensors"
            assert main([*map(str, ("embed", *network, *source, "--split", split, *more, "--out", out))]) == 0
    return folder


@pytest.mark.slow
def test_heads_on_features_are_those_on_the_images_with_a_frozen_network(embedded, home, monkeypatch):
    """The same name has the same draws: every value of the table is that of the images, up to rounding."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(embedded / "cache"))
    asked = ("run", "--method", "cosface,pfe,untrained", "--dataset", "shots", "--hparams", "default", "--seeds", "2")
    pins = ("--set", "optim.epochs=2", "--set", "data.feature_views=2", "--dim", "16")
    images = ("--frozen", "--backbone", "squeezenet1_0", "--weights", embedded / "start.pth", "--plugin",
              embedded / "shots.py", "--data-root", embedded / "photos", "--set", "data.image_size=32", "--set",
              "data.resize=36")  # fmt: skip
    run_here(home, *asked, *pins, *images, "--results", "images", figures=False)
    files = ("--train", embedded / "train.safetensors", "--test", embedded / "test.safetensors")
    assert main([*map(str, ("data", "features", "shots", *files))]) == 0
    run_here(home, *asked, *pins, "--results", "features", figures=False)
    keys = ["method", "seed", "split", "scorer", "confidence", "variant", "metric", "fraction"]
    tables = [
        pd.read_csv(home / name / "metrics.csv").set_index(keys).value.sort_index() for name in ("images", "features")
    ]
    views = tables[0].reset_index()[["confidence", "variant"]].fillna("").sum(axis=1).str.contains("mirror|crops|view_")
    tables[0] = tables[0][~views.to_numpy()]  # features have no other views
    assert len(tables[0]) > 1000
    assert tables[0].index.equals(tables[1].index)
    differ = (tables[0] - tables[1]).abs() > 1e-3 * tables[0].abs().clip(lower=1)
    assert differ.mean() < 0.01  # ranks of nearly equal scores may change
    assert not differ[tables[0].index.get_level_values("metric").isin(["map_at_r", "recall_at_1"])].any()


def test_an_interrupted_embedding_of_a_table_that_is_sorted_anew_begins_again(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    for grey in range(12):
        Image.new("L", (8, 8), 20 * grey).save(tmp_path / f"{grey}.png")

    class Mean:
        """Encoder whose features are the grey of an image; it is interrupted before a column."""

        digest, about, view = "mean", "mean", View(image_size=8, resize=8)

        def __init__(self, columns):
            self.columns = columns

        def run(self, load, count):
            self.columns -= 1
            if self.columns < 0:
                raise KeyboardInterrupt
            grey = load(torch.arange(count)).mean((1, 2, 3))
            return {"embeddings": grey[:, None].numpy()}

    for order, columns in ((range(12), 1), (range(11, -1, -1), 2)):
        rows = "".join(f"{grey}.png,c{grey // 3}\n" for grey in order)
        (tmp_path / "metadata.csv").write_text(f"path,label\n{rows}")
        with nullcontext() if columns == 2 else pytest.raises(KeyboardInterrupt):
            feature_parts.embed_features(
                tmp_path / "out.npz", Mean(columns), Site(results="unused"), lambda *said: None, tmp_path, 1, ()
            )
    made = np.load(tmp_path / "out.npz")
    by_grey = sorted(range(12), key=lambda row: int(made["ids"][row].split(".")[0]))
    assert (np.diff(made["embeddings"][by_grey, 0]) > 0).all()


@pytest.mark.slow
def test_an_interrupted_embedding_goes_on_and_ends_with_the_same_file(embedded, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(embedded / "cache"))
    monkeypatch.setattr("bench.scoring.feature_parts.PART", 8)
    parts = []

    def embed(out, stop=None):
        parts.clear()
        asked = ("embed", "--backbone", "squeezenet1_0", "--weights", embedded / "start.pth", "--image-size", 32,
                 "--images", embedded / "photos", "--views", 1, "--out", out)  # fmt: skip
        column = np.save

        def save(file, array):
            parts.append(len(array))
            if stop is not None and len(parts) > stop:
                raise KeyboardInterrupt
            column(file, array)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(feature_parts.np, "save", save)
            return main([*map(str, asked)])

    assert embed(tmp_path / "whole.npz") == 0
    every = len(parts)
    assert embed(tmp_path / "again.npz", stop=5) != 0
    assert not (tmp_path / "again.npz").exists()
    assert embed(tmp_path / "again.npz") == 0
    assert len(parts) == every - 5
    whole, again = (np.load(tmp_path / f"{name}.npz") for name in ("whole", "again"))
    assert all(np.array_equal(whole[key], again[key]) for key in whole.files)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_an_embedded_file_is_imported_with_its_numbers(home):
    plain, test = (_arrays(first=first, views=1, seed=seed) for first, seed in ((0, 0), (8, 1)))
    files = []
    for name, arrays in (("train", plain), ("test", test)):
        path = home / f"{name}.parquet"
        write_embeddings(path, {"embeddings": arrays["features"][:, 0], "labels": arrays["labels"]})
        files += [f"--{name}", str(path)]
    assert main(["data", "features", "mine", *files]) == 0
    data = Registry("datasets").dataset("mine")()
    assert isinstance(data, Features)
    split = data.train_val()
    assert (len(split.train), len(split.val), len(data.test())) == (24, 8, 32)
    found = split.train.evaluation(torch.arange(24))
    assert np.array_equal(found, plain["features"][:, 0][split.train.rows.numpy()])
    assert main(["data", "verify", "mine"]) == 0


def test_features_in_a_folder_of_their_own_are_listed_and_verified(home, capsys):
    root = ("--data-root", str(home / "there"))
    assert main(["data", "features", "mine", *map(str, _files(home)), *root]) == 0
    assert main(["data", "verify", "mine", *root]) == 0
    assert main(["data", "list", *root]) == 0
    found = capsys.readouterr().out
    assert "mine: 64 images" in found
    assert f"features imported to {home / 'there' / 'mine'}\n" in found
    assert "needs ;" not in found


@pytest.mark.parametrize("views", [3, 1])
def test_half_precision_stays_and_views_are_drawn_from_the_file(home, views):
    arrays = _arrays(views=views)
    arrays["features"] = arrays["features"].astype(np.float16)
    arrays["embeddings"] = arrays["features"][:, 0] + np.float16(1)
    assert main(["data", "features", "half", *map(str, _files(home, arrays))]) == 0
    train = Registry("datasets").dataset("half")().train_val(0, 1).train
    assert train.arrays["features"].dtype == torch.float16
    index = torch.arange(32)
    drawn = train.training(index, None, torch.Generator().manual_seed(0))
    choices = torch.from_numpy(arrays["features"]).float()
    hits = (drawn[:, None] == choices).all(2)
    assert hits.any(1).all()
    assert {*hits.float().argmax(1).tolist()} == {*range(views)}
    assert torch.equal(train.evaluation(index), torch.from_numpy(arrays["embeddings"]).float())


def test_classes_of_one_group_validate_together(home):
    train = _arrays()
    train["groups"] = np.array(["a", "b", "c", "a", "d", "e", "f", "g"])[train["labels"]]
    assert main(["data", "features", "grouped", *map(str, _files(home, train))]) == 0
    split = Registry("datasets").dataset("grouped")().train_val()
    # Two of eight classes are held out, 0 and 1; class 3 shares the group of class 0.
    assert split.val.class_names == ("0", "1", "3")
    assert split.train.class_names == ("2", "4", "5", "6", "7")


def _changed(**changes):
    arrays = {**_arrays(), **changes}
    return {key: value for key, value in arrays.items() if value is not None}


def _with_nan():
    features = _arrays()["features"]
    features[5, 1, 2] = np.nan
    return features


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (_changed(features=_with_nan()), "features of row 5 (from 0) are not finite"),
        (_changed(features=np.ones((32, 6), np.float32)), "features are the same for all images"),
        (_changed(labels=np.arange(31)), "labels has shape [31]; 32 images need [32]"),
        (_changed(labels=np.ones(32)), "labels are float64 numbers, they must be integers"),
        (_changed(labels=None), "labels missing (needs features [N, F] or [N, V, F] and labels [N])"),
        (_changed(features=np.ones(32)), "features have shape [32]"),
        (
            _changed(features=np.ones((32, 6), int)),
            "features are int64; save them as float16 or float32, features.astype",
        ),
        (_changed(features=_arrays(width=5)["features"]), "5 and 6 features; one network gives one width"),
        (_changed(labels=_arrays()["labels"] + 5), "5 classes in both, such as 10, 11, 12"),
        (_changed(ids=np.array(["a"] * 32)), "ids repeat, such as 'a'"),
        (_changed(corrupted_crop=_arrays()["features"][:, 0]), "corrupted_crop needs severity_crop [N]"),
        (_changed(corrupted_fog=np.ones((32, 6)), severity_fog=np.ones(32)), "corrupted_fog: unknown corruption"),
        (_changed(feature=np.ones(3), features=None), "unknown key 'feature'; did you mean 'features'?"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_and_leaves_nothing(home, refusal, train, said):
    assert said in refusal("data", "features", "bad", *_files(home, train))
    assert [*(home / "data").iterdir()] == []


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rows_of_test_that_are_also_in_training_are_said(home, capsys, dtype):
    test = _arrays(first=8, seed=1)
    assert main(["data", "features", "apart", *map(str, _files(home, test=test))]) == 0
    assert "also in train" not in capsys.readouterr().out
    test["features"][[3, 5]] = _arrays()["features"][[2, 9]]
    test["features"] = test["features"].astype(dtype)
    assert main(["data", "features", "copied", *map(str, _files(home, test=test))]) == 0
    assert "2 rows of test are also in train, such as row 3 (from 0) as row 2: the same" in capsys.readouterr().out


@pytest.mark.slow
def test_damage_and_what_only_images_have_are_named(home, refusal, capsys):
    assert main(["data", "features", "mine", *map(str, _files(home))]) == 0
    said = capsys.readouterr().out
    assert "no corrupted features in train, test" in said
    run = ("run", "--method", "cosface", "--hparams", "default", "--dataset", "mine")
    assert main([*run, "--corruptions", "all", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "tested on clean images and under feature_dropout (severity 0 to 0.9), feature_noise (" in said
    ndigit = ("run", "--method", "cosface", "--dataset", "ndigit", "--corruptions", "feature_noise")
    assert "it is one of features, and data set 'ndigit' has images" in refusal(*ndigit)
    assert "data set 'mine' has features, which no network" in refusal(*run, "--backbone", "resnet18")
    assert "data set 'mine' has no corrupted_crop" in refusal(*run, "--corruptions", "crop")
    assert "has 2 views of every image" in refusal(*run, "--set", "data.feature_views=3")
    assert "is no network" in refusal("run", "--method", "cosface", "--dataset", "ndigit", "--backbone", "features")
    assert "'ndigit' is a data set of this package" in refusal("data", "features", "ndigit", *_files(home))
    assert "already exists" in refusal("data", "features", "mine", *_files(home))
    path = home / "data" / "mine" / "test.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "its SHA-256 is another; import the features again" in refusal("data", "verify", "mine")
    names, whole = path.with_suffix(".json"), path.with_suffix(".json").read_text()
    content[-1] ^= 1
    path.write_bytes(content)
    for damaged in ("[]", "3", '{"ids": 3}', "{"):
        names.write_text(damaged)
        assert "test.safetensors: damaged" in refusal(*run), damaged
    names.write_text(whole)
    path.write_bytes(content[:-1])
    assert "it has another size than the import wrote" in refusal(*run)
    index = home / "data" / "mine" / "features.json"
    index.write_text(json.dumps({"layout": 99}))
    assert "of another version of bench" in refusal("data", "verify", "mine")


@pytest.mark.slow
def test_drawn_queries_have_the_values_that_they_have_among_all(home):
    """Queries of a test may be drawn: others are left out, the gallery stays, and trainings are shared."""
    test = _arrays(classes=40, first=8, seed=1)
    crop = {"corrupted_crop": test["features"][:, 1], "severity_crop": np.linspace(0, 0.5, 160)}
    train = _arrays()
    of_train = {"corrupted_crop": train["features"][:, 1], "severity_crop": np.linspace(0, 0.5, 32)}
    assert main(["data", "features", "many", *map(str, _files(home, train | of_train, test | crop))]) == 0
    asked = ("run", "--method", "cosface", "--dataset", "many", "--hparams", "default", "--seeds", "1", "--set",
             "optim.epochs=1", "--dim", "8")  # fmt: skip
    run_here(home, *asked, figures=False)
    runs = run_here(home, *asked, "--set", "data.test_queries=100", figures=False)
    assert len([*runs.glob("*/*/*/train-*")]) == 2  # untrained is always there
    kept = [load_file(path) for path in runs.glob("*/*/cosface/test-*/queries.safetensors")]
    drawn, whole = sorted(kept, key=lambda arrays: len(arrays["test.scorer.cosine.recall_at_1"]))
    rows = drawn["test.queries"]
    assert len(rows) == 100
    assert torch.equal(rows, rows.unique())
    for split in ("test", "test_crop"):
        for name in ("map_at_r", "recall_at_1", "margin", "agreement"):
            name = f"{split}.scorer.cosine.{name}"
            assert torch.equal(drawn[name], whole[name][rows]), name
    table = pd.read_csv(runs / "metrics.csv")
    counted = table[(table.metric == "recall_at_1") & (table.split == "test")]
    assert dict(zip(counted.pinned.fillna("").str.contains("data.test_queries=100"), counted.n_queries)) == {
        True: 100,
        False: 160,
    }


def test_queries_are_drawn_by_their_identities_alone():
    ids = [f"image {number}" for number in range(300)]
    drawn = drawn_queries(ids, None, 120, "shots")
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    again = drawn_queries([ids[row] for row in order], None, 120, "shots")
    assert {ids[row] for row in drawn} == {ids[order[row]] for row in again}
    assert not torch.equal(drawn, drawn_queries(ids, None, 120, "birds"))
    some = torch.arange(0, 300, 2)
    assert set(drawn_queries(ids, some, 120, "shots").tolist()) <= set(some.tolist())
    assert drawn_queries(ids, some, 150, "shots") is some
    assert drawn_queries(ids, None, 300, "shots") is None


def test_a_file_is_imported_block_by_block(home, monkeypatch):
    """A file may be larger than the memory: no more than one block of an array is read at a time."""
    assert main(["data", "features", "whole", *map(str, _files(home))]) == 0
    monkeypatch.setattr(files, "BLOCK", 100)  # two rows of 2 x 6 float32
    blocks = []
    checked = feature_files._Split._checked

    def watched(self, key, plain):
        blocks.extend(len(block) for block in self.columns[key].blocks())
        return checked(self, key, plain)

    monkeypatch.setattr(feature_files._Split, "_checked", watched)
    for suffix in (".npz", ".safetensors"):
        for split in ("train", "test"):
            arrays = dict(np.load(home / f"{split}.npz"))
            write_columns(home / f"{split}{suffix}", {key: held(value) for key, value in arrays.items()})
        given = ("--train", home / f"train{suffix}", "--test", home / f"test{suffix}")
        assert main([*map(str, ("data", "features", suffix[1:], *given))]) == 0
        for split in ("train", "test"):
            name = f"{split}.safetensors"
            assert (home / "data" / suffix[1:] / name).read_bytes() == (home / "data" / "whole" / name).read_bytes()
    assert blocks == [2] * 64
