"""Tables of everything that was measured: every scorer, every confidence, every corruption."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..protocols.confidence_kinds import kind_of
from .contender import CONTENDER_KEYS
from .frame import tested_splits
from .seeds import SeedGroup, SeedStatistics


def _over_seeds(rows: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    """Mean, SD and number of seeds of every contender by these columns."""
    grouped = rows.groupby([*CONTENDER_KEYS, *columns], sort=True, dropna=False)["value"]
    return grouped.agg(mean="mean", sd="std", seeds="count").reset_index()


def scorers(frame: pd.DataFrame) -> pd.DataFrame:
    """Table of retrieval and verification metrics by contender and scorer, over the seeds that have a value."""
    rows = frame[(frame["scorer"] != "") & (frame["confidence"] == "") & frame["fraction"].isna()]
    return _over_seeds(rows, ("split", "scorer", "variant", "metric"))


def confidences(frame: pd.DataFrame) -> pd.DataFrame:
    """Table of the metrics that judge a confidence, for every confidence of every contender, with its kind."""
    tested = frame["split"].isin(tested_splits(frame["split"]))
    rows = frame[tested & (frame["confidence"] != "") & frame["fraction"].isna()]
    rows = rows.assign(kind=rows["confidence"].map(kind_of))
    return _over_seeds(rows, ("split", "scorer", "confidence", "kind", "variant", "metric"))


def corruptions(groups: Sequence[SeedGroup]) -> pd.DataFrame:
    """Table of MAP@R and of the quality of the default confidence, a row per contender and corruption.

    ``spearman`` (rank correlation with 1 - severity) and ``paired`` (share of images that are less confident once
    corrupted) are nan for clean images. The table is empty if the centre crop is the only corruption.
    """
    tested = tested_splits(split for group in groups for split in set(group.rows["split"]))
    names = [split.removeprefix("test_") for split in tested if split != "test"]
    if not set(names) - {"crop"}:
        return pd.DataFrame()
    lines = []
    for group in groups:
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
