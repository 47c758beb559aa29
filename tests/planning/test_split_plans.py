"""Plans of runs on other class splits: tuned once on the own split, trained and tested on each."""

from __future__ import annotations

import pytest
from bench.commands import dry_run
from bench.commands.run import _network
from bench.engine.estimate import Estimate
from bench.methods.backbones.registry import build_backbone
from bench.planning.experiment import Run
from bench.progress import readable
from bench.site import Site
from bench.store.specs import TUNING
from safetensors.torch import save_file

from tests.plans import planned, refused


def _plans(place, *settings, **asked):
    return planned(place, **{"methods": ("cosface", "pfe"), "seeds": 2, "set": settings, **asked})[0]


def _ids(plan, replicate):
    bases = plan.base.train_specs({}, replicate, None) if plan.base else None
    return {spec.id for spec in plan.train_specs({}, replicate, bases).values()}


def test_splits_come_beside_the_own_one_which_stays_as_it_is(tmp_path):
    own, plans = _plans(tmp_path), _plans(tmp_path, "data.class_splits=3")
    assert plans[:2] == own == _plans(tmp_path, "data.class_seed=0")
    assert [(plan.cell.method, plan.pinned.text) for plan in plans[2:]] == [
        (method, f"data.class_seed={number}") for number in (1, 2, 3) for method in ("cosface", "pfe")
    ]
    seeds = [_ids(plan, seed) for plan in plans for seed in range(2)]
    assert len(set.union(*seeds)) == len(seeds)
    assert plans[2:4] != _plans(tmp_path, "data.class_seed=1")  # which counts its trials
    for split, alone in zip(plans[2:4], _plans(tmp_path, "data.class_seed=1"), strict=True):
        assert _ids(split, 0) == _ids(alone, 0)
        assert split.test_specs(split.train_specs({}, 0, None)) == alone.test_specs(alone.train_specs({}, 0, None))


def test_a_setting_is_tuned_once_on_the_own_split(tmp_path):
    asked = {"hparams": "tuned", "trials": 4, "tuning": {"studies": 1}}
    plans = _plans(tmp_path, "data.class_splits=2", **asked)
    for place in (0, 1):
        of_method = plans[place::2]
        assert len({plan.study_key for plan in of_method}) == 1
        assert len({plan.study_spec(0, None).id for plan in of_method}) == 1
        assert len(set.union(*(_ids(plan, TUNING) for plan in of_method))) == 1
        assert [plan.trainings for plan in of_method] == [4 + 2, 2, 2]
    (alone,) = _plans(tmp_path, "data.class_seed=2", methods=("cosface",), **asked)
    assert alone.trainings == 4 + 2
    assert alone.study_key == plans[0].study_key


@pytest.fixture
def dry(tmp_path, monkeypatch, capsys):
    """Function that plans; gives what a dry run says of trainings of 100 s and tests of 10 s, and what it has timed."""

    def run(*settings, workers=1, features=0, weights=None, **asked):
        about = {"measuring": 0, "test": 10, "decode": 0, "cache_bytes": 0}
        timed, seconds = [], Estimate(1, 0, training=100, features=features, **about)
        monkeypatch.setattr(dry_run, "estimate", lambda plan, site: timed.append(plan.cell.method) or seconds)
        site = Site(results=str(tmp_path), weights=weights)
        plans = _plans(site, *settings, methods=("cosface",), **asked)
        dry_run.print_dry_run(plans, site, tmp_path, Run(workers=workers))
        return capsys.readouterr().out, timed

    return run


def test_a_dry_run_times_a_training_once_for_all_splits(dry):
    said, timed = dry("data.class_splits=3", hparams="tuned", trials=4, tuning={"studies": 1})
    assert timed == ["cosface"]
    assert "on class splits 1 to 3, too" in said
    assert said.count("cosface on ndigit_smoke: 4 trials") == 1
    assert f"{readable(100 * (4 + 4 * 2) + 10 * 4 * 2)} in one process" in said


def test_a_dry_run_counts_features_of_a_frozen_network_once_for_all_methods(dry, tmp_path):
    save_file(build_backbone("convnet", 1).state_dict(), tmp_path / "start.safetensors")
    asked = {"frozen": True, "weights": str(tmp_path / "start.safetensors"), "hparams": "default", "seeds": 1}
    said, timed = dry("data.class_splits=2", features=1000, **asked)
    assert timed == ["untrained", "cosface"]
    assert f"{readable(3 * (1000 + 2 * (100 + 10)))} with 1 worker" in said


@pytest.mark.parametrize(
    ("asked", "workers", "seconds"),
    [
        ({"hparams": "default", "seeds": 1}, 2, 100 + 10),  # one training is not divided
        ({"hparams": "default", "seeds": 4}, 2, 4 * (100 + 10) / 2),
        # Two batches of trials, then the seeds.
        ({"hparams": "tuned", "trials": 8, "seeds": 1}, 64, 2 * 100 + 10),
        ({"hparams": "tuned", "trials": 8, "seeds": 1, "tuning": {"studies": 1}}, 64, 3 * 100 + 10),
    ],
)
def test_a_dry_run_divides_no_training_among_workers(dry, asked, workers, seconds):
    said, _ = dry(workers=workers, **asked)
    assert f"at most about {readable(seconds)} with" in said
    assert ("at most 1 training, 1 test;" in said) == (asked["hparams"] == "default" and asked["seeds"] == 1)


def test_a_data_set_of_one_fixed_split_is_refused(tmp_path, monkeypatch):
    from bench.datasets.ndigit import NDigitSmoke

    monkeypatch.setattr(NDigitSmoke, "splits_anew", False)
    reason = r"^data\.class_splits=5: the split of data set 'ndigit_smoke' is fixed$"
    refused(reason, tmp_path, "cosface", set=("data.class_splits=5",))


def test_the_first_lines_of_a_run_on_class_splits_name_the_network_once(tmp_path):
    """The view of an embedded data set has a class split alone, and no size of images."""
    site = Site(results=str(tmp_path))
    plans = _plans(tmp_path, "data.class_splits=2", methods=("cosface",))
    assert len({plan.class_seed for plan in plans}) == 3
    assert {_network(plan, site) for plan in plans} == {"ndigit_smoke: convnet, random weights, images of 10 x 26 px"}
