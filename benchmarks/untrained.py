"""Retrieval without any training: pooled features of a network with ImageNet weights, on the test classes.

    uv run --extra photographs python benchmarks/untrained.py --dataset grocery --data-root DIR --image-size 128

This is what a training has to beat, before any reduction to the embedding size; as a row of every table it is
`bench run --method untrained`. Queries and gallery are those of the data set; if it has them, all test images
against all others are shown, too. Nothing is chosen here.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from bench import score
from bench.engine.networks import backbone_features
from bench.methods.backbones.registry import build_backbone, find_weights
from bench.site import Site
from rich.console import Console
from rich.table import Table


def main() -> None:
    """Print Recall@1 and MAP@R for each pooling and each choice of queries and gallery."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="grocery")
    parser.add_argument("--data-root", help="folder of the data set")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--weights", help="weights of the backbone; those on this machine if not given")
    parser.add_argument("--image-size", type=int, default=224, help="side in pixels")
    args = parser.parse_args()
    torch.set_num_threads(1)
    view = {"image_size": args.image_size, "resize": args.image_size}
    images = Site(results="results/runs", data_root=args.data_root).dataset(args.dataset, view).test()
    weights = find_weights(args.backbone, args.weights)
    title = f"{args.dataset}, {args.backbone} untrained, {args.image_size} px, percent"
    table = Table("pooling", "queries", "gallery", "R@1", "MAP@R", title=title)
    rows = np.arange(len(images))
    roles = [(np.full(len(rows), True), np.full(len(rows), True))]
    if images.queries is not None and images.gallery is not None:
        roles.insert(0, (np.isin(rows, images.queries), np.isin(rows, images.gallery)))
    for pooling in ("avg", "avg_max"):
        network = build_backbone(args.backbone, 3, weights, "all", pooling).eval()
        with torch.no_grad():
            features = backbone_features(network, images.evaluation, len(images), "cpu")
        for queries, gallery in roles:
            values = score(features, images.labels, is_query=queries, is_gallery=gallery).set_index("metric")["value"]
            shown = [f"{100 * float(values[name]):.1f}" for name in ("recall_at_1", "map_at_r")]
            table.add_row(pooling, str(queries.sum()), str(gallery.sum()), *shown)
    Console().print(table)


if __name__ == "__main__":
    main()
