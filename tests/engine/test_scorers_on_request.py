"""Scorers on request (PER, Table 4): to test with and to select by, and the re-ranking of its public code."""

import json

import pandas as pd
import pytest
from bench.store.specs import Pinned

from tests.plans import planned

ONE = ("--dataset", "ndigit_smoke", "--hparams", "default", "--seeds", "1", "--set", "optim.epochs=2")


def _frame(cli, *arguments):
    done = cli("run", *ONE, *arguments)
    frame = pd.read_csv(cli.cwd / "results/runs/metrics.csv", keep_default_na=False)
    keys = [c for c in frame.columns if c not in ("value", "n_queries", "n_lone", "unit")]
    assert not frame.duplicated(keys).any()
    return done, frame


@pytest.mark.slow
def test_scorers_on_request(all_inside):
    scorers = ("--scorers", "expected_cosine,mls,match,raw_l2", "--fidelity", "released")
    done, frame = _frame(all_inside, "--method", "cosface,pfe,arcface", *scorers)
    retrieval = frame[(frame["metric"] == "map_at_r") & (frame["split"] == "test")]
    own = {name: set(group["scorer"]) for name, group in retrieval.groupby("method")}
    assert own["pfe"] == {"mls", "cosine", "expected_cosine", "match"}
    assert own["arcface"] == {"cosine", "raw_l2", "expected_cosine", "match"}
    assert "pfe (cosface) [released]" in done.stdout
    assert {"mls", "match"} <= set(pd.read_csv(all_inside.cwd / "results/runs/report/scorers.csv")["scorer"])

    # A base without a released form is what it is. What is measured is the protocol's, not theirs.
    assert set(frame["fidelity"][frame["method"] != "cosface"]) == {"released"}
    assert set(frame["fidelity"][frame["method"] == "cosface"]) == {"corrected"}
    assert not frame["variant"].str.contains("reranked").any()


@pytest.mark.slow
def test_the_preset_of_the_public_code_reranks_selects_by_it_and_quotes_the_class_probability(all_inside):
    _, frame = _frame(
        all_inside, "--method", "cosface,pfe", "--preset", "per", "--scorers", "l2", "--select-by", "cosine"
    )
    reranked = frame[frame["variant"] == "reranked"]
    both = reranked[reranked["metric"] == "map_at_r"].groupby(["method", "split"])["scorer"].agg(set)
    assert both["pfe", "test"] == both["pfe", "test_crop"] == {"mls", "cosine", "l2"}
    assert both["cosface", "test"] == {"cosine", "l2"}
    assert both["pfe", "val"] == both["cosface", "val"] == {"cosine"}
    assert set(frame["pinned"]) == {"optim.epochs=2; select_by=cosine"}
    assert {"filter_out_map_at_r", "filter_out_recall_at_1", "recall_at_8"} <= set(reranked["metric"])
    assert {"nearest_fpr=0.001", "nearest_point", "recall_at_1,reranked"} <= set(frame["variant"])
    for path in all_inside.cwd.glob("results/runs/reality_check/*/*/test-*/record.json"):
        record = json.loads(path.read_text())
        quoted = {"pfe": "method", "cosface": "max_probability"}
        assert record["role"]["default_confidence"] == quoted[record["cell"][2]]
    assert list(all_inside.cwd.glob("results/runs/report/filter_out_ndigit_smoke_crop.svg"))


def _plan(tmp_path, *methods, **options):
    return {plan.cell.method: plan for plan in planned(tmp_path / "results", *methods, **options)[0]}


def test_the_scorer_that_selects_is_part_of_the_training_and_of_the_row(tmp_path):
    usual, asked = _plan(tmp_path, "pfe"), _plan(tmp_path, "pfe", tuning={"select_by": "expected_l2"})
    assert usual["pfe"].template.selection.metric == "stage_loss"  # which no scorer changes
    selection = asked["pfe"].template.selection
    assert (selection.metric, selection.scorer, asked["pfe"].pinned.text) == (
        "map_at_r", "expected_l2", "select_by=expected_l2; base: without select_by=expected_l2",
    )  # fmt: skip
    # The base only serves: it is selected as ever, and one base serves both.
    assert usual["cosface"].template.id == asked["cosface"].template.id
    assert usual["cosface"].pinned == asked["cosface"].pinned == Pinned()


def test_the_preset_decides_about_reranking_and_the_fidelity_does_not(tmp_path):
    found = {
        (preset, fidelity): _plan(tmp_path, "pfe", preset=preset, fidelity=fidelity)["pfe"]
        for preset in ("strict", "per")
        for fidelity in ("corrected", "released")
    }
    for (preset, _), plan in found.items():
        assert plan.testing.tests.reranked == plan.testing.tests.nearest_roc_point == (preset == "per")
        assert plan.template.selection.candidates == (9 if preset == "per" else 0)
        assert plan.template.selection.metric == ("map_at_r" if preset == "per" else "stage_loss")
