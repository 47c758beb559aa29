"""Unequal budgets: rows of a table whose seeds, trials, epochs or fidelity are not those of most of their rivals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .contender import COMMON, Contender

LIMITING = ("optim.epochs=", "folds=", "partial release")
"""Starts of the fixed settings that are part of a budget."""


def unequal_budgets(contenders: Sequence[Contender], seeds: Sequence[int]) -> list[str]:
    """For every row of a table, how its budget differs from that of most of its rivals; empty if it does not.

    Rivals share protocol, preset, data set and combination of models. A method with nothing to tune has one trial,
    which is named like any other number: the table cannot tell it from a smaller budget.

    Args:
        contenders: The rows.
        seeds: Number of seeds of each.

    Example:
        >>> a = Contender("p", "s", "d", "a", "", "corrected", "default", 0, "", "convnet", 64, "")
        >>> b, c = a._replace(method="b"), a._replace(method="c", fidelity="released")
        >>> unequal_budgets([a, b, c], [5, 3, 5])
        ['', '3 seeds, not 5 seeds', 'released, not corrected']
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
    limits = [text for text in contender.pinned.split("; ") if text.startswith(LIMITING)]
    count = f"{seeds} seed{'s' * (seeds > 1)}"
    return count, contender.tuning, contender.fidelity, ", ".join(limits) or "whole trainings"


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
