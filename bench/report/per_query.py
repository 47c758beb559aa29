"""Tables of single queries: which ones fail, and what every confidence says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from ..engine.queries import QUERIES
from ..engine.rescoring import kept_files, views_of_queries
from ..errors import UnitFailed
from ..store.folder import Store
from ..store.records import TestRecord

JUDGED = {"recall_at_1": "recall_at_1", "map_at_r": "average_precision"}
"""Values of a query by their names in tests and here; the mean of its average precision at R is MAP@R."""


def query_frame(
    ids: Sequence[str],
    labels: Sequence[object],
    rows: Tensor | None,
    of_images: Mapping[str, Tensor],
    by_scorer: Mapping[str, Mapping[str, Tensor]],
) -> pd.DataFrame:
    """Table with one row per scorer and query.

    Args:
        ids: Names of the N images.
        labels: Their classes.
        rows: Which of them are queries, ``[Q]``; None for all.
        of_images: Confidences of the images by name, each ``[N]``.
        by_scorer: Of each scorer, values and retrieval confidences of the queries, each ``[Q]``; ``answer`` is the row
            of the nearest image.

    Returns:
        Columns ``scorer``, ``id``, ``label``, ``answer`` (name of the nearest image, if known), ``recall_at_1``,
        ``average_precision`` (nan without another image of the class in the gallery), and every confidence, as
        ``confidence.margin``.
    """
    rows = torch.arange(len(ids)) if rows is None else rows
    named = {"id": [ids[row] for row in rows.tolist()], "label": [labels[row] for row in rows.tolist()]}
    tables = []
    for scorer, values in by_scorer.items():
        columns: dict[str, object] = {"scorer": scorer, **named}
        if "answer" in values:
            columns["answer"] = [ids[row] for row in values["answer"].tolist()]
        columns |= {shown: values[name].numpy() for name, shown in JUDGED.items() if name in values}
        of_queries = {name: of[rows] for name, of in of_images.items() if name != "random"}
        of_queries |= {name: of for name, of in values.items() if name not in ("answer", *JUDGED)}
        columns |= {f"confidence.{name}": of.numpy() for name, of in of_queries.items()}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def kept_queries(tests: Iterable[TestRecord], store: Store) -> pd.DataFrame:
    """Table of what tests have kept of every query of the test images, clean and corrupted.

    Tests whose files of queries are not there, because they are archived or side by side, are left out.
    """
    tables = []
    for record in tests:
        try:
            found = kept_files(record, QUERIES, store)
        except UnitFailed:
            continue
        about = {name: getattr(record.columns, name) for name in ("dataset", "method", "seed")}
        for path, _ in found.values():
            for split, view in views_of_queries(record, path).items():
                if view.held_out:
                    continue
                of_scorers = {scorer: view.kept(scorer) for scorer in view.scorers}
                table = query_frame(view.ids, view.labels.tolist(), view.queries, view.confidences, of_scorers)
                tables.append(table.assign(**about, unit=record.unit, split=split))
    if not tables:
        return pd.DataFrame()
    frame = pd.concat(tables, ignore_index=True)
    first = ["dataset", "method", "seed", "unit", "split"]
    return frame[[*first, *(name for name in frame.columns if name not in first)]]
