"""Verdicts: the rival comes from validation classes, the interval is SciPy's, and every gap has a name."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from bench.protocols.rows import FREE_IMAGE_CONFIDENCES, OWN, RETRIEVAL_CONFIDENCES
from bench.report.compare import ask
from bench.report.questions import CONFIDENCE, rankings_of
from bench.report.views import verdict_document
from bench.store.specs import Pinned
from scipy import stats

from tests.report.shown import groups as groups_of
from tests.report.shown import roles_of, tidy, verdicts_of

FREE = (*FREE_IMAGE_CONFIDENCES, *RETRIEVAL_CONFIDENCES)
CHALLENGERS = (OWN, "method+margin", "method+margin+agreement")


def _results(values, **columns):
    """Tidy table and roles of a method from its AUROC by seed: ``{(split, confidence): values}``."""
    columns = {"metric": "confidence_auroc", "method": "m", "pinned": Pinned(), **columns}
    name = f"{columns['method']}{columns['pinned']}"
    frame = tidy(
        {"split": split, "confidence": confidence, "seed": seed, "value": value, "unit": f"{name}{seed}", **columns}
        for (split, confidence), by_seed in values.items()
        for seed, value in enumerate(by_seed)
    )
    return frame, roles_of(frame, default_confidence=OWN, probabilistic=True)


def _levels(seeds=3, own=0.7, margin=0.8, split="test", **others):
    """AUROC on test and validation images, the same at every seed, all free confidences but the margin at 0.6."""
    levels = dict.fromkeys(FREE, 0.6) | dict.fromkeys(CHALLENGERS, own) | {"margin": margin, **others}
    held_out = split.replace("test", "val")
    return {(place, name): [level] * seeds for place in (split, held_out) for name, level in levels.items()}


def _table(frame, roles):
    return verdict_document(verdicts_of(frame, roles)).numbers.set_index(["split", "question", "challenger"])


def test_each_question_has_its_rows_and_rivals():
    table = _table(*_results(_levels() | _levels(split="test_blur")))
    assert list(table.index) == [
        (split, *place)
        for split in ("test", "test_blur")
        for place in (("before_gallery", OWN), *(("at_query_time", name) for name in CHALLENGERS))
    ]
    assert set(table.loc[(slice(None), "before_gallery"), "rival"]) == {"norm"}
    assert set(table.loc[(slice(None), "at_query_time"), "rival"]) == {"margin"}


@pytest.mark.parametrize("seeds", [2, 5])
@pytest.mark.parametrize("shift", [0.2, 0.001, -0.001, -0.2])
def test_the_interval_is_scipys_and_decides(seeds, shift):
    rng = np.random.default_rng(seeds)
    rival = 0.7 + 0.05 * rng.random(seeds)
    noise = 0.01 * rng.random(seeds)
    own = rival + shift + noise - noise.mean()
    values = _levels(seeds) | {("test", OWN): own, ("test", "norm"): rival, ("val", "norm"): [0.9] * seeds}
    row = _table(*_results(values)).loc["test", "before_gallery", OWN]
    paired = stats.ttest_rel(own, rival)
    assert row["difference_mean"] == pytest.approx((own - rival).mean(), abs=1e-12)
    assert row["difference_sd"] == pytest.approx((own - rival).std(ddof=1), abs=1e-12)
    assert list(row[["ci95_low", "ci95_high"]]) == pytest.approx(list(paired.confidence_interval(0.95)), abs=1e-12)
    assert (row["seeds"], row["rival"], row["reason"]) == (seeds, "norm", "")
    # The interval excludes 0 exactly if the test rejects at 5 %; two one-sided tests place it within a point.
    decided = "worth it" if shift > 0 else "not worth it"
    sides = [(own - rival, -0.01, "greater"), (own - rival, 0.01, "less")]
    inside = max(stats.ttest_1samp(values, end, alternative=way).pvalue for values, end, way in sides) <= 0.05
    assert row["verdict"] == ("equivalent" if inside else decided if paired.pvalue < 0.05 else "undecided")
    assert (paired.pvalue < 0.05) == (abs(shift) > 0.1)


def test_the_rival_is_chosen_on_clean_and_corrupted_validation_images_together():
    better = {"test": "agreement", "val": "margin", "test_crop": "margin", "val_crop": "spread"}
    values = _levels() | _levels(split="test_crop") | dict.fromkeys(itertools.product(better, ["margin"]), [0.6] * 3)
    values |= {(split, name): [0.9] * 3 for split, name in better.items()}
    values["val_crop", "spread"] = [0.95] * 3
    table = _table(*_results(values))
    clean, crop = (table.loc[split, "at_query_time", OWN] for split in ("test", "test_crop"))
    assert (clean["rival"], clean["best_on_test"], crop["rival"]) == ("spread", "agreement", "spread")
    # On test, the best of all would have won.
    assert (clean["verdict"], clean["best_on_test_mean"], clean["survives"]) == ("worth it", pytest.approx(0.9), False)
    assert (crop["best_on_test"], crop["verdict"]) == ("margin", "worth it")
    # Values on test move nothing but the difference: with all of them turned round, the rivals are the same.
    turned = {key: 1 - np.array(v) if key[0].startswith("test") else v for key, v in values.items()}
    assert list(_table(*_results(turned))["rival"]) == list(table["rival"])


def test_a_constant_competes_and_a_win_is_above_chance():
    values = _levels(**dict.fromkeys(FREE_IMAGE_CONFIDENCES, 0.42)) | {("test", OWN): [0.48, 0.49, 0.485]}
    row = _table(*_results(values)).loc["test", "before_gallery", OWN]
    assert (row["rival"], row["rival_mean"], row["verdict"]) == ("constant", 0.5, "not worth it")
    # Validation may prefer a free one that is below chance on test: to beat it is no win.
    values |= {("val", "norm"): [0.6] * 3}
    row = _table(*_results(values)).loc["test", "before_gallery", OWN]
    assert (row["rival"], row["verdict"], row["reason"]) == ("norm", "undecided", "not above chance")
    assert row["p_holm"] == row["p"] > 0.05  # the difference alone is far below


def test_the_ranking_of_the_better_validation_recall_is_judged_and_the_files_have_both():
    frame, roles = _results(_levels())
    roles["primary_scorer"] = "mls"
    rows = [frame, frame.assign(scorer="mls", value=frame["value"] - 0.05)]
    for scorer, level in (("cosine", 0.8), ("mls", 0.7)):
        recall = {"metric": "recall_at_1", "scorer": scorer, "split": "val", "confidence": "", "value": level}
        rows.append(frame.drop_duplicates("seed").assign(**recall))
    merged = pd.concat(rows)
    (first, *_) = verdicts_of(merged, roles)
    assert (first.ranking, first.about["own_mean"]) == ("cosine", pytest.approx(0.7))
    better = merged["value"].where(merged["scorer"] != "mls", merged["value"] + 0.2)
    assert verdicts_of(merged.assign(value=better), roles)[0].ranking == "mls"
    # Of some seeds there are more corruptions, for both: what all have still chooses.
    more = merged[(merged["metric"] == "recall_at_1") & (merged["seed"] == 0)].assign(split="val_blur")
    (first, *_) = verdicts_of(pd.concat([merged, more]), roles)
    assert (first.ranking, first.reason) == ("cosine", None)
    groups = groups_of(merged, roles)
    both = ask(CONFIDENCE, groups)
    assert [(each.ranking, each.about["chosen"]) for each in both][::4] == [("cosine", True), ("mls", False)]
    # Another scorer on request is no ranking of a system.
    assert rankings_of(replace(groups[0], scorer="cosine")) == ("cosine",)


def test_a_seed_without_a_wrong_validation_answer_does_not_prevent_the_choice():
    values = _levels() | {("val_crop", name): [0.6, 0.6, 0.6] for name in FREE} | {("val_crop", "norm"): [0.65] * 3}
    for name in FREE:
        values["val", name] = [np.nan, *values["val", name][1:]]
    row = _table(*_results(values)).loc["test", "before_gallery", OWN]
    assert (row["rival"], row["verdict"]) == ("norm", "worth it")


def test_of_equal_rivals_the_first_counts_and_a_plugins_confidence_is_one():
    levels = {"agreement": 0.8, "sharpness": 0.6}
    table = _table(*_results(_levels(**levels)))
    assert table.loc["test", "at_query_time", OWN]["rival"] == "margin"
    assert table.loc["test", "before_gallery", OWN]["rival"] == "norm"
    table = _table(*_results(_levels(**levels | {"sharpness": 0.65, "random": 0.9, "oracle": 1.0, "norm+margin": 0.9})))
    assert table.loc["test", "before_gallery", OWN]["rival"] == "sharpness"


def test_a_rival_without_the_value_of_a_seed_does_not_compete():
    values = _levels() | {("val", "spread"): [np.nan, 0.9, 0.9]}
    assert _table(*_results(values)).loc["test", "at_query_time", OWN]["rival"] == "margin"


def test_without_validation_images_there_is_a_reason_and_no_verdict():
    levels = _levels()
    tests = {key: value for key, value in levels.items() if key[0] == "test"}
    trained = tests | {("train", name): value for (_, name), value in tests.items()}
    for values, columns, reason in (
        (tests, {}, "no validation rows"),
        (tests, {"ensemble": "concatenated"}, "no validation classes"),
        (trained, {}, "validation classes were trained on"),
        (levels | {(s, n): [np.nan] * 3 for s, n in levels if s == "val"}, {}, "no AUROC on validation"),
    ):
        table = _table(*_results(values, **columns))
        assert set(table["reason"]) == {reason}
        assert set(table["verdict"]) == set(table["rival"]) == {""}
        assert table["difference_mean"].isna().all()
        assert table.loc["test", "at_query_time", OWN]["best_on_test"] == "margin"


def test_a_seed_whose_answers_are_all_right_is_left_out():
    levels = _levels()
    values = levels | {key: [np.nan, 0.7, 0.71] for key in levels if key[0] == "test"}
    row = _table(*_results(values)).loc["test", "before_gallery", OWN]
    assert (row["seeds"], row["verdict"]) == (2, "equivalent")
    none = levels | {key: [np.nan] * 3 for key in levels if key[0] == "test"}
    row = _table(*_results(none)).loc["test", "before_gallery", OWN]
    assert (row["verdict"], row["reason"]) == ("", "no AUROC on test")


def test_a_constant_confidence_is_named_and_gets_no_verdict():
    frame, roles = _results(_levels() | {(split, OWN): [0.5] * 3 for split in ("test", "val")})
    frame["n_queries"] = np.where(frame["split"] == "test", 1200, 300)
    table = _table(frame, roles)
    assert set(table["verdict"]) == {""}
    assert set(table["reason"]) == {"confidence constant for all 1,200 images"}  # with the margin it is the margin
    assert table["difference_mean"].isna().all()
    assert table["p_holm"].isna().all()
    # At chance, but some correlation exists or a seed differs: no constant.
    varied = frame.head(1).assign(metric="spearman_crop", confidence=OWN, value=0.1)
    same = (frame["seed"] > 0) | (frame["confidence"] != OWN)
    for other in (pd.concat([frame, varied]), frame.assign(value=frame["value"].where(same, 0.51))):
        assert _table(other, roles).loc["test", "before_gallery", OWN]["verdict"] == "not worth it"


def test_a_method_without_a_confidence_of_its_own_shows_the_free_ones():
    values = {key: value for key, value in _levels().items() if key[1] not in CHALLENGERS}
    table = _table(*_results(values))
    assert list(table.index) == [("test", "before_gallery", ""), ("test", "at_query_time", "")]
    assert list(table["rival"]) == ["norm", "margin"]
    assert list(table["rival_mean"]) == pytest.approx([0.6, 0.8])
    assert set(table["reason"]) == {"no own confidence"}


def test_another_scorer_than_the_own_one_has_no_say():
    frame, roles = _results(_levels())
    other = frame[frame["confidence"] == "spread"].assign(scorer="l2", value=0.99)
    assert _table(pd.concat([frame, other]), roles).equals(_table(frame, roles))


def test_results_from_before_retrieval_confidences_have_no_verdicts():
    values = {key: value for key, value in _levels().items() if key[1] in (OWN, "norm")}
    assert verdicts_of(*_results(values)) == []
    assert verdict_document([]).numbers.empty


def test_the_posterior_competes_where_every_seed_has_it():
    """Older results lack it."""
    values = _levels() | {(split, "posterior"): [0.9] * 3 for split in ("test", "val")}
    for seeds, rival in ((3, "posterior"), (2, "margin"), (0, "margin")):
        known = {key: level[: seeds if key[1] == "posterior" else 3] for key, level in values.items()}
        assert set(_table(*_results(known)).loc[(slice(None), "at_query_time"), "rival"]) == {rival}


def test_a_combination_competes_with_a_free_one():
    """If the own confidence is the norm, it adds no more to the margin than the norm, which is free."""
    combined = {"method+margin": [0.91, 0.93, 0.95], "norm+margin": [0.91, 0.93, 0.95]}
    values = _levels(own=0.62, **{"norm+margin": 0.85}) | {("test", name): level for name, level in combined.items()}
    row = _table(*_results(values)).loc["test", "at_query_time", "method+margin"]
    assert (row["rival"], row["verdict"], row["difference_mean"]) == ("norm+margin", "equivalent", 0.0)
    values |= {("test", "margin+agreement"): [0.6] * 3, ("val", "margin+agreement"): [0.9] * 3}
    row = _table(*_results(values)).loc["test", "at_query_time", "method+margin"]
    assert (row["rival"], row["verdict"], row["survives"]) == ("margin+agreement", "worth it", False)


@pytest.mark.parametrize(("apart", "name"), [(0.0, "norm"), (4e-4, "norm"), (6e-4, "")])
def test_a_combination_of_what_orders_images_as_a_free_one_beats_nothing_free(apart, name):
    """A norm that is the concentration is free in any scale: a better fit of it is nothing that was learned."""
    values = _levels(own=0.6)
    norm = values["test", "norm"]
    values["test", OWN] = [norm[0] + apart, *norm[1:]]
    values["test", "method+margin+agreement"] = [0.95] * 3
    values["test", "norm+margin+agreement"] = [0.9] * 3
    (found,) = [each for each in verdicts_of(*_results(values)) if each.confidence == "method+margin+agreement"]
    assert (found.outcome, found.same_order_as, found.counts) == ("better", name, not name)
    assert found.why == ("orders images as norm" if name else "")
    assert verdict_document([found]).numbers["same_order_as"].tolist() == [name]
