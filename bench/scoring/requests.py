"""Metrics and scorers that a caller asks for by name."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributions import Distribution

from ..errors import BadInput, UnknownName
from ..methods.distributions.arrays import rows_of
from ..methods.distributions.point import PointMass
from ..methods.distributions.von_mises_fisher import VonMisesFisher
from ..methods.scorers.registry import SCORERS, pairwise_score
from ..protocols.metrics import Metric, find_metric, known_metrics, metric_requests


def wanted_metrics(metrics: Sequence[str]) -> dict[str, Metric]:
    """Expand names of metrics and of groups of metrics into single metrics; ``all`` stands for those of all groups.

    Example:
        >>> list(wanted_metrics(["clustering", "recall_at_16"]))
        ['nmi', 'ami', 'pair_f1', 'recall_at_16']
    """
    requests = metric_requests()
    singles = {name for members in requests.values() for name in members}
    wanted: dict[str, Metric] = {}
    for name in (metrics,) if isinstance(metrics, str) else metrics:
        for member in sorted(singles) if name == "all" else requests.get(name, (name,)):
            metric = find_metric(member)
            if metric is None or not metric.has_request:
                raise BadInput(str(UnknownName("metric", member, {*requests, *singles, "all"})))
            wanted[member] = metric
    if not wanted:
        raise BadInput("no metric asked for; name at least one, such as map_at_r")
    return wanted


def recall_ks(wanted: dict[str, Metric]) -> tuple[int, ...]:
    """Values of k for which Recall@k is wanted, ascending. They include 1, because confidences are judged by Recall@1.

    Example:
        >>> recall_ks(wanted_metrics(["recall_at_16", "nmi"]))
        (1, 16)
    """
    values = [metric.values(name) or {} for name, metric in wanted.items() if metric.family]
    return tuple(sorted({1, *(int(value["k"]) for value in values if "k" in value)}))


def groups_of_tests(wanted: dict[str, Metric]) -> set[str]:
    """Names of the groups of tests that the wanted metrics need, and of those that judge any confidence.

    Example:
        >>> sorted(groups_of_tests(wanted_metrics(["nmi"])))
        ['ambiguity', 'calibration', 'clustering', 'filter_out', 'quality', 'risk', 'soft_labels']
    """
    of_confidences = {metric.group for metric in known_metrics().values() if not metric.has_request}
    return of_confidences | {metric.group for metric in wanted.values()}


def is_wanted(name: str, wanted: dict[str, Metric]) -> bool:
    """Check if a metric is wanted by name, or is computed whenever there is a confidence.

    Example:
        >>> wanted = wanted_metrics(["edc_pauc"])
        >>> is_wanted("edc_pauc", wanted), is_wanted("edc_fnmr", wanted), is_wanted("aurc", wanted)
        (True, False, True)
    """
    metric = find_metric(name)
    return name in wanted or metric is None or not metric.has_request


def check_scorers(scorers: Sequence[str], distribution: Distribution) -> None:
    """Check that scorers exist and are defined for the embeddings; the message suggests others."""
    if not scorers:
        raise BadInput("no scorer asked for; name at least one, such as cosine")
    for name in scorers:
        if name not in SCORERS:
            raise BadInput(str(UnknownName("scorer", name, SCORERS)))
    two = rows_of(distribution, torch.tensor([0, 1]))
    fitting = []
    for name in SCORERS:
        try:
            pairwise_score(name, two, two)
            fitting.append(name)
        except ValueError:
            continue
    for name in scorers:
        if name not in fitting:
            names = {
                PointMass: "that are points (no variance, no concentration)",
                VonMisesFisher: "with a concentration",
            }
            what = names.get(type(two), "with a variance per image or dimension")
            raise BadInput(f"scorer {name!r} is not defined for embeddings {what}; these are: {', '.join(fitting)}")
