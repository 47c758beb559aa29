"""The comparison says what the seeds say, also where a seed has no value; forms of a method, and what metrics are."""

import numpy as np
import pandas as pd
import pytest
from bench.protocols.metrics import Metric, find_metric, known_metrics
from bench.protocols.statistics.paired import holm, p_different, summarise
from bench.report.comparison import NOTE
from bench.report.figures.filter_out import CURVES
from bench.report.seeds import COMPARED
from bench.report.terminal import print_comparison
from bench.report.views import form_document
from bench.store.specs import Pinned

from tests.report import shown

RHO = {"metric": "spearman_crop", "split": "test_crop"}
MAP = {"metric": "map_at_r", "split": "test", "scorer": "cosine"}


def _frame(lines):
    rows, roles = [], []
    for method, base, seed, confidence, extra, value in lines:
        unit = f"{method}{seed}"
        row = {"method": method, "base": base, "seed": seed, "confidence": confidence, "value": value, "unit": unit}
        rows.append({"scorer": "", **row, **extra})
        probabilistic = method != "point"
        own = "method" if probabilistic else "norm"
        roles.append((unit, "cosine", own, probabilistic, 0, f"t{unit}", f"t{base}{seed}" if base else ""))
    names = ["unit", "primary_scorer", "default_confidence", "probabilistic", "trainings", "train", "base_train"]
    return shown.tidy(rows), pd.DataFrame(roles, columns=names).drop_duplicates()


@pytest.fixture
def data():
    lines = []
    for seed, (point, normal) in enumerate(zip([0.5, 0.6, 0.7], [0.9, 0.8, float("nan")])):
        lines += [("point", "", seed, "norm", RHO, point), ("normal", "point", seed, "method", RHO, normal)]
        lines += [("point", "", seed, "", MAP, 0.25), ("normal", "point", seed, "", MAP, 0.5 + 0.01 * seed)]
    return _frame(lines)


def _marks(row, place):
    return row.values[place].best, row.values[place].beats


def test_a_seed_without_a_value_is_left_out_and_counted(data):
    rows = shown.comparison(*data)
    table = shown.comparison_frame(rows).set_index("method")
    assert table.loc["normal", "test_crop_spearman_crop_mean"] == pytest.approx(0.85)
    assert table.loc["normal", "test_crop_spearman_crop_sd"] == pytest.approx(np.std([0.9, 0.8], ddof=1))
    assert table.loc["normal", "test_crop_spearman_crop_n"] == 2
    assert table.loc["point", "test_crop_spearman_crop_n"] == 3
    # Shown, but the survivors of a collapse are not the best of anything.
    assert "| 0.850 ± 0.071 [2/3] |" in shown.to_markdown(rows)
    paired = shown.paired_with_base(*data).set_index("metric")
    assert paired.loc["spearman_crop", "seeds"] == 2
    assert paired.loc["spearman_crop", "difference_mean"] == pytest.approx((0.4 + 0.2) / 2)


def test_a_probabilistic_method_has_to_beat_every_confidence_of_a_deterministic_one():
    lines = []
    for seed in range(2):
        lines += [("point", "", seed, "norm", RHO, 0.5), ("normal", "point", seed, "method", RHO, 0.7)]
        lines += [("point", "", seed, "", MAP, 0.25), ("normal", "point", seed, "", MAP, 0.5)]
        lines += [("point", "", seed, "oracle", RHO, 0.9)]
    rows = shown.rows(*_frame(lines))
    assert _marks(rows[0], 1) == _marks(rows[0], 5) == (True, True)
    assert _marks(rows[1], 1) == (False, False)
    lines += [("point", "", seed, "max_cosine", RHO, 0.8) for seed in range(2)]
    rows = shown.rows(*_frame(lines))
    assert _marks(rows[0], 5) == (True, False)


def test_where_lower_is_better_the_lowest_value_is_marked():
    """A confidence of the ranking, which is lower still, is no rival of one of the image."""
    lines = []
    for seed in range(2):
        lines += [("point", "", seed, "norm", AURC, 0.3), ("normal", "point", seed, "method", AURC, 0.2)]
        lines.append(("point", "", seed, "margin", AURC, 0.1))
    rows = shown.rows(*_frame(lines))
    by_label = {row.contender.label: _marks(row, 7) for row in rows}
    assert by_label == {"normal (point)": (True, True), "point": (False, False)}


def test_the_terminal_says_what_rows_share_once_and_fits_eighty_columns(data):
    lines = shown.printed(print_comparison, shown.comparison(*data)).splitlines()
    assert lines[0].startswith("d: mean ± SD over 3 seeds, default")
    body = "\n".join(lines[1:])
    assert "default" not in body
    assert "51.0±1.0" in body
    assert "[2/3]" in body


LONG = ("a_method_of_a_long_name", "a_base_of_a_long_name")
WORDS = (LONG[0], f"({LONG[1]})")


def test_long_names_are_folded_and_no_number_is_cut(data):
    frame, roles = data
    frame["method"] = frame["method"].replace("normal", LONG[0])
    frame["base"] = frame["base"].replace("point", LONG[1])
    frame["backbone"], frame["dim"] = "a_backbone_of_a_long_name", np.where(frame["method"] == "point", 64, 128)
    pinned = Pinned(settings={"optim.epochs": 3}, tune_for="confidence")
    frame["pinned"] = np.where(frame["method"] == "point", Pinned(), pinned)
    printed = shown.printed(print_comparison, shown.comparison(frame, roles))
    for text in ("51.0±1.0", "25.0±0.0", "0.85±0.07 [2/3]", "0.60±0.10"):
        assert text in printed
    whole = "".join(line[1:].split(" ")[0] for line in printed.splitlines())
    assert all(word in whole for word in WORDS)
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed


def test_metrics_of_plugins_are_columns_and_are_compared(data, monkeypatch):
    frame, roles = data
    own = [Metric(name="spread_out", title="How far images are spread out", group="g", better="lower", unit="number"),
           Metric(name="neither", title="Neither", group="g", better="", unit="number"),
           Metric(name="at_{k}", title="At {k}", group="g")]  # fmt: skip
    known = {**known_metrics(), **{metric.name: metric for metric in own}}
    monkeypatch.setattr("bench.report.seeds.known_metrics", lambda: known)
    monkeypatch.setattr("bench.protocols.metrics.known_metrics", lambda: known)
    extra = frame[frame["metric"] == "map_at_r"].assign(metric="spread_out", value=lambda rows: 10 * rows["value"])
    frame = pd.concat([frame, extra])
    rows = shown.comparison(frame, roles)
    table = shown.comparison_frame(rows).set_index("method")
    assert table["test_spread_out_mean"].to_dict() == pytest.approx((10 * table["test_map_at_r_mean"]).to_dict())
    assert "How far images are spread out" in shown.to_markdown(rows)
    assert not any("neither" in name or "at_{k}" in name for name in table.columns)
    best = {row.contender.label: row.values[-1].best for part in rows for row in part.rows}
    assert best == {
        row.contender.label: not row.values[1].best for part in rows for row in part.rows
    }  # lower is better
    assert "spread out" in shown.printed(print_comparison, rows, width=140)
    assert "spread out" not in shown.printed(print_comparison, rows)
    assert "spread_out" in set(shown.paired_methods(frame, roles)["metric"])


def test_tables_of_the_preset_of_the_public_code_show_its_reranked_values():
    likely, reranked = {"scorer": "mls"}, {"variant": "reranked"}
    lines = []
    for seed in range(2):
        for method, base, full, again in (("point", "", 0.25, 0.24), ("normal", "point", 0.5, 0.7)):
            values = (({}, full), (reranked, again + 0.01 * seed), (likely | reranked, 0.9))
            lines += [(method, base, seed, "", MAP | kind, value) for kind, value in values]
    frame, roles = _frame(lines)
    table = shown.comparison_frame(shown.comparison(frame, roles)).set_index("method")
    assert table["test_map_at_r_mean"].to_dict() == pytest.approx({"normal": 0.705, "point": 0.245})
    (difference,) = shown.paired_with_base(frame, roles).to_dict("records")
    assert (difference["variant"], difference["difference_mean"]) == ("reranked", pytest.approx(0.46))
    without = frame[frame["variant"] == ""]
    table = shown.comparison_frame(shown.comparison(without, roles)).set_index("method")
    assert table["test_map_at_r_mean"].to_dict() == pytest.approx({"normal": 0.5, "point": 0.25})


AUROC = {"metric": "confidence_auroc", "split": "test", "scorer": "cosine", "n_queries": 1200}
AURC = {"metric": "aurc", "split": "test_crop", "scorer": "cosine", "variant": "recall_at_1"}


def _wrong(**aurocs):
    """Two methods with AUROCs of their own confidences, and a network that does not tell pairs apart."""
    lines = [("point", "", seed, "norm", AURC, 0.3) for seed in (0, 1, 2)]
    for name, values in aurocs.items():
        for seed, value in enumerate(values):
            lines += [(name, "", seed, "method", AUROC, value), (name, "", seed, "method", AURC, 0.4)]
    pairs = {"metric": "verification_auc", "split": "test"}
    lines += [("point", "", seed, "", pairs, 0.495 + 0.005 * seed) for seed in (0, 1, 2)]
    return _frame(lines)


def test_what_went_wrong_is_said_below_the_comparison_in_a_line_for_each_kind():
    data = _wrong(dead=[0.5] * 3, flat=[0.5] * 3, turned=[0.30, 0.31, 0.32], fine=[0.7, 0.8, 0.9], some=[0.4, 0.5, 0.6])
    (part,) = rows = shown.comparison(*data)
    assert sorted(part.remarks) == [
        "Near chance, pairs are hardly told apart (verification AUC below 60): point (50.0).",
        "Own confidence constant for all 1,200 images, so there is no verdict on it: dead, flat.",
        "Own confidence reversed on clean images (AUROC below 50): turned (31.0 [28.5, 33.5]).",
    ]
    printed = shown.printed(print_comparison, rows, width=200)
    for line in part.remarks:
        assert line in printed
        assert line in shown.to_markdown(rows)


def test_below_the_table_of_a_sweep_every_setting_has_its_name():
    frame, roles = _wrong(flat=[0.5] * 3, turned=[0.30, 0.31, 0.32])
    pinned = [Pinned(settings={"method.x": name}) for name in frame["method"]]
    (part,) = shown.comparison(frame.assign(method="m", pinned=pinned), roles)
    (reversed_,) = (line for line in part.remarks if line.startswith("Own confidence reversed"))
    assert "method.x=turned (31.0 [28.5, 33.5])" in reversed_


def test_a_constant_confidence_is_compared_with_nothing_and_the_pair_says_so():
    pairs = shown.paired_methods(*_wrong(dead=[0.5] * 3, fine=[0.7, 0.8, 0.9]))
    aurc = pairs[pairs["metric"] == "aurc"].set_index(["first", "other"])
    assert aurc.loc[("fine", "point"), "verdict"] == "better"
    assert aurc.loc["dead", "verdict"].to_dict() == dict.fromkeys(("fine", "point"), "no common seed")
    assert set(aurc.loc["dead", "left_out"]) == {"dead: confidence constant for all 1,200 images"}


CORRECTED = {0: 0.80, 1: 0.82, 2: 0.81, 3: 0.83}
RELEASED = {0: 0.70, 1: 0.73, 2: 0.70, 3: 0.72}


def _form(values, fidelity, auroc=None):
    """Results of one form: {method: {seed: MAP@R}}, and AUROC by seed of the own confidence."""
    lines = [(m, "", s, "", MAP, v) for m, of in values.items() for s, v in of.items()]
    lines += [(m, "", s, "method", AUROC, v) for m, of in (auroc or {}).items() for s, v in of.items()]
    frame, roles = _frame(lines)
    return frame.assign(fidelity=fidelity, unit=fidelity + frame["unit"]), roles.assign(unit=fidelity + roles["unit"])


def _both(corrected, released):
    return shown.forms_of(*shown.joined([corrected, released]))


def test_means_are_those_of_the_paired_seeds_and_others_are_named():
    table = _both(_form({"a": CORRECTED}, "corrected"), _form({"a": {0: 0.7, 1: 0.73, 9: 0.1}}, "released"))
    (row,) = form_document(table).numbers.to_dict("records")
    assert (row["method"], row["fidelity"], row["metric"], row["seeds"]) == ("a", "released", "map_at_r", 2)
    assert (row["corrected_mean"], row["released_mean"]) == pytest.approx((0.81, 0.715))
    expected = summarise([CORRECTED[seed] - value for seed, value in {0: 0.7, 1: 0.73}.items()])
    assert row["difference_mean"] == pytest.approx(expected.mean) == pytest.approx(0.095)
    assert (row["ci95_low"], row["ci95_high"]) == pytest.approx((expected.ci_low, expected.ci_high))
    assert row["left_out"] == "a: no seed 9; a [released]: no seeds 2, 3"
    assert "Left out: a: no seed 9" in shown.markdown(form_document(table))


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
    assert "| 81.50 | 71.25 | +10.25 [" in shown.markdown(form_document(table))
    assert "released" in shown.latex(form_document(table))


def test_one_form_or_another_setting_is_no_pair():
    assert _both(_form({"a": CORRECTED}, "corrected"), _form({"b": RELEASED}, "released")) == []
    frame, roles = _form({"a": RELEASED}, "released")
    assert _both(_form({"a": CORRECTED}, "corrected"), (frame.assign(dim=3), roles)) == []


@pytest.mark.parametrize("name", [*(column.metric for column in COMPARED), *CURVES])
def test_every_metric_of_the_comparison_and_the_curves_is_declared_with_its_direction(name):
    metric = find_metric(name)
    assert (metric.better, metric.sign) == (("lower", -1) if name == "aurc" else ("higher", 1))


def test_the_note_names_every_column_that_is_not_in_percent_or_better_if_lower():
    for column in COMPARED:
        assert (f"`{column.title}`" in NOTE) == (not column.percent)
        assert (f"{column.title} (on crops): lower is better" in NOTE) == (column.sign < 0)
