"""Small pieces of work that tests and benchmarks do on a device: a training step and its values."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from bench.conformance.method_checks import CLASSES, DIM, PER_CLASS
from bench.conformance.method_checks import batch as images_and_labels
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
from bench.methods.distributions.von_mises_fisher import PROPOSALS
from bench.methods.scorers.spec import DistributionScorer
from bench.protocols.recipes._base import Optim
from bench.registry import Registry
from bench.site import Site
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

METHODS = Registry("methods")


def trained() -> list[Any]:
    """Methods that are trained by steps."""
    classes = [METHODS.get(name).load() for name in METHODS.names]
    return [cls for cls in classes if not cls.ensemble and cls.by_steps]


def small_images() -> ArrayImages:
    """Twenty-four images of six classes, 20 x 20."""
    pixels, labels = images_and_labels()
    pixels = (64 * pixels + 128).clamp(0, 255).to(torch.uint8)
    return ArrayImages(pixels, labels, map(str, range(len(labels))), map(str, range(CLASSES)), mean=(0.5,), std=(0.25,))


def small_trainer(method: Any, device: str, optim: Optim | None = None) -> Any:
    """The engine's training of a small network on :func:`small_images`, ready for its first step, the only of an epoch.

    The method must not be an ensemble. Two of them on one device are equal.
    """
    images, running = small_images(), Running()
    torch.manual_seed(0)
    base = CosFace().objective(CLASSES, DIM) if method.on_base else None
    model = EmbeddingModel(method, build_backbone("convnet", 1, None), CLASSES, DIM, base)
    trainer: Any = object.__new__(Trainer)
    trainer.model = model.to(device).to(memory_format=torch.channels_last)
    trainer.data = data = TrainVal(images, images, 0, 4)
    trainer.site, trainer.running = Site(results="unused", device=device), running
    trainer.spec = SimpleNamespace(
        optim=optim or Optim(epochs=1, lr=1e-3, lr_objective=1e-2),
        batches=SimpleNamespace(classes_per_batch=CLASSES, images_per_class=PER_CLASS, epoch_repeats=1.0),
        dataset="none",
        replicate=0,
    )
    trainer.inputs = AugmentedImages(data, Augmentation(), device, running)
    if model.backbone_frozen:
        with torch.no_grad():
            features = model.eval().features(images.evaluation(torch.arange(len(images))).to(device))
        trainer.inputs = CachedFeatures(Features(features[None], features[None], features), device, running)
    if method.warm_start:
        trainer._warm_start()
    return trainer


def one_step(trainer: Any) -> float:
    """Take the only step of an epoch, or fit; returns the loss."""
    loss: float = trainer.train_epoch(0) if trainer.model.method.by_steps else trainer.fit()
    return loss


def values(model: Any, device: str) -> dict[str, Tensor]:
    """What a method has computed on a device, on the CPU: gradients, weights, embeddings, confidences and scores."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    found = {f"gradient of {key}": value for key, value in gradients.items() if value is not None}
    images = small_images()
    distribution, confidences = embed(model, images.evaluation, len(images), device, chunk=32)
    scorer = DistributionScorer(model.method.scorer, distribution, model.scorer_options(), device)
    found["scores"] = scorer.matrix(torch.arange(8), torch.arange(len(images)))
    found["pairs"] = scorer.pairs(torch.arange(8), torch.arange(8).flip(0))
    found |= model.state_dict() | to_arrays(distribution)[1] | confidences
    return {key: value.cpu() for key, value in found.items()}


def apart(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Largest relative difference: of all gradients together, all weights together, and every other array.

    Single weights may be zero, and their differences then have no scale.
    """
    squares: dict[str, tuple[float, float]] = {}
    for key, value in expected.items():
        kind = "gradients" if key.startswith("gradient of") else "weights" if "." in key else key
        one, two = (tensor.double().nan_to_num() for tensor in (found[key], value))
        difference, size = squares.get(kind, (0.0, 0.0))
        squares[kind] = (difference + float((one - two).square().sum()), size + float(two.square().sum()))
    return float(max((difference / (size or 1.0)) ** 0.5 for difference, size in squares.values()))


_moved = torch.ops.aten._to_copy.default  # what `Tensor.to` calls, which would not be taken apart there


class DrawsOnCpu(TorchDispatchMode):
    """Random numbers that are drawn on the CPU by its generator, but in the order of a GPU, whatever the device."""

    def __enter__(self) -> Any:
        self._before = PROPOSALS.copy()
        PROPOSALS.clear()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        PROPOSALS.update(self._before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        device = torch.device(kwargs.get("device") or (tensors[0].device if tensors else "cpu"))
        if device.type == "cpu" or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        args_here, kwargs_here = tree_map_only(
            Tensor, lambda tensor: _moved(tensor, device=torch.device("cpu")), (args, kwargs)
        )
        drawn = func(*args_here, **(kwargs_here | ({"device": "cpu"} if "device" in kwargs else {})))
        if func._schema.is_mutable:  # in place
            return args[0].copy_(drawn)
        return tree_map_only(Tensor, lambda tensor: _moved(tensor, device=device), drawn)
