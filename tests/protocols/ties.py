"""Rankings with ties, from the definitions."""

import itertools


def orders_of(scores, others):
    """Every order of the gallery that sorted scores allow (tied items permuted), equally likely."""
    levels = sorted({scores[j] for j in others}, reverse=True)
    groups = [[j for j in others if scores[j] == level] for level in levels]
    for parts in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield [j for part in parts for j in part]


def precision_sum(hits):
    """Sum of the precisions at the places of the hits."""
    return sum(sum(hits[:place]) / place for place, hit in enumerate(hits, 1) if hit)
