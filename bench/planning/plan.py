"""Plans: one (protocol, data set, method) cell with the specifications of its units.

Runs on other class splits have plans of their own. What is tuned once is tuned on the own split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from .. import versions
from ..datasets.corruptions._base import CROP
from ..errors import UnknownName, UserError
from ..methods._base import Method, UnfitBase
from ..methods._model import classifies_points
from ..names import split_names
from ..protocols._base import Tests
from ..protocols.recipes._base import BATCHES, Optim, Range, Stage
from ..site import Site
from ..store.specs import (
    CALIBRATE,
    CLASS_SEED,
    HEAD_START,
    TEST_QUERIES,
    TRAIN_FROM,
    TUNING,
    BaseReference,
    Batches,
    Cell,
    Ensemble,
    Parameters,
    Pinned,
    Point,
    Replicate,
    StageSelection,
    StudySpec,
    TestSpec,
    TrainSpec,
    TuneFor,
    Versions,
    place,
)
from . import setting
from .asked import Asked, look_up, on_dataset
from .checks import check, fitting_scorers, named_backbone, refused, weights_hash
from .experiment import Data, Experiment, Values
from .published import NothingPublished, Published, find_published, stage_one

PlanKey = tuple[str, ...]
"""Key that distinguishes plans."""

Specs = dict[int, TrainSpec]
"""Training specifications of one replicate, by the block of classes that validates: one model each."""

STARTUP = 4
"""Start-up points of a replicate's own study, the default setting included."""


@dataclass(frozen=True, kw_only=True)
class TestPlan:
    """Tests that every trained model of a plan gets.

    Attributes:
        versions: Versions of the code that computes the tests.
        tests: Settings of the tests.
        scorers: Scorers to rank with, in addition to the method's own and the cosine.
        soft_labels: SHA-256 of the label distributions that human annotators gave the test images; empty if there are
            none.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    versions: Versions
    tests: Tests
    scorers: tuple[str, ...]
    soft_labels: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything to be run for one cell (protocol, data set, method) at one setting.

    Attributes:
        template: Specification of a training at the default setting, from which those of all trials and seeds are made.
            It validates on the first of ``validate_folds`` and has no base. What it says of the confidence on crops
            concerns trials only.
        validate_folds: Indices of the blocks of development classes (all but the test classes) that validate; a
            replicate (one seed) is one model for each.
        space: Ranges of the tuned values, by name.
        trials: Number of trials of a tuning study; 0 if nothing is tuned.
        replicates: Numbers of the replicates, each of which is tested.
        replicate: What a replicate is: a ``study`` of its own with the network that it chooses, or a ``seed``, one
            more training at the setting that one study chooses or that is given.
        retrain: Whether tested networks are trained at the setting that a study chooses, or that is given; else they
            are those that it chooses.
        ensemble: Whether nothing is trained: the base's models of all these replicates are tested together, once.
        hparams: Label of where the setting comes from, such as ``tuned`` or ``published``.
        sampler: Optuna sampler, ``gp`` or ``tpe``.
        tune_for: What trials are chosen for: ``retrieval``, ``confidence`` or ``both``.
        trial_batch: Number of trials proposed together, before the result of any of them is known.
        base: Plan of the base (first stage), for two-stage methods.
        testing: The tests.
        preset: Name of the preset, a variant of the protocol.
        pinned: Settings that were fixed and the like: runs that differ in them are different rows of every table.
        requested: Whether the method was asked for by name, rather than as a base.
        class_seed: Number of the class split that replicates are trained and tested on; 0 for the data set's own, on
            which the trials of a study for all seeds are made.
        beside_own: Whether the same is planned on the own split.
        notes: Lines about what the user may not expect of the data or the network.
        added: Whether nobody asked for the method, which is what heads on frozen features are compared with.
        startup: Number of trials, the default setting included, before the sampler proposes; None for Optuna's ten
            random ones.
        first: Points that a study tries after the default setting, before quasi-random ones.
    """

    template: TrainSpec
    validate_folds: tuple[int, ...]
    space: Mapping[str, Range]
    trials: int
    replicates: range
    replicate: Replicate
    retrain: bool
    ensemble: bool
    hparams: str
    sampler: str
    tune_for: TuneFor
    trial_batch: int
    base: Plan | None
    testing: TestPlan
    preset: str
    pinned: Pinned
    requested: bool
    class_seed: int = 0
    beside_own: bool = False
    notes: tuple[str, ...] = ()
    added: bool = False
    startup: int | None = None
    first: tuple[Point, ...] = ()

    @property
    def key(self) -> PlanKey:
        """Tuple that identifies this plan among those of a request: id of ``template``, ``pinned``, key of the base.

        The last part is there for two-stage methods only. Several plans may have the same protocol, data set and
        method, at different settings.
        """
        return (self.template.id, self.pinned.text, *(self.base.key if self.base else ()))

    @property
    def study_key(self) -> PlanKey:
        """Tuple that identifies how the plan is tuned, which plans that only differ in the class split share."""
        return (self.template.id, self.pinned.on_split(0).text, *(self.base.study_key if self.base else ()))

    def study_of(self, number: int) -> PlanKey:
        """Tuple that identifies the study of a replicate, the one of all seeds and class splits or its own."""
        own = (f"split {self.class_seed}",) if self.replicate == "study" else ()
        return (*self.study_key, self.trial_of(number), *own)

    @property
    def seeds(self) -> int:
        """Number of replicates."""
        return len(self.replicates)

    @property
    def studies(self) -> int:
        """Number of studies: one for each replicate, or one for all; it may have no trial."""
        return self.seeds if self.replicate == "study" else 1

    def trial_of(self, number: int) -> str:
        """Replicate of the trainings of the study that a replicate has, its own or the one of all."""
        return f"{TUNING} {number}" if self.replicate == "study" else TUNING

    @property
    def cell(self) -> Cell:
        """Protocol, data set and method of the plan, which also name the folder of its results."""
        return self.template.cell

    @property
    def tuned(self) -> Plan:
        """Plan whose studies chose the setting: that of the members of an ensemble."""
        return self.base if self.ensemble and self.base else self

    @property
    def columns(self) -> Parameters:
        """Columns of the table of results that all its tests have, whatever the seed and the models together."""
        return {
            **self.cell._asdict(),
            "preset": self.preset,
            "base": self.base.cell.method if self.base else "",
            "fidelity": self.template.form,
            "hparams": self.hparams,
            "trials": self.tuned.trials,
            "pinned": self.pinned,
            "backbone": self.template.backbone,
            "replicate": self.replicate,
        }

    @property
    def epochs(self) -> int:
        """Largest number of epochs of one training."""
        return self.template.optim.epochs

    def sampler_axes(self, number: int) -> tuple[str, ...]:
        """Names that seed the tuner's draws, with the trial's number: protocol, data set, method, base (or empty).

        Of a replicate's own study, also what is tuned for, and the numbers of the class split and of the study.
        """
        own = (self.tune_for, f"split {self.class_seed}", self.trial_of(number)) if self.replicate == "study" else ()
        return (*self.cell, self.base.cell.method if self.base else "", *own)

    @property
    def view(self) -> Parameters:
        """How the data set of its seeds is opened."""
        return {**self.template.view, **({CLASS_SEED: self.class_seed} if self.class_seed else {})}

    def defaults(self) -> Point:
        """Default values of the tuned parameters, clipped to their ranges: the first trial of every study."""
        values = setting.layer(method=self.template.params, optim=asdict(self.template.optim))
        return {name: min(max(values[name], r.low), r.high) for name, r in self.space.items()}

    @property
    def models(self) -> int:
        """Number of models of one seed or trial: one for each fold that validates."""
        return len(self.validate_folds)

    @property
    def trainings(self) -> int:
        """Number of trainings for all trials and all replicates, without those of the base."""
        if self.ensemble:
            return 0
        studies = 0 if self.beside_own and self.replicate == "seed" else self.studies  # those of the own split count
        return (studies * self.trials + self.seeds * self.retrain) * self.models

    @property
    def tests(self) -> int:
        """Number of tests: of every replicate, or of one ensemble of them."""
        return 1 if self.ensemble else self.seeds

    @property
    def tuning_trainings(self) -> int:
        """Number of trainings spent on tuning the setting, including those spent on tuning the base.

        Of an ensemble, it includes those of its members, too: any other method has one model per seed.
        """
        tuning = (self.trials + (self.base.trials if self.base else 0)) * self.models
        return tuning * self.studies + self.seeds * self.retrain if self.ensemble else tuning

    def train_specs(self, point: Point, replicate: str | int, bases: Specs | None) -> Specs:
        """Specifications of the trainings of one seed or tuning trial, with all its folds.

        Returns:
            One specification for each fold that validates, by the index of the fold.
        """
        params = {**self.template.params, **setting.part(point, "method")}
        optim = {**asdict(self.template.optim), **setting.part(point, "optim")}
        template = self.template.replaced(params=params, optim=optim, replicate=replicate)
        if not template.is_trial:  # seeds of equal settings are the same trainings, whatever chose the setting
            template = template.replaced(crop_confidence=None)
        if replicate != TUNING:
            template = template.replaced(view=self.view)
        specs = {}
        for fold in self.validate_folds:
            base: BaseReference | None = bases[fold].as_base() if bases else None
            specs[fold] = template.replaced(fold=fold, base=base)
        return specs

    def study_spec(self, number: int, bases: Specs | None) -> StudySpec:
        """Specification of the tuning study of a replicate."""
        own = {"replicate": self.trial_of(number), "view": self.view} if self.replicate == "study" else {}
        return StudySpec(
            template=self.template.replaced(**own),
            validate_folds=self.validate_folds,
            space=dict(self.space),
            sampler=self.sampler,
            trial_batch=self.trial_batch,
            bases=tuple(bases[fold].id for fold in self.validate_folds) if bases else (),
            tune_for=self.tune_for,
            startup=self.startup,
        )

    def test_specs(self, *trained: Specs) -> list[TestSpec]:
        """Specifications of the tests of one replicate (one seed, all folds), or of an ensemble of all seeds.

        A replicate of one model has one test. One of several models has two: the mean of their results, and the result
        of their concatenated embeddings. An ensemble has one. Its members are the models that validate on the first
        fold, so that its validation classes are new to all of them.
        """
        folds = self.validate_folds[:1] if self.ensemble else self.validate_folds
        ensembles: tuple[Ensemble, ...] = ("separated", "concatenated") if self.models > 1 else ("",)
        return [
            TestSpec(
                versions=self.testing.versions,
                protocol=self.cell.protocol,
                preset=self.preset,
                train=tuple(specs[fold].id for specs in trained for fold in folds),
                ensemble=ensemble,
                hparams=self.hparams,
                trials=self.tuned.trials,
                tuning_trainings=self.tuning_trainings,
                pinned=self.pinned,
                tests=self.testing.tests,
                scorers=self.testing.scorers,
                soft_labels=self.testing.soft_labels,
                replicate=self.replicate,
            )
            for ensemble in (("seeds",) if self.ensemble else ensembles)
        ]


@dataclass(frozen=True)
class Plans:
    """Plans of an experiment, with what the user should be told about them.

    Attributes:
        plans: The plans, each once, a base before the methods that are built on it.
        lines: A line for every method and data set that is left out, since it has no published setting while others
            have one, or since a single seed makes no ensemble; for every run at a published setting that differs from
            what its paper did; and about what the user may not expect of the data sets and the networks.
    """

    plans: tuple[Plan, ...]
    lines: tuple[str, ...]


def build_plans(experiment: Experiment, site: Site) -> Plans:
    """Plan every method and data set of an experiment; with a sweep, at each of its values.

    Raises:
        UserError: If a name or a value is not known, with what to do.
    """
    asked = look_up(experiment, site)
    # What does not have a swept value is the same plan at all of them.
    plans: dict[PlanKey, Plan] = {}
    left_out = list(asked.left_out)
    for one in experiment.variants():
        found, missing = _plan_all(replace(asked, experiment=one))
        left_out += missing
        for each in (each for plan in found for each in (plan.base, plan)):
            # A base that was asked for by name may serve as well.
            if each is not None and (each.key not in plans or each.requested):
                plans[each.key] = each
    every = tuple(plans.values())
    lines = [f"left out: {line}" for line in left_out]
    for plan in every:
        if plan.pinned.differences:
            stage = f", stage 1 of {plan.pinned.stage}" if plan.pinned.stage else ""
            what = f"{plan.cell.method} on {plan.cell.dataset}{stage}"
            lines.append(f"{what} is not what its paper did: {', '.join(plan.pinned.differences)}")
    notes = (note for plan in every for note in plan.notes)
    return Plans(with_splits(every, experiment.data, site), tuple(dict.fromkeys([*lines, *notes])))


def _plan_all(asked: Asked) -> tuple[list[Plan], list[str]]:
    """Plan of every method on every data set, and lines about those that have no published setting.

    Methods that heads on frozen features are compared with come first, whether or not they were asked for.
    """
    _check_fidelity(asked)
    plans: list[Plan] = []
    missing: list[NothingPublished] = []
    for dataset, name in product(asked.datasets, asked.methods):
        try:
            plans.append(_plan(asked, dataset, name))
        except NothingPublished as error:
            missing.append(error)
    if not plans:
        raise missing[0]
    _check_all_used(asked, plans)
    return list(_with_references(asked, plans)), [str(error) for error in missing]


def _with_references(asked: Asked, plans: Sequence[Plan]) -> Iterator[Plan]:
    """Plans, and before them those of methods that heads on frozen features are compared with, asked for or not.

    They have the fixed settings of the heads, which change nothing about them, so that tables show them together.
    """
    methods = asked.site.methods
    heads: dict[str, list[Mapping[str, Any]]] = {}
    for plan in plans:
        if plan.template.frozen and not methods.method(plan.cell.method).reference_for_frozen:
            heads.setdefault(plan.cell.dataset, []).append(plan.pinned.settings)

    def beside(plan: Plan) -> Plan:
        if not heads or not methods.method(plan.cell.method).reference_for_frozen:
            return plan
        of_heads = max(heads.get(plan.cell.dataset, [{}]), key=len)
        shared = {key: value for key, value in of_heads.items() if not key.startswith("method.")}
        return replace(plan, pinned=replace(plan.pinned, settings={**shared, **plan.pinned.settings}))

    for entry in methods if heads else ():
        wanted = False
        with suppress(UserError):  # a plug-in that does not import and that nobody asked for
            wanted = entry.name not in asked.methods and entry.load().reference_for_frozen
        for dataset in heads if wanted else ():
            one = beside(_plan(asked, dataset, entry.name))
            note = f"{entry.name} on {dataset} is added: what heads on frozen features have to beat"
            yield replace(one, added=True, notes=(note, *one.notes))
    yield from map(beside, plans)


def _check_all_used(asked: Asked, plans: Sequence[Plan]) -> None:
    """Refuse what was typed and nothing has: scorers, fixed values, and options about trainings of ensembles alone."""
    site, tuning, methods = asked.site, asked.experiment.tuning, ",".join(asked.methods)
    every = [each for plan in plans for each in (plan, plan.base) if each is not None]
    unused = [key for key in asked.experiment.set if not any(key in each.pinned.settings for each in every)]
    if all(plan.ensemble for plan in plans):
        # Their bases only serve, and ignore these options.
        ignored = [f"--set {key}" for key in unused]
        ignored += [f"--select-by {tuning.select_by}"] if tuning.select_by else []
        ignored += [f"--tune-for {tuning.tune_for}"] if tuning.tune_for != "retrieval" else []
        if ignored:
            base = next(plan.base.cell.method for plan in plans if plan.base)
            raise UserError(
                f"{ignored[0]}: an ensemble trains nothing; ask for its base, too: --method {base},{methods}"
            )
    for name in split_names(asked.experiment.scorers):
        if name != "all" and not any(name in each.testing.scorers for each in every):
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
        known = setting.known_keys(classes, [site.recipe(name) for name in asked.datasets])
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
    forms = {setting.resolve_fidelity(method, fidelity, asked.experiment.protocol) for method in classes}
    if fidelity != "corrected" and forms == {"corrected"}:
        raise UserError(
            f"--fidelity {fidelity}: {', '.join(methods)} {'has' if len(methods) == 1 else 'have'} one form only,"
            " the corrected one (`bench show METHOD` says where a public code differs)"
        )


def _plan(asked: Asked, dataset: str, name: str) -> Plan:
    """Plan of a method on a data set, with that of its base.

    Raises:
        NothingPublished: If published settings are asked for and there is none.
        UserError: If a value does not fit, or the data cannot be used.
    """
    method = asked.site.methods.method(name)
    asked = on_dataset(asked, dataset)
    if not method.on_base:
        return _plan_one(asked, dataset, name)
    base = asked.experiment.base or asked.site.recipe(dataset).base
    _check_base(method, asked.site.methods.method(base))
    # A published setting of a head has a first stage of its own.
    head = name if asked.experiment.hparams == "published" else ""
    if method.ensemble:
        members = _plan_one(asked, dataset, base, head=head)
        return replace(_plan_one(asked, dataset, name, base=base, members=members), base=members)
    plan, below = _plan_one(asked, dataset, name, base=base), _plan_one(asked, dataset, base, head=head)
    return replace(plan, base=below, pinned=replace(plan.pinned, base=_apart(asked, plan, below)))


def _apart(asked: Asked, head: Plan, base: Plan) -> tuple[str, ...]:
    """How the base of a head differs from what the facts of the head say: :attr:`Pinned.base`."""
    own, below, cls = head.pinned.parts, base.pinned.parts, asked.site.methods.method(base.cell.method)
    said = [text for text in below if text.startswith(("method.", "optim.", HEAD_START)) and text not in own]
    shared = ("optim.", "select_by=", "tune_for=", *(f"method.{key}=" for key in base.template.params))
    said += [f"without {text}" for text in own if text.startswith(shared) and text not in below]
    return (*said, *({base.template.form} - {setting.resolve_fidelity(cls, head.template.form, head.cell.protocol)}))


def _check_base(method: type[Method], base: type[Method]) -> None:
    """Refuse a base without what a method needs of it, before the base is trained."""
    if base.on_base:
        raise UserError(f"--base {base.name}: {base.name!r} needs a base itself; name a one-stage method")
    try:
        method.check_base(base)
    except UnfitBase as error:
        raise UserError(f"--base {base.name}: {error}") from None
    if not method.ensemble and not classifies_points(base):
        raise UserError(
            f"--base {base.name}: its softmax needs the spread of its own embeddings, which {method.name!r} replaces;"
            " name a base of points, such as cosface"
        )


def _plan_one(
    asked: Asked, dataset: str, name: str, *, head: str = "", base: str = "", members: Plan | None = None
) -> Plan:
    """Plan of a method without its base.

    ``head`` is the method whose published first stage it is, ``base`` the name of its base, and ``members`` the plan of
    the models of an ensemble, which is at their setting: nothing else was fixed, selected or tuned.
    """
    experiment, site, preset = asked.experiment, asked.site, asked.preset
    recipe, method = site.recipe(dataset), site.methods.method(name)
    named = name in asked.methods
    requested = named and not head
    # What is fixed for a method is not fixed for a base that only serves it, unless it concerns data or backbone.
    of_base = ("data", "augment")
    texts = {k: v for k, v in experiment.set.items() if named or k.split(".")[0] in of_base or k == TRAIN_FROM}
    fixed = setting.from_user(texts, method, recipe, asked.frozen)
    unfixed, stage, published, served = _unfixed(asked, dataset, method, fixed, head, base)
    built = setting.build(method, {**unfixed, **fixed})
    values = {**unfixed, **fixed, **setting.layer(method=built.params.model_dump())}
    space: Mapping[str, Range] = {}
    if experiment.hparams == "tuned":
        below = site.methods.method(base)() if base else None
        every = setting.search_ranges(preset, recipe, built, stage, values, below, asked.frozen)
        space = {key: value for key, value in every.items() if key not in fixed}
    fitted, files, notes = check(asked, dataset, built, values, setting.part(values, "view"))
    values |= fitted
    scorers = fitting_scorers(asked.scorers, built, values["model.dim"])
    select_by = experiment.tuning.select_by if requested else None
    tune_for = experiment.tuning.tune_for if requested else "retrieval"
    if members is not None:
        select_by, tune_for, fixed = members.pinned.select_by, members.tune_for, members.pinned.settings
    elif select_by is not None and not fitting_scorers((select_by,), built, values["model.dim"]):
        raise UserError(f"--select-by {select_by}: not defined for the distributions of {name}")
    template = _template(asked, Cell(experiment.protocol, dataset, name), built, values, files, select_by, tune_for)
    trained, tested = versions_of(template, preset.tests, (built.scorer, *scorers), site)
    differences = () if published is None else _differences(asked, published, built, template, unfixed, values)
    # With nothing to tune, one trial is the study; an ensemble has no models of its own to try.
    single = experiment.hparams == "tuned" and not space
    soft_labels = site.dataset(dataset, template.view).soft_labels_sha256
    own_studies = experiment.hparams == "tuned" and not preset.one_study
    first = _published_point(asked, dataset, method, values, space, base) if own_studies and space else ()
    return Plan(
        template=template.replaced(versions=trained),
        validate_folds=preset.validate,
        space=space,
        trials=0 if built.ensemble else 1 if single else preset.trials,
        replicates=range(start := experiment.tuning.first_study, start + preset.seeds),
        replicate="study" if own_studies else "seed",
        retrain=experiment.tuning.retrain or not own_studies,
        ensemble=built.ensemble,
        hparams=asked.file.label if asked.file else experiment.hparams,
        sampler=experiment.tuning.sampler,
        tune_for=tune_for,
        trial_batch=preset.trial_batch,
        startup=STARTUP if own_studies else None,
        first=first,
        base=None,
        testing=TestPlan(versions=tested, tests=preset.tests, scorers=scorers, soft_labels=soft_labels),
        preset=experiment.preset,
        pinned=_pinned(asked, template, fixed, select_by, tune_for, served, differences),
        requested=requested,
        notes=notes,
    )


def _published_point(
    asked: Asked, dataset: str, method: type[Method], values: Values, space: Mapping[str, Range], base: str
) -> tuple[Point, ...]:
    """The tuned values that the method's paper has for the data set and network, within their ranges, if it has any."""
    try:
        published, _ = _published(asked, dataset, method, values, "", base)
    except UserError:
        return ()
    known = _layer(published)
    return ({name: min(max(known.get(name, values[name]), r.low), r.high) for name, r in space.items()},)


def _template(
    asked: Asked, cell: Cell, method: Method, values: Values, files: str, select_by: str | None, tune_for: TuneFor
) -> TrainSpec:
    """Specification of a training, as yet without the versions of its code."""
    preset, view = asked.preset, setting.part(values, "view")
    selection = preset.selection
    metric = selection.frozen_metric if method.means_frozen else selection.metric
    # Trials see the crops of the preset, whatever corruptions tests are asked for.
    crops = asked.protocol.presets[asked.experiment.preset].tests.corruptions.get(CROP, Tests().corruptions[CROP])
    return TrainSpec(
        versions={"protocol": asked.protocol.version},
        **cell._asdict(),
        folds=preset.folds,
        fold=preset.validate[0],
        replicate=TUNING,
        params=setting.part(values, "method"),
        backbone=values["model.backbone"],
        weights=weights_hash(values["model.backbone"], asked.site.weights),
        dim=values["model.dim"],
        optim=Optim(**setting.part(values, "optim")),
        batches=Batches(**setting.part(values, "batches")),
        view=view,
        augmentation=setting.part(values, "augment"),
        selection=StageSelection(
            metric="map_at_r" if select_by else metric,
            scorer=select_by or method.scorer,
            candidates=1 + max(preset.tests.recall_ks) if selection.reranked else 0,
            patience=selection.patience,
            min_improvement=selection.min_improvement,
        ),
        partial=asked.site.dataset(cell.dataset, view).partial if view else "",
        files=files,
        base=None,
        crop_confidence=crops if tune_for != "retrieval" or asked.sees_crops else None,
        frozen=asked.frozen,
        head_start=values.get(HEAD_START),
        train_from=values.get(TRAIN_FROM, "") if "backbone" in method.trained_parts else "",
    )


def _pinned(
    asked: Asked,
    template: TrainSpec,
    fixed: Values,
    select_by: str | None,
    tune_for: TuneFor,
    stage: str,
    differences: tuple[str, ...],
) -> Pinned:
    """What distinguishes this run from others of the same method, data set and budget."""
    experiment, queries = asked.experiment, asked.experiment.data.test_queries
    # A method with one form has it under every fidelity; its network may differ.
    uncalibrated = template.form == "corrected" != experiment.fidelity and not template.batches.calibrate
    return Pinned(
        folds=asked.folds,
        settings={
            **fixed,
            **({} if queries is None else {TEST_QUERIES: queries}),
            **({"tuning.retrain": True} if experiment.tuning.retrain else {}),
        },
        frozen_backbone=asked.frozen,
        select_by=select_by,
        uncalibrated=uncalibrated and experiment.hparams != "published" and CALIBRATE not in fixed,
        corruptions=asked.corruptions,
        sampler=experiment.tuning.sampler if experiment.hparams == "tuned" else "gp",
        tune_for=tune_for,
        stage=stage,
        differences=differences,
        partial=template.partial,
        weights=(template.weights or "")[:8],
        pooling=template.batches.pooling if template.photographs and "data.pooling" not in fixed else "",
    )


def _unfixed(
    asked: Asked, dataset: str, method: type[Method], fixed: Values, head: str, base: str
) -> tuple[Parameters, Stage, Published | None, str]:
    """Values of all layers below what the user fixed, the stage of the recipe, and the published setting if asked for.

    The text is the head whose first stage that setting is, if only that head has it.
    """
    values, stage = _usual(asked, dataset, method, fixed)
    published, served = None, ""
    if asked.experiment.hparams == "published":
        published, served = _published(asked, dataset, method, {**values, **fixed}, head, base)
        values |= _layer(published)
    if asked.file is not None:
        values |= setting.from_file(asked.file.by_method[method.name], asked.file.path, method, values)
    return values, stage, published, served


def _usual(asked: Asked, dataset: str, method: type[Method], fixed: Values) -> tuple[Parameters, Stage]:
    """Values of recipe, preset, form and network options, the last wins; and the stage of the recipe they are of."""
    experiment, preset, name = asked.experiment, asked.preset, method.name
    recipe = asked.site.recipe(dataset)
    form = fixed.get("method.form", setting.resolve_fidelity(method, experiment.fidelity, experiment.protocol))
    own = {**method.defaults(form), **recipe.methods.get(name, {}), **preset.methods.get(name, {})}
    params = setting.layer(method=own)
    # Parameters say which parts are trained, and that says which of the recipe's stages is meant.
    frozen = asked.frozen or "backbone" not in setting.build(method, {**params, **fixed}).trained_parts
    stage = recipe.frozen if frozen else recipe.end_to_end
    values = setting.layer(
        model={"backbone": recipe.backbone, "dim": recipe.dim},
        optim=stage.values(),
        data={**recipe.batches(), **recipe.view},
        augment=recipe.augmentation,
    )
    if recipe.view:  # presets replace settings of photographs alone, those of the optimiser if the backbone is trained
        instead = preset.photographs
        optim = preset.optim if instead and stage is recipe.end_to_end else {}
        values |= setting.layer(
            model={key: instead[key] for key in ("backbone", "dim") if key in instead},
            optim={key: value for key, value in optim.items() if key in setting.OPTIM_KEYS},
            data={**{key: instead[key] for key in BATCHES if key in instead}, **preset.view},
            augment=instead.get("augmentation", {}),
        )
        if experiment.fidelity != "corrected":
            # No public code divides the features of photographs by a constant.
            values["data.calibrate"] = False
    network = {"backbone": experiment.backbone, "dim": experiment.dim, **setting.head_start(method, asked.frozen)}
    values |= {**params, **setting.layer(model={k: v for k, v in network.items() if v is not None})}
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
        params, pooling = setting.build(of, values).params.model_dump(), experiment.set.get("data.pooling", "avg")
        return find_published(of, dataset, base, network=network, params=params, pooling=pooling)

    if not head:
        return find(method, base or site.recipe(dataset).base, values), ""
    of = site.methods.method(head)
    form = setting.resolve_fidelity(of, experiment.fidelity, experiment.protocol)
    served = stage_one(find(of, method.name, setting.layer(method=of.defaults(form))), method)
    try:
        own = find(method, site.recipe(dataset).base, values)
    except NothingPublished:
        return served, head
    return served, "" if _layer(own) == _layer(served) else head


def _layer(published: Published) -> Values:
    return setting.layer(method=published.params, optim=published.optim, data=published.data)


def _differences(
    asked: Asked, published: Published, method: Method, template: TrainSpec, unfixed: Values, values: Values
) -> tuple[str, ...]:
    """Differences of a replay from what its source ran."""
    run, mine = published.run, asked.experiment
    pairs = (("protocol", mine.protocol, run.protocol), ("preset", mine.preset, run.preset))
    # Another protocol has other presets, too.
    said = [f"{what} {ours} instead of {theirs}" for what, ours, theirs in pairs if ours != theirs][:1]
    if template.dataset in run.datasets:
        said.append(f"data set {template.dataset} instead of {run.datasets[template.dataset]}")
    if method.form not in run.forms and len(method.forms()) > 1:
        said.append(f"fidelity {method.form} instead of {run.forms[0]}")
    if asked.folds is not None:
        said.append(f"{asked.folds} folds")
    before = {**unfixed, **setting.layer(method=setting.build(type(method), unfixed).params.model_dump())}
    changed = [key for key, value in values.items() if value != before.get(key)]
    said += [key for key in sorted(changed, key=place) if not key.startswith("model.")]
    if template.partial:
        said.append("a partial release")
    if template.weights is None:
        said.append("random weights instead of ImageNet's")
    return tuple(said)


def versions_of(spec: TrainSpec, tests: Tests, scorers: Iterable[str], site: Site) -> tuple[Versions, Versions]:
    """Versions here of what a training runs, and of what its test runs; that of the protocol is the specification's.

    Ids of trained models cover what else a test depends on, but not the code of an ensemble.
    """
    method = versions.registered(site.methods, spec.method)
    training = {
        "engine": versions.engine("frozen" if spec.frozen else "training"),
        "method": method,
        "dataset": versions.registered(site.datasets, spec.dataset),
        "backbone": versions.backbone(spec.backbone),
        "scorer": versions.scorer(spec.selection.scorer),
    }
    testing = {
        "engine": versions.engine("testing"),
        **({"method": method} if site.methods.method(spec.method).ensemble else {}),
        **{f"test.{name}": versions.test(name) for name in tests.groups},
        **{f"scorer.{name}": versions.scorer(name) for name in {"cosine", *scorers}},
        **{f"corruption.{name}": versions.corruption(name) for name in tests.corruptions},
    }
    protocol = {"protocol": spec.versions["protocol"]}
    trained, tested = ({name: site.version(entry) for name, entry in own.items()} for own in (training, testing))
    return protocol | trained, protocol | tested


# Runs on other class splits


def with_splits(plans: Sequence[Plan], data: Data, site: Site) -> tuple[Plan, ...]:
    """Plans, and those of the runs on other class splits; with ``class_seed``, those of this split alone.

    Raises:
        UserError: If a data set has one fixed split, or its settings are tuned on classes that a split would test.
    """
    numbers = range(1, data.class_splits + 1) if data.class_splits else filter(None, [data.class_seed])
    own = () if data.class_seed else tuple(plans)
    added: dict[PlanKey, Plan] = {}
    for number, plan in product(numbers, plans):
        said = f"data.{'class_splits' if own else 'class_seed'}={data.class_splits or number}"
        if plan.trials and plan.models > 1 and plan.replicate == "seed":
            raise UserError(
                f"{said}: settings are tuned on {plan.models} folds, whose classes other splits test; use --folds 1"
            )
        split = _on_split(plan, number, beside_own=bool(own))
        with refused(f"{said}: "):
            site.dataset(split.cell.dataset, split.view)
        added[split.key] = split
    return (*own, *added.values())


def _on_split(plan: Plan, number: int, beside_own: bool) -> Plan:
    """The plan on another class split, at the same setting; its base, too."""
    base = None if plan.base is None else _on_split(plan.base, number, beside_own)
    pinned = plan.pinned.on_split(number)
    return replace(plan, class_seed=number, beside_own=beside_own, pinned=pinned, base=base)
