"""Budgets: which rows of a data set words may compare, and in which order budgets are named."""

import pytest
from bench.report.contender import Contender, budget_of, budget_texts, by_budget
from bench.store.specs import Pinned

DEFAULT = Contender("reality_check", "strict", "d", "a", "", "corrected", "default", 0, Pinned(), "convnet", 64, "")
EPOCHS = Pinned(settings={"optim.epochs": 2})
TUNED = DEFAULT._replace(hparams="tuned", trials=50)


def _methods(*contenders):
    return {budget: [each.method for each in own] for budget, own in by_budget(contenders).items()}


def test_the_largest_budget_of_two_methods_comes_first():
    rows = [DEFAULT, DEFAULT._replace(method="b"), DEFAULT._replace(method="c"), TUNED, TUNED._replace(method="b")]
    rows.append(TUNED._replace(trials=100))
    found = _methods(*rows)
    assert list(found.values()) == [["a", "b"], ["a", "b", "c"], ["a"]]
    assert [budget.trials for budget in found] == [50, 0, 100]


def _tuned(names, trials=50):
    return [TUNED._replace(method=name, trials=trials) for name in names]


@pytest.mark.parametrize(("tuned", "leading"), [("abc", 50), ("ab", 50), ("a", 0)])
def test_a_larger_budget_leads_if_half_of_the_methods_have_it(tuned, leading):
    every = [DEFAULT._replace(method=name) for name in "abcd"]
    assert [budget.trials for budget in _methods(*every, *_tuned(tuned))] == [leading, 50 - leading]


def test_if_no_budget_has_half_of_the_methods_that_of_most_leads():
    found = _methods(*_tuned("ab", 50), *_tuned("cde", 20), *_tuned("fg", 5))
    assert [budget.trials for budget in found] == [20, 50, 5]
    released = [DEFAULT._replace(method=name, fidelity="released") for name in "ab"]
    assert next(iter(_methods(*released, *_tuned("ab", 50)))).trials == 50  # two methods, each in two forms


def test_a_fixed_hyper_parameter_of_a_method_is_no_budget_unless_it_is_swept():
    fixed = DEFAULT._replace(method="b", pinned=Pinned(settings={"method.margin": 1, "optim.epochs": 2}))
    plain = DEFAULT._replace(pinned=EPOCHS)
    assert _methods(plain, fixed) == {budget_of(plain): ["a", "b"]}
    swept = fixed._replace(pinned=Pinned(settings={"method.margin": 2, "optim.epochs": 2}))
    assert len(_methods(plain, fixed, swept)) == 3


def test_a_fitted_head_counts_at_the_budget_of_the_models_with_an_optimiser():
    trained, head = DEFAULT._replace(pinned=EPOCHS), DEFAULT._replace(method="h", base="a")
    assert _methods(trained, head) == {budget_of(trained): ["a", "h"]}
    # Without fixed settings there is a budget that is its own, or it has an optimiser.
    assert len(_methods(trained, head, DEFAULT._replace(method="b"))) == 2
    assert len(_methods(trained, head, head._replace(pinned=Pinned(settings={"optim.epochs": 3})))) == 3


def test_a_head_counts_at_the_budget_of_the_row_that_it_is_trained_on():
    rows = [DEFAULT._replace(pinned=Pinned(settings={"method.margin": margin, "optim.epochs": 2})) for margin in (1, 2)]
    pins = [Pinned(settings=EPOCHS.settings, base=(f"method.margin={margin}",)) for margin in (1, 2)]
    heads = [DEFAULT._replace(method="h", base="a", pinned=pinned) for pinned in pins]
    assert list(_methods(DEFAULT, *rows, *heads).values()) == [["a", "h"], ["a", "h"], ["a"]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("hparams", "published"), ("trials", 9), ("pinned", EPOCHS), ("backbone", "resnet"), ("dim", 32)),
        *(("fidelity", "released"), ("preset", "per"), ("protocol", "p")),
    ],
)
def test_rows_that_differ_in_anything_but_the_method_have_two_budgets(field, value):
    assert len(_methods(TUNED, TUNED._replace(method="b", **{field: value}))) == 2
    assert len(_methods(TUNED, TUNED._replace(method="b"))) == 1


def test_a_method_with_nothing_to_tune_counts_at_the_largest_budget():
    untuned = TUNED._replace(method="u", trials=1)
    assert _methods(TUNED, TUNED._replace(method="b", trials=20), untuned)[budget_of(TUNED)] == ["a", "u"]
    # Others of one trial had a smaller budget, since they are tuned elsewhere.
    assert _methods(TUNED, TUNED._replace(trials=1)) == {budget_of(TUNED): ["a"], budget_of(untuned): ["a"]}
    assert _methods(untuned) == {budget_of(untuned): ["u"]}


def test_an_ensemble_counts_at_the_budget_of_its_members():
    joint = TUNED._replace(method="e", ensemble="seeds", dim=320)
    assert _methods(TUNED, joint) == {budget_of(TUNED): ["a", "e"]}
    assert len(_methods(TUNED._replace(dim=48), joint)) == 2


def test_texts_tell_budgets_apart():
    more = Pinned(settings={"optim.epochs": 2, "optim.lr": 0.1})
    budgets = [budget_of(DEFAULT._replace(pinned=more)), budget_of(TUNED._replace(pinned=EPOCHS, dim=8))]
    texts = ["default settings, convnet/64, optim.lr=0.1", "tuned once, 50 trials, convnet/8"]
    assert list(budget_texts(budgets).values()) == texts
    released = budget_of(DEFAULT._replace(fidelity="released", pinned=EPOCHS))
    assert budget_texts([released]) == {released: "default settings, released"}
