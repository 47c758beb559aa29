"""Backbones: against independent implementations, their names, poolings, image sizes, weights and input formats."""

import json
import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
from bench.datasets.view import View, evaluation_view, resize
from bench.methods.backbones.bn_inception import BNInception
from bench.methods.backbones.pretrained import InputFormat, Photographs
from bench.methods.backbones.registry import NoWeights, build_backbone, find_weights, full_name, images_of, poolings_of
from PIL import Image
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def reference():
    import warnings

    with warnings.catch_warnings(action="ignore"):
        import pretrainedmodels

    torch.manual_seed(0)
    net = pretrainedmodels.__dict__["bninception"](pretrained=None).eval()
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if name.endswith("running_var"):
                value.uniform_(0.5, 1.5)
            elif name.endswith(("running_mean", "bias")):
                value.uniform_(-0.2, 0.2)
    return net


def test_bn_inception_is_the_public_architecture(reference):
    theirs = {k: v for k, v in reference.state_dict().items() if not k.startswith("last_linear")}
    ours = BNInception().eval()
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in theirs.items()}
    count = sum(p.numel() for n, p in reference.named_parameters() if not n.startswith("last_linear"))
    assert sum(p.numel() for p in ours.parameters()) == count == 10_270_240
    ours.load_state_dict(theirs)
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        a, b = ours(images), reference.features(images)
    assert a.shape == (2, 1024, 7, 7)
    assert float(b.abs().max()) > 0.1
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))


def test_a_checkpoint_of_the_caffe_port_loads_with_its_classifier_and_one_row_matrices(reference, tmp_path):
    state = dict(reference.state_dict())
    for name, value in state.items():
        if "_bn" in name and value.dim() == 1:
            state[name] = value[None]
    torch.save(state, tmp_path / "bn_inception.pth")
    net = build_backbone("bn_inception", 3, tmp_path / "bn_inception.pth").eval()
    images = torch.rand(2, 3, 96, 96)
    bgr = 255 * images.flip(1) - torch.tensor([104.0, 117.0, 128.0]).view(3, 1, 1)
    with torch.no_grad():
        maps = reference.features(bgr)
        expected = maps.mean((2, 3)) + maps.amax((2, 3))
        torch.testing.assert_close(net(images), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_the_input_format_comes_with_the_weights_and_stays_with_the_state(tmp_path):
    torch.manual_seed(0)
    first = build_backbone("squeezenet1_0", 3).eval()
    state = {k: v.contiguous() for k, v in first.body.state_dict().items()}
    path = tmp_path / "squeezenet.safetensors"
    save_file(state, path, {"input": "BGR 0..255 minus (104,117,123)"})
    second = build_backbone("squeezenet1_0", 3, path).eval()
    images = torch.rand(2, 3, 64, 64)
    plain = Photographs(second.body, InputFormat(mean=(0, 0, 0), std=(1, 1, 1))).eval()
    with torch.no_grad():
        expected = plain(255 * images.flip(1) - torch.tensor([104.0, 117.0, 123.0]).view(3, 1, 1))
        torch.testing.assert_close(second(images), expected)
        third = build_backbone("squeezenet1_0", 3).eval()
        third.load_state_dict(second.state_dict())
        torch.testing.assert_close(third(images), expected)


@pytest.mark.parametrize("text", ["RGB", "BGR 0..255", "HSV 0..1 minus (1,2,3)"])
def test_an_input_format_that_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError, match="does not read like"):
        InputFormat.parse(text)


def test_formats_may_divide():
    assert InputFormat.parse("RGB 0..1 minus (0.5,0.5,0.5) divided by (0.5, 0.5, 0.25)").std == (0.5, 0.5, 0.25)


@pytest.mark.parametrize(("freeze", "affine"), [("no", True), ("statistics", True), ("all", False)])
def test_frozen_batch_norms_keep_their_statistics_and_parameters(freeze, affine):
    net = build_backbone("resnet18", 3, freeze_norm=freeze)
    net.train()
    before = {k: v.clone() for k, v in net.state_dict().items() if "running" in k}
    net(torch.rand(4, 3, 64, 64)).sum().backward()
    moved = [k for k, v in before.items() if not torch.equal(v, net.state_dict()[k])]
    assert bool(moved) == (freeze == "no")
    norms = [m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert all(m.weight.requires_grad == affine for m in norms)
    assert net.body.model.conv1.weight.grad is not None


def test_what_does_not_fit_is_said(tmp_path):
    torch.save({"conv1.weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"does not contain weights of 'bn_inception': 414 of \d+ parameters missing"):
        build_backbone("bn_inception", 3, tmp_path / "other.pth")
    with pytest.raises(ValueError, match="colour images"):
        build_backbone("bn_inception", 1)


def test_weights_are_those_asked_for_or_cached_never_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    assert find_weights("convnet", None) is None
    assert find_weights("googlenet", "none") is None
    with pytest.raises(ValueError, match="downloads nothing: give --weights FILE"):
        find_weights("googlenet", None)
    (tmp_path / "checkpoints").mkdir()
    for name, file in (("googlenet", "googlenet-1378be20.pth"), ("resnet50.tv_in1k", "resnet50-0676ba61.pth")):
        (tmp_path / "checkpoints" / file).write_bytes(b"")
        assert find_weights(name, None) == tmp_path / "checkpoints" / file
    assert str(find_weights("resnet50", "mine.pth")) == "mine.pth"


def test_calibrated_features_have_unit_size_and_the_state_remembers_it():
    torch.manual_seed(0)
    net = build_backbone("squeezenet1_0", 3).eval()
    with torch.no_grad():
        net.body.features[0].weight.mul_(300)
    images = torch.rand(8, 3, 64, 64)
    with torch.no_grad():
        before = net(images)
        net.calibrate(images)
        after = net(images)
    assert float(after.square().mean().sqrt()) == pytest.approx(1.0, rel=1e-5)
    torch.testing.assert_close(after * net.feature_scale, before, rtol=1e-5, atol=1e-5 * float(before.max()))
    other = build_backbone("squeezenet1_0", 3).eval()
    other.load_state_dict(net.state_dict())
    torch.testing.assert_close(other(images), after)


@pytest.mark.parametrize("name", ["convnet", "bn_inception", "resnet18", "squeezenet1_0"])
def test_features_are_pooled_as_asked(name):
    nets = {}
    for pooling in ("avg", "avg_max"):
        torch.manual_seed(0)
        nets[pooling] = build_backbone(name, 3, pooling=pooling).eval()
    images = torch.rand(2, 3, 64, 64)
    kept = []
    net = nets["avg"]
    maps = net.features if name == "convnet" else net.body
    maps.register_forward_hook(lambda module, inputs, output: kept.append(output))
    with torch.no_grad():
        average, both = net(images), nets["avg_max"](images)
    assert average.shape == (2, net.out_features)
    expected = kept[0].numpy()
    torch.testing.assert_close(average, torch.from_numpy(expected.mean((2, 3))))
    torch.testing.assert_close(both, torch.from_numpy(expected.mean((2, 3)) + expected.max((2, 3))))
    assert float((both - average).abs().max()) > 1e-3


TINY = {"architecture": "test_vit", "num_classes": 10, "pretrained_cfg": {"input_size": [3, 96, 96], "std": [1, 1, 1]}}


@pytest.mark.parametrize(
    ("asked", "full"),
    [
        ("resnet50", "resnet50.a1_in1k"),
        ("resnet50.tv_in1k", "resnet50.tv_in1k"),
        ("vit_small_patch14_dinov2", "vit_small_patch14_dinov2.lvd142m"),
        ("vit_base_patch16_224_dino", "vit_base_patch16_224.dino"),
        ("tf_efficientnet_lite0", "tf_efficientnet_lite0"),
        ("tf_efficientnet_lite0.in1k", "tf_efficientnet_lite0"),
    ],
)
def test_a_name_is_completed_by_the_default_tag(asked, full):
    assert full_name(asked) == full


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("vit_tiny_patch16_224.augreg_in21", "has no weights .* did you mean 'vit_tiny_patch16_224.augreg_in21k'"),
        ("resnet5O", "did you mean 'resnet50'"),
        ("ViT_tiny_patch16_224", "did you mean 'vit_tiny_patch16_224'"),
        ("", "unknown backbone ''; `bench list backbones PART`"),
        ("path/to/file.pth", "a file of weights belongs to --weights$"),
        ("timm/resnet18.a1_in1k", "a repository is hf-hub:timm/resnet18.a1_in1k"),
        ("hf-hub:resnet18", "does not read like hf-hub:ORG/NAME"),
    ],
)
def test_a_name_of_nothing_says_what_is_near(asked, said):
    with pytest.raises(ValueError, match=said):
        full_name(asked)


def _cached(root, name, config):
    """A repository in a cache of the Hugging Face hub."""
    folder = root / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text(json.dumps(config))
    return snapshot


def test_a_repository_is_read_from_the_cache_of_the_hub(tmp_path, monkeypatch):
    # The library reads the environment when it is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(NoWeights, match="`hf download org/tiny` brings it, or --weights download"):
        full_name("hf-hub:org/tiny")
    snapshot = _cached(tmp_path, "org/tiny", TINY)
    assert full_name("HF-hub:org/tiny") == "hf-hub:org/tiny"
    assert images_of("hf-hub:org/tiny").image_size == 96
    torch.manual_seed(0)
    first = build_backbone("hf-hub:org/tiny", 3, image_size=96).eval()
    torch.save(first.body.model.state_dict(), snapshot / "pytorch_model.bin")
    again = build_backbone("hf-hub:org/tiny", 3, snapshot / "pytorch_model.bin", image_size=96).eval()
    images = torch.rand(1, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(again(images), first(images))
    for name, config in (("bert", {"model_type": "bert"}), ("list", []), ("new", {**TINY, "architecture": "newnet"})):
        _cached(tmp_path, f"org/{name}", config)
        with pytest.raises(ValueError, match=r"no config\.json of a network of timm|describes no network that timm"):
            full_name(f"hf-hub:org/{name}")


def test_an_attention_pool_keeps_the_positions_of_its_weights():
    with torch.device("meta"):
        head = build_backbone("resnet50_clip.openai", 3, pooling="own", image_size=64).body.model.head
    assert head.pos_embed.shape == (1 + 7 * 7, 2048)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "below"), [("test_vit.r160_in1k", 208), ("bn_inception", 196)])
def test_a_size_that_does_not_fit_names_those_below_and_above(name, below):
    said = rf"cannot read images of 220 x 220 .*; it reads {below} x {below} and 224 x 224$"
    with pytest.raises(ValueError, match=said):
        poolings_of(name, 3, (220, 220))
    for side in (below, 224):
        assert poolings_of(name, 3, (side, side))


@pytest.mark.parametrize(
    ("name", "channels", "known"),
    [
        ("test_resnet.r160_in1k", 3, ("avg_max", "avg", "own")),
        ("test_resnet.r160_in1k", 1, ("avg_max", "avg", "own")),
        ("test_vit.r160_in1k", 1, ("own",)),
        ("vit_tiny_patch16_224.augreg_in21k", 3, ("own",)),
        ("vit_xsmall_patch16_clip_224.tinyclip_yfcc15m", 3, ("own", "projection")),
        ("vit_base_patch16_clip_224.openai_ft_in1k", 3, ("own",)),
    ],
)
def test_poolings_are_those_that_the_network_has(name, channels, known):
    assert poolings_of(name, channels, (64, 64)) == known


def test_weights_of_another_image_size_are_loaded_as_timm_loads_them(tmp_path):
    torch.manual_seed(0)
    trained = timm.create_model("test_vit", num_classes=0, img_size=160)
    torch.nn.init.normal_(trained.pos_embed)
    torch.save(trained.state_dict(), tmp_path / "vit.pth")
    theirs = timm.create_model("test_vit", num_classes=0, img_size=96, pretrained=True, pretrained_cfg_overlay={
        "file": str(tmp_path / "vit.pth"), "num_classes": 0}).eval()  # fmt: skip
    ours = build_backbone("test_vit", 3, tmp_path / "vit.pth", image_size=96).eval()
    mean, std = (torch.tensor(theirs.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    images = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs((images - mean) / std), rtol=1e-4, atol=1e-5)
        assert float(ours(images).std()) > 0.1


@pytest.mark.parametrize("name", ["/dev/null", "junk.pth", "junk.safetensors"])
def test_a_file_without_weights_is_refused(name, tmp_path):
    path = tmp_path / name  # an absolute name stays as it is
    if path.parent == tmp_path:
        path.write_bytes(b"junk")
    with pytest.raises(NoWeights, match=r"does not contain weights of 'test_resnet\.r160_in1k': "):
        build_backbone("test_resnet", 3, path)


def test_the_list_has_families_and_tells_whose_weights_are_here_without_importing_timm(tmp_path):
    checkpoint = tmp_path / "torch" / "hub" / "checkpoints" / "resnet50-0676ba61.pth"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"")
    hub = tmp_path / "huggingface" / "hub"
    _cached(hub, "timm/test_vit.r160_in1k", TINY)
    (hub / "models--timm--test_vit.r160_in1k" / "snapshots" / "abc" / "model.safetensors").write_bytes(b"")
    code = (
        "import sys; from bench.cli import main; code = main(['list', 'backbones', '--json']); "
        "assert not {'torch', 'numpy', 'timm'} & set(sys.modules); sys.exit(code)"
    )
    own = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    listed = subprocess.check_output([sys.executable, "-P", "-c", code], env=own)
    rows = {row["name"]: row for row in json.loads(listed)}
    assert rows["convnet"]["family"] == "bench"
    assert rows["vit_small_patch14_dinov2.lvd142m"]["family"] == "vision_transformer"
    here = {name for name, row in rows.items() if row["weights"] and row["family"] != "bench"}
    assert here == {"resnet50.tv_in1k", "test_vit.r160_in1k"}


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_images_are_resized_as_pillow_does(interpolation):
    image = torch.randint(0, 256, (3, 40, 60), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    method = getattr(Image.Resampling, interpolation.upper())
    expected = torch.tensor(np.asarray(picture.resize((30, 20), method)).tolist()).permute(2, 0, 1)
    view = View(image_size=20, resize=20, interpolation=interpolation)
    assert int((resize(image, [20], view).int() - expected).abs().max()) <= 1
    assert int((evaluation_view(image, view).int() - expected[:, :, 5:25]).abs().max()) <= 1
    other = View(image_size=20, resize=20, interpolation="bicubic" if interpolation == "bilinear" else "bilinear")
    assert int((resize(image, [20], other).int() - expected).abs().max()) > 3
