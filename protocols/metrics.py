"""The table of metrics: each is declared once, and tables, figures, help and docs derive from it.

Light: importing it loads no array library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .declare import Metric as Metric
from .declare import declared_tests

_MUSGRAVE = "Musgrave et al. 2020, Section 3"
_ROTH = "Roth et al. 2020"
_GEIFMAN = "Geifman et al. 2019"
_KIRCHHOF = "Kirchhof et al. 2023 (URL benchmark)"
_HALF_A_POINT = 0.005
_ONE_POINT = 0.01
_INFINITE = float("inf")


def _kind(**common: Any) -> Callable[..., Metric]:
    """Function of name, title and source of a metric that has these fields in common with others of its kind."""

    def metric(name: str, title: str, source: str, **own: Any) -> Metric:
        return Metric(name=name, title=title, source=source, **{**common, **own})

    return metric


# What metrics have in common; calls may override it.
_retrieval = _kind(group="retrieval", equivalence=_HALF_A_POINT)
_verification = _kind(group="verification", equivalence=_HALF_A_POINT)
_ranking = _kind(group="retrieval_sets")
_clusters = _kind(group="clustering", of="embeddings")
_structure = _kind(group="structure", of="embeddings", better="", unit="number", high=_INFINITE)
_confidence = _kind(of="confidence")
_risk = _kind(group="risk", of="confidence", better="lower")
_calibration = _kind(group="calibration", of="confidence", better="lower")
_discard = _kind(group="discard", of="confidence", better="lower", on_request=True)
_regret = _kind(group="ambiguity", of="confidence", better="lower", equivalence=_HALF_A_POINT)
_open_set = _kind(group="open_set", of="confidence", on_request=True)
_operating = _kind(group="operating", of="confidence")
_correlation = _kind(of="confidence", unit="correlation", low=-1.0)

_TABLE = (
    _retrieval(
        "recall_at_{k}",
        "Recall@{k}",
        "share of queries with a positive among the k nearest (Oh Song et al. 2016)",
        asked_as="recall",
        members=("recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8"),
        short="R@{k}",
        default=True,
    ),
    _retrieval("map_at_r", "MAP@R", _MUSGRAVE, asked_as="map_at_r", default=True),
    _retrieval("r_precision", "R-Precision", _MUSGRAVE, asked_as="r_precision", short="R-Prec", default=True),
    _retrieval("precision_at_1", "Precision@1", _MUSGRAVE, asked_as="precision_at_1"),
    _retrieval("map_at_1000", "MAP@1000", _ROTH, group="map_at_1000"),
    _verification(
        "verification_accuracy",
        "verification accuracy",
        "share of pairs that a threshold decides rightly (PER)",
        short="Ver. acc.",
    ),
    _verification(
        "verification_auc",
        "verification AUC",
        "area under the ROC curve, ties counted half",
        short="Ver. AUC",
        equivalence=_ONE_POINT,
    ),
    _verification(
        "verification_eer", "verification EER", "rate at which false accepts equal false rejects", better="lower"
    ),
    _verification(
        "verification_tpr_at_fpr",
        "verification TPR",
        "largest true positive rate at a bounded false positive rate",
        equivalence=0.0,
    ),
    _ranking(
        "set_size_at_90",
        "size of sets for 90 %",
        "number of nearest images that are to contain a positive of 90 % of the queries (split conformal)",
        better="lower",
        unit="number",
        high=_INFINITE,
    ),
    _ranking(
        "set_coverage_at_90",
        "coverage of sets for 90 %",
        "share of queries with a positive among these; what it lacks to 0.9 is the shortfall",
    ),
    _ranking(
        "opis",
        "OPIS",
        "variance over classes of the utility of one threshold (Zhang et al. 2024)",
        group="threshold_consistency",
        better="lower",
        unit="number",
        high=0.25,
    ),
    _clusters("nmi", "NMI", _ROTH),
    _clusters("ami", "AMI", "Vinh et al. 2010, Eq. 15", low=-1.0),
    _clusters("pair_f1", "pair F1", _ROTH),
    _structure("spectral_decay", "spectral decay", _ROTH),
    _structure("density", "density", _ROTH),
    _structure("uniformity", "uniformity", "Wang and Isola 2020, without the logarithm", high=1.0),
    _structure("class_concentration", "class concentration", "NIR, Table 3"),
    _structure("cluster_diversity", "cluster diversity", "EL-nivMF, Table 5", high=4.0),
    _confidence(
        "filter_out_{metric}", "{metric} after removal", "PER, Figure 3", group="filter_out", equivalence=_HALF_A_POINT
    ),
    _risk("aurc", "AURC", _GEIFMAN, equivalence=_HALF_A_POINT),
    _risk("e_aurc", "E-AURC", _GEIFMAN, equivalence=_HALF_A_POINT),
    _risk("augrc", "AUGRC", "Traub et al. 2024, by trapezoids from (0, 0)", high=0.5, equivalence=_HALF_A_POINT),
    _risk(
        "risk_at_coverage",
        "risk at coverage",
        "mean risk of the most confident share of the queries (El-Yaniv and Wiener 2010)",
    ),
    _risk(
        "coverage_at_risk",
        "coverage at risk",
        "largest share of the queries, the most confident, of a bounded mean risk (Geifman and El-Yaniv 2017)",
        better="higher",
    ),
    _risk("confidence_auroc", "AUROC", _KIRCHHOF, better="higher", equivalence=_ONE_POINT),
    _calibration(
        "ece_top1",
        "ECE of the top-1",
        "expected calibration error of the probability that the answer is right, 15 bins (Naeini et al. 2015)",
    ),
    _calibration(
        "brier_top1",
        "Brier score of the top-1",
        "mean squared error of the probability that the answer is right (Brier 1950)",
    ),
    _discard(
        "edc_fnmr",
        "FNMR after discarding",
        "false non-match rate of verification (Schlett et al. 2023; Terhoerst et al. 2020)",
    ),
    _discard(
        "edc_pauc",
        "EDC pAUC",
        "area under it to a share of 0.2 minus that of the ideal (Schlett et al. 2023)",
        unit="number",
        low=-0.2,
        high=0.2,
    ),
    _open_set(
        "open_set_auroc",
        "open-set AUROC",
        "detection of queries whose class is in the gallery, ties counted half (HolUE, arXiv:2408.14229)",
        equivalence=_ONE_POINT,
    ),
    _open_set(
        "open_set_oscr",
        "OSCR",
        "area under the correct classification rate over the share of unknown queries accepted (Dhamija et al. 2018)",
        equivalence=_ONE_POINT,
    ),
    _open_set(
        "open_set_tar",
        "open-set TAR",
        "share of known queries accepted and answered rightly at a bounded false accept rate (HolUE)",
    ),
    _operating(
        "operating_coverage",
        "coverage at a set threshold",
        "share of queries whose confidence reaches a threshold that validation classes set",
    ),
    _operating("operating_risk", "risk at a set threshold", "share of wrong ones among these answers", better="lower"),
    _operating(
        "operating_far",
        "FAR at a set threshold",
        "share of different pairs, or of unknown queries, that reach a threshold that validation classes set",
        better="lower",
    ),
    _operating("operating_tar", "TAR at a set threshold", "share of same pairs, or of known queries, that reach it"),
    _correlation(
        "spearman_confidences",
        "rho of confidences",
        "Spearman correlation of two confidences of the same queries",
        group="confidence_correlation",
        better="",
        on_request=True,
    ),
    _correlation(
        "spearman_human_entropy",
        "rho with human agreement",
        "Spearman correlation with minus the entropy of people's labels",
        group="soft_labels",
    ),
    _correlation(
        "kendall_human_entropy",
        "tau with human agreement",
        "Kendall's tau-b with minus the entropy of people's labels",
        group="soft_labels",
    ),
    _regret(
        "augrc_regret",
        "AUGRC regret",
        "AUGRC minus that of the posterior probability that the answer is right (the rule of Chow 1970)",
        low=-0.5,
        high=0.5,
    ),
    _regret(
        "observer_augrc",
        "AUGRC of the observer",
        "AUGRC of the posterior probability that the answer is right",
        high=0.5,
    ),
    _correlation(
        "spearman_posterior_entropy",
        "rho with known ambiguity",
        "Spearman correlation with minus the entropy of the exact posterior",
        group="ambiguity",
    ),
    _correlation("spearman_{kind}", "{kind} rho", "PER, Table 5", group="quality"),
    _correlation("kendall_{kind}", "{kind} tau", "Kendall 1945 (tau-b)", group="quality"),
    _confidence(
        "paired_{kind}",
        "P(clean > {kind})",
        f"share of images that are less confident once corrupted, ties counted half; {_KIRCHHOF}",
        group="quality",
        equivalence=_ONE_POINT,
    ),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
"""Every metric of the built-in tests by name."""


def known_metrics() -> dict[str, Metric]:
    """All metrics by name: the built-in ones, then those declared by the tests of plug-ins, which must be new."""
    known = dict(METRICS)
    for declared in declared_tests():
        for metric in declared.metrics:
            if not isinstance(metric, Metric):
                raise ValueError(f"{declared.module} declares {metric!r}, which is not a Metric")
            if known.setdefault(metric.name, metric) != metric:
                taken = known[metric.name]
                raise ValueError(
                    f"the tests {declared.group!r} declare the metric {metric.name!r}, which already exists (tests"
                    f" {taken.group!r}); give it another name"
                )
    return known


def find_metric(name: str) -> Metric | None:
    """Metric, or family of metrics, that a name such as ``recall_at_16`` belongs to; None if there is none."""
    known = known_metrics()
    if name in known:
        return known[name]
    return next((metric for metric in known.values() if metric.family and metric.values(name)), None)


def declared_metric(name: str) -> Metric:
    """Metric, or family of metrics, that a name belongs to; a LookupError if there is none."""
    metric = find_metric(name)
    if metric is None:
        raise LookupError(f"no metric {name!r} is declared")
    return metric


def title_of(name: str, *, short: bool = False) -> str:
    """Title of a metric for tables and figures; of an unknown metric, the name with spaces for underscores.

    Example:
        >>> title_of("recall_at_16"), title_of("paired_crop"), title_of("filter_out_map_at_r")
        ('Recall@16', 'P(clean > crop)', 'MAP@R after removal')
        >>> title_of("recall_at_16", short=True), title_of("nmi", short=True)
        ('R@16', 'NMI')
    """
    metric = find_metric(name)
    if metric is None:
        return name.replace("_", " ")
    values = (metric.values(name) if metric.family else None) or {}
    title = metric.short or metric.title if short else metric.title
    return title.format(**{key: title_of(value) if key == "metric" else value for key, value in values.items()})


def metric_requests() -> dict[str, tuple[str, ...]]:
    """Names of groups of related metrics that ``bench score --metrics`` takes, each with its metrics."""
    requests: dict[str, tuple[str, ...]] = {}
    for metric in known_metrics().values():
        if metric.has_request:
            name = metric.asked_as or metric.group
            requests[name] = (*requests.get(name, ()), *(metric.members or (metric.name,)))
    return requests


def default_requests() -> tuple[str, ...]:
    """Names of the groups of related metrics that ``bench score`` computes if none is asked for."""
    return tuple(dict.fromkeys(m.asked_as or m.group for m in METRICS.values() if m.default))


def metric_help() -> str:
    """Help text of a command-line option that takes names of metrics."""
    return (
        f"Any of {', '.join(metric_requests())}, all, single ones such as recall_at_16 or nmi, or"
        " groups of tests of plug-ins."
        f" Default: {','.join(default_requests())}."
    )
