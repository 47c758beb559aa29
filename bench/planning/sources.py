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

FROZEN_OBJECTIVE_RATE = Range(1e-3, 1e-1, log=True)
"""Range of the learning rate of class weights and proxies if ``--frozen`` freezes the backbone: the frozen stage of a
recipe is made for heads of two-stage methods, which need none."""


def usual_params(recipe: Recipe, preset: Preset, method: type[Method], fidelity: str) -> Values:
    """Parameters that replace a method's own defaults on a data set under a preset, by name.

    They come from the released form of the method (what the public code of its paper computes) if it is asked for, the
    recipe of the data set and the preset of the protocol; the later of these wins.

    Args:
        recipe: Default training settings of the data set.
        preset: Variant of the protocol.
        method: Class of the method.
        fidelity: Form of the method: ``corrected``, or a released one, such as ``released``.
    """
    name = method.name
    return {**method.defaults(fidelity), **recipe.methods.get(name, {}), **preset.methods.get(name, {})}


def from_recipe(recipe: Recipe, stage: Stage) -> Setting:
    """Default setting of a data set for one stage of training: all groups of values but the method's parameters.

    Args:
        recipe: Default training settings of the data set.
        stage: Optimisation of the stage: with the backbone trained, or frozen.
    """
    return Setting(
        network={"backbone": recipe.backbone, "dim": recipe.dim},
        optim=stage.values(),
        batches=recipe.batches(),
        view=recipe.view,
        augmentation=recipe.augmentation,
    )


def from_preset(preset: Preset, recipe: Recipe, stage: Stage) -> Setting:
    """Settings of a preset that override those of the recipe of a data set of photographs; empty for other data sets.

    They may be values of the groups network, optimiser, batches, view and augmentation.

    Args:
        preset: Variant of the protocol.
        recipe: Default training settings of the data set.
        stage: Optimisation of the stage, which is replaced only if the stage trains the backbone.
    """
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


def from_fidelity(fidelity: str, recipe: Recipe) -> Setting:
    """Settings that a fidelity (corrected methods, or those of released code) overrides: ``data.calibrate`` or none.

    By default, the features of a backbone are divided by a constant before training (``data.calibrate``). No public
    code does this, so it is turned off on data sets of photographs if a released form is asked for. In all other cases
    the returned setting is empty.

    Args:
        fidelity: ``corrected`` (methods follow the equations of their papers) or ``released``, ``released_per``,
            ``released_el`` (they follow public code).
        recipe: Default training settings of the data set.
    """
    return Setting(batches={"calibrate": False} if recipe.view and fidelity != "corrected" else {})


def search_ranges(
    preset: Preset,
    recipe: Recipe,
    method: Method,
    stage: Stage,
    pinned: Setting,
    setting: Setting,
    base: Method | None,
    frozen: bool = False,
) -> dict[str, Range]:
    """Search ranges of a tuning study, by name such as ``method.margin`` or ``optim.lr``.

    They cover the values of the method and of the optimiser that have a range, have an effect and are not pinned. A
    method that is fitted, or an ensemble of trained models, has no optimiser.

    Args:
        preset: Variant of the protocol.
        recipe: Default training settings of the data set.
        method: The method with its parameters.
        stage: Default optimisation of the stage of training, with its search ranges.
        pinned: Values fixed by the user.
        setting: The whole setting.
        base: First-stage method of a two-stage method.
        frozen: Whether the backbone stays at its starting weights, whatever the method trains.
    """
    space = {}
    for key, field in method.Params.model_fields.items():
        extra = field.json_schema_extra
        if key in pinned.params or key in method.without_effect:
            continue
        if isinstance(extra, dict) and isinstance(extra.get("search"), dict):
            space[f"method.{key}"] = Range(**extra["search"])  # type: ignore[arg-type]
    if method.fitted or method.ensemble:
        return space
    end_to_end = stage is recipe.end_to_end
    ranges: Mapping[str, Range] = stage.search
    if end_to_end and recipe.view and preset.photographs:
        ranges = preset.optim.get("search", ranges)
    trained = {"lr", "weight_decay"}
    if setting.optim["schedule"] in ("step", "multistep"):
        trained.add("gamma")
    if (end_to_end or frozen) and uses_objective_rate(method, base):
        trained.add("lr_objective")
        ranges = {"lr_objective": FROZEN_OBJECTIVE_RATE, **ranges} if frozen else ranges
    return space | {f"optim.{key}": r for key, r in ranges.items() if key in trained and key not in pinned.optim}


def uses_objective_rate(method: Method, base: Method | None = None) -> bool:
    """Check if a trained parameter of a method's objective learns at ``lr_objective``.

    This is the learning rate of class weights and proxies.

    Args:
        method: The method with its parameters.
        base: First-stage method of a two-stage method.
    """
    if "objective" not in method.trained_parts:
        return False
    try:
        objective = method.objective(2, 8, None if base is None else base.objective(2, 8))
    except Exception:  # of a plug-in; its training will say what is wrong with it
        return True
    special = dict(getattr(objective, "learning_rates", {}))
    for name, parameter in objective.named_parameters():
        rates = (rate for prefix, (rate, _) in special.items() if name.startswith(prefix))
        if parameter.requires_grad and next(rates, "lr_objective") == "lr_objective":
            return True
    return False


def known_keys(methods: list[type[Method]], recipes: list[Recipe]) -> set[str]:
    """Keys that ``--set`` accepts for some methods and data sets, such as ``method.margin``.

    Args:
        methods: Classes of the methods.
        recipes: Default training settings of the data sets.
    """
    known = {f"optim.{key}" for key in OPTIM_KEYS}
    for recipe in recipes:
        known |= {f"augment.{key}" for key in recipe.augmentation}
        known |= {f"data.{key}" for key in (*recipe.batches(), *recipe.view)}
    for method in methods:
        known |= {f"method.{key}" for key in method.Params.model_fields}
    return known
