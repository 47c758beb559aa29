"""Free confidences of the training data and of views in a test: what is embedded for them, and for which data."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from bench.engine.embedded_model import EmbeddedModel
from bench.engine.inputs import CorruptedImages, Seen, views_of
from bench.engine.networks import load_model
from bench.engine.running import Running
from bench.engine.training import run_training
from bench.methods.backbones.registry import GIVEN
from bench.methods.training_density import TrainingDensity

from tests.plans import planned

SHORT = ("optim.epochs=1", "data.epoch_repeats=0.1")


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """A network trained for a few steps, embedded for its test."""
    torch.set_num_threads(1)
    [plan], site = planned(tmp_path_factory.mktemp("free") / "runs", "cosface", seeds=1, set=SHORT)
    site.store.mark("reality_check", 1)
    record = run_training(plan.train_specs({}, 0, None)[0], site, lambda epoch: None)
    model, _ = load_model(record.cell, record.unit, site)
    crops = {"crop": CorruptedImages.of(site.dataset("ndigit_smoke").test(), "ndigit_smoke", "crop", (0.0, 0.5))}
    return site, model, EmbeddedModel.of(model, record, site, crops, Running())


def _unit(model, images):
    with torch.no_grad():
        return F.normalize(model.eval()(images).raw.double(), dim=1)


def test_training_images_are_embedded_as_they_are_and_their_order_does_not_matter(tested):
    site, model, embedded = tested
    train = site.dataset("ndigit_smoke").train_val(0, 4).train
    unit = _unit(model, train.evaluation(torch.arange(len(train))))
    density = TrainingDensity(unit.__getitem__, train.labels)
    for split in ("test", "test_crop", "val", "val_crop"):
        tested_unit = embedded.unit_vectors(split)
        for name, values in density.confidences(tested_unit.__getitem__, len(tested_unit)).items():
            torch.testing.assert_close(embedded.confidence[split][name], values, rtol=1e-4, atol=1e-5)


def test_digits_are_compared_with_two_corners_and_never_with_their_mirror_image(tested):
    site, model, embedded = tested
    test = site.dataset("ndigit_smoke").test()
    images = test.evaluation(torch.arange(len(test)))
    height, width = images.shape[-2:]
    unit, cosines = _unit(model, images), []
    for top, left in ((0, 0), (height // 8, width // 8)):
        part = images[..., top : top + height - height // 8, left : left + width - width // 8]
        view = _unit(model, F.interpolate(part, (height, width), mode="bilinear", antialias=True))
        cosines.append((unit * view).sum(1))
    torch.testing.assert_close(embedded.confidence["test"]["crops"], sum(cosines) / 2, rtol=1e-4, atol=1e-5)
    assert not any("mirror" in of_split for of_split in embedded.confidence.values())


def test_mirror_images_are_for_data_whose_training_images_are_mirrored():
    spec = SimpleNamespace(backbone="convnet", augmentation={"flip": 0.5})
    assert list(views_of(spec)) == ["mirror", "crops"]
    assert list(views_of(SimpleNamespace(backbone="convnet", augmentation={"flip": 0.0}))) == ["crops"]
    assert views_of(SimpleNamespace(backbone=GIVEN, augmentation={})) == {}
    images = torch.rand(2, 3, 8, 9)
    (mirror,) = views_of(spec)["mirror"].values()
    source = SimpleNamespace(evaluation=images.__getitem__, __len__=lambda: 2)
    assert torch.equal(Seen(source, "mirror", mirror).evaluation(torch.tensor([1]))[0, ..., 0], images[1, ..., -1])
