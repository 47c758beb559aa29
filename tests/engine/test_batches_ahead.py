"""Batches that are made while the one before them is trained on."""

import threading
from types import SimpleNamespace

import pytest
import torch
from bench.datasets import ArrayImages, Augmentation, TrainVal
from bench.engine.inputs import GATHERED, AugmentedImages, CachedFeatures, Features


def _inputs(ahead):
    pixels = torch.randint(0, 256, (24, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = ArrayImages(pixels, torch.arange(24) % 4, map(str, range(24)), "abcd", mean=(0.5,), std=(0.2,))
    inputs = AugmentedImages(TrainVal(images, images, 0, 1), Augmentation(), "cpu")
    inputs.ahead = ahead
    return inputs


def _epoch(inputs, seed=1):
    rows = torch.randperm(24, generator=torch.Generator().manual_seed(0)).split(8)
    # Each input is kept as it is when it is handed out: none may change while it is used.
    return [(r, made, made.clone()) for r, made in inputs.in_turn(rows, torch.Generator().manual_seed(seed))]


def test_batches_are_those_made_in_turn():
    plain, ahead = _epoch(_inputs(False)), _epoch(_inputs(True))
    assert len(plain) == len(ahead) == 3
    for (rows, _, expected), (rows_too, later, found) in zip(plain, ahead):
        assert torch.equal(rows, rows_too)
        assert torch.equal(expected, found)
        assert torch.equal(later, found)
    assert not torch.equal(plain[0][2], _epoch(_inputs(False), seed=2)[0][2])


@pytest.mark.parametrize("apart", [False, True])
def test_features_that_are_gathered_together_are_those_of_each_batch(apart):
    views = torch.randn(3, 50, 4, generator=torch.Generator().manual_seed(0))
    held = tuple(views) if apart else views
    inputs = CachedFeatures(Features(held, held, views[0]), "cpu")
    sizes = [5] * GATHERED + [7, 3]  # the last ones are fewer than are gathered at once
    batches = torch.arange(sum(sizes)).remainder(50).split(sizes)
    gen = torch.Generator().manual_seed(1)
    expected = [inputs.batch(rows, gen) for rows in batches]
    found = list(inputs.in_turn(iter(batches), torch.Generator().manual_seed(1)))
    assert len(found) == len(expected)
    for rows, features, (rows_too, made) in zip(batches, expected, found):
        assert torch.equal(rows, rows_too)
        assert torch.equal(features, made)


def test_the_next_batch_is_made_before_this_one_is_done_with():
    inputs = _inputs(True)
    made = [threading.Event() for _ in range(3)]
    calls = iter(made)
    batch = inputs.batch
    inputs.batch = lambda rows, gen: (batch(rows, gen), next(calls).set())[0]
    for number, _ in enumerate(inputs.in_turn(torch.arange(24).split(8), torch.Generator())):
        assert made[min(number + 1, 2)].wait(300)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_batch_that_fails_fails_where_it_is_needed(ahead):
    inputs = _inputs(ahead)
    batch = inputs.batch

    def fails(rows, gen):
        if 16 in rows.tolist():
            raise OSError("gone")
        return batch(rows, gen)

    inputs.batch = fails
    batches = inputs.in_turn(torch.arange(24).split(8), torch.Generator())
    assert [next(batches)[0][0].item() for _ in range(2)] == [0, 8]
    with pytest.raises(OSError, match="gone"):
        next(batches)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_memory_is_used_again_only_after_a_copy(layout):
    """In the layout that a network wants, batches are not copied; in another one, one buffer serves all."""
    given = []

    def training(index, augmentation, generator, out=None):
        given.append(out)
        batch = torch.empty(len(index), 3, 4, 4).contiguous(memory_format=layout) if out is None else out
        return batch.copy_(index.float()[:, None, None, None].expand(-1, 3, 4, 4))

    images = SimpleNamespace(training=training)
    inputs = AugmentedImages(TrainVal(images, images, 0, 1), None, "cpu")
    batches = [inputs.batch(torch.arange(2) + k, None) for k in range(3)]
    assert [batch[:, 0, 0, 0].tolist() for batch in batches] == [[0, 1], [1, 2], [2, 3]]
    assert [out is None for out in given] == [True, *[layout is torch.channels_last] * 2]
