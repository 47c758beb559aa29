"""Questions that a report asks: generators of comparisons, each with the family that its p-values are adjusted in.

There are two questions about confidences. Before there is a gallery, a method's own confidence competes with the free
image confidences of the same network. At query time it competes, alone and combined with free ones, with the free
confidences of the ranking and with combinations of free ones. The rival is the best on validation images; a constant is
one, too. Values on test classes never choose it.

A user chooses a network together with a confidence, so whole systems are compared, too: a method with its own
confidence against the plain method with a free one, by the wrong answers among those that each accepts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ..protocols.rows import (
    COMBINED,
    FITTED,
    FITTED_TO_MARGIN,
    FREE_IMAGE_CONFIDENCES,
    MARGIN,
    MARGIN_AND_AGREEMENT,
    OWN,
    RETRIEVAL_CONFIDENCES,
    kind_of,
)
from ..registry import Registry
from .compare import Comparison, Question, Reason, Use, over_units
from .contender import COMMON, Budget, Contender, budget_of, by_budget, method_names
from .frame import tested_splits
from .seeds import ComparedColumn, SeedGroup, compared, defined_values, divided, mean_of
from .table import grouped

METRIC = "confidence_auroc"
"""AUROC of telling right from wrong answers (Recall@1) by the confidence."""

USES: Mapping[Use, str] = {"before_gallery": "before the gallery", "at_query_time": "at query time"}
"""When a confidence is used, with the words of tables."""

IMAGES = {"test": "clean images", "test_crop": "centre crops"}
"""Splits that readers are shown first, with their names in titles; the files have every split."""

CHALLENGERS: Mapping[Use, tuple[str, ...]] = {
    "before_gallery": (OWN,),
    "at_query_time": (OWN, f"{OWN}{COMBINED}", f"{OWN}{FITTED_TO_MARGIN}", f"{OWN}{FITTED}"),
}
"""Names of the confidences of a method that each use allows; a record has the third or the fourth."""

SAME_ORDER = 5e-4
"""Largest difference of the AUROCs of two confidences, at every seed, that are said to order the images alike.

A norm that is the concentration of a distribution is one: its AUROC differs from that of the norm by rounding only.
"""

CONSTANT = "constant"
"""Name of the rival that is as confident of every answer, which a free confidence has to beat on validation images."""

DEFAULTS: Mapping[Use, str] = {"before_gallery": FREE_IMAGE_CONFIDENCES[0], "at_query_time": MARGIN}
"""Free confidence of a network with too few wrong validation answers to choose one by."""

FEW_ERRORS = 100
"""Wrong validation answers below which no confidence is chosen by them."""

SINGLE = ("", "separated")
"""Ways to combine models in which each has embeddings of its own: a system has one network."""

MEASURES: Mapping[ComparedColumn, float] = {
    ComparedColumn("augrc", variant="recall_at_1"): 0.5,
    ComparedColumn("risk_at_coverage", variant="recall_at_1,coverage=0.8"): 1.0,
    ComparedColumn("aurc", variant="recall_at_1"): 1.0,
}
"""What systems are compared by, and the risk of a constant confidence per share of wrong answers."""

DECIDES = next(iter(MEASURES)).metric
"""The measure by which a system is better or worse."""

FORM_METRICS = (
    ComparedColumn("map_at_r"),
    ComparedColumn("recall_at_1"),
    ComparedColumn("spearman_crop", split="test_crop"),
    ComparedColumn(METRIC),
)
"""Metrics in which the two forms of a method are compared; those of a confidence judge the default one of each."""

RETRIEVAL = (ComparedColumn("map_at_r", reranked=True), ComparedColumn("recall_at_1", reranked=True))
"""Metrics of retrieval."""


class Choice(NamedTuple):
    """Confidence of a network that its validation images chose, a note on it, or the reason for having none."""

    name: str = ""
    note: str = ""
    reason: Reason | None = None

    @property
    def remark(self) -> str:
        """The note or the reason, as text."""
        return self.reason.value if self.reason else self.note


def rankings_of(group: SeedGroup) -> tuple[str, ...]:
    """The cosine and the method's own scorer, as far as image confidences were tested under them."""
    names = (OWN, *FREE_IMAGE_CONFIDENCES)
    found = {scorer for name in names for scorer in group.scorers(METRIC, "test", name)} & {"cosine", group.scorer}
    return tuple(sorted(found, key=lambda name: (name != "cosine", name))) or (group.scorer,)


def ranking_of(group: SeedGroup) -> str:
    """Scorer by which a system with this network ranks: that of the best Recall@1 on validation images.

    It is the mean over clean and corrupted ones; the method's own scorer if that is not known.
    """
    means = _recalls(group)
    return max(means, key=lambda scorer: means[scorer]) if len(means) > 1 else group.scorer


def _no_ranking(group: SeedGroup) -> Reason | None:
    """Why the ranking of a system is not known, as in older records that lack Recall@1 on validation images."""
    others = group.scorers("recall_at_1", "test", "") & {"cosine"} - {group.scorer}
    return Reason.NO_RANKING if others and len(_recalls(group)) < 2 else None


def _recalls(group: SeedGroup) -> dict[str, float]:
    """Recall@1 on validation images by ranking, mean over clean and corrupted ones."""
    by_scorer = {scorer: group.under(scorer) for scorer in rankings_of(group)}
    splits = _held_out(group, "recall_at_1")
    return _means(splits, by_scorer, lambda name, split: defined_values(by_scorer[name].per_seed("recall_at_1", split)))


def _means(
    splits: Sequence[str], names: Iterable[str], read: Callable[[str, str], Mapping[int, float]]
) -> dict[str, float]:
    """Means over images and seeds of those that have a value wherever any of them has one."""
    values = {
        name: {(split, seed): value for split in splits for seed, value in read(name, split).items()} for name in names
    }
    places = {place for own in values.values() for place in own}
    return {name: float(np.mean([*own.values()])) for name, own in values.items() if places and own.keys() == places}


def _held_out(group: SeedGroup, metric: str) -> list[str]:
    """Splits of validation images, clean and corrupted, that a metric was measured on."""
    return sorted(split for split in group.splits(metric) if split == "val" or split.startswith("val_"))


def free_confidences(group: SeedGroup, use: Use) -> tuple[str, ...]:
    """Free confidences that a use allows: of images before the gallery, also of the ranking and both later on."""
    kinds = ("image",) if use == "before_gallery" else ("retrieval", "combined")
    names = group.confidences(METRIC)
    first = (*FREE_IMAGE_CONFIDENCES, *RETRIEVAL_CONFIDENCES, MARGIN_AND_AGREEMENT)
    ordered = sorted(names, key=lambda name: (first.index(name) if name in first else len(first), name))
    return tuple(name for name in ordered if kind_of(name) in kinds and name.partition("+")[0] not in (OWN, "random"))


def choose(group: SeedGroup, use: Use, names: Sequence[str] = ()) -> Choice:
    """Choose a confidence of a network by its mean AUROC over clean and corrupted validation images.

    Of its free confidences, unless there are names of its own ones; a constant (0.5) competes with free ones. The
    default is taken if fewer than :data:`FEW_ERRORS` validation answers are wrong, in the mean over seeds.
    """
    splits = _held_out(group, METRIC)
    free = not names
    names = names or free_confidences(group, use)
    if not splits:
        return Choice(reason=_why_no_choice(group)) if free or len(names) > 1 else Choice(names[0])
    default = DEFAULTS[use] if free else names[0]
    errors = sum(_wrong(group, split) for split in splits)
    if errors < FEW_ERRORS and default in names:
        return Choice(default, f"default, {errors:.0f} wrong validation answers")
    # A seed that answers every validation query rightly has no AUROC there, of any confidence.
    means = _means(splits, names, lambda name, split: aurocs(group, split, name))
    if not means:
        return Choice(reason=Reason.NO_CHOICE)
    means = ({CONSTANT: 0.5} if free else {}) | means
    return Choice(max(means, key=lambda name: means[name]))


def _wrong(group: SeedGroup, split: str) -> float:
    """Number of wrong answers, mean over seeds; infinite if older records do not tell."""
    known = defined_values(group.per_seed("recall_at_1", split))
    return group.queries[split] * (1 - float(np.mean([*known.values()]))) if known else float("inf")


def _why_no_choice(group: SeedGroup) -> Reason:
    if group.contender.ensemble == "concatenated":
        return Reason.NO_CLASSES
    trained_on = any(each.startswith("train") for each in group.splits(METRIC))
    return Reason.TRAINED_ON if trained_on else Reason.NO_VALIDATION


def aurocs(group: SeedGroup, split: str, confidence: str) -> dict[int, float]:
    """AUROC of a confidence by seed, if it has one; 0.5 for a constant."""
    if confidence == CONSTANT:
        return dict.fromkeys(sorted(group.tested), 0.5)
    return defined_values(group.per_seed(METRIC, split, confidence=confidence))


def same_order_as(group: SeedGroup, split: str) -> str:
    """The first free image confidence with the AUROC of the own one at every seed; empty if there is none.

    AUROCs of exactly one half, as of embeddings that are all equal, tell nothing about the order.
    """
    own = aurocs(group, split, OWN)
    if all(abs(value - 0.5) <= SAME_ORDER for value in own.values()):
        return ""
    for name in free_confidences(group, "before_gallery"):
        other = aurocs(group, split, name)
        if set(own) == set(other) and all(abs(own[seed] - other[seed]) <= SAME_ORDER for seed in own):
            return name
    return ""


def plain_of(groups: Iterable[SeedGroup]) -> SeedGroup | None:
    """The plain method of one budget: the base of most heads or of the recipe, or else the only deterministic one."""
    single = [group for group in groups if group.contender.ensemble in SINGLE]
    bases = Counter(group.contender.base for group in single if group.contender.base)
    plain = [group for group in single if not group.role.probabilistic and OWN not in group.confidences(METRIC)]
    of_recipe = {base_of_recipe(group.contender.dataset) for group in single}
    name = max(bases or of_recipe, key=lambda base: bases[base], default="")
    named = [group for group in plain if group.contender.method == name]
    return next(iter(named or (plain if len(plain) == 1 else [])), None)


def _plain_methods(groups: Iterable[SeedGroup]) -> dict[Contender, SeedGroup | None]:
    """The plain method of the budget of each contender."""
    found: dict[Contender, SeedGroup | None] = {}
    for own in divided(groups, ["dataset"]).values():
        held = {group.contender: group for group in own}
        for budget, contenders in by_budget(held).items():
            # Methods with one form have it at budgets of public codes, if possible with features as these have them.
            names = method_names(contenders)
            others = sorted(held, key=lambda each: not each.pinned.uncalibrated)
            one_form = [each for each in others if each.name not in names and _has_one_form(each, budget)]
            found |= dict.fromkeys(contenders, plain_of(held[each] for each in (*contenders, *one_form)))
    return found


def _has_one_form(contender: Contender, budget: Budget) -> bool:
    """Whether the form of a contender, which has no base, is all that tells its budget from one of public codes."""
    public = contender._replace(fidelity=budget.fidelity, pinned=replace(contender.pinned, uncalibrated=False))
    forms = contender.fidelity, budget.fidelity
    return not contender.base and forms[0] == "corrected" != forms[1] and budget_of(public) == budget


def base_of_recipe(dataset: str) -> str:
    """Base that the recipe of a data set names; empty for data sets of plug-ins, which are not here."""
    from ..protocols.recipes import recipe_of  # late: data sets import torch

    registry = Registry("datasets")
    return recipe_of(registry.dataset(dataset)).base if dataset in registry.names else ""


def _leading(groups: Sequence[SeedGroup]) -> set[Contender]:
    """Contenders of the leading budget of each data set."""
    of_dataset = divided(groups, ["dataset"]).values()
    return {each for own in of_dataset for each in next(iter(by_budget(group.contender for group in own).values()), ())}


def _confidences(groups: Sequence[SeedGroup]) -> Iterator[Comparison]:
    """Each confidence of a method against the free one that validation chose, by AUROC.

    Under every ranking for which image confidences were tested; that of a system is marked as chosen. A contender
    without a retrieval confidence on test images, as in old records, is left out.
    """
    for own in divided(groups, ["dataset"]).values():
        ranked = [
            (group.under(ranking), ranking == ranking_of(group)) for group in own for ranking in rankings_of(group)
        ]
        choices = [{use: choose(group, use) for use in USES} for group, _ in ranked]
        for split in tested_splits(split for group in own for split in group.splits(METRIC)):
            for (group, chosen), choice in zip(ranked, choices):
                yield from _of_network(group, split, chosen, choice)


def _of_network(group: SeedGroup, split: str, chosen: bool, choices: Mapping[Use, Choice]) -> Iterator[Comparison]:
    names = group.confidences(METRIC, split)
    if not names & set(RETRIEVAL_CONFIDENCES):
        return
    same = same_order_as(group, split) if OWN in names else ""
    column = ComparedColumn(METRIC, split=split)
    for use, challengers in CHALLENGERS.items():
        choice = choices[use]
        free = {name: aurocs(group, split, name) for name in (*free_confidences(group, use), CONSTANT)}
        best = _best(free)
        about = {
            "chosen": chosen,
            "rival_remark": choice.remark,
            "best_on_test": best,
            "best_on_test_mean": mean_of(free.get(best, {})),
        }
        for name in [each for each in challengers if each in names] if OWN in names else [""]:
            own, other = aurocs(group, split, name), aurocs(group, split, choice.name)
            constant = group.constant(name)
            reason = Reason.CONSTANT if constant else None if name else Reason.NO_OWN
            reason = reason or choice.reason or (None if own.keys() & other.keys() else Reason.NO_VALUE)
            yield Comparison(
                question="confidence",
                contender=group.contender,
                column=column,
                values={} if constant else own,
                others=other,
                use=use,
                ranking=group.scorer,
                confidence=name,
                rival=choice.name,
                aurocs=own,
                free=free,
                same_order_as=same,
                reason=reason or _no_ranking(group),
                detail=constant,
                about=about | {"own_mean": mean_of(own)},
            )


def _best(free: Mapping[str, Mapping[int, float]]) -> str:
    """The free confidence with the highest mean, of those that have a value at every seed; empty without any."""
    known = {name: values for name, values in free.items() if name != CONSTANT}
    seeds = {seed for values in known.values() for seed in values}
    means = {name: mean_of(values) for name, values in known.items() if seeds and set(values) == seeds}
    return max(means, key=lambda name: means[name], default="")


def _systems(groups: Sequence[SeedGroup]) -> Iterator[Comparison]:
    """Every method with its own confidence against the plain method of its budget with a free one, by risk."""
    ranked = {group.contender: group.under(ranking_of(group)) for group in groups}
    chosen: dict[tuple[Contender, Use], Choice] = {}
    for contender, plain in _plain_methods(ranked.values()).items():
        group = ranked[contender]
        for use in tuple(USES) if contender.ensemble in SINGLE and OWN in group.confidences(METRIC) else ():
            if plain and (plain.contender, use) not in chosen:
                chosen[plain.contender, use] = choose(plain, use)
            own = choose(group, use, CHALLENGERS[use])
            rival = chosen[plain.contender, use] if plain else Choice()
            constant = group.constant(own.name)
            reason = (own.reason or rival.reason or _no_ranking(group)) if plain else Reason.NO_PLAIN
            free = (*free_confidences(plain, use), CONSTANT) if plain else ()
            for split in tested_splits(group.splits(METRIC)):
                detected = aurocs(group, split, own.name)
                for column in MEASURES:
                    yield Comparison(
                        question="system",
                        contender=contender,
                        against=plain.contender if plain else None,
                        column=replace(column, split=split),
                        values=_risks(group, column, split, own.name),
                        others=_risks(plain, column, split, rival.name),
                        use=use,
                        ranking=group.scorer,
                        confidence=own.name,
                        rival=rival.name,
                        aurocs=detected,
                        free={name: _risks(plain, column, split, name) for name in free},
                        same_order_as=same_order_as(group, split),
                        reason=Reason.CONSTANT if constant else reason or (None if detected else Reason.NO_VALUE),
                        detail=constant,
                        about={
                            "confidence_remark": own.remark,
                            "rival_remark": rival.remark,
                            "with_agreement": f"{OWN}{FITTED}" in group.confidences(METRIC),
                        },
                    )


def rivals(systems: Iterable[Comparison]) -> Iterator[Comparison]:
    """Every method with its own confidence against the plain method with each free image confidence, by AUGRC.

    They follow from comparisons of systems, each of which is against the free confidence that validation chose.
    """
    lasting = (Reason.CONSTANT, Reason.NO_PLAIN, Reason.NO_VALUE, Reason.NO_RANKING)  # the others are of the choice
    for row in systems:
        if row.use == "before_gallery" and row.column.metric == DECIDES:
            reason = row.reason if row.reason in lasting else None
            for name in FREE_IMAGE_CONFIDENCES:
                if row.free.get(name):
                    yield replace(row, question="rival", rival=name, others=row.free[name], free={}, reason=reason)


def _risks(group: SeedGroup | None, column: ComparedColumn, split: str, name: str) -> dict[int, float]:
    """Values of a risk by seed, if there is such a confidence."""
    if group is None or not name:
        return {}
    if name == CONSTANT:
        factor = MEASURES[column]
        return {seed: factor * (1 - value) for seed, value in group.per_seed("recall_at_1", split).items()}
    return defined_values(group.per_seed(column.metric, split, column.variant, name))


def pairs_of(groups: Iterable[SeedGroup], names: Sequence[str] = ()) -> Iterator[Comparison]:
    """Every two contenders that share :data:`~bench.report.contender.COMMON`, by each column of the comparison.

    The one that comes later is compared with the first. With names, ``names[0]`` is the first of every pair.
    """
    for own in divided(groups, COMMON).values():
        # A name that is given twice must not enlarge the family that p-values are adjusted over.
        named = [group for name in dict.fromkeys(names) for group in own if group.contender.method == name]
        couples = ((other, first) for first, other in combinations(named if names else own, 2))
        wanted = (each for each in couples if not names or each[1].contender.method == names[0])
        yield from paired("pair", wanted, compared())


def paired(
    question: str, couples: Iterable[tuple[SeedGroup, SeedGroup]], columns: Sequence[ComparedColumn]
) -> Iterator[Comparison]:
    """Compare contenders with others by columns of the comparison, each side with its own scorer and confidence."""
    read: dict[tuple[int, ComparedColumn], dict[int, float]] = {}
    for couple in couples:
        for column in columns:
            for each in couple:
                if (id(each), column) not in read:
                    read[id(each), column] = defined_values(each.column(column))
            own, others = (read[id(each), column] for each in couple)
            if own or others:
                yield Comparison(
                    question=question,
                    contender=couple[0].contender,
                    against=couple[1].contender,
                    column=column,
                    values=own,
                    others=others,
                    about={
                        "variant": couple[0].variant(column),
                        "left_out": _left_out(column, *zip(couple, (own, others))),
                    },
                )


def _left_out(column: ComparedColumn, *sides: tuple[SeedGroup, Mapping[int, float]]) -> str:
    """Seeds that only one side has, and why, as text."""
    every = {seed for _, values in sides for seed in values}
    if all(values.keys() == every for _, values in sides):
        return ""
    gaps = [(group.contender.label, group.gaps(column, every)) for group, _ in sides]
    return "; ".join(f"{name}: {gap}" for name, gap in gaps if gap)


def _with_base(groups: Sequence[SeedGroup]) -> Iterator[Comparison]:
    """Each two-stage method against the very networks that its heads were trained on."""
    by_contender = {group.contender: group for group in groups}
    for head in groups:
        # Budgets and pinned values of head and base may differ.
        trained_on = {each.role.base_train for each in head.tests} if head.contender.base else set()
        bases = [group for group in groups if trained_on & group.trained]
        parts = [each for group in bases for each in group.tests if each.role.train in trained_on]
        if not parts:
            continue
        # Its networks at seeds that have no head, so that these are named.
        alike = by_contender[Contender.of_columns(parts[0].columns)].tests
        base = SeedGroup.of([*parts, *(each for each in alike if each.columns.seed not in head.tested)])
        yield from paired("base", [(head, base)], compared())


def _forms(groups: Sequence[SeedGroup]) -> Iterator[Comparison]:
    """Each method as its paper's equations say against what public code computes, at the same setting."""
    by_contender = {group.contender: group for group in groups}
    for contender, released in by_contender.items():
        corrected = by_contender.get(contender._replace(fidelity="corrected"))
        if contender.fidelity != "corrected" and corrected is not None:
            yield from paired("form", [(corrected, released)], FORM_METRICS)


def _heads(groups: Sequence[SeedGroup]) -> Iterator[Comparison]:
    """Each head on frozen features of one budget against the network as it is, which it has to beat.

    The reference is a method that trains nothing (:attr:`bench.methods.Method.reference_for_frozen`).
    """
    for own in divided(groups, COMMON).values():
        references = [group for group in own if group.role.reference]
        for column in RETRIEVAL if references else ():
            means = [mean_of(group.column(column)) for group in references]
            best = references[means.index(max(means))]
            yield from paired("head", [(group, best) for group in own if not group.role.reference], [column])


def _against_plain(groups: Sequence[SeedGroup]) -> Iterator[Comparison]:
    """Each contender of one budget against the plain method, by retrieval."""
    plain = plain_of(groups)
    for group in groups:
        if plain and group.contender != plain.contender and group.contender.common == plain.contender.common:
            yield from paired("plain", [(group, plain)], RETRIEVAL)


def _of_units(
    pairs: Callable[[Sequence[SeedGroup]], Iterable[Comparison]], groups: Sequence[SeedGroup]
) -> Iterator[Comparison]:
    """Comparisons of systems, in which validation images choose ranking and confidences: once for seeds of a setting.

    A replicate is a whole pipeline: its own validation images choose for its own network.
    """
    leading = _leading(groups)
    of_setting = [group for group in groups if group.contender.replicate != "study"]
    tuned = [group for group in groups if group.contender.unit == "replicate"]
    numbers = sorted({number for group in tuned for number in group.tested})
    rows = {number: pairs([group.only(number) for group in tuned if number in group.tested]) for number in numbers}
    found = list(over_units(rows, "replicate"))
    if pairs is _systems:  # where the plain method lacks a replicate, another one must not take its place
        plain = _plain_methods(tuned)
        found = against_plain(found, {each: of.contender if of else None for each, of in plain.items()})
    for row in (*pairs(of_setting), *found):
        row.leads = row.contender in leading
        if row.unit == "replicate" and "best_on_test" in row.about:
            best = _best(row.free)
            means = {"own_mean": mean_of(row.aurocs or {}), "best_on_test_mean": mean_of(row.free.get(best, {}))}
            row.about = {**row.about, **means, "best_on_test": best}
        yield row


def against_plain(rows: Sequence[Comparison], plain: Mapping[Contender, Contender | None]) -> list[Comparison]:
    """Comparisons with the plain method of a contender; those with another count only where there is none."""
    found = grouped(rows, lambda row: (row.contender, row.column, row.use)).values()
    return [next((row for row in own if row.against == plain[row.contender]), own[0]) for own in found]


def _family(row: Comparison) -> tuple[object, ...]:
    """Pairs of a data set, protocol, preset and combination of models, by metric and images."""
    return row.contender.common, row.column.metric, row.column.split


def _case(row: Comparison) -> tuple[object, ...]:
    """Cases of a data set, a use and a kind of images, those of its leading budget together."""
    place: object = (row.against, row.contender.fidelity) if row.against else row.contender.common
    place = row.contender.dataset if row.leads else place
    about = {"confidence": row.confidence, "rival": row.rival}.get(row.question, row.column.metric)
    return row.use, row.column.split, about, place, row.about.get("chosen"), row.unit


PAIR = Question("pair", pairs_of, _family, adjusted=True)
BASE = Question("base", _with_base, _family, adjusted=True)
FORM = Question("form", _forms, _family, adjusted=True)
HEAD = Question("head", _heads, _family, adjusted=True)
PLAIN = Question("plain", _against_plain, _family)
CONFIDENCE = Question("confidence", partial(_of_units, _confidences), _case)
SYSTEM = Question("system", partial(_of_units, _systems), _case, regions=False)
"""A region of AUGRC would hide most of what there is to gain on a data set with few wrong answers."""

RIVAL = Question("rival", lambda groups: rivals(SYSTEM.pairs(groups)), _case, regions=False)

QUESTIONS = (SYSTEM, RIVAL, CONFIDENCE, PAIR, BASE, FORM)
"""Questions of every report over seeds, of all groups at once; :data:`HEAD` and :data:`PLAIN` are of one budget."""

OVER_SPLITS = (CONFIDENCE, PLAIN, SYSTEM)
"""Questions over class splits, of the groups of one budget."""
