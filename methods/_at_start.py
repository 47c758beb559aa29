"""Registration of methods that are fitted to a network at its starting weights, without a base and without steps."""

from __future__ import annotations

from ._base import M, Method
from ._base import register as register_method


def register(cls: M) -> M:
    """Mark a class as a method that is fitted to the network at its starting weights: a class decorator.

    It registers the class as :func:`._base.register` does and sets ``fitted``, so that :meth:`.Method.fit` replaces
    training. :func:`._base.register` itself knows only fitted methods on a trained base, and every unit id covers its
    code: this function is a module of its own so that only the methods that use it are in its ids.

    Raises:
        TypeError: If the class has a base or trains the backbone, or :func:`._base.register` refuses it.
    """
    if cls.on_base or "backbone" in cls.trains:
        raise TypeError(f"{cls.__name__}: a method fitted at the start has no base, and trains without the backbone")
    registered = register_method(cls)
    registered.fitted = True
    return registered


def is_fitted_at_start(method: Method | type[Method]) -> bool:
    """True if a method is fitted to the network at its starting weights, which are those of no trained base."""
    return method.fitted and not method.on_base
