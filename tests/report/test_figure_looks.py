"""Figures of many methods: looks that depend on the method alone, few coloured lines in a panel, and the same bytes."""

from statistics import fmean, stdev
from types import SimpleNamespace

import matplotlib.colors
import numpy as np
import pytest
import torch
from bench.protocols.confidence import risk_coverage
from bench.registry import Registry
from bench.report.figures import filter_out
from bench.report.figures.curves import MOST_CURVES, Curve, Panel, curve_figure, seed_points
from bench.report.figures.filter_out import risk_figure, risk_table
from bench.report.figures.registry import labelled
from bench.report.figures.style import SLOTS, figure_style, look_at, look_of, looks
from matplotlib.collections import LineCollection

from tests.report.shown import results, roles_of, tidy

METHODS = [f"method_{number:02d}" for number in range(26)]
CONFIDENCES = ("norm", "method", "margin", "top1_score", "random", "oracle")


def _merged(methods, seeds=2):
    """Rows of a data set with filter-out curves and the metrics of the comparison."""
    lines = []
    for place, method in enumerate(methods):
        for seed in range(seeds):
            row = {"protocol": "p", "method": method, "hparams": "tuned", "dim": 8, "seed": seed, "split": "test"}
            for metric in ("filter_out_map_at_r", "filter_out_recall_at_1"):
                for name in CONFIDENCES:
                    for fraction in (0.0, 0.6):
                        for variant in ("query_only", "query_and_gallery"):
                            keys = {"metric": metric, "confidence": name, "fraction": fraction, "variant": variant}
                            lines.append(row | keys | {"value": 0.3 + 0.01 * place + 0.2 * fraction + 0.01 * seed})
            lines.append(row | {"metric": "map_at_r", "value": 0.3 + 0.01 * place + 0.001 * seed * (-1) ** place})
    frame = tidy(lines)
    return results(frame.merge(roles_of(frame, default_confidence="method", probabilistic=True)))


def _coloured(axis):
    """Lines of a panel that have a colour: grey and black are for what is not a contender."""
    rgb = [matplotlib.colors.to_rgb(line.get_color()) for line in axis.lines]
    return [line for line, (red, green, blue) in zip(axis.lines, rgb) if not red == green == blue or not red]


# Looks


def test_the_look_of_a_method_depends_on_nothing_but_its_name():
    names = Registry("methods").names
    assert len(names) > 25
    pairs = {(look_of(name).colour, look_of(name).marker) for name in names}
    assert len(pairs) == len(names)  # each has a pair of its own
    assert look_of(names[5]) == looks([names[9], names[5]])[1] == looks([names[5]])[0]
    assert len({(look_at(slot).colour, look_at(slot).marker) for slot in range(SLOTS)}) == SLOTS
    for slot in range(21):  # methods of one hue differ in marker and in line
        assert look_at(slot).colour == look_at(slot + 7).colour
        assert look_at(slot).marker != look_at(slot + 7).marker
        assert look_at(slot).line != look_at(slot + 7).line


def test_a_method_of_a_plug_in_keeps_its_look_and_takes_none_of_ours():
    ours = {(look_of(name).colour, look_of(name).marker) for name in Registry("methods").names}
    assert look_of("a_plug_in") == look_of("a_plug_in")
    assert {(look_of(name).colour, look_of(name).marker) for name in METHODS}.isdisjoint(ours)


def test_settings_of_a_method_differ_in_line_and_fill():
    first, other, second = looks(["a", "b", "a"])
    assert (first.colour, first.marker) == (second.colour, second.marker)
    assert first.line != second.line
    assert first.fill != second.fill
    assert other.fill == "full"


# Many methods


def _source(merged):
    return SimpleNamespace(datasets=("d",), results=merged)


def _filter_out(merged):
    (drawing,) = filter_out.draw(_source(merged), "d", pytest.fail)
    return drawing.figure


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4, 26])
def test_no_panel_has_more_than_a_few_coloured_lines(count):
    merged, line = _merged(METHODS[:count], seeds=1), np.arange(3.0)
    curves = [Curve(name, look_of(name), line, line + i) for i, name in enumerate(METHODS[:count])]
    with figure_style():
        retrieval, risk = _filter_out(merged), risk_figure(risk_table(merged, "d", "test"), "d")
        alone = curve_figure([Panel("", curves, "y")], x="x", title="t")
    for figure in (retrieval, risk, alone):
        for axis in (axis for axis in figure.axes if axis.get_visible()):
            assert 0 < len(_coloured(axis)) <= 2 * MOST_CURVES
            grey = sum(len(each.get_segments()) for each in axis.collections if isinstance(each, LineCollection))
            # A panel of risk is of one contender, and has the others behind it unless they are few.
            own = [line for line in _coloured(axis) if not line.get_label().startswith("_")]
            assert grey == (count - len(own) if figure is not risk else count - 1 if count > 4 else 0)
    panels = [len([axis for axis in figure.axes if axis.get_visible()]) for figure in (retrieval, risk, alone)]
    assert panels == [4, min(count, MOST_CURVES), 1]
    named = (
        "the 4 with the highest mean" in retrieval.get_suptitle(),
        "all but the 6 of the lowest mean risk" in risk.get_suptitle(),
    )
    assert named == ((True, True) if count == 26 else (False, False))


@pytest.mark.slow
def test_the_best_are_coloured_and_the_rest_counted():
    with figure_style():
        figure = _filter_out(_merged(METHODS))
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == [*(f"{name} [method]" for name in METHODS[-4:]), "22 others"]


def test_a_long_legend_takes_nothing_from_the_panels():
    line = np.arange(3.0)
    curves = [Curve(f"{name}, network,\n4 trials\n[max_cosine]", look_of(name), line, line) for name in METHODS]
    with figure_style():
        figure = curve_figure([Panel("", curves, "y")], x="x", title="t")
        figure.draw_without_rendering()
    assert figure.axes[0].get_position().height * figure.get_figheight() > 2


# The numbers


def test_points_are_means_over_seeds_by_contender():
    merged = _merged(METHODS[:2], seeds=3).rows()
    found = seed_points(list(labelled(merged)), ["metric", "variant", "confidence"], "fraction")
    assert len(found) == 2 * 2 * 2 * len(CONFIDENCES)
    for (number, *rest), points in found.items():
        rows = merged[(merged[["method", "metric", "variant", "confidence"]] == [METHODS[number], *rest]).all(axis=1)]
        plain = [[at, fmean(own), stdev(own)] for at, own in rows.groupby("fraction")["value"]]
        np.testing.assert_allclose(points, plain)


def test_risk_is_one_minus_the_recall_of_the_queries_that_are_kept():
    table = risk_table(_merged(METHODS[:2]), "d", "test")
    assert set(table["kind"]) == {"image", "retrieval", "control"}
    assert set(table[table["kind"] == "retrieval"]["confidence"]) == {"margin", "top1_score"}
    row = table[(table["method"] == METHODS[1]) & (table["seed"] == 1) & (table["confidence"] == "norm")]
    np.testing.assert_allclose(row["coverage"], [1.0, 0.4])
    np.testing.assert_allclose(row["risk"], [0.68, 0.56])
    # As the curve itself is defined: the mean risk of the most confident share.
    risk, confidence = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([4.0, 3.0, 2.0, 1.0])
    assert risk_coverage(confidence, risk)[1] == pytest.approx(1 - (1 - risk)[:2].mean().item())
