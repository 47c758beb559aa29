"""Replicates with tuning studies of their own: decisions, also in a simulated pipeline, choices and tables."""

import numpy as np
import pandas as pd
import pytest
from bench.protocols.rows import OWN
from bench.report.compare import Comparison, Question, Reason, ask, decided, over_units
from bench.report.contender import ONE_SETTING, Contender
from bench.report.questions import CONFIDENCE, PAIR, SYSTEM
from bench.report.seeds import ComparedColumn
from bench.report.terminal import print_answers
from bench.report.views import decision_document, decisions
from bench.store.specs import Pinned

from tests.report.shown import printed
from tests.report.test_comparisons import _groups
from tests.report.test_systems import BEFORE, PLAIN, SPREAD, _method

STUDIES = {"replicate": "study", "trials": 10}
A = Contender("reality_check", "strict", "d", "a", "", "corrected", "tuned", 10, Pinned(), "net", 64, "", "study")
AUGRC = ComparedColumn("augrc", variant="recall_at_1")


def _decided(differences, contender=A):
    """Decisions on differences in favour of the first, a row of them for each comparison."""
    rows = [
        Comparison(
            question="q",
            contender=contender,
            against=contender._replace(method="b"),
            column=AUGRC,
            values=dict(enumerate(-own)),
            others=dict.fromkeys(range(len(own)), 0.0),
        )
        for own in np.atleast_2d(differences)
    ]
    return decided(rows, Question("q", lambda groups: (), id, regions=False))


@pytest.mark.parametrize(
    ("differences", "outcome"),
    [
        ([0.10, 0.11, -0.10, -0.12, 0.09], "depends on tuning"),  # each sign stands apart from 0
        ([0.02, 0.11, -0.01, -0.12, 0.01], "undecided"),  # noise around 0
        ([0.10, 0.11, -0.10, -0.12], "undecided"),  # too few to tell
        ([0.06, 0.10, 0.14, -0.07, -0.13, 0, 0, 0, 0, 0], "undecided"),  # ties say nothing of the spread of a sign
        ([0.10, -0.10, 0, 0, 0], "undecided"),  # too few that have a sign
        ([0.10, 0.11, 0.09, 0.10, -0.002], "undecided"),  # as the interval alone would not say
        ([0.10, 0.11, 0.10, 0.12, 0.09], "better"),
    ],
)
def test_replicates_that_contradict_each_other_say_that_the_outcome_depends_on_tuning(differences, outcome):
    (row,), (seeds,) = (_decided(np.array(differences), A._replace(replicate=each)) for each in ("study", "seed"))
    assert (row.unit, row.outcome) == ("replicate", outcome)
    assert (seeds.unit, seeds.outcome) == ("seed", "better" if seeds.p < 0.05 else "undecided")


@pytest.mark.parametrize("step", [True, False])
def test_decisions_in_a_simulated_pipeline_of_known_truth(step):
    """Ten trials tuned on a flat noisy value; the confidence depends on the tuned value, steeply or not."""
    rng = np.random.default_rng(1)

    def risks(runs, gain=0.0, noise=0.01):
        tuned = rng.random((runs, 5, 10))
        validation = -0.05 * (tuned - 0.45) ** 2 + rng.normal(0, 0.015, tuned.shape)
        best = np.take_along_axis(tuned, validation.argmax(-1)[..., None], -1)[..., 0]
        effect = 0.1 * np.tanh(12 * (best - 0.5)) if step else 0.2 * (best - 0.5)
        return 0.3 + effect - gain + rng.normal(0, noise, best.shape)

    runs = 1500
    for gain in (0.0, 0.05):
        found = _decided(risks(runs) - risks(runs, gain))
        covered = np.mean([row.low <= gain <= row.high for row in found])
        wrong = np.mean([row.outcome in (("worse",) if gain else ("better", "worse")) for row in found])
        assert covered > 0.93  # standard error 0.006
        assert wrong < 0.05


def _turned(name, skills, **columns):
    """A method whose confidences have other skills at every replicate."""
    parts = [_method(name, skill, seeds=len(skills), **STUDIES, **columns) for skill in skills]
    frame = pd.concat([part[0][part[0]["seed"] == seed] for seed, part in enumerate(parts)], ignore_index=True)
    return frame, parts[0][1]


def test_every_replicate_chooses_its_free_confidence_by_its_own_validation_images():
    norm, cosine = {"norm": 1.5, "max_cosine": -0.5}, {"norm": -0.5, "max_cosine": 1.5}
    plain = _turned("cosface", [norm, cosine, norm, cosine, norm])
    own = _method("spread", {OWN: 1.0, "norm": 0.2, "margin": 1.5}, **STUDIES)
    every = _groups(plain, own)
    rows = [row for row in ask(SYSTEM, every) if row.use == BEFORE and row.column.split == "test"]
    augrc = next(row for row in rows if row.column.metric == "augrc")
    assert (augrc.unit, augrc.n, augrc.rival, augrc.leads) == ("replicate", 5, "norm or max_cosine", True)
    risk = plain[0][(plain[0]["metric"] == "augrc") & (plain[0]["split"] == "test")]
    chosen = {0: "norm", 1: "max_cosine", 2: "norm", 3: "max_cosine", 4: "norm"}
    for seed, name in chosen.items():
        (value,) = risk[(risk["seed"] == seed) & (risk["confidence"] == name)]["value"]
        assert augrc.others[seed] == value
    gain = next(row for row in ask(CONFIDENCE, every) if row.contender.method == "spread" and row.use == BEFORE)
    assert gain.about["own_mean"] == pytest.approx(np.mean(list(gain.values.values())))


def test_a_replicate_that_answers_everything_rightly_takes_no_verdict_from_the_others():
    """It has no AUROC; as seeds of one setting, the same risks and AUROCs come to the same."""
    frame, roles = SPREAD
    perfect, confident = (frame["seed"] == 3) & (frame["split"] == "test"), frame["metric"] == "confidence_auroc"
    value = frame["value"].mask(perfect & (frame["metric"] == "recall_at_1"), 1.0).mask(perfect & confident)
    value = value.mask(perfect & frame["variant"].str.startswith("recall_at_1"), 0.0)
    found = []
    for columns in (STUDIES, {"replicate": "seed", "trials": 10}):
        made = (PLAIN[0].assign(**columns), PLAIN[1]), (frame.assign(value=value, **columns), roles)
        rows = (row for row in ask(SYSTEM, _groups(*made)) if row.column == AUGRC)
        found.append(next(row for row in rows if row.use == BEFORE))
    assert [row.unit for row in found] == ["replicate", "seed"]
    assert {(row.n, row.outcome, row.why, row.mean, row.p) for row in found} == {
        (5, "better", "", found[1].mean, found[1].p)
    }


def test_a_free_confidence_in_disguise_is_one_also_if_a_replicate_has_no_auroc():
    usual = {"question": "q", "contender": A, "column": AUGRC, "others": {0: 0.2}}
    made = {n: [Comparison(**usual, values={0: 0.1}, aurocs={0: 0.7}, same_order_as="norm")] for n in range(3)}
    made[0] = [Comparison(**usual, values={0: 0.0}, aurocs={}, reason=Reason.NO_VALUE)]
    (row,) = over_units(made, "replicate")
    assert (row.reason, row.same_order_as, row.values) == (None, "norm", {0: 0.0, 1: 0.1, 2: 0.1})
    (row,) = over_units({0: made[0]}, "replicate")
    assert row.reason is Reason.NO_VALUE


def test_a_plain_method_that_lacks_a_replicate_is_not_replaced_there():
    plain = _method("cosface", {"norm": 0.5, "margin": 1.5}, **STUDIES)
    other = _method("arcface", {"norm": 0.9, "margin": 1.5}, **STUDIES)
    own = _method("spread", {OWN: 1.0, "norm": 0.2, "margin": 1.5}, **STUDIES)
    head = _method("head", {OWN: 1.0, "norm": 0.2, "margin": 1.5}, base="cosface", **STUDIES)
    some = plain[0][plain[0]["seed"] > 0]
    rows = ask(SYSTEM, _groups((some, plain[1][plain[1]["unit"].isin(some["unit"])]), other, own, head))
    places = [(row.contender.method, row.use, row.column) for row in rows]
    assert len(places) == len(set(places))
    assert {row.against.method for row in rows} == {"cosface"}
    assert {row.n for row in rows} == {4}


@pytest.mark.parametrize("other", [{"hparams": "default", "trials": 0}, {"hparams": "tuned", "trials": 50}])
def test_of_two_designs_one_leads(other):
    made = [
        _method(name, skill, **columns)
        for columns in (STUDIES, {**other, "replicate": "seed"})
        for name, skill in (
            ("cosface", {"norm": 0.5, "margin": 1.5}),
            ("spread", {OWN: 1.0, "norm": 0.2, "margin": 1.5}),
        )
    ]
    made = [(f.assign(unit=f["unit"] + str(at)), r.assign(unit=r["unit"] + str(at))) for at, (f, r) in enumerate(made)]
    for question in (SYSTEM, CONFIDENCE):
        rows = ask(question, _groups(*made))
        assert {row.contender.replicate for row in rows} == {"seed", "study"}
        assert {row.contender.replicate for row in rows if row.leads} == {"study"}


def test_a_tie_contradicts_no_replicate():
    one, every = _decided(np.array([[0.05, 0.06, 0.0, 0.05, 0.05], [0.0] * 5]))
    assert (one.outcome, one.why) == ("better", "")
    assert (every.outcome, every.why) == ("undecided", "")


def test_what_is_said_of_a_choice_and_free_confidences_are_those_of_all_replicates():
    usual = {"question": "q", "contender": A, "column": AUGRC, "values": {0: 0.1}, "others": {0: 0.2}}
    remarks = ("", "default, 9 wrong validation answers", "")
    made = {n: [Comparison(**usual, about={"rival_remark": remark})] for n, remark in enumerate(remarks)}
    made[1][0].free = {"late": {0: 0.3}}  # a later test has more of them
    (row,) = over_units(made, "replicate")
    assert (row.n, len(row.values), row.about["rival_remark"]) == (0, 3, remarks[1])
    assert row.free == {"late": {1: 0.3}}


def test_replicates_that_differ_in_sign_are_not_decided_by_more_of_them():
    made = [_method(name, {"norm": 0.5, "margin": 1.5}, **STUDIES) for name in ("a", "b")]
    found = decisions(_groups(*made), ask(PAIR, _groups(*made)))
    lines = decision_document(found).numbers
    reasons = [row.reason for row in found]
    assert Reason.SIGNS in reasons
    assert [*lines["more_seeds"].isna()] == [row.outcome != "undecided" or row.reason is not None for row in found]


def test_the_terminal_prints_few_replicates_one_by_one_and_says_what_one_setting_is():
    own = _method("spread", {OWN: 1.2, "norm": 0.1, "margin": 1.5}, risk=0.2, **STUDIES)
    plain = _method("cosface", {"norm": 0.5, "margin": 1.5}, **STUDIES)
    shown = printed(print_answers, ask(SYSTEM, _groups(plain, own)), width=300)
    assert "better: spread* +" in shown
    assert len(shown.split("(replicates ")[1].split(")")[0].split()) == 5
    assert ONE_SETTING not in shown
    assert ONE_SETTING in printed(print_answers, ask(SYSTEM, _groups(PLAIN, SPREAD)), width=300)
