"""The settings that "Probabilistic Embeddings Revisited" published with its code, by method and data set."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import Any

BACKBONE, DIM = "bn_inception", 128
TRAINING = {
    "optimizer": "sgd",
    "schedule": "step",
    "step_epochs": 5,
    "weight_decay": 1e-4,
    "grad_clip": 10.0,
    "heads_factor": 1.0,
}
"""What all of its runs have in common (spec of its code)."""
RENAMED = {"lr_embedder": "lr", "lr_classifier": "lr_objective", "lr_gamma": "gamma", "num_epochs": "epochs"}
EPOCHS = {"cars196": 32, "cub200": 32, "inshop": 128, "sop": 128}


@cache
def published_rows() -> dict[tuple[str, str], dict[str, float]]:
    """Values by (variant, data set), such as ``("pfe-arcface", "cub200")``, under their published names."""
    table = files("bench.results.published").joinpath("pe_revisited_best_hparams.csv").read_text()
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in csv.DictReader(table.splitlines()):
        values = found.setdefault((row["variant"], row["dataset"]), {})
        try:
            values[row["hparam"]] = float(row["value"])
        except ValueError:
            continue  # a switch that is not a number
    return found


def published_variant(method: Any, dataset: str, base: str) -> str | None:
    """Name of the published configuration of a method on a data set and base, if there is one."""
    stem = method.published_as or method.name.replace("_", "-")
    known = {variant for variant, where in published_rows() if where == dataset}
    return next((name for name in (f"{stem}-cont-{base}", f"{stem}-{base}", stem) if name in known), None)


def published_setting(method: Any, dataset: str, base: str) -> dict[str, Any] | None:
    """Parameters and optimisation of a method's published configuration, in our names.

    Args:
        method: Class of the method.
        dataset: Name of the data set; ``inshop_merged`` is PER's ``inshop``.
        base: Base method of the recipe.

    Returns:
        ``{"params": .., "optim": .., "variant": ..}``, or None if nothing was published.
    """
    where = "inshop" if dataset == "inshop_merged" else dataset
    variant = published_variant(method, where, base)
    if variant is None:
        return None
    values = dict(published_rows()[variant, where])
    optim: dict[str, Any] = {**TRAINING, "epochs": EPOCHS[where]}
    for theirs, ours in RENAMED.items():
        if theirs in values:
            optim[ours] = values.pop(theirs)
    optim["epochs"] = int(optim["epochs"])
    return {"params": method.from_published(values, variant), "optim": optim, "variant": variant}


def published_datasets(method: Any) -> list[str]:
    """Data sets for which a setting of a method was published, on any base."""
    bases = ("arcface", "cosface")
    return [name for name in EPOCHS if any(published_variant(method, name, base) for base in bases)]
