"""On a simulated GPU: every method computes what it does on the CPU, and how often a step makes the host wait."""

from types import SimpleNamespace

import pytest
import torch
from bench.conformance.method_checks import CLASSES, DIM, PER_CLASS, build
from bench.conformance.method_checks import _batch as images_and_labels
from bench.datasets.array_images import ArrayImages
from bench.datasets.augmentation import Augmentation
from bench.datasets.dataset import TrainVal
from bench.engine.inputs import AugmentedImages, CachedFeatures, Features
from bench.engine.networks import embed
from bench.engine.running import Running
from bench.engine.training import Trainer
from bench.methods._model import EmbeddingModel
from bench.methods.backbones.registry import build_backbone
from bench.methods.cosface import CosFace
from bench.methods.distributions.arrays import to_arrays
from bench.methods.scorers.spec import DistributionScorer
from bench.protocols.recipes._base import Optim
from bench.registry import Registry
from bench.site import Site

from ..simulated_cuda import Gpu

METHODS = Registry("methods")
FORMS = [(name, form) for name in METHODS.names for form in METHODS.get(name).load().forms()]

WAITS = {
    "arcface": 6, "cosface": 6, "dsml": 6, "dul_cls": 5, "dul_reg": 6, "el_nivmf": 35, "hib": 9, "laplace": 13,
    "loss_prediction": 7, "margin": 8, "mc_dropout": 6, "mc_infonce": 21, "multi_similarity": 8, "nir": 8,
    "norm_softmax": 6, "pfe": 9, "proxy_anchor": 8, "proxy_anchor_el_nivmf": 35, "proxy_distance": 5, "proxy_nca": 6,
    "scf": 6, "soft_triple": 6, "spe": 29, "untrained": 5, "vmf_fl": 5, "vmf_loss": 18,
}  # fmt: skip
"""How often a training step of the engine (of a method that is fitted: its fit) may make the host wait for the GPU:
the largest number of the method's forms. Five are the engine's: batch, labels, two checks for finite values, the loss.
Lower a number when a step has become better."""


@pytest.fixture
def gpu(monkeypatch):
    return Gpu(monkeypatch)


def _images():
    pixels, labels = images_and_labels()
    pixels = (64 * pixels + 128).clamp(0, 255).to(torch.uint8)
    return ArrayImages(pixels, labels, map(str, range(len(labels))), map(str, range(CLASSES)), mean=(0.5,), std=(0.25,))


def _trainer(method, device):
    """The engine's training of a small network on six classes, whose epochs have one step."""
    images, running = _images(), Running()
    torch.manual_seed(0)
    base = CosFace().objective(CLASSES, DIM) if method.on_base else None
    model = EmbeddingModel(method, build_backbone("convnet", 1, None), CLASSES, DIM, base)
    trainer = object.__new__(Trainer)
    trainer.model = model.to(device).to(memory_format=torch.channels_last)
    trainer.data = data = TrainVal(images, images, 0, 4)
    trainer.site, trainer.running = Site(results="unused", device=device), running
    trainer.spec = SimpleNamespace(
        optim=Optim(epochs=1, lr=1e-3, lr_objective=1e-2),
        batches=SimpleNamespace(classes_per_batch=CLASSES, images_per_class=PER_CLASS, epoch_repeats=1.0),
        dataset="none", draw_of=lambda axis: 0,
    )  # fmt: skip
    trainer.inputs = AugmentedImages(data, Augmentation(), device, running)
    if model.backbone_frozen:
        with torch.no_grad():
            features = model.eval().features(images.evaluation(torch.arange(len(images))).to(device))
        trainer.inputs = CachedFeatures(Features(features[None], features[None], features), device, running)
    return trainer


def _values(name, form, device, gpu):
    """What a method computes on a device: loss, gradients, weights, embeddings, confidences and scores."""
    cls = METHODS.get(name).load()
    method = cls(cls.Params(**cls.defaults(form)))
    found = {}
    if method.ensemble:
        model = build(cls).to(device)
    else:
        trainer = _trainer(method, device)
        model = trainer.model
        if method.warm_start:
            trainer._warm_start()
        gpu.waits.clear()
        loss = trainer.train_epoch(0) if method.by_steps else trainer.fit()
        found["loss"] = torch.tensor(loss)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    found |= model.state_dict() | {f"gradient of {key}": value for key, value in gradients.items() if value is not None}
    waits = gpu.waits.total()
    images = _images()
    distribution, confidences = embed(model, images.evaluation, len(images), device, chunk=32)
    scorer = DistributionScorer(method.scorer, distribution, model.scorer_options(), device)
    found["scores"] = scorer.matrix(torch.arange(8), torch.arange(len(images)))
    found["pairs"] = scorer.pairs(torch.arange(8), torch.arange(8).flip(0))
    found |= to_arrays(distribution)[1] | confidences
    return {key: value.cpu() for key, value in found.items()}, waits


def test_devices_are_not_mixed(gpu):
    here, mask = torch.ones(3), torch.tensor([True, False, True])
    with gpu:
        there = here.to("cuda")
        assert (there.device.type, (there + 1).device.type, here.device.type) == ("cuda", "cuda", "cpu")
        for mixed in (
            lambda: there + here,
            lambda: torch.cat([there, here]),
            lambda: there.put_(torch.tensor([0]), there[:1]),
            lambda: here[torch.arange(2, device="cuda")],
            lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
        ):
            with pytest.raises(RuntimeError, match=r"device|Expected a 'cuda'"):
                mixed()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert torch.equal((there + torch.tensor(1.0)).cpu(), here + 1)  # a number may be on the CPU
        gpu.waits.clear()
        there[mask.to("cuda", non_blocking=True)].sum().item()
        there[mask.to("cuda", non_blocking=True)] = 0  # is a masked fill
    assert gpu.waits == {"size of a mask": 1, "_local_scalar_dense": 1}


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_a_step_on_the_gpu_is_that_on_the_cpu(gpu, name, form):
    expected, none = _values(name, form, "cpu", gpu)
    with gpu:
        found, waits = _values(name, form, "cuda", gpu)
    assert gpu.launches > 0
    assert none == 0
    if not METHODS.get(name).load().ensemble:
        assert waits <= WAITS[name]
    assert found.keys() == expected.keys()
    different = [key for key in found if not torch.equal(found[key].nan_to_num(), expected[key].nan_to_num())]
    assert not different
