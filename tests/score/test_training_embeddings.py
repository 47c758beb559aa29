"""Free confidences of training embeddings in ``bench.score`` and ``bench score``."""

import bench
import numpy as np
import pytest
from bench.errors import BadInput
from bench.methods.training_density import TrainingDensity
from bench.scoring.embedding_set import EmbeddingSet

NAMES = ("knn_density", "mahalanobis", "relative_mahalanobis", "vmf_mixture")


def arrays(seed=0):
    draw = np.random.default_rng(seed)
    train_labels, labels = np.repeat(np.arange(8), 30), np.repeat(np.arange(20), 12)
    centres = draw.normal(size=(28, 6))
    return {
        "embeddings": 3 * (centres[8:][labels] + draw.normal(size=(240, 6))),
        "labels": labels,
        "confidence": draw.random(240),
        "train_embeddings": centres[train_labels] + draw.normal(size=(240, 6)),
        "train_labels": train_labels,
    }


def test_they_are_judged_beside_the_given_confidence_and_equal_those_of_the_class():
    import torch

    given = arrays()
    found = bench.score(**given)
    table = found.table
    unit = torch.from_numpy(given["train_embeddings"] / np.linalg.norm(given["train_embeddings"], axis=1)[:, None])
    test = torch.from_numpy(given["embeddings"] / np.linalg.norm(given["embeddings"], axis=1)[:, None])
    density = TrainingDensity(unit.__getitem__, torch.from_numpy(given["train_labels"]))
    for name, values in density.confidences(test.__getitem__, len(test)).items():
        np.testing.assert_allclose(found.queries[f"confidence.{name}"], values, rtol=1e-9)
        assert len(table[(table["confidence"] == name) & (table["metric"] == "confidence_auroc")]) == 1
        assert not ((table["confidence"] == name) & (table["metric"] == "filter_out_map_at_r")).any()


def test_nothing_depends_on_the_order_of_the_training_rows_and_other_values_stay():
    given = arrays()
    table = bench.score(**given).table
    order = np.random.default_rng(1).permutation(240)
    mixed = {name: value[order] if name.startswith("train") else value for name, value in given.items()}
    np.testing.assert_array_equal(bench.score(**mixed).table["value"], table["value"])
    without = bench.score(**{name: given[name] for name in ("embeddings", "labels", "confidence")}).table
    kept = table[~table["confidence"].str.contains("|".join((*NAMES, "posterior")))]
    np.testing.assert_array_equal(kept["value"], without["value"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": None}, "train_labels missing"),
        ({"train_embeddings": None}, "train_embeddings missing"),
        ({"train_embeddings": np.ones((240, 5))}, r"must have the shape \[M, 6\], as embeddings, not \[240, 5\]"),
        ({"train_embeddings": np.ones((0, 6)), "train_labels": np.ones(0, int)}, r"must have the shape \[M, 6\]"),
        ({"train_embeddings": np.zeros((240, 6))}, "240 rows of zeros, first in row 0"),
        ({"train_embeddings": np.full((240, 6), np.nan)}, "train_embeddings holds 1440 values that are not finite"),
        ({"train_labels": np.arange(3)}, r"train_labels must have the shape \[240\]"),
        ({"train_labels": np.full(240, 0.5)}, "train_labels are float64 numbers"),
    ],
)
def test_wrong_training_arrays_are_refused_in_one_line(changes, message):
    given = {name: value for name, value in {**arrays(), **changes}.items() if value is not None}
    with pytest.raises(BadInput, match=message) as error:
        bench.score(**given)
    assert "\n" not in str(error.value)


def test_training_labels_may_be_text():
    given = arrays()
    names = [f"class {label}" for label in given["train_labels"]]
    found, expected = (bench.score(**each).queries for each in ({**given, "train_labels": names}, given))
    columns = [f"confidence.{name}" for name in NAMES]
    np.testing.assert_allclose(found[columns], expected[columns])


def test_a_file_says_that_they_are_missing_or_that_rows_were_trained_on(tmp_path):
    given = arrays()
    np.savez(tmp_path / "whole.npz", **given)
    np.savez(tmp_path / "bare.npz", **{name: given[name] for name in ("embeddings", "labels", "confidence")})
    assert "mahalanobis" in (whole := bench.score(tmp_path / "whole.npz").summary())
    assert "are missing" not in whole
    assert "give train_embeddings and train_labels." in bench.score(tmp_path / "bare.npz").summary(400)
    given["train_embeddings"][:5] = given["embeddings"][:5]
    assert "5 rows are among train_embeddings" in EmbeddingSet.of(given).notes[0]
    given["train_embeddings"][5:10] = given["embeddings"][:5]
    assert "5 rows are among train_embeddings" in EmbeddingSet.of(given).notes[0]
    assert EmbeddingSet.of(given).digest() != EmbeddingSet.of(arrays()).digest()
