"""Verdicts on systems against plain loops, their choices on validation images, and what is not counted."""

import numpy as np
import pandas as pd
import pytest
from bench.protocols.rows import OWN
from bench.protocols.statistics import paired
from bench.report.compare import ask, decided, over_units
from bench.report.questions import CONSTANT, DECIDES, RIVAL, SYSTEM, choose
from bench.report.render import files_of
from bench.report.terminal import print_answers
from bench.report.views import rival_document, split_document, system_document
from bench.store.specs import Pinned
from scipy import stats

from tests.report.shown import groups, joined, printed, roles_of, tidy

BEFORE = "before_gallery"
SPLITS = ("test", "test_crop", "val", "val_crop")


def _curve(confidence, wrong):
    """AUROC over all pairs, and AUGRC, AURC and risk at 80 % by loops over the sorted queries, none of them tied."""
    errors = np.cumsum(wrong[np.argsort(-confidence)])
    n = len(wrong)
    right = confidence[~wrong]
    auroc = np.mean(right > confidence[wrong][:, None])
    accepted = np.concatenate([[0], errors / n])
    return {
        ("confidence_auroc", ""): auroc,
        ("augrc", "recall_at_1"): sum((accepted[k] + accepted[k + 1]) / 2 for k in range(n)) / n,
        ("aurc", "recall_at_1"): np.mean(errors / np.arange(1, n + 1)),
        ("risk_at_coverage", "recall_at_1,coverage=0.8"): errors[int(np.ceil(0.8 * n)) - 1] / np.ceil(0.8 * n),
    }


def _method(name, skill, *, risk=0.3, seeds=5, dataset="d", queries=400, splits=SPLITS, **columns):
    """Rows of a method whose confidences tell right from wrong answers with some skills: ``{confidence: skill}``."""
    columns = {"dataset": dataset, "method": name, "hparams": "tuned", "trials": 50} | columns
    rows = []
    for seed in range(seeds):
        for split in splits:
            rng = np.random.default_rng([seed, len(split), len(dataset), *name.encode()])
            wrong = rng.permutation(queries) < risk * queries
            noise = rng.normal(size=queries)
            shared = {"split": split, "seed": seed, "n_queries": queries, "unit": f"{name}{dataset}{seed}", **columns}
            rows.append({"metric": "recall_at_1", "value": 1 - wrong.mean(), **shared})
            for confidence, level in skill.items():
                held = noise + level * ~wrong + 0.3 * rng.normal(size=queries) * (confidence != OWN)
                rows += [
                    {"metric": metric, "variant": variant, "value": value, "confidence": confidence, **shared}
                    for (metric, variant), value in _curve(held, wrong).items()
                ]
    frame = tidy(rows)
    return frame, roles_of(frame, probabilistic=OWN in skill)


PLAIN = _method("cosface", {"norm": 0.5, "max_cosine": 0.2, "margin": 1.5, "agreement": 1.0})
SPREAD = _method("spread", {OWN: 1.2, "norm": 0.1, "margin": 1.5}, risk=0.2)


def _found(*methods, metric=DECIDES):
    return [row for row in ask(SYSTEM, groups(*joined(methods))) if row.column.metric == metric]


def _before(*methods, metric=DECIDES):
    """Those before the gallery, on clean images."""
    return [row for row in _found(*methods, metric=metric) if (row.use, row.column.split) == ("before_gallery", "test")]


def _by_seed(frame, metric, confidence, split="test"):
    rows = frame[(frame["metric"] == metric) & (frame["confidence"] == confidence) & (frame["split"] == split)]
    return rows.sort_values("seed")["value"].to_numpy()


def test_a_system_is_compared_by_paired_risks():
    found = {(each.use, each.column.split): each for each in _found(PLAIN, SPREAD)}
    assert len(found) == 4
    for metric in ("augrc", "aurc", "risk_at_coverage"):
        (each,) = _before(PLAIN, SPREAD, metric=metric)
        ours, theirs = _by_seed(SPREAD[0], metric, OWN), _by_seed(PLAIN[0], metric, "norm")
        assert each.mean == pytest.approx((theirs - ours).mean())
        ends = stats.ttest_rel(theirs, ours).confidence_interval()
        assert (each.low, each.high) == pytest.approx(tuple(ends))
    before, query = found["before_gallery", "test"], found["at_query_time", "test"]
    assert (before.rival, before.confidence, before.outcome) == ("norm", OWN, "better")
    # A win needs a difference and an AUROC above chance.
    tests = (
        stats.ttest_rel(_by_seed(PLAIN[0], "augrc", "norm"), _by_seed(SPREAD[0], "augrc", OWN)),
        stats.ttest_1samp(_by_seed(SPREAD[0], "confidence_auroc", OWN), 0.5),
    )
    assert before.p == pytest.approx(max(each.pvalue for each in tests))
    assert query.rival == "margin"
    assert query.against.method == "cosface"


def test_levels_are_those_at_the_units_of_the_difference():
    frame, roles = SPREAD
    kept = frame[frame["seed"] < 2]
    document = system_document(_found(PLAIN, (kept, roles[roles["unit"].isin(kept["unit"])])))
    for _, line in document.numbers.iterrows():
        assert line["seeds"] == 2
        assert line["augrc_plain"] - line["augrc_method"] == pytest.approx(line["augrc_difference_mean"])
    titles = [column.title for column in document.tables[0].columns]
    cells = dict(zip(titles, (cell.value for cell in document.tables[0].rows[0].cells)))
    assert cells["other's"] - cells["method's"] == pytest.approx(cells["difference"])


def test_the_terminal_has_a_line_for_each_question_and_names_every_method():
    every = (PLAIN, SPREAD, _method("[red]", {OWN: 0.8, "norm": 0.1}, risk=0.5))
    found, gained = _found(*every), {each.contender.method: each.text for each in _before(*every)}
    title, before, crops, query, *_, end, after = printed(print_answers, found, width=300).split("\n")
    assert title.startswith("d: better with its own confidence than cosface with a free one?")
    said = f"better: spread* {gained['spread']}; worse: [red]* {gained['[red]']}"
    assert before == f"before the gallery, clean images: {said}"
    assert crops.startswith("before the gallery, centre crops: ")
    assert query.startswith("at query time, clean images: ")
    assert (end, after) == ("", "")
    one = printed(print_answers, _found(PLAIN, _method("spread", {OWN: 1.2, "norm": 0.1}, seeds=1)), width=300)
    assert "before the gallery, clean images: no verdict (one seed): spread\n" in one


@pytest.mark.parametrize("ending", ["+margin_fitted", "+margin+agreement"])
def test_records_that_combine_no_own_confidence_with_the_agreement_have_a_verdict(ending):
    """Up to 2026-11 the plain method alone could use the agreement: `method+margin_fitted` still has its verdict."""
    plain = _method("cosface", {"norm": 0.5, "margin": 1.0, "margin+agreement": 2.0})
    own = _method("spread", {OWN: 0.2, "norm": 0.1, "margin": 1.0, f"{OWN}{ending}": 2.5})
    found = {(each.use, each.column.split): each for each in _found(plain, own)}
    query = found["at_query_time", "test"]
    assert (query.confidence, query.rival) == (f"{OWN}{ending}", "margin+agreement")


def test_the_choice_is_made_on_validation_images_of_all_kinds():
    frame, roles = _method("cosface", {"norm": 0.1, "max_cosine": 0.1})
    rows = frame["metric"] == "confidence_auroc"
    for split, name, value in (("val", "max_cosine", 0.6), ("val_crop", "max_cosine", 0.7), ("val", "norm", 0.65),
                               ("val_crop", "norm", 0.55), ("test", "norm", 0.99)):  # fmt: skip
        frame.loc[rows & (frame["split"] == split) & (frame["confidence"] == name), "value"] = value
    (group,) = groups(frame, roles)
    assert choose(group, "before_gallery") == ("max_cosine", "", None)
    # A confidence that is worse than chance loses against a constant.
    frame.loc[rows & frame["split"].str.startswith("val"), "value"] = 0.49
    (group,) = groups(frame, roles)
    assert choose(group, "before_gallery") == (CONSTANT, "", None)


@pytest.mark.parametrize(("queries", "risk", "chosen"), [(400, 0.05, "norm"), (400, 0.13, "max_cosine")])
def test_few_wrong_validation_answers_choose_nothing(queries, risk, chosen):
    (group,) = groups(*_method("cosface", {"norm": 0.1, "max_cosine": 2.0}, risk=risk, queries=queries))
    name, remark, _ = choose(group, "before_gallery")
    wrong = 2 * risk * queries  # of clean and of corrupted validation images
    assert (name, remark) == (chosen, f"default, {wrong:.0f} wrong validation answers" if chosen == "norm" else "")


def test_a_constant_accepts_errors_at_random():
    own = _method("spread", {OWN: 1.0, "norm": 0.1}, risk=0.3)
    base = _method("cosface", {"norm": -1.0}, risk=0.3)
    for metric, mean in {"augrc": 0.15, "aurc": 0.3, "risk_at_coverage": 0.3}.items():
        (each,) = _before(base, own, metric=metric)
        assert (each.rival, np.mean([*each.others.values()])) == (CONSTANT, pytest.approx(mean))


def test_p_values_are_adjusted_over_the_methods_of_a_data_set():
    skills = {"first": 0.75, "second": 0.9, "third": 1.2}
    made = [_method(name, {OWN: skill, "norm": 0.3}, dataset=data) for data in ("d", "other")
            for name, skill in skills.items()]  # fmt: skip
    plain = (PLAIN, _method("cosface", {"norm": 0.5, "margin": 1.5}, dataset="other"))
    cases = _before(*plain, *made)
    for data in ("d", "other"):
        own = [each for each in cases if each.contender.dataset == data]
        p = np.array([each.p for each in own])
        assert len(own) == 3
        assert [each.p_holm for each in own] == pytest.approx(paired.holm(p))
        assert [each.p_bh for each in own] == pytest.approx(paired.benjamini_hochberg(p))


@pytest.mark.slow
def test_the_plain_method_is_the_base_of_the_heads_or_of_the_recipe():
    own = _method("spread", {OWN: 1.0, "norm": 0.1}, dataset="ndigit")
    plain = [_method(name, {"norm": 0.5}, dataset="ndigit") for name in ("arcface", "cosface")]
    assert {each.against.method for each in _found(*plain, own)} == {"cosface"}
    head = _method("head", {OWN: 1.0, "norm": 0.1}, dataset="ndigit", base="arcface")
    assert {each.against.method for each in _found(*plain, own, head)} == {"arcface"}


@pytest.mark.parametrize("rest", [(), ("arcface",)])
def test_a_plain_method_with_one_form_is_that_of_public_codes_at_the_same_budget(rest):
    """As ``bench run --fidelity released`` records CosFace; another plain one at hand must not take its place."""
    skill = {"norm": 0.5, "margin": 1.5}
    plain = _method("cosface", skill, dataset="ndigit")
    own = _method("spread", {OWN: 1.2, "norm": 0.1}, dataset="ndigit", fidelity="released")
    others = [_method(name, skill, dataset="ndigit", fidelity="released") for name in rest]
    found = _before(plain, own, *others)
    assert [(row.against.label, row.n) for row in found] == [("cosface", 5)]
    # A method in a form of a public code is none at the budget of the corrected ones.
    corrected = _method("spread", {OWN: 1.2, "norm": 0.1}, dataset="ndigit")
    public = _method("cosface", skill, dataset="ndigit", fidelity="released")
    fewer_trials = _method("arcface", skill, dataset="ndigit", trials=9)
    assert [row.against for row in _before(corrected, public, fewer_trials)] == [None]


def test_what_cannot_win_is_listed_and_not_counted():
    own, roles = _method("concentration", {"norm": 0.9})
    copies = own[own["confidence"] == "norm"].assign(confidence=OWN)
    each = _found(PLAIN, (pd.concat([own, copies], ignore_index=True), roles.assign(probabilistic=True)))[0]
    assert (each.same_order_as, each.counts, each.why) == ("norm", False, "orders images as norm")
    assert np.isnan(each.p_holm)
    # Where no order tells right from wrong, equal AUROCs do not show that it is the same.
    both = pd.concat([own, copies], ignore_index=True)
    both["value"] = both["value"].where(both["metric"] != "confidence_auroc", 0.5)
    each = _found(PLAIN, (both, roles.assign(probabilistic=True)))[0]
    assert each.same_order_as == ""


@pytest.mark.slow
def test_no_better_method_seldom_wins():
    """A null world: methods differ from the plain one by the seed alone, so wins stay at 2.5 %, adjusted ones rare."""
    rng = np.random.default_rng(0)
    frame, roles = _method("cosface", {"norm": 0.5}, splits=("test", "val"))
    made = []
    for number in range(200):
        own = frame[frame["confidence"] == "norm"].assign(confidence=OWN, method=f"m{number}")
        own = pd.concat([own, frame[frame["confidence"] != OWN].assign(method=f"m{number}")])
        own["unit"] = own["unit"].str.replace("cosface", f"m{number}x")
        noisy = own["metric"] == "augrc"
        own.loc[noisy, "value"] += 0.01 * rng.normal(size=noisy.sum())
        both = roles.assign(unit=roles["unit"].str.replace("cosface", f"m{number}x"), probabilistic=True)
        # Its AUROC differs from that of the norm, so that it is no copy of it.
        own.loc[(own["metric"] == "confidence_auroc") & (own["confidence"] == OWN), "value"] += 0.01
        made.append((own, both))
    cases = [each for each in _found((frame, roles), *made) if each.use == "before_gallery"]
    assert len(cases) == 200
    assert np.mean([each.outcome == "better" for each in cases]) == pytest.approx(0.025, abs=0.025)
    assert sum(each.holds for each in cases) <= 1


RATIO = 4 / 3


def test_over_class_splits_the_unit_is_the_split_and_the_rival_is_chosen_on_each():
    """The first confidence of the plain method is the better one on two splits, the second on the third."""
    skills = {1: (1.5, 0.3), 2: (1.4, 0.2), 3: (0.1, 1.0)}
    frames, roles = [], []
    for number, (norm, cosine) in skills.items():
        pinned = Pinned().on_split(number)
        for name, skill in (
            ("cosface", {"norm": norm, "max_cosine": cosine, "margin": 1.5}),
            ("spread", {OWN: 1.0, "norm": 0.1}),
            ("other", {OWN: 2.5, "norm": 0.1}),
            ("same", {OWN: 2.5, "norm": 2.5}),
        ):
            frame, role = _method(name, skill, seeds=2, pinned=pinned, splits=(*SPLITS, "test_blur"))
            if name == "same":
                own, norm = (frame["confidence"] == each for each in (OWN, "norm"))
                frame.loc[own, "value"] = frame.loc[norm, "value"].to_numpy()
            for part in (frame, role):
                part["unit"] += f" {number}"
            frames.append(frame)
            roles.append(role)
    every = {}
    for group in groups(*joined(zip(frames, roles))):
        every.setdefault(group.contender.pinned.class_seed, []).append(group)
    pairs = {number: SYSTEM.pairs(own) for number, own in every.items()}
    rows = decided(over_units(pairs, "split", lambda contender: RATIO), SYSTEM)
    found = [row for row in rows if row.column.metric == "augrc" and not row.same_order_as]
    tables = {frame["method"].iloc[0] + str(frame["pinned"].iloc[0].class_seed): frame for frame in frames}
    assert {x.contender.method for x in found} == {"spread", "other"}  # the other one's confidence is the norm
    p = []
    for name in ("spread", "other"):
        each = next(x for x in found if (x.contender.method, x.use, x.column.split) == (name, BEFORE, "test"))
        expected = []
        for number, (norm, cosine) in skills.items():
            rival = "norm" if norm > cosine else "max_cosine"
            plain = _by_seed(tables[f"cosface{number}"], "augrc", rival)
            expected.append((plain - _by_seed(tables[f"{name}{number}"], "augrc", OWN)).mean())
        assert [each.others[n] - each.values[n] for n in skills] == pytest.approx(expected)
        assert each.against.method == "cosface"
        error = np.std(expected, ddof=1) * np.sqrt(1 / 3 + RATIO)
        assert each.p == pytest.approx(2 * stats.t.sf(abs(np.mean(expected)) / error, 2))
        p.append((each.p, each.p_holm))
    low, high = sorted(p)
    assert low[1] == pytest.approx(2 * low[0])
    assert high[1] == pytest.approx(max(high[0], low[1]))
    for place in {(x.use, x.column.split) for x in found}:  # every question and kind of images by itself
        low, high = sorted((x.p, x.p_holm) for x in found if (x.use, x.column.split) == place)
        assert (low[1], high[1]) == pytest.approx((min(1, 2 * low[0]), max(high[0], min(1, 2 * low[0]))))
    document = split_document(rows)
    text = files_of(document)["splits.md"]
    for images in ("clean images", "centre crops", "blur"):
        assert f"d, over class splits, before the gallery, {images}: " in text
    assert set(document.numbers["question"]) == {BEFORE, "at_query_time"}


def test_each_free_image_confidence_is_a_rival_by_itself_with_a_family_of_its_own():
    methods = [PLAIN, _method("scf", {OWN: 1.0, "norm": 0.4}), _method("pfe", {OWN: 0.0, "norm": 0.4}, risk=0.15)]
    frames, roles = joined(methods)
    rows = ask(RIVAL, groups(frames, roles))
    assert {(row.contender.method, row.rival, row.column.split) for row in rows} == {
        (method, rival, split)
        for method in ("scf", "pfe")
        for rival in ("norm", "max_cosine")
        for split in ("test", "test_crop")
    }
    of = frames[(frames["metric"] == "augrc") & (frames["variant"] == "recall_at_1")]
    values = of.set_index(["method", "confidence", "split", "seed"])["value"]
    for row in rows:
        difference = [
            values["cosface", row.rival, row.column.split, seed]
            - values[row.contender.method, OWN, row.column.split, seed]
            for seed in range(5)
        ]
        assert row.mean == pytest.approx(np.mean(difference))
        assert (row.low, row.high) == pytest.approx(tuple(stats.ttest_1samp(difference, 0).confidence_interval()))
        assert row.family == 2
    text = files_of(rival_document(rows))["rivals.md"]
    assert {row.why for row in rows} == {"", "not above chance"}
    assert text.count("undecided: not above chance") == sum(bool(row.why) for row in rows) > 0


def test_rivals_of_two_networks_have_lines_that_differ():
    skills = {"cosface": {"norm": 0.3, "margin": 1.0}, "scf": {OWN: 1.5, "norm": 0.3, "margin": 1.0}}
    made = [_method(name, skill, backbone=net) for net in ("small", "large") for name, skill in skills.items()]
    made = [(f.assign(unit=f["unit"] + str(at)), r.assign(unit=r["unit"] + str(at))) for at, (f, r) in enumerate(made)]
    lines = [row.cells[0].text for row in rival_document(ask(RIVAL, groups(*joined(made)))).tables[0].rows]
    assert len(set(lines)) == 2
    assert all(net in " ".join(lines) for net in ("small", "large"))


def test_a_rival_that_is_named_needs_no_validation_images():
    skills = {"cosface": {"norm": 0.3, "margin": 1.0}, "scf": {OWN: 1.5, "norm": 0.3, "margin": 1.0}}
    methods = [_method(name, skill, splits=("test",)) for name, skill in skills.items()]
    frames, roles = joined(methods)
    (row,) = ask(RIVAL, groups(frames, roles))
    assert (row.rival, row.outcome) == ("norm", "better")
    (system, *_) = ask(SYSTEM, groups(frames, roles))
    assert system.outcome == "no verdict"
