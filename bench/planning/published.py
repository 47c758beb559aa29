"""Settings that papers published with their code, by method, data set and network."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..methods.published import PER, NivmfScripts
from .setting import Setting, Values

if TYPE_CHECKING:
    from ..methods._base import Method


class NothingPublished(UserError):
    """A method has no published setting for a data set and network."""


@dataclass(frozen=True)
class Published:
    """A published setting in our names.

    Attributes:
        source: Whose code it comes with.
        variant: Name of the configuration there.
        network: Backbone and embedding size it is for, such as ``bn_inception/128``.
        values: The values as published.
        params: The method's parameters.
        optim: Optimisation of its stage.
        data: Batches and epochs, where they differ from the recipe's.
        kind: Parameters that a run must have for the setting to be about it.
        released_only: Whether the setting makes sense for the released form only.
    """

    source: str
    variant: str
    network: str
    values: Mapping[str, Any]
    params: Mapping[str, Any]
    optim: Mapping[str, Any]
    data: Mapping[str, Any] = field(default_factory=dict)
    kind: Mapping[str, Any] = field(default_factory=dict)
    released_only: bool = False


DATASETS = {"cars196": "CARS196", "cub200": "CUB200-2011", "inshop": "", "inshop_merged": "", "sop": "SOP"}
"""Data sets that have published settings, with their names in the EL-nivMF and NIR scripts."""


def published_settings(method: type[Method], dataset: str, base: str) -> list[Published]:
    """Everything published for a method on a data set.

    Args:
        method: Class of the method.
        dataset: Name of the data set.
        base: Base method of two-stage methods.
    """
    settings: list[Published] = []
    for source in method.published:
        if isinstance(source, PER):
            settings += _revisited(source, method, dataset, base)
        else:
            settings += _scripts(source, method, dataset)
    return settings


@cache
def _table(name: str, key: str) -> dict[tuple[str, str], dict[str, str]]:
    """Values by (configuration, data set) of a file of published settings."""
    text = files("bench.results.published").joinpath(name).read_text()
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in csv.DictReader(text.splitlines()):
        found.setdefault((row[key], row["dataset"]), {})[row["hparam"]] = row["value"]
    return found


REVISITED = {
    "optimizer": "sgd",
    "schedule": "step",
    "step_epochs": 5,
    "weight_decay": 1e-4,
    "grad_clip": 10.0,
    "heads_factor": 1.0,
}
"""What all runs of "Probabilistic Embeddings Revisited" have in common."""
_RENAMED = {"lr_embedder": "lr", "lr_classifier": "lr_objective", "lr_gamma": "gamma", "num_epochs": "epochs"}
_EPOCHS = {"cars196": 32, "cub200": 32, "inshop": 128, "sop": 128}


def _revisited(source: PER, method: type[Method], dataset: str, base: str) -> list[Published]:
    """Settings published with "Probabilistic Embeddings Revisited"; its In-shop is the merged version."""
    where = "inshop" if dataset == "inshop_merged" else dataset
    table = _table("pe_revisited_best_hparams.csv", "variant")
    names = (f"{source.name}-cont-{base}", f"{source.name}-{base}", source.name)
    variant = next((name for name in names if (name, where) in table), None)
    if variant is None:
        return []
    values: dict[str, float] = {}
    for name, text in table[variant, where].items():
        try:
            values[name] = float(text)
        except ValueError:
            continue  # a switch that is not a number
    rest = dict(values)
    optim: dict[str, Any] = {**REVISITED, "epochs": _EPOCHS[where]}
    optim |= {ours: rest.pop(theirs) for theirs, ours in _RENAMED.items() if theirs in rest}
    optim["epochs"] = int(optim["epochs"])
    params = source.convert(rest, method.Params.model_fields, variant)
    return [Published("PER", variant, "bn_inception/128", values, params, optim)]


SCRIPTS = {
    "optimizer": "adam",
    "lr": 1e-5,
    "weight_decay": 4e-4,
    "decay_objective": False,
    "schedule": "constant",
    "heads_factor": 1.0,
}
"""What all runs of the EL-nivMF and NIR scripts have in common."""


def _scripts(source: NivmfScripts, method: type[Method], dataset: str) -> list[Published]:
    """Settings in the run scripts of EL-nivMF and NIR: ResNet-50, average pooling."""
    found = []
    for (variant, where), values in _table("nivmf_nir_hparams.csv", "method").items():
        dim = values.get("embed_dim", "")
        tails = (f" R50/{dim}", f" baseline R50/{dim}", " (Fig.5)")
        kind = next((kind for name, kind in source.names.items() for tail in tails if variant == name + tail), None)
        if kind is None or where != DATASETS.get(dataset):
            continue
        params, rates = source.convert({**values, "dataset": dataset}, method.Params.model_fields)
        epochs = int(values["n_epochs"])
        optim = {**SCRIPTS, **rates, "epochs": epochs, "head_epochs": int(values.get("warmup", 0))}
        milestones = [int(text) for text in values.get("tau", "").split() if int(text) < epochs]
        if milestones:
            optim |= {"schedule": "multistep", "milestones": milestones, "gamma": float(values["gamma"])}
        data = {
            "classes_per_batch": int(values.get("bs", 64)) // 2,
            "images_per_class": 2,
            "epoch_repeats": 1.0,
            "freeze_norm": "statistics",
        }
        where_from, network = "EL-nivMF and NIR scripts", f"resnet50/{dim}"
        found.append(
            Published(where_from, variant, network, values, {**params, **kind}, optim, data, kind, source.released_only)
        )
    return found


def find_published(
    method: type[Method], dataset: str, base: str, values: Values, fidelity: str, params: Mapping[str, Any]
) -> Setting:
    """Layer of the published setting of a method for a network.

    Args:
        method: Class of the method.
        dataset: Name of the data set.
        base: Base method of two-stage methods.
        values: ``backbone`` and ``dim`` of the network.
        fidelity: A form that the method has (``Method.fidelities``).
        params: All parameters of the method as pinned or by default; they may choose among several settings.

    Raises:
        NothingPublished: If there is none, or none for this network or form, with where there are some.
    """
    network = f"{values['backbone']}/{values['dim']}"
    every = published_settings(method, dataset, base)
    fitting = [item for item in every if all(params.get(name) == value for name, value in item.kind.items())]
    found = {item.network: item for item in fitting}
    if every and not found:
        kinds = ", ".join(sorted({" ".join(f"{k}={v}" for k, v in item.kind.items()) for item in every}))
        raise NothingPublished(f"published settings of {method.name} on {dataset} are for {kinds}; pin one of these")
    if not found:
        on_base = f" on {base}" if method.on_base else ""
        where = [name for name in DATASETS if published_settings(method, name, base)]
        tail = f"; {method.name} has them for {', '.join(where)}" if where else ""
        raise NothingPublished(
            f"no published setting of {method.name!r}{on_base} on {dataset!r}{tail}; use --hparams tuned or default"
        )
    if network not in found:
        raise NothingPublished(
            f"published settings of {method.name} on {dataset} are for {' and '.join(found)}, not {network}; set"
            " --backbone and --dim, or use --hparams tuned or default"
        )
    if found[network].released_only and fidelity == "corrected":
        raise NothingPublished(
            f"the published setting of {method.name} is for what its public code computes; add --fidelity released, or"
            " use --hparams tuned or default"
        )
    chosen = found[network]
    return Setting(params=chosen.params, optim=chosen.optim, batches=chosen.data)
