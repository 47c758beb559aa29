"""Views of images by their scores, and the rows that a group of tests makes of them."""

import torch
from bench.protocols.declare import run_battery
from bench.protocols.embeddings import Embeddings
from bench.protocols.known_tests import load_tests
from bench.protocols.ranking import ScoreMatrix


def view_of(labels, scores, name="cosine", **changes):
    """Images that are compared by a scorer, or by the scores ``[N, N]`` of one."""
    scorer = ScoreMatrix(scores, name) if isinstance(scores, torch.Tensor) else scores
    ids = tuple(f"image {i:03d}" for i in range(len(labels)))
    given = {"labels": labels, "ids": ids, "scorers": {name: lambda: scorer}, "own_scorers": (name,), "seed": len}
    return Embeddings(**(given | changes))


def rows_of(view, group, *keys):
    """Rows of a group of tests by the values in some columns."""
    return {tuple(row[key] for key in keys): row for row in run_battery(view, load_tests([group]))}
