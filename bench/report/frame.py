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
    "backbone",
    "dim",
    "seed",
)
ROW_KEYS = ("split", "scorer", "confidence", "variant", "metric", "fraction")
COLUMNS = (*KEYS, *ROW_KEYS, "value", "n_queries", "n_lone", "unit")
SETTING = tuple(key for key in KEYS if key != "seed")
"""What a group of seeds has in common: one row of a comparison."""

ROLE_COLUMNS = ("unit", "primary_scorer", "default_confidence", "probabilistic", "trainings")


def collect(store: Store) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every value of every finished test, and what role it plays.

    Returns:
        The tidy table in a fixed order, and one row per test unit: its method's own scorer and confidence, whether
        it is probabilistic, and how many trainings its tuning cost, base included.

    Raises:
        ValueError: If two rows share every column but the value.
    """
    rows: list[dict[str, Any]] = []
    roles: list[dict[str, Any]] = []
    for record in store.records("test"):
        context = {key: record["columns"][key] for key in KEYS}
        rows += [{**context, **row, "unit": record["unit"]} for row in record["rows"]]
        roles.append({"unit": record["unit"], **record["role"]})
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame["value"] = frame["value"].astype(float)
    frame["fraction"] = frame["fraction"].astype(float)
    keys = [*KEYS, *ROW_KEYS]
    frame = frame.sort_values([*keys, "unit"], kind="stable", ignore_index=True)
    doubled = frame.duplicated(keys, keep=False)
    if doubled.any():
        first = frame[doubled].iloc[0]
        raise ValueError(
            f"two values for one row: {first[keys].to_dict()} (units {sorted(set(frame[doubled]['unit']))})"
        )
    return frame, pd.DataFrame(roles, columns=list(ROLE_COLUMNS))


def write_metrics(store: Store) -> pd.DataFrame:
    """Write ``metrics.csv`` at the root of the results folder and return the tidy table."""
    frame, _ = collect(store)
    if not frame.empty:
        write_atomic(store.root / "metrics.csv", frame.to_csv(index=False, lineterminator="\n").encode())
    return frame
