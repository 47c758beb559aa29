"""What an experiment asks for: names that exist, the preset with its seeds and trials, and a file of settings."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ..datasets.corruptions._base import CROP, LEVELS, check_range
from ..datasets.corruptions.registry import CORRUPTIONS
from ..datasets.features import Features
from ..errors import UserError, require_known, shortened
from ..methods.backbones.registry import GIVEN
from ..methods.scorers.registry import SCORERS
from ..names import expand, split_names
from ..protocols import PROTOCOLS, get_protocol
from ..protocols._base import Preset, Protocol
from ..site import Site
from .experiment import Experiment, SettingsFile, Tuning, read_settings_file

FIDELITIES = ("corrected", "released", "released_per", "released_el")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """An experiment with what its names stand for.

    Attributes:
        preset: The preset, with the seeds, trials, folds and tests that were asked for.
        scorers: Scorers to test with, in addition to a method's own and the cosine.
        corruptions: Corruptions at severities that are not the default ones, as texts.
        file: File of settings that ``hparams`` names, if it names one.
        left_out: A line for every method that a single seed cannot make.
        frozen: Whether heads alone are trained: as was asked for, or since a data set has features.
        sees_crops: Whether trials measure confidences on crops of validation images though they are not chosen by them.
    """

    experiment: Experiment
    site: Site
    protocol: Protocol
    preset: Preset
    methods: tuple[str, ...]
    datasets: tuple[str, ...]
    scorers: tuple[str, ...]
    corruptions: tuple[str, ...]
    file: SettingsFile | None
    left_out: list[str]
    frozen: bool
    sees_crops: bool

    @property
    def folds(self) -> int | None:
        """Number of folds that was asked for, if it is not the preset's."""
        usual = self.protocol.presets[self.experiment.preset].validate
        return None if self.preset.validate == usual else self.experiment.tuning.folds


def look_up(experiment: Experiment, site: Site) -> Asked:
    """Look up what an experiment names.

    Raises:
        UserError: If a name does not exist, or something is asked for that the preset does not do.
    """
    groups = site.plugin_tests  # imports the plug-ins, whose names are then known
    methods = expand(experiment.methods, site.methods.names)
    datasets = expand(experiment.datasets, site.datasets.names)
    scorers = expand(experiment.scorers, list(SCORERS)) if experiment.scorers else ()
    corruptions = split_names(experiment.corruptions)
    _check_names(experiment, corruptions)
    protocol = get_protocol(experiment.protocol)
    preset = _preset(experiment, protocol.presets[experiment.preset])
    lone = [name for name in methods if preset.seeds < site.methods.method(name).least_seeds]
    left_out = [f"{name}: an ensemble of the models of all seeds; use --seeds 2 or more" for name in lone]
    if lone and "all" not in split_names(experiment.methods):
        raise UserError(f"--seeds 1: {left_out[0]}")
    ranges, apart = dict(preset.tests.corruptions), tuple[str, ...]()
    if experiment.corruptions:
        ranges, apart = corruption_ranges(corruptions, ranges)
    file = None
    if experiment.hparams not in ("tuned", "default", "published"):
        file = read_settings_file(experiment.hparams, site.methods.names)
    tests = replace(preset.tests, groups=tuple(dict.fromkeys([*preset.tests.groups, *groups])), corruptions=ranges)
    return Asked(
        experiment=experiment,
        site=site,
        protocol=protocol,
        preset=replace(preset, tests=tests),
        methods=tuple(name for name in methods if name not in lone),
        datasets=datasets,
        scorers=scorers,
        corruptions=apart,
        file=file,
        left_out=left_out,
        frozen=experiment.frozen,
        sees_crops=not preset.one_study and preset.trials > 0,
    )


def on_dataset(asked: Asked, dataset: str) -> Asked:
    """The same for one data set: on features heads alone are trained; corruptions are those that it can have.

    Raises:
        UserError: If something is asked for that only images have, or only features.
    """
    data = asked.site.dataset(dataset) if issubclass(asked.site.datasets.dataset(dataset), Features) else None
    given = data.corruptions if isinstance(data, Features) else {}
    tests = asked.preset.tests
    of_features = {name for name in tests.corruptions if CORRUPTIONS[name].of == "features"}
    if isinstance(data, Features):
        _check_features(asked, data, of_features)
        kept = {*given, *of_features}
    else:
        for name in (text.partition(":")[0] for text in split_names(asked.experiment.corruptions)):
            if name in of_features:
                raise UserError(f"--corruptions {name}: it is one of features, and data set {dataset!r} has images")
        kept = {*tests.corruptions} - of_features
    ranges = {name: given.get(name, ends) for name, ends in tests.corruptions.items() if name in kept}
    preset = replace(asked.preset, tests=replace(tests, corruptions=ranges))
    sees_crops = asked.sees_crops and (data is None or CROP in given)
    return replace(asked, preset=preset, frozen=asked.frozen or data is not None, sees_crops=sees_crops)


def _check_features(asked: Asked, data: Features, of_features: Collection[str]) -> None:
    """Refuse a network, weights, and corruptions that a data set of features does not have."""
    experiment, dataset, given = asked.experiment, data.name, data.corruptions
    named = split_names(experiment.corruptions)
    for option, value in (("--backbone", experiment.backbone), ("--weights", asked.site.weights)):
        if value not in (None, GIVEN, "none"):
            raise UserError(f"{option} {value}: data set {dataset!r} has features, which no network of images reads")
    wanted = {text.partition(":")[0]: f"--corruptions {text.partition(':')[0]}" for text in named}
    if experiment.tuning.tune_for != "retrieval":
        wanted.setdefault(CROP, f"--tune-for {experiment.tuning.tune_for}")
    for name, option in wanted.items():
        if name != "all" and name not in given and name not in of_features:
            raise UserError(
                f"{option}: data set {dataset!r} has no corrupted_{name} for training and test images;"
                f" `bench embed --corruptions {name}` makes such features"
            )
    for text in named:
        if text.partition(":")[0] in given and ":" in text:
            raise UserError(f"--corruptions {text}: the severities are those of the files of data set {dataset!r}")


def _check_names(experiment: Experiment, corruptions: tuple[str, ...]) -> None:
    """Refuse a name of a protocol, preset, fidelity, scorer or corruption that does not exist."""
    presets = get_protocol(experiment.protocol).presets if experiment.protocol in PROTOCOLS else {}
    scorers = [name for name in split_names(experiment.scorers) if name != "all"]
    asked = experiment.tuning.select_by
    for what, names, known in (
        ("protocol", (experiment.protocol,), PROTOCOLS),
        ("preset", (experiment.preset,), presets),
        ("scorer", scorers if asked is None else [*scorers, asked], SCORERS),
        ("corruption", (text.partition(":")[0] for text in corruptions if text != "all"), CORRUPTIONS),
        ("fidelity", (experiment.fidelity,), FIDELITIES),
    ):
        require_known(what, names, known)


def _preset(experiment: Experiment, usual: Preset) -> Preset:
    """The preset with the seeds, trials and folds that were asked for.

    Raises:
        UserError: If something is asked for that the preset does not do.
    """
    tuning, tunes, named = experiment.tuning, experiment.hparams == "tuned", f"protocol {experiment.protocol!r}"
    if tuning.tune_for != "retrieval":
        reason = ""
        if usual.trials == 0:
            reason = f"{named} holds out no classes and tunes nothing"
        elif not tunes:
            reason = f"--hparams {experiment.hparams} tunes nothing; leave out one of the two"
        elif usual.selection.reranked:
            # Its trials are chosen as in public code, by a re-ranked MAP@R: there is no such confidence.
            reason = f"preset {experiment.preset!r} selects everything by MAP@R, as the public code does"
            reason += "; use another preset"
        if reason:
            raise UserError(f"--tune-for {tuning.tune_for}: {reason}")
    if usual.trials == 0 and tunes:
        raise UserError(
            f"{named} holds out no classes, so there is nothing to tune on: use --hparams default or a file"
        )
    if tuning.select_by is not None and usual.selection.metric == "last":
        raise UserError(f"--select-by {tuning.select_by}: {named} keeps the last epoch and selects nothing")
    if experiment.frozen and experiment.hparams == "published":
        raise UserError(
            "--frozen: published settings are those of trained backbones; use --hparams tuned, default or a file"
        )
    folds = tuning.folds
    if folds is not None and (folds > usual.folds or usual.folds == 1):
        said = f"preset {experiment.preset!r} cuts the development classes into {usual.folds}"
        raise UserError(f"--folds {folds}: {said}")
    seeds = experiment.seeds or (tuning.studies if (tuning.studies or 1) > 1 else None) or usual.seeds
    trials = (experiment.trials or usual.trials) if tunes else 0
    one_study = usual.one_study if tuning.studies is None else tuning.studies == 1
    if tuning.studies is not None and not tunes:
        raise UserError(
            f"--studies {tuning.studies}: --hparams {experiment.hparams} tunes nothing; leave out one of the two"
        )
    if (one_study or not tunes) and (tuning.first_study or tuning.retrain):
        name = "first_study" if tuning.first_study else "retrain"
        raise UserError(f"--set tuning.{name}: here replicates have no tuning studies of their own")
    return replace(
        usual,
        validate=usual.validate if folds is None else tuple(range(folds)),
        seeds=seeds,
        trials=trials if one_study else _of_each(trials, seeds, tuning),
        one_study=one_study,
    )


def _of_each(trials: int, studies: int, tuning: Tuning) -> int:
    """Trials of each of some studies that share a number; a study of one has nothing to choose from.

    Raises:
        UserError: If there are too few, or other studies than replicates.
    """
    if tuning.studies not in (None, studies):
        raise UserError(f"--studies {tuning.studies}: as many as --seeds ({studies}), or 1 for the papers' design")
    each = math.ceil(trials / studies)
    if each == 1:
        raise UserError(
            f"--trials {trials}: every replicate needs two, so --seeds {studies} takes {2 * studies}; or use --hparams"
            f" default, or --studies 1 (one tuning, --seeds trainings at its setting)"
        )
    return each


# Corruptions of the test images


def corruption_ranges(
    named: tuple[str, ...], preset: Mapping[str, tuple[float, float]]
) -> tuple[dict[str, tuple[float, float]], tuple[str, ...]]:
    """Corruptions to test with their ranges of severity, and, as text, those whose severities are not the default.

    They are named by ``NAME``, ``NAME:LEVEL``, ``NAME:LEVEL-LEVEL`` (level k of 1 to 5 is severity k / 5) or
    ``NAME:LOW-HIGH`` (severities in [0, 1], told from levels by a decimal point). ``all`` adds every corruption that is
    not named.
    """
    if not named:
        raise UserError(f"--corruptions names no corruption; use {', '.join(CORRUPTIONS)} or all")
    usual = {name: preset.get(name, (kind.low, kind.high)) for name, kind in CORRUPTIONS.items()}
    given: dict[str, tuple[float, float]] = {}
    for text in named:
        name, colon, bounds = text.partition(":")
        if name in given:
            raise UserError(f"--corruptions {text}: {name} is named twice; one range covers all severities in between")
        if name != "all":
            given[name] = _severities(name, text, bounds) if colon else usual[name]
    every = {**usual, **given}
    # The order in which they were typed sets nothing apart.
    ranges = {name: every[name] for name in CORRUPTIONS if name in given or "all" in named}
    apart = (
        f"{name}:{low}" + (f"-{high}" if high != low else "")
        for name, (low, high) in ranges.items()
        if (low, high) != usual[name]
    )
    return ranges, tuple(apart)


def _severities(name: str, text: str, bounds: str) -> tuple[float, float]:
    first, dash, last = bounds.partition("-")
    ends = (first, last if dash else first)
    # A decimal point distinguishes a severity from a level: 1 is the mildest of five, 1.0 the strongest there is.
    by_level = not any("." in end for end in ends)
    try:
        low, high = (int(end) / LEVELS if by_level else float(end) for end in ends)
        if by_level and not (min(low, high) > 0 and max(low, high) <= 1):
            raise ValueError
    except (ValueError, OverflowError):
        raise UserError(
            f"--corruptions {shortened(text, 60)}: expected a level from 1 to {LEVELS} ({name}:3, {name}:1-4) or"
            f" severities with a decimal point ({name}:0.2-0.8)"
        ) from None
    try:
        check_range(name, low, high)
    except ValueError as error:
        raise UserError(f"--corruptions {text}: {error}") from None
    return low, high
