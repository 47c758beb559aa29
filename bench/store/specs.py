"""Specifications of units: everything that a result depends on, as frozen values whose hash is the unit's id.

Training units are shared: a base serves all two-stage methods on it, and a setting that two budgets agree on is
trained once. What does not change a result (paths, device, number of workers) is in :class:`~bench.site.Site`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from ..methods.backbones.registry import GIVEN
from ..protocols._base import SelectionMetric, Tests
from ..protocols.recipes._base import BATCHES, Optim, Range
from ..seeds import content_id

CALIBRATE = "data.calibrate"
"""Setting that forms of public code turn off by themselves."""

CLASS_SEED = "class_seed"
"""Setting of the data that draws other training and test classes; absent for the own split of a data set."""

TEST_QUERIES = "data.test_queries"
"""Setting of a test whose queries are drawn; absent if all are searched for."""

_PLACES = {"method": 0, "optim": 1, "batches": 2, "data": 3, "augment": 4}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False, config=ConfigDict(extra="forbid"))
class Pinned:
    """Distinguishing facts of a run; runs that differ in them are different rows, ordered by their texts.

    Attributes:
        settings: Settings that the user fixed, by full name such as ``method.margin``.
        select_by: Scorer that selects epochs and trials; None for the method's own.
        uncalibrated: Whether features are not divided by a constant because a form of public code was asked for.
        stage: Method whose published first stage this is; empty for none.
        differences: How a run at a published setting differs from what its authors ran.
        partial: Images of a partial release; empty for whole data sets.
        pooling: Pooling of the backbone of photographs, unless it is one of the settings.
        weights: First digits of the SHA-256 of starting weights that are not random.
        base: Of a head, how what was fixed, selected or tuned for its base differs from that: settings of the base, and
            after ``without`` those of the head that the base does not share; or the form of the base.
    """

    folds: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    frozen_backbone: bool = False
    select_by: str | None = None
    uncalibrated: bool = False
    corruptions: tuple[str, ...] = ()
    sampler: str = "gp"
    tune_for: str = "retrieval"
    stage: str = ""
    differences: tuple[str, ...] = ()
    partial: str = ""
    pooling: str = Field("", exclude_if=lambda text: not text)  # old ids have none
    weights: str = ""
    base: tuple[str, ...] = Field(default=(), exclude_if=lambda texts: not texts)  # nor have those of a usual base
    frozen_source: str = ""  # of old runs, which no table has; these two are in all ids
    tuned_anew: Literal[False] = False

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The facts as texts, in the order in which they are printed."""
        texts = (
            "" if self.folds is None else f"folds={self.folds}",
            *(f"{key}={self.settings[key]}" for key in sorted(self.settings, key=place)),
            "frozen backbone" if self.frozen_backbone else "",
            f"select_by={self.select_by}" if self.select_by else "",
            f"{CALIBRATE}=False" if self.uncalibrated else "",
            f"corruptions={','.join(self.corruptions)}" if self.corruptions else "",
            f"sampler={self.sampler}" if self.sampler != "gp" else "",
            f"tune_for={self.tune_for}" if self.tune_for != "retrieval" else "",
            f"stage 1 of {self.stage}" if self.stage else "",
            f"not as published: {', '.join(self.differences)}" if self.differences else "",
            f"partial release: {self.partial}" if self.partial else "",
            f"{self.pooling} pooling" if self.pooling else "",
            f"starting weights sha256:{self.weights}" if self.weights else "",
            f"base: {', '.join(self.base)}" if self.base else "",
        )
        return tuple(filter(None, texts))

    @cached_property
    def text(self) -> str:
        """All facts as one text; empty for a usual run."""
        return "; ".join(self.parts)

    @property
    def values(self) -> Mapping[str, Any]:
        """Settings that were fixed, by the user or because a form of public code was asked for."""
        return {**self.settings, **({CALIBRATE: False} if self.uncalibrated else {})}

    @property
    def class_seed(self) -> int:
        """Number of the class split; 0 for the data set's own."""
        return int(self.settings.get(f"data.{CLASS_SEED}", 0))

    def on_split(self, class_seed: int) -> Pinned:
        """The same on another class split; 0 is the data set's own."""
        own = self.without([f"data.{CLASS_SEED}"])
        return replace(own, settings={**own.settings, f"data.{CLASS_SEED}": class_seed}) if class_seed else own

    def without(self, keys: Collection[str]) -> Pinned:
        """The same without some of the ``values``."""
        left = {key: value for key, value in self.settings.items() if key not in keys}
        return replace(self, settings=left, uncalibrated=self.uncalibrated and CALIBRATE not in keys)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return repr(self.text)

    def __bool__(self) -> bool:
        return bool(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pinned) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __lt__(self, other: Pinned) -> bool:
        return self.text < other.text


def place(key: str) -> tuple[int, str]:
    """Order of settings: the method's, the optimiser's, those of batches, of photographs, of the augmentation."""
    group, _, name = key.partition(".")
    group = "batches" if group == "data" and name in BATCHES else group
    return _PLACES.get(group, len(_PLACES)), key


def split_pinned(pinned: Sequence[Pinned]) -> tuple[str, list[str]]:
    """Texts of the facts that all runs share, and for each run of its others.

    Example:
        >>> a, b = Pinned(settings={"optim.lr": 0.1, "optim.epochs": 2}), Pinned(settings={"optim.epochs": 2})
        >>> split_pinned([a, b])
        ('optim.epochs=2', ['optim.lr=0.1', ''])
    """
    shared = [text for text in pinned[0].parts if all(text in other.parts for other in pinned)] if pinned else []
    return "; ".join(shared), ["; ".join(text for text in each.parts if text not in shared) for each in pinned]


Kind = Literal["train", "test", "study", "rescore"]
Ensemble = Literal["", "separated", "concatenated", "seeds"]
TuneFor = Literal["retrieval", "confidence", "both"]
Parameters = dict[str, Any]
"""Values by name; their types are those of a method's ``Params``, a ``View`` or an augmentation."""

Point = dict[str, int | float]
"""Tuned values by name: ``{"method.scale": 16.0, "optim.lr": 0.01}``."""

TUNING = "tuning"
"""Replicate of every trial, with the number of its study if every replicate has one of its own."""

Replicate = Literal["seed", "study"]
"""What a replicate is: one more training at a setting, or a tuning study with the network that it chooses."""


HeadStart = Literal["random", "pca"]
"""Weights from which the mean head on a frozen backbone may start."""

HEAD_START = "model.head_start"
"""Setting that chooses one of them."""

TRAIN_FROM = "model.train_from"
"""Setting that names the stage of the backbone from which on it is trained."""


class Cell(NamedTuple):
    """Protocol, data set and method, which together name the folder of the trainings, studies and tests."""

    protocol: str
    dataset: str
    method: str


class _Value(BaseModel):
    """A frozen value that reads itself from JSON: unknown keys and wrong types are refused."""

    # Instances inside are checked too: 1 and 1.0 must not give two ids.
    model_config = ConfigDict(frozen=True, extra="forbid", revalidate_instances="always")


Versions = dict[str, int | str]
"""Versions by what they are of, such as ``engine`` or ``test.risk`` (:mod:`bench.versions`)."""


def versions_text(versions: Versions) -> str:
    """Versions that are not 1, for display.

    Example:
        >>> versions_text({"engine": 1, "method": "1+edited.0123"}), versions_text({"engine": 1})
        ('method 1+edited.0123', 'version 1')
    """
    return ", ".join(f"{name} {of}" for name, of in sorted(versions.items()) if of != 1) or "version 1"


class _Spec(_Value):
    @property  # not kept: what is kept in a value counts when values are compared
    def id(self) -> str:
        """16 hexadecimal digits made of the content."""
        return content_id([type(self).__name__, self.model_dump(mode="json")])

    def replaced(self, **changes: Any) -> Self:
        """A copy with other values, checked like the original."""
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **changes})


class _Versioned(_Spec):
    """A specification with the versions of its code."""

    versions: Versions

    @property
    def protocol_version(self) -> int:
        """Version of the protocol; 0 if a record from elsewhere has none."""
        found = self.versions.get("protocol")
        return found if isinstance(found, int) else 0


class Batches(_Value):
    """Composition of the class-balanced training batches, and how the backbone turns them into features.

    The fields are those of :class:`bench.protocols.recipes.Recipe`.
    """

    classes_per_batch: int
    images_per_class: int
    feature_views: int
    freeze_norm: str
    epoch_repeats: float
    pooling: str = "avg_max"
    calibrate: bool = True


class StageSelection(_Value):
    """Rule that selects the epoch to keep and stops a training (:class:`~bench.protocols.Selection`).

    ``candidates`` is 0 if the scorer ranks the whole gallery. Otherwise it ranks only the images whose modes are
    nearest to the query's, and this is their smallest number, the query included; a larger class raises it
    (:mod:`bench.protocols.near_modes`).
    """

    metric: SelectionMetric
    scorer: str
    candidates: int
    patience: int
    min_improvement: float


class BaseReference(_Value):
    """Reference to the base of a two-stage training: its method, its parameters, and the id of its training."""

    method: str
    params: Parameters
    unit: str


class TrainSpec(_Versioned):
    """Specification of one training: everything that its result depends on; the hash of it is the id of the training.

    Attributes:
        versions: Versions of the engine, protocol, method, data set, backbone and selecting scorer
            (:mod:`bench.versions`).
        folds: Number of blocks that the development classes (those not used for the test) are cut into.
        fold: Index of the block that validates; the other blocks train. With one block, all development classes train,
            and some of them validate as well.
        replicate: Number of the seed; :data:`TUNING` for a tuning trial, followed by the number of the study if every
            replicate has its own.
        weights: SHA-256 of its starting weights; None for random ones.
        view: Settings of how photographs are read (size, crop, ..); empty for data sets that come as pixels. On a class
            split that is not the data set's own, also its number, ``class_seed``.
        selection: Rule that selects the epoch to keep.
        partial: What is missing from the files of the data set, if incomplete data were allowed; else empty.
        files: Hash of the content of the image files; empty for data sets that come with the installation.
        base: The trained model that a two-stage method starts from; None for other methods.
        crop_confidence: Smallest and largest severity of the crops of the validation images on which the AUROC of the
            default confidence is measured, if the training is a trial of a study that tunes for it; else None.
        frozen: Whether the backbone stays at its starting weights whatever the method.
        head_start: Weights from which the mean head on such a backbone starts: ``random`` ones, or the principal axes
            of the training features (``pca``). None, and not part of the id, for all other trainings.
        train_from: Stage of the backbone from which on it is trained; what precedes stays at its starting weights.
            Empty, and not part of the id, if all of it is trained or none.
    """

    protocol: str
    dataset: str
    folds: int
    fold: int
    replicate: int | str
    method: str
    params: Parameters
    backbone: str
    weights: str | None
    dim: int
    optim: Optim
    batches: Batches
    view: Parameters
    augmentation: Parameters
    selection: StageSelection
    partial: str
    files: str
    base: BaseReference | None
    crop_confidence: tuple[float, float] | None = None
    draws: dict[str, str] = Field(default_factory=dict)  # of old runs; in all ids, like a study's `draw`
    frozen: bool = False
    head_start: HeadStart | None = Field(None, exclude_if=lambda start: start is None)
    train_from: str = Field("", exclude_if=lambda stage: not stage)

    @property
    def features(self) -> str:
        """Id of what the features of a backbone at its starting weights depend on, except the images' content."""
        of_backbone = (self.backbone, self.weights, self.batches.pooling, self.batches.calibrate)
        of_images = (self.dataset, self.folds, self.fold, self.partial, self.files, self.view, self.augmentation)
        versions = [self.versions.get(name) for name in ("engine", "dataset", "backbone")]
        of_stage = [self.train_from] if self.train_from else []
        return content_id([*versions, *of_backbone, *of_images, *of_stage])

    @property
    def caches_features(self) -> bool:
        """Whether features are made by a backbone that stays at its starting weights; given ones are there already."""
        return self.frozen and self.backbone != GIVEN

    @property
    def caches_views(self) -> bool:
        """Whether it trains on what frozen layers at their starting weights make of some views of every image."""
        return self.caches_features or bool(self.train_from)

    @property
    def photographs(self) -> Parameters:
        """Settings of how photographs are read; empty for data sets that come as pixels."""
        return {key: value for key, value in self.view.items() if key != CLASS_SEED}

    @property
    def is_trial(self) -> bool:
        """Whether it is made for a trial of a tuning study."""
        return str(self.replicate).startswith(TUNING)

    @property
    def number(self) -> int:
        """Number of the seed, or of the study of a trial."""
        return int(str(self.replicate).removeprefix(TUNING))

    @property
    def form(self) -> str:
        """Form of the method: ``corrected``, or that of a public code."""
        return str(self.params.get("form", "corrected"))

    @property
    def cell(self) -> Cell:
        """Protocol, data set and method, which also name the folder of the results."""
        return Cell(self.protocol, self.dataset, self.method)

    @property
    def base_cell(self) -> Cell:
        """Protocol, data set and method of the base of a two-stage training."""
        assert self.base is not None
        return Cell(self.protocol, self.dataset, self.base.method)

    def as_base(self) -> BaseReference:
        """Reference to this training, for the specification of a two-stage training that starts from it."""
        return BaseReference(method=self.method, params=self.params, unit=self.id)


class StudySpec(_Spec):
    """Specification of one tuning study (hyper-parameter search of a method); its hash is the id of the study.

    It leaves out the number of trials, so that a study can be extended.

    Attributes:
        template: Specification of a training at the default setting, without its base. Its validation classes are the
            first block of ``validate_folds``.
        validate_folds: Indices of the blocks of classes that validate; a trial trains one model per block.
        trial_batch: Number of trials proposed together, before the result of any of them is known.
        bases: Ids of the trainings of the models that heads are trained on, one per block; empty for one-stage methods.
        tune_for: What is tuned for: ``retrieval`` (the value that selects epochs), ``confidence`` (its AUROC on crops)
            or ``both`` (validation MAP@R and that AUROC).
        startup: Number of trials before the sampler proposes, quasi-random but for the first; None for ten random ones.
    """

    template: TrainSpec
    validate_folds: tuple[int, ...]
    space: dict[str, Range]
    sampler: str
    trial_batch: int
    bases: tuple[str, ...]
    tune_for: TuneFor = "retrieval"
    draw: Literal[0] = 0
    startup: int | None = Field(None, exclude_if=lambda count: count is None)


class TestSpec(_Versioned):
    """Specification of one test of the trained models of one seed; its hash is the id of the test.

    Attributes:
        versions: Versions of the engine, protocol, tests, scorers and corruptions, and of the method of an ensemble
            (:mod:`bench.versions`).
        train: Ids of the trained models.
        ensemble: How several models are taken together: the mean of their results (``separated``), or their
            embeddings side by side (``concatenated``); ``seeds`` for one ensemble of all seeds of a base; empty for one
            model.
        hparams: Source of the hyper-parameters, such as ``tuned`` or ``published``.
        trials: Number of trials of the study, of an ensemble that of its members; 0 if nothing was tuned.
        tuning_trainings: Number of trainings spent on tuning the setting, including those of the base; of an ensemble,
            those of its members, too.
        pinned: Settings that were fixed and the like: runs that differ in them are different rows of every table.
        soft_labels: SHA-256 of label distributions given by people, if the data set has them; else empty.
        replicate: ``study`` if every replicate has a tuning study of its own; else ``seed``, and not part of the id.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    protocol: str
    preset: str
    train: tuple[str, ...]
    ensemble: Ensemble
    hparams: str
    trials: int
    tuning_trainings: int
    pinned: Pinned
    tests: Tests
    scorers: tuple[str, ...]
    soft_labels: str
    replicate: Replicate = Field("seed", exclude_if=lambda replicate: replicate == "seed")

    @property
    def queries(self) -> int | None:
        """Number of queries that are drawn of the test images, and of the validation images; None for all."""
        return self.pinned.settings.get(TEST_QUERIES)


class RescoreSpec(_Spec):
    """Specification of a rescoring: tests that are computed later from the arrays that a finished test has kept.

    Attributes:
        versions: Versions of the engine, tests and scorers that compute the values (:mod:`bench.versions`).
        options: Trained parameters of the method's scorer in records of earlier versions.
    """

    test: str
    versions: Versions
    groups: tuple[str, ...]
    arrays: dict[str, str]
    options: tuple[dict[str, float], ...] = ()
