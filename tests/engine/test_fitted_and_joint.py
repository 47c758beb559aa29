"""End to end: a method that is fitted in one pass, and an ensemble of the seeds of a base."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from tests.engine.conftest import Cli, records_of

RUN = ("run", "--method", "norm_softmax,laplace,deep_ensemble", "--base", "norm_softmax", "--dataset", "ndigit_smoke")
FEW = ("--set", "optim.epochs=1", "--seeds", "2", "--trials", "2", "--workers", "2")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    cli = Cli(tmp_path_factory.mktemp("joint"))
    cli(*RUN, *FEW)
    again = cli(*RUN, *FEW)
    assert "0 trainings done" in again.stderr + again.stdout
    return cli.cwd / "results" / "runs"


def _value(record, metric, split="test"):
    rows = record["rows"]
    return next(r["value"] for r in rows if (r["metric"], r["split"], r["scorer"]) == (metric, split, "cosine"))


@pytest.mark.slow
def test_a_fit_is_one_epoch_that_keeps_the_means_of_its_base(results):
    trained = records_of(results, "laplace", "train")
    assert len(trained) == 4  # two trials, two seeds
    assert {len(record["history"]) for record in trained} == {1}
    bases = {record["role"]["train"]: record for record in records_of(results, "norm_softmax", "test")}
    tests = records_of(results, "laplace", "test")
    assert len(tests) == 2
    for record in tests:
        assert _value(record, "map_at_r") == _value(bases[record["role"]["base_train"]], "map_at_r")
    # At some bases no pair is within the margin.
    fitted = [load_file(path) for path in results.glob("*/*/laplace/train-*/weights.safetensors")]
    assert max(float(weights["spread.hessian"].max()) for weights in fitted) > 0


@pytest.mark.slow
def test_an_ensemble_is_ranked_by_the_mean_of_its_members_cosines(results):
    (record,) = records_of(results, "deep_ensemble", "test")
    members = records_of(results, "norm_softmax", "test")
    assert not records_of(results, "deep_ensemble", "train")
    columns = record["columns"]
    assert (columns["base"], columns["seed"], columns["ensemble"]) == ("norm_softmax", 0, "seeds")
    assert columns["dim"] == 2 * members[0]["columns"]["dim"]
    assert record["role"]["trainings"] == members[0]["role"]["trainings"] + 2
    assert set(record["role"]["train"].split()[1:]) == {member["role"]["train"] for member in members}
    assert "val" not in {row["split"] for row in record["rows"] if row["metric"] == "map_at_r"}
    kept = [load_file(path) for path in results.glob("*/*/norm_softmax/test-*/embeddings.safetensors")]
    means = [torch.nn.functional.normalize(arrays["clean.loc"].double(), dim=-1) for arrays in kept]
    scores = torch.stack([u @ u.mT for u in means]).mean(0).fill_diagonal_(-2)
    labels = kept[0]["labels"]
    right = (labels[scores.argmax(1)] == labels).double()
    lone = (labels[:, None] == labels).sum(1) == 1
    assert _value(record, "recall_at_1") == pytest.approx(float(right[~lone].mean()), abs=1e-9)
