"""Tables of everything that was measured: every scorer, every confidence, every corruption."""

from __future__ import annotations

import pandas as pd

from ..protocols.confidence_kinds import kind_of
from .contender import CONTENDER_KEYS
from .frame import tested_splits
from .seeds import SeedGroup, SeedStatistics, seed_groups


def _over_seeds(rows: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    """Mean, SD and number of seeds of every contender by these columns."""
    grouped = rows.groupby([*CONTENDER_KEYS, *columns], sort=True, dropna=False)["value"]
    return grouped.agg(mean="mean", sd="std", seeds="count").reset_index()


def scorers(frame: pd.DataFrame) -> pd.DataFrame:
    """Table of retrieval and verification metrics by contender (method at one setting) and scorer (similarity).

    Args:
        frame: Tidy table of results (``metrics.csv``), one row per measured value: method, setting, metric, value and
            so on.

    Returns:
        One row per contender (:class:`~bench.report.contender.Contender`), ``split`` (test images), ``scorer``,
        ``variant`` and ``metric``, with the columns ``mean`` and ``sd`` over seeds, and ``seeds`` (number of seeds that
        have a value).
    """
    rows = frame[(frame["scorer"] != "") & (frame["confidence"] == "") & frame["fraction"].isna()]
    return _over_seeds(rows, ("split", "scorer", "variant", "metric"))


def confidences(frame: pd.DataFrame) -> pd.DataFrame:
    """Table of the metrics that judge a confidence, for every confidence of every contender (method at one setting).

    Args:
        frame: Tidy table of results (``metrics.csv``), one row per measured value: method, setting, metric, value and
            so on.

    Returns:
        One row per contender (:class:`~bench.report.contender.Contender`), ``split`` (test images), ``scorer``
        (similarity), ``confidence``, ``variant`` and ``metric``, with its ``kind``
        (:func:`~bench.protocols.confidence_kinds.kind_of`), the columns ``mean`` and ``sd`` over seeds, and ``seeds``
        (number of seeds that have a value).
    """
    tested = frame["split"].isin(tested_splits(frame))
    rows = frame[tested & (frame["confidence"] != "") & frame["fraction"].isna()]
    rows = rows.assign(kind=rows["confidence"].map(kind_of))
    return _over_seeds(rows, ("split", "scorer", "confidence", "kind", "variant", "metric"))


def corruptions(frame: pd.DataFrame, roles: pd.DataFrame) -> pd.DataFrame:
    """Table of MAP@R and of the quality of the confidence, a row per contender (method at one setting) and corruption.

    Values are those of the method's own scorer (similarity) and default confidence. The table is empty if the centre
    crop is the only corruption.

    Args:
        frame: Tidy table of results (``metrics.csv``), one row per measured value: method, setting, metric, value and
            so on.
        roles: Table with one row per test: its id (``unit``) and its :class:`~bench.store.records.Role` (the method's
            own scorer, default confidence and so on).

    Returns:
        Columns of a :class:`~bench.report.contender.Contender`, ``corruption`` (its name, or ``clean``), ``confidence``
        (its name), and for each of four metrics the mean over seeds (``_mean``), the SD (``_sd``) and the number of
        seeds that have a value (``_n``): ``spearman`` (rank correlation of confidence and 1 - severity; nan for clean
        images), ``paired`` (share of images that are less confident once corrupted; nan for clean images), ``aurc``
        (area under the risk-coverage curve, with 1 - Recall@1 as risk) and ``map_at_r``.
    """
    names = [split.removeprefix("test_") for split in tested_splits(frame) if split != "test"]
    if not set(names) - {"crop"}:
        return pd.DataFrame()
    lines = []
    for group in seed_groups(frame.merge(roles, on="unit")):
        splits = set(group.rows["split"])
        for corruption in ("clean", *names):
            split = "test" if corruption == "clean" else f"test_{corruption}"
            if split in splits:
                lines.append(_corrupted(group, corruption, split))
    return pd.DataFrame(lines)


def _corrupted(group: SeedGroup, corruption: str, split: str) -> dict[str, object]:
    own = group.confidence
    measured = {
        "spearman": group.per_seed(f"spearman_{corruption}", split, confidence=own),
        "paired": group.per_seed(f"paired_{corruption}", split, confidence=own),
        "aurc": group.per_seed("aurc", split, "recall_at_1", own),
        "map_at_r": group.per_seed("map_at_r", split),
    }
    line: dict[str, object] = {**group.contender._asdict(), "corruption": corruption, "confidence": own}
    for name, values in measured.items():
        statistics = SeedStatistics.of(values)
        line |= {f"{name}_mean": statistics.mean, f"{name}_sd": statistics.sd, f"{name}_n": statistics.defined}
    return line
