"""``bench run`` and ``bench score`` measure the same: on the same arrays, every value is equal to the last digit."""

from dataclasses import replace
from types import SimpleNamespace

import bench
import numpy as np
import pytest
import torch
from bench.engine.embedded_model import EmbeddedModel
from bench.engine.testing import TestImages, rows_of_model, views_of_model
from bench.methods._model import norm_confidence
from bench.methods.distributions import IsotropicNormal
from bench.protocols import Tests
from bench.protocols.embeddings import Embeddings
from bench.protocols.known_tests import known_groups
from bench.protocols.retrieval_confidence import random_confidence
from bench.seeds import seed_for

KEYS = ("scorer", "confidence", "variant", "metric", "fraction")


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(9), [14, 12, 11, 9, 8, 6, 5, 3, 1])
    x = rng.normal(size=(9, 8))[labels] + 0.9 * rng.normal(size=(len(labels), 8))
    return x, labels, rng.uniform(0.05, 0.4, len(labels)), [f"image {i:03d}" for i in range(len(labels))]


def _rows_of_run(x, labels, variance, ids):
    """Rows of the clean test images, as ``bench run`` makes them, with the seeds of ``bench score``."""
    raw = torch.from_numpy(x)
    unit = torch.nn.functional.normalize(raw / raw.abs().amax(1, keepdim=True), dim=-1)
    distribution = IsotropicNormal(unit, torch.from_numpy(variance))
    images = SimpleNamespace(labels=torch.from_numpy(labels), ids=tuple(ids))
    noise = random_confidence(ids, seed_for("score", "random confidence"))
    confidences = {"method": -torch.from_numpy(variance).log(), "norm": norm_confidence(raw)}
    shown = {"labels": images.labels, "ids": images.ids, "confidences": {"random": noise}}
    view = Embeddings(**shown, seed=lambda purpose: seed_for("score", purpose))
    model = EmbeddedModel(
        method=SimpleNamespace(scorer="mls"),
        embeddings={"test": distribution, "val": distribution},
        confidence={"test": confidences, "val": confidences},
        own_scorer="mls",
        options={},
        trained=SimpleNamespace(
            val_map_at_r=0.5,
            spec=SimpleNamespace(
                dataset="d", replicate=0, number=0, folds=4, selection=SimpleNamespace(scorer="mls", candidates=0)
            ),
        ),
        validation=images,
        device="cpu",
    )
    test_images = TestImages(images, {}, replace(view))
    spec = SimpleNamespace(tests=Tests(groups=known_groups()), scorers=(), ensemble="")
    views = views_of_model(model, test_images, spec)
    return [row for row in rows_of_model(model, spec, views) if row["split"] == "test"]


def _by_key(rows):
    plain = [{key: None if value != value else value for key, value in row.items()} for row in rows]
    values = {tuple(row[key] for key in KEYS): (row["value"], row["n_queries"], row["n_lone"]) for row in plain}
    assert len(values) == len(rows)
    return values


@pytest.mark.slow
def test_both_commands_give_the_same_values(arrays):
    x, labels, variance, ids = arrays
    of_run = _by_key(_rows_of_run(x, labels, variance, ids))
    path = {"embeddings": x, "labels": labels, "variance": variance, "ids": np.array(ids)}
    from bench.scoring.embedding_set import EmbeddingSet
    from bench.scoring.score import score_set, tidy

    scored = score_set(EmbeddingSet.of(path), scorers=("mls", "cosine"), metrics=("all",))
    of_score = _by_key(tidy({"": scored}).to_dict("records"))
    # Confidences are judged with the method's own scorer by the one, with every scorer by the other, and a threshold
    # comes from validation classes there and from held-out classes here. Fits, sets,
    # operating points and probabilities come from validation classes; sets and OPIS are for the method's own scorer.
    only_run = {key for key in of_run if key not in of_score and not key[3].startswith("operating_")}
    only_score = {key for key in of_score if key not in of_run}
    sets = ("set_size_at_90", "set_coverage_at_90")
    expected = {("threshold_val", "verification_accuracy"), *(("calibrated_val", metric) for metric in sets)}
    assert {key[2:4] for key in only_run if not key[1]} == expected
    calibrated = {"ece_top1", "brier_top1", "posterior"}
    fitted = {f"{image}margin+agreement" for image in ("method+", "norm+", "")}
    assert {key[1] for key in only_run if key[1] and not calibrated & {*key[:4]}} == fitted
    assert {key[0] for key in only_score if key[1]} == {"cosine"}
    expected = {("threshold_held_out_classes", "verification_accuracy"), ("", "opis")}
    expected |= {("calibrated_classes", metric) for metric in sets}
    assert {key[2:4] for key in only_score if not key[1]} == expected
    both = set(of_run) & set(of_score)
    assert {key[3] for key in both} >= set(bench.score(x, labels, metrics=["all"]).table["metric"])
    assert {key[3] for key in both} >= {"aurc", "e_aurc", "confidence_auroc", "filter_out_map_at_r"}
    assert [(key, of_run[key], of_score[key]) for key in both if of_run[key] != of_score[key]] == []
