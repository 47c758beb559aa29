import numpy as np
import pytest


@pytest.fixture
def arrays():
    """A small set with everything in it; classes of different sizes, one of a single image."""
    rng = np.random.default_rng(7)
    labels = np.array([0] * 9 + [1] * 7 + [2] * 6 + [3] * 5 + [4] * 4 + [5] * 4 + [6] * 3 + [7] * 2 + [8])
    quality = rng.uniform(0.3, 1.0, len(labels))
    embeddings = rng.normal(size=(9, 6))[labels] + 0.7 / quality[:, None] * rng.normal(size=(len(labels), 6))
    return {
        "embeddings": embeddings.astype(np.float32),
        "labels": labels,
        "confidence": quality + 0.2 * rng.normal(size=len(labels)),
        "quality": quality,
    }


@pytest.fixture
def bench(tmp_path, monkeypatch, bench):
    """The command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return bench


@pytest.fixture
def refused(bench):
    """The one line with which a command is refused."""

    def call(*arguments):
        code, out, err = bench(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err

    return call
