"""Gradient of NIR's regulariser relative to the proxy loss's during training, released against corrected form.

    uv run python benchmarks/nir_gradient.py [--dataset ndigit] [--epochs 20] [--seed 0] [--out results/nir]

Runs from the same seed: ``released`` (negative log likelihood summed over dimensions, omega 0.0075; the public code
does not clip gradients), ``released, clipped`` (at norm 10, as recipes do), ``released, forgetful`` (Adam forgets its
moments after the first epoch), ``corrected`` (the mean, omega 1, clipped) and ``control`` (no regulariser, proxies at
the same learning rate). Every epoch's mean of |grad of the regulariser| / |omega x grad of the proxy loss| at the
embeddings, the mean NLL per dimension, the variance of the latent, the share of clipped steps, the proxy loss and
validation MAP@R go into ``nir_gradient.csv`` and a figure.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.figure as mpl_figure
import pandas as pd
import torch
import torch.nn.functional as F
from bench.datasets import Augmentation, class_balanced_batches
from bench.engine.networks import embed
from bench.engine.optim import build_optimizer, learning_rate_factor
from bench.methods import EmbeddingModel
from bench.methods.backbones import build_backbone
from bench.methods.nir import NIR
from bench.methods.scorers import DistributionScorer
from bench.protocols.query_metrics import map_at_r
from bench.protocols.recipes import Optim, Recipe
from bench.site import Site


@dataclass(frozen=True)
class Run:
    """One training: form and weight of the loss, gradient clip, and what is left out or forgotten."""

    fidelity: str
    omega: float
    clip: float = math.inf
    regularised: bool = True
    forgetful: bool = False


RUNS = {
    "released": Run("released", 0.0075),
    "released, clipped": Run("released", 0.0075, clip=10.0),
    "released, forgetful": Run("released", 0.0075, forgetful=True),
    "corrected": Run("corrected", 1.0, clip=10.0),
    "control": Run("corrected", 1.0, clip=10.0, regularised=False),
}


def norm(value: torch.Tensor, at: torch.Tensor) -> float:
    """Norm of the gradient of a loss at the embeddings."""
    (gradient,) = torch.autograd.grad(value, at, retain_graph=True)
    return float(gradient.double().norm())


def train(name: str, arguments: argparse.Namespace, data: Any, recipe: Recipe) -> list[dict[str, Any]]:
    """One run; a row per epoch."""
    run, epochs, seed = RUNS[name], arguments.epochs, arguments.seed
    torch.manual_seed(seed)
    backbone = build_backbone("convnet", 1, None)
    method = NIR(NIR.Params(omega=run.omega, **NIR.defaults(run.fidelity)), run.fidelity)
    model = EmbeddingModel(method, backbone, data.train.num_classes, recipe.dim)
    optim = Optim(epochs=epochs, lr=0.015, lr_objective=0.06, weight_decay=1e-2, warmup=0.15)
    optimizer = build_optimizer(model, model.objective, optim)
    labels, loss = data.train.labels, model.objective
    steps = len(labels) // (recipe.classes_per_batch * recipe.images_per_class)
    augmentation = Augmentation(**recipe.augmentation)
    rows = []
    for epoch in range(epochs):
        order, augment = (torch.Generator().manual_seed(1_000_000 * seed + 1000 * epoch + k) for k in (0, 1))
        model.train()
        if run.forgetful and epoch == 1:
            optimizer.state.clear()
        seen: dict[str, list[float]] = {"ratio": [], "nll": [], "variance": [], "clipped": [], "proxy_loss": []}
        batches = class_balanced_batches(labels, recipe.classes_per_batch, recipe.images_per_class, order, steps)
        for number, index in enumerate(batches):
            for group in optimizer.param_groups:
                group["lr"] = group["max_lr"] * learning_rate_factor(epoch * steps + number, steps, optim)
            embedding = model(data.train.training(index, augmentation, augment))
            y, points = labels[index], embedding.distribution.mean
            proxy = run.omega * loss.proxy_loss(embedding.distribution, y)
            regulariser = loss.regulariser(points, y)
            seen["ratio"].append(norm(regulariser, points) / norm(proxy, points))
            with torch.no_grad():
                unit, condition = F.normalize(points, dim=-1), loss.condition(points, y)
                latent, _ = loss.flow(unit, condition)
                seen["nll"].append(float(loss.flow.negative_log_likelihood(unit, condition).mean()) / points.shape[1])
                seen["variance"].append(float(latent.var(0).mean()))
            optimizer.zero_grad()
            (proxy + regulariser if run.regularised else proxy).backward()
            seen["clipped"].append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip) > run.clip))
            seen["proxy_loss"].append(float(proxy.detach()) / run.omega)
            optimizer.step()
        distribution, _ = embed(model, data.val.evaluation, len(data.val), "cpu")
        value = map_at_r(DistributionScorer("cosine", distribution), data.val.labels)
        means = {key: sum(values) / len(values) for key, values in seen.items()}
        rows.append({"run": name, "epoch": epoch + 1, **means, "last_ratio": seen["ratio"][-1], "val_map_at_r": value})
    return rows


def main() -> None:
    """Run all, print the table, write it and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=["ndigit", "ndigit_smoke"], default="ndigit")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/nir"))
    arguments = parser.parse_args()
    site = Site(results=str(arguments.out))
    data, recipe = site.dataset(arguments.dataset).train_val(0, 4), site.recipe(arguments.dataset)
    frame = pd.DataFrame([row for name in RUNS for row in train(name, arguments, data, recipe)])
    arguments.out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(arguments.out / "nir_gradient.csv", index=False)
    shown = frame[frame["epoch"].isin([1, 2, 5, 10, arguments.epochs])]
    print(shown.to_string(index=False, float_format=lambda x: f"{x:.3g}"))
    figure = mpl_figure.Figure(figsize=(6.0, 4.0), layout="constrained")
    axis = figure.subplots()
    for run, group in frame.groupby("run", sort=False):
        if run != "control":
            axis.semilogy(group["epoch"], group["ratio"], "o-", ms=3, label=run)
    axis.set_xlabel("epoch")
    axis.set_ylabel("|grad NIR| / |omega grad proxy loss|")
    axis.legend(frameon=False)
    figure.savefig(arguments.out / "nir_gradient.png", dpi=150)


if __name__ == "__main__":
    main()
