"""Tests of models on cached features of the backbone that they share: equal numbers, without the backbone."""

import shutil

import pytest
import torch
from bench.engine.embedded_model import EmbeddedModel
from bench.engine.inputs import CorruptedImages, Seen, TestedFeatures
from bench.engine.networks import load_ensemble, load_model
from bench.engine.running import Running
from bench.engine.scheduler import base_is_shared
from bench.engine.training import run_training
from bench.methods.backbones.registry import build_backbone
from bench.methods.distributions import to_arrays
from bench.site import Site
from bench.store.check import damages
from safetensors.torch import save_file

from tests.plans import first_seed, planned

SHORT = ("optim.epochs=1", "data.feature_views=1", "data.epoch_repeats=0.1")
SPLITS = ["test", "test_crop", "val", "val_crop"]
KEPT = sorted(["train", *SPLITS, *(f"{split}.{end}_corner" for split in SPLITS for end in ("first", "last"))])


def _plans(site, *methods, frozen=True):
    return [plan for plan in planned(site, *methods, frozen=frozen, seeds=2, set=SHORT)[0] if not plan.added]


def _train(site, *methods, frozen=True):
    """Records of one seed of the default base and of heads on it, by method."""
    specs = first_seed(_plans(site, *methods, frozen=frozen))
    return {method: run_training(spec, site, lambda epoch: None) for method, spec in specs.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A results folder with two seeds of a base and a head on a frozen backbone, and their records."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("tested")
    torch.manual_seed(0)
    save_file(build_backbone("convnet", 1).state_dict(), folder / "start.safetensors")
    site = Site(results=str(folder / "runs"), weights=str(folder / "start.safetensors"))
    site.store.mark("reality_check", 1)
    records = _train(site, "pfe")
    second = next(iter(_plans(site, "cosface"))).train_specs({}, 1, None)[0]
    records["cosface 1"] = run_training(second, site, lambda epoch: None)
    return site, records


@pytest.fixture
def copy(trained, tmp_path):
    """The same in a results folder of its own, without the starting weights."""
    site, records = trained
    shutil.copytree(site.results, tmp_path / "runs")
    return Site(results=str(tmp_path / "runs"), weights="gone.safetensors"), records


def _crops(site, severity=(0.0, 0.5)):
    return {"crop": CorruptedImages.of(site.dataset("ndigit_smoke").test(), "ndigit_smoke", "crop", severity)}


def _embedded(site, record, shared=False):
    return EmbeddedModel.of(*load_model(record.cell, record.unit, site), site, _crops(site), Running(), shared)


def _ensemble(site, records):
    units = [records[name].unit for name in ("cosface", "cosface 1")]
    cell = records["cosface"].cell
    return EmbeddedModel.of(*load_ensemble("deep_ensemble", cell, units, site), site, _crops(site), Running())


def _directly(embed):
    """Embeddings by the whole network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TestedFeatures, "of", lambda *given: None)
        return embed()


def _assert_same(one, other):
    for split in SPLITS:
        assert torch.equal(*(torch.cat(list(map(torch.Tensor.flatten, to_arrays(m.embeddings[split])[1].values())))
                             for m in (one, other))), split  # fmt: skip
        assert one.confidence[split].keys() == other.confidence[split].keys()
        for name, values in one.confidence[split].items():
            assert torch.equal(values, other.confidence[split][name]), (split, name)


def _files(site, pattern=".features/*/*"):
    return sorted(path.name.split("-")[0] for path in site.store.root.glob(pattern))


@pytest.fixture
def no_backbone(monkeypatch):
    """A function from whose call on no backbone may run."""

    def forbid():
        for name in ("bench.methods._model.EmbeddingModel.features", "bench.engine.inputs.backbone_features"):
            monkeypatch.setattr(name, lambda *_, **__: pytest.fail("the backbone has run"))

    return forbid


@pytest.mark.slow
def test_every_model_on_one_frozen_backbone_is_tested_on_the_same_features(copy, no_backbone):
    site, records = copy
    alone, together = _directly(lambda: (_embedded(site, records["pfe"]), _ensemble(site, records)))
    assert _files(site) == ["directions64", "evaluation", "view0"]
    _assert_same(_embedded(site, records["pfe"]), alone)
    assert _files(site) == sorted(["directions64", "evaluation", "view0", *KEPT])
    assert damages(site.store.root) == []
    no_backbone()
    _assert_same(_ensemble(site, records), together)


@pytest.mark.slow
def test_methods_with_other_heads_are_tested_on_the_same_features(copy, trained, no_backbone):
    site = copy[0].model_copy(update={"weights": trained[0].weights})
    records = list(_train(site, "cosface", "laplace", "mc_dropout", "hib").values())
    directly = [_directly(lambda record=record: _embedded(site, record)) for record in records]
    _embedded(site, records[0])
    no_backbone()
    for record, expected in zip(records, directly):
        _assert_same(_embedded(site, record), expected)


@pytest.mark.slow
def test_heads_on_a_trained_base_read_features_that_a_test_has_kept(tmp_path, no_backbone):
    site = Site(results=str(tmp_path / "runs"))
    site.store.mark("reality_check", 1)
    records = _train(site, "pfe", "laplace", frozen=False)
    heads = [records["pfe"], records["laplace"]]
    directly = [_directly(lambda head=head: _embedded(site, head)) for head in heads]
    base = site.store.unit_dir(records["cosface"].cell, "train", records["cosface"].unit)
    before = sorted(base.iterdir())
    _assert_same(_embedded(site, heads[0]), directly[0])
    assert sorted(base.iterdir()) == before  # the features of a base with one head would serve nobody
    aside = base.rename(tmp_path / "aside")
    _assert_same(_embedded(site, heads[0], shared=True), directly[0])
    assert not base.exists()  # a folder of features alone is no training
    aside.rename(base)
    _embedded(site, heads[0], shared=True)
    assert sorted(path.name.split("-")[1] for path in base.glob("features-*") if path not in before) == KEPT
    assert damages(site.store.root) == []
    no_backbone()
    for head, expected in zip(heads, directly):
        _assert_same(_embedded(site, head), expected)
    with pytest.raises(pytest.fail.Exception, match="the backbone has run"):
        _embedded(site, records["cosface"])  # a model that trains its backbone has no cache


def test_trainings_on_a_frozen_network_embed_the_crops_of_the_validation_images_once(copy, trained, no_backbone):
    site = copy[0].model_copy(update={"weights": trained[0].weights})
    specs = [record.spec.replaced(crop_confidence=(0.0, 0.5)) for record in copy[1].values()]

    def values():
        return [run_training(spec, site, lambda epoch: None).val_confidence_auroc for spec in specs]

    directly = _directly(values)
    run_training(specs[0], site, lambda epoch: None)
    no_backbone()
    assert values() == directly
    assert len(set(directly)) == len(specs)
    assert _files(site).count("val_crop") == 1


@pytest.fixture
def few(copy):
    """Cached features for a head, a function that loads those of 40 crops, and the folder of the files."""
    site, records = copy
    record = records["pfe"]
    images = site.dataset("ndigit_smoke").test().select(torch.arange(40))

    def load(split="test_crop", severity=(0.0, 0.5), **running):
        model, _ = load_model(record.cell, record.unit, site)
        features = TestedFeatures.of(model, record.spec, site, Running(**running))
        shown = images if split == "val" else CorruptedImages.of(images, "ndigit_smoke", "crop", severity)
        return features.load(split, Seen(shown), make=True)

    return site, load


@pytest.mark.slow
def test_a_damaged_file_is_made_again_and_other_severities_have_their_own(few):
    site, load = few
    expected = load().clone()
    (file,) = site.store.root.glob(".features/*/test_crop-*")
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-4] + b"\0\0\1\0")
    assert [damage.path for damage in damages(site.store.root)] == [file]
    assert torch.equal(load(), expected)
    assert file.read_bytes() == content
    assert not torch.equal(load(severity=(0.4, 0.5)), expected)
    assert _files(site).count("test_crop") == 2


def test_features_made_in_smaller_chunks_for_lack_of_memory_are_not_kept(few):
    site, load = few
    assert load(chunk=20) is None
    assert _files(site) == ["directions64", "evaluation", "view0"]


@pytest.mark.parametrize(("methods", "shared"), [(("pfe", "laplace"), {"pfe", "laplace"}), (("pfe",), set())])
def test_features_of_a_trained_base_are_kept_if_several_heads_are_on_it(trained, methods, shared):
    plans = _plans(trained[0], *methods, frozen=False)
    assert {plan.cell.method for plan in plans if base_is_shared(plan, plans)} == shared
