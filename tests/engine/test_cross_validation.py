"""Several validation folds, one model each; and the protocol `standardized`, whose classes all train."""

import json
from dataclasses import replace
from statistics import fmean

import pandas as pd
import pytest
import torch
from bench.datasets.ndigit import NDigitSmoke
from bench.datasets.photo_images import PhotoImages
from bench.engine.optim import build_optimizer, learning_rate_factor
from bench.protocols.recipes._base import Optim
from bench.site import Site
from safetensors.torch import load_file

from tests.engine.conftest import Cli, records_of
from tests.in_process import run_here
from tests.photographs import write_photographs
from tests.plans import planned

RUN = ("run", "--dataset", "ndigit_smoke", "--folds", "2", "--seeds", "1", "--workers", "2", "--set", "optim.epochs=1")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One method at its default setting."""
    folder = tmp_path_factory.mktemp("folds")
    return run_here(folder, *RUN, "--method", "cosface", "--hparams", "default", figures=False)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A tuned head on its tuned base."""
    folder = tmp_path_factory.mktemp("tuned")
    Cli(folder)(*RUN, "--method", "cosface,pfe", "--trials", "1", "--studies", "1")
    return folder / "results" / "runs"


def _map_at_r(vectors, labels):
    """Straight from the definition."""
    scores = (vectors @ vectors.T).fill_diagonal_(-torch.inf)
    found = []
    for i, label in enumerate(labels):
        r = int((labels == label).sum()) - 1
        if r:
            hits = (labels[scores[i].argsort(descending=True)[:r]] == label).double()
            found.append(float((hits * hits.cumsum(0) / torch.arange(1, r + 1)).sum() / r))
    return fmean(found)


@pytest.mark.slow
def test_each_fold_holds_other_classes_out_and_a_head_stands_on_the_base_of_its_fold(tuned):
    bases = {r["unit"]: r for r in records_of(tuned, "cosface", "train")}
    heads = records_of(tuned, "pfe", "train")
    assert len(bases) == len(heads) == 4
    assert {r["spec"]["fold"] for r in heads} == {0, 1}
    for head in heads:
        base = bases[head["spec"]["base"]["unit"]]
        assert (base["spec"]["fold"], base["spec"]["replicate"]) == (head["spec"]["fold"], head["spec"]["replicate"])
        assert base["manifests"] == head["manifests"]
    assert len({r["manifests"]["val"] for r in heads}) == 2


@pytest.mark.slow
def test_a_trial_counts_by_the_mean_of_its_models(tuned):
    (trial,) = [json.loads(p.read_text()) for p in tuned.glob("*/*/cosface/study-*/trial-*.json")]
    values = [r["selection_value"] for r in records_of(tuned, "cosface", "train") if r["unit"] in trial["units"]]
    assert len(values) == 2
    assert trial["value"] == pytest.approx(fmean(values), rel=1e-12)


@pytest.mark.slow
def test_separated_is_the_mean_of_the_models_and_concatenated_their_embeddings_side_by_side(results):
    frame = pd.read_csv(results / "metrics.csv", keep_default_na=False)
    mine = frame[(frame["metric"] == "map_at_r") & (frame["scorer"] == "cosine") & (frame["confidence"] == "")]
    value = {(row["ensemble"], row["split"]): float(row["value"]) for _, row in mine.iterrows()}
    (folder,) = {p.parent for p in results.glob("*/*/cosface/test-*/embeddings-fold-0.safetensors")}
    models = [load_file(folder / f"embeddings-fold-{fold}.safetensors") for fold in (0, 1)]
    for split, name in (("test", "clean"), ("test_crop", "crop")):
        unit = [torch.nn.functional.normalize(m[f"{name}.loc"].double(), dim=1) for m in models]
        apart = fmean(_map_at_r(vectors, models[0]["labels"]) for vectors in unit)
        assert value["separated", split] == pytest.approx(apart, abs=1e-9)
        together = _map_at_r(torch.cat(unit, 1), models[0]["labels"])
        assert value["concatenated", split] == pytest.approx(together, abs=1e-9)
    assert value["separated", "test"] != value["concatenated", "test"]
    held_out = {r["spec"]["fold"]: r["manifests"]["val"] for r in records_of(results, "cosface", "train")}
    assert set(held_out) == {0, 1}
    assert held_out[0] != held_out[1]


@pytest.mark.slow
def test_a_head_is_compared_with_its_base_model_by_model_and_side_by_side(tuned):
    compared = json.loads(Cli(tuned.parent.parent)("compare", "--json").stdout)
    assert {(line["first"], line["other"]) for line in compared} == {("cosface", "pfe (cosface)")}
    assert {line["ensemble"] for line in compared} == {"separated", "concatenated"}
    roles = {r["columns"]["ensemble"]: r["role"] for r in records_of(tuned, "pfe", "test")}
    bases = {r["columns"]["ensemble"]: r["role"]["train"] for r in records_of(tuned, "cosface", "test")}
    assert {kind: role["base_train"] for kind, role in roles.items()} == bases
    # One trial of the base and one of the head, two models each.
    assert {role["trainings"] for role in roles.values()} == {4}


def test_the_full_reality_check_on_photographs(tmp_path):
    write_photographs(tmp_path / "photos", classes=8, each=2)
    site = Site(results=str(tmp_path / "results"), data_root=str(tmp_path / "photos"), weights="none")
    asked = {"datasets": ("folder",), "preset": "mlrc", "hparams": "tuned", "set": ("data.classes_per_batch=2",)}
    [plan], _ = planned(site, "arcface", **asked)
    assert (plan.validate_folds, plan.seeds, plan.trials, plan.trainings) == ((0, 1, 2, 3), 10, 50, 240)
    optim, view = plan.template.optim, plan.template.view
    assert (optim.optimizer, optim.lr, optim.schedule) == ("rmsprop", 1e-6, "constant")
    assert (view["image_size"], view["resize"], plan.template.batches.images_per_class) == (227, 256, 2)
    assert set(plan.space) >= {"method.margin", "optim.lr_objective"}
    assert "optim.lr" not in plan.space
    # Each specification holds another block out, and all read the same decoded images.
    assert [spec.fold for spec in plan.train_specs(plan.defaults(), 0, None).values()] == [0, 1, 2, 3]
    folds = [site.dataset("folder", view).train_val(fold, 4) for fold in range(4)]
    assert {fold.train.within[0] for fold in folds} == {folds[0].val.within[0]}
    assert isinstance(folds[0].train, PhotoImages)


def test_milestones_are_those_of_pytorch():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5], gamma=0.3)
    optim = Optim(lr=1.0, lr_objective=1.0, schedule="multistep", epochs=7, gamma=0.3, milestones=(2, 5))
    for epoch in range(7):
        for step in (0, 3):
            assert learning_rate_factor(4 * epoch + step, 4, optim) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


def test_rmsprop_has_momentum():
    model, objective = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optim = Optim(epochs=1, optimizer="rmsprop", lr=0.1, lr_objective=0.2, weight_decay=0.5, decay_objective=True)
    made = build_optimizer(model, objective, optim)
    assert isinstance(made, torch.optim.RMSprop)
    assert [g["weight_decay"] for g in made.param_groups] == [0.5, 0.5]
    spared = build_optimizer(model, objective, replace(optim, decay_objective=False))
    assert [g["weight_decay"] for g in spared.param_groups] == [0.5, 0.0]
    assert [(g["lr"], g["momentum"]) for g in made.param_groups] == [(0.1, 0.9), (0.2, 0.9)]


ARGUMENTS = ("--dataset", "ndigit_smoke", "--protocol", "standardized", "--seeds", "1", "--set", "optim.epochs=2")


@pytest.mark.slow
def test_its_tests_and_its_training(all_inside):
    all_inside("run", "--method", "cosface,pfe", *ARGUMENTS, "--hparams", "default")
    frame = pd.read_csv(all_inside.cwd / "results/runs/metrics.csv", keep_default_na=False)
    assert set(frame["protocol"]) == {"standardized"}
    wanted = {"map_at_1000", "nmi", "pair_f1", "spectral_decay", "density", "uniformity", "class_concentration"}
    assert wanted <= set(frame["metric"])
    both = frame[frame["metric"] == "map_at_1000"]
    assert set(both["variant"]) == {"denominator=n", "denominator=min(k,n-1)"}
    assert set(both["split"]) == {"test"}
    # Every development class has trained: there is no validation, and a threshold is that of training classes.
    assert set(frame["split"]) == {"train", "train_crop", "test", "test_crop"}
    verdicts = pd.read_csv(all_inside.cwd / "results/runs/report/verdicts.csv", keep_default_na=False)
    assert set(verdicts[verdicts["method"] == "pfe"]["reason"]) == {"validation classes were trained on"}
    assert "threshold_train" in set(frame["variant"])
    assert "threshold_val" not in set(frame["variant"])
    for path in all_inside.cwd.glob("results/runs/standardized/*/*/train-*/record.json"):
        record = json.loads(path.read_text())
        assert record["best_epoch"] == 2
        assert record["num_classes"] == 150
    assert "[standardized, strict]" in all_inside("report").stdout


def test_nothing_is_held_out_and_nothing_is_tuned(tmp_path, monkeypatch, refusal):
    data = NDigitSmoke().train_val(0, 1)
    assert data.train.num_classes == 150
    assert set(data.val.class_names) < set(data.train.class_names)
    assert not set(data.train.class_names) & set(NDigitSmoke().test().class_names)
    monkeypatch.chdir(tmp_path)
    assert "nothing to tune on: use --hparams default" in refusal("run", "--method", "cosface", *ARGUMENTS)


def test_photographs_get_the_published_set_up(tmp_path):
    write_photographs(tmp_path / "photos", classes=4, each=2)
    site = Site(results=str(tmp_path / "results"), data_root=str(tmp_path / "photos"), weights="none")
    asked = {"methods": ("proxy_anchor",), "datasets": ("folder",)}
    [plan], _ = planned(site, **asked, protocol="standardized", set=("data.classes_per_batch=2",))
    assert plan.template.backbone == "resnet50.tv_in1k"
    assert plan.template.batches.freeze_norm == "statistics"
    assert plan.template.batches.images_per_class == 2
    optim = plan.template.optim
    assert (optim.optimizer, optim.lr, optim.weight_decay, optim.schedule) == ("adam", 1e-5, 4e-4, "constant")
    assert plan.template.augmentation["area_low"] == 0.08
    # Their network pools by average, and their code does not clip.
    assert plan.template.batches.pooling == "avg"
    assert optim.grad_clip == 0
    asked |= {"tuning": {"folds": 1}, "set": ("data.classes_per_batch=1",)}
    strict, mlrc = (planned(site, **asked, preset=preset)[0][0].template for preset in ("strict", "mlrc"))
    assert (strict.batches.pooling, strict.optim.grad_clip, mlrc.batches.pooling) == ("avg_max", 10, "avg")
