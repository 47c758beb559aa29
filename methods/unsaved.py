"""What a network holds and its state dict does not: what a training that goes on from a checkpoint would lack."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def unsaved(model: nn.Module, idle: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Digest, by name, of each attribute of the modules of a model, without the values that its state dict holds.

    Of those only the shape counts, since another shape would not load. Equal digests before and after some steps mean
    that a new model with the state dict goes on as this one does. Attributes of modules with a ``get_extra_state`` of
    their own are left to it. Not seen is what code keeps outside the model: in globals, in closures. Names of modules
    that begin as one of ``idle`` are of those that no step calls, which are passed over.
    """
    saved = model.state_dict(keep_vars=True).values()
    held = {id(value) for value in (*model.modules(), *saved)} | set(filter(None, map(_memory, saved)))
    return {name: _digest(value, held, set()) for name, value in _attributes(model, idle)}


def changed_since(before: Mapping[str, bytes], model: nn.Module, idle: tuple[str, ...] = ()) -> dict[str, Any]:
    """Attributes of the modules of a model, by name, that have changed since :func:`unsaved`."""
    now, values = unsaved(model, idle), dict(_attributes(model, idle))
    return {name: values.get(name, _GONE) for name in sorted(before.keys() | now) if before.get(name) != now.get(name)}


def restore(attributes: Mapping[str, Any], model: nn.Module) -> None:
    """Set attributes of the modules of a model by name."""
    for name, value in attributes.items():
        place, _, own = name.rpartition(".")
        setattr(model.get_submodule(place), own, value)


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers and texts, which a checkpoint can hold and a new model can be given."""
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(is_plain, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


_GONE = object()


def _attributes(model: nn.Module, idle: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for place, module in model.named_modules():
        if type(module).get_extra_state is nn.Module.get_extra_state and not f"{place}.".startswith(idle):
            own = vars(module).items()
            yield from ((f"{place}.{name}".lstrip("."), value) for name, value in own if name != "training")


def _digest(value: Any, held: Collection[int], seen: set[int]) -> bytes:
    parts: Any
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        parts = [repr(value).encode()]
    elif id(value) in held or _memory(value) in held:  # a view of a parameter is as the parameter is
        parts = [repr(getattr(value, "shape", "")).encode()]
    elif id(value) in seen:  # a cycle
        parts = []
    else:
        seen.add(id(value))
        parts = _parts(value, lambda part: _digest(part, held, seen))
    return blake2b(b"".join([type(value).__qualname__.encode(), *parts]), digest_size=16).digest()


def _memory(value: Any) -> int:
    """Where the values of a tensor are; 0 if there is no such place."""
    strided = isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta
    return value.untyped_storage().data_ptr() if strided else 0


def _parts(value: Any, digest: Any) -> list[bytes]:
    """Digests of what an object consists of; of functions, classes and what cannot be copied there are none."""
    if isinstance(value, torch.Generator):
        value = value.get_state()
    if isinstance(value, Tensor):
        if value.is_meta:  # it has no values
            return [repr(value.shape).encode()]
        value = value.detach().cpu().to_dense().resolve_conj().resolve_neg()
        value = value.contiguous().flatten().view(torch.uint8).numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return [repr(value.shape).encode(), np.ascontiguousarray(value).tobytes()]
    if isinstance(value, Mapping):
        return [digest(part) for item in value.items() for part in item]
    if isinstance(value, Collection):
        parts = [digest(part) for part in value]
        return sorted(parts) if isinstance(value, set | frozenset) else parts
    if isinstance(value, type):
        return []
    try:
        return [digest(part) for part in value.__reduce_ex__(4)[1:3]]
    except (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError):
        return []
