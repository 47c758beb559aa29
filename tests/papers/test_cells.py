"""Cells: what is read of the tidy table, what follows from other cells, how ours and theirs are written."""

import math

import pandas as pd
import pytest
from bench.papers.items import Column, Reads, Row, find_item
from bench.papers.run import plan_item
from bench.papers.tables import build_table, derived, read
from bench.report.contender import Contender
from bench.report.render import files_of
from bench.report.seeds import SeedGroup, SeedStatistics
from bench.site import Site
from bench.store.specs import Pinned

CONTENDER = Contender("p", "q", "d", "m", "", "corrected", "default", 0, Pinned(), "convnet", 8, "")


def _group(lines):
    """Seeds of one contender whose own scorer is ``mls`` and whose confidence is ``method``."""
    usual = {
        **CONTENDER._asdict(), "split": "test", "scorer": "", "confidence": "", "variant": "", "fraction": math.nan,
        "primary_scorer": "mls", "default_confidence": "method", "probabilistic": True, "trainings": 0,
    }  # fmt: skip
    return SeedGroup.of(pd.DataFrame([{**usual, **line} for line in lines]))


def test_a_cell_reads_its_scorer_confidence_variant_and_share():
    group = _group(
        [
            {"seed": seed, "metric": "map_at_r", "scorer": scorer, "variant": variant, "value": value + seed}
            for scorer, variant, value in (("mls", "", 10.0), ("mls", "reranked", 20.0), ("cosine", "", 30.0))
            for seed in (0, 1)
        ]
        + [{"seed": 0, "metric": "rho", "confidence": name, "value": v} for name, v in (("method", 1.0), ("norm", 2.0))]
        + [{"seed": 0, "metric": "curve", "fraction": share, "value": share} for share in (0.1, 0.3)]
        + [{"seed": 0, "metric": "spread", "scorer": "cosine", "value": 7.0}]
    )
    assert read(group, Reads(metric="map_at_r")) == {0: 10.0, 1: 11.0}
    assert read(group, Reads(metric="map_at_r", variant=("reranked", ""))) == {0: 20.0, 1: 21.0}
    assert read(group, Reads(metric="map_at_r", variant=("reranked", ""), scorer="cosine")) == {0: 30.0, 1: 31.0}
    assert read(group, Reads(metric="map_at_r", split="test_crop")) == {}
    assert read(group, Reads(metric="rho", confidence="own")) == {0: 1.0}
    assert read(group, Reads(metric="rho", confidence="norm")) == {0: 2.0}
    assert read(group, Reads(metric="curve", fraction=0.30000000000000004)) == {0: 0.3}
    assert read(group, Reads(metric="curve")) == {}
    assert read(group, Reads(metric="spread")) == {}  # the scorer of this metric is not the method's own
    assert read(group, Reads(metric="spread", scorer="cosine")) == {0: 7.0}


def test_differences_changes_ratios_and_the_smallest_follow_seed_by_seed():
    rows = (
        Row(title="a", method="m"), Row(title="b", method="m"), Row(title="b - a", of=("b", "a"), how="difference"),
        Row(title="change", of=("b", "a"), how="relative change", columns=("x",)),
        Row(title="least", of=("a", "b"), how="smallest", columns=("x - y",)),
    )  # fmt: skip
    columns = (
        Column(title="x", reads=Reads(metric="x")), Column(title="y", reads=Reads(metric="y")),
        Column(title="x - y", of=("x", "y"), how="difference"),
        Column(title="ratio", of=("x",), how="ratio to the first row"),
    )  # fmt: skip
    cells = {("a", "x"): {0: 4.0, 1: 5.0}, ("a", "y"): {0: 1.0, 1: 1.0}, ("b", "x"): {0: 5.0, 2: 9.0}}
    known = derived(cells, rows, columns)
    assert known["a", "x - y"] == {0: 3.0, 1: 4.0}
    assert known["b", "x - y"] == {}
    assert known["b - a", "x"] == {0: 1.0}  # the only seed of both
    assert known["change", "x"] == {0: 25.0}
    assert known["b", "ratio"] == {0: 1.25}
    assert known["a", "ratio"] == {0: 1.0, 1: 1.0}
    assert known["least", "x - y"] == {0: 3.5}
    assert ("change", "y") not in known


def test_a_relative_change_from_a_negative_value_keeps_its_sign():
    """Feature diversity is minus the spectral decay: a fall of the decay by a fifth is a rise by 20 %."""
    rows = (
        Row(title="old", method="m"), Row(title="new", method="m"),
        Row(title="change", of=("new", "old"), how="relative change"),
    )  # fmt: skip
    cells = {("old", "d"): {0: -0.5}, ("new", "d"): {0: -0.4}}
    known = derived(cells, rows, (Column(title="d", reads=Reads(metric="d")),))
    assert known["change", "d"] == {0: pytest.approx(20.0)}


def test_a_cell_shows_missing_seeds():
    assert SeedStatistics.of({0: 1.0, 1: 3.0, 2: math.nan}).text(2) == "2.00 ± 1.41 [2/3]"
    assert SeedStatistics.of({}).text(1) == "-"


def test_ours_stands_beside_the_published_number(layouts, tmp_path):
    site = Site(results=str(tmp_path), data_root=str(layouts["cub200"]), weights="none")
    options = {"set": ("data.classes_per_batch=2",)}
    planned = plan_item(find_item("per/table5"), "cub200", options, site)
    made = build_table(planned, {("SCF", "Spearman's rho"): {0: 0.5, 1: 0.6}})
    markdown, latex, frame = files_of(made)["cub200.md"], files_of(made)["cub200.tex"], made.numbers
    assert "| SCF | 0.550 ± 0.071 \\| 0.528 ± 0.036 |" in markdown
    assert "| HIB | \\- \\| 0.223 ± 0.120 |" in markdown
    assert "SCF & 0.550 $\\pm$ 0.071 $\\mid$ 0.528 $\\pm$ 0.036 \\\\" in latex
    line = frame.set_index("row").loc["SCF"]
    assert (line["ours_mean"], line["published_mean"], line["ours_seeds"]) == (pytest.approx(0.55), 0.528, 2)
    assert "minus is read as a typesetting" in line["published_note"]
    assert "\npublished SCF, Spearman's rho: printed as" in markdown


def test_quoted_rows_have_published_numbers_only(layouts, tmp_path):
    site = Site(results=str(tmp_path), data_root=str(layouts["cub200"]), weights="none")
    options = {"set": ("data.classes_per_batch=2",)}
    planned = plan_item(find_item("el/table2"), "cub200", options, site)
    table = build_table(planned, {})
    (shown,) = table.tables
    lines = {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in shown.rows}
    assert lines["Margin, R50/128"] == ["- | 63.6", "- | 74.4", "- | 69.0"]
    assert [column.title for column in shown.columns[1:]] == ["R@1", "R@2", "NMI"]  # R@10 is of SOP
    assert "PANC + EL-nivMF, R50/512" in lines
