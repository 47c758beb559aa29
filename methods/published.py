"""Sources of published settings: where a paper's code lists the values for a method, and how they become parameters.

A method names its sources in the class attribute ``published``. The tables themselves are read elsewhere; these classes
say which rows are about the method and convert their values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


def known(params: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """Published values that are parameters of a method, by their names; the others are left out.

    Example:
        >>> known({"scale": 16.0, "kl": 0.1}, ["scale", "margin"])
        {'scale': 16.0}
    """
    return {name: value for name, value in params.items() if name in fields}


@dataclass(frozen=True)
class PER:
    """Rule for reading a method's settings from those published with "Probabilistic Embeddings Revisited" (PER).

    The published table has one row of values per method and data set.

    Attributes:
        name: Name of the method in PER, such as ``dul-cls``, to which rows may add the base model or the classifier.
        convert: Function from the published values, and the whole name of the row as ``variant``, to parameters; what
            is no parameter of the method is left out. By default parameters have the published names.
        kinds: Further row names that are this method with other parameters, ``{name: value}``.
    """

    name: str
    convert: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class NivmfScripts:
    """Rule for reading a method's settings from the public run scripts of EL-nivMF and NIR.

    The scripts, those of Kirchhof et al. 2022 and Roth et al. 2022, have one row of options per method, data set and
    network.

    Attributes:
        convert: Function ``options -> (parameters, rates)`` of a row; what is no parameter of the method is left out,
            and ``rates`` maps ``lr_objective`` to the learning rate of the loss's own parameters.
        names: Names of methods in the scripts that stand for this method with certain parameters.
        released_only: Whether the settings make sense only if the method computes what the public code does.
    """

    convert: Callable[[Mapping[str, str]], tuple[dict[str, Any], dict[str, Any]]]
    names: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    released_only: bool = False


PublishedSource = PER | NivmfScripts
