"""The corrected form of a method next to that of a public code, over paired seeds."""

from __future__ import annotations

import numpy as np
import pytest
from bench.protocols.statistics.paired import holm, p_different, summarise
from bench.report.views import form_document

from tests.report.shown import forms_of, joined, latex, markdown
from tests.report.test_tables import _frame

MAP = {"metric": "map_at_r", "split": "test", "scorer": "cosine"}
AUROC = {"metric": "confidence_auroc", "split": "test", "scorer": "cosine"}

CORRECTED = {0: 0.80, 1: 0.82, 2: 0.81, 3: 0.83}
RELEASED = {0: 0.70, 1: 0.73, 2: 0.70, 3: 0.72}


def _form(values, fidelity, auroc=None):
    """Results of one form: {method: {seed: MAP@R}}, and AUROC by seed of the own confidence."""
    lines = [(m, "", s, "", MAP, v) for m, of in values.items() for s, v in of.items()]
    lines += [(m, "", s, "method", AUROC, v) for m, of in (auroc or {}).items() for s, v in of.items()]
    frame, roles = _frame(lines)
    return frame.assign(fidelity=fidelity, unit=fidelity + frame["unit"]), roles.assign(unit=fidelity + roles["unit"])


def _both(corrected, released):
    return forms_of(*joined([corrected, released]))


def test_corrected_minus_released_is_paired_by_seed():
    table = _both(_form({"a": CORRECTED}, "corrected"), _form({"a": RELEASED}, "released"))
    (row,) = form_document(table).numbers.to_dict("records")
    expected = summarise([CORRECTED[seed] - RELEASED[seed] for seed in CORRECTED.keys() & RELEASED.keys()])
    assert row["difference_mean"] == pytest.approx(expected.mean) == pytest.approx(0.1025)
    assert (row["ci95_low"], row["ci95_high"]) == pytest.approx((expected.ci_low, expected.ci_high))
    assert (row["corrected_mean"], row["released_mean"]) == pytest.approx((0.815, 0.7125))
    assert (row["method"], row["fidelity"], row["metric"], row["seeds"]) == ("a", "released", "map_at_r", 4)
    assert row["verdict"] == "better"


def test_means_are_those_of_the_paired_seeds_and_others_are_named():
    table = _both(_form({"a": CORRECTED}, "corrected"), _form({"a": {0: 0.7, 1: 0.73, 9: 0.1}}, "released"))
    (row,) = form_document(table).numbers.to_dict("records")
    assert row["seeds"] == 2
    assert (row["corrected_mean"], row["released_mean"]) == pytest.approx((0.81, 0.715))
    assert row["left_out"] == "a: no seed 9; a [released]: no seeds 2, 3"
    assert "Left out: a: no seed 9" in markdown(form_document(table))


def test_p_values_are_adjusted_over_the_methods_and_metrics_stay_apart():
    values = {"a": RELEASED, "b": {seed: value + 0.01 * seed for seed, value in CORRECTED.items()}}
    auroc = {"a": {0: 0.6, 1: 0.61, 2: 0.65, 3: 0.6}}
    corrected = _form({"a": CORRECTED, "b": CORRECTED}, "corrected", auroc)
    table = _both(corrected, _form(values, "released", {"a": dict.fromkeys(range(4), 0.52)}))
    numbers = form_document(table).numbers
    of_map = numbers[numbers["metric"] == "map_at_r"].set_index("method")
    p = [float(p_different(np.array([CORRECTED[s] - values[m][s] for s in range(4)]))) for m in ("a", "b")]
    assert of_map["p_holm"].tolist() == pytest.approx(holm(np.array(p)).tolist())
    (judged,) = numbers[numbers["metric"] == "confidence_auroc"].to_dict("records")
    assert judged["p_holm"] == judged["p"]
    assert judged["difference_mean"] == pytest.approx(0.095)
    text = markdown(form_document(table))
    assert "| 81.50 | 71.25 | +10.25 [" in text
    assert "released" in latex(form_document(table))


def test_one_form_or_another_setting_is_no_pair():
    assert _both(_form({"a": CORRECTED}, "corrected"), _form({"b": RELEASED}, "released")) == []
    frame, roles = _form({"a": RELEASED}, "released")
    assert _both(_form({"a": CORRECTED}, "corrected"), (frame.assign(dim=3), roles)) == []
