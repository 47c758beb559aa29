"""Contenders (methods at one setting) of a figure, with their labels and looks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from ...store.pinned import split_pinned
from ..contender import CONTENDER_KEYS, Contender, by_contender
from .looks import Look, looks

CURVE_KEYS = tuple(key for key in CONTENDER_KEYS if key != "dataset")
"""Columns that tell the curves of a figure apart."""


def _label(contender: Contender, pinned: str) -> str:
    extra = [contender.hparams] if contender.hparams != "tuned" else []
    extra += [contender.fidelity] if contender.fidelity != "corrected" else []
    extra += [contender.ensemble] if contender.ensemble else []
    # Values that are pinned in every curve tell nothing here, and a long legend leaves no room for the curves.
    extra += [pinned] if pinned else []
    return textwrap.fill(", ".join([contender.method, *extra]), 40, max_lines=2, placeholder=" ..")


class Shown(NamedTuple):
    """A contender in a figure: its number from 0, label in the legend, look, and rows of the table that is drawn."""

    number: int
    label: str
    look: Look
    rows: pd.DataFrame


def labelled(frame: pd.DataFrame) -> Iterator[Shown]:
    """Yield each contender in a table of one data set; labels that would be equal get more detail."""
    groups = list(by_contender(frame, CURVE_KEYS))
    contenders = [Contender.of(rows) for rows in groups]
    _, own = split_pinned([contender.pinned for contender in contenders])
    labels = [_label(contender, pinned) for contender, pinned in zip(contenders, own)]
    if len({(contender.protocol, contender.preset) for contender in contenders}) > 1:
        labels = [f"{label} [{each.protocol}, {each.preset}]" for label, each in zip(labels, contenders)]
    styles = looks([contender.method for contender in contenders])
    for index, (label, contender, rows) in enumerate(zip(labels, contenders, groups)):
        if labels.count(label) > 1:
            budget = f"{contender.trials} trials, {contender.backbone}, d={contender.dim}"
            label += f" ({budget}, base {contender.base or 'none'})"
        yield Shown(index, label, styles[index], rows)


def each_contender(table: pd.DataFrame) -> Iterator[Shown]:
    """Yield each contender of a table with ``index``, ``label`` and ``method``, sorted by index."""
    groups = [rows for _, rows in table.groupby("index", sort=True)]
    styles = looks([str(rows["method"].iloc[0]) for rows in groups])
    for look, rows in zip(styles, groups):
        yield Shown(int(rows["index"].iloc[0]), str(rows["label"].iloc[0]), look, rows)
