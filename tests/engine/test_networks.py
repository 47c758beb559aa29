"""One network of each family, from random weights in a file to a frozen training and to embedded images."""

import json

import numpy as np
import pytest
import torch
from bench.methods.backbones.registry import build_backbone, full_name

from tests.in_process import run_here
from tests.photographs import write_photographs

POOLED = ("resnet18", "bn_inception", "convnext_atto", "tf_efficientnet_lite0")
OWN = (
    "mobilenetv3_small_050", "vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_small_patch16_dinov3.lvd1689m",
    "vit_base_patch16_siglip_224.webli", "vit_base_patch32_clip_224.openai", "swin_tiny_patch4_window7_224",
)  # fmt: skip
OF_14 = ("vit_small_patch14_dinov2.lvd142m", "eva02_tiny_patch14_224.mim_in22k")
FAMILIES = [(name, 64, "avg_max") for name in POOLED] + [(name, 64, "own") for name in OWN]
FAMILIES += [(name, 70, "own") for name in OF_14]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side", "pooling"), FAMILIES)
def test_a_head_is_trained_on_a_network_of_each_family(name, side, pooling, tmp_path):
    network = build_backbone(full_name(name), 3)
    torch.save(getattr(network.body, "model", network.body).state_dict(), tmp_path / "w.pth")
    write_photographs(tmp_path / "photos", classes=12, each=3)
    given = ("--backbone", name, "--weights", "w.pth")
    pins = ("optim.epochs=1", "data.feature_views=1", f"data.image_size={side}", f"data.resize={side}")
    asked = ("--method", "cosface", "--dataset", "folder", "--data-root", "photos", "--dim", "16", "--seeds", "1")
    short = ("--hparams", "default", *(word for pin in pins for word in ("--set", pin)))
    runs = run_here(tmp_path, "run", "--frozen", *asked, *given, *short, figures=False)
    (record,) = runs.glob("*/folder/cosface/train-*/record.json")
    spec = json.loads(record.read_text())["spec"]
    assert (spec["backbone"], spec["batches"]["pooling"]) == (full_name(name), pooling)
    assert f"{pooling} pooling; starting weights sha256:{spec['weights'][:8]}" in (runs / "metrics.csv").read_text()
    run_here(tmp_path, "embed", *given, "--image-size", side, "--images", "photos/c00", "--out", "three.npz")
    three = np.load(tmp_path / "three.npz")["embeddings"]
    assert three.shape == (3, network.out_features)
    assert np.isfinite(three).all()
