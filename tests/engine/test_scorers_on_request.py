"""Scorers on request (PER, Table 4), and the public code's re-ranking under released fidelity."""

import pandas as pd

ONE = ("--dataset", "ndigit_smoke", "--hparams", "default", "--seeds", "1", "--set", "optim.epochs=2")


def test_scorers_are_tested_where_they_fit_and_refused_where_they_never_do(cli):
    done = cli("run", "--method", "pfe,arcface", *ONE, "--scorers", "expected_cosine,mls,match")
    frame = pd.read_csv(cli.cwd / "results/runs/metrics.csv", keep_default_na=False)
    retrieval = frame[(frame["metric"] == "map_at_r") & (frame["split"] == "test")]
    own = {name: set(group["scorer"]) for name, group in retrieval.groupby("method")}
    assert own["pfe"] == {"mls", "cosine", "expected_cosine", "match"}
    assert own["arcface"] == {"cosine", "expected_cosine", "match"}
    keys = [c for c in frame.columns if c not in ("value", "n_queries", "n_lone", "unit")]
    assert not frame.duplicated(keys).any()
    assert "mean MAP@R by scorer" in done.stdout
    table = pd.read_csv(cli.cwd / "results/runs/report/scorers.csv")
    assert {"mls", "match"} <= set(table["scorer"])

    wrong = cli("run", "--method", "arcface", *ONE, "--scorers", "mls", check=False)
    assert wrong.returncode == 2
    assert "not defined for the distributions of arcface" in wrong.stderr
    typo = cli("run", "--method", "arcface", *ONE, "--scorers", "cosin", check=False)
    assert typo.returncode == 2
    assert "did you mean 'cosine'" in typo.stderr


def test_released_reports_the_reranking_beside_the_full_ranking(cli):
    cli("run", "--method", "pfe", *ONE, "--fidelity", "released")
    frame = pd.read_csv(cli.cwd / "results/runs/metrics.csv", keep_default_na=False)
    found = frame[(frame["variant"] == "reranked") & (frame["method"] == "pfe")]
    assert set(found["scorer"]) == {"mls"}
    assert {"map_at_r", "recall_at_1"} <= set(found["metric"])
    assert not (frame.loc[frame["method"] == "cosface", "variant"] == "reranked").any()
