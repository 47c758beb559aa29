"""Regrets of confidences on data sets whose images have a known posterior, as tables show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..errors import printable
from ..protocols.confidence_kinds import OBSERVER, RETRIEVAL_CONFIDENCES, kind_of
from .contender import distinct_labels
from .seeds import SeedGroup, SeedStatistics, divided
from .table import GAP, Cell, percent

REGRET_COLUMNS = (
    "observer\nAUGRC",
    "default",
    "best other\nimage",
    *(name.replace("_", "\n") for name in RETRIEVAL_CONFIDENCES),
)
"""Headings of the texts of a row."""

Regrets = Mapping[str, list[tuple[Cell | str, ...]]]
"""Rows by data set: the label of the method, then a text for each of ``REGRET_COLUMNS``."""


def regrets(groups: Iterable[SeedGroup]) -> Regrets:
    """AUGRC of the observer and regrets of the confidences of every method in percent, means over seeds, by data set.

    Among the image confidences other than the default one, the one with the lowest regret on these test images is
    shown: the most that another image confidence would have given.
    """
    known = [group for group in groups if group.confidences("augrc_regret") or group.confidences("observer_augrc")]
    return {dataset: _rows(own) for (dataset,), own in divided(known, ["dataset"]).items()}


def _rows(groups: Sequence[SeedGroup]) -> list[tuple[Cell | str, ...]]:
    labels = distinct_labels([group.contender for group in groups])
    return [(labels[group.contender], *_cells(group)) for group in groups]


def _cells(group: SeedGroup) -> list[Cell | str]:
    names = sorted(group.confidences("augrc_regret") - {OBSERVER})
    found = {name: _mean(group, "augrc_regret", name) for name in names}
    others = {name: value for name, value in found.items() if kind_of(name) == "image" and name != group.confidence}
    return [
        percent(_mean(group, "observer_augrc", OBSERVER).mean),
        percent(found[group.confidence].mean if group.confidence in found else None),
        _lowest(others),
        *(percent(found[name].mean if name in found else None) for name in RETRIEVAL_CONFIDENCES),
    ]


def _mean(group: SeedGroup, metric: str, confidence: str) -> SeedStatistics:
    return SeedStatistics.of(group.per_seed(metric, variant="recall_at_1", confidence=confidence))


def _lowest(values: Mapping[str, SeedStatistics]) -> Cell | str:
    """Lowest value, and the name of its confidence in a line of its own."""
    defined = {name: value for name, value in values.items() if value.defined}
    if not defined:
        return GAP
    name = min(defined, key=lambda each: defined[each].mean)
    return Cell(f"{percent(defined[name].mean)}\n{printable(name)}")
