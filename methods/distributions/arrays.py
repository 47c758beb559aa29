"""What distributions share: a base, broadcasting, and conversion to named arrays, which stores them without pickles.

A distribution class declares its array form where it is defined::

    @array_form("isotropic_normal", "loc", "variance")
    class IsotropicNormal(Distribution): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from importlib import import_module
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

D = TypeVar("D", bound=type[Distribution])

_CLASSES: dict[str, type[Distribution]] = {}
"""Classes that declared an array form, by kind; a module adds its classes when it is imported."""


def array_form(kind: str, *names: str) -> Callable[[D], D]:
    """Class decorator that declares the named tensors of which a distribution is made, so that it can be stored.

    The class gets the attributes ``array_kind`` and ``array_names``. Its constructor must take each name and
    ``validate_args`` as keywords, and an instance must have an attribute of each name, ``[*B, ...]``. A subclass does
    not inherit the declaration, because it may have more parameters than these.

    Args:
        kind: Name of the class of distributions in stored files, such as ``isotropic_normal``.
        names: Names of the parameters, such as ``loc`` and ``variance``.

    Raises:
        ValueError: If another class declared this kind.

    Example:
        >>> @array_form("halved_point", "loc")
        ... class HalvedPoint(Distribution):
        ...     def __init__(self, loc, validate_args=None):
        ...         self.loc = loc
        ...         super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=validate_args)
        >>> kind, arrays = to_arrays(HalvedPoint(torch.ones(2, 3), validate_args=False))
        >>> kind, type(from_arrays(kind, arrays)).__name__
        ('halved_point', 'HalvedPoint')
    """

    def declare(cls: D) -> D:
        from .registry import MODULES

        known = _CLASSES.get(kind)
        # A module that is imported again defines the same class anew.
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            owner = f"{known.__module__}.{known.__qualname__}"
        # One of ours may not be imported yet.
        elif kind in MODULES and cls.__module__ != f"{__package__}.{MODULES[kind]}":
            owner = f"{__package__}.{MODULES[kind]}"
        else:
            owner = ""
        if owner:
            raise ValueError(f"array form {kind!r} of {cls.__name__} is already that of {owner}; choose another name")
        attributes: Any = cls
        attributes.array_kind, attributes.array_names = kind, names
        _CLASSES[kind] = cls
        return cls

    return declare


def known_distributions() -> dict[str, type[Distribution]]:
    """Return the classes of distributions that can be stored as plain arrays, by their names in stored files.

    The built-in ones come first, then those that imported plug-ins have registered.

    Example:
        >>> list(known_distributions())[:2]
        ['point', 'rated_point']
    """
    from .registry import MODULES

    return {kind: _class_of(kind) for kind in (*MODULES, *(kind for kind in _CLASSES if kind not in MODULES))}


def to_arrays(distribution: Distribution) -> tuple[str, dict[str, Tensor]]:
    """Split a batch of N distributions into plain tensors that can be stored; :func:`from_arrays` is the inverse.

    Returns:
        Kind of the distributions, such as ``isotropic_normal``, and their parameters ``{name: [N, ...]}``.

    Raises:
        TypeError: If the class of the distribution lacks the decorator :func:`array_form`; the message names it.
    """
    cls = type(distribution)
    declared = vars(cls)
    if "array_kind" not in declared or "array_names" not in declared:
        raise TypeError(
            f"no array form for {cls.__name__}: decorate the class with @array_form({cls.__name__.lower()!r}, ...) of"
            " bench.methods.distributions, followed by the names of its parameters"
        )
    return declared["array_kind"], {name: getattr(distribution, name) for name in declared["array_names"]}


def from_arrays(kind: str, arrays: Mapping[str, Tensor]) -> Distribution:
    """Make a batch of distributions from stored tensors ``[N, ...]`` by name: the inverse of :func:`to_arrays`.

    Raises:
        TypeError: If no class declares this kind; the message says what to add.
        KeyError: If a parameter is missing.
    """
    cls: Any = _class_of(kind)
    return cls(**{name: arrays[name] for name in cls.array_names}, validate_args=False)  # type: ignore[no-any-return]


def _class_of(kind: str) -> type[Distribution]:
    if kind not in _CLASSES:
        from .registry import MODULES

        if kind not in MODULES:
            known = ", ".join(sorted({*MODULES, *_CLASSES}))
            raise TypeError(
                f"no distribution has the array form {kind!r} (known: {known}): import the module that defines its"
                f" class, which must be decorated with @array_form({kind!r}, ...)"
            )
        import_module(f".{MODULES[kind]}", __package__)
    return _CLASSES[kind]


def rows_of(distribution: Distribution, index: Tensor) -> Distribution:
    """Select some members of a batch of distributions, by positions ``[B]`` or a mask ``[N]``.

    A class whose members are made when they are read, such as points that are normalised then, has a method ``rows_at``
    that takes the positions and returns them as a distribution of another class.
    """
    rows_at: Callable[[Tensor], Distribution] | None = getattr(distribution, "rows_at", None)
    if rows_at is not None:
        return rows_at(index)
    kind, arrays = to_arrays(distribution)
    return from_arrays(kind, {name: value[index] for name, value in arrays.items()})


def in_float64(distribution: Distribution) -> Distribution:
    """Same distribution with its parameters in float64."""
    kind, arrays = to_arrays(distribution)
    return from_arrays(kind, {name: value.double() for name, value in arrays.items()})


def on_device(distribution: Distribution, device: str | torch.device) -> Distribution:
    """Same distribution with its parameters on the given device."""
    kind, arrays = to_arrays(distribution)
    return from_arrays(kind, {name: value.to(device) for name, value in arrays.items()})


class Located(Distribution):
    """Base of our distributions, which have a location ``[*B, D]``; all their tensors begin with the batch shape."""

    support = constraints.real_vector
    has_rsample = True
    loc: Tensor

    @property
    def dim(self) -> int:
        """Number of dimensions D."""
        return self.loc.shape[-1]

    @property
    def mean(self) -> Tensor:
        """The location ``[*B, D]``."""
        return self.loc

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Same distribution with a broadcast batch shape, as in :class:`torch.distributions.Distribution`."""
        new, own = copy(self), len(self.batch_shape)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(new, name, value.expand(*batch_shape, *value.shape[own:]))
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        return new


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """Common shape of several batch shapes, as ``torch.broadcast_shapes`` gives it, whose first call imports SymPy.

    Example:
        >>> broadcast_shapes((3, 1), (4,))
        torch.Size([3, 4])
    """
    if all(tuple(shape) == tuple(shapes[0]) for shape in shapes):
        return torch.Size(shapes[0])  # without NumPy, which makes a number of a symbol while a network is exported
    return torch.Size(np.broadcast_shapes(*map(tuple, shapes)))
