"""What is tested does not depend on how images were stored or batched; training images never lead to test images."""

import pytest
import torch
from bench.datasets.corruptions._base import draw_quality
from bench.engine.networks import embed, load_model
from bench.engine.training import run_training
from bench.methods.distributions import rows_of, to_arrays
from bench.methods.scorers import DistributionScorer
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.protocols.retrieval import retrieval_rows
from bench.protocols.verification import sample_pairs, verification_rows
from bench.site import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    torch.set_num_threads(1)
    return Site(results=str(tmp_path_factory.mktemp("results")))


def _train(method, site, base=None):
    """A network after two epochs on the smoke data, through the engine."""
    request = Experiment(methods=(method,), datasets=("ndigit_smoke",), hparams="default", set=("optim.epochs=2",))
    plan = next(plan for plan in build_plans(request, site).plans if plan.cell.method == method)
    if plan.base is not None:
        base = {0: _train(plan.base.cell.method, site)}
    spec = plan.train_specs({}, 0, base)[0]
    run_training(spec, site, lambda epoch: None)
    return spec


@pytest.fixture(scope="module", params=["cosface", "pfe", "dul_cls"])
def trained(request, site):
    spec = _train(request.param, site)
    model, record = load_model(spec.cell, spec.id, site)
    assert spec.cell == ("reality_check", "ndigit_smoke", request.param)
    assert set(record.manifests) == {"train", "val"}
    return model, site.dataset("ndigit_smoke").test()


def _values(model, images, order, chunk=256):
    ids = [images.ids[i] for i in order]
    labels = images.labels[order]
    distribution, confidence = embed(model, lambda rows: images.evaluation(order[rows]), len(order), "cpu", chunk)
    scorer = DistributionScorer(model.method.scorer, distribution)
    pairs = sample_pairs(labels, ids, 0)
    scores = scorer.pairs(pairs.left, pairs.right)
    rows = [*retrieval_rows(scorer, labels), *verification_rows(scores, pairs.same, scores, pairs.same)]
    return {(r["metric"], r["variant"]): r["value"] for r in rows}, distribution, confidence


def test_the_order_of_images_changes_no_value(trained):
    model, images = trained
    plain, distribution, confidence = _values(model, images, torch.arange(len(images)))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    mixed, shuffled, other = _values(model, images, order)
    assert plain == mixed
    for name, value in to_arrays(rows_of(distribution, order))[1].items():
        assert torch.equal(value, to_arrays(shuffled)[1][name]), name
    for name, value in confidence.items():
        assert torch.equal(value[order], other[name]), name


@pytest.mark.parametrize("chunk", [32, 100, 2000])
def test_the_evaluation_batch_size_changes_values_by_less_than_a_millionth(trained, chunk):
    model, images = trained
    order = torch.arange(len(images))
    plain, distribution, _ = _values(model, images, order)
    other, again, _ = _values(model, images, order, chunk)
    assert other == pytest.approx(plain, abs=1e-6)
    torch.testing.assert_close(again.mean, distribution.mean, rtol=0, atol=1e-5)


def test_crops_depend_on_the_image_and_not_on_its_place(trained):
    _, images = trained
    fraction = draw_quality("crop", images.ids, 3, 0.0, 0.5)
    rows = torch.tensor([5, 900, 17])
    alone = torch.cat([images.cropped(rows[i : i + 1], fraction[rows[i : i + 1]]) for i in range(3)])
    assert torch.equal(images.cropped(rows, fraction[rows]), alone)
