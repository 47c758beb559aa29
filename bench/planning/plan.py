"""Plans: one (protocol, data set, method) cell with the specifications of its units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .. import versions
from ..datasets.corruptions._base import CROP
from ..protocols._base import Tests
from ..protocols.recipes._base import Optim, Range
from ..site import Site
from ..store.pinned import CALIBRATE, Pinned
from ..store.specs import (
    TUNING,
    BaseReference,
    Batches,
    Cell,
    Ensemble,
    Point,
    StageSelection,
    StudySpec,
    TestSpec,
    TrainSpec,
    TuneFor,
    Versions,
)
from .setting import Setting, part

if TYPE_CHECKING:
    from .variance import Frozen

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
        variant: For runs that measure the variance by source, what is drawn anew; None for all others.
        adapted: Line about batches that are smaller than the default ones because the data set is small; else empty.
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
    variant: Frozen | None = None
    adapted: str = ""

    @property
    def key(self) -> PlanKey:
        """Tuple that identifies this plan among those of a request: id of ``template``, ``pinned``, key of the base.

        The last part is there for two-stage methods only. Several plans may have the same protocol, data set and
        method, at different settings.
        """
        variant = (repr(self.variant),) if self.variant else ()
        return (self.template.id, self.pinned.text, *variant, *(self.base.key if self.base else ()))

    @property
    def study_key(self) -> PlanKey:
        """Tuple that identifies the plan's tuning study, which plans that only differ in later draws share."""
        draw = (str(self.study_draw),) if self.study_draw else ()
        return (self.template.id, self.pinned.unfrozen.text, *draw, *(self.base.study_key if self.base else ()))

    @property
    def study_draw(self) -> int:
        """Number of the tuning study: 0, or that of one that repeats it with other random draws."""
        return self.variant.study if self.variant else 0

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
        draw = (f"study {self.study_draw}",) if self.study_draw else ()
        return (*self.cell, self.base.cell.method if self.base else "", *draw)

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
        # The study of a variant is another plan's, too.
        trials = 0 if self.variant and not self.variant.has_own_study else self.trials
        return 0 if self.ensemble else (trials + self.seeds) * self.models

    @property
    def tests(self) -> int:
        """Number of replicates that are tested: every seed, or one ensemble of them."""
        return 1 if self.ensemble else self.seeds

    @property
    def replicates(self) -> range:
        """Numbers of the replicates that are tested."""
        first = self.variant.first if self.variant else 0
        return range(first, first + self.tests)

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
        if self.variant is not None:
            template = template.replaced(draws=self.variant.draws(replicate))
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
            draw=self.study_draw,
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


def make_plan(setting: Setting, base: Plan | None, site: Site) -> Plan:
    """Make the plan of a setting: all its trials, trainings and tests."""
    experiment, preset, method = setting.experiment, setting.preset, setting.method
    template = _template(setting, site)
    # With nothing to tune, one trial is the study; an ensemble has no models of its own to try.
    single = experiment.hparams == "tuned" and not setting.space
    return Plan(
        template=template,
        validate_folds=preset.validate,
        space=setting.space,
        trials=0 if method.ensemble else 1 if single else preset.trials,
        seeds=preset.seeds,
        ensemble=method.ensemble,
        hparams=setting.hparams,
        sampler=experiment.tuning.sampler,
        tune_for=setting.tune_for,
        trial_batch=preset.trial_batch,
        base=base,
        testing=TestPlan(
            versions=testing_versions(template, preset.tests, (method.scorer, *setting.scorers), site),
            tests=preset.tests,
            scorers=setting.scorers,
            soft_labels=setting.soft_labels,
        ),
        preset=experiment.preset,
        pinned=_pinned(setting, template),
        requested=setting.requested,
        differences=setting.differences,
        stage=setting.stage,
        adapted=setting.adapted,
    )


def _template(setting: Setting, site: Site) -> TrainSpec:
    preset, values = setting.preset, setting.values
    # Trials see the crops of the preset, whatever corruptions tests are asked for.
    crops = setting.protocol.presets[setting.experiment.preset].tests.corruptions.get(CROP, Tests().corruptions[CROP])
    spec = TrainSpec(
        versions={"protocol": setting.protocol.version},
        protocol=setting.cell.protocol,
        dataset=setting.cell.dataset,
        folds=preset.folds,
        fold=preset.validate[0],
        replicate=TUNING,
        method=setting.cell.method,
        params=part(values, "method"),
        backbone=values["model.backbone"],
        weights=setting.weights,
        dim=values["model.dim"],
        optim=Optim(**part(values, "optim")),
        batches=Batches(**part(values, "batches")),
        view=part(values, "view"),
        augmentation=part(values, "augment"),
        selection=_selection(setting),
        partial=setting.partial,
        files=setting.files,
        base=None,
        crop_confidence=None if setting.tune_for == "retrieval" else crops,
        frozen=setting.experiment.frozen,
    )
    return spec.replaced(versions=training_versions(spec, site))


def _selection(setting: Setting) -> StageSelection:
    """Rule by which an epoch is kept: a scorer that was asked for selects every stage of the methods that were."""
    selection, method = setting.preset.selection, setting.method
    metric = selection.frozen_metric if method.means_frozen else selection.metric
    return StageSelection(
        metric="map_at_r" if setting.select_by else metric,
        scorer=setting.select_by or method.scorer,
        candidates=1 + max(setting.preset.tests.recall_ks) if selection.reranked else 0,
        patience=selection.patience,
        min_improvement=selection.min_improvement,
    )


def _pinned(setting: Setting, template: TrainSpec) -> Pinned:
    """What distinguishes this run from others of the same method, data set and budget."""
    experiment = setting.experiment
    # A method with one form has it under every fidelity; its network may differ.
    uncalibrated = template.form == "corrected" != experiment.fidelity and not template.batches.calibrate
    return Pinned(
        folds=setting.folds,
        settings=dict(setting.fixed),
        frozen_backbone=experiment.frozen,
        select_by=setting.select_by,
        uncalibrated=uncalibrated and experiment.hparams != "published" and CALIBRATE not in setting.fixed,
        corruptions=setting.corruptions,
        sampler=experiment.tuning.sampler if experiment.hparams == "tuned" else "gp",
        tune_for=setting.tune_for,
        stage=setting.stage,
        differences=setting.differences,
        partial=template.partial,
        weights=(template.weights or "")[:8],
    )


def training_versions(spec: TrainSpec, site: Site) -> Versions:
    """Versions here of what a training runs; that of the protocol is the specification's."""
    entries = {
        "engine": versions.engine("training"),
        "method": versions.registered(site.methods, spec.method),
        "dataset": versions.registered(site.datasets, spec.dataset),
        "backbone": versions.backbone(spec.backbone),
        "scorer": versions.scorer(spec.selection.scorer),
    }
    return {"protocol": spec.versions["protocol"], **_versions(entries)}


def testing_versions(spec: TrainSpec, tests: Tests, scorers: Iterable[str], site: Site) -> Versions:
    """Versions here of what a test runs; ids of trained models cover the rest, but not the code of an ensemble."""
    ensemble = site.methods.method(spec.method).ensemble
    entries = {
        "engine": versions.engine("testing"),
        **({"method": versions.registered(site.methods, spec.method)} if ensemble else {}),
        **{f"test.{name}": versions.test(name) for name in tests.groups},
        **{f"scorer.{name}": versions.scorer(name) for name in {"cosine", *scorers}},
        **{f"corruption.{name}": versions.corruption(name) for name in tests.corruptions},
    }
    return {"protocol": spec.versions["protocol"], **_versions(entries)}


def _versions(entries: Mapping[str, versions.Entry]) -> Versions:
    return {name: versions.version(entry) for name, entry in entries.items()}
