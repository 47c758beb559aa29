"""Fitting a method to a network at its starting weights: no base, no steps."""

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
from safetensors.torch import save_file

METHOD = "untrained"


def _fitted(folder, weights=None, seeds=(0,), **request):
    """Records of some seeds, as a worker writes them, and the lines that are said about random weights."""
    site = Site(results=str(folder), weights=None if weights is None else str(weights))
    asked = {"hparams": "default", "dim": 16, "set": ("data.feature_views=1",), **request}
    built = build_plans(Experiment(methods=(METHOD,), datasets=("ndigit_smoke",), **asked), site)
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
