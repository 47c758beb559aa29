"""Fitting a method to a network at its starting weights: one pass over the training images, one record."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import UnitFailed
from ..site import Site
from ..store.records import TrainRecord
from ..store.specs import TrainSpec
from .draws import generator
from .inputs import CachedFeatures, loss_of_any_classes
from .networks import CHUNK, backbone_features
from .running import Running
from .training import EpochDone, Trainer


def run_fitting(spec: TrainSpec, site: Site, done: EpochDone, running: Running | None = None) -> TrainRecord:
    """Fit a method that has no base, and write the network's weights and the record.

    The one pass counts as one epoch. It leaves no checkpoint: an interrupted fit starts again.
    """
    fitter = Fitter(spec, site, running)
    fitter.resume_or_start()
    fitter.book(fitter.validate(0, fitter.fit()))
    done(spec.optim.epochs)
    return fitter.finish()


class Fitter(Trainer):
    """One fit of a method to the pooled features of the training images.

    The features are those of one augmented view of each image, drawn by data set: all seeds of a network with given
    starting weights have the same. They are also the first view that ``--frozen`` caches.
    """

    @torch.no_grad()
    def fit(self) -> float:
        """Let the method fit its parts to the features, which must be finite, and return its loss afterwards."""
        self.running.alive("fit")
        self.model.eval()
        labels = self.data.train.labels.to(self.site.device)
        inputs = self.inputs
        features = inputs.features.train[0] if isinstance(inputs, CachedFeatures) else self._first_view()
        if not bool(torch.isfinite(features).all()):
            raise UnitFailed("some pooled features of the training images are not finite")
        self.model.method.fit(self.model, features, labels)
        return float(loss_of_any_classes(self.model, self.model.embed_features(features).distribution, labels))

    def _first_view(self) -> Tensor:
        """Pooled features ``[N, F]`` of the training images."""
        gen, device = generator("features", self.spec.dataset, "train", 0), self.site.device
        parts = []
        # The draws of an augmentation depend on how many images are drawn for, so that their number never changes.
        for rows in torch.arange(len(self.data.train)).split(CHUNK):
            images = self.inputs.batch(rows, gen)
            parts.append(
                backbone_features(
                    self.model.backbone, images.__getitem__, len(rows), device, running=self.running, step="fit"
                )
            )
        return torch.cat(parts).to(device)
