"""Forest plots and curves as SVG."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from bench.report.page.svg import COLOURED, MARKS, WIDTH, curves, forest, legend

NAN = float("nan")


def _of(text, look):
    """Elements of a drawing with a class."""
    return [each for each in ET.fromstring(text).iter() if look in each.get("class", "").split()]


def _numbers(path):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", path)]


def test_a_difference_is_drawn_at_its_place():
    # Labels of 5 letters take 5 * 6.8 + 10 = 44 of 344 units, the margin on the right 10: 290 are left for -2 .. 8.
    text = forest([("data", [("a" * 5, 3.0, -1.0, 7.0, "undecided", "")])], width=344, limits=(-2, 8), region=1.0)
    (mark,), (interval,), (zero,), (region,) = (_of(text, look) for look in ("mark", "interval", "zero", "region"))
    assert _numbers(interval.get("d")) == [44 + 29, 31, 44 + 9 * 29]
    assert mark.get("transform") == f"translate({44 + 5 * 29:.1f} 31.0)"
    assert _numbers(zero.get("d")) == [102, 22, 40]
    assert _numbers(region.get("d")) == [44 + 29, 22, 44 + 3 * 29, 40, 44 + 29]
    assert [each.text for each in _of(text, "middle")] == ["-2", "0", "+2", "+4", "+6", "+8"]
    (row,) = _of(text, "undecided")
    assert row.find("title").text == "aaaaa: +3.00 [-1.00, +7.00], undecided"


def test_an_interval_that_leaves_the_axis_ends_in_an_arrow():
    row = ("a", 0.0, -9.0, 1.0, "undecided", "")
    text = forest([("data", [row])], limits=(-2, 2))
    (arrow,), (interval,) = _of(text, "arrow"), _of(text, "interval")
    left, y, _ = _numbers(interval.get("d"))
    assert _numbers(arrow.get("d")) == [left + 5, y - 4, -5, 4, 5, 4]  # its tip is the end of the interval
    assert len(_of(forest([("data", [(*row[:2], -9, 9, *row[4:])])], limits=(-2, 2)), "arrow")) == 2
    assert not _of(forest([("data", [row])]), "arrow")


def test_one_interval_among_many_does_not_set_the_range():
    rows = [("a", 0.5, 0.0, 1.0, "undecided", "")] * 20
    assert _of(forest([("data", rows)]), "middle")[-1].text == "+1"
    text = forest([("data", [*rows, ("far", 0.5, -90.0, 90.0, "undecided", "")])])
    assert _of(text, "middle")[-1].text == "+1"
    assert len(_of(text, "arrow")) == 2


def test_the_form_of_a_marker_says_the_outcome_without_colours():
    rows = [(outcome, 0.0, -1.0, 1.0, outcome, "") for outcome in MARKS]
    assert [each.get("d") for each in _of(forest([("data", rows)]), "mark")] == list(MARKS.values())
    assert [each.text for each in ET.fromstring(legend()).iter("text")] == list(MARKS)
    assert len(set(MARKS.values())) == len(MARKS)


def test_a_row_without_an_interval_or_value_keeps_its_line():
    rows = [("one seed", 1.0, NAN, NAN, "no verdict", ""), ("none", NAN, NAN, NAN, "no verdict", "")]
    text = forest([("data", rows)])
    assert (len(_of(text, "mark")), len(_of(text, "interval"))) == (1, 0)
    assert [each.text for each in ET.fromstring(text).iter("text")].count("no value") == 1
    assert "nan" not in text
    assert _of(text, "verdict")[0].find("title").text == "one seed: +1.00, no verdict"


def test_long_labels_stand_above_their_intervals_and_are_cut():
    text = forest([("data", [("a long name " * 9, 1.0, 0.0, 2.0, "undecided", "#x")])])
    (label,) = (each for each in ET.fromstring(text).iter("text") if "a long" in str(each.text))
    (interval,) = _of(text, "interval")
    assert float(label.get("y")) < _numbers(interval.get("d"))[1]
    assert label.text.endswith("…")
    assert len(label.text) * 6.8 <= WIDTH == float(ET.fromstring(text).get("width")) <= 390 - 2 * 15  # of a phone


@pytest.mark.parametrize("hostile", ["<b>&\"'", "a\x1b[2J\x00\n", "]]>", "&amp;"])
def test_texts_are_escaped(hostile):
    row = (hostile, 0.0, -1.0, 1.0, "undecided", f"#{hostile}".replace("\x00", "").replace("\x1b", ""))
    assert not list(ET.fromstring(forest([(hostile, [row])], label=hostile, x_label=hostile)).iter("b"))
    line = (hostile, [0, 1], [0, 1], NAN, NAN)
    ET.fromstring(curves([line], x_label=hostile, y_label=hostile, percent=False, label=hostile))


def test_nothing_to_draw_is_said():
    assert "nothing to compare" in forest([("data", [])])
    assert ET.fromstring(forest([])).tag == "svg"
    nothing = ("a", [0, 1], [NAN, NAN], NAN, NAN)
    for lines in ([], [nothing], [("a", [], [], [], [])]):
        assert "nothing to draw" in curves(lines, x_label="x", y_label="y", percent=True)


def test_curves_are_drawn_at_their_places():
    line = ("a", [0.0, 0.5, 1.0], [0.0, NAN, 0.5], [0.0, NAN, 0.4], [0.1, NAN, 0.5])
    text = curves([line], x_label="left out, %", y_label="errors, %", percent=True)
    # From 0 to 100 at 44 .. 350, from 0 to 50 at 220 .. 24.
    shown = _of(text, "line")[0].get("d")
    assert shown == "M44.0 220.0M350.0 24.0"  # a gap
    assert _numbers(_of(text, "band")[0].get("d")) == [44, 220, 350, 63.2, 350, 24, 44, 180.8]
    assert _of(text, "c0")[0].find("title").text == "a: 0: 0; 50: nan; 100: 50"
    assert [each.text for each in _of(text, "middle")] == ["0", "20", "40", "60", "80", "100"]


def test_many_curves_have_a_legend_of_those_with_a_look_of_their_own():
    lines = [(f"m{number}", [0, 1], [0, 1], NAN, NAN) for number in range(COLOURED)]
    lines.append(("far", [0, 1], [0, 900], NAN, NAN))
    text = curves(lines, x_label="x", y_label="y", percent=False)
    names = [each.text for each in ET.fromstring(text).iter("text")]
    assert names[-COLOURED - 1 :] == [*(f"m{number}" for number in range(COLOURED)), "1 others"]
    assert [each.text for each in _of(text, "middle")][-1] == "1"
    assert len(_of(text, "rest")) == 2
    assert "far: 0: 0; 1: 900" in text


def test_a_title_has_at_most_eleven_values():
    x = np.linspace(0, 1, 101)
    text = curves([("a", x, x, x, x)], x_label="x", y_label="y", percent=False)
    assert _of(text, "c0")[0].find("title").text.count(";") <= 10
