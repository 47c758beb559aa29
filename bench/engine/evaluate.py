"""Testing one trained unit: embed once, then pure protocols on arrays."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from torch.distributions import Distribution

from ..datasets import crop_fractions
from ..methods.distributions import to_arrays
from ..protocols.clustering import clustering_rows
from ..protocols.confidence import aurc, confidence_auroc, e_aurc, kendall_crop, paired_crop, spearman_crop
from ..protocols.embeddings import row
from ..protocols.filter_out import filter_depth, filter_out_rows, oracle_confidence, random_confidence
from ..protocols.retrieval import Ranking, Reranked, full_depth, map_at_k_rows, per_query, rank, retrieval_rows
from ..protocols.structure import structure_rows
from ..protocols.verification import sample_pairs, verification_rows
from ..seeds import seed_for
from ..store import RECORD, write_atomic, write_json
from .context import Cell, Context
from .model import DistributionScorer, embed, load_model
from .train import environment

CROP_BINS = 10

FACTORISING = ("cosine", "l2")
"""Scorers that PER's public code ranks the whole gallery with; the others re-rank the nearest means there."""


def run_tests(spec: dict[str, Any], unit: str, cell: Cell, context: Context) -> dict[str, Any]:
    """Test a trained unit on clean and on centre-cropped images of the test classes, and write its record.

    Args:
        spec: Specification of the test unit.
        unit: Its id.
        cell: Its folder.
        context: Paths and device.

    Returns:
        The record: tidy rows, the confidence by crop size, and what the unit was.
    """
    started = time.perf_counter()
    model, trained = load_model(cell, spec["train"], context)
    train_spec, method = trained["spec"], model.method
    dataset = context.dataset(train_spec["dataset"], train_spec["view"])
    tests = spec["tests"]
    name = train_spec["dataset"]
    test_images = dataset.test()
    val_images = dataset.train_val(train_spec["fold"], train_spec["folds"]).val
    ids, labels = test_images.ids, test_images.labels
    fractions = crop_fractions(ids, seed_for("crops", name), tests["crop_low"], tests["crop_high"])

    clean, clean_confidence = embed(model, test_images.evaluation, len(ids), context.device)
    crop, crop_confidence = embed(
        model, lambda index: test_images.corrupted(index, fractions[index]), len(ids), context.device
    )
    val, _ = embed(model, val_images.evaluation, len(val_images.ids), context.device)
    _keep_arrays(context.store.unit_dir(cell, "test", unit), clean, crop, labels, fractions, ids)

    pairs = sample_pairs(labels, ids, seed_for("pairs", name))
    val_pairs = sample_pairs(val_images.labels, val_images.ids, seed_for("pairs", name))
    noise = random_confidence(ids, seed_for("random confidence", name, train_spec["replicate"]))
    roles: dict[str, Any] = {"queries": test_images.queries, "gallery": test_images.gallery}
    scorers = list(dict.fromkeys([method.scorer, "cosine", *tests["scorers"]]))
    rows: list[dict[str, Any]] = []
    for split, distribution, confidence in (
        ("test", clean, clean_confidence),
        ("test_crop", crop, crop_confidence),
    ):
        for scorer_name in scorers:
            scorer = DistributionScorer(scorer_name, distribution, model.scorer_options())
            val_scorer = DistributionScorer(scorer_name, val, model.scorer_options())
            own = scorer_name == method.scorer
            # The filter-out curves look deeper than the other tests; one ranking serves them all.
            depth = max([full_depth(labels, tests["recall_ks"]), filter_depth(labels) if own else 1])
            ranking = rank(scorer, labels, depth=depth, **roles)
            found = list(retrieval_rows(scorer, labels, ks=tuple(tests["recall_ks"]), **roles, ranking=ranking))
            found += verification_rows(
                scorer.pairs(pairs.left, pairs.right),
                pairs.same,
                val_scorer.pairs(val_pairs.left, val_pairs.right),
                val_pairs.same,
                scorer=scorer_name,
                false_positive_rate=tests["false_positive_rate"],
            )
            if tests["map_at_k"] and split == "test":
                found += map_at_k_rows(scorer, labels, k=tests["map_at_k"], **roles)
            if method.released and scorer_name not in FACTORISING:
                near = DistributionScorer("l2", distribution)
                reranked = Reranked(scorer, near, int(torch.bincount(labels).max()) + 1)
                found += [
                    {**item, "variant": "reranked"}
                    for item in retrieval_rows(reranked, labels, ks=tuple(tests["recall_ks"]), **roles)
                ]
            if own:
                found += _confidence_rows(scorer, ranking, labels, ids, confidence, noise, tests, name, roles)
            rows += [{**item, "split": split} for item in found]
    unit_vectors = torch.nn.functional.normalize(clean.mean.double(), dim=-1)
    more: list[dict[str, Any]] = []
    if tests["clustering"]:
        more += clustering_rows(unit_vectors, labels, seed=seed_for("k-means", name) % 2**31)
    if tests["structure"]:
        more += structure_rows(unit_vectors, labels)
    rows += [{**item, "split": "test"} for item in more]
    for kind, values in {**crop_confidence, "random": noise}.items():
        before = clean_confidence.get(kind)
        rows.append(row("spearman_crop", spearman_crop(values, fractions), confidence=kind, n_queries=len(ids)))
        rows.append(row("kendall_crop", kendall_crop(values, fractions), confidence=kind, n_queries=len(ids)))
        if before is not None:
            rows.append(row("paired_crop", paired_crop(before, values), confidence=kind, n_queries=len(ids)))
    rows.append(
        row("map_at_r", trained["val_map_at_r"], scorer=method.scorer, n_queries=len(val_images.ids)) | {"split": "val"}
    )
    record = {
        "spec": spec,
        "unit": unit,
        "cell": list(cell),
        "columns": {
            "protocol": cell[0],
            "preset": spec["preset"],
            "dataset": name,
            "method": train_spec["method"],
            "base": (train_spec["base"] or {}).get("method", ""),
            "fidelity": train_spec["fidelity"],
            "hparams": spec["hparams"],
            "trials": spec["trials"],
            "pinned": spec["pinned"],
            "backbone": train_spec["backbone"],
            "dim": train_spec["dim"],
            "seed": train_spec["replicate"],
        },
        "role": {
            "primary_scorer": method.scorer,
            # A plug-in's objective need not be a classifier; the norm is what every embedding has.
            "default_confidence": method.default_confidence
            if method.default_confidence in clean_confidence
            else "norm",
            "probabilistic": method.probabilistic,
            "trainings": spec["trials"] + spec["base_trials"],
            "train": spec["train"],
            "base_train": (train_spec["base"] or {}).get("unit", ""),
        },
        "rows": [{"split": "test_crop", **_json_safe(item)} for item in rows],
        "crop_curve": _crop_curve({**crop_confidence, "random": noise}, fractions, tests),
        "setting": {
            "params": train_spec["params"],
            "optim": train_spec["optim"],
            "augmentation": train_spec["augmentation"],
        },
        "manifests": {**trained["manifests"], "test": test_images.manifest_sha256()},
        "environment": environment(context, started),
        "finished": time.time(),
    }
    write_json(context.store.unit_dir(cell, "test", unit) / RECORD, record)
    return {"unit": unit}


def _confidence_rows(
    scorer: DistributionScorer,
    ranking: Ranking,
    labels: Tensor,
    ids: tuple[str, ...],
    confidence: dict[str, Tensor],
    noise: Tensor,
    tests: dict[str, Any],
    name: str,
    roles: dict[str, Any],
) -> list[dict[str, Any]]:
    """Filter-out curves and risk areas of every confidence, with the random and the oracle control."""
    values = per_query(ranking, ks=(1,))
    lone = values["map_at_r"].isnan()
    every = {**confidence, "random": noise}
    found: list[dict[str, Any]] = list(
        filter_out_rows(
            scorer,
            labels,
            ids,
            every,
            oracle=True,
            fractions=tuple(tests["filter_fractions"]),
            seed=seed_for("ties", name),
            **roles,
            ranking=ranking,
        )
    )
    asking = torch.arange(len(labels)) if roles["queries"] is None else roles["queries"]
    every = {kind: value[asking] for kind, value in every.items()}
    counted, lone_count = int((~lone).sum()), int(lone.sum())
    extra: dict[str, Any] = {"scorer": scorer.name, "n_queries": counted, "n_lone": lone_count}
    for kind, value in [*every.items(), ("oracle", None)]:
        for metric in ("recall_at_1", "map_at_r"):
            risk = 1.0 - values[metric][~lone]
            kept = oracle_confidence(values[metric])[~lone] if value is None else value[~lone]
            found.append(row("aurc", aurc(kept, risk), confidence=kind, variant=metric, **extra))
            found.append(row("e_aurc", e_aurc(kept, risk), confidence=kind, variant=metric, **extra))
        kept = oracle_confidence(values["recall_at_1"])[~lone] if value is None else value[~lone]
        auroc = confidence_auroc(kept, values["recall_at_1"][~lone])
        found.append(row("confidence_auroc", auroc, confidence=kind, **extra))
    return found


def _json_safe(item: dict[str, Any]) -> dict[str, Any]:
    """A value that does not exist (the correlation of a constant confidence, say) is null, not NaN, in JSON."""
    value = float(item["value"])
    return {**item, "value": value if math.isfinite(value) else None}


def _crop_curve(confidence: dict[str, Tensor], fractions: Tensor, tests: dict[str, Any]) -> dict[str, Any]:
    """Mean rank of each confidence, in [0, 1], in equal bins of the crop's side."""
    from scipy.stats import rankdata

    low, high = tests["crop_low"], tests["crop_high"]
    width = (high - low) / CROP_BINS
    place = ((fractions - low) / width).floor().clamp(0, CROP_BINS - 1).long()
    bins = [b for b in range(CROP_BINS) if bool((place == b).any())]
    ranks = {}
    for kind, values in confidence.items():
        rank01 = (torch.as_tensor(rankdata(values.double().numpy())) - 0.5) / len(values)
        ranks[kind] = [float(rank01[place == b].mean()) for b in bins]
    return {"fraction": [low + (b + 0.5) * width for b in bins], "rank": ranks}


def _keep_arrays(
    folder: Path,
    clean: Distribution,
    crop: Distribution,
    labels: Tensor,
    fractions: Tensor,
    ids: tuple[str, ...],
) -> None:
    arrays = {"labels": labels, "crop_fraction": fractions}
    for split, distribution in (("clean", clean), ("crop", crop)):
        kind, parameters = to_arrays(distribution)
        arrays |= {f"{split}.{key}": value.contiguous() for key, value in parameters.items()}
    write_atomic(folder / "embeddings.safetensors", save(arrays, {"distribution": kind, "ids": "\n".join(ids)}))
