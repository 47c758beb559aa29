"""Checkpoints with the names of their authors give the outputs of the network that they were taken from."""

import numpy as np
import pytest
import timm
import torch
from bench.methods.backbones.registry import NoWeights, build_backbone
from safetensors.torch import save_file

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
