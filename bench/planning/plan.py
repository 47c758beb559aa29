"""Plans: one (protocol, data set, method) cell with the specifications of its units.

Runs on other class splits have plans of their own, at the setting that was tuned on the own split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

from .. import versions
from ..datasets.corruptions._base import CROP
from ..errors import UserError
from ..protocols._base import Tests
from ..protocols.recipes._base import Optim, Range
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
    StageSelection,
    StudySpec,
    TestSpec,
    TrainSpec,
    TuneFor,
    Versions,
)
from .asked import look_up
from .experiment import Data, Experiment
from .setting import Setting, part, settle_all

PlanKey = tuple[str, ...]
"""Key that distinguishes plans."""

Specs = dict[int, TrainSpec]
"""Training specifications of one replicate, by the block of classes that validates: one model each."""

OF_FOLDS: tuple[Ensemble, ...] = ("separated", "concatenated")


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
        trials: Number of tuning trials; 0 if nothing is tuned.
        seeds: Replicates 0 .. seeds-1 are trained and tested at the best setting.
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
        differences: How a run at a published setting differs from what the authors of that setting ran.
        stage: Method of which this base is the first stage, at the setting published for it; else empty.
        class_seed: Number of the class split that seeds are trained and tested on; 0 for the data set's own, on which
            all trials are made.
        beside_own: Whether the same is planned on the own split, whose trials these are.
        notes: Lines about what the user may not expect of the data or the network.
        added: Whether nobody asked for the method, which is what heads on frozen features are compared with.
    """

    template: TrainSpec
    validate_folds: tuple[int, ...]
    space: Mapping[str, Range]
    trials: int
    seeds: int
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
    differences: tuple[str, ...] = ()
    stage: str = ""
    class_seed: int = 0
    beside_own: bool = False
    notes: tuple[str, ...] = ()
    added: bool = False

    @property
    def key(self) -> PlanKey:
        """Tuple that identifies this plan among those of a request: id of ``template``, ``pinned``, key of the base.

        The last part is there for two-stage methods only. Several plans may have the same protocol, data set and
        method, at different settings.
        """
        return (self.template.id, self.pinned.text, *(self.base.key if self.base else ()))

    @property
    def study_key(self) -> PlanKey:
        """Tuple that identifies the plan's tuning study, which plans that only differ in later draws share."""
        return (self.template.id, self.pinned.on_split(0).text, *(self.base.study_key if self.base else ()))

    @property
    def cell(self) -> Cell:
        """Protocol, data set and method of the plan, which also name the folder of its results."""
        return self.template.cell

    @property
    def epochs(self) -> int:
        """Largest number of epochs of one training."""
        return self.template.optim.epochs

    @property
    def sampler_axes(self) -> tuple[str, ...]:
        """Names that seed the tuner's draws, with the trial's number: protocol, data set, method, base (or empty)."""
        return (*self.cell, self.base.cell.method if self.base else "")

    @property
    def view(self) -> Parameters:
        """How the data set of its seeds is opened."""
        return {**self.template.view, **({CLASS_SEED: self.class_seed} if self.class_seed else {})}

    def defaults(self) -> Point:
        """Default values of the tuned parameters, clipped to their ranges: the first trial of every study."""
        values = {f"method.{key}": value for key, value in self.template.params.items()}
        values |= {f"optim.{key}": value for key, value in asdict(self.template.optim).items()}
        return {name: min(max(values[name], r.low), r.high) for name, r in self.space.items()}

    @property
    def models(self) -> int:
        """Number of models of one seed or trial: one for each fold that validates."""
        return len(self.validate_folds)

    @property
    def trainings(self) -> int:
        """Number of trainings for all trials and all seeds, without those of the base."""
        trials = 0 if self.beside_own else self.trials  # the plan of the own split counts them
        return 0 if self.ensemble else (trials + self.seeds) * self.models

    @property
    def tests(self) -> int:
        """Number of replicates that are tested: every seed, or one ensemble of them."""
        return 1 if self.ensemble else self.seeds

    @property
    def replicates(self) -> range:
        """Numbers of the replicates that are tested."""
        return range(self.tests)

    @property
    def tuning_trainings(self) -> int:
        """Number of trainings spent on tuning the setting, including those spent on tuning the base.

        Of an ensemble, it includes those of its members, too: any other method has one model per seed.
        """
        tuning = (self.trials + (self.base.trials if self.base else 0)) * self.models
        return tuning + (self.seeds if self.ensemble else 0)

    def train_specs(self, point: Point, replicate: str | int, bases: Specs | None) -> Specs:
        """Specifications of the trainings of one replicate, which is a seed or a tuning trial with all its folds.

        Returns:
            One specification for each fold that validates, by the index of the fold.
        """
        params, optim = dict(self.template.params), asdict(self.template.optim)
        for name, value in point.items():
            group, _, key = name.partition(".")
            {"method": params, "optim": optim}[group][key] = value
        # Seeds of equal settings are the same trainings, whatever chose the setting.
        measured = self.template.crop_confidence if replicate == TUNING else None
        template = self.template.replaced(params=params, optim=optim, replicate=replicate, crop_confidence=measured)
        if replicate != TUNING:
            template = template.replaced(view=self.view)
        specs = {}
        for fold in self.validate_folds:
            base: BaseReference | None = bases[fold].as_base() if bases else None
            specs[fold] = template.replaced(fold=fold, base=base)
        return specs

    def study_spec(self, bases: Specs | None) -> StudySpec:
        """Specification of this plan's tuning study."""
        return StudySpec(
            template=self.template,
            validate_folds=self.validate_folds,
            space=dict(self.space),
            sampler=self.sampler,
            trial_batch=self.trial_batch,
            bases=tuple(bases[fold].id for fold in self.validate_folds) if bases else (),
            tune_for=self.tune_for,
        )

    def test_specs(self, *trained: Specs) -> list[TestSpec]:
        """Specifications of the tests of one replicate (one seed, all folds), or of an ensemble of all seeds.

        A replicate of one model has one test. One of several models has two: the mean of their results, and the result
        of their concatenated embeddings. An ensemble has one. Its members are the models that validate on the first
        fold, so that its validation classes are new to all of them.
        """
        folds = self.validate_folds[:1] if self.ensemble else self.validate_folds
        tuned = self.base if self.ensemble and self.base else self
        ensembles: tuple[Ensemble, ...] = OF_FOLDS if self.models > 1 else ("",)
        return [
            TestSpec(
                versions=self.testing.versions,
                protocol=self.cell.protocol,
                preset=self.preset,
                train=tuple(specs[fold].id for specs in trained for fold in folds),
                ensemble=ensemble,
                hparams=self.hparams,
                trials=tuned.trials,
                tuning_trainings=self.tuning_trainings,
                pinned=self.pinned,
                tests=self.testing.tests,
                scorers=self.testing.scorers,
                soft_labels=self.testing.soft_labels,
            )
            for ensemble in (("seeds",) if self.ensemble else ensembles)
        ]


def make_plan(setting: Setting) -> Plan:
    """Make the plan of a setting, and of its base: all trials, trainings and tests."""
    asked, preset, method, found = setting.asked, setting.asked.preset, setting.method, setting.found
    experiment, template = asked.experiment, _template(setting)
    pinned = _pinned(setting, template)
    trained, tested = versions_of(template, preset.tests, (method.scorer, *found.scorers), asked.site)
    # With nothing to tune, one trial is the study; an ensemble has no models of its own to try.
    single = experiment.hparams == "tuned" and not setting.space
    return Plan(
        template=template.replaced(versions=trained),
        validate_folds=preset.validate,
        space=setting.space,
        trials=0 if method.ensemble else 1 if single else preset.trials,
        seeds=preset.seeds,
        ensemble=method.ensemble,
        hparams=asked.file.label if asked.file else experiment.hparams,
        sampler=experiment.tuning.sampler,
        tune_for=setting.tune_for,
        trial_batch=preset.trial_batch,
        base=make_plan(setting.base) if setting.base else None,
        preset=experiment.preset,
        pinned=pinned,
        requested=setting.requested,
        differences=setting.differences,
        stage=setting.stage,
        notes=found.notes,
        added=setting.added,
        testing=TestPlan(
            versions=tested,
            tests=preset.tests,
            scorers=found.scorers,
            soft_labels=found.soft_labels,
        ),
    )


def _template(setting: Setting) -> TrainSpec:
    """Specification of a training, as yet without the versions of its code."""
    asked, found, values, cell = setting.asked, setting.found, setting.values, setting.cell
    # Trials see the crops of the preset, whatever corruptions tests are asked for.
    usual = asked.protocol.presets[asked.experiment.preset].tests.corruptions
    return TrainSpec(
        versions={"protocol": asked.protocol.version},
        protocol=cell.protocol,
        dataset=cell.dataset,
        folds=asked.preset.folds,
        fold=asked.preset.validate[0],
        replicate=TUNING,
        method=cell.method,
        params=part(values, "method"),
        backbone=values["model.backbone"],
        weights=found.weights,
        dim=values["model.dim"],
        optim=Optim(**part(values, "optim")),
        batches=Batches(**part(values, "batches")),
        view=part(values, "view"),
        augmentation=part(values, "augment"),
        selection=_selection(setting),
        partial=found.partial,
        files=found.files,
        base=None,
        crop_confidence=None if setting.tune_for == "retrieval" else usual.get(CROP, Tests().corruptions[CROP]),
        frozen=asked.experiment.frozen,
        head_start=values.get(HEAD_START),
        train_from=values.get(TRAIN_FROM, "") if "backbone" in setting.method.trained_parts else "",
    )


def _selection(setting: Setting) -> StageSelection:
    """Rule by which an epoch is kept: a scorer that was asked for selects every stage of the methods that were."""
    preset, method = setting.asked.preset, setting.method
    selection = preset.selection
    metric = selection.frozen_metric if method.means_frozen else selection.metric
    return StageSelection(
        metric="map_at_r" if setting.select_by else metric,
        scorer=setting.select_by or method.scorer,
        candidates=1 + max(preset.tests.recall_ks) if selection.reranked else 0,
        patience=selection.patience,
        min_improvement=selection.min_improvement,
    )


def _pinned(setting: Setting, template: TrainSpec) -> Pinned:
    """What distinguishes this run from others of the same method, data set and budget."""
    asked, experiment = setting.asked, setting.asked.experiment
    # A method with one form has it under every fidelity; its network may differ.
    uncalibrated = template.form == "corrected" != experiment.fidelity and not template.batches.calibrate
    queries = experiment.data.test_queries
    return Pinned(
        folds=asked.folds,
        settings={**setting.fixed, **({} if queries is None else {TEST_QUERIES: queries})},
        frozen_backbone=experiment.frozen,
        select_by=setting.select_by,
        uncalibrated=uncalibrated and experiment.hparams != "published" and CALIBRATE not in setting.fixed,
        corruptions=asked.corruptions,
        sampler=experiment.tuning.sampler if experiment.hparams == "tuned" else "gp",
        tune_for=setting.tune_for,
        stage=setting.stage,
        differences=setting.differences,
        partial=template.partial,
        weights=(template.weights or "")[:8],
        pooling=template.batches.pooling if template.photographs and "data.pooling" not in setting.fixed else "",
    )


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
    trained, tested = ({name: versions.version(entry) for name, entry in part.items()} for part in (training, testing))
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
        if plan.trials and plan.models > 1:
            raise UserError(
                f"{said}: settings are tuned on {plan.models} folds, whose classes other splits test; use --folds 1"
            )
        split = _on_split(plan, number, beside_own=bool(own))
        try:
            site.dataset(split.cell.dataset, split.view)
        except ValueError as error:
            raise UserError(f"{said}: {error}") from None
        added[split.key] = split
    return (*own, *added.values())


def _on_split(plan: Plan, number: int, beside_own: bool) -> Plan:
    """The plan on another class split, at the same setting; its base, too."""
    base = None if plan.base is None else _on_split(plan.base, number, beside_own)
    pinned = plan.pinned.on_split(number)
    return replace(plan, class_seed=number, beside_own=beside_own, pinned=pinned, base=base)


@dataclass(frozen=True)
class Plans:
    """Plans of an experiment, with what the user should be told about them.

    Attributes:
        plans: The plans, each once, a base before the methods that are built on it.
        left_out: A line for every method and data set that is left out, since it has no published setting while others
            have one, or since a single seed makes no ensemble.
        differences: A line for every run at a published setting that differs from what its paper did.
        notes: Lines about what the user may not expect of the data sets and the networks.
    """

    plans: tuple[Plan, ...]
    left_out: tuple[str, ...]
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


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
        settings, missing = settle_all(replace(asked, experiment=one))
        left_out += missing
        for setting in settings:
            plan = make_plan(setting)
            for each in (plan.base, plan):
                # A base that was asked for by name may serve as well.
                if each is not None and (each.key not in plans or each.requested):
                    plans[each.key] = each
    every = tuple(plans.values())
    differences = (
        f"{plan.cell.method} on {plan.cell.dataset}{f', stage 1 of {plan.stage}' if plan.stage else ''} is not what"
        f" its paper did: {', '.join(plan.differences)}"
        for plan in every
        if plan.differences
    )
    return Plans(
        with_splits(every, experiment.data, site),
        left_out=tuple(dict.fromkeys(left_out)),
        differences=tuple(dict.fromkeys(differences)),
        notes=tuple(dict.fromkeys(note for plan in every for note in plan.notes)),
    )
