"""Backbones: BN-Inception against an independent implementation, weights, input formats, frozen batch norms."""

import pytest
import torch
from bench.methods.backbones.bn_inception import BNInception
from bench.methods.backbones.pretrained import InputFormat, Photographs
from bench.methods.backbones.registry import build_backbone, find_weights, full_name
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def reference():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match="does not contain weights"):
        build_backbone("resnet18", 3, tmp_path / "junk.safetensors")
    with pytest.raises(ValueError, match="did you mean 'resnet50'"):
        full_name("resnet5O")
    with pytest.raises(ValueError, match="colour images"):
        build_backbone("bn_inception", 1)


def test_weights_are_those_asked_for_or_cached_never_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert find_weights("convnet", None) is None
    assert find_weights("googlenet", "none") is None
    with pytest.raises(ValueError, match="downloads nothing: give --weights FILE"):
        find_weights("googlenet", None)
    cached = tmp_path / "checkpoints" / "googlenet-1378be20.pth"
    cached.parent.mkdir()
    cached.write_bytes(b"")
    assert find_weights("googlenet", None) == cached
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
