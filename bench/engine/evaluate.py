"""Testing what was trained: embed once, then pure protocols on arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ..datasets import corruptions
from ..methods.distributions.arrays import to_arrays
from ..protocols.clustering import clustering_rows
from ..protocols.confidence import kendall_crop, label_entropy, paired_crop, risk_rows, spearman_crop
from ..protocols.embeddings import row
from ..protocols.filter_out import filter_depth, filter_out_rows, random_confidence
from ..protocols.retrieval import Ranking, Reranked, Scorer, full_depth, map_at_k_rows, per_query, rank, retrieval_rows
from ..protocols.structure import structure_rows
from ..protocols.verification import sample_pairs, verification_rows
from ..seeds import seed_for
from ..store import RECORD, write_atomic, write_json
from .context import Cell, Context
from .subject import Concatenated, Subject
from .train import environment

CURVE_BINS = 10

FACTORISING = ("cosine", "l2")
"""Scorers that PER's public code ranks the whole gallery with; the others re-rank the nearest means there."""


@dataclass(frozen=True)
class _Images:
    """What all models of a replicate are tested on.

    ``quality`` is what each corruption leaves of each image, 1 - severity, and ``seeds`` where its draws come from.
    """

    name: str
    labels: Tensor
    ids: tuple[str, ...]
    quality: Mapping[str, Tensor]
    seeds: Mapping[str, int]
    soft_labels: Tensor | None
    roles: Mapping[str, Any]
    noise: Tensor
    tests: Mapping[str, Any]
    manifest: str


def run_tests(specs: Mapping[str, dict[str, Any]], cell: Cell, context: Context) -> None:
    """Test the trained models of a replicate on clean and on corrupted images; write the records.

    Args:
        specs: Specifications of test units of the same models, by their ids.
        cell: Their folder.
        context: Paths and device.
    """
    started = time.perf_counter()
    spec = next(iter(specs.values()))
    first = context.store.record(cell, "train", spec["train"][0])
    if first is None:
        raise FileNotFoundError(f"training unit {spec['train'][0]} has no record")
    images = _images(first["spec"], spec["tests"], context)
    members = [Subject.of(unit, cell, context, images.quality, images.seeds) for unit in spec["train"]]
    for unit, wanted in specs.items():
        side_by_side = wanted["ensemble"] == "concatenated"
        subjects: Sequence[Subject | Concatenated] = [Concatenated(members)] if side_by_side else members
        folder = context.store.unit_dir(cell, "test", unit)
        if not side_by_side:
            _keep_arrays(folder, members, images)
        record = _record(wanted, unit, cell, members, images)
        record["rows"] = [_json_safe(item) for item in mean_rows([_rows(s, images, context) for s in subjects])]
        record["curves"] = {kind: _mean_curve([_curve(kind, s, images) for s in subjects]) for kind in images.quality}
        record["environment"] = environment(context, started)
        record["finished"] = time.time()
        write_json(folder / RECORD, record)


def _images(train_spec: dict[str, Any], tests: Mapping[str, Any], context: Context) -> _Images:
    name = train_spec["dataset"]
    images = context.dataset(name, train_spec["view"]).test()
    ranges = tests["corruptions"]
    seeds = {kind: seed_for("crops", name) if kind == "crop" else seed_for(kind, name) for kind in ranges}
    return _Images(
        name=name,
        labels=images.labels,
        ids=images.ids,
        quality={kind: corruptions.draw_quality(kind, images.ids, seeds[kind], *ranges[kind]) for kind in ranges},
        seeds=seeds,
        soft_labels=images.soft_labels,
        roles={"queries": images.queries, "gallery": images.gallery},
        noise=random_confidence(images.ids, seed_for("random confidence", name, train_spec["replicate"])),
        tests=tests,
        manifest=images.manifest_sha256(),
    )


def _rows(subject: Subject | Concatenated, images: _Images, context: Context) -> list[dict[str, Any]]:
    """Every value of one subject."""
    tests, name, labels, ids, method = images.tests, images.name, images.labels, images.ids, subject.method
    ks = tuple(tests["recall_ks"])
    pairs = sample_pairs(labels, ids, seed_for("pairs", name))
    val, val_pairs = None, None
    if isinstance(subject, Subject):
        spec = subject.trained["spec"]
        val = context.dataset(name, spec["view"]).train_val(spec["fold"], spec["folds"]).val
        val_pairs = sample_pairs(val.labels, val.ids, seed_for("pairs", name))
    rows: list[dict[str, Any]] = []
    for split in ("test", *(f"test_{kind}" for kind in images.quality)):
        for scorer_name in dict.fromkeys([method.scorer, "cosine", *tests["scorers"]]):
            scorer = subject.scorer(scorer_name, split)
            own = scorer_name == method.scorer
            # The filter-out curves look deeper than the other tests; one ranking serves them all.
            depth = max(full_depth(labels, ks), filter_depth(labels) if own else 1)
            ranking = rank(scorer, labels, depth=depth, **images.roles)
            found = list(retrieval_rows(scorer, labels, ks=ks, **images.roles, ranking=ranking))
            found += verification_rows(
                scorer.pairs(pairs.left, pairs.right),
                pairs.same,
                subject.scorer(scorer_name, "val").pairs(val_pairs.left, val_pairs.right) if val_pairs else None,
                val_pairs.same if val_pairs else None,
                scorer=scorer_name,
                false_positive_rate=tests["false_positive_rate"],
            )
            if tests["map_at_k"] and split == "test":
                found += map_at_k_rows(scorer, labels, k=tests["map_at_k"], **images.roles)
            if method.released and scorer_name not in FACTORISING:
                near = subject.scorer("l2", split, options=False)
                reranked = Reranked(scorer, near, int(torch.bincount(labels).max()) + 1)
                found += [
                    {**item, "variant": "reranked"} for item in retrieval_rows(reranked, labels, ks=ks, **images.roles)
                ]
            if own:
                found += _confidence_rows(scorer, ranking, subject.confidence[split], images)
            rows += [{"split": split, **item} for item in found]
    if val is not None:
        score = subject.trained["val_map_at_r"]  # type: ignore[union-attr]
        rows.append({"split": "val"} | row("map_at_r", score, scorer=method.scorer, n_queries=len(val.ids)))
    more: list[dict[str, Any]] = []
    if tests["clustering"]:
        more += clustering_rows(subject.unit_vectors("test"), labels, seed=seed_for("k-means", name) % 2**31)
    if tests["structure"]:
        more += structure_rows(subject.unit_vectors("test"), labels)
    rows += [{"split": "test", **item} for item in more]
    for kind in images.quality:
        rows += [{"split": f"test_{kind}", **item} for item in _corruption_rows(kind, subject, images)]
    if images.soft_labels is not None:
        rows += [{"split": "test", **item} for item in _human_rows(subject, images.soft_labels, images.noise)]
    return rows


def _corruption_rows(kind: str, subject: Subject | Concatenated, images: _Images) -> Iterator[dict[str, Any]]:
    """How the confidences follow what a corruption leaves of an image: for the crop its side, else 1 - severity."""
    clean, quality, count = subject.confidence["test"], images.quality[kind], len(images.ids)
    for name, values in {**subject.confidence[f"test_{kind}"], "random": images.noise}.items():
        yield row(f"spearman_{kind}", spearman_crop(values, quality), confidence=name, n_queries=count)
        yield row(f"kendall_{kind}", kendall_crop(values, quality), confidence=name, n_queries=count)
        if name in clean:
            yield row(f"paired_{kind}", paired_crop(clean[name], values), confidence=name, n_queries=count)


def _human_rows(subject: Subject | Concatenated, soft_labels: Tensor, noise: Tensor) -> Iterator[dict[str, Any]]:
    """Whether the confidences fall where people disagree about the class."""
    entropy = label_entropy(soft_labels)
    known = ~entropy.isnan()
    agreement, count = -entropy[known], int(known.sum())
    if count == 0:
        return
    for name, values in {**subject.confidence["test"], "random": noise}.items():
        spearman, kendall = (of(values[known], agreement) for of in (spearman_crop, kendall_crop))
        yield row("spearman_human_entropy", spearman, confidence=name, n_queries=count)
        yield row("kendall_human_entropy", kendall, confidence=name, n_queries=count)


def mean_rows(parts: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Mean of the rows of several models, row by row; a value that one of them does not have, the mean has not.

    Example:
        >>> mean_rows([[{"metric": "map_at_r", "value": 0.5}], [{"metric": "map_at_r", "value": 1.0}]])
        [{'metric': 'map_at_r', 'value': 0.75}]
    """
    if len(parts) == 1:
        return parts[0]
    # Counts differ between models: each has its own validation classes, and filters out its own images.
    numbers = ("value", "n_queries", "n_lone")
    found = []
    for items in zip(*parts, strict=True):
        keys = [{key: value for key, value in item.items() if key not in numbers} for item in items]
        if any(key != keys[0] for key in keys):
            raise ValueError(f"rows of different things: {keys}")
        means = {key: fmean(float(item[key]) for item in items) for key in numbers if key in items[0]}
        counts = {key: round(value) for key, value in means.items() if key != "value"}
        found.append({**keys[0], **counts, "value": means["value"]})
    return found


def _record(spec: dict[str, Any], unit: str, cell: Cell, members: Sequence[Subject], images: _Images) -> dict[str, Any]:
    """What a test unit was, without its values."""
    first = members[0]
    train_spec, method = first.trained["spec"], first.method
    bases = [(member.trained["spec"]["base"] or {}).get("unit", "") for member in members]
    side_by_side = spec["ensemble"] == "concatenated"
    return {
        "spec": spec,
        "unit": unit,
        "cell": list(cell),
        "columns": {
            "protocol": cell[0],
            "preset": spec["preset"],
            "dataset": images.name,
            "method": train_spec["method"],
            "base": (train_spec["base"] or {}).get("method", ""),
            "fidelity": train_spec["fidelity"],
            "hparams": spec["hparams"],
            "trials": spec["trials"],
            "pinned": spec["pinned"],
            "backbone": train_spec["backbone"],
            "dim": train_spec["dim"] * (len(members) if side_by_side else 1),
            "ensemble": spec["ensemble"],
            "seed": train_spec["replicate"],
        },
        "role": {
            "primary_scorer": method.scorer,
            # A plug-in's objective need not be a classifier; the norm is what every embedding has.
            "default_confidence": method.default_confidence
            if method.default_confidence in first.confidence["test"]
            else "norm",
            "probabilistic": method.probabilistic,
            "trainings": spec["tuning_trainings"],
            "train": " ".join(filter(None, [spec["ensemble"], *spec["train"]])),
            "base_train": " ".join(filter(None, [spec["ensemble"], *bases])) if any(bases) else "",
        },
        "setting": {key: train_spec[key] for key in ("params", "optim", "augmentation")},
        "manifests": {"test": images.manifest} | _manifests(members),
        "corruptions": {
            kind: {
                "severity": images.tests["corruptions"][kind],
                "seed": images.seeds[kind],
                "sha256": corruptions.manifest_sha256(images.ids, quality, images.seeds[kind]),
            }
            for kind, quality in images.quality.items()
        },
    }


def _manifests(members: Sequence[Subject]) -> dict[str, str]:
    """What each model was trained and validated on; of several models, by the fold that validated."""
    found: dict[str, str] = {}
    for member in members:
        fold = f"_fold_{member.trained['spec']['fold']}" if len(members) > 1 else ""
        found |= {f"{part}{fold}": digest for part, digest in member.trained["manifests"].items()}
    return found


def _confidence_rows(
    scorer: Scorer, ranking: Ranking, confidence: Mapping[str, Tensor], images: _Images
) -> list[dict[str, Any]]:
    """Filter-out curves and risk areas of every confidence, with the random and the oracle control."""
    every = {**confidence, "random": images.noise}
    curves = filter_out_rows(
        scorer,
        images.labels,
        images.ids,
        every,
        oracle=True,
        fractions=tuple(images.tests["filter_fractions"]),
        seed=seed_for("ties", images.name),
        **images.roles,
        ranking=ranking,
    )
    asking = {kind: value[ranking.queries] for kind, value in every.items()}
    return [*curves, *risk_rows(per_query(ranking, ks=(1,)), asking, scorer=scorer.name)]


def _json_safe(item: dict[str, Any]) -> dict[str, Any]:
    """A value that does not exist (the correlation of a constant confidence, say) is null, not NaN, in JSON."""
    value = float(item["value"])
    return {**item, "value": value if math.isfinite(value) else None}


def _curve(kind: str, subject: Subject | Concatenated, images: _Images) -> dict[str, Any]:
    """Mean rank of each confidence, in [0, 1], in equal bins of the severity."""
    from scipy.stats import rankdata

    low, high = images.tests["corruptions"][kind]
    count = CURVE_BINS if high > low else 1
    width = (high - low) / count
    place = ((1 - images.quality[kind] - low) / (width or 1.0)).floor().clamp(0, count - 1).long()
    bins = [b for b in range(count) if bool((place == b).any())]
    ranks = {}
    for name, values in {**subject.confidence[f"test_{kind}"], "random": images.noise}.items():
        rank01 = (torch.as_tensor(rankdata(values.double().numpy())) - 0.5) / len(values)
        ranks[name] = [float(rank01[place == b].mean()) for b in bins]
    return {"severity": [low + (b + 0.5) * width for b in bins], "rank": ranks}


def _mean_curve(curves: Sequence[dict[str, Any]]) -> dict[str, Any]:
    ranks = {
        kind: [fmean(values) for values in zip(*(curve["rank"][kind] for curve in curves))]
        for kind in curves[0]["rank"]
    }
    return {"severity": curves[0]["severity"], "rank": ranks}


def _keep_arrays(folder: Path, members: Sequence[Subject], images: _Images) -> None:
    """Embeddings of the test images; of several models, one file each."""
    for member in members:
        arrays = {"labels": images.labels}
        arrays |= {f"{kind}_{'fraction' if kind == 'crop' else 'quality'}": q for kind, q in images.quality.items()}
        for name, split in (("clean", "test"), *((kind, f"test_{kind}") for kind in images.quality)):
            kind, parameters = to_arrays(member.embeddings[split])
            arrays |= {f"{name}.{key}": value.contiguous() for key, value in parameters.items()}
        fold = f"-fold-{member.trained['spec']['fold']}" if len(members) > 1 else ""
        data = save(arrays, {"distribution": kind, "ids": "\n".join(images.ids)})
        write_atomic(folder / f"embeddings{fold}.safetensors", data)
