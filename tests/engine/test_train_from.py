"""Training of the last layers of a backbone on cached maps (`--set model.train_from`)."""

import pytest
import torch
from bench.engine.inputs import AugmentedImages
from bench.engine.networks import load_model
from bench.engine.training import Trainer, run_training
from bench.errors import UnitFailed
from bench.methods.backbones.registry import build_backbone
from bench.site import Site
from safetensors.torch import load_file, save_file

from tests.plans import first_seed, planned

STAGE = "features.8"
SHORT = ("optim.epochs=2", "data.feature_views=2", "data.epoch_repeats=0.2", f"model.train_from={STAGE}")


def _specs(site, *methods, **changes):
    return first_seed(planned(site, *methods, **{"seeds": 1, "set": SHORT, **changes})[0])


def _caches(site):
    return sorted(path.name.split("-")[0] for path in site.store.root.glob(".features/*/*"))


class _Images(AugmentedImages):
    """The images of the cached views of a training, drawn as the maps are."""

    def __init__(self, of):
        super().__init__(of.data, of.augmentation, "cpu", of.running)

    def batch(self, rows, gen):
        views = torch.randint(2, (len(rows),), generator=gen)
        drawn = [self.data.train.view_of(rows[n : n + 1], self.augmentation, int(view)) for n, view in enumerate(views)]
        return torch.cat(drawn)


@pytest.mark.parametrize(
    ("exact", "limit"),
    [pytest.param(False, 0.15, id="float16", marks=pytest.mark.slow), pytest.param(True, 1e-4, id="float32")],
)
def test_it_is_a_training_end_to_end_with_these_layers_frozen(site, monkeypatch, exact, limit):
    """The limit is that of the difference between the weights of both, over how far training moved them.

    It is large in float16, in which other positions of a map may have the maximum that is pooled.
    """
    if exact:
        monkeypatch.setattr(torch.Tensor, "half", lambda self: self)
    # Adam would turn gradients that are 0 but for rounding into whole steps.
    spec = _specs(site, "cosface", set=(*SHORT, "optim.optimizer=sgd"))["cosface"]
    cached, frozen = Trainer(spec, site), Trainer(spec, site)
    frozen.inputs = _Images(frozen)
    frozen.model.reads_maps = False  # the whole network runs, and what precedes the stage has no gradients
    for trainer in (cached, frozen):
        trainer.resume_or_start()
    start = {key: value.clone() for key, value in frozen.model.state_dict().items()}
    losses = [[trainer.train_epoch(epoch) for epoch in range(2)] for trainer in (cached, frozen)]
    assert losses[0] == pytest.approx(losses[1], rel=min(limit, 2e-3))
    found, wanted = (trainer.model.state_dict() for trainer in (cached, frozen))
    for key, value in wanted.items():
        before = key.startswith("backbone.features.") and int(key.split(".")[2]) < 8
        moved = (value - start[key]).double().norm()
        assert (moved == 0) == before, key
        assert (found[key] - value).double().norm() <= limit * moved, key
    # Validation of the cached maps, and of the images.
    rows = [trainer.validate(0, 1.0) for trainer in (cached, frozen)]
    assert rows[0].val_map_at_r == pytest.approx(rows[1].val_map_at_r, abs=min(limit, 0.02))


@pytest.mark.slow
def test_methods_and_seeds_share_the_maps_and_a_head_uses_the_trained_base(site):
    specs = _specs(site, "cosface", "pfe", "dul_cls")
    records = {name: run_training(spec, site, lambda epoch: None) for name, spec in specs.items()}
    assert _caches(site) == ["evaluation", "view0", "view1"]
    assert (specs["cosface"].train_from, specs["pfe"].train_from) == (STAGE, "")
    model, _ = load_model(records["cosface"].cell, records["cosface"].unit, site)
    assert not model.reads_maps  # tests read images
    assert model(torch.rand(2, 1, 18, 50)).raw.shape == (2, 64)
    maps = load_file(next(site.store.root.glob(".features/*/view1-*")))["train"]
    assert (maps.dtype, maps.shape[1:]) == (torch.float16, (32, 2, 6))


def test_other_stages_have_maps_and_ids_of_their_own_and_none_leaves_ids_as_they_were(site):
    one = _specs(site, "cosface")["cosface"]
    other = _specs(site, "cosface", set=(*SHORT[:-1], "model.train_from=features.4"))["cosface"]
    whole = _specs(site, "cosface", set=SHORT[:-1])["cosface"]
    assert len({one.features, other.features, whole.features}) == 3
    assert len({one.id, other.id, whole.id}) == 3
    assert "train_from" not in whole.model_dump(mode="json")


def test_maps_beyond_float16_are_a_failure_of_the_training(tmp_path):
    network = build_backbone("convnet", 1)
    with torch.no_grad():
        network.features[6].weight.fill_(1e9)
    save_file(network.state_dict(), tmp_path / "large.safetensors")
    site = Site(results=str(tmp_path / "runs"), weights=str(tmp_path / "large.safetensors"))
    with pytest.raises(UnitFailed, match=r"enters features\.8 is beyond the range of float16"):
        Trainer(_specs(site, "cosface")["cosface"], site)
