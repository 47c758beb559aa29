"""Table of origins: where, when, and with which code and data each result was made."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas as pd

from ..store.records import KEYS, Environment
from ..store.specs import versions_text
from .frame import Results

COLUMNS = (
    *KEYS,
    "unit",
    "rescored",
    "where",
    "commit",
    "code",
    "bench",
    "torch",
    "python",
    "device",
    "finished",
    "data",
    "embeddings",
    "largest_difference",
)
"""Columns of the table."""


def provenance_frame(results: Results) -> pd.DataFrame:
    """Table with one row per test and per rescoring of it (``rescored`` is then the id of the test)."""
    rows: dict[str, dict[str, object]] = {}
    for test in results.tests:
        rows[test.unit] = {
            **dict(test.columns),
            "unit": test.unit,
            "rescored": "",
            "code": versions_text(test.spec.versions),
            **_software(test.environment, test.finished),
            "data": test.manifests.get("test", ""),
            "embeddings": " ".join(digest for _, digest in sorted(test.files.items())),
            "largest_difference": None,
        }
    for each in results.rescorings:
        rows[each.unit] = {
            **rows[each.spec.test],
            "unit": each.unit,
            "rescored": each.spec.test,
            "code": versions_text(each.spec.versions),
            **_software(each.environment, each.finished),
            "embeddings": "float16" if each.spec.float16 else " ".join(each.spec.arrays.values()),
            "largest_difference": each.largest_difference,
        }
    frame = pd.DataFrame(list(rows.values()), columns=list(COLUMNS))
    return frame.sort_values([*KEYS, "rescored", "unit"], kind="stable", ignore_index=True)


def _software(environment: Environment, finished: float) -> dict[str, object]:
    return {
        "where": environment.processor,
        "commit": environment.commit,
        "bench": environment.bench,
        "torch": environment.torch,
        "python": environment.python,
        "device": environment.device,
        "finished": datetime.fromtimestamp(int(finished), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
