"""The main job end to end on the smoke data: what it writes, and that typing it again trains nothing."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from bench.commands.run import _is_of
from bench.datasets.corruptions._base import draw_quality
from bench.protocols import rows
from bench.store.folder import Store
from bench.store.records import TestRecord
from bench.store.specs import TUNING
from safetensors.numpy import load_file

from tests.in_process import bring_workers_in, forget_determinism
from tests.plans import planned

from .conftest import TINY, loaded_tool

ALL = "cosface,pfe,dul_cls"
KEYS = [
    "protocol", "preset", "dataset", "method", "base", "fidelity", "hparams", "trials", "pinned", "backbone", "dim",
    "ensemble", "seed", "replicate", "split", "scorer", "confidence", "variant", "metric", "fraction",
]  # fmt: skip


@pytest.fixture(scope="session")
def frame(tiny_run):
    return pd.read_csv(tiny_run / "metrics.csv", keep_default_na=False, na_values={"fraction": [""], "value": [""]})


def test_the_tidy_table_has_its_columns_and_no_row_twice(frame):
    assert list(frame.columns) == [*KEYS, "value", "n_queries", "n_lone", "unit"]
    assert not frame.duplicated(KEYS).any()
    assert set(frame["method"]) == {"cosface", "pfe", "dul_cls"}
    assert set(frame["seed"]) == {0, 1}
    assert set(frame["split"]) == {"test", "test_crop", "val", "val_crop"}


def test_every_method_has_every_metric_for_every_seed(frame):
    wanted = {
        "recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8", "map_at_r", "r_precision", "precision_at_1",
        "verification_accuracy", "verification_auc", "verification_eer", "verification_tpr_at_fpr",
        "spearman_crop", "kendall_crop", "paired_crop", "filter_out_map_at_r", "filter_out_recall_at_1",
        "aurc", "e_aurc", "augrc", "risk_at_coverage", "coverage_at_risk", "confidence_auroc", "ece_top1", "brier_top1",
        "edc_fnmr", "edc_pauc", "set_size_at_90", "set_coverage_at_90", "opis",
        "open_set_auroc", "open_set_oscr", "open_set_tar", "spearman_confidences",
        "operating_coverage", "operating_risk", "operating_far", "operating_tar",
    }  # fmt: skip
    for (method, seed), group in frame.groupby(["method", "seed"]):
        assert set(group["metric"]) == wanted, (method, seed)
    controls = {"random", "oracle"}
    point = {*rows.FREE_IMAGE_CONFIDENCES} - {"mirror"} | controls  # of a digit, the mirror image is no view
    for method, group in frame.groupby("method"):
        expected = point | ({"method"} if method in ("pfe", "dul_cls") else set())
        names = set(group["confidence"]) - {""}
        assert {name for name in names if rows.kind_of(name) in ("image", "control")} == expected, method
        assert {name for name in names if rows.kind_of(name) == "retrieval"} == set(rows.RETRIEVAL_CONFIDENCES)
        combined = {f"{name}{end}" for name in expected - controls for end in (rows.COMBINED, rows.FITTED)}
        assert {name for name in names if rows.kind_of(name) == "combined"} == combined | {
            rows.MARGIN_AND_AGREEMENT,
            rows.CHOSEN,
        }
    values = frame.loc[frame["metric"] != "set_size_at_90", "value"].dropna()
    assert values.between(-1, 1).all()
    not_correlation = ~frame["metric"].isin(["spearman_crop", "kendall_crop", "edc_pauc", "spearman_confidences"])
    assert frame.loc[not_correlation, "value"].dropna().ge(0).all()
    curve = frame[frame["metric"].str.startswith("filter_out")]
    assert sorted(set(curve["fraction"])) == pytest.approx([i / 10 for i in range(10)])
    assert set(curve["variant"]) == {"query_only", "query_and_gallery"}


def test_confidences_are_judged_on_validation_images_as_on_test_images(frame):
    """Under every scorer, with fits, and with the Recall@1 that chooses the ranking of a system."""
    risks = {"aurc", "e_aurc", "augrc", "risk_at_coverage", "coverage_at_risk", "confidence_auroc"}
    keys = ["seed", "scorer", "confidence", "variant", "metric"]
    for method, group in frame.groupby("method"):
        own = group[group["metric"].isin(risks)]
        scorers = {"mls", "cosine"} if method == "pfe" else {"cosine"}
        for split in ("val", "val_crop"):
            here = group[group["split"] == split]
            assert set(here[here["metric"] == "recall_at_1"]["scorer"]) == scorers
            held_out, tested = own[own["split"] == split], own[own["split"] == split.replace("val", "test")]
            assert set(map(tuple, held_out[keys].values)) == set(map(tuple, tested[keys].values)), (method, split)


def test_values_on_validation_images_are_those_of_the_stored_model(tiny_run, frame):
    """The AUROC of the norm and of the margin, from the weights, the images and NumPy alone."""
    from bench.datasets.ndigit import NDigitSmoke
    from bench.engine.networks import load_model
    from bench.seeds import seed_for
    from bench.site import Site
    from bench.store.specs import Cell
    from sklearn.metrics import roc_auc_score

    path, record = next((p, r) for p, r in _records(tiny_run, "cosface", "train") if r["spec"]["replicate"] == 0)
    model, _ = load_model(Cell(*path.parts[-5:-2]), record["unit"], Site(results=str(tiny_run)))
    images = NDigitSmoke().train_val(record["spec"]["fold"], record["spec"]["folds"]).val
    rows, labels = torch.arange(len(images)), images.labels.numpy()
    # The side of the crop is drawn per image: one by one, and not from the test images.
    seed = seed_for("crops", "ndigit_smoke")
    sides = torch.cat([draw_quality("crop", [identity], seed, 0.0, 0.5) for identity in images.ids])
    assert 0.5 <= sides.min() < 0.55 < 0.95 < sides.max() <= 1
    for split, shown in (("val", images.evaluation(rows)), ("val_crop", images.cropped(rows, sides))):
        with torch.no_grad():
            raw = model(shown).distribution.mean.double().numpy()
        scores = raw @ raw.T / np.outer(*[np.linalg.norm(raw, axis=1)] * 2)
        np.fill_diagonal(scores, -np.inf)
        nearest = scores.argmax(1)
        counted = np.array([(labels == label).sum() > 1 for label in labels])
        right = (labels[nearest] == labels)[counted]
        rival = np.where(labels[nearest][:, None] == labels, -np.inf, scores).max(1)
        for name, values in (("norm", np.linalg.norm(raw, axis=1)), ("margin", scores.max(1) - rival)):
            chosen = (frame["method"] == "cosface") & (frame["seed"] == 0) & (frame["split"] == split)
            chosen &= (frame["metric"] == "confidence_auroc") & (frame["confidence"] == name)
            (found,) = frame[chosen].to_dict("records")
            assert found["value"] == pytest.approx(roc_auc_score(right, values[counted]), abs=1e-4), (split, name)
            assert found["n_queries"] == counted.sum()


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
    for _, record in _records(tiny_run, "pfe", "test"):
        seed = record["columns"]["seed"]
        other = next(p for p, r in _records(tiny_run, "cosface", "test") if r["columns"]["seed"] == seed)
        mine = next(p for p, r in _records(tiny_run, "pfe", "test") if r["unit"] == record["unit"])
        for split in ("clean", "crop"):
            raw = torch.from_numpy(load_file(other.with_name("embeddings.safetensors"))[f"{split}.loc"])
            mean = torch.from_numpy(load_file(mine.with_name("embeddings.safetensors"))[f"{split}.loc"])
            assert torch.equal(torch.nn.functional.normalize(raw, dim=-1), mean)


@pytest.mark.slow
def test_figures_are_drawn_by_name(tiny_run, tmp_path, cli):
    out = tmp_path / "out"
    written = {Path(name).name for name in cli.json("report", "--results", tiny_run, "--figures", "all", "--out", out)}
    assert written == {path.name for path in out.iterdir()}
    stems = {Path(name).stem for name in written}
    data = ("spectra", "images", "convergence", "confidence_crop")
    assert {"densities", *(f"{name}_ndigit_smoke" for name in data)} <= stems
    assert "risk_coverage_ndigit_smoke_crop" in stems
    figures = {f"{stem}.{kind}" for stem in stems - {"report"} for kind in ("png", "svg", "csv")}
    assert written == {*figures, "report.html"}


@pytest.mark.slow
def test_figures_that_need_no_results_need_no_folder(tmp_path, inside):
    assert "name a folder for the figures with --out" in inside.refused("report", "--figures", "densities")
    assert not (tmp_path / "results").exists()
    written = {Path(name).name for name in inside.json("report", "--figures", "densities", "--out", "here")}
    assert written == {f"densities.{kind}" for kind in ("png", "svg", "csv")}
    assert "did you mean 'densities'?" in inside.refused("report", "--figures", "density")


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
    assert table.set_index("method").loc["pfe", "trainings"] == 6


@pytest.mark.slow
def test_a_report_of_the_same_records_has_the_same_bytes(tiny_run, tmp_path, inside):
    """As the run wrote it, in a process of its own with another order of its sets."""
    out, before, table = tmp_path / "out", tiny_run / "report", (tiny_run / "metrics.csv").read_bytes()
    assert len(inside.json("report", "--results", tiny_run, "--out", out)) == len(list(out.iterdir()))
    assert {path.name for path in out.iterdir()} == {path.name for path in before.iterdir()}
    for path in before.iterdir():
        assert path.read_bytes() == (out / path.name).read_bytes(), path.name
    assert (tiny_run / "metrics.csv").read_bytes() == table


def test_status_counts_what_is_there(tiny_run, inside):
    rows = {row["method"]: row for row in inside.json("status", "--results", tiny_run)}
    assert set(rows) == set(ALL.split(","))
    for row in rows.values():
        counted = [row[name] for name in ("trials", "failed_trials", "trained", "tested", "unfinished")]
        assert counted == [3, 0, 2, 2, 0]


@pytest.mark.slow
def test_typing_the_command_again_trains_nothing(tiny_run, inside, tmp_path, monkeypatch):
    bring_workers_in(monkeypatch, figures=False)
    shutil.copytree(tiny_run, tmp_path / "results" / "runs")
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("train-*/record.json")}
    assert "0 trainings done" in inside("run", "--method", ALL, *TINY).stderr
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("train-*/record.json")} == before
    inside("run", "--method", "dul_cls", *TINY, "--on-existing", "rerun")
    forget_determinism()
    assert {p.parts[-3] for p, t in before.items() if p.stat().st_mtime_ns != t} == {"dul_cls"}
    assert "has results" in inside.refused("run", "--method", "dul_cls", *TINY, "--on-existing", "error")


def test_results_of_another_base_or_replicate_are_no_results_of_a_plan(tmp_path):
    (*_, head), _ = planned(tmp_path, "scf", base="arcface", seeds=2)
    own = {**head.columns, "dim": head.template.dim}
    found = {
        (base, seed): _is_of(SimpleNamespace(**{**own, "base": base, "seed": seed}), head)
        for base in ("arcface", "cosface")
        for seed in (1, 2)
    }
    assert [key for key, same in found.items() if same] == [("arcface", 1)]


def test_the_results_of_a_tuned_ensemble_are_known_by_the_trials_of_its_members(tmp_path):
    (*_, plan), _ = planned(tmp_path, "deep_ensemble", base="cosface", hparams="tuned", trials=8, seeds=2)
    of_test = {"trials": 4, "dim": 2 * plan.template.dim, "seed": 0}
    assert plan.trials == 0
    assert _is_of(SimpleNamespace(**{**plan.columns, **of_test}), plan)


@pytest.mark.slow
def test_runs_that_differ_in_a_pinned_value_are_rows_of_their_own(all_inside):
    """Where one setting was run again with other code, the later result stands for it: nothing is averaged."""
    folder = all_inside.cwd / "results" / "runs"
    asked = ("--method", "cosface", "--dataset", "ndigit_smoke", "--hparams", "default", "--seeds", "1")
    for epochs in (1, 2):
        all_inside("run", *asked, "--set", f"optim.epochs={epochs}")
    frame = pd.read_csv(folder / "metrics.csv", keep_default_na=False)
    assert set(frame["pinned"]) == {"optim.epochs=1", "optim.epochs=2"}
    assert not frame.duplicated(KEYS).any()
    assert len(pd.read_csv(folder / "report" / "comparison.csv")) == 2
    assert len(re.findall(r"^\| cosface\W", (folder / "report" / "comparison.md").read_text(), re.MULTILINE)) == 2
    old = next(folder.glob("*/*/cosface/test-*/record.json"))
    record = TestRecord.from_json(old.read_bytes())
    spec = record.spec.replaced(versions={**record.spec.versions, "engine": record.spec.versions["engine"] + 1})
    Store(folder).write(record.model_copy(update={"spec": spec, "unit": spec.id, "finished": record.finished + 1}))
    assert "1 result left out: older ones" in " ".join(all_inside("report").stderr.split())
    again = pd.read_csv(folder / "metrics.csv", keep_default_na=False)
    assert len(again) == len(frame)
    assert spec.id in set(again["unit"])
    assert record.unit not in set(again["unit"])
    old.write_text("{")
    assert "damaged, left out: " in all_inside("report").stderr


def test_a_short_archive_of_the_study_has_no_trainings_of_trials_and_fewer_values(tiny_run, tmp_path):
    long, short = (tmp_path / name / "ndigit_smoke.tar.xz" for name in ("long", "short"))
    with loaded_tool("study") as study:
        study.pack([tiny_run], long.parent, short=False)
        study.pack([tiny_run], short.parent, short=True)
    replicates = {training.unit: training.spec.replicate for training in Store(tiny_run).trainings()}
    assert TUNING in replicates.values()
    assert {training.unit for training in Store(long).trainings()} == set(replicates)
    of_seeds = {unit for unit, replicate in replicates.items() if replicate != TUNING}
    assert {training.unit for training in Store(short).trainings()} == of_seeds
    for whole, test in zip(Store(long).tests(), Store(short).tests(), strict=True):
        assert test.unit == whole.unit
        assert 0 < len(test.rows) < len(whole.rows)
