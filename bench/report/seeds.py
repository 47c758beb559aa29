"""Values of a contender seed by seed, and their mean and standard deviation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, Self

import pandas as pd

from ..protocols.metrics import METRICS, Metric, declared_metric, known_metrics, title_of
from ..protocols.rows import RERANKED
from ..protocols.statistics.paired import summarise
from ..store.records import Role
from .contender import Contender
from .frame import Measured, tested_splits
from .table import GAP, Cell, grouped, number, percent


@dataclass(frozen=True)
class ComparedColumn:
    """A column of the comparison table of methods: a metric on some test images, such as ``test`` or ``test_crop``.

    A variant of the metric is, for instance, ``threshold_val`` for a threshold chosen on validation classes;
    ``reranked`` shows the variant of that name for tests that have it. ``brief`` columns are shown by a terminal,
    ``wide`` ones if it has 100 characters.
    """

    metric: str
    split: str = "test"
    variant: str = ""
    reranked: bool = False
    brief: bool = True
    wide: bool = False

    @cached_property
    def declared(self) -> Metric:
        """Declaration of the metric: its title, unit and direction."""
        return declared_metric(self.metric)

    @property
    def title(self) -> str:
        """Heading of the column: the short title of the metric, with an initial capital."""
        title = title_of(self.metric, short=True)
        return title[:1].upper() + title[1:]

    @property
    def of_confidence(self) -> bool:
        """True if the metric judges a confidence; the column then shows the method's default confidence."""
        return self.declared.of == "confidence"

    @property
    def sign(self) -> int:
        """1 if higher is better, -1 if lower is."""
        return self.declared.sign

    @property
    def percent(self) -> bool:
        """True if the metric is a share, which is printed in percent."""
        return self.declared.unit == "share"

    def text(self, value: float, sign: str = "", brief: bool = False) -> str:
        """A value or difference of the metric as text, with one decimal less if it is to be brief; a dash for nan."""
        return percent(value, 2 - brief, sign) if self.percent else number(value, 3 - brief, sign)


COMPARED = (
    ComparedColumn("recall_at_1", reranked=True),
    ComparedColumn("map_at_r", reranked=True),
    ComparedColumn("r_precision", brief=False),
    ComparedColumn("verification_accuracy", variant="threshold_val", wide=True),
    ComparedColumn("verification_auc", brief=False),
    ComparedColumn("spearman_crop", split="test_crop"),
    ComparedColumn("paired_crop", split="test_crop", brief=False),
    ComparedColumn("aurc", split="test_crop", variant="recall_at_1"),
)
"""Columns of the comparison that every report has."""


def compared() -> tuple[ComparedColumn, ...]:
    """Columns of the comparison: those of every report, and the metrics that tests of plug-ins declare."""
    metrics = (each for name, each in known_metrics().items() if name not in METRICS)
    return (*COMPARED, *(ComparedColumn(each.name, wide=True) for each in metrics if each.better and not each.family))


@dataclass(frozen=True)
class SeedStatistics:
    """Mean and standard deviation (ddof 1) of a metric over seeds, of which ``defined`` have a value.

    A rank correlation with a constant confidence has none. What does not exist is nan. In a table it may be the
    ``best`` of its column (bold), or one of a probabilistic method that ``beats`` every deterministic one (underlined).
    """

    mean: float
    sd: float
    defined: int = 0
    seeds: int = 0
    best: bool = False
    beats: bool = False

    @classmethod
    def of(cls, values: Mapping[int, float]) -> Self:
        """Compute mean and SD of values by seed; nan counts as no value."""
        defined = defined_values(values)
        if not defined:
            return cls(float("nan"), float("nan"), 0, len(values))
        summary = summarise(list(defined.values()))
        return cls(summary.mean, summary.sd, len(defined), len(values))

    def fields(self, name: str) -> dict[str, object]:
        """Columns of a CSV file for a metric of this name."""
        return {f"{name}_mean": self.mean, f"{name}_sd": self.sd, f"{name}_n": self.defined}

    @property
    def complete(self) -> bool:
        """True if every seed has a value."""
        return 0 < self.defined == self.seeds

    def text(self, digits: int, factor: float = 1.0, plus_minus: str = " ± ") -> str:
        """Format as ``mean ± SD``, with ``[defined/seeds]`` if some seeds have no value; ``-`` if none has."""
        if self.mean != self.mean:
            return GAP
        sd = f"{plus_minus}{self.sd * factor:.{digits}f}" if self.sd == self.sd else ""
        missing = f" [{self.defined}/{self.seeds}]" if self.defined < self.seeds else ""
        return f"{self.mean * factor:.{digits}f}{sd}{missing}"

    def cell(self, percent: bool, brief: bool = False) -> Cell:
        """Cell of a table, with its marks and a note if some seeds have no value."""
        some = f"{self.defined} of {self.seeds} seeds have a value" if self.seeds else "not measured"
        note = "" if self.complete else some
        text = self.text((2 if percent else 3) - brief, 100.0 if percent else 1.0, "±" if brief else " ± ")
        return Cell(text, self.mean, bold=self.best, underlined=self.beats, note=note)


def defined_values(values: Mapping[int, float]) -> dict[int, float]:
    """Select the values that are not nan, by seed."""
    return {seed: value for seed, value in values.items() if value == value}


def mean_of(values: Mapping[int, float], at: Collection[int] | None = None) -> float:
    """Mean of the values that are not nan, of all units or of some; nan without any."""
    known = [value for unit, value in values.items() if value == value and (at is None or unit in at)]
    return fmean(known) if known else float("nan")


def seeds_text(seeds: Collection[int], what: str = "seed") -> str:
    """Seeds, or class splits, as text, runs of neighbours in short.

    Example:
        >>> seeds_text({3}), seeds_text([0, 1, 2, 3, 7])
        ('seed 3', 'seeds 0-3, 7')
    """
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"{what}{'s' * (len(seeds) > 1)} {', '.join(parts)}"


@dataclass(frozen=True)
class SeedGroup:
    """Results of all seeds of a contender, sorted by seed."""

    contender: Contender
    tests: tuple[Measured, ...]
    scorer: str

    @classmethod
    def of(cls, tests: Iterable[Measured]) -> Self:
        """Make a group of the tests of one contender."""
        every = tuple(tests)
        return cls(Contender.of_columns(every[0].columns), every, every[0].role.primary_scorer)

    @property
    def role(self) -> Role:
        """What tables need to know about its method."""
        return self.tests[0].role

    @property
    def confidence(self) -> str:
        """Its default confidence."""
        return self.role.default_confidence

    @cached_property
    def tested(self) -> frozenset[int]:
        """Seeds with a test."""
        return frozenset(each.columns.seed for each in self.tests)

    @cached_property
    def trained(self) -> frozenset[str]:
        """Ids of the tested models."""
        return frozenset(each.role.train for each in self.tests)

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.tested)

    def values(
        self, metric: str, split: str, variant: str, confidence: str
    ) -> Iterator[tuple[str, float | None, int, float]]:
        """Scorer, share removed, seed and value of what was measured."""
        for each in self.tests:
            for scorer, fraction, at in each.rows.layout.places.get((metric, split, variant, confidence), ()):
                yield scorer, fraction, each.columns.seed, each.rows.values[at]

    def per_seed(self, metric: str, split: str = "test", variant: str = "", confidence: str = "") -> dict[int, float]:
        """Values of a metric by seed, under the method's own scorer if the metric depends on a scorer."""
        chosen = [each for each in self.values(metric, split, variant, confidence) if each[1] is None]
        if any(scorer != "" for scorer, *_ in chosen):
            chosen = [value for value in chosen if value[0] == self.scorer]
        return {seed: value for *_, seed, value in chosen}

    def only(self, seed: int) -> Self:
        """The results of one seed."""
        return self.of(each for each in self.tests if each.columns.seed == seed)

    def under(self, scorer: str) -> Self:
        """The same results, with another scorer in place of the method's own."""
        if scorer == self.scorer:
            return self
        other = replace(self, scorer=scorer)
        other.__dict__.update(_judged=self._judged, queries=self.queries)  # slow to compute, and the same
        return other

    def scorers(self, metric: str, split: str, confidence: str) -> set[str]:
        """Scorers under which a metric judges a confidence."""
        return {scorer for scorer, *_ in self.values(metric, split, "", confidence)}

    def confidences(self, metric: str, split: str = "") -> set[str]:
        """Names of the confidences that a metric judges, on some images or on any."""
        return {name for place, _, name in self._judged.get(metric, ()) if split in ("", place)}

    def splits(self, metric: str) -> set[str]:
        """Images that a metric was measured on."""
        return {split for split, *_ in self._judged.get(metric, ())}

    @cached_property
    def keys(self) -> tuple[tuple[Any, ...], ...]:
        """What was measured (:data:`~bench.store.records.LAYOUT`), at whichever seeds, sorted for each seed."""
        layouts = dict.fromkeys(each.rows.layout for each in self.tests)
        return tuple(layout.keys[at] for layout in layouts for at in layout.order)

    @cached_property
    def _judged(self) -> dict[str, set[tuple[str, str, str]]]:
        """Images, variants and confidences by metric, but for curves."""
        found: dict[str, set[tuple[str, str, str]]] = {}
        for split, _, confidence, variant, metric, fraction, *_ in self.keys:
            if fraction is None:
                found.setdefault(metric, set()).add((split, variant, confidence))
        return found

    @cached_property
    def queries(self) -> dict[str, float]:
        """Number of queries by whose answers confidences are judged, by split; nan if not known."""
        counts: dict[str, list[int]] = {}
        for layout, times in Counter(each.rows.layout for each in self.tests).items():
            for split, *_, metric, _, count, _ in layout.keys:
                if metric == "confidence_auroc":
                    counts.setdefault(split, []).extend([] if count is None else times * [count])
        return {split: fmean(own) if own else float("nan") for split, own in counts.items()}

    def curve(self, metric: str, split: str, variant: str, confidence: str) -> dict[float, SeedStatistics]:
        """Mean and SD over seeds of each point of a filter-out curve, by share removed."""
        found: dict[float, dict[int, float]] = {}
        for scorer, fraction, seed, value in self.values(metric, split, variant, confidence):
            if fraction is not None and scorer == self.scorer:
                found.setdefault(fraction, {})[seed] = value
        return {fraction: SeedStatistics.of(found[fraction]) for fraction in sorted(found)}

    def column(self, column: ComparedColumn, confidence: str | None = None) -> dict[int, float]:
        """Values of a column of the comparison table, by seed."""
        name = (confidence or self.confidence) if column.of_confidence else ""
        found = self.per_seed(column.metric, column.split, self.variant(column), name)
        return dict.fromkeys(found, float("nan")) if self.constant(name) else found

    def constant(self, confidence: str) -> str:
        """``constant for all N images`` if a confidence, alone or as part of a combination, is; else empty.

        Records have no values of confidences. Of a constant one, every AUROC on test images is 0.5 and no rank
        correlation exists.
        """
        return self._constant.get(confidence.partition("+")[0], "")

    @cached_property
    def _constant(self) -> dict[str, str]:
        aurocs: dict[str, list[float]] = {}
        correlated = set()
        for metric in self._judged:
            for split, variant, name in self._judged[metric] if metric.startswith(CONSTANT) else ():
                known = [value for *_, value in self.values(metric, split, variant, name) if value == value]
                if metric == "confidence_auroc" and split in tested_splits([split]):
                    aurocs.setdefault(name, []).extend(known)
                elif metric != "confidence_auroc" and known:
                    correlated.add(name)
        names = {name for name, values in aurocs.items() if set(values) == {0.5}} - correlated
        if not names:
            return {}
        queries = max((count or 0 for *_, metric, _, count, _ in self.keys if metric == "confidence_auroc"), default=0)
        count = f"{queries:,} " if queries > 0 else ""
        return dict.fromkeys(names, f"constant for all {count}images")

    def gaps(self, column: ComparedColumn, seeds: Collection[int]) -> str:
        """Seeds at which a column of the comparison table has no value, as text; empty if it has all."""
        if column.of_confidence and (constant := self.constant(self.confidence)):
            return f"confidence {constant}"
        defined = defined_values(self.column(column))
        missing = {"no": set(seeds) - self.tested, "no value at": set(seeds) & self.tested - set(defined)}
        unit = self.contender.unit
        return ", ".join(f"{what} {seeds_text(those, unit)}" for what, those in missing.items() if those)

    def variant(self, column: ComparedColumn) -> str:
        """Variant of the metric that a column shows: ``reranked`` if the column prefers it and the tests have it."""
        return RERANKED if column.reranked and self._is_reranked else column.variant

    @cached_property
    def _is_reranked(self) -> bool:
        return any(variant == RERANKED for _, _, _, variant, *_ in self.keys)


CONSTANT = ("confidence_auroc", "spearman_")
"""Starts of the names of the metrics that tell a constant confidence."""


def seed_groups(measured: Iterable[Measured]) -> list[SeedGroup]:
    """Group results by contender, in sorted order."""
    groups = grouped(measured, lambda each: Contender.of_columns(each.columns))
    return [SeedGroup.of(groups[contender]) for contender in sorted(groups)]


def divided(groups: Iterable[SeedGroup], keys: Sequence[str]) -> dict[tuple[str, ...], list[SeedGroup]]:
    """Groups by some attributes of their contenders, in sorted order."""
    found = grouped(groups, lambda group: tuple(str(getattr(group.contender, key)) for key in keys))
    return dict(sorted(found.items()))


def corruptions(groups: Sequence[SeedGroup]) -> pd.DataFrame:
    """Table of MAP@R and of the quality of the default confidence, a row per contender and corruption.

    ``spearman`` (rank correlation with 1 - severity) and ``paired`` (share of images that are less confident once
    corrupted) are nan for clean images. The table is empty if the centre crop is the only corruption.
    """
    every = {group.contender: tested_splits(split for split, *_ in group.keys) for group in groups}
    if not {split for splits in every.values() for split in splits} - {"test", "test_crop"}:
        return pd.DataFrame()
    lines = []
    for group in groups:
        for split in every[group.contender]:
            own, name = group.confidence, "clean" if split == "test" else split.removeprefix("test_")
            measured = {
                "spearman": group.per_seed(f"spearman_{name}", split, confidence=own),
                "paired": group.per_seed(f"paired_{name}", split, confidence=own),
                "aurc": group.per_seed("aurc", split, "recall_at_1", own),
                "map_at_r": group.per_seed("map_at_r", split),
            }
            line: dict[str, object] = {**group.contender._asdict(), "corruption": name, "confidence": own}
            for metric, values in measured.items():
                line |= SeedStatistics.of(values).fields(metric)
            lines.append(line)
    return pd.DataFrame(lines)
