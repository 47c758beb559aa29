"""A setting: everything about one method on one data set, merged from layers of values by key."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import ValidationError

from ..datasets.view import View
from ..errors import UnknownName, UserError, shortened
from ..protocols._base import Preset
from ..protocols.recipes._base import BATCHES, Optim, Range, Recipe, Stage
from ..store.specs import HEAD_START, TRAIN_FROM, Cell, HeadStart, Parameters, TuneFor, place
from .asked import Asked, on_features
from .checks import Found, check, named_backbone
from .experiment import Data, Values
from .published import NothingPublished, Published, find_published, stage_one

if TYPE_CHECKING:
    from ..methods._base import Method

M = TypeVar("M", bound="Method")

LARGEST_INTEGER = 1_000_000
"""Largest whole number that a setting of the data or the optimiser may have."""

LARGEST_PARAMETER = 2**63 - 1
"""Largest whole number that a parameter of a method may have: more is no integer of a tensor."""

OPTIM_KEYS = tuple(item.name for item in fields(Optim))

FROZEN_OBJECTIVE_RATE = Range(1e-3, 1e-1, log=True)
"""Range of the learning rate of class weights and proxies if ``--frozen`` freezes the backbone: the frozen stage of a
recipe is made for heads of two-stage methods, which need none."""

USUAL_START: HeadStart = "pca"
"""Start of the mean head on a frozen backbone; chosen on validation classes (docs/measurements.md)."""

_RELEASED_BY = {"reality_check": "released_per", "standardized": "released_el"}
"""The repository whose code a protocol stands for, where a method has a released form of each."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything about one method on one data set.

    Attributes:
        requested: Whether the method was asked for by name, rather than as a base.
        fixed: The values that the user fixed.
        space: Ranges of the tuned values.
        select_by: Scorer that selects epochs and trials, if the user named one.
        found: What checks of data and weights found.
        differences: How a run at a published setting differs from what its authors ran.
        stage: Method of which this base is the first stage, at the setting published for it; else empty.
        added: Whether nobody asked for the method, which is what heads on frozen features are compared with.
    """

    asked: Asked
    cell: Cell
    requested: bool
    method: Method
    values: Values
    fixed: Values
    space: Mapping[str, Range]
    select_by: str | None
    tune_for: TuneFor
    found: Found
    differences: tuple[str, ...] = ()
    stage: str = ""
    added: bool = False
    base: Setting | None = None


def settle_all(asked: Asked) -> tuple[list[Setting], list[str]]:
    """Setting of every method on every data set, and lines about those that have no published one.

    Methods that heads on frozen features are compared with come first, whether or not they were asked for.

    Raises:
        UserError: If a name or a value is not known, or the data cannot be used.
    """
    _check_fidelity(asked)
    settings: list[Setting] = []
    missing: list[NothingPublished] = []
    for dataset, name in product(asked.datasets, asked.methods):
        try:
            settings.append(settle(asked, dataset, name))
        except NothingPublished as error:
            missing.append(error)
    if not settings:
        raise missing[0]
    _check_all_used(asked, settings)
    return list(_with_references(asked, settings)), [str(error) for error in missing]


def _with_references(asked: Asked, settings: Sequence[Setting]) -> Iterator[Setting]:
    """Settings, and before them those of methods that heads on frozen features are compared with, asked for or not.

    They have the fixed settings of the heads, which change nothing about them, so that tables show them together.
    """
    heads: dict[str, list[Setting]] = {}
    for setting in settings:
        if setting.asked.experiment.frozen and not setting.method.reference_for_frozen:
            heads.setdefault(setting.cell.dataset, []).append(setting)
    fixed = {dataset: max((each.fixed for each in own), key=len) for dataset, own in heads.items()}

    def beside(setting: Setting) -> Setting:
        of_heads = fixed.get(setting.cell.dataset, {}) if setting.method.reference_for_frozen else {}
        shared = {key: value for key, value in of_heads.items() if not key.startswith("method.")}
        return replace(setting, fixed={**shared, **setting.fixed})

    for entry in asked.site.methods if heads else ():
        wanted = False
        with suppress(UserError):  # a plug-in that does not import and that nobody asked for
            wanted = entry.name not in asked.methods and entry.load().reference_for_frozen
        for dataset in heads if wanted else ():
            one = beside(settle(asked, dataset, entry.name))
            note = f"{entry.name} on {dataset} is added: what heads on frozen features have to beat"
            yield replace(one, added=True, found=replace(one.found, notes=(note, *one.found.notes)))
    yield from map(beside, settings)


def _check_all_used(asked: Asked, settings: Sequence[Setting]) -> None:
    """Refuse what was typed and nothing has: scorers, fixed values, and options about trainings of ensembles alone."""
    site, tuning, methods = asked.site, asked.experiment.tuning, ",".join(asked.methods)
    every = [each for setting in settings for each in (setting, setting.base) if each is not None]
    unused = [key for key in asked.experiment.set if not any(key in each.fixed for each in every)]
    if not any(setting.method.trains for setting in settings):
        # Their bases only serve, and ignore these options.
        ignored = [f"--set {key}" for key in unused]
        ignored += [f"--select-by {tuning.select_by}"] if tuning.select_by else []
        ignored += [f"--tune-for {tuning.tune_for}"] if tuning.tune_for != "retrieval" else []
        if ignored:
            base = next(setting.base.cell.method for setting in settings if setting.base)
            raise UserError(
                f"{ignored[0]}: an ensemble trains nothing; ask for its base, too: --method {base},{methods}"
            )
    for name in asked.named_scorers:
        if not any(name in each.found.scorers for each in every):
            raise UserError(f"--scorers {name}: not defined for the distributions of {', '.join(asked.methods)}")
    if HEAD_START in unused:
        raise UserError(
            f"--set {HEAD_START} is for a mean head that --frozen trains; name such a method (a two-stage one has its"
            " base's)"
        )
    if TRAIN_FROM in unused:
        raise UserError(f"--set {TRAIN_FROM}: nothing here trains a backbone (--frozen trains none)")
    if unused:
        classes = [site.methods.method(name) for name in asked.methods]
        known = known_keys(classes, [site.recipe(name) for name in asked.datasets])
        if unused[0] not in known:
            raise UnknownName("--set key", unused[0], known)
        what, name = ("base", "BASE") if any(each.on_base for each in classes) else ("method that is", "METHOD")
        raise UserError(
            f"--set {unused[0]}: nothing here is trained by steps; ask for a {what}, too: --method {name},{methods}"
        )


def _check_fidelity(asked: Asked) -> None:
    """Refuse a form that none of the methods has."""
    fidelity, methods = asked.experiment.fidelity, asked.methods
    classes = [asked.site.methods.method(name) for name in methods]
    forms = {resolve_fidelity(method, fidelity, asked.experiment.protocol) for method in classes}
    if fidelity != "corrected" and forms == {"corrected"}:
        raise UserError(
            f"--fidelity {fidelity}: {', '.join(methods)} {'has' if len(methods) == 1 else 'have'} one form only,"
            " the corrected one (`bench show METHOD` says where a public code differs)"
        )


def resolve_fidelity(method: type[Method], asked: str, protocol: str) -> str:
    """Form of a method that is computed if a fidelity is asked for, as stored in results and shown in tables.

    ``corrected`` follows the paper's equations, ``released`` the public code of the paper; if two repositories differ,
    the protocol chooses. ``released_per`` and ``released_el`` name the repository ("Probabilistic Embeddings
    Revisited", or EL-nivMF and NIR), whether or not the other has a form too. A method without the form that is asked
    for is used in its corrected form.
    """
    if asked == "released" and asked not in method.forms():
        asked = _RELEASED_BY.get(protocol, asked)
    if asked == f"released_{method.repository}" and asked not in method.forms():
        asked = "released"
    return asked if asked in method.forms() else "corrected"


def settle(asked: Asked, dataset: str, name: str) -> Setting:
    """Setting of a method on a data set, with that of its base.

    Raises:
        NothingPublished: If published settings are asked for and there is none.
        UserError: If a value does not fit, or the data cannot be used.
    """
    method = asked.site.methods.method(name)
    asked = on_features(asked, dataset)
    if not method.on_base:
        return _settle(asked, dataset, name)
    base_name = asked.experiment.base or asked.site.recipe(dataset).base
    _check_base(method, asked.site.methods.method(base_name))
    setting = _settle(asked, dataset, name, base=base_name)
    # A published setting of a head has a first stage of its own.
    base = _settle(asked, dataset, base_name, head=name if asked.experiment.hparams == "published" else "")
    if not method.trains:
        # An ensemble is at the setting of its models: nothing else was fixed, selected or tuned.
        setting = replace(setting, fixed=base.fixed, select_by=base.select_by, tune_for=base.tune_for)
    return replace(setting, base=base)


def _check_base(method: type[Method], base: type[Method]) -> None:
    """Refuse a base without what a method needs of it, before the base is trained."""
    from ..methods._base import UnfitBase

    if base.on_base:
        raise UserError(f"--base {base.name}: {base.name!r} needs a base itself; name a one-stage method")
    try:
        method.check_base(base)
    except UnfitBase as error:
        raise UserError(f"--base {base.name}: {error}") from None


def _settle(asked: Asked, dataset: str, name: str, head: str = "", base: str = "") -> Setting:
    """Setting of a method; ``head`` is the method whose published first stage it is, ``base`` the name of its base."""
    experiment, site = asked.experiment, asked.site
    recipe, method = site.recipe(dataset), site.methods.method(name)
    named = name in asked.methods
    requested = named and not head
    # What is fixed for a method is not fixed for a base that only serves it, unless it concerns data or backbone.
    of_base = ("data", "augment")
    texts = {k: v for k, v in experiment.set.items() if named or k.split(".")[0] in of_base or k == TRAIN_FROM}
    fixed = from_user(texts, method, recipe, experiment.frozen)
    unfixed, stage = _usual(asked, dataset, method, fixed)
    published = None
    if experiment.hparams == "published":
        published, served = _published(asked, dataset, method, {**unfixed, **fixed}, head, base)
        unfixed |= _layer(published)
    if asked.file is not None:
        unfixed |= from_file(asked.file.of(name), asked.file.path, method, unfixed)
    built = build(method, {**unfixed, **fixed})
    values = {**unfixed, **fixed, **layer(method=built.params.model_dump())}
    space = {}
    if experiment.hparams == "tuned":
        below = site.methods.method(base)() if base else None
        space = search_ranges(asked.preset, recipe, built, stage, values, below, experiment.frozen)
    select_by = experiment.tuning.select_by if requested else None
    view, augmentation = part(values, "view"), part(values, "augment")
    found = check(asked, dataset, built, values, view=view, augmentation=augmentation, select_by=select_by)
    setting = Setting(
        asked=asked,
        cell=Cell(experiment.protocol, dataset, name),
        requested=requested,
        method=built,
        values={**values, **found.batches, "data.pooling": found.pooling},
        fixed=fixed,
        space={key: value for key, value in space.items() if key not in fixed},
        select_by=select_by,
        tune_for=experiment.tuning.tune_for if requested else "retrieval",
        found=found,
    )
    if published is None:
        return setting
    return replace(setting, differences=_differences(published, setting, unfixed), stage=served)


def _usual(asked: Asked, dataset: str, method: type[Method], fixed: Values) -> tuple[Parameters, Stage]:
    """Values of recipe, preset, form and network options, the last wins; and the stage of the recipe they are of."""
    experiment, preset, name = asked.experiment, asked.preset, method.name
    recipe = asked.site.recipe(dataset)
    form = fixed.get("method.form", resolve_fidelity(method, experiment.fidelity, experiment.protocol))
    own = {**method.defaults(form), **recipe.methods.get(name, {}), **preset.methods.get(name, {})}
    params = layer(method=own)
    # Parameters say which parts are trained, and that says which of the recipe's stages is meant.
    frozen = experiment.frozen or "backbone" not in build(method, {**params, **fixed}).trained_parts
    stage = recipe.frozen if frozen else recipe.end_to_end
    values = layer(
        model={"backbone": recipe.backbone, "dim": recipe.dim},
        optim=stage.values(),
        data={**recipe.batches(), **recipe.view},
        augment=recipe.augmentation,
    )
    if recipe.view:  # presets replace settings of photographs alone, those of the optimiser if the backbone is trained
        instead = preset.photographs
        optim = preset.optim if instead and stage is recipe.end_to_end else {}
        values |= layer(
            model={key: instead[key] for key in ("backbone", "dim") if key in instead},
            optim={key: value for key, value in optim.items() if key in OPTIM_KEYS},
            data={**{key: instead[key] for key in BATCHES if key in instead}, **preset.view},
            augment=instead.get("augmentation", {}),
        )
        if experiment.fidelity != "corrected":
            # No public code divides the features of photographs by a constant.
            values["data.calibrate"] = False
    network = {"backbone": experiment.backbone, "dim": experiment.dim, **_start(method, experiment.frozen)}
    values |= {**params, **layer(model={k: v for k, v in network.items() if v is not None})}
    source = "--backbone" if experiment.backbone is not None else f"the recipe of data set {dataset!r}"
    values["model.backbone"] = named_backbone(values["model.backbone"], asked.site.weights, source)
    return values, stage


def _published(
    asked: Asked, dataset: str, method: type[Method], values: Values, head: str, base: str
) -> tuple[Published, str]:
    """Published setting of a method, and the head that it is the first stage of, if only that head has it.

    Raises:
        NothingPublished: If there is none.
    """
    experiment, site = asked.experiment, asked.site
    network = f"{values['model.backbone']}/{values['model.dim']}"

    def find(of: type[Method], base: str, values: Values) -> Published:
        params, pooling = build(of, values).params.model_dump(), experiment.set.get("data.pooling", "avg")
        return find_published(of, dataset, base, network=network, params=params, pooling=pooling)

    if not head:
        return find(method, base or site.recipe(dataset).base, values), ""
    of = site.methods.method(head)
    form = resolve_fidelity(of, experiment.fidelity, experiment.protocol)
    served = stage_one(find(of, method.name, layer(method=of.defaults(form))), method)
    try:
        own = find(method, site.recipe(dataset).base, values)
    except NothingPublished:
        return served, head
    return served, "" if _layer(own) == _layer(served) else head


def _layer(published: Published) -> Values:
    return layer(method=published.params, optim=published.optim, data=published.data)


def _differences(published: Published, setting: Setting, unfixed: Values) -> tuple[str, ...]:
    """Differences of a replay from what its source ran."""
    run, method, asked = published.run, setting.method, setting.asked
    said = run.differences(asked.experiment.protocol, asked.experiment.preset, setting.cell.dataset)
    if method.form not in run.forms and len(method.forms()) > 1:
        said.append(f"fidelity {method.form} instead of {run.forms[0]}")
    if asked.folds is not None:
        said.append(f"{asked.folds} folds")
    before = {**unfixed, **layer(method=build(type(method), unfixed).params.model_dump())}
    changed = [key for key, value in setting.values.items() if value != before[key]]
    said += [key for key in sorted(changed, key=place) if not key.startswith("model.")]
    if setting.found.partial:
        said.append("a partial release")
    if setting.found.weights is None:
        said.append("random weights instead of ImageNet's")
    return tuple(said)


# Values by key


def part(values: Values, group: str) -> Parameters:
    """Values of one group without its name; ``batches`` and ``view`` are the two parts of ``data``.

    Example:
        >>> part({"optim.lr": 0.1, "data.resize": 64, "data.pooling": "avg"}, "view")
        {'resize': 64}
    """
    if group in ("batches", "view"):
        return {key: value for key, value in part(values, "data").items() if (key in BATCHES) == (group == "batches")}
    return {key.removeprefix(f"{group}."): value for key, value in values.items() if key.startswith(f"{group}.")}


def layer(**groups: Values) -> Parameters:
    """A layer of values from groups of them.

    Example:
        >>> layer(optim={"lr": 0.1}, data={"pooling": "avg"})
        {'optim.lr': 0.1, 'data.pooling': 'avg'}
    """
    return {f"{group}.{key}": value for group, values in groups.items() for key, value in values.items()}


def _start(method: type[Method], frozen: bool) -> Parameters:
    """Start of the mean head by name, if it is one on a frozen backbone that no base has trained; else nothing."""
    starts = frozen and method.by_steps and not method.on_base and "mean" in method.trains
    return {"head_start": USUAL_START} if starts else {}


def from_user(texts: Mapping[str, str], method: type[Method], recipe: Recipe, frozen: bool) -> Values:
    """Values fixed by the user that apply to one method on one data set; others are left out."""
    trains_backbone = not frozen and (method.on_base or "backbone" in method.trains)
    defaults = layer(
        model={**_start(method, frozen), **({"train_from": ""} if trains_backbone else {})},
        method=dict.fromkeys(method.Params.model_fields, ""),  # pydantic converts and checks these
        optim=recipe.end_to_end.values() if method.by_steps else {},
        data={**_view(recipe), **recipe.batches()},
        augment=recipe.augmentation,
    )
    fixed = {key: convert(text, defaults[key], f"--set {key}") for key, text in texts.items() if key in defaults}
    start, known = fixed.get(HEAD_START, USUAL_START), get_args(HeadStart)
    if start not in known:
        raise UserError(f"--set {HEAD_START}={shortened(start, 60)}: expected {' or '.join(known)}")
    return fixed


def _view(recipe: Recipe) -> Parameters:
    """Settings of how photographs are read that can be fixed, also those that the recipe leaves at their defaults."""
    return {**asdict(View()), **recipe.view} if recipe.view else {}


def from_file(held: Values, path: str, method: type[Method], values: Values) -> Values:
    """Values of a file of settings for one method, of the types of the values that they override."""
    found = {}
    for key, value in held.items():
        if key.startswith("optim.") and key in values:
            value = convert(str(value), values[key], f"--hparams {path}: {key}")
        elif not key.startswith("method."):
            known = layer(optim=part(values, "optim"), method=method.Params.model_fields)
            raise UnknownName(f"setting in {path}", key, known)
        found[key] = value
    return found


def convert(text: str, default: Any, where: str) -> Any:
    """Convert a typed text to the type of a default value: text, a boolean, a number or a tuple of ascending numbers.

    ``where`` is the option or file that the text comes from, for the message of an error.

    Example:
        >>> convert("3", 1.0, "--set optim.lr"), convert("25,50", (), "--set optim.milestones")
        (3.0, [25, 50])
    """
    shown = f"{where}={shortened(text, 60)}"
    try:
        if isinstance(default, str):
            return text
        if isinstance(default, tuple | list):
            numbers = [int(part) for part in text.strip("[]()").split(",") if part.strip()]
            if numbers != sorted(set(numbers)) or min(numbers, default=1) < 1:
                raise ValueError
            if max(numbers, default=1) > LARGEST_INTEGER:
                raise UserError(f"{shown}: out of range")
            return numbers
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        value = type(default)(text)
    except (ValueError, KeyError):
        like = f"{type(default).__name__}, like {default!r}"
        if isinstance(default, bool):
            like = "true or false"
        elif isinstance(default, tuple | list):
            like = "ascending numbers, like 25,50"
        raise UserError(f"{shown}: expected {like}") from None
    if isinstance(value, int):
        fits = min(1, default) <= value <= LARGEST_INTEGER
    else:
        fits = math.isfinite(value) and value >= 0
    if not fits:
        raise UserError(f"{shown}: out of range")
    return value


def build(method: type[M], values: Values) -> M:
    """A method with the parameters among some values, which are checked, and its defaults for the others."""
    try:
        params = method.Params(**part(values, "method"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = [f"method.{key}" for key in method.Params.model_fields]
            raise UnknownName(f"parameter of {method.name}:", f"method.{where}", known) from None
        # Pydantic's prefix of what a validator raises.
        reason = first["msg"].removeprefix("Value error, ").lower()
        raise UserError(
            f"method.{where}={shortened(repr(first['input']), 60)} does not fit method {method.name!r}: {reason}"
            f" (see `bench show {method.name}`)"
        ) from None
    for key, value in params.model_dump().items():
        if isinstance(value, int) and abs(value) > LARGEST_PARAMETER:
            raise UserError(f"method.{key}={shortened(str(value), 60)}: out of range")
    return method(params)


def search_ranges(
    preset: Preset,
    recipe: Recipe,
    method: Method,
    stage: Stage,
    values: Values,
    base: Method | None,
    frozen: bool = False,
) -> dict[str, Range]:
    """Search ranges of a tuning study: of values of the method and its optimiser that have a range and an effect."""
    space = {}
    for key, field in method.Params.model_fields.items():
        extra = field.json_schema_extra
        if key not in method.without_effect and isinstance(extra, dict) and isinstance(extra.get("search"), dict):
            space[f"method.{key}"] = Range(**extra["search"])  # type: ignore[arg-type]
    if not method.by_steps:
        return space
    end_to_end = stage is recipe.end_to_end
    ranges: Mapping[str, Range] = stage.search
    if end_to_end and recipe.view and preset.photographs:
        ranges = preset.optim.get("search", ranges)
    trained = {"lr", "weight_decay"}
    if values["optim.schedule"] in ("step", "multistep"):
        trained.add("gamma")
    if (end_to_end or frozen) and uses_objective_rate(method, base):
        trained.add("lr_objective")
        ranges = {"lr_objective": FROZEN_OBJECTIVE_RATE, **ranges} if frozen else ranges
    return space | layer(optim={key: r for key, r in ranges.items() if key in trained})


def uses_objective_rate(method: Method, base: Method | None = None) -> bool:
    """Check if a trained parameter of a method's objective learns at ``lr_objective``, the rate of class weights."""
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
    """Keys that ``--set`` accepts for some methods and data sets, such as ``method.margin``."""
    known = {f"optim.{key}" for key in OPTIM_KEYS} | {*layer(data=Data.model_fields)} | {HEAD_START, TRAIN_FROM}
    for recipe in recipes:
        known |= {*layer(augment=recipe.augmentation, data={**recipe.batches(), **_view(recipe)})}
    for method in methods:
        known |= {*layer(method=method.Params.model_fields)}
    return known
