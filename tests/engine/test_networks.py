"""One network of each family, from random weights in a file to a frozen training and to embedded images."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from bench.methods.backbones.registry import build_backbone, full_name

from .conftest import write_photographs

FAMILIES = (
    ("resnet18", 64, "avg_max"),
    ("bn_inception", 64, "avg_max"),
    ("convnext_atto", 64, "avg_max"),
    ("tf_efficientnet_lite0", 64, "avg_max"),
    ("mobilenetv3_small_050", 64, "own"),
    ("vit_tiny_patch16_224", 64, "own"),
    ("deit_tiny_patch16_224", 64, "own"),
    ("vit_small_patch14_dinov2.lvd142m", 56, "own"),
    ("vit_small_patch16_dinov3.lvd1689m", 64, "own"),
    ("vit_base_patch16_siglip_224.webli", 64, "own"),
    ("vit_base_patch32_clip_224.openai", 64, "own"),
    ("eva02_tiny_patch14_224.mim_in22k", 56, "own"),
    ("swin_tiny_patch4_window7_224", 64, "own"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side", "pooling"), FAMILIES)
def test_a_head_is_trained_on_a_network_of_each_family(name, side, pooling, cli, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    write_photographs(tmp_path / "photos", 12, 3)
    write_photographs(tmp_path / "three", 1, 3)
    torch.manual_seed(0)
    net = build_backbone(name, 3)
    torch.save((net.body.model if hasattr(net.body, "model") else net.body).state_dict(), tmp_path / "w.pth")
    network = ("--backbone", name, "--weights", "w.pth")
    cli("run", "--frozen", "--method", "cosface", "--dataset", "folder", "--data-root", "photos", *network, "--dim", 16,
        "--hparams", "default", "--seeds", 1, "--set", "optim.epochs=1", "--set", f"data.image_size={side}",
        "--set", f"data.resize={side}", "--workers", 1)  # fmt: skip
    (path,) = tmp_path.glob("results/runs/*/folder/cosface/train-*/record.json")
    spec = json.loads(path.read_text())["spec"]
    assert (spec["backbone"], spec["batches"]["pooling"]) == (full_name(name), pooling)
    pinned = set(pd.read_csv(tmp_path / "results/runs/metrics.csv")["pinned"])
    assert len(pinned) == 1
    assert f"{pooling} pooling; starting weights sha256:{spec['weights'][:8]}" in pinned.pop()
    cli("embed", *network, "--image-size", side, "--images", "three", "--out", "three.npz")
    embeddings = np.load(tmp_path / "three.npz")["embeddings"]
    assert embeddings.shape == (3, net.out_features)
    assert np.isfinite(embeddings).all()
