"""bench.load: a trained network embeds images of every kind as its test did."""

import pickle
import subprocess
import sys

import bench
import numpy as np
import pytest
import torch
from bench.cli import main
from bench.commands.new import write_template
from bench.errors import UserError
from bench.methods.backbones.registry import build_backbone
from bench.protocols.rows import UNDRAWN
from bench.scoring.files import read_embeddings
from bench.site import Site
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.api.conftest import METHODS, run_dots

pytestmark = pytest.mark.slow  # they share a run


@pytest.fixture(scope="module")
def load(runs, dots):
    return lambda run, results=runs: bench.load(results, run, plugins=[dots], device="cpu")


@pytest.fixture(scope="module")
def images(dots):
    return Site(results="", plugins=(str(dots),)).dataset("dots").test()


@pytest.fixture(scope="module")
def net(load):
    return load("dul_cls/dots")


def _kept(runs, network):
    """Embeddings that the test of a network has kept."""
    unit = network.place.name.removeprefix("train-")
    (folder,) = [
        path.parent
        for path in runs.glob(f"*/*/{network.module.method.name}/test-*/record.json")
        if path.parent == network.place or unit in path.read_text()
    ]
    return load_file(folder / "embeddings.safetensors")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [256, 7, 1])
def test_the_test_images_get_the_embeddings_that_the_test_kept(runs, load, images, method, batch):
    network = load(f"{method}/dots")
    kept = _kept(runs, network)
    rows = torch.arange(len(images)) if batch == 256 else torch.arange(40)
    found = network.embed(images.evaluation(rows), batch=batch)
    scale = max(1.0, float(kept["clean.loc"].abs().max()))
    pairs = {"clean.loc": found.mean} | {f"clean.confidence.{name}": of for name, of in found.confidence.items()}
    if found.variance is not None:
        pairs["clean.variance"] = found.variance
    for name, values in pairs.items():
        assert isinstance(values, np.ndarray)
        if batch == 256:
            assert np.array_equal(values, kept[name].numpy()), name
        elif name == "clean.loc":
            assert np.abs(values - kept[name].numpy()[:40]).max() <= 1e-6 * scale
        else:
            assert values == pytest.approx(kept[name].numpy()[:40], rel=1e-5, abs=1e-4), name
    held = {name.removeprefix("clean.confidence.") for name in kept if name.startswith("clean.confidence.")}
    assert held - set(UNDRAWN) == set(found.confidence)  # a test has training images and other views besides


def test_heads_on_frozen_features_are_loaded_with_their_backbone(tmp_path, dots, load, images):
    torch.manual_seed(0)
    save_file(build_backbone("convnet", 1).state_dict(), tmp_path / "start.safetensors")
    root = run_dots(tmp_path, dots, "cosface,pfe", "--frozen", "--weights", "start.safetensors")
    (tmp_path / "start.safetensors").unlink()
    for method in ("cosface", "pfe", "untrained"):
        network = load(f"{method}/dots", root)
        assert np.array_equal(network.embed(images.pixels).mean, _kept(root, network)["clean.loc"].numpy())


def test_every_kind_of_image_gets_the_same_embedding(net, images, tmp_path):
    pixels = images.pixels[:6]
    arrays = [image[0].numpy() for image in pixels]
    pils = [Image.fromarray(array) for array in arrays]
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for pil, path in zip(pils, paths):
        pil.save(path)
    prepared = images.evaluation(torch.arange(6))
    wanted = net.embed(prepared).mean
    labels = torch.arange(6)
    kinds = {
        "paths": paths,
        "texts": list(map(str, paths)),
        "PIL": pils,
        "arrays [H, W]": arrays,
        "array [N, H, W, C]": np.stack(arrays)[..., None],
        "uint8 tensor": pixels,
        "float64": prepared.double(),
        "mixed": [paths[0], pils[1], arrays[2], pixels[3], prepared[4], pixels[5:]],
        "transformed": torch.stack([net.transform(pil) for pil in pils]),
        "loader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(prepared, labels), batch_size=4),
        "samples": list(zip(pils, range(6))),
        "batches of PIL": [(pils[:2], [0, 1]), (pils[2:], [2, 3, 4, 5])],
        "generator": (pil for pil in pils),
    }
    for kind, of_kind in kinds.items():
        assert np.array_equal(net.embed(of_kind).mean, wanted), kind
    for one in (paths[0], str(paths[0]), pils[0], arrays[0], pixels[0], prepared[0]):
        assert np.array_equal(net.embed(one).mean, wanted[:1])


@pytest.mark.parametrize(
    ("method", "mode"),
    [("deep_ensemble", "L"), *(("dul_cls", mode) for mode in ("L", "RGB", "RGBA", "P", "1", "CMYK", "I;16"))],
)
def test_images_of_every_mode_are_embedded_as_by_the_command(runs, dots, load, tmp_path, method, mode):
    net = load(f"{method}/dots")
    rng = np.random.default_rng(0)
    (tmp_path / "flat").mkdir()
    for i in range(2):
        colour = Image.fromarray(rng.integers(0, 255, (20 + i, 52, 3), dtype=np.uint8))
        image = (
            Image.fromarray(rng.integers(0, 65535, (20, 52), dtype=np.uint16))
            if mode == "I;16"
            else colour.convert(mode)
        )
        image.save(tmp_path / "flat" / f"{i}.tif")
    out = tmp_path / "x.npz"
    named = ("--run", net.place.name, "--images", tmp_path / "flat", "--out", out, "--results", runs, "--plugin", dots)
    assert main(["embed", *map(str, named), "--device", "cpu"]) == 0
    wanted = read_embeddings(out)[0]
    paths = sorted((tmp_path / "flat").iterdir())
    for found in (net.embed(paths), net.embed(Image.open(path) for path in paths)):
        assert np.array_equal(found.mean, wanted["embeddings"])
        assert method != "deep_ensemble" or np.array_equal(found.confidence[found.default], wanted["confidence"])


def test_a_network_in_training_mode_embeds_in_evaluation_mode(load, images):
    network = load("cosface/dots")
    assert isinstance(network.module, torch.nn.Module)
    assert not network.module.training
    before = network.embed(images.pixels[:5]).mean
    network.module.train()
    assert np.array_equal(network.embed(images.pixels[:5]).mean, before)


def test_the_transform_can_go_to_the_processes_of_a_loader(net, images):
    again = pickle.loads(pickle.dumps(net.transform))
    assert torch.equal(again(images.pixels[0]), images.evaluation(torch.tensor([0]))[0])


def test_a_network_is_named_in_many_ways(runs, load, net):
    unit = net.place.name.removeprefix("train-")
    (test,) = [path.parent for path in runs.glob("*/*/dul_cls/test-*/record.json") if unit in path.read_text()]
    for name in (unit, unit[:7], f"train-{unit[:7]}", test.name, test.name[5:13], net.place):
        assert load(name).place == net.place
    assert load(None, net.place).place == net.place
    assert "dul_cls on dots, seed 0" in repr(net)
    ensemble = load("deep_ensemble/dots")
    assert load(ensemble.place.name).place == ensemble.place
    assert len(ensemble.module.members) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dul_cls/cub200", "no finished test of dul_cls/cub200; it has cosface/dots, "),
        ("xyz", "'xyz' is not a unit id"),
        ("dul_cls", "nor METHOD/DATASET .*, dul_cls/dots, "),
        ("ffffffffffffff", "no unit ffffffffffffff in "),
        (None, "name a network"),
    ],
)
def test_a_network_that_does_not_exist_is_one_line(load, name, message):
    with pytest.raises(UserError, match=message):
        load(name)


def test_a_pair_alone_is_looked_for_in_the_default_folder(runs, dots, tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "runs").symlink_to(runs)
    monkeypatch.chdir(tmp_path)
    assert bench.load("dul_cls/dots", plugins=[dots], device="cpu").module.method.name == "dul_cls"
    with pytest.raises(UserError, match="no finished test of dul_cls/ndigit"):
        bench.load("dul_cls/ndigit", plugins=[dots])


def test_several_settings_are_named_by_their_ids(tmp_path, load, dots):
    for epochs in (1, 2):
        root = run_dots(tmp_path, dots, "cosface", epochs=epochs)
    with pytest.raises(UserError, match=r"has 2 settings .*optim.epochs=1.*optim.epochs=2") as error:
        load("cosface/dots", root)
    unit = str(error.value).split("one: ")[1].split(" ")[0]
    assert load(unit, root).record.spec.optim.epochs in (1, 2)


def test_a_method_of_a_plugin_needs_its_file(tmp_path, dots, load):
    write_template("method", "mine", tmp_path / "mine.py")
    root = run_dots(tmp_path, dots, "mine", "--plugin", "mine.py")
    with pytest.raises(UserError, match=r"method 'mine' is not built in: give its file, plugins="):
        load("mine/dots", root)
    with pytest.raises(UserError, match=r"data set 'dots' is not built in: give its file, plugins="):
        bench.load(root, "mine/dots", plugins=[tmp_path / "mine.py"])
    assert bench.load(root, "mine/dots", plugins=[tmp_path / "mine.py", dots]).embed(torch.zeros(1, 12, 12))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "no images"),
        ("nowhere.png", "nowhere.png"),
        (".", "is a folder; name its files"),
        (torch.zeros(2, 3, 12, 12), r"takes \[N, 1, H, W\]"),
        (torch.zeros(2, 12, 12, dtype=torch.int64), "int64 is no type of images"),
        (np.zeros((2, 12, 12, 5), np.uint8), r"C 1 or 3"),
        ([torch.zeros(1, 12, 12), torch.zeros(1, 14, 12)], "cannot be embedded together"),
        (torch.zeros(3, 12, 12, dtype=torch.uint8), "one colour image or three grey ones"),
        (torch.full((1, 12, 12), 255.0), "floats up to 255 are no normalised images"),
        ({"image": 1}, "dict is no image"),
        ([3], "int is no image"),
    ],
)
def test_what_is_no_image_is_one_line(net, images, message):
    with pytest.raises(UserError, match=message) as error:
        net.embed(images)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="at least one"):
        net.embed(torch.zeros(1, 12, 12), batch=0)


def test_the_package_shows_its_functions_and_stays_cheap_to_import():
    code = (
        "import sys, bench; names = dir(bench); heavy = {'torch', 'numpy', 'pandas', 'pydantic', 'typer'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "assert {'load', 'score', '__version__'} <= set(names), names;"
        "import pydoc; text = pydoc.render_doc(bench); assert 'load(' in text and 'score(' in text, text[:3000]"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = bench.lod
