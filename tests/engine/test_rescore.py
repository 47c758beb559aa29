"""Rescoring of what a run has left, and its results as a contribution, on the command line."""

import pandas as pd
import pytest
from bench.report.frame import collect
from bench.store.folder import Store
from bench.store.records import ROW_KEYS

from tests.report.test_contributed import PLUGIN


def _equal_values(results):
    """Number of values of each rescoring that its test has, too, which must be equal."""
    tests = {record.unit: record for record in Store(results).tests()}
    for made in Store(results).rescorings():
        own, again = (
            {tuple(row.get(name) for name in ROW_KEYS): row["value"] for row in record.rows}
            for record in (tests[made.spec.test], made)
        )
        both = own.keys() & again.keys()
        assert {key: own[key] for key in both} == {key: again[key] for key in both}
        yield len(both)


@pytest.mark.slow
def test_old_results_get_a_new_metric_and_become_a_contribution(cli):
    run = ("run", "--method", "hib,pfe", "--dataset", "ndigit_smoke", "--seeds", "1", "--trials", "2",
           "--set", "optim.epochs=1", "--set", "tuning.first_study=3")  # fmt: skip
    cli(*run, timeout=1500)
    before = cli.json("status")
    tests = sum(row["tested"] for row in before)
    assert tests >= 2
    # All tests of the run again: every value that does not need validation images is the same to the last digit.
    rows = cli.json("rescore")
    assert len(rows) == tests
    assert {row["failure"] for row in rows} == {""}
    assert {tuple(row["left_out"]) for row in rows} == {(), ("match",)}  # of HIB: it has trained parameters
    assert min(_equal_values(cli.cwd / "results/runs")) > 500
    (cli.cwd / "firsts.py").write_text(PLUGIN)
    assert all(row["values"] == 2 for row in cli.json("rescore", "--plugin", "firsts.py", "--tests", "firsts"))
    # Code that is edited and put back: its values count again.
    first = collect(Store(cli.cwd / "results/runs")).rows("metric == 'first_mean'")
    for text in (PLUGIN.replace("[:, 0]", "[:, 1]"), PLUGIN):
        (cli.cwd / "firsts.py").write_text(text)
        cli.json("rescore", "--plugin", "firsts.py", "--tests", "firsts")
        now = collect(Store(cli.cwd / "results/runs")).rows("metric == 'first_mean'")
        assert now.equals(first) == (text == PLUGIN)
    cli("report", "--plugin", "firsts.py")
    table = pd.read_csv(cli.cwd / "results/runs/metrics.csv", keep_default_na=False)
    assert len(table[(table["metric"] == "first_mean") & (table["split"] == "test")]) == tests
    # A run finds everything that it has found before.
    again = cli(*run, timeout=1500)
    assert "0 trainings done" in " ".join((again.stdout + again.stderr).split())
    for now, then in zip(cli.json("status"), before):
        assert (now["trained"], now["tested"]) == (then["trained"], then["tested"])
    cli("status", "--archive", "runs.tar.xz")
    assert "everything is whole" in cli("status", "--results", "runs.tar.xz", "--check").stdout
    cli("report", "--results", "runs.tar.xz", "--out", "report", "--plugin", "firsts.py")
    packed = pd.read_csv(cli.cwd / "report/metrics.csv", keep_default_na=False)
    assert packed.drop(columns="unit").equals(table.drop(columns="unit"))


@pytest.mark.slow
def test_tests_on_class_splits_are_rescored(cli):
    cli("run", "--method", "cosface", "--dataset", "ndigit_smoke", "--seeds", "1", "--hparams", "default",
        "--set", "optim.epochs=1", "--set", "data.class_splits=2", timeout=1500)  # fmt: skip
    rows = cli.json("rescore", "--tests", "risk")
    assert len(rows) >= 2
    assert {row["failure"] for row in rows} == {""}
    assert min(_equal_values(cli.cwd / "results/runs")) > 10
