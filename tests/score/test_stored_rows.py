"""Embeddings are kept as they were given: no copy in float64, none in order, the same numbers when they are read."""

import warnings

import bench
import numpy as np
import pytest
import torch
from bench.methods.distributions import PointMass
from bench.methods.distributions.arrays import in_float64, rows_of
from bench.scoring.embedding_set import EmbeddingSet, StoredRows
from bench.scoring.score import score_set, tidy
from bench.scoring.view import confidences_of, distribution_of

LABELS = np.arange(60) % 6


def _given(dtype=np.float32):
    return np.random.default_rng(0).normal(size=(60, 5)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_set_holds_the_array_itself_in_any_order(dtype):
    x = _given(dtype)
    images = EmbeddingSet.of({"embeddings": x, "labels": LABELS})
    ordered = images.in_order()
    assert ordered.ids == tuple(sorted(images.ids)) != images.ids
    for rows in (images.embeddings, ordered.embeddings):
        assert np.shares_memory(rows.stored, x)
    place = [images.ids.index(name) for name in ordered.ids]
    assert np.array_equal(ordered.embeddings[:], x[place].astype(np.float64))
    assert np.array_equal(np.concatenate(list(ordered.embeddings.blocks())), ordered.embeddings[:])


def test_names_and_digest_do_not_depend_on_how_numbers_are_stored():
    x = _given()
    x[3, 1] = -0.0
    expected = EmbeddingSet.of({"embeddings": x.astype(np.float64), "labels": LABELS})
    positive = x.copy()
    positive[3, 1] = 0.0
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    for same in (x, positive, strided, np.asfortranarray(x), x.astype(">f4"), x.tolist()):
        found = EmbeddingSet.of({"embeddings": same, "labels": LABELS})
        assert (found.ids, found.digest()) == (expected.ids, expected.digest())


@pytest.mark.parametrize("normalize", [True, False])
def test_points_are_those_of_a_float64_copy_to_the_last_bit(normalize):
    x = 1e3 * _given()
    points = distribution_of(EmbeddingSet.of({"embeddings": x, "labels": LABELS}), normalize)
    whole = torch.from_numpy(x).double()
    if normalize:
        whole = torch.nn.functional.normalize(whole / whole.abs().amax(1, keepdim=True), dim=-1)
    index = torch.tensor([7, 3, 59, 3])
    assert torch.equal(rows_of(points, index).mean, whole[index])
    assert torch.equal(points.loc, whole)
    assert type(in_float64(points)) is PointMass
    assert torch.equal(in_float64(points).mean, whole)


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e-300])
def test_one_row_of_another_scale_has_its_norm_and_leaves_those_of_the_others(scale):
    x = _given(np.float64)
    x[7] *= 1e3 if scale > 1 else 1e-3
    there = np.where(np.arange(60) == 7, scale, 1)
    sets = [
        EmbeddingSet.of({"embeddings": each, "labels": LABELS, "ids": np.arange(60)})
        for each in (x, x * there[:, None])
    ]
    scored = [score_set(each, scorers="cosine", metrics="all") for each in sets]
    tables = [tidy({"": each}).drop(columns="unit") for each in scored]
    assert tables[0].equals(tables[1])
    norm = confidences_of(sets[1], distribution_of(sets[1]))["norm"].numpy()
    assert norm == pytest.approx(np.linalg.norm(x, axis=1) * there, rel=1e-9, abs=0)


def test_an_array_that_cannot_be_written_is_scored_and_left_as_it_is():
    x = _given()
    x.flags.writeable = False
    before = x.copy()
    with warnings.catch_warnings(action="error"):
        frame = bench.score(x, LABELS).table
    assert frame.equals(bench.score(before.astype(np.float64), LABELS).table)
    assert np.array_equal(x, before)


def test_rows_of_rows_keep_their_order():
    rows = StoredRows.of(np.arange(6.0).reshape(3, 2)).reordered(np.array([2, 0, 1])).reordered(np.array([1, 2, 0]))
    assert rows[:].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert (len(rows), rows.shape) == (3, (3, 2))
