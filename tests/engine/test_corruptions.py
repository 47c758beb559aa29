"""Corruptions on request and people's label distributions, from the command line to the tables."""

import hashlib
import json
from dataclasses import replace
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
from bench.datasets.corruptions.registry import CORRUPTIONS
from bench.site import Site
from safetensors import safe_open
from scipy import stats

from tests.in_process import run_here
from tests.photographs import write_photographs
from tests.plans import planned

pytestmark = pytest.mark.slow  # they share a run

CLASSES = [f"c{i:02d}" for i in range(16)]
SMALL = (
    "--backbone", "convnet", "--weights", "none", "--dim", "8", "--hparams", "default", "--seeds", "1",
    "--set", "data.image_size=16", "--set", "data.resize=18", "--set", "data.classes_per_batch=2",
    "--set", "data.images_per_class=2", "--set", "optim.epochs=1", "--workers", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Sixteen classes of four images; votes on 20 of the 32 test images, and on one that trains."""
    root = write_photographs(tmp_path_factory.mktemp("photos"), 16, 4, (40, 36))
    rng = np.random.default_rng(0)
    voted = [f"{name}/{i}.png" for name in CLASSES[8:] for i in range(4)][:20]
    votes = rng.dirichlet([0.4] * 3, 21).round(4)
    lines = [f"{path},{','.join(map(str, row))}" for path, row in zip([*voted, "c00/0.png"], votes)]
    (root / "probabilities.csv").write_text("\n".join(["path,c08,c09,c10", *lines]) + "\n")
    return root


@pytest.fixture(scope="module")
def results(photos, tmp_path_factory):
    """Two models of one method, apart and side by side, under two corruptions and without the crop."""
    folder = tmp_path_factory.mktemp("corruptions")
    return run_here(
        folder, "run", "--method", "cosface", "--dataset", "folder", "--data-root", photos, *SMALL, "--folds", "2",
        "--corruptions", "blur:1-5,noise:3",
    )  # fmt: skip


@pytest.fixture(scope="module")
def frame(results):
    return pd.read_csv(results / "metrics.csv", keep_default_na=False, na_values={"value": [""]})


@pytest.fixture(scope="module")
def models(results):
    """Embedded arrays by model, and the identities."""
    held = []
    for path in sorted(results.glob("*/folder/cosface/test-*/embeddings-fold-*.safetensors")):
        with safe_open(path, "pt") as file:
            held.append({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
            ids = file.metadata()["ids"].split("\n")
    assert len(held) == 2
    return held, ids


def _value(frame, metric, ensemble, confidence):
    chosen = frame[(frame["metric"] == metric) & (frame["ensemble"] == ensemble) & (frame["confidence"] == confidence)]
    assert len(chosen) == 1, chosen
    return chosen.iloc[0]


def test_every_split_has_the_rows_that_the_crop_has(frame):
    by_split = {split: set(part["metric"]) for split, part in frame[frame["ensemble"] == "separated"].groupby("split")}
    assert set(by_split) == {"test", "test_blur", "test_noise", "val", "val_blur", "val_noise"}
    assert by_split["val_blur"] == by_split["val_noise"] == by_split["val"] - {"map_at_r"}
    assert "confidence_auroc" in by_split["val_blur"]
    human = {"spearman_human_entropy", "kendall_human_entropy"}
    for kind in ("blur", "noise"):
        own = {f"spearman_{kind}", f"kendall_{kind}", f"paired_{kind}"}
        assert by_split[f"test_{kind}"] - own == by_split["test"] - human - {"opis"}
        assert own < by_split[f"test_{kind}"]
    assert {"filter_out_map_at_r", "verification_auc", "aurc"} < by_split["test_blur"]
    assert frame["pinned"].str.contains("corruptions=blur:0.2-1.0,noise:0.6", regex=False).all()


def test_correlations_are_scipys_with_what_a_corruption_leaves(frame, models):
    held, _ = models
    norms = [model["blur.loc"].double().norm(dim=1).numpy() for model in held]
    clean = [model["clean.loc"].double().norm(dim=1).numpy() for model in held]
    quality = held[0]["blur_quality"].numpy()
    assert 0 <= quality.min() < quality.max() <= 0.8
    for metric, of in (("spearman_blur", stats.spearmanr), ("kendall_blur", stats.kendalltau)):
        apart = fmean(of(norm, quality).statistic for norm in norms)
        assert _value(frame, metric, "separated", "norm")["value"] == pytest.approx(apart, abs=1e-9)
        side_by_side = of(np.mean(norms, axis=0), quality).statistic
        assert _value(frame, metric, "concatenated", "norm")["value"] == pytest.approx(side_by_side, abs=1e-9)
    paired = fmean(float((a > b).mean()) for a, b in zip(clean, norms))
    assert _value(frame, "paired_blur", "separated", "norm")["value"] == pytest.approx(paired)
    # One severity for all images has no order to follow; that clean images have more confidence can still be seen.
    assert np.isnan(_value(frame, "spearman_noise", "separated", "norm")["value"])
    assert 0 <= _value(frame, "paired_noise", "separated", "norm")["value"] <= 1


def test_agreement_of_people_is_correlated_where_it_is_known(frame, models, photos):
    held, ids = models
    table = pd.read_csv(photos / "probabilities.csv", index_col="path")
    known = [i for i, name in enumerate(ids) if name in table.index]
    agreement = [-stats.entropy(table.loc[ids[i]]) for i in known]
    norms = [model["clean.loc"].double().norm(dim=1).numpy()[known] for model in held]
    row = _value(frame, "spearman_human_entropy", "separated", "norm")
    assert (row["split"], row["n_queries"]) == ("test", len(known))
    assert len(known) == 20
    assert row["value"] == pytest.approx(fmean(stats.spearmanr(n, agreement).statistic for n in norms), abs=1e-9)
    both = stats.kendalltau(np.mean(norms, axis=0), agreement).statistic
    assert _value(frame, "kendall_human_entropy", "concatenated", "norm")["value"] == pytest.approx(both, abs=1e-9)


def test_records_say_what_was_done_to_each_image(results, models):
    held, ids = models
    records = [json.loads(p.read_text()) for p in results.glob("*/folder/cosface/test-*/record.json")]
    assert {record["columns"]["ensemble"] for record in records} == {"separated", "concatenated"}
    for record in records:
        assert {k: v["severity"] for k, v in record["corruptions"].items()} == {"blur": [0.2, 1], "noise": [0.6, 0.6]}
        for kind, found in record["corruptions"].items():
            severity = dict(zip(ids, (1 - held[0][f"{kind}_quality"]).tolist()))
            lines = [f"{found['seed']}\n", *(json.dumps([name, severity[name]]) + "\n" for name in sorted(ids))]
            assert found["sha256"] == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_what_is_tested_is_part_of_a_test_and_not_of_a_training(photos, tmp_path):
    def ids(corruptions=(), preset="strict"):
        site = Site(results=str(tmp_path / "results"), data_root=str(photos), weights="none")
        asked = {"backbone": "convnet", "set": ("data.classes_per_batch=2",), "preset": preset}
        [plan], _ = planned(site, "cosface", datasets=("folder",), corruptions=corruptions, **asked)
        trained = plan.train_specs({}, 0, None)
        return plan, trained[0].id, plan.test_specs(trained)[0].id

    plan, train, test = ids()
    assert plan.testing.tests.corruptions == {"crop": (0.0, 0.5)}
    assert (ids(("crop",))[1:], ids(("crop:0.0-0.5",))[1:]) == ((train, test), (train, test))
    assert ids(("crop",), "per")[0].testing.tests.corruptions == {"crop": (0.0, 0.75)}
    every, same, other = ids(("all",))
    of_images = [name for name, kind in CORRUPTIONS.items() if kind.of == "images"]
    assert (list(every.testing.tests.corruptions), every.pinned, same) == (of_images, plan.pinned, train)
    assert other != test
    one, two = ids(("noise:2,blur:3",)), ids(("blur:3", "noise:2"))
    assert (one[0].pinned, one[2]) == (two[0].pinned, two[2])
    assert ids(("all,blur:3",))[0].testing.tests.corruptions == every.testing.tests.corruptions | {"blur": (0.6, 0.6)}
    assert ids(("crop:0.0-0.6,blur",))[0].pinned == replace(plan.pinned, corruptions=("crop:0.0-0.6",))
    table = photos / "probabilities.csv"
    before = table.read_text()
    try:
        table.write_text(before.replace("path,c08", "path,c11"))
        _, same, other = ids()
    finally:
        table.write_text(before)
    assert same == train
    assert other != test
