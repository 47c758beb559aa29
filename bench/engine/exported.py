"""Trained networks as files of other programs: a program of ``torch.export``, or ONNX."""

from __future__ import annotations

import io
import json
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from ..datasets.files import DataError
from ..datasets.view import View
from ..errors import UserError, first_line
from ..methods import _model
from ..methods.backbones.registry import GIVEN
from ..methods.distributions.arrays import to_arrays
from ..methods.distributions.normal import PointMass
from ..methods.scorers.spec import DistributionScorer
from ..protocols.embeddings import Embeddings
from ..protocols.operate import document_of
from ..seeds import seed_for
from ..site import Site
from ..store.records import TrainRecord
from .networks import default_confidence
from .trained import Network, open_network

BATCHES = (1, 7, 64)
"""Numbers of images for which a written file is compared with the network."""

TOLERANCE = 1e-5
"""Largest difference of a value, and of values above 1 in relation to them."""

Arrays = dict[str, Tensor]
Run = Callable[[Tensor], Sequence[Tensor]]


class Exported(nn.Module):
    """Network from images ``[B, C, H, W]`` to what is of use elsewhere, by name, in plain tensors.

    These are the ``embedding`` of unit length, the ``variance`` or ``concentration`` about it of a distribution that
    has one, and one ``confidence``.
    """

    def __init__(self, model: _model.EmbeddingModel, confidence: str) -> None:
        super().__init__()
        self.model, self.named = model, confidence

    def forward(self, images: Tensor) -> Arrays:
        """Arrays of some images by name, one row per image."""
        raw, distribution = self.model(images)
        held = to_arrays(distribution)[1]
        return {
            "embedding": F.normalize(held["loc"], dim=-1),
            **_spread(held),
            "confidence": self._confidence(raw, distribution),
        }

    def _confidence(self, raw: Tensor, distribution: Distribution) -> Tensor:
        """The one confidence: all of them, as the network gives them, take loops over parts of the batch."""
        own = self.model.method.confidence(distribution) if self.named == "method" else None
        if own is not None:
            return own
        if self.named == "norm":
            return _model.norm_confidence(raw)
        objective = self.model.objective
        classifier = objective if hasattr(objective, "class_cosines") else self.model.base_objective
        if self.named == "max_cosine":
            cosines: Tensor = classifier.class_cosines(distribution)[0]  # type: ignore[union-attr, operator]
            return cosines.amax(-1)
        return _model.confidences_of_classes(_model.class_log_probabilities(classifier, distribution))[self.named]


def export_unit(folder: Path, site: Site, onnx: bool, out: Path) -> str:
    """Write the network of a training as a file, compare the file with the network, and return a line about it.

    Raises:
        UserError: If the network cannot be written so, or the file gives other values; there is no file then.
    """
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if onnx and find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX needs {missing[0]}: `pip install 'probembed[onnx]'`, or take --to torch")
    network = open_network(folder, site)
    record, model = network.record, network.module
    if isinstance(model, _model.EnsembleModel):
        raise UserError(f"{model.method.name} is no single network; export its members")
    if record.spec.backbone == GIVEN:
        raise UserError(f"{record.spec.method} was trained on features of {record.spec.dataset}; it takes no images")
    about, size = _about(record, site)
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(max(BATCHES), record.channels, *size, generator=draw)
    with torch.no_grad(), _quiet():
        named = default_confidence(model.method, model.confidences(model(images[:1])))
        exported = Exported(model, named).eval()
        wanted = {count: exported(images[:count]) for count in BATCHES}
        for count, found in wanted.items():  # in the way of a test
            found["confidence"] = model.confidences(model(images[:count]))[named]
        about["confidence"] = named
        about["operate"] = _operating_points(network, named)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-") as scratch:
            written = Path(scratch) / ("network.onnx" if onnx else "network.pt2")
            program = _program(exported, images[:3])
            names = list(wanted[1])
            run = _write_onnx(program, names, about, written) if onnx else _write_torch(program, names, about, written)
            worst = max(_difference(run(images[:count]), wanted[count]) for count in BATCHES)
            if not worst <= TOLERANCE:
                raise UserError(
                    f"{record.spec.method}: the exported network differs from ours by {worst:.2g} (allowed:"
                    f" {TOLERANCE}); {out} was not written"
                )
            written.replace(out)
    reason = json.loads(about["operate"]).get("reason", "")
    shapes = ", ".join(f"{name} {['B', *value.shape[1:]]}".replace("'", "") for name, value in wanted[1].items())
    return (
        f"{out}: images [B, {', '.join(map(str, images.shape[1:]))}] -> {shapes}; confidence: {named}; equal to"
        f" {worst:.1g} at {', '.join(map(str, BATCHES))} images{f'; no operating points: {reason}' if reason else ''}"
    )


def _spread(held: Arrays) -> Arrays:
    """Variance or concentration of the distributions that are scaled to a mean of unit length."""
    found: Arrays = {name: held[name] for name in ("variance", "concentration") if name in held}
    if "variance" in found:
        squared = held["loc"].square().sum(-1).clamp_min(torch.finfo(torch.float32).tiny)
        found["variance"] = found["variance"] / (squared if found["variance"].dim() == 1 else squared.unsqueeze(-1))
    return found


def _difference(found: Sequence[Tensor], wanted: Arrays) -> float:
    """Largest difference of two results, relative where a value is above 1; infinite if their shapes differ."""
    worst = 0.0
    for got, value in zip(found, wanted.values(), strict=True):
        if got.shape != value.shape:
            return float("inf")
        worst = max(worst, float(((got - value).abs() / value.abs().clamp_min(1.0)).max()))
    return worst


def _about(record: TrainRecord, site: Site) -> tuple[dict[str, str], Sequence[int]]:
    """Facts that a file contains, as texts by name, and the size (H, W) of images."""
    spec = record.spec
    if spec.photographs:
        size = [int(spec.photographs["image_size"])] * 2
        # The backbones of photographs take pixels in [0, 1] and normalise them themselves.
        read = vars(View(**spec.photographs))
        view = {**read, "mean": [0.0] * record.channels, "std": [1.0] * record.channels}
    else:
        dataset = site.dataset(spec.dataset)
        size, sample = list(dataset.image_size), dataset.test()
        view = {"image_size": size, "resize": size, "interpolation": "bilinear", "antialias": True}
        view |= {name: list(getattr(sample, name)) for name in ("mean", "std") if hasattr(sample, name)}
    facts = {
        "name": f"{spec.method} on {spec.dataset}",
        "unit": record.unit,
        "backbone": spec.backbone,
        "view": json.dumps({**view, "range": [0, 1], "order": "RGB" if record.channels == 3 else "grey"}),
        "validation": json.dumps({"map_at_r": record.val_map_at_r, "confidence_auroc": record.val_confidence_auroc}),
    }
    return facts, size


def _operating_points(network: Network, named: str) -> str:
    """Operating points that half of the validation classes choose and the others measure, as JSON.

    Without the images, or with too few classes, there are no points, but the reason.
    """
    spec = network.record.spec
    try:
        images = network.site.dataset(spec.dataset, spec.view).train_val(spec.fold, spec.folds).val
        found = network.embed_rows(images.evaluation, len(images))
        unit = F.normalize(torch.from_numpy(found.mean).double(), dim=-1)
        view = Embeddings(
            labels=images.labels,
            ids=images.ids,
            scorers={"cosine": partial(DistributionScorer, "cosine", PointMass(unit))},
            confidences={"given": torch.from_numpy(found.confidence[named]).double()},
            directions=lambda: unit,
            seed=partial(seed_for, "score"),  # as `bench score` draws
        )
        return json.dumps(document_of(view, "cosine"))
    except (UserError, DataError, ValueError) as error:  # not at hand, or too few classes
        return json.dumps({"points": [], "reason": first_line(error)})


def _program(network: Exported, images: Tensor) -> torch.export.ExportedProgram:
    """Program of a network for any number of images."""
    batch = {"images": {0: torch.export.Dim("batch")}}
    try:
        program = torch.export.export(network, (images,), dynamic_shapes=batch, strict=False)
    except Exception as error:  # of a method, whose code is traced
        reason = first_line(error)
        if "Constraints violated" in reason:
            reason = "its code fixes the number of images, as len(x) does; x.shape[0] does not"
        raise UserError(f"{network.model.method.name} cannot be exported: {reason}") from error
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # it has paths of this machine
    return program


def _write_torch(program: torch.export.ExportedProgram, names: list[str], about: dict[str, str], path: Path) -> Run:
    torch.export.save(program, path, extra_files={"bench.json": json.dumps(about)})
    run = torch.export.load(path).module()
    return lambda images: [run(images)[name] for name in names]


def _write_onnx(program: torch.export.ExportedProgram, names: list[str], about: dict[str, str], path: Path) -> Run:
    import onnxruntime

    try:
        written = torch.onnx.export(program, (), input_names=["images"], output_names=names, dynamo=True, verbose=False)
    except torch.onnx.OnnxExporterError as error:
        lacks = re.search(r"op='([\w.]+)'", str(error))
        what = f"ONNX has no operator for {lacks[1]}" if lacks else first_line(error)
        raise UserError(f"{what}; --to torch has all operators") from error
    assert written is not None
    written.model.metadata_props.update(about)
    written.save(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: [torch.from_numpy(found) for found in session.run(names, {"images": images.numpy()})]


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of the exporters, and no checks of distributions, which cannot look at values in a program."""
    checks = Distribution._validate_args
    level = logging.root.manager.disable
    Distribution.set_default_validate_args(False)
    logging.disable(logging.CRITICAL)
    try:
        # A failure prints the whole program.
        with warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)
        Distribution.set_default_validate_args(checks)
