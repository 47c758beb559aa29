"""Training on cached features of a backbone that stays at its starting weights (`--frozen`)."""

from dataclasses import replace

import pytest
import torch
from bench.engine.inputs import Features, FrozenBackbone, cached, fitted_rows
from bench.engine.networks import load_model
from bench.engine.running import Running
from bench.engine.training import Trainer, run_training
from bench.methods.backbones.registry import build_backbone
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.site import Site
from bench.store.check import damages
from bench.store.claims import CLAIM, Claims
from bench.store.files import sha256
from safetensors.torch import load_file, save, save_file

from tests.photographs import write_photographs
from tests.plans import first_seed, planned

SHORT = ("optim.epochs=1", "data.feature_views=2", "data.epoch_repeats=0.2")


def _plans(site, *methods, frozen=True, **changes):
    asked = {"frozen": frozen, "seeds": 1, "set": SHORT, **changes}
    return [plan for plan in planned(site, *methods, **asked)[0] if not plan.added]


def _seed_0(plan):
    return plan.train_specs({}, 0, None)


def _trained(site, *methods, **changes):
    """Records of one seed of a base and of heads on it."""
    specs = first_seed(_plans(site, *methods, **changes)).values()
    return [run_training(spec, site, lambda epoch: None) for spec in specs]


def _caches(site):
    return sorted(path.name for path in site.store.root.glob(".features/*/*"))


def test_heads_of_every_kind_train_on_the_same_features_and_the_backbone_keeps_its_weights(site, weights):
    base, head = _trained(site, "cosface", "pfe")
    files = _caches(site)
    assert [name.split("-")[0] for name in files] == ["directions64", "evaluation", "view0", "view1"]
    (other,) = _trained(site, "norm_softmax")
    assert _caches(site) == files
    start = load_file(weights)
    for record in (base, head, other):
        trained = load_file(site.store.weights(record.cell, record.unit))
        assert all(torch.equal(trained[f"backbone.{name}"], value) for name, value in start.items())
    assert base.history[0].val_loss is None  # its loss has weights of training classes only
    assert head.history[0].val_loss is not None


@pytest.mark.slow
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


def test_the_network_as_it_is_is_added_to_heads_first_at_their_budget(site):
    def built(*methods, frozen=True, **changes):
        asked = {"hparams": "tuned", "trials": 6, "seeds": 2, **changes}
        request = Experiment(methods=methods, datasets=("ndigit_smoke",), frozen=frozen, **asked)
        return build_plans(request, site)

    found = built("cosface", "pfe")
    first, *others = found.plans
    assert (first.cell.method, first.trials, first.seeds) == ("untrained", 3, 2)
    assert list(first.space) == ["method.whitening"]
    assert [plan.cell.method for plan in others] == ["cosface", "pfe"]
    assert found.lines == ("untrained on ndigit_smoke is added: what heads on frozen features have to beat",)
    assert not first.requested  # so that no option about what was asked for concerns it
    asked = built("cosface", "untrained", set=("method.whitening=0",))
    assert ([plan.requested for plan in asked.plans], asked.lines) == ([True, True], ())
    assert [plan.cell.method for plan in built("untrained").plans] == ["untrained"]
    assert [plan.cell.method for plan in built("cosface", frozen=False).plans] == ["cosface"]
    swept = built("cosface", sweep={"method.margin": "0.1,0.2"})
    assert [plan.cell.method for plan in swept.plans] == ["untrained", "cosface", "cosface"]
    for methods in (("cosface",), ("cosface", "untrained")):  # so that tables show them together
        pinned = {plan.pinned.text for plan in built(*methods, set=("optim.epochs=3", "method.margin=0.1")).plans}
        assert len({text.replace("method.margin=0.1; ", "") for text in pinned}) == 1


def _starts(site, *methods, **changes):
    """Records of one seed of methods whose heads start at the principal axes, and of those of random heads."""
    pins = changes.pop("set", SHORT)
    return [
        _trained(site, *methods, set=(*pins, f"model.head_start={start}"), **changes) for start in ("pca", "random")
    ]


def test_features_belong_to_their_images_when_these_come_in_another_order(tmp_path, site):
    """A cache of one order, at the starting weights or of a trained base, is not read for another one."""
    base, head = first_seed(_plans(site, "cosface", "pfe", frozen=False)).values()
    ordered = (dataset := site.dataset(base.dataset, base.view)).train_val(0, base.folds)
    parts = (images.select(torch.arange(len(images)).flip(0)) for images in (ordered.train, ordered.val))
    turned = replace(ordered, train=next(parts), val=next(parts))
    frozen = _seed_0(_plans(site, "cosface")[0])[0]
    at_start = (FrozenBackbone(frozen, site, dataset, data, Running()).load()[0] for data in (ordered, turned))
    backbone = build_backbone("convnet", 1)
    of_base = (
        FrozenBackbone(head, site, dataset, data, Running()).of_base(backbone, tmp_path) for data in (ordered, turned)
    )
    for first, second in ([*at_start], [*of_base]):
        assert torch.equal(first.evaluation, second.evaluation.flip(0))
        assert not torch.equal(first.train[0], second.train[0])


@pytest.mark.slow
def test_a_head_may_start_at_the_principal_axes_which_are_epoch_0(site):
    (axes,), (random,) = _starts(site, "cosface", dim=16)
    (network,) = _trained(site, "untrained", dim=16, set=("data.feature_views=2", "method.whitening=0"))
    assert [epoch.epoch for epoch in axes.history] == [0, 1]
    assert axes.history[0].loss is None
    # The cosine does not see how long the weights are.
    assert axes.history[0].val_map_at_r == pytest.approx(network.val_map_at_r, abs=1e-5)
    assert random.history[0].val_map_at_r != axes.history[0].val_map_at_r
    assert len({axes.unit, random.unit, network.unit}) == 3


@pytest.mark.slow
def test_a_training_that_only_loses_keeps_its_start(site):
    lossy = ("optim.lr=50", "optim.epochs=2", "data.feature_views=2")
    (record,), _ = _starts(site, "multi_similarity", dim=16, set=lossy)
    start, *after = record.history
    assert all(epoch.val_map_at_r < start.val_map_at_r for epoch in after)
    assert (record.best_epoch, record.val_map_at_r, record.selection_value) == (0, *2 * (start.val_map_at_r,))
    model, _ = load_model(record.cell, record.unit, site)
    weight = model.mean.weight
    torch.testing.assert_close(weight @ weight.mT, torch.eye(16), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_more_images_than_are_fitted_are_taken_evenly_spaced(monkeypatch, site):
    (whole,) = _trained(site, "untrained", dim=16, set=SHORT[1:2])
    monkeypatch.setattr("bench.engine.inputs.FITTED", 100)
    rows = fitted_rows(250)
    assert torch.equal(rows[:4], torch.tensor([0, 2, 5, 7]))
    assert (len(rows), int(rows[-1])) == (100, 247)
    features = torch.rand(2, 250, 6)
    assert torch.equal(Features(features, features, features[0]).first_view(), features[0, rows])
    elsewhere = site.model_copy(update={"results": site.results + "2"})
    (some,) = _trained(elsewhere, "untrained", dim=16, set=SHORT[1:2])
    assert some.history[0].loss != whole.history[0].loss
    assert some.val_map_at_r == pytest.approx(whole.val_map_at_r, abs=0.02)


@pytest.mark.slow
def test_a_resumed_training_measures_its_start_once(site):
    (plan,) = _plans(site, "cosface", set=(*SHORT[1:], "optim.epochs=3"))
    whole = run_training(_seed_0(plan)[0], site, lambda epoch: None)
    elsewhere = site.model_copy(update={"results": site.results + "2"})

    def stop(epoch):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run_training(_seed_0(plan)[0], elsewhere, stop)
    resumed = run_training(_seed_0(plan)[0], elsewhere, lambda epoch: None)
    assert [epoch.epoch for epoch in resumed.history] == [0, 1, 2, 3]
    assert (resumed.history, resumed.files) == (whole.history, whole.files)


def test_one_process_makes_a_file_of_features_and_others_wait_for_it(tmp_path):
    """A second one waits, and says that it lives, until the first has written the file, then reads it."""
    said, made = [], []
    first = Claims(tmp_path)
    assert first.take(tmp_path / f"{CLAIM}-view0-")

    def make():
        made.append(1)
        return {"train": torch.zeros(1)}

    assert cached(tmp_path, "view0-", make, Running(), wait=False) is None

    def alive(step):
        said.append(step)
        content = save({"train": torch.ones(1)})
        path = tmp_path / f"view0-{sha256(content)}.safetensors"
        path.write_bytes(content)
        first.give_back(tmp_path / f"{CLAIM}-view0-")
        return path

    path = cached(tmp_path, "view0-", make, Running(alive))
    assert load_file(path)["train"].tolist() == [1.0]
    assert (said, made) == (["wait for features"], [])
    assert cached(tmp_path, "view1-", make, Running()).name.startswith("view1-")
    assert made == [1]
    assert not list(tmp_path.glob(".claim*"))


def test_other_weights_or_augmentation_have_features_of_their_own(site, tmp_path):
    save_file(build_backbone("convnet", 1).state_dict(), tmp_path / "other.safetensors")
    other = site.model_copy(update={"weights": str(tmp_path / "other.safetensors")})
    ids = {_plans(site, "cosface")[0].template.features, _plans(site, "pfe")[1].template.features}
    assert len(ids) == 1
    ids |= {_plans(other, "cosface")[0].template.features}
    ids |= {_plans(site, "cosface", set=(*SHORT, "augment.rotation=9"))[0].template.features}
    assert len(ids) == 3


def test_a_frozen_run_is_another_contender_and_tunes_the_rates_of_heads_and_weights(site):
    free, frozen = (_plans(site, "cosface", frozen=frozen, hparams="tuned")[0] for frozen in (False, True))
    assert frozen.pinned.frozen_backbone
    assert not free.pinned.frozen_backbone
    assert (frozen.template.frozen, free.template.frozen) == (True, False)
    assert frozen.template.id != free.template.id
    assert {"optim.lr", "optim.lr_objective", "optim.weight_decay"} <= frozen.space.keys()
    assert "optim.lr_objective" not in _plans(site, "pfe", hparams="tuned")[1].space


def test_features_of_photographs_have_one_scale_that_the_trained_network_keeps(tmp_path):
    write_photographs(tmp_path / "data", classes=12, each=2)
    torch.save(build_backbone("squeezenet1_0", 3).body.state_dict(), tmp_path / "start.pth")
    site = Site(results=str(tmp_path / "runs"), data_root=str(tmp_path / "data"), weights=str(tmp_path / "start.pth"))
    pins = ("data.image_size=32", "data.resize=36", "data.classes_per_batch=2", "data.feature_views=1",
            "data.cache=false", "optim.epochs=1")  # fmt: skip
    asked = {"datasets": ("folder",), "frozen": True, "backbone": "squeezenet1_0", "seeds": 1, "set": pins}
    plan = planned(site, "multi_similarity", **asked)[0][-1]
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
    """One worker, and two that are killed after the first features and go on, give the same table."""

    def arguments(name, workers):
        given = ("--frozen", "--method", "cosface,pfe", "--dataset", "ndigit_smoke", "--weights", weights)
        short = ("--hparams", "default", "--seeds", "2", "--set", "optim.epochs=1")
        return ("run", *given, *short, "--results", name, "--workers", str(workers))

    cli(*arguments("one", 1), timeout=900)
    begun = cli.start(*arguments("killed", 2))
    assert killer(begun, lambda: any(tmp_path.glob("killed/.features/*/view*")), deadline=900)
    cli(*arguments("killed", 2), timeout=900)
    one, killed = ((tmp_path / name / "metrics.csv").read_bytes() for name in ("one", "killed"))
    assert b"frozen backbone" in one
    assert killed == one
    assert cli("status", "--check", "--results", "killed", timeout=900).returncode == 0
