"""Comparisons: one set of rules for every unit, a reason for what lacks, and a new question in a few lines."""

from dataclasses import replace

import pytest
from bench.protocols.rows import OWN
from bench.report import splits
from bench.report.compare import Comparison, Question, ask, comparisons_frame
from bench.report.questions import CONFIDENCE, METRIC, PAIR, SYSTEM, ranking_of
from bench.report.questions import PLAIN as AGAINST_PLAIN
from bench.report.seeds import ComparedColumn
from bench.store.specs import Pinned

from tests.report.shown import groups, joined
from tests.report.test_systems import PLAIN, SPREAD, _method


def _groups(*made):
    return groups(*joined(made))


@pytest.fixture
def over(monkeypatch):
    """Function that compares systems with the class split as the unit: of copies of the same methods on some splits."""

    def rows(made_on, question="system"):
        every = {}
        for number, made in made_on.items():
            for group in _groups(*_split(made, number)):
                own = group.contender._replace(pinned=Pinned())
                every.setdefault(own, {})[number] = group
        monkeypatch.setattr(splits, "groups_by_split", lambda results: every)
        monkeypatch.setattr(splits, "test_over_train", lambda *given: 0.1)
        return [row for row in splits.split_comparisons(None, None) if row.question == question]

    return rows


def _first(rows):
    place = ("before_gallery", "test", "augrc")
    return next(row for row in rows if (row.use, row.column.split, row.column.metric) == place)


def _at_chance(skill):
    """A plain method that answers badly, and one that answers well with a confidence near chance."""
    return (
        _method("cosface", {"norm": 0.0, "margin": 0.0}, risk=0.6, seeds=3),
        _method("spread", {OWN: skill, "norm": 0.0}, risk=0.1, seeds=3),
    )


def test_chance_and_constants_decide_alike_over_seeds_and_over_class_splits(over):
    """A system of better answers, whose confidence tells nothing, is no better confidence on any unit."""
    dead = _method("dead", {OWN: 1.0, "norm": 0.5}, seeds=3)
    dead[0].loc[(dead[0]["confidence"] == OWN) & (dead[0]["metric"] == METRIC), "value"] = 0.5
    for made, said in (
        (_at_chance(-0.2), ("undecided", "not above chance")),
        (_at_chance(3.0), ("better", "")),
        ((PLAIN, dead), ("no verdict", "confidence constant for all 400 images")),
    ):
        seeds, split = _first(ask(SYSTEM, _groups(*made))), _first(over(dict.fromkeys((1, 2, 3), made)))
        assert (seeds.unit, split.unit, split.n) == ("seed", "split", 3)
        assert (seeds.outcome, seeds.why) == (split.outcome, split.why) == said


def test_one_unit_decides_nothing_whatever_it_is(over):
    one = [
        _method("cosface", {"norm": 0.5, "margin": 1.5}, seeds=1),
        _method("spread", {OWN: 1.0, "norm": 0.1, "margin": 1.0}, seeds=1),
    ]
    groups_of_one = _groups(*one)
    for question in (SYSTEM, CONFIDENCE, PAIR):
        rows = [row for row in ask(question, groups_of_one) if row.values and row.others]
        assert {(row.outcome, row.why) for row in rows} == {("no verdict", "one seed")}
    assert _first(over({1: one})).verdict == "one class split"


def test_a_new_question_is_ten_lines():
    """Is the own confidence of a method better than the norm of the plain method's network, on its own answers?"""

    def foreign(every):
        plain = next(group for group in every if group.contender.method == "cosface")
        for group in every:
            if OWN in group.confidences(METRIC):
                own = group.under(ranking_of(group)).per_seed(METRIC, confidence=OWN)
                theirs = plain.per_seed(METRIC, confidence="norm")
                yield Comparison(question="foreign", contender=group.contender, against=plain.contender,
                                 column=ComparedColumn(METRIC), values=own, others=theirs, aurocs=own)  # fmt: skip

    question = Question("foreign", foreign, lambda row: row.column)
    made = [PLAIN, *(_method(f"m{n}", {OWN: skill, "norm": 0.1}) for n, skill in enumerate((0.1, 0.5, 1.5)))]
    frame = comparisons_frame(ask(question, _groups(*made))).set_index("method")
    assert frame["outcome"].to_dict() == {"m0": "worse", "m1": "undecided", "m2": "better"}
    own, theirs = (
        each[0].query("metric == @METRIC and confidence == @name and split == 'test'").sort_values("seed")["value"]
        for each, name in ((made[3], OWN), (PLAIN, "norm"))
    )
    assert frame.loc["m2", "difference"] == pytest.approx((own.to_numpy() - theirs.to_numpy()).mean())


def test_a_new_question_is_asked_over_class_splits(over, monkeypatch):
    def pairs(every):
        yield from (replace(row, question="again") for row in AGAINST_PLAIN.pairs(every))

    monkeypatch.setattr(splits, "OVER_SPLITS", (*splits.OVER_SPLITS, Question("again", pairs, lambda row: row.column)))
    made = dict.fromkeys((1, 2, 3), (PLAIN, SPREAD))
    known, again = over(made, "plain"), over(made, "again")
    assert [(row.values, row.others, row.unit) for row in again] == [(row.values, row.others, "split") for row in known]
    assert {row.n for row in again} == {3}


def test_the_file_of_comparisons_has_a_row_for_each_with_its_unit_and_reason():
    rows = [*ask(SYSTEM, _groups(PLAIN, SPREAD))]
    frame = comparisons_frame(rows)
    wanted = {"question", "dataset", "method", "against", "use", "images", "metric", "difference", "low", "high", "n"}
    wanted |= {"unit", "outcome", "reason", "p", "p_holm"}
    assert wanted <= set(frame.columns)
    assert len(frame) == len(rows) == 2 * 2 * 3
    assert set(frame["metric"]) == {"augrc", "risk_at_coverage", "aurc"}
    places = {(use, images) for use in ("before_gallery", "at_query_time") for images in ("clean", "crop")}
    assert set(zip(frame["use"], frame["images"])) == places
    decided_rows = frame[frame["outcome"] != "no verdict"]
    assert (decided_rows["low"] <= decided_rows["difference"]).all()


def test_what_lacks_is_a_row_with_a_reason():
    lonely = _method("spread", {OWN: 1.0, "norm": 0.1})
    assert {row.why for row in ask(SYSTEM, _groups(lonely))} == {"no result of the plain method at this budget"}
    half = _method("half", {OWN: 1.0, "norm": 0.1})
    half = half[0][~((half[0]["metric"] == "augrc") & (half[0]["seed"] > 0))], half[1]
    found = {row.column.metric: row for row in ask(SYSTEM, _groups(PLAIN, half)) if row.use == "before_gallery"}
    assert (found["augrc"].why, found["augrc"].n, found["aurc"].n) == ("one seed", 1, 5)
    frame, roles = lonely
    mine = frame.drop_duplicates("seed").assign(metric="mine", confidence="", value=0.5)
    assert ask(PAIR, _groups((mine, roles))) == []  # a metric that no plug-in here declares is compared with nothing


def _split(made, number):
    """The same results on a class split."""
    return [
        (frame.assign(pinned=[Pinned().on_split(number)] * len(frame), unit=frame["unit"] + str(number)),
         roles.assign(unit=roles["unit"] + str(number)))
        for frame, roles in made
    ]  # fmt: skip


def test_a_split_that_lacks_the_plain_method_takes_nothing_from_the_others(over):
    found = over({1: (PLAIN, SPREAD), 2: (PLAIN, SPREAD), 3: (SPREAD,)})
    rows = [row for row in found if row.column.metric == "augrc"]
    places = [(row.contender, row.use, row.column) for row in rows]
    assert len(places) == len(set(places)) == 4
    assert {(row.n, row.against.method) for row in rows} == {(2, "cosface")}


def test_a_confidence_that_is_constant_on_one_split_has_no_verdict(over):
    dead = SPREAD[0].copy(), SPREAD[1]
    dead[0].loc[(dead[0]["confidence"] == OWN) & (dead[0]["metric"] == METRIC), "value"] = 0.5
    for row in over({1: (PLAIN, SPREAD), 2: (PLAIN, SPREAD), 3: (PLAIN, dead)}):
        if row.use == "before_gallery":
            assert (row.outcome, row.why) == ("no verdict", "confidence constant for all 400 images")


def test_one_auroc_is_not_above_chance():
    lost = (SPREAD[0]["metric"] == METRIC) & (SPREAD[0]["confidence"] == OWN) & (SPREAD[0]["seed"] > 0)
    row = _first(ask(SYSTEM, _groups(PLAIN, (SPREAD[0][~lost], SPREAD[1]))))
    assert (row.n, row.outcome, row.why) == (5, "undecided", "not above chance")
