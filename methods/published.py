"""Sources of published settings: where a paper's code lists the values for a method, and how they become parameters.

A method names its sources in the class attribute ``published``. The tables themselves are read elsewhere; these classes
say which rows are about the method and convert their values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


def same_names(values: Mapping[str, float], fields: Collection[str], variant: str) -> dict[str, Any]:
    """Keep the published parameters of a method that have the same name in this benchmark; the others are left out.

    Example:
        >>> same_names({"scale": 16.0, "kl": 0.1}, ["scale", "margin"], "cosface")
        {'scale': 16.0}
    """
    return {name: value for name, value in values.items() if name in fields}


@dataclass(frozen=True)
class PER:
    """Rule for reading a method's settings from those published with "Probabilistic Embeddings Revisited" (PER).

    The published table has one row of values per method and data set.

    Attributes:
        name: Name of the method in PER, such as ``dul-cls``, to which rows may add the base model or the classifier.
        convert: Function ``(values, fields, variant) -> parameters`` from the published values, the names of the
            method's parameters, and the whole name of the row.
        kinds: Further row names that are this method with other parameters, ``{name: value}``.
    """

    name: str
    convert: Callable[[Mapping[str, float], Collection[str], str], dict[str, Any]] = same_names
    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class NivmfScripts:
    """Rule for reading a method's settings from the public run scripts of EL-nivMF and NIR.

    The scripts, those of Kirchhof et al. 2022 and Roth et al. 2022, have one row of options per method, data set and
    network.

    Attributes:
        convert: Function ``(options, fields) -> (parameters, rates)`` of a row and the names of the parameters;
            ``rates`` maps ``lr_objective`` to the learning rate of the loss's own parameters.
        names: Names of methods in the scripts that stand for this method with certain parameters.
        released_only: Whether the settings make sense only if the method computes what the public code does.
    """

    convert: Callable[[Mapping[str, str], Collection[str]], tuple[dict[str, Any], dict[str, Any]]]
    names: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    released_only: bool = False


PublishedSource = PER | NivmfScripts
