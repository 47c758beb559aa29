"""Training recipes: modules with a ``RECIPE``; a data set names one of them."""

from __future__ import annotations

import importlib
import sys

from ._base import Optim, Range, Recipe, Stage

__all__ = ["RECIPES", "Optim", "Range", "Recipe", "Stage", "get_recipe", "recipe_of"]


RECIPES = ("cub200", "default", "folder", "inshop", "ndigit", "sop")


def get_recipe(name: str) -> Recipe:
    """Look up a built-in training recipe by its name, such as ``cub200``; a ValueError if there is none."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r} (known: {', '.join(RECIPES)})")
    recipe: Recipe = importlib.import_module(f"{__name__}.{name}").RECIPE
    return recipe


def recipe_of(dataset: type) -> Recipe:
    """Training recipe (settings of network, data and optimiser) of a data set.

    The recipe is the attribute ``recipe`` of the class or, if the class sets none, the variable ``RECIPE`` of its
    source file. If neither exists, the nearest base class with either decides. The value is a ``Recipe`` or the name of
    a built-in one; anything else is a ValueError.
    """
    for cls in dataset.__mro__:
        found = vars(cls).get("recipe", getattr(sys.modules.get(cls.__module__), "RECIPE", None))
        if isinstance(found, Recipe):
            return found
        if isinstance(found, str):
            return get_recipe(found)
        if found is not None:
            raise ValueError(f"{cls.__name__} has a recipe that is neither a Recipe nor the name of one: {found!r}")
    raise ValueError(f"{dataset.__name__} has no recipe")
