"""What tells runs of one method and budget apart: settings that were fixed, and departures from the usual run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from ..protocols.recipes._base import BATCHES

CALIBRATE = "data.calibrate"
"""Setting that forms of public code turn off by themselves."""

_PLACES = {"method": 0, "optim": 1, "batches": 2, "data": 3, "augment": 4}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False, config=ConfigDict(extra="forbid"))
class Pinned:
    """Distinguishing facts of a run; runs that differ in them are different rows, ordered by their texts.

    Attributes:
        settings: Settings that the user fixed, by full name such as ``method.margin``.
        select_by: Scorer that selects epochs and trials; None for the method's own.
        uncalibrated: Whether features are not divided by a constant because a form of public code was asked for.
        stage: Method whose published first stage this is; empty for none.
        differences: How a run at a published setting differs from what its authors ran.
        partial: Images of a partial release; empty for whole data sets.
        weights: First digits of the hash of starting weights that are not random.
        frozen_source: Source of randomness that has the same draw in all these runs, or ``nothing``; empty for runs
            that do not measure the variance by source.
        tuned_anew: Whether each of those runs has a tuning study of its own.
    """

    folds: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    frozen_backbone: bool = False
    select_by: str | None = None
    uncalibrated: bool = False
    corruptions: tuple[str, ...] = ()
    sampler: str = "gp"
    tune_for: str = "retrieval"
    stage: str = ""
    differences: tuple[str, ...] = ()
    partial: str = ""
    weights: str = ""
    frozen_source: str = ""
    tuned_anew: bool = False

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The facts as texts, in the order in which they are printed."""
        anew = " (tuned anew)" if self.tuned_anew else ""
        texts = (
            "" if self.folds is None else f"folds={self.folds}",
            *(f"{key}={self.settings[key]}" for key in sorted(self.settings, key=place)),
            "frozen backbone" if self.frozen_backbone else "",
            f"select_by={self.select_by}" if self.select_by else "",
            f"{CALIBRATE}=False" if self.uncalibrated else "",
            f"corruptions={','.join(self.corruptions)}" if self.corruptions else "",
            f"sampler={self.sampler}" if self.sampler != "gp" else "",
            f"tune_for={self.tune_for}" if self.tune_for != "retrieval" else "",
            f"stage 1 of {self.stage}" if self.stage else "",
            f"not as published: {', '.join(self.differences)}" if self.differences else "",
            f"partial release: {self.partial}" if self.partial else "",
            f"weights={self.weights}" if self.weights else "",
            f"frozen={self.frozen_source}{anew}" if self.frozen_source else "",
        )
        return tuple(filter(None, texts))

    @cached_property
    def text(self) -> str:
        """All facts as one text; empty for a usual run."""
        return "; ".join(self.parts)

    @property
    def values(self) -> Mapping[str, Any]:
        """Settings that were fixed, by the user or because a form of public code was asked for."""
        return {**self.settings, **({CALIBRATE: False} if self.uncalibrated else {})}

    @property
    def unfrozen(self) -> Pinned:
        """The same without what is said of a frozen source of randomness."""
        return replace(self, frozen_source="", tuned_anew=False)

    def without(self, keys: Collection[str]) -> Pinned:
        """The same without some of the ``values``."""
        left = {key: value for key, value in self.settings.items() if key not in keys}
        return replace(self, settings=left, uncalibrated=self.uncalibrated and CALIBRATE not in keys)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return repr(self.text)

    def __bool__(self) -> bool:
        return bool(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pinned) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __lt__(self, other: Pinned) -> bool:
        return self.text < other.text


def place(key: str) -> tuple[int, str]:
    """Order of settings: the method's, the optimiser's, those of batches, of photographs, of the augmentation."""
    group, _, name = key.partition(".")
    group = "batches" if group == "data" and name in BATCHES else group
    return _PLACES.get(group, len(_PLACES)), key


def split_pinned(pinned: Sequence[Pinned]) -> tuple[str, list[str]]:
    """Texts of the facts that all runs share, and for each run of its others.

    Example:
        >>> a, b = Pinned(settings={"optim.lr": 0.1, "optim.epochs": 2}), Pinned(settings={"optim.epochs": 2})
        >>> split_pinned([a, b])
        ('optim.epochs=2', ['optim.lr=0.1', ''])
    """
    shared = [text for text in pinned[0].parts if all(text in other.parts for other in pinned)] if pinned else []
    return "; ".join(shared), ["; ".join(text for text in each.parts if text not in shared) for each in pinned]
