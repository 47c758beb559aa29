"""Training recipes: modules with a ``RECIPE``; a data set names one of them."""

from __future__ import annotations

import importlib
import sys

from ._base import Optim, Range, Recipe, Stage

__all__ = ["RECIPES", "Optim", "Range", "Recipe", "Stage", "get_recipe", "recipe_of"]


RECIPES = ("cub200", "default", "folder", "inshop", "ndigit", "sop")


def get_recipe(name: str) -> Recipe:
    """Look up a training recipe, the settings of network, data and optimiser for a data set, by its name.

    Args:
        name: Name of a built-in recipe, such as ``cub200``.

    Raises:
        ValueError: If there is none of that name.
    """
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r} (known: {', '.join(RECIPES)})")
    recipe: Recipe = importlib.import_module(f"{__name__}.{name}").RECIPE
    return recipe


def recipe_of(dataset: type) -> Recipe:
    """Training recipe (settings of network, data and optimiser) of a data set.

    The recipe is the attribute ``recipe`` of the class or, if the class sets none, the variable ``RECIPE`` of its
    source file. If neither exists, the nearest base class with either decides. The value is a ``Recipe`` or the name of
    a built-in one.

    Args:
        dataset: Class of the data set.

    Raises:
        ValueError: If no class has a recipe, a name is unknown, or a value is neither a ``Recipe`` nor a name.
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
