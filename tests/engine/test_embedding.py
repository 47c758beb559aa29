"""What is tested does not depend on how images were stored or batched; training images never lead to test images."""

import pytest
import torch
from bench.engine.networks import at_once, backbone_features, embed, load_model
from bench.engine.queries import array_file
from bench.engine.training import run_training
from bench.methods._model import EmbeddingModel, EnsembleModel
from bench.methods.backbones.registry import build_backbone
from bench.methods.cosface import CosFace
from bench.methods.deep_ensemble import DeepEnsemble
from bench.methods.distributions.arrays import rows_of, to_arrays
from bench.methods.scorers import DistributionScorer
from bench.protocols.embeddings import Options
from bench.protocols.verification import sample_pairs, verification_rows
from bench.site import Site
from bench.store.files import file_texts
from safetensors.torch import load

from tests.plans import planned
from tests.retrieval_rows import retrieval_rows


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    torch.set_num_threads(1)
    return Site(results=str(tmp_path_factory.mktemp("results")))


def _train(method, site, base=None):
    """A network after two epochs on the smoke data, through the engine."""
    plan = planned(site, method, set=("optim.epochs=2",))[0][-1]
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
    verified = verification_rows(scores, pairs.same, (scores, pairs.same), Options())
    rows = [*retrieval_rows(scorer, labels), *verified]
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


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [32, 100, 2000])
def test_the_evaluation_batch_size_changes_values_by_less_than_a_millionth(trained, chunk):
    model, images = trained
    order = torch.arange(len(images))
    plain, distribution, _ = _values(model, images, order)
    other, again, _ = _values(model, images, order, chunk)
    assert other == pytest.approx(plain, abs=1e-6)
    torch.testing.assert_close(again.mean, distribution.mean, rtol=0, atol=1e-5)


def test_photographs_pass_few_at_a_time_and_small_images_as_ever():
    sides = {10: 256, 32: 256, 64: 256, 65: 128, 128: 64, 224: 16, 518: 16}
    assert {side: at_once(torch.empty(0, 3, side, side), 256) for side in sides} == sides
    assert at_once(torch.empty(0, 3, 224, 224), 8) == 8  # after memory ran out
    assert at_once(torch.empty(0, 1280), 256) == 256  # features
    assert at_once(torch.empty(0, 3, 224, 224, device="meta"), 256) == 256  # another device


@pytest.fixture(scope="module")
def photographs():
    """Images of which 64 pass at a time, and a trained network with two members for them."""
    torch.manual_seed(0)
    members = [EmbeddingModel(CosFace(), build_backbone("mobilenetv3_small_050", 3), 6, 8) for _ in range(2)]
    return torch.rand(70, 3, 96, 96), EnsembleModel(DeepEnsemble(), members)


def _parts(embedded):
    distribution, confidences = embedded
    return {**to_arrays(distribution)[1], **confidences}


def _assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.slow
def test_cached_features_of_photographs_embed_as_the_images_do(photographs):
    images, ensemble = photographs
    model = ensemble.members[0]
    features = backbone_features(model.backbone.eval(), images.__getitem__, 70, "cpu")
    whole = _parts(embed(model, images.__getitem__, 70, "cpu"))
    _assert_equal(_parts(embed(model, features.__getitem__, 70, "cpu", features=True)), whole)
    # Members with one backbone have its features once, others their own.
    twins = EnsembleModel(DeepEnsemble(), [model, model])
    cached = _parts(embed(twins, features.__getitem__, 70, "cpu", features=True))
    _assert_equal(_parts(embed(twins, images.__getitem__, 70, "cpu")), cached)
    each = [embed(member, images.__getitem__, 70, "cpu")[0].mean for member in ensemble.members]
    together = torch.cat([torch.nn.functional.normalize(mean, dim=-1) for mean in each], 1) / 2**0.5
    assert torch.equal(embed(ensemble, images.__getitem__, 70, "cpu")[0].mean, together)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 64, 69])
def test_the_values_of_photographs_do_not_depend_on_their_number(photographs, count):
    images, ensemble = photographs
    whole = _parts(embed(ensemble, images.__getitem__, 70, "cpu"))
    few = _parts(embed(ensemble, images.__getitem__, count, "cpu"))
    _assert_equal(few, {name: value[:count] for name, value in whole.items()})


def test_equal_arrays_and_texts_are_the_same_file():
    texts, arrays = {f"text{n}": "ä" * n for n in range(8)}, {"b": torch.arange(3), "a": torch.ones(2, 2)}
    (data,) = {array_file(arrays, texts) for _ in range(5)}  # by safetensors alone they are five files
    assert file_texts(data) == texts
    assert {name: each.tolist() for name, each in load(data).items()} == {"a": [[1, 1], [1, 1]], "b": [0, 1, 2]}
