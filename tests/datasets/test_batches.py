from collections import Counter

import pytest
import torch
from bench.datasets.batches import class_balanced_batches
from hypothesis import given, settings
from hypothesis import strategies as st


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def label_list(sizes, seed=0):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return labels[torch.randperm(len(labels), generator=generator(seed))]


@st.composite
def problems(draw):
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=15))
    return sizes, draw(st.integers(1, len(sizes))), draw(st.integers(1, 7)), draw(st.integers(0, 2**32))


def drawn(problem, num_batches):
    """Labels, and batches of them."""
    sizes, p, k, seed = problem
    labels = label_list(sizes)
    return labels, class_balanced_batches(labels, p, k, generator(seed), num_batches)


@settings(deadline=None)
@given(problems(), st.integers(0, 30))
def test_every_batch_is_exactly_p_classes_by_k_images(problem, num_batches):
    sizes, p, k, _ = problem
    labels, batches = drawn(problem, num_batches)
    assert len(batches) == num_batches
    for batch in batches:
        assert batch.dtype == torch.int64
        assert batch.shape == (p * k,)
        by_class = labels[batch].view(p, k)
        assert (by_class == by_class[:, :1]).all()
        assert len(by_class[:, 0].unique()) == p
        for row, c in zip(batch.view(p, k).tolist(), by_class[:, 0].tolist()):
            times = Counter(row)
            assert len(times) == min(k, sizes[c])
            assert max(times.values()) - min(times.values()) <= 1


@settings(deadline=None)
@given(problems(), st.integers(0, 40))
def test_classes_are_visited_in_passes(problem, num_batches):
    sizes, p, k, _ = problem
    labels, batches = drawn(problem, num_batches)
    visits = Counter({c: 0 for c in range(len(sizes))})
    for batch in batches:
        visits.update(labels[batch].view(p, k)[:, 0].tolist())
        # A pass ends before the next but one starts, whatever is put off.
        assert max(visits.values()) - min(visits.values()) <= 2
    passes = num_batches * p // len(sizes)
    assert all(count >= passes - 1 for count in visits.values())
    if num_batches * p % len(sizes) == 0:
        assert set(visits.values()) == {passes}


@settings(deadline=None)
@given(problems(), st.integers(1, 40))
def test_images_of_a_class_are_used_evenly(problem, num_batches):
    sizes = problem[0]
    labels, batches = drawn(problem, num_batches)
    used = torch.cat(batches).bincount(minlength=len(labels))
    for c in range(len(sizes)):
        counts = used[labels == c]
        assert counts.max() - counts.min() <= 2
        if counts.sum() % sizes[c] == 0:
            assert counts.max() == counts.min()


def test_default_is_one_epoch():
    assert len(class_balanced_batches(label_list([8] * 187), 16, 4, generator())) == 187 * 8 // 64
    assert len(class_balanced_batches(label_list([1, 1]), 2, 4, generator())) == 1


def test_generator_decides():
    labels = label_list([5] * 20)
    first, again, other = (torch.stack(class_balanced_batches(labels, 4, 3, generator(s))) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_passes_and_images_are_shuffled():
    labels = torch.arange(40).repeat_interleave(8)
    orders = [labels[torch.cat(class_balanced_batches(labels, 40, 4, generator(s), 2))][::4] for s in (0, 1)]
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0][:40], orders[0][40:])
    # With 4 of 8 images per visit, two images meet in a batch in 3/7 of the passes: halves must change.
    batches = class_balanced_batches(torch.zeros(8), 1, 4, generator(), 2000)
    together = sum({0, 1} <= set(b.tolist()) or not {0, 1} & set(b.tolist()) for b in batches) / 2000
    assert together == pytest.approx(3 / 7, abs=0.04)


def test_labels_need_not_be_contiguous():
    (batch,) = class_balanced_batches(torch.tensor([9, 9, -3, -3, 70, 70]), 3, 2, generator())
    assert sorted(batch.tolist()) == [0, 1, 2, 3, 4, 5]


def test_bad_arguments():
    labels = torch.tensor([0, 0, 1])
    with pytest.raises(ValueError, match="needs as many; there are 2"):
        class_balanced_batches(labels, 3, 1, generator())
    with pytest.raises(ValueError, match="at least 1"):
        class_balanced_batches(labels, 1, 0, generator())
    with pytest.raises(ValueError, match="not be negative"):
        class_balanced_batches(labels, 1, 1, generator(), -1)
    with pytest.raises(ValueError, match="one-dimensional"):
        class_balanced_batches(labels[:, None], 1, 1, generator())
