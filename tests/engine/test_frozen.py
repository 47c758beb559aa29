"""Training on cached features of a backbone that stays at its starting weights (`--frozen`)."""

import pytest
import torch
from bench.engine.inputs import Features, FrozenBackbone
from bench.engine.jobs import FeaturesJob
from bench.engine.networks import load_model
from bench.engine.running import Running
from bench.engine.training import Trainer, run_training
from bench.engine.worker import run_job
from bench.errors import UserError
from bench.methods.backbones.registry import build_backbone
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.site import Site
from bench.store.check import damages
from safetensors.torch import load_file, save_file

from .conftest import write_photographs

SHORT = ("optim.epochs=1", "data.feature_views=2", "data.epoch_repeats=0.2")


def _plans(site, *methods, frozen=True, **changes):
    asked = {"hparams": "default", "seeds": 1, "set": SHORT, **changes}
    return build_plans(Experiment(methods=methods, datasets=("ndigit_smoke",), frozen=frozen, **asked), site).plans


@pytest.fixture
def site(tmp_path, weights):
    return Site(results=str(tmp_path / "runs"), weights=str(weights))


def _seed_0(plan, bases=None):
    return plan.train_specs({}, 0, bases)


def _trained(site, *methods, **changes):
    """Records of one seed of a base and of heads on it."""
    records, done = [], {}
    for plan in _plans(site, *methods, **changes):
        specs = _seed_0(plan, done[plan.base.key] if plan.base else None)
        done[plan.key] = specs
        records.append(run_training(specs[0], site, lambda epoch: None))
    return records


def _caches(site):
    return sorted(path.name for path in site.store.root.glob(".features/*/*"))


def test_heads_of_every_kind_train_on_the_same_features_and_the_backbone_keeps_its_weights(site, weights):
    base, head = _trained(site, "cosface", "pfe")
    files = _caches(site)
    assert [name.split("-")[0] for name in files] == ["evaluation", "view0", "view1"]
    (other,) = _trained(site, "norm_softmax")
    assert _caches(site) == files
    start = load_file(weights)
    for record in (base, head, other):
        trained = load_file(site.store.weights(record.cell, record.unit))
        assert all(torch.equal(trained[f"backbone.{name}"], value) for name, value in start.items())
    assert base.history[0].val_loss is None  # its loss has weights of training classes only
    assert head.history[0].val_loss is not None


def test_features_are_those_of_the_backbone_and_a_damaged_file_is_made_again(site):
    (plan,) = _plans(site, "cosface")
    trainer = Trainer(_seed_0(plan)[0], site)
    evaluation = trainer.inputs.features.evaluation
    images = trainer.data.val.evaluation(torch.arange(8))
    with torch.no_grad():
        features = trainer.model.eval().backbone(images)
    torch.testing.assert_close(evaluation[:8], features, rtol=0, atol=1e-5)
    assert not torch.equal(trainer.inputs.features.train[0], trainer.inputs.features.train[1])
    files = _caches(site)
    damaged = next(site.store.root.glob(".features/*/view1-*"))
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"\0\0\1\0")
    site.store.mark("reality_check", 1)
    assert [damage.path for damage in damages(site.store.root)] == [damaged]
    Trainer(_seed_0(plan)[0], site)
    assert _caches(site) == files
    assert damages(site.store.root) == []


def test_a_worker_makes_the_features_of_one_view_once(site):
    (plan,) = _plans(site, "cosface")
    job = FeaturesJob(spec=_seed_0(plan)[0], view=1, site=site)
    run_job(job, lambda event: None)
    assert [name.split("-")[0] for name in _caches(site)] == ["evaluation", "view1"]
    written = [path.stat().st_mtime_ns for path in sorted(site.store.root.glob(".features/*/*"))]
    run_job(job, lambda event: None)
    assert [path.stat().st_mtime_ns for path in sorted(site.store.root.glob(".features/*/*"))] == written


def test_other_weights_or_augmentation_have_features_of_their_own(site, tmp_path):
    save_file(build_backbone("convnet", 1).state_dict(), tmp_path / "other.safetensors")
    other = site.model_copy(update={"weights": str(tmp_path / "other.safetensors")})
    ids = {_plans(site, "cosface")[0].template.features, _plans(site, "pfe")[1].template.features}
    assert len(ids) == 1
    ids |= {_plans(other, "cosface")[0].template.features}
    ids |= {_plans(site, "cosface", set=(*SHORT, "augment.rotation=9"))[0].template.features}
    assert len(ids) == 3


def test_views_are_drawn_from_separate_files_as_from_one_array(tmp_path):
    gen = torch.Generator().manual_seed(0)
    views = torch.randn(3, 10, 4, generator=gen)
    view, rows = torch.randint(3, (20,), generator=gen), torch.randint(10, (20,), generator=gen)
    whole = Features(views, views, views[0]).of_training(view, rows)
    assert torch.equal(Features(tuple(views), tuple(views), views[0]).of_training(view, rows), whole)


def test_a_frozen_run_is_another_contender_and_tunes_the_rates_of_heads_and_weights(site):
    free, frozen = (_plans(site, "cosface", frozen=frozen, hparams="tuned")[0] for frozen in (False, True))
    assert frozen.pinned.frozen_backbone
    assert not free.pinned.frozen_backbone
    assert (frozen.template.frozen, free.template.frozen) == (True, False)
    assert frozen.template.id != free.template.id
    assert {"optim.lr", "optim.lr_objective", "optim.weight_decay"} <= frozen.space.keys()
    head = _plans(site, "pfe", hparams="tuned")[1]
    assert "optim.lr_objective" not in head.space


@pytest.mark.parametrize(
    ("start", "changes", "said"),
    [
        (None, {}, "--frozen: backbone convnet of data set 'ndigit_smoke' would stay at random weights"),
        ("none", {}, "give --weights FILE"),
        ("weights", {"hparams": "published"}, "--frozen: published settings are those of trained backbones"),
    ],
)
def test_what_cannot_be_frozen_is_refused_in_one_line(site, weights, start, changes, said):
    here = site.model_copy(update={"weights": str(weights) if start == "weights" else start})
    with pytest.raises(UserError) as caught:
        _plans(here, "cosface", **changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_features_of_photographs_have_one_scale_that_the_trained_network_keeps(tmp_path):
    write_photographs(tmp_path / "data", classes=12, each=2)
    network = build_backbone("squeezenet1_0", 3)
    torch.save(network.body.state_dict(), tmp_path / "start.pth")
    site = Site(results=str(tmp_path / "runs"), data_root=str(tmp_path / "data"), weights=str(tmp_path / "start.pth"))
    pins = ("data.image_size=32", "data.resize=36", "data.classes_per_batch=2", "data.feature_views=1",
            "data.cache=false", "optim.epochs=1")  # fmt: skip
    request = Experiment(methods=("multi_similarity",), datasets=("folder",), hparams="default", frozen=True,
                         backbone="squeezenet1_0", seeds=1, set=pins)  # fmt: skip
    (plan,) = build_plans(request, site).plans
    record = run_training(_seed_0(plan)[0], site, lambda epoch: None)
    model, _ = load_model(record.cell, record.unit, site)
    dataset = site.dataset("folder", record.spec.view)
    data = dataset.train_val(0, record.spec.folds)
    features, scale = FrozenBackbone(record.spec, site, dataset, data, Running()).load()
    assert float(model.backbone.feature_scale) == float(scale) != 1.0
    assert 0.5 < float(features.train[0].square().mean().sqrt()) < 2.0
    with torch.no_grad():
        again = model.backbone(data.val.evaluation(torch.arange(len(data.val))))
    torch.testing.assert_close(features.evaluation, again, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_workers_and_a_kill_change_no_number(cli, tmp_path, weights, killer):
    """One worker, two workers, and a run that is killed after the first features and resumed give the same table."""

    def arguments(name, workers):
        given = ("--frozen", "--method", "cosface,pfe", "--dataset", "ndigit_smoke", "--weights", weights)
        short = ("--hparams", "default", "--seeds", "2", "--set", "optim.epochs=1")
        return ("run", *given, *short, "--results", name, "--workers", str(workers))

    cli(*arguments("one", 1), timeout=900)
    cli(*arguments("two", 2), timeout=900)
    begun = cli.start(*arguments("killed", 2))
    assert killer(begun, lambda: any(tmp_path.glob("killed/.features/*/view*")), deadline=900)
    cli(*arguments("killed", 1), timeout=900)
    tables = {name: (tmp_path / name / "metrics.csv").read_bytes() for name in ("one", "two", "killed")}
    assert b"frozen backbone" in tables["one"]
    assert tables["two"] == tables["killed"] == tables["one"]
    assert cli("status", "--check", "--results", "killed", timeout=900).returncode == 0
