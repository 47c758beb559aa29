"""One network of each family, from random weights in a file to a frozen training and to embedded images."""

from functools import partial

import pytest
from bench.methods.backbones.registry import full_name

from ..in_process import run_here
from .conftest import loaded_tool

FAMILIES = (
    ("resnet18", 64, "avg_max"),
    ("bn_inception", 64, "avg_max"),
    ("convnext_atto", 64, "avg_max"),
    ("tf_efficientnet_lite0", 64, "avg_max"),
    ("mobilenetv3_small_050", 64, "own"),
    ("vit_tiny_patch16_224", 64, "own"),
    ("deit_tiny_patch16_224", 64, "own"),
    ("vit_small_patch14_dinov2.lvd142m", 70, "own"),
    ("vit_small_patch16_dinov3.lvd1689m", 64, "own"),
    ("vit_base_patch16_siglip_224.webli", 64, "own"),
    ("vit_base_patch32_clip_224.openai", 64, "own"),
    ("eva02_tiny_patch14_224.mim_in22k", 70, "own"),
    ("swin_tiny_patch4_window7_224", 64, "own"),
)


@pytest.fixture
def networks():
    with loaded_tool("networks") as module:
        yield module


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side", "pooling"), FAMILIES)
def test_a_head_is_trained_on_a_network_of_each_family(name, side, pooling, networks, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    if name != FAMILIES[0][0]:  # commands of their own take most of the time
        monkeypatch.setattr(networks, "_bench", partial(run_here, figures=False))
    found = networks.tried(full_name(name), tmp_path)
    assert (found.frozen, found.poolings[0]) == (side, pooling)
