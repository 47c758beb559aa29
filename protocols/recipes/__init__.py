"""Training recipes: one module per data set, each with a ``RECIPE``; ``default`` serves data sets without one."""

from __future__ import annotations

import importlib
import importlib.util

from ._base import Optim, Range, Recipe, Stage

__all__ = ["Optim", "Range", "Recipe", "Stage", "get_recipe"]


def get_recipe(dataset: str) -> Recipe:
    """Recipe of a data set, or the default one."""
    name = f"{__name__}.{dataset}"
    module = importlib.import_module(name if importlib.util.find_spec(name) else f"{__name__}.default")
    recipe: Recipe = module.RECIPE
    return recipe
