"""Networks for photographs, tried at random weights: image sizes, poolings, a frozen training and an embedding of each.

    uv run python benchmarks/networks.py [--only NAME,..]

Prints the rows of a Markdown table; a network that fails has the sentence of its error in the last column.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from bench.methods.backbones.registry import build_backbone, images_of, poolings_of, sizes_near
from PIL import Image

BENCH = Path(sys.executable).with_name("bench")

NETWORKS = {
    "ResNet": ("resnet18.a1_in1k", "resnet50.tv_in1k", "test_resnet.r160_in1k"),
    "BN-Inception": ("bn_inception",),
    "ConvNeXt": ("convnext_atto.d2_in1k", "convnextv2_atto.fcmae_ft_in1k"),
    "EfficientNet-Lite": ("tf_efficientnet_lite0", "tf_efficientnet_lite1.in1k"),
    "MobileNet": ("mobilenetv2_050.lamb_in1k", "mobilenetv3_small_050.lamb_in1k",
                  "mobilenetv4_conv_small_050.e3000_r224_in1k", "mobilevit_xxs.cvnets_in1k"),
    "ViT": ("test_vit.r160_in1k", "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
            "vit_tiny_patch16_384.augreg_in21k_ft_in1k"),
    "DeiT": ("deit_tiny_distilled_patch16_224.fb_in1k", "deit_tiny_patch16_224.fb_in1k"),
    "DINOv2": ("vit_small_patch14_dinov2.lvd142m", "vit_small_patch14_reg4_dinov2.lvd142m"),
    "DINOv3": ("convnext_tiny.dinov3_lvd1689m", "vit_small_patch16_dinov3.lvd1689m"),
    "SigLIP": ("vit_base_patch16_siglip_224.webli",),
    "CLIP": ("resnet50_clip.openai", "vit_base_patch32_clip_224.openai",
             "vit_xsmall_patch16_clip_224.tinyclip_yfcc15m"),
    "EVA": ("eva02_tiny_patch14_224.mim_in22k", "eva02_tiny_patch14_336.mim_in22k_ft_in1k"),
    "Swin": ("swin_tiny_patch4_window7_224.ms_in1k", "swinv2_tiny_window8_256.ms_in1k"),
}  # fmt: skip
"""Full names of the networks by family."""

ASKED = 220
"""Side of images that no patch divides, pixels."""


class Tried(NamedTuple):
    """A network that was tried: sides in pixels (``near``: empty if it reads :data:`ASKED`), poolings, features."""

    own: int
    near: list[int]
    poolings: tuple[str, ...]
    features: int
    frozen: int


def tried(name: str, folder: Path) -> Tried:
    """Try a network in an empty folder, from its weights in a file to a trained head and embedded images.

    Raises:
        RuntimeError: If a command fails, or if its results do not name the network, its weights and its pooling.
        ValueError: If the network cannot be built.
    """
    torch.manual_seed(0)
    own, side = images_of(name).image_size, min(_sizes(name, 64), key=lambda size: abs(size - 64))
    network: Any = build_backbone(name, 3)
    torch.save(getattr(network.body, "model", network.body).state_dict(), folder / "w.pth")
    rng = np.random.default_rng(0)
    for i in range(36):
        path = folder / "photos" / f"c{i // 3:02d}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (36, 36, 3), dtype=np.uint8)).save(path)
    given = ("--backbone", name, "--weights", "w.pth")
    _bench(folder, "run", "--frozen", "--method", "cosface", "--dataset", "folder", "--data-root", "photos", *given,
           "--dim", "16", "--hparams", "default", "--seeds", "1", "--workers", "1", "--set", "optim.epochs=1",
           "--set", "data.feature_views=1", "--set", f"data.image_size={side}",
           "--set", f"data.resize={side}")  # fmt: skip
    (record,) = folder.glob("results/runs/*/folder/cosface/train-*/record.json")
    spec = json.loads(record.read_text())["spec"]
    found = poolings_of(name, 3, (own, own))
    _check((spec["backbone"], spec["batches"]["pooling"]) == (name, found[0]), "the record has another network")
    pinned = f"{found[0]} pooling; starting weights sha256:{spec['weights'][:8]}"
    _check(pinned in (folder / "results/runs/metrics.csv").read_text(), f"metrics.csv does not say {pinned!r}")
    _bench(folder, "embed", *given, "--image-size", str(side), "--images", "photos/c00", "--out", "three.npz")
    three = np.load(folder / "three.npz")["embeddings"]
    _check(three.shape == (3, network.out_features) and bool(np.isfinite(three).all()), "these are no embeddings")
    near = _sizes(name, ASKED)
    return Tried(own, [] if near == [ASKED] else near, found, network.out_features, side)


def _sizes(name: str, side: int) -> list[int]:
    """A side that a network reads, or those near it that it does."""
    try:
        poolings_of(name, 3, (side, side))
    except ValueError:
        return sizes_near(name, 3, side)
    return [side]


def _bench(folder: Path, *arguments: str) -> None:
    where = {**os.environ, "BENCH_CACHE": str(folder / "cache")}
    done = subprocess.run([BENCH, *arguments], cwd=folder, env=where, capture_output=True, text=True)
    _check(done.returncode == 0, (done.stderr.strip().splitlines() or ["it ended without a word"])[-1])


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


def main() -> int:
    """Try the networks in turn and print their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME,..", help="full names of networks; all if not given")
    only, failed = parser.parse_args().only, 0
    print(
        "| family | network | own size | 220 pixels | poolings | features | frozen at |\n|---|---|---|---|---|---|---|"
    )
    for family, name in [(family, name) for family, names in NETWORKS.items() for name in names]:
        if only is not None and name not in only.split(","):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                of = tried(name, Path(folder))
            except (RuntimeError, ValueError) as error:
                print(f"| {family} | `{name}` | | | | | {error} |", flush=True)
                failed += 1
                continue
        read = f"no: {' and '.join(map(str, of.near))}" if of.near else "yes"
        columns = (family, f"`{name}`", of.own, read, ", ".join(of.poolings), f"{of.features:,}", of.frozen)
        print(f"| {' | '.join(map(str, columns))} |", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
