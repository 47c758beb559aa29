"""Replicates of a tuned run: studies of their own, the networks that these choose, and requests that make no sense."""

import pytest
from bench.cli import main
from bench.engine.tuning import choose
from bench.report.frame import collect
from bench.report.studies import study_lines, study_rows
from bench.store.folder import WEIGHTS, Store

from tests.in_process import run_here
from tests.plans import planned

SHORT = ("--dataset", "ndigit_smoke", "--set", "optim.epochs=1", "--seeds", "2")


def _run(folder, *arguments):
    return Store(run_here(folder, "run", *SHORT, *arguments, figures=False))


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """Two replicates of a plain method and of a head on it, four trials a replicate."""
    return _run(tmp_path_factory.mktemp("heads"), "--method", "cosface,pfe", "--trials", "8")


def _tests(store, method="cosface"):
    found = [test for test in store.tests() if test.cell.method == method]
    return {test.columns.seed: test for test in found}


def _studies(store, method="cosface"):
    every = [(study, trials) for study, trials in store.studies() if study.cell.method == method]
    return {study.spec.template.number: (study, trials) for study, trials in every}


def test_a_replicate_is_a_study_and_the_network_that_it_chooses(heads):
    for method in ("cosface", "pfe"):
        tests, studies = _tests(heads, method), _studies(heads, method)
        assert tests.keys() == studies.keys() == {0, 1}
        for number, (study, trials) in studies.items():
            assert [trial.number for trial in trials] == [0, 1, 2, 3]
            assert tests[number].spec.train == choose("retrieval", trials).units
            columns = tests[number].columns
            assert (columns.replicate, columns.trials, columns.hparams) == ("study", 4, "tuned")
            assert study.spec.template.replicate == f"tuning {number}"
        points = [[trial.params for trial in trials] for _, trials in studies.values()]
        assert points[0][0] == points[1][0]  # the default setting
        assert points[0][1:] != points[1][1:]
    assert len(list(heads.units("train", "reality_check/ndigit_smoke/cosface"))) == 8  # nothing is trained twice
    first, second = (heads.trained(test.cell, test.spec.train[0]) for test in _tests(heads).values())
    assert first.history != second.history


def test_a_head_is_trained_on_the_network_of_its_own_replicate(heads):
    bases, studies = _tests(heads), _studies(heads, "pfe")
    for number, test in _tests(heads, "pfe").items():
        head = heads.trained(test.cell, test.spec.train[0])
        assert (head.spec.base.unit,) == bases[number].spec.train == studies[number][0].spec.bases


def test_tested_networks_alone_keep_their_weights_also_when_a_study_goes_on(heads, tmp_path):
    def kept(store):
        units = store.units("train", "reality_check/ndigit_smoke/cosface")
        return {path.name.removeprefix("train-") for path in units if (path / WEIGHTS).exists()}

    chosen = {unit for test in _tests(heads).values() for unit in test.spec.train}
    assert kept(heads) == chosen
    (tmp_path / "results").symlink_to(heads.root.parent)
    longer = _run(tmp_path, "--method", "cosface", "--trials", "12")
    of_both = [test for test in longer.tests() if test.cell.method == "cosface"]
    assert sorted((test.columns.trials, test.columns.seed) for test in of_both) == [(4, 0), (4, 1), (6, 0), (6, 1)]
    assert kept(longer) == {unit for test in of_both for unit in test.spec.train}


def test_trials_measure_the_confidence_on_validation_crops(heads):
    for _, trials in _studies(heads).values():
        assert all(0 < trial.val_confidence_auroc < 1 for trial in trials)
    rows = study_rows(heads, collect(heads).trained)
    assert [(row.study.cell.method, row.study.spec.template.number) for row in rows] == [
        ("cosface", 0), ("cosface", 1), ("pfe", 0), ("pfe", 1),
    ]  # fmt: skip
    firsts = [trials[0].value for _, trials in _studies(heads).values()]
    assert rows[0].noise == pytest.approx(abs(firsts[0] - firsts[1]) / 2**0.5)
    best = max(trial.value for trial in rows[0].trials)
    assert [trial.value >= best - 2.8 * rows[0].noise for trial in rows[0].trials].count(True) == len(rows[0].ties)
    lines = list(study_lines(rows))
    assert [line.split(" on ")[0] for line in lines] == ["tuning of cosface", "tuning of pfe"]
    assert ("reversed in" in lines[0]) == any(row.is_reversed for row in rows[:2])


def test_the_winner_can_be_trained_anew_and_studies_have_any_numbers(tmp_path):
    settings = ("--set", "tuning.retrain=true", "--set", "tuning.first_study=10")
    store = _run(tmp_path, "--method", "cosface", "--trials", "4", *settings)
    tests, studies = _tests(store), _studies(store)
    assert tests.keys() == studies.keys() == {10, 11}
    for number, test in tests.items():
        spec = store.trained(test.cell, test.spec.train[0]).spec
        chosen = choose("retrieval", studies[number][1])
        assert spec.replicate == number
        assert spec.params["scale"] == chosen.params["method.scale"]
        assert test.columns.pinned.text == "optim.epochs=1; tuning.retrain=True"


def test_every_class_split_is_tuned_by_itself(tmp_path):
    asked = {"hparams": "tuned", "trials": 6, "seeds": 2, "data": {"class_splits": 2}}
    plans, site = planned(tmp_path, "pfe", **asked)
    heads = [plan for plan in plans if plan.cell.method == "pfe"]
    assert [plan.trainings for plan in heads] == [6, 6, 6]
    studies = {plan.base.study_spec(number, None).id for plan in heads for number in plan.replicates}
    assert len(studies) == 6
    for plan in heads:
        (spec,) = plan.base.train_specs(plan.base.defaults(), plan.base.trial_of(1), None).values()
        assert spec.view.get("class_seed", 0) == plan.class_seed
    once, _ = planned(site, "pfe", **asked, tuning={"studies": 1})
    assert [plan.trainings for plan in once if plan.cell.method == "pfe"] == [6 + 2, 2, 2]


@pytest.mark.parametrize(
    ("trials", "seeds", "each"),
    [(50, 5, 10), (50, 20, 3), (15, 5, 3), (9, 5, 2), (10, 5, 2), (2, 1, 2), (None, None, 10)],
)
def test_trials_are_shared_out(tmp_path, trials, seeds, each):
    [plan], _ = planned(tmp_path, "cosface", hparams="tuned", trials=trials, seeds=seeds)
    assert (plan.trials, plan.seeds) == (each, seeds or 5)
    assert plan.trainings == each * plan.seeds == plan.tuning_trainings * plan.seeds


def test_a_study_whose_trials_all_fail_leaves_the_others(tmp_path, monkeypatch, capsys):
    from bench.engine.jobs import SettingFailed

    from tests.in_process import Pool, bring_workers_in, forget_determinism

    run = Pool.run

    async def failing(self, job, *rest, **named):
        if getattr(getattr(job, "spec", None), "replicate", "") == "tuning 1":
            error = SettingFailed("loss became nan")
            error.job = job
            raise error
        return await run(self, job, *rest, **named)

    bring_workers_in(monkeypatch, figures=False)
    monkeypatch.setattr(Pool, "run", failing)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--method", "cosface", *SHORT, "--trials", "4"]) == 1
    forget_determinism()
    assert _tests(Store(tmp_path / "results" / "runs")).keys() == {0}
    shown = capsys.readouterr()
    assert "all 2 trials failed; first reason: loss became nan" in shown.out + shown.err
