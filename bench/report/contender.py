"""Contenders: methods as they compete in tables, each at one setting with its seeds, and their budgets.

Contenders of one budget may be ranked together; tables name those whose budget is not that of most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

from ..store.records import Columns
from ..store.specs import Pinned, split_pinned
from .table import Column, grouped, label

ONE_SETTING = "At one tuned setting of each method; another tuning may turn an outcome round."
"""Remark on results of one study."""

EPOCHS = "optim.epochs"
"""Fixed setting that is part of a budget."""


class Contender(NamedTuple):
    """A method at one setting, as it competes in tables: everything that its results share except the seed.

    ``base`` is the method of the model that a head is trained on, ``hparams`` the source of the hyper-parameters, such
    as ``tuned`` or ``published``, ``pinned`` what the user fixed. ``ensemble`` is how several models are combined:
    ``separated`` (mean of their results), ``concatenated`` (embeddings side by side), or ``seeds`` of a base.
    ``replicate`` is ``study`` if each of the results has a tuning study of its own.
    """

    protocol: str
    preset: str
    dataset: str
    method: str
    base: str
    fidelity: str
    hparams: str
    trials: int
    pinned: Pinned
    backbone: str
    dim: int
    ensemble: str
    replicate: str = "seed"

    @classmethod
    def of_columns(cls, columns: Columns) -> Self:
        """Read a contender from the columns of a test."""
        return cls(*(getattr(columns, name) for name in cls._fields))

    @property
    def common(self) -> tuple[str, ...]:
        """What two contenders have in common if they are compared: :data:`COMMON`."""
        return tuple(getattr(self, name) for name in COMMON)

    @property
    def name(self) -> str:
        """Name of the method, with the base that its head is trained on in parentheses; one-stage methods have none."""
        return f"{self.method} ({self.base})" if self.base else self.method

    @property
    def label(self) -> str:
        """Name of the method, such as ``METHOD (BASE) [FIDELITY]``; the form is left out if it is ``corrected``."""
        return self.name if self.fidelity == "corrected" else f"{self.name} [{self.fidelity}]"

    @property
    def network(self) -> str:
        """Text ``BACKBONE/DIM``, followed by ``sep.``, ``conc.`` or ``ens.`` if several models are tested together."""
        suffix = {"separated": " sep.", "concatenated": " conc.", "seeds": " ens."}.get(self.ensemble, "")
        return f"{self.backbone}/{self.dim}{suffix}"

    @property
    def tuning(self) -> str:
        """Source of the hyper-parameters as text, such as ``tuned, 50 trials``, with an unusual protocol."""
        return tuning_text(self, self.hparams)

    @property
    def is_one_setting(self) -> bool:
        """Whether one study chose the setting of all its results, which then say nothing of other tunings."""
        return self.hparams == "tuned" and self.trials > 1 and self.unit == "seed"

    @property
    def unit(self) -> Literal["replicate", "seed"]:
        """What its results on one class split are over."""
        return "replicate" if self.replicate == "study" else "seed"


def tuning_text(of: Contender, source: str) -> str:
    """Source of hyper-parameters as text; protocol and preset follow in brackets unless they are the default ones.

    Example:
        >>> a = Contender("reality_check", "strict", "d", "a", "", "corrected", "tuned", 50, Pinned(), "net", 64, "")
        >>> tuning_text(a, "tuned"), tuning_text(a._replace(replicate="study", trials=10), "tuned")
        ('tuned once, 50 trials', 'tuned anew, 10 trials each')
        >>> tuning_text(a._replace(protocol="per", hparams="default"), "default")
        'default [per, strict]'
    """
    protocol, preset = of.protocol, of.preset
    if of.hparams == "tuned":
        each = of.replicate == "study"
        source = (
            f"{source} {'anew' if each else 'once'}, {of.trials} trial{'' if of.trials == 1 else 's'}{' each' * each}"
        )
    return source if (protocol, preset) == ("reality_check", "strict") else f"{source} [{protocol}, {preset}]"


CONTENDER_KEYS = Contender._fields
"""Columns of a :class:`Contender`; with the seed, they are the keys of a test."""
COMMON = ("protocol", "preset", "dataset", "ensemble", "replicate")
"""Columns in which two contenders agree if they are compared."""

CONTENDER: Column[Any] = Column("", fields=lambda row: row.contender._asdict())
"""Columns of CSV files that say which contender a row is of."""
LABELS: tuple[Column[Any], ...] = (
    label("method", lambda row: row.contender.label),
    label("network", lambda row: row.contender.network),
    label("tuning", lambda row: row.contender.tuning),
    label("pinned", lambda row: str(row.contender.pinned)),
)
"""Columns of tables for readers that say which contender a row is of."""

METHOD, NETWORK, TUNING, PINNED = LABELS


def distinct_labels(contenders: Sequence[Contender]) -> dict[Contender, str]:
    """Names of contenders that tell them apart: labels, with the setting if several have the same label."""
    labels = [contender.label for contender in contenders]
    _, own = split_pinned([contender.pinned for contender in contenders])
    return {
        each: ", ".join(filter(None, [each.label, each.network, each.tuning, pinned]))
        if labels.count(each.label) > 1
        else each.label
        for each, pinned in zip(contenders, own)
    }


Budget = Contender
"""Everything but the method that two rows of a data set share, if they may be ranked together; the rest is empty."""


def budget_of(contender: Contender) -> Budget:
    """Budget of a contender (method at one setting), as its records have it."""
    return contender._replace(dataset="", method="", base="", ensemble="")


def by_budget(contenders: Iterable[Contender]) -> dict[Budget, list[Contender]]:
    """Divide the contenders of a data set by their budgets, the leading budget first.

    The leading budget is the largest one that at least half of the methods of the data set have: with replicates that
    are tuned anew before one setting, then that of the most tuning trials, then of the most methods. If no budget has
    so many methods, it is the one that has most of them. Budgets of a single method come last.

    A method with nothing to tune has one trial at any budget: it counts at the largest one that is otherwise its own,
    unless it has another tuned budget. An ensemble whose embeddings are side by side counts at the budget of models of
    its members' size. Fixed hyper-parameters of a method are no part of the budget if it has one row without them, and
    a head that is fitted without an optimiser counts at the budget of those that have one. A head whose base has fixed
    settings of its own counts at the budget of that base.

    Example:
        >>> a = Contender("p", "s", "d", "a", "", "corrected", "default", 0, Pinned(), "convnet", 64, "")
        >>> rows = [a, a._replace(hparams="tuned", trials=9), a._replace(method="b")]
        >>> [(budget.hparams, [each.method for each in own]) for budget, own in by_budget(rows).items()]
        [('default', ['a', 'b']), ('tuned', ['a'])]
    """
    every = list(contenders)
    counted = dict(zip(every, _counted(every)))
    found = grouped(every, counted.__getitem__)
    half = len(method_names(every)) / 2

    def place(budget: Budget) -> tuple[object, ...]:
        methods = len(method_names(found[budget]))
        anew = budget.replicate == "study"
        sizes = (-anew, -budget.trials, -methods) if methods >= half else (-methods, -anew, -budget.trials)
        rest = budget._replace(fidelity="", replicate="")
        return methods < 2, methods < half, *sizes, rest, budget.fidelity, budget.replicate

    return {budget: found[budget] for budget in sorted(found, key=place)}


def ranked_together(contenders: Iterable[Contender]) -> list[tuple[str, list[Contender]]]:
    """Contenders of a data set that are ranked together, with the text of their budget, the leading one first.

    If there is one budget only, or one method only, as in a sweep over its settings, they are all of them, and the text
    is empty.

    Example:
        >>> a = Contender("reality_check", "strict", "d", "a", "", "corrected", "default", 0, Pinned(), "net", 64, "")
        >>> rows = [a, a._replace(hparams="tuned", trials=9), a._replace(method="b")]
        >>> [(text, [each.method for each in own]) for text, own in ranked_together(rows)]
        [('default settings', ['a', 'b']), ('tuned once, 9 trials', ['a'])]
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
    counted = {own: one if several[one] == 1 else own for own, one in zip(contenders, general)}
    every = [_at_base(own, counted) if several[one] == 1 else own for own, one in zip(contenders, general)]
    fitted = [_as_trained(each, every) for each in every]
    return [_largest(each, fitted) for each in fitted]


def _at_base(contender: Contender, counted: Mapping[Contender, Contender]) -> Contender:
    """What a contender counts as: of a head on a base with settings of its own, with the fixed settings of that row."""
    own, base = contender.pinned, contender._replace(method=contender.base, base="")
    rows = [each for each in counted if own.base and each._replace(trials=base.trials, pinned=own) == base]
    found = (counted[each].pinned for each in rows if {*each.pinned.parts} - {*own.parts} == {*own.base})
    return counted[contender]._replace(pinned=next(found, counted[contender].pinned))


def _without(pinned: Pinned, group: str) -> Pinned:
    return pinned.without([key for key in pinned.settings if key.startswith(group)])


def _as_trained(contender: Contender, every: Sequence[Contender]) -> Contender:
    """The contender with the fixed settings of the optimiser of others, if it is a head that may have no optimiser."""
    if not contender.base or contender.ensemble or _without(contender.pinned, "optim.") != contender.pinned:
        return contender
    # A head of the same name that has such settings has an optimiser; others that lack them are its rivals as it is.
    if any((each.name == contender.name) != (each.pinned == contender.pinned) for each in every):
        return contender
    others = [each for each in every if each.name != contender.name]
    alike = Counter(each.pinned for each in others if _without(each.pinned, "optim.") == contender.pinned)
    return contender._replace(pinned=max(sorted(alike), key=lambda pinned: alike[pinned], default=contender.pinned))


def _largest(contender: Contender, every: Sequence[Contender]) -> Budget:
    """Budget of a contender; of an ensemble or of a method with nothing to tune, that of others."""
    own = budget_of(contender)
    if contender.ensemble:
        sizes = [each.dim for each in every if not each.ensemble and budget_of(each)._replace(dim=own.dim) == own]
        own = own._replace(dim=max((size for size in sizes if own.dim % size == 0), default=own.dim))
    tuned = [each for each in every if each.hparams == "tuned" and each.trials > 1]
    if (own.hparams, own.trials) != ("tuned", 1) or any(each.label == contender.label for each in tuned):
        return own
    alike = [each.trials for each in tuned if budget_of(each)._replace(trials=1) == own]
    return own._replace(trials=max(alike, default=1))


def budget_texts(budgets: Sequence[Budget]) -> dict[Budget, str]:
    """Texts of the budgets of one data set: the tuning, and the form of the methods unless it is ``corrected``.

    Network and fixed settings are part of the texts if they tell the budgets apart.

    Example:
        >>> a = Contender("reality_check", "strict", "d", "a", "", "corrected", "default", 0, Pinned(), "net", 64, "")
        >>> first = budget_of(a)
        >>> list(budget_texts([first, first._replace(hparams="tuned", trials=50, dim=8)]).values())
        ['default settings, net/64', 'tuned once, 50 trials, net/8']
        >>> list(budget_texts([first._replace(hparams="mine.json#0a1b2c3d")]).values())
        ['settings of a file (mine.json)']
    """
    sources = _sources(budgets)
    networks = {(budget.backbone, budget.dim) for budget in budgets}
    _, own = split_pinned([budget.pinned for budget in budgets])
    texts = {}
    for budget, pinned in zip(budgets, own):
        parts = [tuning_text(budget, sources[budget.hparams])]
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
        ['', '3 seeds, not 5 seeds', 'tuned once, 1 trial, not tuned once, 50 trials']
    """
    taken = {contender: _taken(contender, count) for contender, count in zip(contenders, seeds)}
    found = {}
    for rivals in grouped(contenders, lambda each: each.common).values():
        usual = [_usual(texts) for texts in zip(*(taken[rival] for rival in rivals))]
        for rival in rivals:
            differs = [f"{own}, not {most}" for own, most in zip(taken[rival], usual) if own != most]
            found[rival] = "; ".join(differs)
    return [found[contender] for contender in contenders]


def _taken(contender: Contender, seeds: int) -> tuple[str, ...]:
    """What the results of a contender took: seeds, tuning, and limits of its trainings."""
    pinned = contender.pinned
    epochs = {key: value for key, value in pinned.settings.items() if key == EPOCHS}
    limits = Pinned(folds=pinned.folds, settings=epochs, partial=pinned.partial, pooling="").parts
    return f"{seeds} {contender.unit}{'s' * (seeds > 1)}", contender.tuning, ", ".join(limits) or "whole trainings"


def _usual(texts: Sequence[str]) -> str:
    """The text that most rows have; of equally common ones the last in sorted order, so that equal tables are equal."""
    return max(texts, key=lambda text: (texts.count(text), text))
