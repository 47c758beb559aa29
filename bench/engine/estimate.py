"""Estimates of a plan's run time and disk use on this machine, from a few timed steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..datasets.batches import class_balanced_batches
from ..datasets.dataset import ImageSet, TrainVal
from ..datasets.photo_images import PhotoImages
from ..methods._model import EmbeddingModel
from ..methods.host_labels import labels_on
from ..planning.plan import Plan
from ..resources import keep_memory, return_memory
from ..site import Site
from ..store.specs import TrainSpec
from .inputs import generator, views_of
from .networks import CHUNK, at_once, build_model, prepare_steps
from .optim import Optimisation
from .training import steps_per_epoch


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds and disk use of a plan, upper bounds: early stopping and shared bases only lower them.

    ``features`` are for computing the backbone features that are cached for training on a frozen backbone, once for
    each base or, if it stays at its starting weights, once; then those for tests, too. ``measuring`` is the confidence
    of one trial's model on crops; 0 if the study does not tune for it. ``decode`` and ``cache_bytes`` are for
    photographs that are not in the cache yet. ``maps_bytes`` are for what enters the first trained stage of a
    backbone, if some layers stay as they are.
    """

    step: float
    embed: float
    training: float
    features: float
    measuring: float
    test: float
    decode: float
    cache_bytes: int
    maps_bytes: int = 0

    def total(self, plan: Plan) -> float:
        """Seconds that one process needs for all trainings and tests of a plan, without decoding of images.

        Features of a frozen backbone are computed for the base of every seed and for the one that all trials share;
        those of a backbone at its starting weights once.
        """
        studies = plan.studies * (plan.trials > 0)
        bases = 1 if plan.template.caches_views else studies + plan.seeds * plan.retrain
        each = plan.trainings * self.training / plan.models + bases * self.features + plan.seeds * self.test
        return plan.models * (each + studies * plan.trials * self.measuring)

    def longest(self, plan: Plan) -> float:
        """Seconds of what follows one after the other in a plan, however many workers there are.

        That is a training for each batch of trials, then that of a seed and its test, or the test of the best trial.
        """
        batches = -(-plan.trials // plan.trial_batch)
        trained = batches * (self.training + self.measuring) + self.training * plan.retrain
        return self.features + trained + self.test


def median_seconds(work: Callable[[], Any]) -> float:
    """Median seconds of some work, up to five times in about a second, after once that does not count.

    On a GPU, until it is done.
    """

    def whole() -> None:
        work()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    whole()  # compiles, and chooses kernels
    times: list[float] = []
    while len(times) < 5 and sum(times) < 1.0:
        start = time.perf_counter()
        whole()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def estimate(plan: Plan, site: Site) -> Estimate:
    """Estimate the run time and disk use of a plan, from a few steps timed here with one thread; nothing is written."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_memory()  # as workers do
    try:
        return _estimate(plan, site)
    finally:
        return_memory()
        torch.set_num_threads(threads)


def _estimate(plan: Plan, site: Site) -> Estimate:
    if plan.ensemble and plan.base:
        return replace(_estimate(plan.base, site), step=0.0, training=0.0, features=0.0)
    bases = plan.base.train_specs(plan.base.defaults(), 0, None) if plan.base else None
    spec = next(iter(plan.train_specs(plan.defaults(), 0, bases).values()))
    dataset = site.dataset(spec.dataset, spec.view)
    data, tests = dataset.train_val(spec.fold, spec.folds), dataset.test()
    augmentation = dataset.augmentation_type(**spec.augmentation)
    sizes = spec.batches
    gen = generator("estimate")
    rows = class_balanced_batches(data.train.labels, sizes.classes_per_batch, sizes.images_per_class, gen, 1)[0]
    # A class with fewer than K images repeats some; each is decoded once.
    few = data.train.select(rows.unique())
    held_out = [dataset.train_val(fold, spec.folds).val for fold in plan.validate_folds]
    augmenting, decode, cache_bytes = _reading(few, data, held_out, tests, augmentation)
    images = few.evaluation(torch.arange(min(len(few), 32))).to(site.device)
    model = build_model(spec, site, data.train.num_classes, images.shape[1])

    def seconds_of_one(inputs: Tensor) -> float:
        model.eval()
        with torch.no_grad():
            return median_seconds(lambda: model(inputs)) / len(inputs)

    one_image, inputs = seconds_of_one(images), images
    if model.cut is not None:
        with torch.no_grad():
            inputs = model.cut.maps(images)
        model.reads_maps = True
    one_step = step_seconds(model, spec, inputs, data.train.labels[rows], site.device)
    steps, epochs = steps_per_epoch(spec, len(data.train)), spec.optim.epochs
    pass_of = at_once(images, CHUNK)
    validating = -(-len(data.val) // pass_of) * pass_of * one_image
    features_once, maps_bytes = 0.0, 0
    if spec.frozen and not spec.caches_features:
        training = epochs * (steps * one_step + validating)
    elif model.cut is not None:
        kept = sizes.feature_views * (len(data.train) + len(data.val)) + len(data.val)
        features_once, maps_bytes = kept * one_image, kept * 2 * inputs[0].numel()  # float16
        training = epochs * (steps * one_step + len(data.val) * seconds_of_one(inputs))
    elif model.backbone_frozen:
        features_once = sizes.feature_views * (len(data.train) + len(data.val)) * one_image + validating
        training = epochs * steps * one_step
    else:
        # Next to a GPU, batches are made while it works.
        loading = augmenting * len(rows)
        with_loading = one_step + loading if site.device == "cpu" else max(one_step, loading)
        training = epochs * (steps * with_loading + validating)
    kinds = (1 + len(plan.testing.tests.corruptions)) * (1 + sum(map(len, views_of(spec).values())))
    test = (kinds * (len(tests) + len(data.val)) + len(data.train)) * one_image
    if spec.caches_features:
        features_once, test = features_once + test, 0.0
    measuring = 0.0 if plan.tune_for == "retrieval" else validating
    return Estimate(one_step, one_image, training, features_once, measuring, test, decode, cache_bytes, maps_bytes)


def _reading(
    few: ImageSet, data: TrainVal, held_out: list[ImageSet], tests: ImageSet, augmentation: Any
) -> tuple[float, float, int]:
    """Seconds to augment one image and to decode all that are not in the cache, and the bytes that these take."""
    if not isinstance(few, PhotoImages):
        seconds = median_seconds(lambda: few.training(torch.arange(len(few)), augmentation, generator("x")))
        return seconds / max(1, len(few)), 0.0, 0
    photographs: list[PhotoImages] = [part for part in (*held_out, tests) if isinstance(part, PhotoImages)]
    few.view = replace(few.view, cache=False)
    some = few.select(torch.arange(min(len(few), 16)))
    reading = median_seconds(lambda: [few.read(path, "training") for path in some.paths]) / len(some)
    cache_bytes = sum(part.estimated_cache_bytes("evaluation") for part in photographs)
    if isinstance(data.train, PhotoImages):
        cache_bytes += data.train.estimated_cache_bytes("training")
    counts = (len(data.train), len(data.val), *map(len, held_out), len(tests))
    # As from the cache: the difference of two times of which reading is most would be noise.
    decoded = {path: few.read(path, "training") for path in some.paths}
    some.read = lambda path, purpose: decoded[path]  # type: ignore[method-assign]
    every = torch.arange(len(some))
    augmenting = median_seconds(lambda: some.training(every, augmentation, generator("x"))) / len(some)
    return augmenting, reading * sum(counts) if cache_bytes else 0.0, cache_bytes


def step_seconds(model: EmbeddingModel, spec: TrainSpec, images: Tensor, labels: Tensor, device: str) -> float:
    """Seconds of one training step, or of the fit, on some images, repeated to the size of a batch."""
    if not model.method.by_steps:
        return 0.0  # one pass over cached features: less than a step of any other method
    prepare_steps(model, spec.optim)
    optimisation = Optimisation(model, spec.optim, device)
    batch, labels = images[torch.arange(len(labels)) % len(images)], labels_on(device, labels)
    with torch.no_grad():
        features = model.features(batch)

    def step() -> None:
        model.train()
        embedding = model.embed_features(features) if model.backbone_frozen else model(batch)
        optimisation.step(model.objective(embedding.distribution, labels))

    return median_seconds(step)
