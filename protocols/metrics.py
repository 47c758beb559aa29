"""The table of metrics: each is declared once, and tables, figures, help and docs derive from it.

Light: importing it loads no array library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from .declare import declared_tests

Better = Literal["higher", "lower", ""]
Of = Literal["ranking", "confidence", "embeddings"]
Unit = Literal["share", "correlation", "number"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Description of a metric, or of a family such as Recall@k, in tidy tables (one row per value).

    Attributes:
        name: Name in the column ``metric``; a parametrised family has a placeholder in braces, as in ``recall_at_{k}``.
        title: Heading in tables and figures; placeholders as in the name.
        group: Name of the group of tests that computes it.
        asked_as: Name that selects it and related metrics in the option ``--metrics`` of ``bench score``, which tests a
            file of embeddings; if empty, the name of its group.
        better: ``higher`` or ``lower``; empty if neither is better.
        of: Subject of the metric: ``ranking`` (by a similarity), ``confidence``, or ``embeddings``. Metrics of a
            confidence are computed whenever there is one, unless they are ``on_request``; the others on request or by
            ``default``.
        unit: ``share`` (printed in percent), ``correlation`` in [-1, 1], or a plain ``number``.
        low: Smallest possible value.
        high: Largest possible value.
        members: Names of the members of a family that are computed if none is named.
        source: Publication that defines it.
        default: Whether ``bench score`` computes it by default.
        on_request: Whether ``bench score`` computes this metric of a confidence on request only.
        short: Heading in tables with little space; the title if empty.
        equivalence: Largest difference of two methods without practical meaning, by which verdicts call them
            equivalent; 0 if there is no such convention.

    Raises:
        ValueError: If a field has an unknown value, the range is empty, or ``equivalence`` is not inside it.
    """

    name: str
    title: str
    group: str
    asked_as: str = ""
    better: Better = "higher"
    of: Of = "ranking"
    unit: Unit = "share"
    low: float = 0.0
    high: float = 1.0
    members: tuple[str, ...] = ()
    source: str = ""
    default: bool = False
    on_request: bool = False
    short: str = ""
    equivalence: float = 0.0

    def __post_init__(self) -> None:
        for field, known in (("better", Better), ("of", Of), ("unit", Unit)):
            value = getattr(self, field)
            if value not in get_args(known):
                legal = ", ".join(map(repr, get_args(known)))
                raise ValueError(f"metric {self.name!r}: {field} must be one of {legal}, not {value!r}")
        if not self.low < self.high:
            raise ValueError(f"metric {self.name!r}: low={self.low:g} is not below high={self.high:g}")
        if not 0 <= self.equivalence < self.high - self.low:
            raise ValueError(f"metric {self.name!r}: equivalence={self.equivalence:g} is negative or spans the range")

    @property
    def family(self) -> bool:
        """True if the name has a placeholder, as in ``recall_at_{k}``, so that it describes several metrics."""
        return "{" in self.name

    def values(self, name: str) -> dict[str, str] | None:
        """Values of the placeholders of this family in the full name of a metric; None if that is no member.

        Example:
            >>> METRICS["recall_at_{k}"].values("recall_at_4")
            {'k': '4'}
        """
        pattern = re.sub(r"\\\{(\w+)\\\}", _placeholder, re.escape(self.name))
        match = re.fullmatch(pattern, name)
        return match and match.groupdict()

    @property
    def has_request(self) -> bool:
        """False for metrics of a confidence that are computed whenever there is one, so that nobody asks for them."""
        return self.of != "confidence" or self.on_request

    @property
    def sign(self) -> int:
        """-1 if lower values are better, else 1."""
        return -1 if self.better == "lower" else 1


def _placeholder(match: re.Match[str]) -> str:
    number = r"[1-9]\d{0,5}"
    return f"(?P<{match[1]}>{number if match[1] == 'k' else '[a-z][a-z0-9_]*'})"


_MUSGRAVE = "Musgrave et al. 2020, Section 3"
_ROTH = "Roth et al. 2020"
_GEIFMAN = "Geifman et al. 2019"
_HALF_A_POINT = 0.005
_ONE_POINT = 0.01
_KIRCHHOF = "Kirchhof et al. 2023 (URL benchmark)"


def _table(*metrics: Metric) -> dict[str, Metric]:
    table = {metric.name: metric for metric in metrics}
    if len(table) < len(metrics):
        raise ValueError("a metric is declared twice")
    return table


_RANKED = (
    Metric(
        name="recall_at_{k}",
        title="Recall@{k}",
        group="retrieval",
        asked_as="recall",
        members=("recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8"),
        short="R@{k}",
        source="share of queries with a positive among the k nearest (Oh Song et al. 2016)",
        default=True,
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="map_at_r",
        title="MAP@R",
        group="retrieval",
        asked_as="map_at_r",
        source=_MUSGRAVE,
        default=True,
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="r_precision",
        title="R-Precision",
        group="retrieval",
        asked_as="r_precision",
        short="R-Prec",
        source=_MUSGRAVE,
        default=True,
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="precision_at_1",
        title="Precision@1",
        group="retrieval",
        asked_as="precision_at_1",
        source=_MUSGRAVE,
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="map_at_1000",
        title="MAP@1000",
        group="map_at_1000",
        source=_ROTH,
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="verification_accuracy",
        title="verification accuracy",
        group="verification",
        short="Ver. acc.",
        source="share of pairs that a threshold decides rightly (PER)",
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="verification_auc",
        title="verification AUC",
        group="verification",
        short="Ver. AUC",
        source="area under the ROC curve, ties counted half",
        equivalence=_ONE_POINT,
    ),
    Metric(
        name="verification_eer",
        title="verification EER",
        group="verification",
        better="lower",
        source="rate at which false accepts equal false rejects",
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="verification_tpr_at_fpr",
        title="verification TPR",
        group="verification",
        source="largest true positive rate at a bounded false positive rate",
    ),
    Metric(
        name="set_size_at_90",
        title="size of sets for 90 %",
        group="retrieval_sets",
        better="lower",
        unit="number",
        high=float("inf"),
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
    Metric(name="nmi", title="NMI", group="clustering", of="embeddings", source=_ROTH),
    Metric(name="ami", title="AMI", group="clustering", of="embeddings", low=-1.0, source="Vinh et al. 2010, Eq. 15"),
    Metric(name="pair_f1", title="pair F1", group="clustering", of="embeddings", source=_ROTH),
    Metric(
        name="spectral_decay",
        title="spectral decay",
        group="structure",
        better="",
        of="embeddings",
        unit="number",
        high=float("inf"),
        source=_ROTH,
    ),
    Metric(
        name="density",
        title="density",
        group="structure",
        better="",
        of="embeddings",
        unit="number",
        high=float("inf"),
        source=_ROTH,
    ),
    Metric(
        name="uniformity",
        title="uniformity",
        group="structure",
        better="",
        of="embeddings",
        unit="number",
        source="Wang and Isola 2020, without the logarithm",
    ),
    Metric(
        name="class_concentration",
        title="class concentration",
        group="structure",
        better="",
        of="embeddings",
        unit="number",
        high=float("inf"),
        source="NIR, Table 3",
    ),
    Metric(
        name="cluster_diversity",
        title="cluster diversity",
        group="structure",
        better="",
        of="embeddings",
        unit="number",
        high=4.0,
        source="EL-nivMF, Table 5",
    ),
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
    Metric(
        name="aurc",
        title="AURC",
        group="risk",
        better="lower",
        of="confidence",
        source=_GEIFMAN,
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="e_aurc",
        title="E-AURC",
        group="risk",
        better="lower",
        of="confidence",
        source=_GEIFMAN,
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="augrc",
        title="AUGRC",
        group="risk",
        better="lower",
        of="confidence",
        high=0.5,
        source="Traub et al. 2024, by trapezoids from (0, 0)",
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="risk_at_coverage",
        title="risk at coverage",
        group="risk",
        better="lower",
        of="confidence",
        source="mean risk of the most confident share of the queries (El-Yaniv and Wiener 2010)",
    ),
    Metric(
        name="coverage_at_risk",
        title="coverage at risk",
        group="risk",
        of="confidence",
        source="largest share of the queries, the most confident, of a bounded mean risk (Geifman and El-Yaniv 2017)",
    ),
    Metric(
        name="confidence_auroc",
        title="AUROC",
        group="risk",
        of="confidence",
        source=_KIRCHHOF,
        equivalence=_ONE_POINT,
    ),
    Metric(
        name="ece_top1",
        title="ECE of the top-1",
        group="calibration",
        better="lower",
        of="confidence",
        source="expected calibration error of the probability that the answer is right, 15 bins (Naeini et al. 2015)",
    ),
    Metric(
        name="brier_top1",
        title="Brier score of the top-1",
        group="calibration",
        better="lower",
        of="confidence",
        source="mean squared error of the probability that the answer is right (Brier 1950)",
    ),
    Metric(
        name="edc_fnmr",
        title="FNMR after discarding",
        group="discard",
        better="lower",
        of="confidence",
        on_request=True,
        source="false non-match rate of verification (Schlett et al. 2023; Terhoerst et al. 2020)",
    ),
    Metric(
        name="edc_pauc",
        title="EDC pAUC",
        group="discard",
        better="lower",
        of="confidence",
        unit="number",
        low=-0.2,
        high=0.2,
        on_request=True,
        source="area under it to a share of 0.2 minus that of the ideal (Schlett et al. 2023)",
    ),
    Metric(
        name="spearman_human_entropy",
        title="rho with human agreement",
        group="soft_labels",
        of="confidence",
        unit="correlation",
        low=-1.0,
        source="Spearman correlation with minus the entropy of people's labels",
    ),
    Metric(
        name="kendall_human_entropy",
        title="tau with human agreement",
        group="soft_labels",
        of="confidence",
        unit="correlation",
        low=-1.0,
        source="Kendall's tau-b with minus the entropy of people's labels",
    ),
    Metric(
        name="augrc_regret",
        title="AUGRC regret",
        group="ambiguity",
        better="lower",
        of="confidence",
        low=-0.5,
        high=0.5,
        source="AUGRC minus that of the posterior probability that the answer is right (the rule of Chow 1970)",
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="observer_augrc",
        title="AUGRC of the observer",
        group="ambiguity",
        better="lower",
        of="confidence",
        high=0.5,
        source="AUGRC of the posterior probability that the answer is right",
        equivalence=_HALF_A_POINT,
    ),
    Metric(
        name="spearman_posterior_entropy",
        title="rho with known ambiguity",
        group="ambiguity",
        of="confidence",
        unit="correlation",
        low=-1.0,
        source="Spearman correlation with minus the entropy of the exact posterior",
    ),
    Metric(
        name="spearman_{kind}",
        title="{kind} rho",
        group="quality",
        of="confidence",
        unit="correlation",
        low=-1.0,
        source="PER, Table 5",
    ),
    Metric(
        name="kendall_{kind}",
        title="{kind} tau",
        group="quality",
        of="confidence",
        unit="correlation",
        low=-1.0,
        source="Kendall 1945 (tau-b)",
    ),
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


def metric_groups() -> Iterator[tuple[str, tuple[Metric, ...]]]:
    """Names of the groups of tests of embeddings, each with its metrics, built-in ones first."""
    known = known_metrics().values()
    for group in dict.fromkeys(metric.group for metric in known):
        yield group, tuple(metric for metric in known if metric.group == group)


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
