"""Training recipes: modules with a ``RECIPE``; a data set names one of them."""

from ._base import RECIPES, Optim, Range, Recipe, Stage, get_recipe, recipe_of

__all__ = ["RECIPES", "Optim", "Range", "Recipe", "Stage", "get_recipe", "recipe_of"]
