"""Table of origins: who made each result, where, when, and with which code and data."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas as pd

from ..store.folder import Store
from ..store.marks import read_marks, state_of
from ..store.records import KEYS, Environment
from ..store.specs import Cell, Kind, versions_text
from .frame import Results

COLUMNS = (
    *KEYS,
    "unit",
    "rescored",
    "state",
    "by",
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


def provenance_frame(store: Store, results: Results) -> pd.DataFrame:
    """Table with one row per test and per rescoring of it.

    The columns are those that identify the experiment, the id of the unit (``unit``) and, for a rescoring, that of its
    test (``rescored``); ``state`` (``own``, ``claimed`` or ``verified``), ``by``, ``where`` and ``commit``; the
    versions of the code and of the software; the time of the end (UTC); the SHA-256 of the test images (``data``) and
    of the embeddings, or ``float16`` for a copy; and how far a rescoring is from the values of its test.

    Args:
        store: The results folder.
        results: Its finished tests.
    """
    marks = read_marks(store.root)
    rows: dict[str, dict[str, object]] = {}
    for test in results.tests:
        rows[test.unit] = {
            **dict(test.columns),
            "unit": test.unit,
            "rescored": "",
            "state": state_of(store, test, marks),
            **_origin(store, test.cell, "test", test.unit, test.environment),
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
            **_origin(store, each.cell, "rescore", each.unit, each.environment),
            "code": versions_text(each.spec.versions),
            **_software(each.environment, each.finished),
            "embeddings": "float16" if each.spec.float16 else " ".join(each.spec.arrays.values()),
            "largest_difference": each.largest_difference,
        }
    frame = pd.DataFrame(list(rows.values()), columns=list(COLUMNS))
    return frame.sort_values([*KEYS, "rescored", "unit"], kind="stable", ignore_index=True)


def _origin(store: Store, cell: Cell, kind: Kind, unit: str, environment: Environment) -> dict[str, object]:
    packed = store.provenance(cell, kind, unit)
    if packed is None:
        return {"by": "", "where": environment.processor, "commit": environment.commit}
    return {"by": packed.by, "where": packed.where, "commit": packed.commit}


def _software(environment: Environment, finished: float) -> dict[str, object]:
    return {
        "bench": environment.bench,
        "torch": environment.torch,
        "python": environment.python,
        "device": environment.device,
        "finished": datetime.fromtimestamp(int(finished), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
