"""What tables and figures say about a metric is what the table of metrics declares."""

from __future__ import annotations

import pytest
from bench.protocols.metrics import find_metric
from bench.report.comparison import NOTE
from bench.report.figures.filter_out import CURVES
from bench.report.seeds import COMPARED


@pytest.mark.parametrize("name", [*(column.metric for column in COMPARED), *CURVES])
def test_every_metric_of_the_comparison_and_the_curves_is_declared_with_its_direction(name):
    metric = find_metric(name)
    assert (metric.better, metric.sign) == (("lower", -1) if name == "aurc" else ("higher", 1))


def test_the_note_names_every_column_that_is_not_in_percent_or_better_if_lower():
    for column in COMPARED:
        assert (f"`{column.title}`" in NOTE) == (not column.percent)
        assert (f"{column.title} (on crops): lower is better" in NOTE) == (column.sign < 0)
