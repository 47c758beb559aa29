"""Pooling, calibration and clip reach the network that is trained, and the one that is read back."""

import pytest
import torch
from bench.engine.inputs import generator
from bench.engine.networks import build_model, load_model
from bench.engine.optim import Optimisation
from bench.engine.training import Trainer, run_training
from bench.protocols.recipes._base import Optim
from bench.site import Site
from bench.store.folder import CHECKPOINT
from bench.store.specs import Batches

from tests.photographs import write_photographs
from tests.plans import planned


class _Model(torch.nn.Module):
    """The smallest thing that can be optimised."""

    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.Linear(3, 1, bias=False)
        self.objective = torch.nn.Module()
        self.tf32 = False


@pytest.mark.parametrize(("clip", "norm"), [(0.0, 5000.0), (10.0, 10.0), (1e9, 5000.0)])
def test_a_clip_of_0_leaves_gradients_as_they_are(clip, norm):
    model = _Model()
    with torch.no_grad():
        model.backbone.weight.zero_()
    optim = Optim(optimizer="sgd", lr=1.0, lr_objective=1.0, epochs=1, weight_decay=0.0, grad_clip=clip)
    optimisation = Optimisation(model, optim, "cpu")
    optimisation.step((model.backbone.weight * torch.tensor([[3000.0, 4000.0, 0.0]])).sum())
    assert float(model.backbone.weight.detach().norm()) == pytest.approx(norm, rel=1e-5)


def _smoke(tmp_path, *pins, method="cosface"):
    (*_, plan), site = planned(tmp_path / "results", method, set=("optim.epochs=1", *pins))
    return plan, plan.train_specs({}, 0, None)[0], site


def test_a_trained_unit_is_read_back_with_its_pooling(tmp_path):
    plan, spec, site = _smoke(tmp_path, "data.pooling=avg")
    assert spec.id != _smoke(tmp_path)[1].id
    assert plan.pinned.settings["data.pooling"] == "avg"
    assert run_training(spec, site, lambda epoch: None).spec.batches.pooling == "avg"
    model, _ = load_model(plan.cell, spec.id, site)
    images = torch.randn(4, 1, 18, 50)
    with torch.no_grad():
        torch.testing.assert_close(model.backbone(images), model.backbone.features(images).mean((2, 3)))


def test_units_from_before_there_was_a_choice_are_read_as_what_they_were():
    old = Batches.model_validate_json(
        '{"classes_per_batch": 2, "images_per_class": 2, "feature_views": 4, "freeze_norm": "no", "epoch_repeats": 1.0}'
    )
    assert (old.pooling, old.calibrate) == ("avg_max", True)


@pytest.mark.parametrize("calibrate", [True, False])
def test_features_of_photographs_are_rescaled_only_if_the_setting_says_so(tmp_path, calibrate):
    write_photographs(tmp_path / "photos", classes=8, each=2)
    site = Site(results=str(tmp_path / "results"), data_root=str(tmp_path / "photos"), weights="none")
    pins = (f"data.calibrate={str(calibrate).lower()}", "data.image_size=32", "data.resize=36")
    asked = {"backbone": "resnet18", "dim": 8, "set": (*pins, "data.classes_per_batch=2", "data.images_per_class=2")}
    [plan], _ = planned(site, "cosface", datasets=("folder",), **asked)
    spec = plan.train_specs({}, 0, None)[0]
    trainer = Trainer(spec, site)
    trainer.resume_or_start()
    factor = float(trainer.model.backbone.feature_scale)
    assert (factor == 1.0) is not calibrate
    # The start is otherwise the same.
    before = build_model(spec, site, trainer.data.train.num_classes, 3).backbone.eval()
    images = trainer.inputs.batch(torch.arange(4), generator("x"))
    with torch.no_grad():
        torch.testing.assert_close(trainer.model.backbone.eval()(images) * factor, before(images))


@pytest.mark.slow
def test_a_head_does_not_take_cached_features_of_another_pooling(tmp_path):
    plan, _, site = _smoke(tmp_path, method="pfe")
    spec = plan.base.train_specs({}, 0, None)[0]
    run_training(spec, site, lambda epoch: None)
    head = plan.train_specs({}, 0, {0: spec})[0]
    other = head.replaced(batches={**head.batches.model_dump(), "pooling": "avg"})
    features = [Trainer(each, site).inputs.features.train for each in (head, other, head)]
    assert not torch.equal(features[0], features[1])
    assert torch.equal(features[0], features[2])


def test_a_checkpoint_that_does_not_load_is_mentioned_in_the_record(tmp_path):
    _, spec, site = _smoke(tmp_path)
    plain = run_training(spec, site, lambda epoch: None)
    (site.store.unit_dir(spec.cell, "train", spec.id) / CHECKPOINT).write_bytes(b"torn")
    again = run_training(spec, site, lambda epoch: None)
    assert plain.note == ""
    assert again.note.startswith("its checkpoint did not load (")
    assert again.note.endswith("so it was trained from the start")
    assert again.files == plain.files
