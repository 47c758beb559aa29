"""The answer at the top of a page counts the verdicts of all data sets, and says what the records lack."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from bench.report.frame import Results
from bench.report.page import answer as answers
from bench.report.page import sources
from bench.report.page.answer import answer_of
from bench.report.page.page import page_html
from bench.report.page.words import Words, named
from bench.report.write import Judged
from bench.store.folder import Store
from bench.store.records import Epoch, TrainRecord
from bench.store.specs import Pinned

from tests.report.shown import facts_of

from .page_records import ALONE, CHALLENGERS, CLOSE, FREE, LEADING, POINT, UNSURE, Made
from .test_page import TWO_BUDGETS, Tree

FAR = replace(POINT, map_at_r=(0.1, 0.11, 0.12))


def _answer(*made):
    results = Results.of(tuple(record for each in made for record in each.records()))
    leading = {}
    for facts in facts_of(results):
        leading.setdefault(facts.name, Words(facts))
    return answer_of(list(leading.values()))


def _elsewhere(*made):
    return [replace(each, dataset="e", cell=f"e{each.name}") for each in made]


def test_cases_are_methods_on_data_sets_by_their_verdict():
    answer = _answer(LEADING, CLOSE, POINT, UNSURE, *_elsewhere(LEADING, POINT))
    counts = {each.use: (each.better, each.worse, each.undecided) for each in answer.cases}
    assert set(counts.values()) == {(2, 1, 1)}
    assert len(counts) == 3
    assert answer.lead == "Equally often in every use that these records test."
    before, query, _ = answer.points
    start = "A learned confidence is shown to beat the free one of the "
    shares = "in 2 of 4 cases on clean images (2 adjusted, 2 over any)"
    assert before.text.startswith(f"{start}same network that validation chose {shares}. ")
    assert query.text.startswith(
        f"{start}ranking that validation chose by itself {shares}, and combined with free ones {shares}. "
    )
    assert answer.missing == ("d has no tests on centre crops.", "e has no tests on centre crops.")


def test_the_place_where_it_is_worth_it_most_often_comes_first():
    best = {name: (0.95, 0.96, 0.97) for name in ("margin", "top1_score")}
    answer = _answer(replace(LEADING, auroc=best), POINT)  # the free ones of the ranking are better than its own
    assert answer.lead == "Most often before there is a gallery, on clean images (1 of 1 cases)."
    rarer = _answer(replace(LEADING, auroc=best), CLOSE, POINT)
    assert rarer.lead == "Most often before there is a gallery, on clean images (1 of 2 cases)."
    rare = _answer(replace(LEADING, auroc=best), CLOSE, UNSURE, POINT)
    assert rare.lead == (
        "In a minority of cases, most often before there is a gallery, on clean images (1 of 3 cases)."
    )
    assert _answer(CLOSE, POINT).lead == "In none of the cases that these records decide."


def _worth_it_with_margin(free=(), **auroc):
    """Records of a method whose own confidence is worth it only if its ranks are combined with those of the margin."""
    made = Made("m", (0.5, 0.5, 0.6), (0.60, 0.61, 0.62), auroc=auroc, free=(*FREE, *free))
    for record in made.records():
        rows = [
            {**row, "value": 0.8 + 0.01 * record.columns.seed} if row.get("confidence") == "method+margin" else row
            for row in record.rows
        ]
        yield record.model_copy(update={"rows": tuple(rows)})


def test_a_combined_confidence_counts_once_if_either_combination_is_worth_it():
    (facts,) = facts_of(Results.of(tuple(_worth_it_with_margin())))
    *_, alone, combined = answer_of([Words(facts)]).cases
    assert (alone.better, alone.judged) == (0, 1)
    assert (combined.better, combined.judged) == (1, 1)


@pytest.mark.parametrize(
    ("level", "outcome"), [(0.75, "better"), (0.79, "better"), (0.8, "equivalent"), (0.9, "worse")]
)
def test_a_combination_competes_with_combinations_of_free_ones(level, outcome):
    free = {"norm": (0.71,) * 3, "norm+margin": tuple(level + 0.01 * seed for seed in range(3))}
    (facts,) = facts_of(Results.of(tuple(_worth_it_with_margin(("norm+margin",), **free))))
    words = Words(facts)
    *_, combined = answer_of([words]).cases
    assert (getattr(combined, outcome), combined.judged, combined.same) == (1, 1, 0)
    (tally,) = words.tallies["at_query_time"]
    assert len(tally.members("better", False)) == (outcome == "better")


def test_validation_and_not_test_chooses_among_forms_that_are_worth_it():
    made = Made("m", (0.5, 0.5, 0.6), (0.90, 0.91, 0.92))
    records = []
    for record in made.records():
        higher = {("test", "method+margin"): 0.05, ("val", "method+margin+agreement"): 0.02}
        rows = [
            {**row, "value": row["value"] + higher.get((row["split"], row.get("confidence")), 0)} for row in record.rows
        ]
        records.append(record.model_copy(update={"rows": tuple(rows)}))
    (facts,) = facts_of(Results.of(tuple(records)))
    (tally,) = Words(facts).tallies["at_query_time"]
    assert [each.use for each in tally.by_method.values()] == ["method+margin+agreement"]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            (LEADING, FAR),
            "A probabilistic method is shown to be better than every deterministic one on d (leading).",
        ),
        (
            (UNSURE, POINT),
            "No probabilistic method is shown to be better than the best deterministic one on d;",
        ),
        ((UNSURE, POINT), "; on d the best deterministic one is better than all probabilistic ones"),
        ((CLOSE, replace(POINT, map_at_r=(0.80, 0.80, 0.81))), "better than the best deterministic one on d."),
        ((LEADING, FAR, *_elsewhere(UNSURE, POINT)), "deterministic one on d (leading); on e the best deterministic"),
        ((UNSURE, POINT, *_elsewhere(UNSURE, POINT)), "one on any of the 2 data sets; on d and e the best"),
        ((POINT,), "was not tested"),
        ((replace(LEADING, map_at_r=(0.8,)), replace(POINT, map_at_r=(0.7,))), "was not tested"),
    ],
)
def test_retrieval_is_answered_by_the_ranks_of_all_methods_at_once(made, text):
    answer = _answer(*made)
    assert text in answer.points[-1].text
    assert ("by more than 0.5 points of MAP@R" in " ".join(answer.notes)) == ("not tested" not in text)


def test_tie_groups_that_are_numbers_are_compared_as_numbers():
    def row(ties):
        return SimpleNamespace(rank=SimpleNamespace(ties=ties))

    assert answers._told_apart(row("1.12"), row("2.13"))
    assert not answers._told_apart(row("1.12"), row("12"))
    assert not answers._told_apart(row("abC"), row("Cd"))
    assert answers._told_apart(row("ab"), row("cA"))


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        ((POINT,), "d has no result of a probabilistic method at this budget."),
        ((LEADING,), "d has no result of a deterministic method at this budget."),
        ((replace(LEADING, map_at_r=(0.8,)), replace(POINT, map_at_r=(0.7,))), "d has one seed only, which decides"),
        ((LEADING, replace(POINT, map_at_r=(0.7,))), "d has no two methods of both kinds with the same two seeds."),
    ],
)
def test_what_the_records_lack_is_said(made, missing):
    answer = _answer(*made)
    assert any(text.startswith(missing) for text in answer.missing)
    if made == (POINT,):
        assert answer.lead == "These records cannot tell."
        assert answer.points[0].text == "No record here has a verdict on a learned confidence."


def test_the_answer_is_the_first_text_of_the_page_and_of_the_leading_budgets(tmp_path):
    results = Results.of(tuple(record for each in TWO_BUDGETS for record in each.records()))
    text = page_html(Judged(Store(tmp_path), results), ())
    tree = Tree(text)
    assert "in 1 of 1 cases on clean images" in tree.by_id("answer")
    assert text.index('id="answer"') < text.index("<nav") < text.index('id="verdict"')
    assert "1 of 1" in tree.by_id("cases")


def test_each_own_confidence_has_one_name_on_the_page(tmp_path):
    results = Results.of(tuple(record for each in (LEADING, CLOSE, UNSURE, POINT) for record in each.records()))
    tree = Tree(page_html(Judged(Store(tmp_path), results), ()))
    for name in map(named, CHALLENGERS):
        assert name in tree.by_id("reading")
    assert named(CHALLENGERS[0]) in tree.by_id("use-d-table")
    words = tree.by_id("verdict")
    assert "own + margin" not in words


def test_settings_that_matter_are_in_the_heading_of_a_verdict(tmp_path):
    pinned = Pinned(partial="5 of 9 images")
    made = [replace(each, hparams="small.json#0a1b2c3d", pinned=pinned) for each in (LEADING, POINT)]
    records = [
        record.model_copy(update={"setting": {"optim": {"epochs": epochs}}})
        for each, epochs in zip(made, (8, 20))
        for record in each.records()
    ]
    tree = Tree(page_html(Judged(Store(tmp_path), Results.of(tuple(records))), ()))
    heading = (
        "d in words: settings of a file (small.json), nothing tuned; 8 to 20 epochs, network net; part of the data"
    )
    assert f"{heading} only (5 of 9 images)" in tree.by_id("verdict-d")
    assert "#0a1b2c3d" not in tree.by_id("verdict")


@pytest.mark.parametrize(("trials", "named"), [(1, False), (2, True)])
def test_a_method_with_nothing_to_tune_differs_in_nothing(tmp_path, trials, named):
    made = [replace(each, hparams="tuned", trials=50) for each in (LEADING, CLOSE)]
    made.append(replace(POINT, hparams="tuned", trials=trials))
    text = page_html(
        Judged(Store(tmp_path), Results.of(tuple(record for each in made for record in each.records()))), ()
    )
    assert "numbers of seeds differ" not in text
    assert ("at another budget only" in text) == named


def test_methods_that_differ_by_too_little_to_matter_are_not_called_better():
    near = replace(UNSURE, map_at_r=tuple(value - 0.004 for value in POINT.map_at_r))
    far = replace(UNSURE, map_at_r=tuple(value - 0.006 for value in POINT.map_at_r))
    assert "the best deterministic one is better" not in _answer(near, POINT).points[-1].text
    assert "the best deterministic one is better" in _answer(far, POINT).points[-1].text


def test_the_highest_confidence_over_all_methods_is_told():
    free = {name: (0.95, 0.96, 0.97) for name in ("margin", "top1_score")}
    text = "the highest AUROC is that of a learned confidence for {} of 1 pair of data set and kind of images"
    for made, counts in ((LEADING, (1, 1)), (replace(LEADING, auroc=free), (1, 0))):
        before, query, _ = _answer(made, POINT).points
        assert text.format(counts[0]) in before.text
        assert text.format(counts[1]) in query.text


def test_an_ensemble_without_a_rank_that_is_higher_is_told():
    higher = replace(ALONE, ensemble="seeds", models=3)
    end = "Higher than all ranked methods, but not ranked itself: alone (3 times the trainings) by 9.0 points on d."
    assert _answer(LEADING, POINT, higher).points[-1].text.endswith(end)


def test_an_own_confidence_that_orders_images_as_a_free_one_is_no_win_of_learning(tmp_path):
    """Its combination beats the margin, but it is the norm in another scale."""
    results = Results.of((*_worth_it_with_margin(norm=(0.60, 0.61, 0.62)), *LEADING.records()))
    (facts,) = facts_of(results)
    words = Words(facts)
    before, _, combined = answer_of([words]).cases
    assert [(each.better, each.judged, each.same) for each in (before, combined)] == [(1, 1, 1)] * 2
    page = Tree(page_html(Judged(Store(tmp_path), results), ()))
    assert "orders images as a free one does ( m )" in page.by_id("verdict-d").replace("(", "( ").replace(
        ")", " )"
    ).replace("  ", " ")


def test_cases_tell_what_is_equal_apart_and_leave_out_single_values():
    equal = replace(CLOSE, name="equal", own=(0.701, 0.699, 0.7))
    alone = replace(LEADING, name="joint", map_at_r=(0.9,), ensemble="seeds", models=3)
    for each in _answer(LEADING, equal, POINT, alone).cases:
        assert (each.judged, each.better, each.equivalent) == (2, 1, 1)


def test_a_win_is_above_chance_and_says_how_sure_it_is():
    low = dict.fromkeys(Made("x", ()).free, (0.40, 0.41, 0.42))
    for level, better in ((0.49, 0), (0.56, 1)):
        cases = _answer(replace(LEADING, own=tuple(level + 0.001 * seed for seed in range(3)), auroc=low), POINT).cases
        assert {each.better for each in cases} == {better}
        assert cases[0].remark == ("1 adjusted, 1 over any" if better else "")


def test_budgets_and_parts_of_the_data_are_named():
    part = [replace(each, pinned=Pinned(partial="5 of 9 images")) for each in _elsewhere(LEADING, POINT)]
    notes = " ".join(_answer(LEADING, POINT, *part).notes)
    assert "Settings: default settings, nothing tuned (d, e)." in notes
    assert "Only a part of the images: e." in notes


def test_a_constant_confidence_is_said_and_is_no_case(tmp_path):
    dead = Made("dead", (0.9, 0.91, 0.92), (0.5, 0.5, 0.5))
    answer = _answer(dead, LEADING)
    (said,) = answer.remarks
    assert re.fullmatch("On d: Own confidence constant for all (.* )?images, so there is no verdict on it: dead.", said)
    assert {each.judged + each.same for each in answer.cases} == {1}
    page = Tree(page_html(Judged(Store(tmp_path), Results.of((*dead.records(), *LEADING.records()))), ()))
    assert said in page.by_id("answer")
    assert "the method has a confidence that is constant" in page.by_id("verdict-d")


def test_a_training_whose_loss_never_fell_is_named():
    def training(*losses):
        history = tuple(Epoch(epoch=i, loss=loss, val_map_at_r=0.1) for i, loss in enumerate(losses))
        return TrainRecord.model_construct(history=history)

    falls = [training(), training(2.0), training(None, 2.0), training(None, 2.0, 2.5, 1.9)]
    assert {each.loss_note for each in falls} == {""}
    assert training(None, 2.0, 2.0 - 1e-9).loss_note.startswith("the loss never fell: 2 in")  # rounding alone
    (test,) = POINT.records()[:1]
    assert sources.losses([sources.Tested(test, tuple(falls))]) == []
    assert sources.losses([sources.Tested(test, (training(None, 2.0, 2.5, 2.25),))]) == [
        "On d, point, seed 0: the loss never fell: 2 in the first epoch, 2.25 at best later."
    ]
