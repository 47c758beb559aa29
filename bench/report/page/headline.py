"""The first screen of a page: methods with their own confidences compared with the plain method, as whole systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..contender import distinct_labels
from ..systems import COLUMNS, JUDGED, System, difference_text
from ..table import GAP, Cell, Column, Table, cells_table, frame_of, grouped, headings, label, table_of
from ..verdicts import IMAGES, QUESTIONS, Question
from .answer import WHEN
from .words import Anchors

DIFFERENCE = "AUGRC"
"""Title of the measure that decides."""


class Headline(NamedTuple):
    """Sentences about systems, one for each question, and a matrix of methods and data sets for each kind of images."""

    sentences: tuple[str, ...]
    matrices: tuple[Table, ...]
    tables: tuple[Table, ...]


def headline_of(found: Sequence[System], anchors: Anchors) -> Headline | None:
    """First screen about the systems of the leading budgets; None if the records compare none."""
    leading = [each for each in found if each.leads and each.split in IMAGES and each.outcome]
    if not any(each.counts for each in leading):
        return None
    places = grouped(leading, lambda each: (each.question, each.split))
    tables, ids = [], {}
    for dataset, own in grouped(leading, lambda each: each.contender.dataset).items():
        names = distinct_labels(list(dict.fromkeys(each.contender for each in own)))
        for each in own:
            ids[id(each)] = anchors.of("system", dataset, names[each.contender], each.split, each.question)
        tables.append(_table(dataset, own, [ids[id(each)] for each in own], anchors.of("systems", dataset)))
    sentences = [_sentence(question, leading) for question in QUESTIONS]
    matrices = [
        _matrix(f"{WHEN[question].capitalize()}, {IMAGES[split]}", own, ids)
        for (question, split), own in sorted(places.items(), key=lambda item: list(QUESTIONS).index(item[0][0]))
    ]
    return Headline((*filter(None, sentences), *_holding(leading)), tuple(matrices), tuple(tables))


def _sentence(question: Question, found: Sequence[System]) -> str:
    """How often a method is better and worse than the plain one, by kind of images; empty if none is counted."""
    better, worse = [], []
    for split, images in IMAGES.items():
        cases = [each for each in found if (each.question, each.split) == (question, split) and each.counts]
        if cases:
            wins = [each for each in cases if each.outcome == "better"]
            remark = f"{sum(each.holds for each in wins)} adjusted, {sum(each.survives for each in wins)} over any"
            better.append(f"{len(wins)} of {len(cases)} cases on {images} ({remark})")
            worse.append(f"{sum(each.outcome == 'worse' for each in cases)}")
    if not better:
        return ""
    return (
        f"{WHEN[question].capitalize()}, a method with its own confidence beats the plain method with a free one in"
        f" {' and '.join(better)}; it is worse in {' and in '.join(worse)}."
    )


def _holding(found: Sequence[System]) -> tuple[str, ...]:
    """Sentence that names the methods that are better after the adjustment and over the best free confidence."""
    wins = [each for each in found if each.counts and each.outcome == "better" and each.holds and each.survives]
    if not wins:
        return ("Adjusted and over any free confidence, no method is better on any data set.",)
    by_method = grouped(wins, _name)
    named = [
        f"{method} ({', '.join(dict.fromkeys(each.contender.dataset for each in own))})"
        for method, own in by_method.items()
    ]
    return (f"Adjusted and over any free confidence, better on some images: {', '.join(named)}.",)


def _matrix(title: str, found: Sequence[System], ids: Mapping[int, str]) -> Table:
    datasets = list(dict.fromkeys(each.contender.dataset for each in found))
    rows = []
    for name, own in sorted(grouped(found, _name).items()):
        by_dataset = {each.contender.dataset: each for each in own}
        cells = [_cell(by_dataset[dataset], ids) if dataset in by_dataset else Cell(GAP) for dataset in datasets]
        rows.append([Cell(name), *cells])
    return cells_table(title, headings("method", *datasets), rows, small="small fit")


def _name(each: System) -> str:
    """Method and form; its base is that of the data set."""
    return each.contender._replace(base="").label


def _cell(each: System, ids: Mapping[int, str]) -> Cell:
    difference = each.differences[DIFFERENCE]
    text = f"{each.outcome}{'*' * (each.counts and each.holds)} {100 * difference.mean:+.1f}"
    if each.same_order_as:
        text = f"({each.same_order_as}) {text}"
    return Cell(
        text,
        difference.mean,
        mark=each.outcome if each.counts and each.outcome else "",
        note=f"AUGRC, plain minus method: {difference_text(difference)} points",
        href=ids[id(each)],
    )


def _table(dataset: str, found: Sequence[System], names: Sequence[str], anchor: str) -> Table:
    labels = distinct_labels(list(dict.fromkeys(each.contender for each in found)))
    columns: tuple[Column[System], ...] = (
        label("method", lambda each: labels[each.contender]),
        label("question", lambda each: QUESTIONS[each.question]),
        label("images", lambda each: IMAGES[each.split]),
        *JUDGED,
    )
    title = f"{dataset}: systems, each method with its own confidence against the plain method with a free one"
    return table_of(columns, found, title, place="page", anchors=names, anchor=anchor, csv=frame_of(COLUMNS, found))
