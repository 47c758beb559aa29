"""The tidy table: one value per row, a pure function of the test records."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..store import Store, write_atomic

KEYS = (
    "protocol",
    "preset",
    "dataset",
    "method",
    "base",
    "fidelity",
    "hparams",
    "trials",
    "pinned",
    "backbone",
    "dim",
    "ensemble",
    "seed",
)
ROW_KEYS = ("split", "scorer", "confidence", "variant", "metric", "fraction")
COLUMNS = (*KEYS, *ROW_KEYS, "value", "n_queries", "n_lone", "unit")
SETTING = tuple(key for key in KEYS if key != "seed")
"""What a group of seeds has in common: one row of a comparison."""

ROLE_COLUMNS = ("unit", "primary_scorer", "default_confidence", "probabilistic", "trainings", "train", "base_train")


def collect(store: Store) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every value of every finished test, and what role it plays.

    Where a setting was run again with other code, the later results stand for it (:func:`superseded` counts).

    Returns:
        The tidy table in a fixed order, and one row per test unit: its method's own scorer and confidence, whether
        it is probabilistic, and how many trainings its tuning cost, base included.
    """
    rows: list[dict[str, Any]] = []
    roles: list[dict[str, Any]] = []
    for record in latest_tests(store):
        context = {key: record["columns"][key] for key in KEYS}
        rows += [{**context, **row, "unit": record["unit"]} for row in record["rows"]]
        roles.append({"unit": record["unit"], **record["role"]})
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame["value"] = frame["value"].astype(float)
    frame["fraction"] = frame["fraction"].astype(float)
    keys = [*KEYS, *ROW_KEYS]
    return frame.sort_values(keys, kind="stable", ignore_index=True), pd.DataFrame(roles, columns=list(ROLE_COLUMNS))


def superseded(store: Store) -> int:
    """Number of test records that a later one of the same setting (other code, other corruptions) stands in for."""
    return sum(1 for _ in store.records("test")) - len(_chosen(store))


def latest_tests(store: Store) -> list[dict[str, Any]]:
    """Test records that count: of each setting the latest."""
    return list(_chosen(store).values())


def _chosen(store: Store) -> dict[tuple[Any, ...], dict[str, Any]]:
    chosen: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in store.records("test"):
        key = tuple(record["columns"][name] for name in KEYS)
        if key not in chosen or record["finished"] > chosen[key]["finished"]:
            chosen[key] = record
    return chosen


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON has them: what has no value is null there and NaN here."""
    return [
        {str(key): None if isinstance(value, float) and value != value else value for key, value in line.items()}
        for line in frame.to_dict("records")
    ]


def write_metrics(store: Store) -> pd.DataFrame:
    """Write ``metrics.csv`` at the root of the results folder and return the tidy table."""
    frame, _ = collect(store)
    if not frame.empty:
        write_atomic(store.root / "metrics.csv", frame.to_csv(index=False, lineterminator="\n").encode())
    return frame
