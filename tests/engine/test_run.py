"""The main job end to end on the smoke data: what it writes, that it resumes, what it does not depend on."""

import json
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pandas as pd
import pytest
from bench.store import Store
from safetensors.numpy import load_file

ALL = "arcface,cosface,pfe,dul_cls"
KEYS = [
    "protocol", "preset", "dataset", "method", "base", "fidelity", "hparams", "trials", "pinned", "backbone", "dim",
    "seed", "split", "scorer", "confidence", "variant", "metric", "fraction",
]  # fmt: skip


@pytest.fixture(scope="session")
def frame(tiny_run):
    return pd.read_csv(tiny_run / "metrics.csv", keep_default_na=False, na_values={"fraction": [""], "value": [""]})


def test_the_tidy_table_has_its_columns_and_no_row_twice(frame):
    assert list(frame.columns) == [*KEYS, "value", "n_queries", "n_lone", "unit"]
    assert not frame.duplicated(KEYS).any()
    assert set(frame["method"]) == {"arcface", "cosface", "pfe", "dul_cls"}
    assert set(frame["seed"]) == {0, 1}
    assert set(frame["split"]) == {"test", "test_crop", "val"}


def test_every_method_has_every_metric_for_every_seed(frame):
    wanted = {
        "recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8", "map_at_r", "r_precision", "precision_at_1",
        "verification_accuracy", "verification_auc", "verification_eer", "verification_tpr_at_fpr",
        "spearman_crop", "kendall_crop", "paired_crop", "filter_out_map_at_r", "filter_out_recall_at_1",
        "aurc", "e_aurc", "confidence_auroc",
    }  # fmt: skip
    for (method, seed), group in frame.groupby(["method", "seed"]):
        assert set(group["metric"]) == wanted, (method, seed)
    controls = {"random", "oracle"}
    point = {"norm", "max_cosine", "max_probability", "neg_entropy"} | controls
    for method, group in frame.groupby("method"):
        expected = point | ({"method"} if method in ("pfe", "dul_cls") else set())
        assert set(group["confidence"]) - {""} == expected, method
    values = frame["value"].dropna()
    assert values.between(-1, 1).all()
    not_correlation = ~frame["metric"].isin(["spearman_crop", "kendall_crop"])
    assert frame.loc[not_correlation, "value"].dropna().ge(0).all()
    curve = frame[frame["metric"].str.startswith("filter_out")]
    assert sorted(set(curve["fraction"])) == pytest.approx([i / 10 for i in range(10)])
    assert set(curve["variant"]) == {"query_only", "query_and_gallery"}


def _records(root, method, kind):
    return [(p, json.loads(p.read_text())) for p in root.glob(f"reality_check/*/{method}/{kind}-*/record.json")]


def test_pfe_leaves_its_base_alone_to_the_last_bit(tiny_run):
    heads = {r["spec"]["replicate"]: (p, r) for p, r in _records(tiny_run, "pfe", "train")}
    bases = {r["unit"]: p for p, r in _records(tiny_run, "cosface", "train")}
    for seed in (0, 1):
        path, record = heads[seed]
        head = load_file(path.with_name("weights.safetensors"))
        base = load_file(bases[record["spec"]["base"]["unit"]].with_name("weights.safetensors"))
        kept = [key for key in base if key.startswith(("backbone.", "mean."))]
        assert len(kept) > 10
        for key in kept:
            assert np.array_equal(head[key], base[key]), key
    # And so for what is embedded with them: the mean of PFE is its base's raw vector put on the sphere.
    import torch

    for _, record in _records(tiny_run, "pfe", "test"):
        seed = record["columns"]["seed"]
        other = next(p for p, r in _records(tiny_run, "cosface", "test") if r["columns"]["seed"] == seed)
        mine = next(p for p, r in _records(tiny_run, "pfe", "test") if r["unit"] == record["unit"])
        for split in ("clean", "crop"):
            raw = torch.from_numpy(load_file(other.with_name("embeddings.safetensors"))[f"{split}.loc"])
            mean = torch.from_numpy(load_file(mine.with_name("embeddings.safetensors"))[f"{split}.loc"])
            assert torch.equal(torch.nn.functional.normalize(raw, dim=-1), mean)


def test_cosine_values_of_pfe_are_those_of_its_base(frame):
    def values(method):
        chosen = frame[(frame["method"] == method) & (frame["scorer"] == "cosine") & (frame["metric"] == "map_at_r")]
        return chosen[chosen["split"] == "test"].sort_values("seed")["value"].tolist()

    assert values("pfe") == pytest.approx(values("cosface"), abs=1e-9)


def test_what_was_asked_for_is_what_was_trained(tiny_run):
    specs = [record["spec"] for method in ALL.split(",") for _, record in _records(tiny_run, method, "train")]
    assert {s["replicate"] for s in specs} == {"tuning", 0, 1}
    assert all(s["augmentation"] == specs[0]["augmentation"] for s in specs)
    assert {s["selection"]["metric"] for s in specs if s["method"] == "pfe"} == {"stage_loss"}
    assert {s["selection"]["metric"] for s in specs if s["method"] != "pfe"} == {"map_at_r"}
    assert {s["optim"]["epochs"] for s in specs} == {2}


def test_the_first_trial_is_the_recipes_default(tiny_run):
    studies = list(tiny_run.glob("reality_check/ndigit_smoke/*/study-*/study.json"))
    assert len(studies) == 4
    for path in studies:
        trial = json.loads(path.with_name("trial-0000.json").read_text())
        template = json.loads(path.read_text())["spec"]["template"]
        for name, value in trial["params"].items():
            group, key = name.split(".")
            assert value == template[{"method": "params", "optim": "optim"}[group]][key]


def test_losing_trials_keep_their_records_but_not_their_weights(tiny_run):
    for method in ("arcface", "pfe"):
        tuned = list(tiny_run.glob(f"reality_check/ndigit_smoke/{method}/study-*/trial-*.json"))
        assert len(tuned) == 6
        units = {json.loads(p.read_text())["unit"] for p in tuned}
        folder = tiny_run / "reality_check" / "ndigit_smoke" / method
        assert sum((folder / f"train-{u}" / "weights.safetensors").exists() for u in units) == 1
        assert all((folder / f"train-{u}" / "record.json").exists() for u in units)


def test_tables_and_figures_are_written(tiny_run):
    names = {p.name for p in (tiny_run / "report").iterdir()}
    for stem in ("filter_out_ndigit_smoke_crop", "filter_out_ndigit_smoke_clean", "confidence_crop_ndigit_smoke",
                 "tuning_ndigit_smoke"):  # fmt: skip
        assert {f"{stem}.png", f"{stem}.svg"} <= names
    assert {
        "comparison.csv",
        "comparison.md",
        "comparison.tex",
        "confidences.csv",
        "paired_with_base.csv",
    } <= names


def test_the_comparison_says_what_the_tidy_table_says(tiny_run, frame):
    table = pd.read_csv(tiny_run / "report" / "comparison.csv", keep_default_na=False)
    for _, line in table.iterrows():
        mine = frame[(frame["method"] == line["method"]) & (frame["split"] == "test") & (frame["metric"] == "map_at_r")]
        mine = mine[mine["scorer"] == ("mls" if line["method"] == "pfe" else "cosine")]["value"]
        assert len(mine) == 2
        assert line["test_map_at_r_mean"] == pytest.approx(mine.mean())
        assert line["test_map_at_r_sd"] == pytest.approx(mine.std(ddof=1))
    best = table.loc[table["test_map_at_r_mean"].idxmax()]
    label = f"{100 * best['test_map_at_r_mean']:.2f} ± {100 * best['test_map_at_r_sd']:.2f}"
    assert f"**{label}**" in (tiny_run / "report" / "comparison.md").read_text()
    assert table.set_index("method").loc["pfe", "trainings"] == 12


def test_a_report_of_the_same_records_has_the_same_bytes(tiny_run, tmp_path, cli):
    one, two = tmp_path / "one", tmp_path / "two"
    for out in (one, two):
        written = cli.json("report", "--results", tiny_run, "--out", out)
        assert len(written) == len(list(out.iterdir()))
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name


def test_status_counts_what_is_there(tiny_run, cli):
    rows = {row["method"]: row for row in cli.json("status", "--results", tiny_run)}
    assert set(rows) == set(ALL.split(","))
    for row in rows.values():
        assert (row["trials"], row["failed_trials"], row["trained"], row["tested"], row["unfinished"]) == (
            6,
            0,
            2,
            2,
            0,
        )


def test_workers_and_repetition_change_no_digit(small_table, cli, small, tmp_path):
    cli("run", *small, "--workers", "1")
    assert (tmp_path / "results" / "runs" / "metrics.csv").read_bytes() == small_table


def test_typing_the_command_again_trains_nothing(tiny_run, cli, tiny, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "results" / "runs")
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("train-*/record.json")}
    done = cli("run", "--method", ALL, *tiny)
    assert "0 trainings done" in done.stderr
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("train-*/record.json")} == before
    cli("run", "--method", "arcface", *tiny, "--on-existing", "rerun")
    touched = {p.parts[-3] for p, t in before.items() if p.stat().st_mtime_ns != t}
    assert touched == {"arcface"}
    refused = cli("run", "--method", "arcface", *tiny, "--on-existing", "error", check=False)
    assert refused.returncode == 2
    assert "has results" in refused.stderr


@pytest.mark.slow
def test_a_study_can_be_extended_to_what_a_longer_one_would_have_been(cli, tmp_path):
    small = (
        "run",
        "--method",
        "arcface",
        "--dataset",
        "ndigit_smoke",
        "--set",
        "optim.epochs=1",
        "--seeds",
        "1",
    )
    cli(*small, "--trials", "6", "--results", tmp_path / "a")
    cli(*small, "--trials", "10", "--results", tmp_path / "a")
    cli(*small, "--trials", "10", "--results", tmp_path / "b")

    def trials(root):
        paths = sorted(root.glob("reality_check/ndigit_smoke/arcface/study-*/trial-*.json"))
        return [json.loads(p.read_text()) for p in paths]

    assert len(trials(tmp_path / "a")) == 10
    assert trials(tmp_path / "a") == trials(tmp_path / "b")


@pytest.mark.parametrize(
    "moment",
    [
        "first epoch",
        pytest.param("between trials", marks=pytest.mark.slow),
        pytest.param("a seed", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_resumes_to_the_same_table(moment, small_table, cli, small, tmp_path, killer, alive_in_group):
    root = tmp_path / "results" / "runs"
    reached = {
        "first epoch": lambda: any(root.rglob("checkpoint.pt")),
        "between trials": lambda: len(list(root.rglob("trial-*.json"))) >= 4,
        "a seed": lambda: any(root.rglob("test-*/record.json")),
    }[moment]
    process = cli.start("run", *small, "--workers", "2")
    assert killer(process, reached)
    time.sleep(0.5)
    assert not alive_in_group(process.pid), "workers outlived their parent"
    recorded = {p: p.stat().st_mtime_ns for p in root.rglob("train-*/record.json")}
    cli("run", *small, "--workers", "2")
    assert (root / "metrics.csv").read_bytes() == small_table
    for path, stamp in recorded.items():
        assert path.stat().st_mtime_ns == stamp, f"{path} was trained twice"


def _wait_for_training(process, root):
    while not any(root.rglob("checkpoint.pt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def test_a_worker_that_dies_is_replaced_and_its_job_goes_on(small_table, cli, small, tmp_path):
    root = tmp_path / "results" / "runs"
    process = cli.start("run", *small, "--workers", "2")
    _wait_for_training(process, root)
    listed = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    workers = [int(pid) for pid, group, args in rows if group == str(process.pid) and "bench.engine.worker" in args]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert (root / "metrics.csv").read_bytes() == small_table


def test_ctrl_c_says_how_to_go_on_and_leaves_everything_resumable(cli, tiny, tmp_path, alive_in_group):
    root = tmp_path / "results" / "runs"
    process = cli.start("run", "--method", "arcface", *tiny)
    _wait_for_training(process, root)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "same command again" in " ".join(stderr.split())
    assert "Traceback" not in stderr
    time.sleep(0.3)
    assert not alive_in_group(process.pid)
    cli("run", "--method", "arcface", *tiny)


def test_two_runs_cannot_write_to_one_folder(cli, small, tmp_path):
    store = Store(tmp_path / "results" / "runs")
    store.open("reality_check", 1, create=True)
    store.lock()
    second = cli("run", *small, check=False)
    assert second.returncode == 2
    assert "another bench run is writing" in second.stderr
    assert not list(store.root.glob("reality_check"))


def test_runs_that_differ_in_a_pinned_value_are_rows_of_their_own(cli):
    """Where one setting was run again with other code, the later result stands for it: nothing is averaged."""
    folder = cli.cwd / "results" / "runs"
    for epochs in (1, 2):
        pins = ("--set", f"optim.epochs={epochs}")
        cli("run", "--method", "cosface", "--dataset", "ndigit_smoke", "--hparams", "default", "--seeds", "1", *pins)
    frame = pd.read_csv(folder / "metrics.csv", keep_default_na=False)
    assert set(frame["pinned"]) == {"optim.epochs=1", "optim.epochs=2"}
    assert not frame.duplicated(KEYS).any()
    assert (folder / "report" / "comparison.md").read_text().count("| cosface |") == 2
    old = next(folder.glob("*/*/cosface/test-*/record.json"))
    record = json.loads(old.read_text())
    clone = old.parents[1] / "test-0123456789abcdef" / "record.json"
    clone.parent.mkdir()
    clone.write_text(json.dumps(record | {"unit": "0123456789abcdef", "finished": record["finished"] + 1}))
    assert "1 older result" in cli("report").stderr
    again = pd.read_csv(folder / "metrics.csv", keep_default_na=False)
    assert len(again) == len(frame)
    assert "0123456789abcdef" in set(again["unit"])
    assert record["unit"] not in set(again["unit"])
    old.write_text("{")
    assert "1 damaged record(s) left out" in cli("report").stderr
