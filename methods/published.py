"""Sources of published settings: where a paper's code lists the values for a method, and how they become parameters.

A method names its sources in the class attribute ``published``. The tables themselves are read elsewhere; these classes
say which rows are about the method and convert their values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


def same_names(values: Mapping[str, float], fields: Collection[str], variant: str) -> dict[str, Any]:
    """Keep the published parameters that have the same name here; the others are left out.

    Example:
        >>> same_names({"scale": 16.0, "kl": 0.1}, ["scale", "margin"], "cosface")
        {'scale': 16.0}
    """
    return {name: value for name, value in values.items() if name in fields}


@dataclass(frozen=True)
class PER:
    """Settings of "Probabilistic Embeddings Revisited" (PER), one row of values per method and data set.

    Attributes:
        name: Name of the method there, such as ``dul-cls``; a row may add the base or the classifier to it.
        convert: ``(values, fields, variant) -> parameters`` from the published values, the names of the method's
            parameters, and the whole name of the row, such as ``dul-cls-arcface``.
        kinds: Names of rows that are this method with other parameters than the usual, each with these parameters.
    """

    name: str
    convert: Callable[[Mapping[str, float], Collection[str], str], dict[str, Any]] = same_names
    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class NivmfScripts:
    """Settings of the run scripts of EL-nivMF and NIR, one row of options per method, data set and network.

    Attributes:
        convert: ``(options, fields) -> (parameters, learning rates of the objective)`` from the options of a row, the
            data set's name as ``dataset`` among them, and the names of the method's parameters.
        names: Names of the method in the scripts, each with the parameters that make it the method of that name.
        released_only: Whether the settings make sense for the released form only.
    """

    convert: Callable[[Mapping[str, str], Collection[str]], tuple[dict[str, Any], dict[str, Any]]]
    names: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    released_only: bool = False


PublishedSource = PER | NivmfScripts
