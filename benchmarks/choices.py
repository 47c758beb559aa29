"""Default choices on development data: ndigit's recipe, deterministic methods' confidence, DUL-cls's KL weight.

    uv run python benchmarks/choices.py --results results/choices            # about an hour on two cores
    uv run python benchmarks/choices.py --results results/choices --read     # only the tables of what is there

Every method is trained at each candidate setting, one change at a time from ``START``. What is compared comes from the
validation classes alone, whose handwriting no training or test image shares: MAP@R under the method's own scorer, and
for every confidence its Spearman correlation with the side of crops of these images. A candidate counts by its mean
over all methods, so no method decides for the others, and a default is changed only if the 95 % t-interval of the
difference over methods excludes 0. The tables of test values that the runs write are not read.
"""

from __future__ import annotations

import argparse
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from bench.datasets.corruptions.apply import corrupted
from bench.datasets.corruptions.severity import draw_quality
from bench.engine.networks import embed, load_model
from bench.seeds import seed_for
from bench.site import Site
from bench.store.records import TestRecord
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import spearmanr, t

CROPS = (0.0, 0.5)
"""Severity of the crops, as in the tests."""

START = {
    "data.classes_per_batch": "32",
    "data.images_per_class": "2",
    "augment.shift": "0.05",
    "optim.epochs": "20",
}
CHANGES = {
    "start": {},
    "batch 16 x 4": {"data.classes_per_batch": "16", "data.images_per_class": "4"},
    "batch 8 x 8": {"data.classes_per_batch": "8", "data.images_per_class": "8"},
    "no shift": {"augment.shift": "0.0"},
    "shift 0.1": {"augment.shift": "0.1"},
    "10 epochs": {"optim.epochs": "10"},
    "30 epochs": {"optim.epochs": "30"},
}
"""Candidates; one image per class is none, because pair losses and heads need genuine pairs."""

QUOTED = "max_cosine"
"""Confidence quoted for a deterministic method with a classifier."""

KL_WEIGHTS = ("0.00003", "0.0003", "0.001", "0.003", "0.01")
"""Candidates for the KL weight of DUL-cls, which decides between retrieval and confidence."""


@dataclass(frozen=True)
class Values:
    """Values of one trained model on validation classes."""

    method: str
    probabilistic: bool
    seed: int
    pinned: str
    map_at_r: float
    crop: dict[str, float]


def train(folder: Path, dataset: str, seeds: int, pins: dict[str, str]) -> None:
    """Train every method at a setting; finished units are found and not trained again."""
    command = ["bench", "run", "--method", "all", "--dataset", dataset, "--seeds", str(seeds), "--hparams", "default"]
    for key, value in (START | pins).items():
        command += ["--set", f"{key}={value}"]
    subprocess.run([*command, "--results", str(folder)], check=True, stdout=subprocess.DEVNULL)


def train_weights(folder: Path, dataset: str) -> None:
    """Train DUL-cls at every KL weight, three seeds each."""
    sweep = f"method.kl_weight={','.join(KL_WEIGHTS)}"
    command = ["bench", "run", "--method", "dul_cls", "--dataset", dataset, "--seeds", "3", "--hparams", "default"]
    subprocess.run([*command, "--sweep", sweep, "--results", str(folder)], check=True, stdout=subprocess.DEVNULL)


def on_validation(record: TestRecord, site: Site) -> Values:
    """Values of a tested unit's model on its validation classes."""
    model, trained = load_model(record.cell, record.spec.train[0], site)
    spec = trained.spec
    images = site.dataset(spec.dataset, spec.view).train_val(spec.fold, spec.folds).val
    seed = seed_for("validation crops", spec.dataset)
    side = draw_quality("crop", images.ids, seed, *CROPS)
    _, confidences = embed(model, lambda rows: corrupted(images, "crop", rows, side[rows], seed), len(images), "cpu")
    crop = {name: float(spearmanr(values.double(), side).statistic) for name, values in confidences.items()}
    map_at_r = trained.val_map_at_r
    return Values(
        spec.method, model.method.probabilistic, int(spec.replicate), record.spec.pinned.text, float(map_at_r), crop
    )


def values_of(folder: Path) -> list[Values]:
    """Values of everything in a results folder."""
    site = Site(results=str(folder.resolve()), weights="none", threads=1)
    return [on_validation(record, site) for record in track(list(site.store.tests()), folder.name, transient=True)]


def interval(values: np.ndarray) -> str:
    """Mean and 95 % t-interval of values of methods."""
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.4f} ± {half:.4f}"


def table(title: str, frame: pd.DataFrame) -> Table:
    """A frame as a table of the terminal."""
    shown = Table(title=title)
    for column in [frame.index.name or "", *frame.columns]:
        shown.add_column(str(column), justify="right")
    for name, row in zip(frame.index, frame.itertuples(index=False)):
        shown.add_row(str(name), *(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row))
    return shown


def recipe_tables(found: dict[str, list[Values]], console: Console) -> None:
    """MAP@R on validation classes: every method at every candidate, then candidates against the start."""
    rows = [{"candidate": name, "method": v.method, "value": v.map_at_r} for name, vs in found.items() for v in vs]
    means = pd.DataFrame(rows).pivot_table("value", "method", "candidate")[list(found)]
    console.print(table("validation MAP@R, mean over seeds", means))
    summary = pd.DataFrame(
        {
            "mean": means.mean(),
            "minus start, 95 % over methods": [interval((means[name] - means["start"]).to_numpy()) for name in means],
            "better for": [f"{int((means[name] > means['start']).sum())} of {len(means)}" for name in means],
        }
    )
    console.print(table("candidates", summary))


def confidence_tables(found: dict[str, list[Values]], console: Console) -> None:
    """Crop correlation of every confidence on validation classes, method by method."""
    rows = [
        {"probabilistic": v.probabilistic, "method": v.method, "confidence": name, "value": value}
        for v in found["start"]
        for name, value in v.crop.items()
    ]
    frame = pd.DataFrame(rows).pivot_table("value", ["probabilistic", "method"], "confidence")
    for probabilistic, block in frame.groupby(level=0):
        title = "probabilistic" if probabilistic else "deterministic"
        block = block.droplevel(0).dropna(axis=1, how="all")
        console.print(table(f"{title}: Spearman with the side of validation crops", block))
        both = {name: block[[QUOTED, name]].dropna() for name in block.columns if name != QUOTED}
        rivals = {name: rows for name, rows in both.items() if len(rows) > 1}
        summary = pd.DataFrame(
            {
                "mean": {name: rows[name].mean() for name, rows in rivals.items()},
                f"minus {QUOTED}, 95 % over methods": {
                    name: interval((rows[name] - rows[QUOTED]).to_numpy()) for name, rows in rivals.items()
                },
                "better for": {
                    name: f"{int((rows[name] > rows[QUOTED]).sum())} of {len(rows)}" for name, rows in rivals.items()
                },
            }
        )
        console.print(table(f"{title}: against {QUOTED}", summary))


def weight_table(found: list[Values], console: Console) -> None:
    """MAP@R and crop correlation of DUL-cls on validation classes, by KL weight."""
    rows = [{"KL weight": v.pinned, "MAP@R": v.map_at_r, "own confidence": v.crop["method"]} for v in found]
    grouped = pd.DataFrame(rows).groupby("KL weight")
    spread = grouped.mean().join(grouped.std(ddof=1), rsuffix=" SD")
    console.print(table("DUL-cls on validation classes, mean and SD over seeds", spread))


def main() -> None:
    """Train what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/choices"))
    parser.add_argument("--dataset", default="ndigit")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--read", action="store_true", help="do not train")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    console, found = Console(), {}
    for name, pins in CHANGES.items():
        folder = asked.results / name.replace(" ", "_")
        if not asked.read:
            train(folder, asked.dataset, asked.seeds, pins)
        if folder.exists():
            found[name] = values_of(folder)
    recipe_tables(found, console)
    confidence_tables(found, console)
    weights = asked.results / "kl_weights"
    if not asked.read:
        train_weights(weights, asked.dataset)
    if weights.exists():
        weight_table(values_of(weights), console)


if __name__ == "__main__":
    main()
