"""Settings that papers published with their code, by method, data set and network."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
class PublishedRun:
    """What a source ran its settings with: a replay with anything else is not its method.

    Attributes:
        protocol: Protocol that follows its tests.
        preset: Preset of that protocol.
        fidelities: Forms of a method that compute what its code does.
        datasets: Data sets that are read otherwise here, with the name of the one that is read as there.
    """

    protocol: str
    preset: str
    fidelities: tuple[str, ...]
    datasets: Mapping[str, str] = field(default_factory=dict)

    def differences(self, protocol: str, preset: str, dataset: str) -> list[str]:
        """How a run differs from it."""
        said = []
        if protocol != self.protocol:
            said.append(f"protocol {protocol} instead of {self.protocol}")
        elif preset != self.preset:
            said.append(f"preset {preset} instead of {self.preset}")
        if dataset in self.datasets:
            said.append(f"data set {dataset} instead of {self.datasets[dataset]}")
        return said


PER_RUN = PublishedRun("reality_check", "per", ("released", "released_per"), {"inshop": "inshop_merged"})
SCRIPTS_RUN = PublishedRun("standardized", "strict", ("released", "released_el"))


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
        run: The rest of the set-up that the values are for.
        data: Batches and backbone, where they differ from the recipe's.
        kind: Parameters that a run must have for the setting to be about it.
        released_only: Whether the setting makes sense for the released form only.
        stage1: Published parameters of the base, as published; empty for methods of one stage.
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

    @property
    def layer(self) -> Setting:
        """The values in our names."""
        return Setting(params=self.params, optim=self.optim, batches=self.data)


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
            for name, kind in {source.name: {}, **source.kinds}.items():
                settings += _revisited(source, name, kind, method, dataset, base)
        else:
            settings += _scripts(source, method, dataset)
    return settings


@cache
def _table(name: str, key: str) -> dict[tuple[str, str], dict[tuple[str, str], str]]:
    """Values by (configuration, data set) of a file of published settings, each by (stage, name)."""
    text = files("bench.results.published").joinpath(name).read_text()
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
"""What all runs of "Probabilistic Embeddings Revisited" have in common."""
REVISITED_DATA = {"pooling": "avg_max", "calibrate": False}
"""How their backbones are taken."""
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
            params={**source.convert(rest, method.Params.model_fields, variant), **kind},
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
"""What all runs of the EL-nivMF and NIR scripts have in common."""


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
            "pooling": "avg_max" if values.get("arch", "").endswith("_double") else "avg",
            "calibrate": False,
        }
        found.append(
            Published(
                source="EL-nivMF and NIR scripts",
                variant=variant,
                network=f"resnet50/{dim}",
                values=values,
                params={**params, **kind},
                optim=optim,
                run=SCRIPTS_RUN,
                data=data,
                kind=kind,
                released_only=source.released_only,
            )
        )
    return found


def stage_one(head: Published, base: type[Method]) -> Published:
    """Setting of the base that a published two-stage setting stands on.

    PER's configurations give the classifier of the first stage values of its own (``stages.0``); rates, their decay
    and the epochs are those of the row, in both stages.

    Args:
        head: Published setting of the head.
        base: Class of its base.
    """
    params = {name: value for name, value in head.stage1.items() if name in base.Params.model_fields}
    return replace(head, values=head.stage1, params=params, stage1={})


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a published setting has to be for.

    Attributes:
        network: ``backbone`` and ``dim``.
        fidelity: Form of the method.
        params: All parameters of the method as pinned or by default; they may choose among several settings.
        pooling: Pooling of the setting that is taken if two differ in it alone.
    """

    network: Values
    fidelity: str
    params: Mapping[str, Any]
    pooling: str = "avg"

    def fits(self, item: Published) -> bool:
        """Check whether the parameters are those that a setting is about."""
        return all(self.params.get(name) == value for name, value in item.kind.items())

    def rank(self, item: Published) -> tuple[int, bool]:
        """Order of settings of a network: the most specific one, then the one with the pooling."""
        return len(item.kind), item.data["pooling"] == self.pooling


def find_published(method: type[Method], dataset: str, base: str, wanted: Wanted) -> Published:
    """Published setting of a method for a network.

    Args:
        method: Class of the method.
        dataset: Name of the data set.
        base: Base method of two-stage methods.
        wanted: What it has to be for.

    Raises:
        NothingPublished: If there is none, or none for this network or form, with where there are some.
    """
    network = f"{wanted.network['backbone']}/{wanted.network['dim']}"
    every = published_settings(method, dataset, base)
    fitting = [item for item in every if wanted.fits(item)]
    found = {item.network: item for item in sorted(fitting, key=wanted.rank)}
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
    if found[network].released_only and wanted.fidelity == "corrected":
        raise NothingPublished(
            f"the published setting of {method.name} is for what its public code computes; add --fidelity released, or"
            " use --hparams tuned or default"
        )
    return found[network]
