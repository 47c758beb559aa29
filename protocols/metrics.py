"""The table of metrics: each is declared once, and tables, figures, help and docs derive from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower", ""]
Unit = Literal["share", "correlation", "number"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of the tidy table.

    Attributes:
        name: Name in the column ``metric``; a family has a placeholder in braces, as in ``recall_at_{k}``.
        title: Heading in tables and figures; placeholders as in the name.
        group: Name that asks for it together with its relatives.
        better: Which direction is better; empty if neither is.
        of: What it is about: ``ranking`` (a scorer), ``confidence``, or ``embeddings``.
        unit: ``share`` (printed in percent), ``correlation`` in [-1, 1], or a plain ``number``.
        low: Smallest value.
        high: Largest value.
        needs: Attributes of :class:`~bench.protocols.embeddings.Embeddings` without which it is left out.
        source: Where it is defined.
        default: Whether ``bench score`` computes it without being asked.
        short: Heading in tables with little space; the title if empty.
    """

    name: str
    title: str
    group: str
    better: Better = "higher"
    of: Literal["ranking", "confidence", "embeddings"] = "ranking"
    unit: Unit = "share"
    low: float = 0.0
    high: float = 1.0
    needs: tuple[str, ...] = ()
    source: str = ""
    default: bool = False
    short: str = ""

    @property
    def family(self) -> bool:
        """Whether it stands for many metrics."""
        return "{" in self.name

    def values(self, name: str) -> dict[str, str] | None:
        """Values of the placeholders in a name of this family; None if it is no member.

        Example:
            >>> METRICS["recall_at_{k}"].values("recall_at_4")
            {'k': '4'}
        """
        pattern = re.sub(r"\\\{(\w+)\\\}", _placeholder, re.escape(self.name))
        found = re.fullmatch(pattern, name)
        return found and found.groupdict()

    @property
    def sign(self) -> int:
        """1 if higher is better, -1 if lower is."""
        return -1 if self.better == "lower" else 1


def _placeholder(found: re.Match[str]) -> str:
    number = r"[1-9]\d{0,5}"
    return f"(?P<{found[1]}>{number if found[1] == 'k' else '[a-z0-9_]+'})"


_MUSGRAVE = "Musgrave et al. 2020, Section 3"
_ROTH = "Roth et al. 2020"
_GEIFMAN = "Geifman et al. 2019"


def _table(*metrics: Metric) -> dict[str, Metric]:
    found = {metric.name: metric for metric in metrics}
    if len(found) < len(metrics):
        raise ValueError("a metric is declared twice")
    return found


METRICS: Mapping[str, Metric] = _table(
    Metric(
        name="recall_at_{k}", title="Recall@{k}", group="recall", source="PER, Section 4", default=True, short="R@{k}"
    ),
    Metric(name="map_at_r", title="MAP@R", group="map_at_r", source=_MUSGRAVE, default=True),
    Metric(
        name="r_precision", title="R-Precision", group="r_precision", source=_MUSGRAVE, default=True, short="R-Prec"
    ),
    Metric(name="precision_at_1", title="Precision@1", group="precision_at_1", source=_MUSGRAVE),
    Metric(name="map_at_1000", title="MAP@1000", group="map_at_1000", source=_ROTH),
    Metric(
        name="verification_accuracy",
        title="verification accuracy",
        group="verification",
        source="PER, Section 4",
        short="Ver. acc.",
    ),
    Metric(
        name="verification_auc",
        title="verification AUC",
        group="verification",
        source="area under the ROC curve",
        short="Ver. AUC",
    ),
    Metric(
        name="verification_eer",
        title="verification EER",
        group="verification",
        better="lower",
        source="rate at which false accepts equal false rejects",
    ),
    Metric(name="verification_tpr_at_fpr", title="verification TPR", group="verification", source="PFE, Section 5"),
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
        source="Wang and Isola 2020",
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
        name="filter_out_{metric}",
        title="{metric} after removal",
        group="filter_out",
        of="confidence",
        source="PER, Figure 2",
    ),
    Metric(name="aurc", title="AURC", group="risk", better="lower", of="confidence", source=_GEIFMAN),
    Metric(name="e_aurc", title="E-AURC", group="risk", better="lower", of="confidence", source=_GEIFMAN),
    Metric(name="confidence_auroc", title="AUROC", group="risk", of="confidence", source="Kirchhof et al. 2023"),
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
        source="share of images that are less confident once corrupted, ties counted half",
    ),
)
"""Every metric by name."""


def find_metric(name: str) -> Metric | None:
    """Metric of a name in the tidy table, or None.

    Example:
        >>> find_metric("recall_at_16").title, find_metric("filter_out_recall_at_1").group
        ('Recall@{k}', 'filter_out')
    """
    if name in METRICS:
        return METRICS[name]
    return next((metric for metric in METRICS.values() if metric.family and metric.values(name)), None)


def title_of(name: str, *, short: bool = False) -> str:
    """Title of a name in the tidy table, or its short heading.

    Example:
        >>> title_of("recall_at_16"), title_of("paired_crop"), title_of("nmi")
        ('Recall@16', 'P(clean > crop)', 'NMI')
        >>> title_of("recall_at_16", short=True), title_of("nmi", short=True)
        ('R@16', 'NMI')
    """
    metric = find_metric(name)
    if metric is None:
        return name.replace("_", " ")
    values = (metric.values(name) if metric.family else None) or {}
    title = metric.short or metric.title if short else metric.title
    return title.format(**{key: title_of(value) if key == "metric" else value for key, value in values.items()})


def groups() -> Iterator[tuple[str, tuple[Metric, ...]]]:
    """Every group with its metrics, in the order of the table."""
    for group in dict.fromkeys(metric.group for metric in METRICS.values()):
        yield group, tuple(metric for metric in METRICS.values() if metric.group == group)
