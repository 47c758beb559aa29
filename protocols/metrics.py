"""The table of metrics: each is declared once, and tables, figures, help and docs derive from it.

Light: importing it loads no array library.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from .declare import Metric as Metric
from .declare import declared_tests

_MUSGRAVE = "Musgrave et al. 2020, Section 3"
_ROTH = "Roth et al. 2020"
_GEIFMAN = "Geifman et al. 2019"
_KIRCHHOF = "Kirchhof et al. 2023 (URL benchmark)"
_HALF_A_POINT = 0.005
_ONE_POINT = 0.01
_INFINITE = float("inf")


def _table(*metrics: Metric) -> dict[str, Metric]:
    table = {metric.name: metric for metric in metrics}
    if len(table) < len(metrics):
        raise ValueError("a metric is declared twice")
    return table


# What metrics have in common; calls may override it.
_retrieval = partial(Metric, group="retrieval", equivalence=_HALF_A_POINT)
_verification = partial(Metric, group="verification", equivalence=_HALF_A_POINT)
_clusters = partial(Metric, group="clustering", of="embeddings")
_structure = partial(Metric, group="structure", of="embeddings", better="", unit="number")
_risk = partial(Metric, group="risk", of="confidence", better="lower")
_calibration = partial(Metric, group="calibration", of="confidence", better="lower")
_discard = partial(Metric, group="discard", of="confidence", better="lower", on_request=True)
_regret = partial(Metric, group="ambiguity", of="confidence", better="lower", equivalence=_HALF_A_POINT)
_open_set = partial(Metric, group="open_set", of="confidence", on_request=True)
_operating = partial(Metric, group="operating", of="confidence", better="lower")
_correlation = partial(Metric, of="confidence", unit="correlation", low=-1.0)

_RANKED = (
    _retrieval(
        name="recall_at_{k}",
        title="Recall@{k}",
        asked_as="recall",
        members=("recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8"),
        short="R@{k}",
        source="share of queries with a positive among the k nearest (Oh Song et al. 2016)",
        default=True,
    ),
    _retrieval(name="map_at_r", title="MAP@R", asked_as="map_at_r", source=_MUSGRAVE, default=True),
    _retrieval(
        name="r_precision", title="R-Precision", asked_as="r_precision", short="R-Prec", source=_MUSGRAVE, default=True
    ),
    _retrieval(name="precision_at_1", title="Precision@1", asked_as="precision_at_1", source=_MUSGRAVE),
    Metric(name="map_at_1000", title="MAP@1000", group="map_at_1000", source=_ROTH, equivalence=_HALF_A_POINT),
    _verification(
        name="verification_accuracy",
        title="verification accuracy",
        short="Ver. acc.",
        source="share of pairs that a threshold decides rightly (PER)",
    ),
    _verification(
        name="verification_auc",
        title="verification AUC",
        short="Ver. AUC",
        source="area under the ROC curve, ties counted half",
        equivalence=_ONE_POINT,
    ),
    _verification(
        name="verification_eer",
        title="verification EER",
        better="lower",
        source="rate at which false accepts equal false rejects",
    ),
    _verification(
        name="verification_tpr_at_fpr",
        title="verification TPR",
        source="largest true positive rate at a bounded false positive rate",
        equivalence=0.0,
    ),
    Metric(
        name="set_size_at_90",
        title="size of sets for 90 %",
        group="retrieval_sets",
        better="lower",
        unit="number",
        high=_INFINITE,
        source="number of nearest images that are to contain a positive of 90 % of the queries (split conformal)",
    ),
    Metric(
        name="set_coverage_at_90",
        title="coverage of sets for 90 %",
        group="retrieval_sets",
        source="share of queries with a positive among these; what it lacks to 0.9 is the shortfall",
    ),
    Metric(
        name="opis",
        title="OPIS",
        group="threshold_consistency",
        better="lower",
        unit="number",
        high=0.25,
        source="variance over classes of the utility of one threshold (Zhang et al. 2024)",
    ),
)
_DIRECTIONS = (
    _clusters(name="nmi", title="NMI", source=_ROTH),
    _clusters(name="ami", title="AMI", low=-1.0, source="Vinh et al. 2010, Eq. 15"),
    _clusters(name="pair_f1", title="pair F1", source=_ROTH),
    _structure(name="spectral_decay", title="spectral decay", high=_INFINITE, source=_ROTH),
    _structure(name="density", title="density", high=_INFINITE, source=_ROTH),
    _structure(name="uniformity", title="uniformity", source="Wang and Isola 2020, without the logarithm"),
    _structure(name="class_concentration", title="class concentration", high=_INFINITE, source="NIR, Table 3"),
    _structure(name="cluster_diversity", title="cluster diversity", high=4.0, source="EL-nivMF, Table 5"),
)
_CONFIDENCES = (
    Metric(
        name="filter_out_{metric}",
        title="{metric} after removal",
        group="filter_out",
        of="confidence",
        source="PER, Figure 3",
        equivalence=_HALF_A_POINT,
    ),
    _risk(name="aurc", title="AURC", source=_GEIFMAN, equivalence=_HALF_A_POINT),
    _risk(name="e_aurc", title="E-AURC", source=_GEIFMAN, equivalence=_HALF_A_POINT),
    _risk(
        name="augrc",
        title="AUGRC",
        high=0.5,
        source="Traub et al. 2024, by trapezoids from (0, 0)",
        equivalence=_HALF_A_POINT,
    ),
    _risk(
        name="risk_at_coverage",
        title="risk at coverage",
        source="mean risk of the most confident share of the queries (El-Yaniv and Wiener 2010)",
    ),
    _risk(
        name="coverage_at_risk",
        title="coverage at risk",
        better="higher",
        source="largest share of the queries, the most confident, of a bounded mean risk (Geifman and El-Yaniv 2017)",
    ),
    _risk(name="confidence_auroc", title="AUROC", better="higher", source=_KIRCHHOF, equivalence=_ONE_POINT),
    _calibration(
        name="ece_top1",
        title="ECE of the top-1",
        source="expected calibration error of the probability that the answer is right, 15 bins (Naeini et al. 2015)",
    ),
    _calibration(
        name="brier_top1",
        title="Brier score of the top-1",
        source="mean squared error of the probability that the answer is right (Brier 1950)",
    ),
    _discard(
        name="edc_fnmr",
        title="FNMR after discarding",
        source="false non-match rate of verification (Schlett et al. 2023; Terhoerst et al. 2020)",
    ),
    _discard(
        name="edc_pauc",
        title="EDC pAUC",
        unit="number",
        low=-0.2,
        high=0.2,
        source="area under it to a share of 0.2 minus that of the ideal (Schlett et al. 2023)",
    ),
    _open_set(
        name="open_set_auroc",
        title="open-set AUROC",
        source="detection of queries whose class is in the gallery, ties counted half (HolUE, arXiv:2408.14229)",
        equivalence=_ONE_POINT,
    ),
    _open_set(
        name="open_set_oscr",
        title="OSCR",
        source="area under the correct classification rate over the share of unknown queries accepted (Dhamija et al."
        " 2018)",
        equivalence=_ONE_POINT,
    ),
    _open_set(
        name="open_set_tar",
        title="open-set TAR",
        source="share of known queries accepted and answered rightly at a bounded false accept rate (HolUE)",
    ),
    _operating(
        name="operating_coverage",
        title="coverage at a set threshold",
        better="higher",
        source="share of queries whose confidence reaches a threshold that validation classes set",
    ),
    _operating(
        name="operating_risk",
        title="risk at a set threshold",
        source="share of wrong ones among these answers",
    ),
    _operating(
        name="operating_far",
        title="FAR at a set threshold",
        source="share of different pairs, or of unknown queries, that reach a threshold that validation classes set",
    ),
    _operating(
        name="operating_tar",
        title="TAR at a set threshold",
        better="higher",
        source="share of same pairs, or of known queries, that reach it",
    ),
    _correlation(
        name="spearman_confidences",
        title="rho of confidences",
        group="confidence_correlation",
        better="",
        on_request=True,
        source="Spearman correlation of two confidences of the same queries",
    ),
    _correlation(
        name="spearman_human_entropy",
        title="rho with human agreement",
        group="soft_labels",
        source="Spearman correlation with minus the entropy of people's labels",
    ),
    _correlation(
        name="kendall_human_entropy",
        title="tau with human agreement",
        group="soft_labels",
        source="Kendall's tau-b with minus the entropy of people's labels",
    ),
    _regret(
        name="augrc_regret",
        title="AUGRC regret",
        low=-0.5,
        high=0.5,
        source="AUGRC minus that of the posterior probability that the answer is right (the rule of Chow 1970)",
    ),
    _regret(
        name="observer_augrc",
        title="AUGRC of the observer",
        high=0.5,
        source="AUGRC of the posterior probability that the answer is right",
    ),
    _correlation(
        name="spearman_posterior_entropy",
        title="rho with known ambiguity",
        group="ambiguity",
        source="Spearman correlation with minus the entropy of the exact posterior",
    ),
    _correlation(name="spearman_{kind}", title="{kind} rho", group="quality", source="PER, Table 5"),
    _correlation(name="kendall_{kind}", title="{kind} tau", group="quality", source="Kendall 1945 (tau-b)"),
    Metric(
        name="paired_{kind}",
        title="P(clean > {kind})",
        group="quality",
        of="confidence",
        source=f"share of images that are less confident once corrupted, ties counted half; {_KIRCHHOF}",
        equivalence=_ONE_POINT,
    ),
)

METRICS: Mapping[str, Metric] = _table(*_RANKED, *_DIRECTIONS, *_CONFIDENCES)
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
