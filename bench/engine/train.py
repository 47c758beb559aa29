"""Training one unit: epochs with checkpoints, selection on validation classes, one record."""

from __future__ import annotations

import math
import os
import platform
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import __version__
from ..datasets import TrainVal, class_balanced_batches
from ..errors import UnitFailed
from ..methods import EmbeddingModel
from ..protocols.query_metrics import map_at_r
from ..seeds import content_id, seed_for
from ..store import RECORD, write_atomic, write_json
from .context import Cell, Context
from .model import WEIGHTS, DistributionScorer, backbone_features, build_model, embed, load_base, save_weights
from .optim import build_optimizer, learning_rate_factor

CHECKPOINT = "checkpoint.pt"
Emit = Callable[[dict[str, Any]], None]


def generator(*axes: str | int) -> torch.Generator:
    """Random generator of named axes."""
    return torch.Generator().manual_seed(seed_for(*axes))


class _Images:
    """Training and validation inputs of an end-to-end stage: augmented images."""

    def __init__(self, data: TrainVal, augmentation: Any, device: str) -> None:
        self.data = data
        self.augmentation = augmentation
        self.device = device
        # On a CPU, training itself has all cores.
        self.ahead = device != "cpu"
        self._last: Tensor | None = None

    def batch(self, rows: Tensor, gen: torch.Generator) -> Tensor:
        self._last = self.data.train.training(rows, self.augmentation, gen, self._last)
        moved: Tensor = self._last.to(self.device, memory_format=torch.channels_last)
        if moved is self._last:  # in the same memory, which is the caller's now
            self._last = None
        return moved

    def embed_batch(self, model: EmbeddingModel, inputs: Tensor) -> Any:
        return model(inputs)

    def validation(self, model: EmbeddingModel) -> Distribution:
        """Embeddings of the validation images."""
        return embed(model, self.data.val.evaluation, len(self.data.val), self.device)[0]


class _CachedFeatures:
    """Inputs of a stage whose backbone is frozen: features of V augmented views, computed once per base."""

    ahead = False

    def __init__(
        self,
        data: TrainVal,
        augmentation: Any,
        spec: dict[str, Any],
        device: str,
        model: EmbeddingModel,
        folder: Path,
    ) -> None:
        views = spec["feature_views"]
        key = content_id(
            [spec["augmentation"], spec["view"], views, spec["folds"], spec["fold"], data.train.manifest_sha256()]
        )
        path = folder / f"features-{key}.safetensors"
        if not path.exists():
            made = {}
            for split, images in (("train", data.train), ("val", data.val)):
                stack = []
                for view in range(views):
                    gen = generator("features", spec["dataset"], split, view)
                    stack.append(_features(model, images, augmentation, gen, device))
                made[split] = torch.stack(stack)
            model.eval()
            made["evaluation"] = backbone_features(model.backbone, data.val.evaluation, len(data.val), device)
            write_atomic(path, save(made))
        self.device = device
        self.features = {name: value.to(device) for name, value in load_file(path).items()}

    def batch(self, rows: Tensor, gen: torch.Generator) -> Tensor:
        views = self.features["train"].shape[0]
        view = torch.randint(views, (len(rows),), generator=gen)
        chosen: Tensor = self.features["train"][view, rows]
        return chosen

    def embed_batch(self, model: EmbeddingModel, inputs: Tensor) -> Any:
        return model.embed_features(inputs)

    def validation(self, model: EmbeddingModel) -> Distribution:
        """Embeddings of the validation images."""
        held = self.features["evaluation"]
        return embed(model, lambda rows: held[rows], len(held), self.device, features=True)[0]

    @torch.no_grad()
    def validation_loss(self, model: EmbeddingModel, labels: Tensor) -> float:
        """The stage's loss on validation classes, the same views in every epoch, trial and method."""
        model.eval()
        # An objective that stands on the training classes says itself what its loss on other classes is.
        loss = getattr(model.objective, "validation_loss", model.objective)
        losses = [loss(model.embed_features(view).distribution, labels) for view in self.features["val"]]
        return float(torch.stack(losses).double().mean())


def in_turn(inputs: Any, batches: Iterable[Tensor], gen: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and inputs of batches in order; where that pays, each is made while the one before it is trained on."""
    if not inputs.ahead:
        for rows in batches:
            yield rows, inputs.batch(rows, gen)
        return
    with ThreadPoolExecutor(1) as worker:
        waiting: list[tuple[Tensor, Future[Tensor]]] = []
        for rows in batches:
            waiting.append((rows, worker.submit(inputs.batch, rows, gen)))
            if len(waiting) > 1:
                ready, made = waiting.pop(0)
                yield ready, made.result()
        for ready, made in waiting:
            yield ready, made.result()


@torch.no_grad()
def _features(model: EmbeddingModel, images: Any, augmentation: Any, gen: torch.Generator, device: str) -> Tensor:
    model.eval()
    parts = []
    for rows in torch.arange(len(images)).split(256):
        batch = images.training(rows, augmentation, gen).to(device, memory_format=torch.channels_last)
        parts.append(model.backbone(batch).float().cpu())
    return torch.cat(parts)


def run_training(spec: dict[str, Any], unit: str, cell: Cell, context: Context, emit: Emit) -> dict[str, Any]:
    """Train a unit, or go on from its last checkpoint, and write its record.

    Args:
        spec: What determines the result (see :mod:`bench.engine.units`).
        unit: Id of the specification.
        cell: Its folder.
        context: Paths and device.
        emit: Called with an event after every epoch.

    Returns:
        The record.

    Raises:
        UnitFailed: If the loss becomes non-finite.
    """
    started = time.perf_counter()
    folder = context.store.unit_dir(cell, "train", unit)
    folder.mkdir(parents=True, exist_ok=True)
    dataset = context.dataset(spec["dataset"], spec["view"])
    data: TrainVal = dataset.train_val(spec["fold"], spec["folds"])
    augmentation = dataset.augmentation_type(**spec["augmentation"])
    channels = dataset.input_channels
    model = build_model(spec, context, data.train.num_classes, channels)
    if spec["base"] is not None:
        base_folder = context.store.unit_dir((*cell[:2], spec["base"]["method"]), "train", spec["base"]["unit"])
        load_base(model, base_folder / WEIGHTS)
    inputs: Any
    if model.backbone_frozen:
        inputs = _CachedFeatures(data, augmentation, spec, context.device, model, base_folder)
    else:
        inputs = _Images(data, augmentation, context.device)
    optim, selection = spec["optim"], spec["selection"]
    optimizer = build_optimizer(model, model.objective, optim)
    labels, val_labels = data.train.labels, data.val.labels.to(context.device)
    steps = max(1, int(spec["epoch_repeats"] * len(labels)) // (spec["classes_per_batch"] * spec["images_per_class"]))
    model.precision = getattr(torch, optim["precision"])
    if optim["compile"]:
        model.backbone.compile()
    scaler = torch.amp.GradScaler(context.device, enabled=optim["precision"] == "float16")
    trainable = [p for p in model.parameters() if p.requires_grad]
    progress = _load_checkpoint(folder / CHECKPOINT, model, optimizer, scaler)
    calibrate = getattr(model.backbone, "calibrate", None)
    if calibrate is not None and progress["epoch"] == 0 and spec["base"] is None:
        gen = generator("calibrate", spec["dataset"], spec["replicate"])
        calibrate(inputs.batch(torch.randperm(len(labels), generator=gen)[:128], gen))
    if model.method.warm_start and progress["epoch"] == 0:
        _warm_start(model, inputs, labels, spec, steps, context.device)
    by_loss = selection["metric"] == "stage_loss"

    while progress["epoch"] < optim["epochs"] and not progress["stopped"]:
        epoch = progress["epoch"]
        axes = (spec["dataset"], spec["replicate"], epoch)
        order, augment = generator("order", *axes), generator("augment", *axes)
        torch.manual_seed(seed_for("noise", *axes))
        model.train()
        if epoch < optim["head_epochs"]:
            model.backbone.eval()  # its batch statistics do not move either
        total = torch.zeros((), dtype=torch.float64)
        batches = class_balanced_batches(labels, spec["classes_per_batch"], spec["images_per_class"], order, steps)
        for number, (rows, made) in enumerate(in_turn(inputs, batches, augment)):
            factor = learning_rate_factor(epoch * steps + number, steps, optim)
            for group in optimizer.param_groups:
                group["lr"] = group["max_lr"] * factor
            embedding = inputs.embed_batch(model, made)
            loss = model.objective(embedding.distribution, labels[rows].to(context.device))
            if not torch.isfinite(loss):
                raise UnitFailed(f"loss became {loss.item()} in epoch {epoch + 1}, batch {number + 1}")
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if epoch < optim["head_epochs"]:
                model.backbone.zero_grad(set_to_none=True)  # an optimiser skips what has no gradient
            nn.utils.clip_grad_norm_(trainable, optim["grad_clip"], error_if_nonfinite=False)
            scaler.step(optimizer)
            scaler.update()
            total += loss.detach().double().cpu()
        distribution = inputs.validation(model)
        try:
            scorer = DistributionScorer(model.method.scorer, distribution, model.scorer_options(), context.device)
            val = map_at_r(scorer, data.val.labels)
        except ValueError as error:
            raise UnitFailed(f"validation in epoch {epoch + 1}: {error}") from error
        row = {"epoch": epoch + 1, "loss": float(total) / steps, "val_map_at_r": val}
        if model.backbone_frozen:
            row["val_loss"] = inputs.validation_loss(model, val_labels)
        value = float(epoch) if selection["metric"] == "last" else -row["val_loss"] if by_loss else val
        if not math.isfinite(value):
            raise UnitFailed(f"selection value became {value} in epoch {epoch + 1}")
        _advance(progress, row, value, model, selection)
        _save_checkpoint(folder / CHECKPOINT, progress, model, optimizer, scaler)
        emit({"event": "epoch", "epoch": epoch + 1, "epochs": optim["epochs"], "best": progress["best_value"]})

    save_weights(progress["best_state"], folder / WEIGHTS)
    best = progress["history"][progress["best_epoch"] - 1]
    record = {
        "spec": spec,
        "unit": unit,
        "num_classes": data.train.num_classes,
        "channels": channels,
        "manifests": {"train": data.train.manifest_sha256(), "val": data.val.manifest_sha256()},
        "history": progress["history"],
        "best_epoch": progress["best_epoch"],
        "selection_value": progress["best_value"],
        "val_map_at_r": best["val_map_at_r"],
        "environment": environment(context, started),
    }
    write_json(folder / RECORD, record)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return record


@torch.no_grad()
def _warm_start(
    model: EmbeddingModel, inputs: Any, labels: Tensor, spec: dict[str, Any], steps: int, device: str
) -> None:
    """Show the method the raw embeddings of one pass of training batches, then forget that they were computed."""
    axes = ("warm start", spec["dataset"], spec["replicate"])
    order, augment = generator("order", *axes), generator("augment", *axes)
    # Batch statistics, as in the first training step; running ones are at their initial values or frozen.
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.train()
    raw, seen = [], []
    batches = class_balanced_batches(labels, spec["classes_per_batch"], spec["images_per_class"], order, steps)
    for rows, made in in_turn(inputs, batches, augment):
        raw.append(inputs.embed_batch(model, made).raw)
        seen.append(labels[rows])
    model.load_state_dict(before)
    model.method.initialise(model, torch.cat(raw), torch.cat(seen).to(device))


def _advance(
    progress: dict[str, Any],
    row: dict[str, Any],
    value: float,
    model: EmbeddingModel,
    selection: dict[str, Any],
) -> None:
    """Book one epoch: keep it if it is the best (ties go to the later), stop when patience is used up."""
    progress["history"].append(row)
    progress["epoch"] = row["epoch"]
    if progress["best_value"] is None or value >= progress["best_value"]:
        progress["best_value"], progress["best_epoch"] = value, row["epoch"]
        progress["best_state"] = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
    if progress["improved_value"] is None or value >= progress["improved_value"] + selection["min_improvement"]:
        progress["improved_value"], progress["improved_epoch"] = value, row["epoch"]
    progress["stopped"] = row["epoch"] - progress["improved_epoch"] >= selection["patience"]


def _save_checkpoint(
    path: Path, progress: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any
) -> None:
    # Replaced in one step but not flushed to disk: a kill loses nothing, a power cut at most the whole unit.
    part = path.with_name(f".{path.name}.{os.getpid()}")
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    torch.save({"progress": progress, **{name: x.state_dict() for name, x in parts.items()}}, part)
    os.replace(part, path)


def _load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> dict[str, Any]:
    fresh: dict[str, Any] = {
        "epoch": 0,
        "history": [],
        "best_value": None,
        "best_epoch": 0,
        "best_state": {},
        "improved_value": None,
        "improved_epoch": 0,
        "stopped": False,
    }
    if not path.exists():
        return fresh
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a torn file after a power cut; torch raises many kinds
        return fresh
    model.load_state_dict(held["model"])
    optimizer.load_state_dict(held["optimizer"])
    if scaler.is_enabled():
        scaler.load_state_dict(held["scaler"])
    progress: dict[str, Any] = held["progress"]
    return progress


def environment(context: Context, started: float) -> dict[str, Any]:
    """Where and how long a unit ran."""
    return {
        "bench": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if context.device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "seconds": round(time.perf_counter() - started, 3),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
