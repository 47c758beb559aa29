"""Results over class splits: means whose unit is the split, and the questions of a report with that unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..protocols.rows import OWN
from ..protocols.statistics import summarise_splits
from ..store.folder import Store
from .compare import NAN, Comparison, decided, over_splits
from .contender import CONTENDER, Contender, by_budget, distinct_labels
from .frame import Results
from .questions import CONFIDENCE, MEASURES, PLAIN, RETRIEVAL, SYSTEM, USES
from .seeds import SeedGroup, SeedStatistics, defined_values, seed_groups
from .table import GAP, Column, Document, Table, cells_table, frame_of, grouped, headings, interval, number
from .views import images_of

MEAN = "mean"
"""Question of a value that is compared with nothing."""

FREE = "free confidence"
"""What the own confidence is compared with: the free one that validation chose on each split."""

ABOUT = (
    "Mean over class splits of the means over their seeds [95 % t-interval of Nadeau and Bengio, with the variance"
    " factor 1/J + test/training classes: a heuristic], at the setting of the data set's own split, which is not among"
    " them. Training and test classes are drawn anew, the validation classes are the same on all splits. Every method"
    " ranks by its own score. Differences are over common splits. Percent."
)
"""Legend of the tables."""

ABOUT_SYSTEMS = (
    "AUGRC of Recall@1 of the plain method with the free confidence that validation chose on each split, minus that of"
    " the method with its own confidence: above 0, the method is the better system. Each side ranks by the scorer that"
    " validation chose. Intervals as for the means: no new draw of the validation classes. p:"
    " t-test of the same heuristic for before the gallery, clean images; Holm: adjusted over the methods of the table."
    " Methods whose confidence orders images as a free one does, on all splits, are left out."
)
"""Legend of the tables of systems."""

BySplit = Mapping[int, SeedGroup]
"""Values over seeds of one contender by the number of the class split."""


def groups_by_split(results: Results) -> dict[Contender, dict[int, SeedGroup]]:
    """Values over seeds of every contender on class splits that are not the data set's own."""
    found: dict[Contender, dict[int, SeedGroup]] = {}
    of_splits = Results.of(results.splits, rescorings=results.rescorings).merged if results.splits else None
    for group in seed_groups(of_splits) if of_splits is not None else ():
        pinned = group.contender.pinned
        found.setdefault(group.contender._replace(pinned=pinned.on_split(0)), {})[pinned.class_seed] = group
    return found


def test_over_train(splits: BySplit, results: Results, *stores: Store) -> float:
    """Test over training classes of the first test of a contender whose training is here; nan if there is none."""
    units = {unit for group in splits.values() for unit in group.rows["unit"].unique()}
    for record in results.splits:
        if record.unit in units and record.test_classes is not None:
            every = (store.trained(record.trained_cell, record.spec.train[0]) for store in stores)
            trained = next(filter(None, every), None)
            if trained is not None:
                return record.test_classes / trained.num_classes
    return NAN


def split_comparisons(store: Store, results: Results) -> list[Comparison]:
    """Comparisons over class splits, and means, which are compared with nothing, by data set and budget."""
    every = groups_by_split(results)
    ratios = {contender: test_over_train(splits, results, store) for contender, splits in every.items()}
    found: list[Comparison] = []
    for of_dataset in grouped(every, lambda contender: contender.dataset).values():
        for contenders in by_budget(of_dataset).values():
            here = {each: every[each] for each in contenders}
            asked = {question: _folded(question.pairs, here, ratios) for question in (CONFIDENCE, PLAIN, SYSTEM)}
            own = decided((row for row in asked[CONFIDENCE] if _is_first(row)), CONFIDENCE)
            gains = {row.contender: row for row in own if row.counts or row.n == 1}
            versus = grouped(decided(asked[PLAIN], PLAIN), lambda row: row.contender)
            for contender in contenders:
                found += _means(contender, every[contender], ratios[contender])
                found += [gains[contender]] if contender in gains else []
                found += versus.get(contender, [])
            systems = grouped(decided(asked[SYSTEM], SYSTEM), lambda row: (row.use, row.column.split))
            found += [row for own in systems.values() for row in own]
    return found


def _is_first(row: Comparison) -> bool:
    return (row.column.split, row.use, row.confidence, row.about["chosen"]) == ("test", "before_gallery", OWN, True)


def _folded(
    pairs: Callable[[Sequence[SeedGroup]], Iterable[Comparison]],
    every: Mapping[Contender, BySplit],
    ratios: Mapping[Contender, float],
) -> list[Comparison]:
    numbers = sorted({number for splits in every.values() for number in splits})
    by_split = {number: pairs([s[number] for s in every.values() if number in s]) for number in numbers}
    return list(over_splits(by_split, ratios.__getitem__))


def _means(contender: Contender, splits: BySplit, ratio: float) -> Iterator[Comparison]:
    for column in RETRIEVAL:
        means = {number: SeedStatistics.of(group.column(column)).mean for number, group in splits.items()}
        if values := defined_values(means):
            found = summarise_splits([*values.values()], ratio)
            yield Comparison(
                question=MEAN,
                contender=contender,
                column=column,
                values=values,
                others={},
                unit="split",
                test_over_train=ratio,
                about={"seeds": max(group.seeds for group in splits.values())},
                mean=found.mean,
                sd=found.sd,
                low=found.ci_low,
                high=found.ci_high,
                n=found.n,
            )


def shown(rows: Iterable[Comparison]) -> list[Comparison]:
    """Comparisons that the table has: systems by the measure that decides, of methods that are not free in disguise."""
    decides = next(iter(MEASURES)).metric
    systems = [row for row in rows if row.question == SYSTEM.name and row.column.metric == decides and row.n]
    learned = {row.contender for row in systems if not row.same_order_as}
    kept = {id(row) for row in systems if row.contender in learned}
    return [row for row in rows if row.question != SYSTEM.name or id(row) in kept]


def _against(row: Comparison) -> str:
    if row.question == CONFIDENCE.name:
        return FREE
    return row.against.label if row.against else ""


def _numbers(row: Comparison) -> dict[str, object]:
    ends = {"ci95_low": row.low, "ci95_high": row.high}
    sure = {"p": row.p, "p_holm": row.p_holm} if row.question == SYSTEM.name else {}
    return {"mean": row.mean, "sd": row.sd, **ends, **sure, "splits": row.n, "seeds": row.about["seeds"]}


def _reason(row: Comparison) -> str:
    if row.question == PLAIN.name and not row.n and row.against:
        return f"no split and seed in common with {row.against.label}"
    return row.why if row.question == SYSTEM.name else ""


NUMBERS: tuple[Column[Comparison], ...] = (
    CONTENDER,
    Column("", fields=lambda row: {"metric": row.column.metric, "split": row.column.split}),
    Column("", fields=lambda row: {"against": _against(row)}),
    Column("", fields=lambda row: {"question": row.use if row.question == SYSTEM.name else ""}),
    Column("", fields=_numbers),
    Column("", fields=lambda row: {"test_over_train": row.test_over_train, "reason": _reason(row)}),
)
"""Columns of the numbers; tables for readers have a column per metric and difference."""


def split_document(found: Sequence[Comparison]) -> Document:
    """Tables of means, differences and systems over class splits, one of each per data set."""
    rows = shown(found)
    tables: list[Table] = []
    for dataset, own in grouped(rows, lambda row: row.contender.dataset).items():
        for of_systems, some in grouped(own, lambda row: row.question == SYSTEM.name).items():
            tables.append((_table_of_systems if of_systems else _table_of_means)(dataset, some))
    return Document("splits", "Class splits", ABOUT, tuple(tables), frame_of(NUMBERS, rows))


def _table_of_means(dataset: str, rows: Sequence[Comparison]) -> Table:
    def title(row: Comparison) -> str:
        against = "free" if _against(row) == FREE else _against(row)
        return f"{row.column.title}{f': own - {against}' if against else ''}"

    names = distinct_labels([*dict.fromkeys(row.contender for row in rows)])
    notes = list(dict.fromkeys(f"{names[row.contender]}: {_reason(row)}." for row in rows if _reason(row)))
    unknown = dict.fromkeys(names[row.contender] for row in rows if row.test_over_train != row.test_over_train)
    notes += [f"No interval, as the numbers of classes are not known: {', '.join(unknown)}."] if unknown else []
    return _lines(f"{dataset}, over class splits", rows, title, ABOUT, notes)


def _table_of_systems(dataset: str, rows: Sequence[Comparison]) -> Table:
    plain = ", ".join(dict.fromkeys(map(_against, rows)))
    ordered = [row for use in USES for row in rows if row.use == use]
    name = f"{dataset}, systems over class splits: AUGRC of {plain} minus the method's"
    return _lines(name, ordered, lambda row: f"{USES[row.use]}, {images_of(row.column.split)}", ABOUT_SYSTEMS)


def _text(row: Comparison) -> str:
    sign = "" if row.question == MEAN else "+"
    return interval(*(row.column.text(value, sign) for value in (row.mean, row.low, row.high)))


def _lines(
    name: str,
    rows: Sequence[Comparison],
    title_of: Callable[[Comparison], str],
    caption: str,
    notes: Sequence[str] = (),
) -> Table:
    """A table with a line per contender and a column per title; one of systems has p-values, too."""
    by_contender = grouped(rows, lambda row: row.contender)
    names = distinct_labels(list(by_contender))
    titles = list(dict.fromkeys(map(title_of, rows)))
    sure = ("p", "p, Holm") if rows[0].question == SYSTEM.name else ()
    lines = []
    for contender, own in by_contender.items():
        texts = {title_of(row): _text(row) for row in own}
        counts = str(max(row.n for row in own)), str(max(row.about["seeds"] for row in own))  # type: ignore[type-var]
        first = next((row for row in own if (row.use, row.column.split) == ("before_gallery", "test")), None)
        p = ((number(first.p, 3), number(first.p_holm, 3)) if first else (GAP, GAP)) if sure else ()
        lines.append((names[contender], *counts, *(texts.get(each, GAP) for each in titles), *p))
    columns = headings("method", "splits", "seeds", *titles, *sure)
    return cells_table(name, columns, lines, notes=tuple(notes), caption=caption)
