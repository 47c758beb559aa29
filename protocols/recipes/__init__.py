"""Training recipes: modules with a ``RECIPE``; a data set names one of them."""

from __future__ import annotations

import importlib

from ._base import Optim, Range, Recipe, Stage

__all__ = ["RECIPES", "Optim", "Range", "Recipe", "Stage", "get_recipe"]


RECIPES = ("cub200", "default", "folder", "inshop", "ndigit", "sop")


def get_recipe(name: str) -> Recipe:
    """Recipe by name.

    Raises:
        ValueError: If there is none of that name.
    """
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r} (known: {', '.join(RECIPES)})")
    recipe: Recipe = importlib.import_module(f"{__name__}.{name}").RECIPE
    return recipe
