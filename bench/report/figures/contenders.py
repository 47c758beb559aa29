"""Contenders (methods at one setting) of a figure, with labels for its legend."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pandas as pd

from ..contender import CONTENDER_KEYS, Contender, by_contender, split_pinned

CURVE_KEYS = tuple(key for key in CONTENDER_KEYS if key != "dataset")
"""Columns that tell the curves of a figure apart."""


def _label(contender: Contender, pinned: str) -> str:
    extra = [contender.hparams] if contender.hparams != "tuned" else []
    extra += [contender.fidelity] if contender.fidelity != "corrected" else []
    extra += [contender.ensemble] if contender.ensemble else []
    # Values that are pinned in every curve tell nothing here, and a long legend leaves no room for the curves.
    extra += [pinned] if pinned else []
    return textwrap.fill(", ".join([contender.method, *extra]), 40, max_lines=2, placeholder=" ..")


def labelled(frame: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame]]:
    """Yield ``(index, label, rows)`` of each contender (method at one setting) in a table of one data set.

    The index numbers the contenders from 0. The label is for the legend; labels that would be equal get more detail,
    such as backbone and embedding size.

    Args:
        frame: Table with the columns that tell contenders apart, such as method, preset and pinned settings.
    """
    groups = list(by_contender(frame, CURVE_KEYS))
    contenders = [Contender.of(rows) for rows in groups]
    _, own = split_pinned([contender.pinned for contender in contenders])
    labels = [_label(contender, pinned) for contender, pinned in zip(contenders, own)]
    if len({(contender.protocol, contender.preset) for contender in contenders}) > 1:
        labels = [f"{label} [{each.protocol}, {each.preset}]" for label, each in zip(labels, contenders)]
    for index, (label, contender, rows) in enumerate(zip(labels, contenders, groups)):
        if labels.count(label) > 1:
            budget = f"{contender.trials} trials, {contender.backbone}, d={contender.dim}"
            label += f" ({budget}, base {contender.base or 'none'})"
        yield index, label, rows


def each_contender(table: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame]]:
    """Yield ``(index, label, rows)`` of each contender (method at one setting) of a table, sorted by index.

    Args:
        table: Table with a column ``index`` that numbers the contenders, and a column ``label`` for the legend.
    """
    for _, rows in table.groupby("index", sort=True):
        yield int(rows["index"].iloc[0]), str(rows["label"].iloc[0]), rows
