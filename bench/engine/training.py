"""Training one unit: epochs with checkpoints, selection on validation classes, one record."""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ..datasets.batches import class_balanced_batches
from ..datasets.corruptions._base import CROP
from ..datasets.dataset import Dataset, ImageSet, TrainVal
from ..errors import UnitFailed, first_line, is_out_of_memory
from ..methods._model import Embedding, EmbeddingModel, NonFiniteEmbeddings
from ..methods.host_labels import labels_on
from ..methods.scorers.inner_products import mode_scorer
from ..methods.scorers.spec import DistributionScorer
from ..methods.unsaved import changed_since, is_plain, restore, unsaved
from ..protocols.confidence import confidence_auroc
from ..protocols.near_modes import reranked_map_at_r
from ..protocols.query_metrics import map_at_r, per_query
from ..protocols.ranking import Scorer, full_depth, rank
from ..resources import SHARE
from ..seeds import seed_for, seed_generators
from ..site import Site
from ..store.files import DamagedFile, read_sealed, sealed_file, sha256, write_atomic
from ..store.folder import CHECKPOINT, WEIGHTS, checked_training
from ..store.records import Epoch, TrainRecord
from ..store.specs import TUNING, TrainSpec
from . import inputs
from .environment import environment, rounding
from .inputs import CorruptedImages, Seen
from .networks import backbone_features, build_model, check_finite, default_confidence, embed, load_base, prepare_steps
from .optim import MicroBatches, Optimisation
from .running import PatientScorer, Running

EpochDone = Callable[[int], None]


def run_training(spec: TrainSpec, site: Site, done: EpochDone, running: Running | None = None) -> TrainRecord:
    """Train a model, or go on from its last checkpoint, and write its weights and record."""
    trainer = Trainer(spec, site, running)
    trainer.resume_or_start()
    if not trainer.model.method.by_steps:
        trainer.book(trainer.validate(0, trainer.fit()))
        done(spec.optim.epochs)
        return trainer.finish()
    if spec.head_start is not None and spec.selection.metric == "map_at_r" and not trainer.progress.history:
        # The start of a mean head on a frozen backbone is still to be measured, as epoch 0.
        trainer.book(trainer.validate(-1, None))
    while (epoch := trainer.progress.epoch) < spec.optim.epochs and not trainer.progress.stopped:
        trainer.book(trainer.validate(epoch, trainer.train_epoch(epoch)))
        trainer.save_checkpoint()
        done(epoch + 1)
    return trainer.finish()


def room_for_pixels() -> int:
    """Bytes of decoded images that this process may keep on its GPU: a quarter of its share of the memory.

    What is free does not count, so that a training can be repeated.
    """
    return int(float(os.environ.get(SHARE, 1)) * torch.cuda.mem_get_info()[1] / 4)


class Read:
    """Numbers of a tensor on their way to the host, which waits only for what had been launched before them."""

    def __init__(self, tensor: Tensor) -> None:
        self._numbers, self._event = tensor, torch.cuda.Event() if tensor.is_cuda else None
        if self._event is not None:
            self._numbers = tensor.to("cpu", non_blocking=True)  # in pinned memory
            self._event.record()

    def numbers(self) -> list[float]:
        """The numbers of a tensor ``[N]``."""
        if self._event is not None:
            self._event.synchronize()
        found: list[float] = self._numbers.tolist()
        return found


@dataclass
class Progress:
    """Progress of a training: the epochs done with their measurements, and the best one so far.

    ``best_value`` is that of the quantity that selects the epoch to keep, such as validation MAP@R, ``improved_value``
    that at the last improvement that counts for early stopping. ``note`` is a remark for the record, such as a damaged
    checkpoint.
    """

    epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best_value: float | None = None
    best_epoch: int = 0
    best_state: dict[str, Tensor] = field(default_factory=dict)
    improved_value: float | None = None
    improved_epoch: int = 0
    stopped: bool = False
    note: str = ""

    def book(self, row: Epoch, value: float, state: dict[str, Tensor], patience: int, min_improvement: float) -> None:
        """Add a finished epoch: keep the weights of the best (of equals the later), stop if patience is used up.

        Patience begins with the first step: a training may lose at first what its start was worth.
        """
        self.history.append(row.model_dump())
        self.epoch = row.epoch
        if self.best_value is None or value >= self.best_value:
            self.best_value, self.best_epoch = value, row.epoch
            self.best_state = {key: tensor.detach().cpu().clone() for key, tensor in state.items()}
        if row.epoch == 0:
            return
        if self.improved_value is None or value >= self.improved_value + min_improvement:
            self.improved_value, self.improved_epoch = value, row.epoch
        self.stopped = row.epoch - self.improved_epoch >= patience


class Trainer:
    """One training: the network, its inputs, its optimiser and how far it is."""

    _finite: Read | None = None

    def __init__(self, spec: TrainSpec, site: Site, running: Running | None = None) -> None:
        self.spec, self.site = spec, site
        self.running = running or Running()
        self.running.alive("start")
        self._started = time.perf_counter()
        self.folder = site.store.unit_dir(spec.cell, "train", spec.id)
        self.folder.mkdir(parents=True, exist_ok=True)
        dataset = site.dataset(spec.dataset, spec.view)
        self.channels = dataset.input_channels
        self.data: TrainVal = dataset.train_val(spec.fold, spec.folds)
        side = spec.photographs.get("image_size")
        self.rounding = rounding(spec, site, (self.channels, *([side] * 2 if side else dataset.image_size)))
        self.model = build_model(spec, site, self.data.train.num_classes, self.channels)
        self.inputs = self._inputs(dataset)
        prepare_steps(self.model, spec.optim)
        # Cached features stand for a backbone that stays as it is: no step calls it.
        cached = isinstance(self.inputs, inputs.CachedFeatures) and not self.inputs.through_backbone
        self._idle = ("backbone.",) if cached else ()
        self._unsaved = unsaved(self.model, self._idle)
        self.progress = Progress()

    def _inputs(self, dataset: Dataset) -> inputs.Inputs:
        """Inputs of the stage; the trained base, if there is one, is loaded first."""
        spec, device, running = self.spec, self.site.device, self.running
        folder = None
        if spec.base is not None:
            folder = self.site.store.unit_dir(spec.base_cell, "train", spec.base.unit)
            checked_training(folder)
            load_base(self.model, folder / WEIGHTS)
        self.augmentation = dataset.augmentation_type(**spec.augmentation)
        cache = inputs.FrozenBackbone(spec, self.site, dataset, self.data, running)
        if spec.frozen:
            features, scale = cache.load()
            inputs.set_scale(self.model.backbone, scale)
            if spec.head_start == "pca":
                with torch.no_grad():
                    self.model.mean.weight.copy_(cache.directions(features, spec.dim))
            # The loss of a method that would train the backbone need not be defined for other classes.
            return inputs.CachedFeatures(features, device, running, "backbone" not in self.model.method.trained_parts)
        if spec.train_from:
            self.model.reads_maps = True
            return inputs.CachedFeatures(cache.load()[0], device, running, maps=True)
        if folder is None or not self.model.backbone_frozen:
            # TF32, which is turned on for a process, would round the crops now and then.
            room = room_for_pixels() if device != "cpu" and spec.optim.precision != "tf32" else 0
            return inputs.AugmentedImages(self.data, self.augmentation, device, running, room)
        return inputs.CachedFeatures(cache.of_base(self.model.backbone, folder), device, running)

    @cached_property
    def optimisation(self) -> Optimisation:
        """Optimiser of the trained parts; a method that is fitted has none."""
        return Optimisation(self.model, self.spec.optim, self.site.device)

    @cached_property
    def micro_batches(self) -> MicroBatches:
        """Training steps by that optimiser."""
        return MicroBatches(self.model, self.inputs, self.optimisation, self.running)

    @cached_property
    def steps(self) -> int:
        """Number of training steps per epoch."""
        return steps_per_epoch(self.spec, len(self.data.train))

    def resume_or_start(self) -> None:
        """Resume from the checkpoint; without one, initialise the parameters that depend on the data."""
        self._load_checkpoint()
        if self.progress.epoch:
            return
        spec, labels = self.spec, self.data.train.labels
        calibrate = getattr(self.model.backbone, "calibrate", None)
        if spec.batches.calibrate and calibrate is not None and spec.base is None and not spec.frozen:
            gen = inputs.generator("calibrate", spec.dataset, spec.replicate)
            batch = self.inputs.batch(torch.randperm(len(labels), generator=gen)[:128], gen)
            calibrate(batch, self.model.cut.features if self.model.cut else None)
        if self.model.method.warm_start:
            self._warm_start()

    @torch.no_grad()
    def _warm_start(self) -> None:
        """Show the method the raw embeddings of its first training batches, then forget that they were computed."""
        # Batch statistics, as in the first training step; running ones are at their initial values or frozen.
        before = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.model.train()
        raw, labels = [], []
        batches = self._batches(before=("warm start",))
        for rows, batch in islice(batches, self.model.method.warm_start_batches):
            self.running.alive("warm start")
            raw.append(self.micro_batches.embedding(batch).raw)
            labels.append(self.data.train.labels[rows])
        self.model.load_state_dict(before)
        self.model.method.initialise(self.model, torch.cat(raw), torch.cat(labels).to(self.site.device))

    def _batches(
        self, before: tuple[str | int, ...] = (), after: tuple[str | int, ...] = ()
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and inputs of the batches of an epoch; draws are named by the data set and what is given around it."""
        sizes, labels, spec = self.spec.batches, self.data.train.labels, self.spec
        order = inputs.generator("order", *before, spec.dataset, spec.replicate, *after)
        augment = inputs.generator("augment", *before, spec.dataset, spec.replicate, *after)
        batches = class_balanced_batches(labels, sizes.classes_per_batch, sizes.images_per_class, order, self.steps)
        return self.inputs.in_turn(batches, augment)

    def train_epoch(self, epoch: int) -> float:
        """Train for one epoch, numbered from 0; returns the mean loss, which must be finite."""
        heads_only = epoch < self.spec.optim.head_epochs
        seed_generators(seed_for("noise", self.spec.dataset, self.spec.replicate, epoch))
        self.model.train()
        if heads_only:
            self.model.backbone.eval()  # its batch statistics do not move either
        total = torch.zeros((), dtype=torch.float64, device=self.site.device)
        for number, (rows, batch) in enumerate(self._batches(after=(epoch,))):
            step = f"epoch {epoch + 1}, batch {number + 1}"
            self.running.alive(step)
            self.optimisation.set_rate(epoch * self.steps + number, self.steps)
            loss_of = partial(self._loss, labels_on(self.site.device, self.data.train.labels[rows]), step)
            try:
                loss = self.micro_batches.gradients(batch, loss_of, heads_only)
                self._require_finite(step)
            except ValueError as error:
                self._require_finite(step)
                if isinstance(error, NonFiniteEmbeddings):
                    raise UnitFailed(f"{error} in {step}") from error
                if not all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters()):
                    raise UnitFailed(f"weights are not finite in {step}: {first_line(error)}") from error
                raise
            self.optimisation.update(heads_only=heads_only)
            total += loss.double()
        return float(total) / self.steps

    @torch.no_grad()
    def fit(self) -> float:
        """Let the method fit its parts in one pass over the training images; returns the loss, which must be finite."""
        self.running.alive("fit")
        self.model.eval()
        labels = self.data.train.labels
        if self.model.method.on_base:  # one view, whose draws depend on the seed
            gen = inputs.generator("augment", self.spec.dataset, self.spec.replicate)
            features = self.inputs.batch(torch.arange(len(labels)), gen)
        else:
            rows = inputs.fitted_rows(len(labels))
            features, labels = self._first_view(rows), labels[rows]
        labels = labels.to(self.site.device)
        if not bool(torch.isfinite(features).all()):
            raise UnitFailed("some pooled features of the training images are not finite")
        self.model.method.fit(self.model, features, labels)
        loss = float(inputs.loss_of_any_classes(self.model, self.model.embed_features(features).distribution, labels))
        if not math.isfinite(loss):
            raise UnitFailed(f"loss became {loss} after the fit")
        return loss

    def _first_view(self, rows: Tensor) -> Tensor:
        """Pooled features ``[N, F]`` of training images of a network at its starting weights, equal for all seeds.

        They are of the first view that ``--frozen`` caches.
        """
        if isinstance(self.inputs, inputs.CachedFeatures) and not self.inputs.through_backbone:
            return self.inputs.features.first_view()
        images, device = self.data.train, self.site.device

        def load(part: Tensor) -> Tensor:
            return images.view_of(rows[part], self.augmentation, 0)

        made = backbone_features(self.model.backbone, load, len(rows), device, running=self.running, step="fit")
        return made.to(device)

    def _loss(self, labels: Tensor, step: str, embedding: Embedding) -> Tensor:
        """The scalar loss of the embeddings of a batch; :meth:`_require_finite` is to be asked about it.

        On a CPU it has been, before the backward pass. On a GPU its answer is under way while that is launched, and
        there before the step is taken.
        """
        self._finite = None
        finite = torch.isfinite(embedding.raw.detach()).all()
        on_gpu = finite.is_cuda
        try:
            loss: Tensor = self.model.objective(embedding.distribution, labels)
        except (ValueError, RuntimeError) as error:
            # On a GPU, embeddings are not validated before.
            if on_gpu and not is_out_of_memory(error) and not bool(finite):
                raise UnitFailed(f"some embeddings are not finite in {step}") from error
            raise
        if loss.dim():
            raise ValueError(f"the objective returned a loss of shape {tuple(loss.shape)}; it has to be a scalar")
        if not loss.requires_grad:
            raise ValueError("the loss does not depend on anything trained: detached, or made of constants?")
        self._finite = Read(torch.stack([loss.detach(), finite.to(loss.dtype)]))
        if not on_gpu:
            self._require_finite(step)
        return loss

    def _require_finite(self, step: str) -> None:
        """Raise a failure of the unit if the loss of this step or its embeddings are not finite."""
        if self._finite is None:
            return
        (loss, finite), self._finite = self._finite.numbers(), None
        if not math.isfinite(loss):
            raise UnitFailed(f"loss became {loss} in {step}")
        if not finite:
            raise UnitFailed(f"some embeddings are not finite in {step}")

    def validate(self, epoch: int, loss: float | None) -> Epoch:
        """Measure an epoch, numbered from 0, on validation classes: MAP@R, and the loss if it is defined for them.

        Epoch -1, which has no training loss, is the start.
        """
        model, labels = self.model, self.data.val.labels
        selection, device = self.spec.selection, self.site.device
        try:
            distribution = self.inputs.validation(model)
        except NonFiniteEmbeddings as error:
            raise UnitFailed(f"validation in epoch {epoch + 1}: {error}") from error
        try:
            check_finite(distribution, {})
            scorer: Scorer = DistributionScorer(selection.scorer, distribution, model.scorer_options(), device)
            scorer = PatientScorer(scorer, self.running)
            if selection.candidates:
                modes = PatientScorer(mode_scorer(distribution, device), self.running)
                val = reranked_map_at_r(scorer, modes, labels, ks=(selection.candidates - 1,))
            else:
                val = map_at_r(scorer, labels)
        except ValueError as error:
            raise UnitFailed(f"validation in epoch {epoch + 1}: {error}") from error
        val_loss = self.inputs.validation_loss(model, labels.to(device))
        if val_loss is not None and not math.isfinite(val_loss):
            raise UnitFailed(f"validation in epoch {epoch + 1}: loss became {val_loss}")
        return Epoch(epoch=epoch + 1, loss=loss, val_map_at_r=val, val_loss=val_loss)

    def book(self, row: Epoch) -> None:
        """Add a finished epoch to the progress, and keep its weights if it is the best so far.

        The specification of the training says by which value, which must be finite: validation MAP@R, validation loss,
        or the last epoch.
        """
        selection = self.spec.selection
        value = row.val_map_at_r
        if selection.metric == "last":
            value = float(row.epoch - 1)
        elif selection.metric == "stage_loss":
            if row.val_loss is None:
                raise UnitFailed("the stage has no validation loss to select by")
            value = -row.val_loss
        if not math.isfinite(value):
            raise UnitFailed(f"selection value became {value} in epoch {row.epoch}")
        self.progress.book(row, value, self.model.state_dict(), selection.patience, selection.min_improvement)

    def save_checkpoint(self) -> None:
        """Save the progress, the network and the optimiser in the checkpoint file, in place of the former one.

        There is none of a network with state that a new one would not get from it, such as a memory of earlier batches
        in an attribute that is no buffer: after a kill, its training begins again.
        """
        attributes = changed_since(self._unsaved, self.model, self._idle)
        if lost := [name for name, value in attributes.items() if not is_plain(value)]:
            self.progress.note = f"{', '.join(lost[:3])} changed in training but is not in the state dict: there was no"
            self.progress.note += " checkpoint, and a kill would have started it anew; make it a buffer"
            return
        # Replaced in one step but not flushed to disk: a kill loses nothing, a power cut at most the whole unit.
        states = {"progress": {**vars(self.progress), "best_state": self._changing(self.progress.best_state)}}
        states |= {"sizes": self.running.sizes, "attributes": attributes}
        states |= {"model": self._changing(self.model.state_dict()), **self.optimisation.state_dict()}
        with sealed_file(self.folder / CHECKPOINT, self.spec.id) as file:
            torch.save(states, file)

    def _changing(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """What training may change of a state of the model."""
        return {key: value for key, value in state.items() if not key.startswith(self._idle)}

    def _load_checkpoint(self) -> None:
        try:
            content = read_sealed(self.folder / CHECKPOINT, self.spec.id)
        except FileNotFoundError:
            return
        except DamagedFile as error:  # a torn file after a power cut, say
            self.progress.note = f"its checkpoint did not load ({first_line(error)}), so it was trained from the start"
            return
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        fixed = {key: value.cpu() for key, value in self.model.state_dict().items() if key.startswith(self._idle)}
        self.model.load_state_dict(fixed | state["model"])
        restore(state.get("attributes", {}), self.model)
        self.optimisation.load_state_dict(state)
        self.progress = Progress(**state["progress"])
        self.progress.best_state = fixed | self.progress.best_state
        # Memory that was too small is taken to be so still: a resumed training ends as an undisturbed one.
        for name, size in state["sizes"].items():
            setattr(self.running, name, size)

    def finish(self) -> TrainRecord:
        """Write the weights of the best epoch and the record of the training, and delete the checkpoint."""
        progress = self.progress
        best = next(row for row in progress.history if row["epoch"] == progress.best_epoch)
        assert progress.best_value is not None
        confidence = self._crop_confidence()
        weights = save({key: value.contiguous() for key, value in progress.best_state.items()})
        write_atomic(self.folder / WEIGHTS, weights)
        record = TrainRecord(
            unit=self.spec.id,
            cell=self.spec.cell,
            spec=self.spec,
            files={WEIGHTS: sha256(weights)},
            num_classes=self.data.train.num_classes,
            channels=self.channels,
            manifests={"train": self.data.train.manifest_sha256(), "val": self.data.val.manifest_sha256()},
            history=tuple(Epoch(**row) for row in progress.history),
            best_epoch=progress.best_epoch,
            selection_value=progress.best_value,
            val_map_at_r=best["val_map_at_r"],
            val_confidence_auroc=confidence,
            note=progress.note,
            weights_copy=getattr(self.model.backbone, "copy", ""),
            environment=environment(self.site, self._started, self.running, self.rounding),
        )
        self.site.store.write(record)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        return record

    def _crop_confidence(self) -> float | None:
        """Worth of the confidence of the best epoch's model on crops of the validation images, if it is asked for."""
        asked = self.spec.crop_confidence
        if asked is None:
            return None
        self.model.load_state_dict(self.progress.best_state)
        self.model.reads_maps = False
        spec, device, running = self.spec, self.site.device, self.running
        images = self.data.val if spec.replicate == TUNING else sample(self.data.val)
        crops = CorruptedImages.of(images, spec.dataset, CROP, asked)
        cache = inputs.TestedFeatures.of(self.model, spec, self.site, running)
        features = None if cache is None else cache.load(f"val_{CROP}", Seen(crops), make=running.chunk is None)
        value = crop_auroc(self.model, crops, features, spec.selection.scorer, device, running)
        return None if math.isnan(value) else value


SAMPLE = 2000
"""Most validation images whose crops a trial of a replicate's own study embeds."""


def crop_auroc(
    model: EmbeddingModel,
    crops: CorruptedImages,
    features: Tensor | None,
    scorer: str,
    device: str,
    running: Running,
) -> float:
    """AUROC of telling right from wrong answers on centre crops by the default confidence of a method, in [0, 1].

    Every image is cropped by a severity of its own and is query and gallery, but never its own neighbour. An answer is
    right if the nearest neighbour has the query's class (Recall@1). It is nan if all are right or all wrong.
    ``features`` are those of the crops, if they are at hand.
    """
    labels, step = crops.images.labels, "validation on crops"
    load, about = (crops.evaluation, False) if features is None else (features.__getitem__, True)
    try:
        distribution, confidences = embed(model, load, len(crops), device, features=about, running=running, step=step)
        check_finite(distribution, confidences)
        ranked_by = PatientScorer(DistributionScorer(scorer, distribution, model.scorer_options(), device), running)
        correct = per_query(rank(ranked_by, labels, depth=full_depth(labels)))["recall_at_1"]
    except (NonFiniteEmbeddings, ValueError) as error:
        raise UnitFailed(f"{step}: {error}") from error
    counted = ~correct.isnan()
    correct, confidence = correct[counted], confidences[default_confidence(model.method, confidences)][counted]
    return confidence_auroc(confidence, correct)


def sample(images: ImageSet) -> ImageSet:
    """The first classes of a set: as many whole ones as have at most :data:`SAMPLE` images, but two at least."""
    last = max(1, int((images.labels.bincount().cumsum(0) <= SAMPLE).sum()) - 1)
    rows = (images.labels <= last).nonzero().flatten()
    return images if len(rows) == len(images) else images.select(rows)


def steps_per_epoch(spec: TrainSpec, images: int) -> int:
    """Number of batches per epoch, at least one."""
    sizes = spec.batches
    return max(1, int(sizes.epoch_repeats * images) // (sizes.classes_per_batch * sizes.images_per_class))
