"""What tables and figures say about a metric is what the table of metrics declares."""

from __future__ import annotations

import pytest
from bench.protocols.metrics import METRICS, find_metric, title_of
from bench.report.comparison import NOTE
from bench.report.figures.filter_out import CURVES
from bench.report.seeds import COMPARED

DIRECTIONS = {
    "recall_at_1": 1,
    "map_at_r": 1,
    "r_precision": 1,
    "verification_accuracy": 1,
    "verification_auc": 1,
    "spearman_crop": 1,
    "paired_crop": 1,
    "aurc": -1,
    "filter_out_map_at_r": 1,
    "filter_out_recall_at_1": 1,
}


@pytest.mark.parametrize("name", [*(column.metric for column in COMPARED), *CURVES])
def test_every_metric_of_the_comparison_and_the_curves_is_declared_with_its_direction(name):
    metric = find_metric(name)
    assert metric is not None
    assert metric.better == {1: "higher", -1: "lower"}[DIRECTIONS[name]]
    assert metric.sign == DIRECTIONS[name]


def test_columns_of_the_comparison_follow_from_their_metrics():
    for column in COMPARED:
        metric = find_metric(column.metric)
        assert column.declared is metric
        assert column.sign == metric.sign
        assert column.percent == (metric.unit == "share")
        assert column.of_confidence == (metric.of == "confidence")
    titles = ["R@1", "MAP@R", "R-Prec", "Ver. acc.", "Ver. AUC", "Crop rho", "P(clean > crop)", "AURC"]
    assert [column.title for column in COMPARED] == titles


def test_curves_are_titled_as_the_metric_that_they_filter():
    assert [title_of(name.removeprefix("filter_out_")) for name in CURVES] == ["MAP@R", "Recall@1"]
    for name in CURVES:
        values = METRICS["filter_out_{metric}"].values(name)
        assert find_metric(values["metric"]).better == find_metric(name).better


def test_the_note_names_every_column_that_is_not_in_percent_or_better_if_lower():
    for column in COMPARED:
        assert (f"`{column.title}`" in NOTE) == (not column.percent)
        assert (f"{column.title} (on crops): lower is better" in NOTE) == (column.sign < 0)
