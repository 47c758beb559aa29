"""Methods that are fitted in one pass, with a base or without, and an ensemble of the seeds of a base."""

from __future__ import annotations

import pytest
import torch
from bench.engine.jobs import TrainJob
from bench.engine.networks import backbone_features, load_model
from bench.engine.worker import run_job
from bench.errors import UnitFailed
from bench.methods.backbones.registry import build_backbone
from bench.methods.distributions.normal import PointMass
from bench.methods.scorers.spec import DistributionScorer
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.protocols.query_metrics import map_at_r
from bench.site import Site
from safetensors.torch import load_file, save_file

from tests.engine.conftest import Cli, records_of

RUN = ("run", "--method", "norm_softmax,laplace,deep_ensemble", "--base", "norm_softmax", "--dataset", "ndigit_smoke")
FEW = ("--set", "optim.epochs=1", "--seeds", "2", "--trials", "2", "--studies", "1", "--workers", "2")


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


def _fitted(folder, weights=None, seeds=(0,), **request):
    """Records of some seeds, as a worker writes them, and the lines that are said about random weights."""
    site = Site(results=str(folder), weights=None if weights is None else str(weights))
    asked = {"hparams": "default", "dim": 16, "set": ("data.feature_views=1",), **request}
    built = build_plans(Experiment(methods=("untrained",), datasets=("ndigit_smoke",), **asked), site)
    (plan,) = built.plans
    records = []
    for seed in seeds:
        (spec,) = plan.train_specs({}, seed, None).values()
        run_job(TrainJob(spec=spec, site=site), lambda event: None)
        records.append(site.store.trained(spec.cell, spec.id))
    return records, site, built.lines


def _head(record, site):
    model, _ = load_model(record.cell, record.unit, site)
    return model.mean.weight


@pytest.mark.slow
def test_a_network_with_given_weights_is_the_same_for_every_seed_and_with_cached_features(tmp_path, weights):
    (first, second), site, notes = _fitted(tmp_path / "runs", weights, seeds=(0, 1))
    assert first.unit != second.unit
    assert torch.equal(_head(first, site), _head(second, site))
    assert first.val_map_at_r == second.val_map_at_r
    assert (len(first.history), first.best_epoch) == (1, 1)
    assert notes == ()
    (cached,), frozen_site, _ = _fitted(tmp_path / "frozen", weights, frozen=True)
    torch.testing.assert_close(_head(cached, frozen_site), _head(first, site), rtol=0, atol=1e-4)
    assert cached.val_map_at_r == pytest.approx(first.val_map_at_r, abs=1e-3)


def test_without_a_reduction_the_value_is_that_of_the_pooled_features(tmp_path, weights):
    unwhitened = ("data.feature_views=1", "method.whitening=0")
    (record,), site, _ = _fitted(tmp_path, weights, dim=64, set=unwhitened)
    backbone = build_backbone("convnet", 1, weights).eval()
    val = site.dataset("ndigit_smoke", record.spec.view).train_val(record.spec.fold, record.spec.folds).val
    features = backbone_features(backbone, val.evaluation, len(val), "cpu")
    scorer = DistributionScorer("cosine", PointMass(features), {}, "cpu")
    assert record.val_map_at_r == map_at_r(scorer, val.labels)


def test_features_that_are_not_finite_fail_the_unit(tmp_path, weights):
    network = build_backbone("convnet", 1, weights)
    with torch.no_grad():
        network.features[0].weight.fill_(3e38)
    broken = tmp_path / "broken.safetensors"
    save_file(network.state_dict(), broken)
    with pytest.raises(UnitFailed, match="features of the training images are not finite"):
        _fitted(tmp_path / "runs", broken)
