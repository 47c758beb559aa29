"""Sweeps: one run for each value of a setting, ``--sweep key=a,b,c``."""

from __future__ import annotations

from itertools import product

from ..errors import UserError


def swept_pins(sweeps: tuple[str, ...], pins: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The pinned values of each run of a sweep, as ``--set`` takes them; several sweeps give all combinations.

    Args:
        sweeps: Swept settings, each as ``KEY=A,B,C``.
        pins: Settings of all runs, each as ``KEY=VALUE``.

    Raises:
        UserError: If a sweep has no values, one twice, or a key that is fixed or swept already.

    Example:
        >>> swept_pins(("a=1,2",), ("b=3",))
        [('b=3', 'a=1'), ('b=3', 'a=2')]
    """
    taken = {pin.partition("=")[0].strip() for pin in pins}
    parts: list[list[str]] = []
    for text in sweeps:
        key, equals, listed = (part.strip() for part in text.partition("="))
        values = [value.strip() for value in listed.split(",") if value.strip()]
        if not key or not equals or not values:
            raise UserError(f"--sweep {text}: expected KEY=A,B,C, such as method.omega=0.1,0.3,1")
        if len(set(values)) < len(values):
            raise UserError(f"--sweep {text}: a value is there twice")
        if key in taken:
            raise UserError(f"--sweep {text}: {key} is set or swept already")
        taken.add(key)
        parts.append([f"{key}={value}" for value in values])
    return [(*pins, *chosen) for chosen in product(*parts)]
