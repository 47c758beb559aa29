"""Scorers on request (PER, Table 4), and the public code's re-ranking under released fidelity."""

import pandas as pd
import pytest
from bench.cli import main

ONE = ("--dataset", "ndigit_smoke", "--hparams", "default", "--seeds", "1", "--set", "optim.epochs=2")


@pytest.mark.slow
def test_scorers_on_request_and_the_public_codes_reranking(cli):
    done = cli(
        "run",
        "--method",
        "cosface,pfe,arcface",
        *ONE,
        "--scorers",
        "expected_cosine,mls,match",
        "--fidelity",
        "released",
    )
    frame = pd.read_csv(cli.cwd / "results/runs/metrics.csv", keep_default_na=False)
    retrieval = frame[(frame["metric"] == "map_at_r") & (frame["split"] == "test")]
    own = {name: set(group["scorer"]) for name, group in retrieval.groupby("method")}
    assert own["pfe"] == {"mls", "cosine", "expected_cosine", "match"}
    assert own["arcface"] == {"cosine", "expected_cosine", "match"}
    keys = [c for c in frame.columns if c not in ("value", "n_queries", "n_lone", "unit")]
    assert not frame.duplicated(keys).any()
    assert "mean MAP@R by scorer" in done.stdout
    assert "pfe (cosface) [released]" in done.stdout
    assert {"mls", "match"} <= set(pd.read_csv(cli.cwd / "results/runs/report/scorers.csv")["scorer"])

    # A base and a baseline without a released form are what they are; the head's likelihood scores are re-ranked too.
    assert set(frame["fidelity"][frame["method"] == "pfe"]) == {"released"}
    assert set(frame["fidelity"][frame["method"] != "pfe"]) == {"corrected"}
    reranked = frame[frame["variant"] == "reranked"]
    assert set(reranked["method"]) == {"pfe"}
    assert set(reranked["scorer"]) == {"mls", "expected_cosine", "match"}
    assert {"map_at_r", "recall_at_1"} <= set(reranked["metric"])


@pytest.mark.parametrize(
    ("scorers", "message"),
    [("mls", "not defined for the distributions of arcface"), ("cosin", "did you mean 'cosine'")],
)
def test_a_scorer_that_never_fits_is_refused(scorers, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--method", "arcface", *ONE, "--scorers", scorers]) == 2
    assert message in capsys.readouterr().err
