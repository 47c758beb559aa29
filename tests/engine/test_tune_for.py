"""Studies that tune for confidence: what is measured, what is proposed, which trial is chosen, and who shares what."""

import json
import math

import numpy as np
import pytest
import torch
from bench.datasets.corruptions._base import draw_quality
from bench.engine.inputs import CorruptedImages
from bench.engine.networks import load_model
from bench.engine.running import Running
from bench.engine.training import crop_auroc, run_training, sample
from bench.engine.tuning import Trained, choose, measured
from bench.report.frame import collect
from bench.seeds import content_id, seed_for
from bench.site import Site
from bench.store.folder import Store
from bench.store.records import TrainRecord, TrialRecord
from bench.store.specs import TUNING
from sklearn.metrics import roc_auc_score

from tests.plans import planned

from .test_sharing import Fake, _drive


def _plans(tmp_path, *methods, tune_for="retrieval", **options):
    asked = {"hparams": "tuned", "tuning": {"tune_for": tune_for, "studies": 1}, **options}
    return {plan.cell.method: plan for plan in planned(tmp_path / "results", *methods, **asked)[0]}


# The choice


def _trial(number, map_at_r=None, auroc=None, value=None):
    failed = map_at_r is None
    return TrialRecord(
        study="0" * 16, number=number, params={"a": float(number)}, units=(), state="failed" if failed else "complete",
        value=map_at_r if value is None else value, val_map_at_r=map_at_r, val_confidence_auroc=auroc,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tune_for", "trials", "number"),
    [
        # One point is the edge, and belongs to the band.
        ("both", [(0.85, 0.5), (0.84, 0.7), (0.8399, 0.9)], 1),
        ("both", [(0.5, 0.9), (0.85, 0.6), (0.845, 0.6)], 1),
        ("both", [(0.85, 0.6), (0.85, 0.6)], 0),
        ("both", [(), (0.4, 0.3), ()], 1),
        ("both", [(0.9, None), (0.9, math.nan), (0.4, 0.3)], 2),
        ("confidence", [(0.9, 0.6), (0.1, 0.7), ()], 1),
        ("confidence", [(0.1, 0.7), (0.3, 0.7), (0.3, 0.7)], 1),
        ("retrieval", [(0.8,), (0.9,), (0.9,)], 1),
        ("retrieval", [(0.9,), (0.9 + 5e-13,), (0.9 + 9e-13,)], 0),
        ("retrieval", [(0.9, 0.1, -3.0), (0.1, 0.9, -2.0)], 1),  # by the validation loss
    ],
)
def test_the_chosen_trial(tune_for, trials, number):
    records = [_trial(i, *values) for i, values in enumerate(trials)]
    assert choose(tune_for, records).number == number
    assert choose(tune_for, records[::-1]).number == number


# Plans


def test_trials_are_told_apart_by_what_is_tuned_for_and_seeds_are_not(tmp_path):
    plans = {name: _plans(tmp_path, "pfe", tune_for=name) for name in ("retrieval", "confidence", "both")}
    seeds, trials, studies, pinned = set(), set(), set(), set()
    for each in plans.values():
        bases = each["cosface"].train_specs(each["cosface"].defaults(), 0, None)
        point = each["pfe"].defaults()
        seeds.add(each["pfe"].train_specs(point, 0, bases)[0].id)
        trials.add(each["pfe"].train_specs(point, TUNING, bases)[0].id)
        studies.add(each["pfe"].study_spec(0, bases).id)
        pinned.add(each["pfe"].pinned.text)
        # The base only serves: it is tuned for retrieval.
        assert each["cosface"].tune_for == "retrieval"
        assert each["cosface"].pinned.text == ""
        assert each["pfe"].sampler_axes(0) == plans["retrieval"]["pfe"].sampler_axes(0)
        assert each["pfe"].tuning_trainings == plans["retrieval"]["pfe"].tuning_trainings
    assert (len(seeds), len(trials), len(studies)) == (1, 2, 3)
    assert pinned == {"", *(f"tune_for={name}; base: without tune_for={name}" for name in ("confidence", "both"))}
    assert len({each["cosface"].study_spec(0, None).id for each in plans.values()}) == 1
    assert _plans(tmp_path, "pfe,cosface", tune_for="both")["cosface"].tune_for == "both"


# The measurement


def _by_hand(model, images, severity, scored_by):
    """AUROC by scikit-learn, on crops that are drawn, cut and embedded here."""
    quality = draw_quality("crop", images.ids, seed_for("crops", "ndigit_smoke"), *severity)
    with torch.no_grad():
        embedding = model.eval()(images.cropped(torch.arange(len(images)), quality))
        confidences = model.confidences(embedding)
    scores = scored_by(embedding.distribution).numpy()
    np.fill_diagonal(scores, -np.inf)
    labels = images.labels.numpy()
    right = labels[scores.argmax(1)] == labels
    assert 0 < right.sum() < len(right)
    name = model.method.default_confidence
    return roc_auc_score(right, confidences[name if name in confidences else "norm"].numpy())


def _cosines(distribution):
    unit = torch.nn.functional.normalize(distribution.mean.double(), dim=-1)
    return unit @ unit.T


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training of a trial: its specification, its record and the results folder."""
    folder = tmp_path_factory.mktemp("trained")
    plan = _plans(folder, "cosface", tune_for="both", set=("optim.epochs=2", "optim.lr=3.0"))["cosface"]
    site = Site(results=str(folder / "results"), device="cpu", weights="none")
    return plan.template, run_training(plan.template, site, lambda epoch: None), site


def test_the_record_holds_the_auroc_of_the_model_that_was_kept(trained):
    spec, record, site = trained
    model, _ = load_model(spec.cell, spec.id, site)
    images = site.dataset(spec.dataset, spec.view).train_val(spec.fold, spec.folds).val
    expected = _by_hand(model, images, spec.crop_confidence, _cosines)
    assert record.val_confidence_auroc == pytest.approx(expected, abs=1e-9)
    assert record.best_epoch == 1  # the weights at the end are others


def test_a_training_that_is_not_asked_measures_nothing_and_is_the_same(trained, tmp_path):
    spec, record, _ = trained
    site = Site(results=str(tmp_path), device="cpu", weights="none")
    plain = run_training(spec.replaced(crop_confidence=None), site, lambda epoch: None)
    assert plain.val_confidence_auroc is None
    assert (plain.history, plain.files) == (record.history, record.files)
    held = json.loads(plain.to_json())
    del held["val_confidence_auroc"], held["checksum"]
    held["checksum"] = content_id(held)
    assert TrainRecord.from_json(json.dumps(held)) == plain


def test_answers_that_are_all_right_fail_a_trial_that_is_chosen_by_them(trained):
    spec, _, site = trained
    model, _ = load_model(spec.cell, spec.id, site)
    images = site.dataset(spec.dataset, spec.view).train_val(spec.fold, spec.folds).val
    alone = images.select((images.labels == images.labels[0]).nonzero().squeeze(1))
    crops = CorruptedImages.of(alone, "ndigit_smoke", "crop", (0.0, 0.5))
    assert math.isnan(crop_auroc(model, crops, None, "cosine", "cpu", Running()))
    untold = [Trained(0.8, 0.7, None, 3)]
    for tune_for in ("confidence", "both"):
        found = measured(tune_for, untold)
        assert "state" not in found
        assert "are right, or all wrong" in found["reason"]
    assert measured("retrieval", untold)["value"] == 0.8


def test_a_sample_of_validation_images_has_whole_classes(trained, monkeypatch):
    spec, _, site = trained
    every = site.dataset(spec.dataset, spec.view).train_val(spec.fold, spec.folds).val
    assert sample(every) is every
    monkeypatch.setattr("bench.engine.training.SAMPLE", 20)
    some = sample(every)
    counts = every.labels.bincount()
    assert some.labels.bincount().tolist() == counts[: some.num_classes].tolist()
    assert len(some) <= 20 < len(some) + counts[some.num_classes]
    monkeypatch.setattr("bench.engine.training.SAMPLE", 1)
    assert sample(every).num_classes == 2


def test_both_aims_give_up_two_sds_over_seeds_if_these_are_known():
    records = [_trial(0, 0.90, 0.5), _trial(1, 0.87, 0.7), _trial(2, 0.85, 0.9)]
    assert [choose("both", records, noise).number for noise in (None, 0.01, 0.016, 0.03)] == [0, 0, 1, 2]


# Studies


def _trials(root):
    return {(study.spec.tune_for, trial.number): trial for study, trials in Store(root).studies() for trial in trials}


def _asked(tune_for="retrieval", **options):
    tuning = {"sampler": "tpe", "tune_for": tune_for}
    return {"methods": ("cosface",), "trials": 14, "seeds": 1, "tuning": tuning, **options}


@pytest.mark.slow
def test_a_study_for_both_is_the_same_after_an_end_in_between_and_shares_nothing_wrongly(tmp_path, monkeypatch):
    _drive(tmp_path / "whole", [Fake()], monkeypatch, **_asked("both"))
    _drive(tmp_path / "parts", [Fake(), Fake()], monkeypatch, **_asked("both", trials=6))
    sorted((tmp_path / "parts").rglob("trial-*.json"))[3].unlink()
    again = Fake()
    _drive(tmp_path / "parts", [again], monkeypatch, **_asked("both"))
    whole, parts = _trials(tmp_path / "whole"), _trials(tmp_path / "parts")
    assert whole == parts
    assert len(whole) == 14
    assert sum(kind == "train" for kind, _ in again.ran) <= 8 + 1  # the seed may be another
    chosen = choose("both", whole.values())
    assert chosen.val_confidence_auroc == pytest.approx(1 - chosen.val_map_at_r)
    _drive(tmp_path / "whole", [Fake()], monkeypatch, **_asked())
    found = _trials(tmp_path / "whole")
    assert found["retrieval", 0].params == found["both", 0].params
    assert found["retrieval", 0].val_confidence_auroc == found["both", 0].val_confidence_auroc
    assert set(map(str, collect(Store(tmp_path / "whole")).frame["pinned"])) == {
        "sampler=tpe",
        "sampler=tpe; tune_for=both",
    }
