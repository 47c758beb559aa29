"""The protocol `standardized`: every development class trains, the last epoch counts, nothing is tuned."""

import json

import pandas as pd
import pytest
from bench.datasets.ndigit import NDigitSmoke
from bench.site import Site

from tests.photographs import write_photographs
from tests.plans import planned

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
    shown = all_inside("report").stdout
    assert "[standardized, strict]" in shown


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
