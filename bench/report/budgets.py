"""Budgets of the rows of a table: rows that may be ranked together, and rows whose budget is not that of most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

from ..store.pinned import Pinned, split_pinned
from .contender import COMMON, Contender, tuning_text

EPOCHS = "optim.epochs"
"""Fixed setting that is part of a budget."""


class Budget(NamedTuple):
    """Everything but the method that two rows of a data set share, if they may be ranked together."""

    protocol: str
    preset: str
    hparams: str
    trials: int
    pinned: Pinned
    backbone: str
    dim: int
    fidelity: str

    @classmethod
    def of(cls, contender: Contender) -> Self:
        """Budget of a contender (method at one setting), as its records have it."""
        return cls(*(getattr(contender, name) for name in cls._fields))

    @property
    def partial(self) -> str:
        """Images of a partial release as text; empty for whole data sets."""
        return self.pinned.partial


def by_budget(contenders: Iterable[Contender]) -> dict[Budget, list[Contender]]:
    """Divide the contenders of a data set by their budgets, the leading budget first.

    The leading budget is the largest one that at least half of the methods of the data set have: that of the most
    tuning trials, then of the most methods. If no budget has so many methods, it is the one that has most of them.
    Budgets of a single method come last.

    A method with nothing to tune has one trial at any budget: it counts at the largest one that is otherwise its own,
    unless it has another tuned budget. An ensemble whose embeddings are side by side counts at the budget of models of
    its members' size. Fixed hyper-parameters of a method are no part of the budget if it has one row without them, and
    a head that is fitted without an optimiser counts at the budget of those that have one.

    Example:
        >>> a = Contender("p", "s", "d", "a", "", "corrected", "default", 0, Pinned(), "convnet", 64, "")
        >>> rows = [a, a._replace(hparams="tuned", trials=9), a._replace(method="b")]
        >>> [(budget.hparams, [each.method for each in own]) for budget, own in by_budget(rows).items()]
        [('default', ['a', 'b']), ('tuned', ['a'])]
    """
    every = list(contenders)
    found: dict[Budget, list[Contender]] = {}
    for contender, budget in zip(every, _counted(every)):
        found.setdefault(budget, []).append(contender)
    half = len(method_names(every)) / 2

    def place(budget: Budget) -> tuple[bool, bool, int, int, Budget]:
        methods = len(method_names(found[budget]))
        sizes = (-budget.trials, -methods) if methods >= half else (-methods, -budget.trials)
        return methods < 2, methods < half, *sizes, budget

    return {budget: found[budget] for budget in sorted(found, key=place)}


def ranked_together(contenders: Iterable[Contender]) -> list[tuple[str, list[Contender]]]:
    """Contenders of a data set that are ranked together, with the text of their budget, the leading one first.

    If there is one budget only, or one method only, as in a sweep over its settings, they are all of them, and the text
    is empty.

    Example:
        >>> a = Contender("reality_check", "strict", "d", "a", "", "corrected", "default", 0, Pinned(), "net", 64, "")
        >>> rows = [a, a._replace(hparams="tuned", trials=9), a._replace(method="b")]
        >>> [(text, [each.method for each in own]) for text, own in ranked_together(rows)]
        [('default settings', ['a', 'b']), ('tuned, 9 trials', ['a'])]
        >>> len(ranked_together(rows[:2]))
        1
    """
    every = list(contenders)
    budgets = by_budget(every)
    if len(budgets) == 1 or len(method_names(every)) == 1:
        return [("", every)]
    texts = budget_texts(list(budgets))
    return [(texts[budget], own) for budget, own in budgets.items()]


def method_names(contenders: Iterable[Contender]) -> list[str]:
    """Names of the methods of contenders (methods at one setting), sorted; a method has one name in all of its forms.

    Example:
        >>> a = Contender("p", "s", "d", "a", "", "corrected", "default", 0, Pinned(), "convnet", 64, "")
        >>> method_names([a._replace(method="b", base="a"), a, a._replace(fidelity="released")])
        ['a', 'b (a)']
    """
    return sorted({contender.name for contender in contenders})


def _counted(contenders: Sequence[Contender]) -> list[Budget]:
    """Budget at which each contender counts."""
    general = [each._replace(pinned=replace(_without(each.pinned, "method."), differences=())) for each in contenders]
    # Of several rows that differ in fixed hyper-parameters of the method, none but the one without them is the method.
    several = Counter(general)
    every = [one if several[one] == 1 else own for own, one in zip(contenders, general)]
    fitted = [_as_trained(each, every) for each in every]
    return [_largest(each, fitted) for each in fitted]


def _without(pinned: Pinned, group: str) -> Pinned:
    return pinned.without([key for key in pinned.settings if key.startswith(group)])


def _as_trained(contender: Contender, every: Sequence[Contender]) -> Contender:
    """The contender with the fixed settings of the optimiser of others, if it is a head that may have no optimiser."""
    if not contender.base or contender.ensemble or _without(contender.pinned, "optim.") != contender.pinned:
        return contender
    others = [each for each in every if each.name != contender.name]
    # A head of the same name that has such settings has an optimiser.
    if any(each.name == contender.name and each.pinned != contender.pinned for each in every):
        return contender
    if any(each.pinned == contender.pinned for each in others):
        return contender
    alike = Counter(each.pinned for each in others if _without(each.pinned, "optim.") == contender.pinned)
    return contender._replace(pinned=max(sorted(alike), key=lambda pinned: alike[pinned], default=contender.pinned))


def _largest(contender: Contender, every: Sequence[Contender]) -> Budget:
    """Budget of a contender; of an ensemble or of a method with nothing to tune, that of others."""
    own = Budget.of(contender)
    if contender.ensemble:
        sizes = [each.dim for each in every if not each.ensemble and Budget.of(each)._replace(dim=own.dim) == own]
        own = own._replace(dim=max((size for size in sizes if own.dim % size == 0), default=own.dim))
    tuned = [each for each in every if each.hparams == "tuned" and each.trials > 1]
    if not is_untuned(contender) or any(each.label == contender.label for each in tuned):
        return own
    alike = [each.trials for each in tuned if Budget.of(each)._replace(trials=1) == own]
    return own._replace(trials=max(alike, default=1))


def is_untuned(contender: Contender) -> bool:
    """True for a tuned contender (method at one setting) of one trial, as of a method with nothing to tune."""
    return contender.hparams == "tuned" and contender.trials == 1


def budget_texts(budgets: Sequence[Budget]) -> dict[Budget, str]:
    """Texts of the budgets of one data set: the tuning, and the form of the methods unless it is ``corrected``.

    Network and fixed settings are part of the texts if they tell the budgets apart.

    Example:
        >>> first = Budget("reality_check", "strict", "default", 0, Pinned(), "convnet", 64, "corrected")
        >>> list(budget_texts([first, first._replace(hparams="tuned", trials=50, dim=8)]).values())
        ['default settings, convnet/64', 'tuned, 50 trials, convnet/8']
        >>> list(budget_texts([first._replace(hparams="mine.json#0a1b2c3d")]).values())
        ['settings of a file (mine.json)']
    """
    sources = _sources(budgets)
    networks = {(budget.backbone, budget.dim) for budget in budgets}
    _, own = split_pinned([budget.pinned for budget in budgets])
    texts = {}
    for budget, pinned in zip(budgets, own):
        parts = [tuning_text(sources[budget.hparams], budget.trials, budget.protocol, budget.preset)]
        parts += [budget.fidelity] if budget.fidelity != "corrected" else []
        parts += [f"{budget.backbone}/{budget.dim}"] if len(networks) > 1 else []
        parts += [pinned] if pinned else []
        texts[budget] = ", ".join(parts)
    return texts


def _sources(budgets: Sequence[Budget]) -> dict[str, str]:
    """Words for the sources of the hyper-parameters; the hash of a file is named if there are two of one name."""
    found = {budget.hparams for budget in budgets}
    names = Counter(hparams.partition("#")[0] for hparams in found)
    words = {}
    for hparams in found:
        name, is_file, _ = hparams.partition("#")
        file = f"settings of a file ({name if names[name] == 1 else hparams})"
        words[hparams] = file if is_file else hparams if hparams == "tuned" else f"{hparams} settings"
    return words


def unequal_budgets(contenders: Sequence[Contender], seeds: Sequence[int]) -> list[str]:
    """For every row of one budget, how what it took differs from that of most of its rivals; empty if it does not.

    Rivals share the combination of models. A method with nothing to tune has one trial, which is named like any other
    number.

    Example:
        >>> a = Contender("reality_check", "strict", "d", "a", "", "corrected", "tuned", 50, Pinned(), "net", 64, "")
        >>> unequal_budgets([a, a._replace(method="b"), a._replace(method="c", trials=1)], [5, 3, 5])
        ['', '3 seeds, not 5 seeds', 'tuned, 1 trials, not tuned, 50 trials']
    """
    rivals: dict[tuple[object, ...], list[int]] = {}
    for place, contender in enumerate(contenders):
        rivals.setdefault(tuple(getattr(contender, key) for key in COMMON), []).append(place)
    budgets = [_budget(contender, count) for contender, count in zip(contenders, seeds)]
    found = [""] * len(contenders)
    for places in rivals.values():
        usual = [_usual([budgets[place][item] for place in places]) for item in range(len(budgets[places[0]]))]
        for place in places:
            differs = [f"{own}, not {most}" for own, most in zip(budgets[place], usual) if own != most]
            found[place] = "; ".join(differs)
    return found


def _budget(contender: Contender, seeds: int) -> tuple[str, ...]:
    pinned = contender.pinned
    epochs = {key: value for key, value in pinned.settings.items() if key == EPOCHS}
    limits = Pinned(folds=pinned.folds, settings=epochs, partial=pinned.partial).parts
    count = f"{seeds} seed{'s' * (seeds > 1)}"
    return count, contender.tuning, ", ".join(limits) or "whole trainings"


def _usual(texts: Sequence[str]) -> str:
    """The text that most rows have; of equally common ones the last in sorted order, so that equal tables are equal."""
    counts = Counter(texts)
    return max(counts, key=lambda text: (counts[text], text))


def unequal_text(labels: Sequence[str], differences: Sequence[str]) -> str:
    """Names of rows with unequal budgets and how they differ, as text; empty if all are equal.

    Example:
        >>> unequal_text(["a", "b"], ["", "3 seeds, not 5 seeds"])
        'b (3 seeds, not 5 seeds)'
    """
    named: dict[str, list[str]] = {}
    for label, text in zip(labels, differences):
        if text:
            named.setdefault(text, []).append(label)
    return "; ".join(f"{', '.join(names)} ({text})" for text, names in named.items())
