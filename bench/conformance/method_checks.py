"""Checks of a method: shapes, gradients, confidence, state and frozen parts."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import first_line
from ..methods._model import EmbeddingModel, EnsembleModel
from ..methods.backbones.registry import build_backbone
from ..methods.cosface import CosFace
from ..methods.distributions.arrays import from_arrays, to_arrays
from ..methods.scorers.registry import get_scorer, pairwise_score
from ..methods.unsaved import changed_since, is_plain, restore, unsaved
from ..seeds import seed_generators
from .failure import require

CLASSES, PER_CLASS, DIM, SIDE, MEMBERS = 6, 4, 16, 20, 3

SAME = 1e-5
"""Range of confidences, as a share of the largest one, that is called constant; float32 has 1e-7, our methods 1e-2."""


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images ``[B, 1, 20, 20]`` of a few classes that differ by a fixed pattern, and labels."""
    g = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, 1, SIDE, SIDE, generator=g)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    images = patterns[labels] + 0.3 * torch.randn(len(labels), 1, SIDE, SIDE, generator=g)
    return images, labels


def build(cls: type, form: str = "corrected", **params: Any) -> Any:
    """Build a small :class:`.EmbeddingModel` of a method in one of its forms, on which its conformance checks run.

    The model is in training mode, and has been initialised or fitted on a batch of synthetic images if the method does
    that. A two-stage method, which starts from a trained base model, gets an untrained CosFace objective as that of its
    base. An ensemble is an :class:`.EnsembleModel` of untrained CosFace models.
    """
    method: Any = cls(cls.Params(**cls.defaults(form) | params))  # type: ignore[attr-defined]
    if method.ensemble:
        return _ensemble(method)
    model = _uninitialised(method)
    if method.warm_start:
        images, labels = batch()
        with torch.no_grad():
            method.initialise(model, model(images).raw, labels)
    if not method.by_steps:
        _fit(model)
    return model


def _uninitialised(method: Any, seed: int = 0) -> Any:
    seed_generators(seed)
    backbone = build_backbone("convnet", 1, None)
    base = CosFace().objective(CLASSES, DIM) if method.on_base else None
    return EmbeddingModel(method, backbone, CLASSES, DIM, base).train()


def _ensemble(method: Any) -> Any:
    return EnsembleModel(method, [_uninitialised(CosFace(), seed) for seed in range(MEMBERS)])


@torch.no_grad()
def _fit(model: Any) -> None:
    images, labels = batch()
    model.eval()
    model.method.fit(model, model.features(images), labels)
    model.train()


def _loss(model: Any, images: Tensor, labels: Tensor) -> Tensor:
    seed_generators(1)
    loss: Tensor = model.objective(model(images).distribution, labels)
    return loss


CHECKS: dict[str, Callable[[Any], None]] = {}
"""Every check by name: a function of a method's class that raises :class:`ConformanceError`."""


def _check(check: Callable[[Any], None]) -> Callable[[Any], None]:
    CHECKS[check.__name__] = check
    return check


def _of_training(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Check that an ensemble passes as it is: its members are trained, and checked, as models of their own method."""

    @wraps(check)
    def checked(cls: Any) -> None:
        if not cls.ensemble:
            check(cls)

    return _check(checked)


@_check
def metadata(cls: Any) -> None:
    """Require that a method's class has a name, summary, docstring, known scorer and consistent parameters and forms.

    It must have a corrected form, which computes what the paper's equations say. If it has other forms, which compute
    what a public code does, ``released_behaviour`` must tell how they differ. The default of every tuned parameter must
    lie inside its search range, whose ends must be valid values.
    """
    require(bool(cls.name and cls.summary), "name and summary must not be empty")
    require(cls.__doc__ is not None, f"class {cls.__name__} needs a docstring")
    get_scorer(cls.scorer)
    require("corrected" in cls.forms(), "every method has a corrected form")
    released = len(cls.forms()) > 1
    require(released == bool(cls.released_behaviour), "released_behaviour must say what fidelity=released does")
    defaults = cls.Params().model_dump()
    for name, field in cls.Params.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and "search" in extra:
            search: Any = extra["search"]
            inside = search["low"] <= defaults[name] <= search["high"]
            require(inside, f"default of {name} is outside its search range")
            for end in ("low", "high"):
                cls.Params(**{name: search[end]})


@_check
def shapes(cls: Any) -> None:
    """Require that a method gives distributions of batch shape ``[B]`` and event shape ``[D]``, and a scalar loss.

    An ensemble of M models has the event shape ``[M D]`` and no loss.
    """
    model = build(cls)
    images, labels = batch()
    embedding = model(images)
    dim = DIM * (MEMBERS if cls.ensemble else 1)
    require(embedding.raw.shape == (len(labels), dim), "raw embeddings must be [B, D]")
    distribution = embedding.distribution
    shape = (tuple(distribution.batch_shape), tuple(distribution.event_shape))
    require(shape == ((len(labels),), (dim,)), f"batch and event shape are {shape}")
    if cls.ensemble:
        return
    require(_loss(model, images, labels).shape == (), "the objective must return a scalar")


@_of_training
def finite(cls: Any) -> None:
    """Require that the loss and the gradients of a method are finite, in each of its forms.

    The forms are the corrected one (the paper's equations) and those of public codes. The corrected form must keep them
    finite also at extreme outputs of the heads and for a batch of one class; there, a ``ValueError`` is accepted too.
    """
    for form in cls.forms():
        model = build(cls, form)
        images, labels = batch()
        loss = _loss(model, images, labels)
        if model.method.by_steps:
            loss.backward()
        require(bool(torch.isfinite(loss)), f"{form}: the loss is {loss.item()}")
        for name, p in model.named_parameters():
            if p.requires_grad and model.method.by_steps:
                require(p.grad is not None, f"{form}: {name} is trained but has no gradient")
                require(bool(torch.isfinite(p.grad).all()), f"{form}: gradient of {name} is not finite")
        if form == "corrected":
            _extremes(model, labels)
            _extreme_spreads(model, labels)


def _extremes(model: Any, labels: Tensor) -> None:
    features = torch.rand(len(labels), model.mean.in_features)
    direction = torch.nn.functional.normalize(torch.randn(DIM), dim=0)
    cases = {
        "zero": torch.zeros(len(labels), DIM),
        "equal": direction.expand(len(labels), DIM),
        "opposite": direction * (1.0 - 2.0 * (torch.arange(len(labels)) % 2))[:, None],
        "huge": 1e4 * torch.randn(len(labels), DIM),
        "tiny": 1e-6 * torch.randn(len(labels), DIM),
        "one class": torch.randn(len(labels), DIM),
    }
    half = {"float16 features": features.half(), "largest float16 features": 6.5e4 * features.half()}
    for name, pooled in half.items():
        try:
            loss = model.objective(model.embed_features(pooled).distribution, labels)
        except ValueError:
            continue
        require(bool(torch.isfinite(loss)), f"{name}: the loss is {loss.item()}")
    for name, raw in cases.items():
        spread = None if model.spread is None else model.spread(features).detach()
        y = torch.zeros_like(labels) if name == "one class" else labels
        _require_finite(model, f"{name} embeddings", raw, spread, y)


def _extreme_spreads(model: Any, labels: Tensor) -> None:
    """Require finite losses and gradients for extreme outputs of a spread head, as one large step can cause."""
    if model.spread is None:
        return
    features = torch.rand(len(labels), model.mean.in_features)
    raw = torch.randn(len(labels), DIM)
    with torch.no_grad():
        shape = model.spread(features).shape
    signs = 1.0 - 2.0 * (torch.arange(shape.numel()) % 2).reshape(shape)
    _require_finite(model, "a spread head at zero", raw, torch.zeros(shape), labels)
    # Squares of these fit float32; beyond 1e19 they would not.
    for size in (1e-6, 1e2, 1e4, 1e12):
        for sign, spread in (("+", torch.full(shape, size)), ("-", torch.full(shape, -size)), ("+-", size * signs)):
            _require_finite(model, f"a spread head at {sign}{size:g}", raw, spread, labels)


def _require_finite(model: Any, what: str, raw: Tensor, spread: Tensor | None, labels: Tensor) -> None:
    """Finite loss and gradients at some outputs of the heads; a clear refusal is as good as a value."""
    heads = [head.clone().requires_grad_() for head in (raw, spread) if head is not None]
    try:
        loss = model.objective(model.method.distribution(heads[0], heads[1] if len(heads) > 1 else None), labels)
    except ValueError:
        return
    require(bool(torch.isfinite(loss)), f"{what}: the loss is {loss.item()}")
    for head, gradient in zip(("embeddings", "spreads"), torch.autograd.grad(loss, heads, allow_unused=True)):
        finite = gradient is None or bool(torch.isfinite(gradient).all())
        require(finite, f"{what}: the gradient of the {head} is not finite")


@_of_training
def learns(cls: Any) -> None:
    """Require that 25 steps on one fixed batch lower a method's loss and leave images apart, or that it can be fitted.

    A fit has to change the network, and must leave the same network however often it is repeated.
    """
    model = build(cls)
    images, labels = batch()
    if not model.method.by_steps:
        _require_fit(model)
        return

    def measure() -> float:
        with torch.no_grad():
            values = []
            for seed in range(5):
                torch.manual_seed(100 + seed)
                values.append(model.objective(model(images).distribution, labels))
        return float(torch.stack(values).mean())

    before = measure()
    _train(model, steps=25, lr=3e-3)
    after = measure()
    require(after < before, f"the loss went from {before:.4g} to {after:.4g} in 25 steps on one batch")
    with torch.no_grad():
        means = model.eval()(images).distribution.mean
    apart = float((means - means[:1]).abs().max()) > SAME * float(means.abs().max())
    require(apart, "after 25 steps, the embedding is the same for every image")


def _train(model: Any, steps: int, lr: float) -> None:
    """Train on one fixed batch."""
    images, labels = batch()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model.objective(model(images).distribution, labels).backward()
        optimizer.step()


def _require_fit(model: Any) -> None:
    fitted = {name: value.clone() for name, value in model.state_dict().items()}
    parts = [getattr(model, name) for name in model.method.trained_parts]
    values = [value for part in parts if part is not None for value in part.state_dict().values()]
    with torch.no_grad():
        for value in values:
            value.zero_()
    changed = any(not torch.equal(value, fitted[name]) for name, value in model.state_dict().items())
    require(changed, "the fit leaves every trained part at zero")
    for time in ("again", "once more"):
        _fit(model)
        same = all(torch.equal(value, fitted[name]) for name, value in model.state_dict().items())
        require(same, f"fitted {time}, the network differs")


@_check
def confidence(cls: Any) -> None:
    """Require that the confidences of a method are finite, one value per image.

    A probabilistic method must have a confidence of its own, which is not the same for all images, not even after 50
    steps of training.
    """
    model = build(cls).eval()
    images, labels = batch()
    found = model.confidences(model(images))
    for name, values in found.items():
        require(values.shape == (len(labels),), f"confidence {name} must be [B]")
        require(bool(torch.isfinite(values).all()), f"confidence {name} is not finite")
    require(
        ("method" in found) == model.method.probabilistic,
        "a method defines distribution() and confidence() together, or neither",
    )
    if "method" in found:
        require(float(found["method"].std()) > 0, "the confidence is the same for every image")
        if model.method.by_steps and not cls.ensemble:
            _require_live(model.train(), images)


def _require_live(model: Any, images: Tensor) -> None:
    """Train fast: a spread that the loss drives to the end of its range gets there, as in a whole training."""
    torch.manual_seed(1)
    _train(model, steps=50, lr=1e-2)
    with torch.no_grad():
        values = model.eval().confidences(model(images))["method"]
    constant = float(values.max() - values.min()) <= SAME * float(values.abs().max())
    require(
        not constant,
        f"after 50 steps of training, the confidence is the same for every image ({values[0].item():.4g}): the loss"
        " drives the spread to one end of its range; widen the range, or weigh what pulls there less",
    )


@_check
def scores(cls: Any) -> None:
    """Require that a method's own scorer, the similarity that it ranks with, gives finite and symmetric scores."""
    model = build(cls).eval()
    with torch.no_grad():
        distribution = model(batch()[0]).distribution
        matrix = pairwise_score(cls.scorer, distribution, distribution, **model.scorer_options())
    require(bool(torch.isfinite(matrix).all()), "scores are not finite")
    require(bool(torch.allclose(matrix, matrix.mT, rtol=1e-4, atol=1e-4)), "scores are not symmetric")


@_of_training
def round_trip(cls: Any) -> None:
    """Require that a state dict restores a method's embeddings and loss exactly.

    The means must also survive the conversion of the distributions to arrays and back, up to rounding.
    """
    model = build(cls)
    images, labels = batch()
    other = build(cls)
    for p in other.parameters():
        nn.init.normal_(p.data)
    other.load_state_dict(_stored(model.state_dict()))
    model.eval(), other.eval()
    first, second = model(images), other(images)
    require(torch.equal(first.raw, second.raw), "a reloaded network embeds differently")
    require(torch.equal(_loss(model, images, labels), _loss(other, images, labels)), "a reloaded loss differs")
    kind, arrays = to_arrays(first.distribution)
    again = from_arrays(kind, arrays)
    # Spherical distributions normalise again on the way back, which may move the last digit.
    same = torch.allclose(again.mean, first.distribution.mean, rtol=1e-5, atol=1e-6)
    require(same, "arrays do not restore the distribution")


def _stored(state: Any) -> Any:
    """What a checkpoint gives back of a state dict."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@_of_training
def resumes(cls: Any) -> None:
    """Require that a training which goes on in a new model, from state dicts, takes the step of an unbroken one.

    What a method keeps from step to step, or sets before the first one, has to be in parameters, in buffers, in a
    tensor of ``get_extra_state``, or in attributes that are numbers and texts.
    """
    for form in cls.forms():
        model = build(cls, form)
        if not model.method.by_steps:
            return
        other = _uninitialised(model.method.__class__(model.method.params))
        optimizer, resumed = _sgd(model), _sgd(other)
        before = unsaved(model)
        for seed in (0, 1):
            _step(model, optimizer, seed)
        changed = changed_since(before, model)
        lost = [name for name, value in changed.items() if not is_plain(value)]
        advice = "; keep state in buffers (register_buffer), or in get_extra_state and set_extra_state"
        plain = [name for name, value in model.state_dict().items() if not isinstance(value, Tensor)]
        require(not plain, f"{form}: {', '.join(plain)} has to be a tensor to be saved")
        require(not lost, f"{form}: {', '.join(lost[:3])} changes in training and is not in the state dict{advice}")
        try:
            other.load_state_dict(_stored(model.state_dict()))
        except RuntimeError as error:
            require(False, f"{form}: a new model does not take the state dict: {first_line(error)}{advice}")
        restore(deepcopy(changed), other)
        resumed.load_state_dict(_stored(optimizer.state_dict()))
        unbroken, after = _step(model, optimizer, 2), _step(other, resumed, 2)
        require(
            torch.equal(unbroken, after), f"{form}: after a restart the loss is {after:.6g}, not {unbroken:.6g}{advice}"
        )
        pairs = zip(model.state_dict().items(), other.state_dict().values())
        differ = [name for (name, value), again in pairs if not _equal(value, again)]
        require(not differ, f"{form}: after a restart, a step sets {', '.join(differ[:3])} otherwise{advice}")


def _equal(value: Tensor, again: Tensor) -> bool:
    # NaN in a buffer may stand for what was not seen yet.
    return torch.equal(value, again) or torch.equal(value.nan_to_num(), again.nan_to_num())


def _sgd(model: Any) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, lr=0.01, momentum=0.9, weight_decay=0.1)


def _step(model: Any, optimizer: torch.optim.Optimizer, seed: int) -> Tensor:
    """Loss of one training step on the batch of a seed."""
    optimizer.zero_grad()
    loss = _loss(model, *batch(seed))
    loss.backward()
    optimizer.step()
    return loss.detach()


@_of_training
def deterministic(cls: Any) -> None:
    """Require that the same seeds give the same loss and gradients of a method."""
    images, labels = batch()
    found = []
    for _ in range(2):
        model = build(cls)
        loss = _loss(model, images, labels)
        if model.method.by_steps:
            loss.backward()
        found.append((loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]))
    same = all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1]))
    require(torch.equal(found[0][0], found[1][0]) and same, "two runs with the same seeds differ")


@_check
def independent(cls: Any) -> None:
    """Require that neither the other images of a batch nor random numbers change an embedding or its own confidence.

    This holds in evaluation mode, up to rounding.
    """
    model = build(cls).eval()
    images, _ = batch()
    rows = torch.arange(len(images)).flip(0)[::3]
    with torch.no_grad():
        torch.manual_seed(1)
        whole = _all_arrays(model, images)
        torch.manual_seed(2)
        part = _all_arrays(model, images[rows])
    for name, values in part.items():
        same = torch.allclose(values, whole[name][rows], rtol=1e-4, atol=1e-5)
        require(same, f"{name} of an embedding differs in another batch or under other random numbers")


def _all_arrays(model: Any, images: Tensor) -> dict[str, Tensor]:
    """Arrays of the embeddings of some images, and their confidences."""
    embedded = model(images)
    confidences = {f"confidence {name}": values for name, values in model.confidences(embedded).items()}
    return {**to_arrays(embedded.distribution)[1], **confidences}


@_of_training
def frozen(cls: Any) -> None:
    """Require that training leaves the frozen parts of a method as they are, batch-norm statistics included."""
    model = build(cls)
    method = model.method
    parts = {"backbone": model.backbone, "mean": model.mean, "spread": model.spread, "objective": model.objective}
    held = {n: p for n, p in parts.items() if p is not None and n not in method.trained_parts}
    before = {n: {k: v.clone() for k, v in p.state_dict().items()} for n, p in held.items()}
    if not method.by_steps:
        _fit(model)
    else:
        optimizer = _sgd(model.train())
        for _ in range(2):
            _step(model, optimizer, 0)
    for name, part in held.items():
        for key, value in part.state_dict().items():
            require(torch.equal(value, before[name][key]), f"{name}.{key} is frozen but moved")


def check(name: str, cls: Any) -> None:
    """Run one check of a method; returns nothing if it passes.

    Args:
        name: Name of the check, a key of :data:`CHECKS`.
        cls: Class of the method.

    Raises:
        ConformanceError: If the method fails; the message says what is wrong.
    """
    CHECKS[name](cls)
