"""Settings that papers published with their code, by method, data set and network."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from ..errors import UserError
from ..methods._base import Method
from ..methods.published import PER, NivmfScripts, known
from .experiment import Values


class NothingPublished(UserError):
    """Error: a method has no published setting for a data set and network."""


class PublishedRun(NamedTuple):
    """Protocol and data with which the authors of published settings ran them.

    A run with other ones does not replay the publication.

    Attributes:
        protocol: Protocol of this benchmark that tests as the publication did.
        preset: Preset (variant) of that protocol.
        forms: Names of the forms of a method that compute what the code of the publication does.
        datasets: Data sets of this benchmark that differ from the one of the publication, each with the name of the one
            that agrees with it, such as ``inshop_merged`` for ``inshop``.
    """

    protocol: str
    preset: str
    forms: tuple[str, ...]
    datasets: Mapping[str, str] = {}


PER_RUN = PublishedRun("reality_check", "per", ("released", "released_per"), {"inshop": "inshop_merged"})
SCRIPTS_RUN = PublishedRun("standardized", "strict", ("released", "released_el"))


@dataclass(frozen=True)
class Published:
    """A published setting of a method, translated to the names of this benchmark.

    Attributes:
        source: Name of the public code that it comes from.
        variant: Name of the configuration in that code.
        network: Backbone and embedding size it is for, such as ``bn_inception/128``.
        values: The values as published, by their published names.
        params: Parameters of the method.
        optim: Optimiser and schedule.
        run: Protocol and data that the values are for.
        data: Batches, pooling and other settings of the backbone, if they differ from the defaults of the data set.
        kind: Parameters that a run must have for the setting to apply to it.
        released_only: Whether the setting makes sense only for the released form of the method, which computes what the
            public code of its paper does.
        stage1: Published parameters of the base (first stage), by their published names; empty for methods of one
            stage.
    """

    source: str
    variant: str
    network: str
    values: Mapping[str, Any]
    params: Mapping[str, Any]
    optim: Mapping[str, Any]
    run: PublishedRun
    data: Mapping[str, Any] = field(default_factory=dict)
    kind: Mapping[str, Any] = field(default_factory=dict)
    released_only: bool = False
    stage1: Mapping[str, float] = field(default_factory=dict)


DATASETS = {"cars196": "CARS196", "cub200": "CUB200-2011", "inshop": "", "inshop_merged": "", "sop": "SOP"}
"""Data sets that have published settings, with their names in the EL-nivMF and NIR scripts."""


def published_settings(method: type[Method], dataset: str, base: str) -> list[Published]:
    """All published settings of a method on a data set."""
    settings: list[Published] = []
    for source in method.published:
        if isinstance(source, PER):
            for name, kind in {source.name: {}, **source.kinds}.items():
                settings += _revisited(source, name, kind, method, dataset, base)
        else:
            settings += _scripts(source, method, dataset)
    return settings


@cache
def _table(name: str, key: str) -> dict[tuple[str, str], dict[tuple[str, str], str]]:
    """Values by (configuration, data set) of a file of published settings, each by (stage, name)."""
    text = files("bench.published").joinpath(name).read_text()
    found: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for row in csv.DictReader(text.splitlines()):
        found.setdefault((row[key], row["dataset"]), {})[row.get("stage", ""), row["hparam"]] = row["value"]
    return found


REVISITED = {
    "optimizer": "sgd",
    "schedule": "step",
    "step_epochs": 5,
    "weight_decay": 1e-4,
    "grad_clip": 10.0,
    "heads_factor": 1.0,
}
"""Setting that all runs of "Probabilistic Embeddings Revisited" share."""
REVISITED_DATA = {"pooling": "avg_max", "calibrate": False}
"""Setting of their backbones."""
_RENAMED = {"lr_embedder": "lr", "lr_classifier": "lr_objective", "lr_gamma": "gamma", "num_epochs": "epochs"}
_EPOCHS = {"cars196": 32, "cub200": 32, "inshop": 128, "sop": 128}


def _revisited(
    source: PER, name: str, kind: Mapping[str, Any], method: type[Method], dataset: str, base: str
) -> list[Published]:
    """Settings published with "Probabilistic Embeddings Revisited"; its In-shop is the merged version."""
    where = "inshop" if dataset == "inshop_merged" else dataset
    table = _table("pe_revisited_best_hparams.csv", "variant")
    names = (f"{name}-cont-{base}", f"{name}-{base}", name)
    variant = next((row for row in names if (row, where) in table), None)
    if variant is None:
        return []
    values: dict[str, float] = {}
    stage1: dict[str, float] = {}
    for (stage, key), text in table[variant, where].items():
        with contextlib.suppress(ValueError):  # a switch that is not a number
            (stage1 if stage == "stage1" else values)[key] = float(text)
    rest = dict(values)
    optim: dict[str, Any] = {**REVISITED, "epochs": _EPOCHS[where]}
    optim |= {ours: rest.pop(theirs) for theirs, ours in _RENAMED.items() if theirs in rest}
    optim["epochs"] = int(optim["epochs"])
    return [
        Published(
            source="PER",
            variant=variant,
            network="bn_inception/128",
            values=values,
            params={**known(source.convert({**rest, "variant": variant}), method.Params.model_fields), **kind},
            optim=optim,
            run=PER_RUN,
            data=REVISITED_DATA,
            kind=kind,
            stage1=stage1,
        )
    ]


SCRIPTS = {
    "optimizer": "adam",
    "lr": 1e-5,
    "weight_decay": 4e-4,
    "decay_objective": False,
    "schedule": "constant",
    "heads_factor": 1.0,
    "grad_clip": 0.0,  # their code does not clip
}
"""Setting that all runs of the EL-nivMF and NIR scripts share."""


def _scripts(source: NivmfScripts, method: type[Method], dataset: str) -> list[Published]:
    """Settings in the run scripts of EL-nivMF and NIR: ResNet-50, average pooling or NIR's double one."""
    found = []
    for (variant, where), staged in _table("nivmf_nir_hparams.csv", "method").items():
        values = {name: text for (_, name), text in staged.items()}
        dim = values.get("embed_dim", "")
        tails = (f" R50/{dim}", f" baseline R50/{dim}", f" R50/{dim} double-pool", " (Fig.5)")
        kind = next((kind for name, kind in source.names.items() for tail in tails if variant == name + tail), None)
        if kind is None or where != DATASETS.get(dataset):
            continue
        params, rates = source.convert({**values, "dataset": dataset})
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
            "pooling": "avg_max" if values.get("arch", "").endswith("_double") else "avg",
            "calibrate": False,
        }
        found.append(
            Published(
                source="EL-nivMF and NIR scripts",
                variant=variant,
                network=f"resnet50.tv_in1k/{dim}",
                values=values,
                params={**known(params, method.Params.model_fields), **kind},
                optim=optim,
                run=SCRIPTS_RUN,
                data=data,
                kind=kind,
                released_only=source.released_only,
            )
        )
    return found


def stage_one(head: Published, base: type[Method]) -> Published:
    """Published setting of the base (first stage) of a two-stage method.

    The configurations of "Probabilistic Embeddings Revisited" give the classifier of the first stage values of its own
    (``stages.0``); learning rates, their decay and the epochs are the same in both stages.
    """
    params = {name: value for name, value in head.stage1.items() if name in base.Params.model_fields}
    return replace(head, values=head.stage1, params=params, stage1={})


def find_published(
    method: type[Method],
    dataset: str,
    base: str,
    *,
    network: str,
    params: Values,
    pooling: str = "avg",
) -> Published:
    """Published setting of a method that fits a network, a form and parameters.

    Raises:
        NothingPublished: If none fits; the message says for which data sets or networks there are some.
    """
    every = published_settings(method, dataset, base)
    fitting = [item for item in every if all(params.get(name) == value for name, value in item.kind.items())]
    # The last wins: the one for the most special parameters, with the wanted pooling.
    ranked = sorted(fitting, key=lambda item: (len(item.kind), item.data["pooling"] == pooling))
    found = {item.network: item for item in ranked}
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
    if found[network].released_only and params.get("form", "corrected") == "corrected":
        raise NothingPublished(
            f"the published setting of {method.name} is for what its public code computes; add --fidelity released, or"
            " use --hparams tuned or default"
        )
    return found[network]
