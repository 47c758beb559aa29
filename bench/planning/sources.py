"""Layers of settings that data sets and protocols bring: recipe and preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from ..protocols._base import Preset
from ..protocols.recipes._base import Optim, Range, Recipe, Stage
from .setting import Setting, Values

if TYPE_CHECKING:
    from ..methods._base import Method

OPTIM_KEYS = tuple(item.name for item in fields(Optim))


def usual_params(recipe: Recipe, preset: Preset, method: type[Method], fidelity: str) -> Values:
    """Parameters of a method that its released form, a recipe or a preset has instead of the method's own defaults."""
    name = method.name
    return {**method.defaults(fidelity), **recipe.methods.get(name, {}), **preset.methods.get(name, {})}


def from_recipe(recipe: Recipe, stage: Stage) -> Setting:
    """Defaults of a data set for one stage of training."""
    return Setting(
        network={"backbone": recipe.backbone, "dim": recipe.dim},
        optim=stage.values(),
        batches=recipe.batches(),
        view=recipe.view,
        augmentation=recipe.augmentation,
    )


def from_preset(preset: Preset, recipe: Recipe, stage: Stage) -> Setting:
    """Values of photographs that a preset has instead of the recipe's."""
    if not recipe.view:
        return Setting()
    instead = preset.photographs
    overrides_stage = bool(instead) and stage is recipe.end_to_end
    return Setting(
        network={key: instead[key] for key in ("backbone", "dim") if key in instead},
        optim={key: value for key, value in preset.optim.items() if overrides_stage and key in OPTIM_KEYS},
        batches={key: instead[key] for key in recipe.batches() if key in instead},
        view=preset.view,
        augmentation=instead.get("augmentation", {}),
    )


def search_ranges(
    preset: Preset, recipe: Recipe, method: type[Method], stage: Stage, pinned: Setting
) -> dict[str, Range]:
    """Ranges to tune: the parameters of the method and of the optimiser that have a range and are not pinned."""
    space = {}
    for key, field in method.Params.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and isinstance(extra.get("search"), dict) and key not in pinned.params:
            space[f"method.{key}"] = Range(**extra["search"])  # type: ignore[arg-type]
    end_to_end = stage is recipe.end_to_end
    ranges: Mapping[str, Range] = stage.search
    if end_to_end and recipe.view and preset.photographs:
        ranges = preset.optim.get("search", ranges)
    trained = {"lr", "weight_decay", "gamma"} | ({"lr_objective"} if end_to_end else set())
    return space | {f"optim.{key}": r for key, r in ranges.items() if key in trained and key not in pinned.optim}


def known_keys(methods: list[type[Method]], recipes: list[Recipe]) -> set[str]:
    """Keys that ``--set`` accepts for some methods and data sets."""
    known = {f"optim.{key}" for key in OPTIM_KEYS}
    for recipe in recipes:
        known |= {f"augment.{key}" for key in recipe.augmentation}
        known |= {f"data.{key}" for key in (*recipe.batches(), *recipe.view)}
    for method in methods:
        known |= {f"method.{key}" for key in method.Params.model_fields}
    return known
