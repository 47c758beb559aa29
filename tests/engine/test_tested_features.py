"""Tests of models on cached features of the backbone that they share: equal numbers, without the backbone."""

import asyncio
import shutil

import pytest
import torch
from bench.engine.corrupted_images import CorruptedImages
from bench.engine.embedded_model import EmbeddedModel
from bench.engine.jobs import TestedFeaturesJob
from bench.engine.running import Running
from bench.engine.scheduler import Scheduler
from bench.engine.tested_features import TestedFeatures
from bench.engine.training import run_training
from bench.engine.worker import run_job
from bench.methods._model import EmbeddingModel
from bench.methods.backbones.registry import build_backbone
from bench.methods.distributions import to_arrays
from bench.planning.planner import build_plans
from bench.planning.request import RunRequest
from bench.protocols._base import Tests
from bench.site import Site
from bench.store.check import damages
from safetensors.torch import save_file

SHORT = ("optim.epochs=1", "data.feature_views=1", "data.epoch_repeats=0.1")
SPLITS = ["test", "test_crop", "val", "val_crop"]


def _plans(site, *methods, frozen=True):
    asked = {"hparams": "default", "seeds": 2, "pins": SHORT}
    return build_plans(RunRequest(methods=methods, datasets=("ndigit_smoke",), frozen=frozen, **asked), site).plans


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A results folder, and records by method: a base and two heads on it, frozen and trained."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("tested")
    torch.manual_seed(0)
    save_file(build_backbone("convnet", 1).state_dict(), folder / "start.safetensors")
    site = Site(results=str(folder / "runs"), weights=str(folder / "start.safetensors"))
    site.store.mark("reality_check", 1)
    records = {}
    for frozen, base in ((True, None), (False, None)):
        for plan in _plans(site, "pfe", "laplace", frozen=frozen):
            specs = plan.train_specs({}, 0, base)
            base = base or specs
            records[plan.cell.method, frozen] = run_training(specs[0], site, lambda epoch: None)
        if frozen:
            second = next(iter(_plans(site, "cosface"))).train_specs({}, 1, None)[0]
            records["cosface 1", True] = run_training(second, site, lambda epoch: None)
    return site, records


@pytest.fixture
def copy(trained, tmp_path):
    """The same with a results folder of its own, whose starting weights are gone."""
    site, records = trained
    shutil.copytree(site.results, tmp_path / "runs")
    return site.model_copy(update={"results": str(tmp_path / "runs"), "weights": "gone.safetensors"}), records


def _crops(site, severity=(0.0, 0.5)):
    images = site.dataset("ndigit_smoke").test()
    return {"crop": CorruptedImages.of(images, "ndigit_smoke", "crop", severity)}


def _embedded(site, record, running=None, **crops):
    return EmbeddedModel.of(record.unit, record.cell, site, _crops(site, **crops), running or Running())


def _ensemble(site, records):
    units = [records[name, True].unit for name in ("cosface", "cosface 1")]
    cell = records["cosface", True].cell
    return EmbeddedModel.of_ensemble("deep_ensemble", units, cell, site, _crops(site), Running())


def _directly(embed):
    """Embeddings by the whole network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TestedFeatures, "of", lambda *given: None)
        return embed()


def _assert_same(one, other):
    for split in SPLITS:
        assert torch.equal(*(torch.cat(list(map(torch.Tensor.flatten, to_arrays(m.embeddings[split])[1].values())))
                             for m in (one, other))), split  # fmt: skip
        assert one.confidence[split].keys() == other.confidence[split].keys()
        for name, values in one.confidence[split].items():
            assert torch.equal(values, other.confidence[split][name]), (split, name)


def _files(site, pattern=".features/*/*"):
    return sorted(path.name.split("-")[0] for path in site.store.root.glob(pattern))


@pytest.fixture
def no_backbone(monkeypatch):
    """A function from whose call on no backbone may run."""

    def forbid():
        def refuse(*given, **named):
            raise AssertionError("the backbone has run")

        monkeypatch.setattr(EmbeddingModel, "features", refuse)
        monkeypatch.setattr("bench.engine.tested_features.backbone_features", refuse)

    return forbid


def test_every_model_on_one_frozen_backbone_is_tested_on_the_same_features(copy, no_backbone):
    site, records = copy
    tested = ("cosface", "pfe", "laplace")
    directly = [_directly(lambda name=name: _embedded(site, records[name, True])) for name in tested]
    together = _directly(lambda: _ensemble(site, records))
    assert _files(site) == ["evaluation", "view0"]
    _assert_same(_embedded(site, records["pfe", True]), directly[1])
    assert _files(site) == ["evaluation", "test", "test_crop", "val_crop", "view0"]  # val is the file `evaluation`
    assert damages(site.store.root) == []
    no_backbone()
    for name, expected in zip(tested, directly):
        _assert_same(_embedded(site, records[name, True]), expected)
    _assert_same(_ensemble(site, records), together)


def test_heads_on_a_trained_base_read_features_that_a_job_has_made(copy, no_backbone):
    site, records = copy
    heads = [records[name, False] for name in ("pfe", "laplace")]
    directly = [_directly(lambda head=head: _embedded(site, head)) for head in heads]
    base = f"reality_check/ndigit_smoke/cosface/train-{records['cosface', False].unit}"
    before = _files(site, f"{base}/*")
    _assert_same(_embedded(site, heads[0]), directly[0])
    assert _files(site, f"{base}/*") == before  # the features of a base with one head would serve nobody
    for kind in ("", "crop"):
        run_job(TestedFeaturesJob(spec=heads[0].spec, tests=Tests(), kind=kind, site=site), lambda event: None)
    made = sorted(path.name.split("-")[1] for path in site.store.root.glob(f"{base}/features-*val*"))
    assert made == ["val", "val_crop"]
    assert damages(site.store.root) == []
    no_backbone()
    for head, expected in zip(heads, directly):
        _assert_same(_embedded(site, head), expected)
    with pytest.raises(AssertionError, match="the backbone has run"):
        _embedded(site, records["cosface", False])  # a model that trains its backbone has no cache


def test_a_job_makes_no_folder_for_a_base_that_is_not_here(copy):
    site, records = copy
    base = site.store.unit_dir(records["cosface", False].cell, "train", records["cosface", False].unit)
    shutil.rmtree(base)
    job = TestedFeaturesJob(spec=records["pfe", False].spec, tests=Tests(), kind="", site=site)
    run_job(job, lambda event: None)
    assert not base.exists()


def test_a_damaged_file_is_made_again_and_other_severities_have_their_own(copy):
    site, records = copy
    head = records["pfe", True]
    expected = _embedded(site, head)
    (file,) = site.store.root.glob(".features/*/test_crop-*")
    content = file.read_bytes()
    file.write_bytes(content[:-4] + b"\0\0\1\0")
    assert [damage.path for damage in damages(site.store.root)] == [file]
    _assert_same(_embedded(site, head), expected)
    assert file.read_bytes() == content
    _embedded(site, head, severity=(0.1, 0.5))
    assert _files(site).count("test_crop") == 2


def test_validation_features_of_another_scale_are_not_taken(copy):
    site, records = copy
    (path,) = site.store.root.glob(".features/*/evaluation-*")
    from bench.engine.features import EVALUATION, whole_file, write_file
    from safetensors.torch import load_file

    held = load_file(path)
    path.unlink()
    write_file(path.parent, EVALUATION, {"evaluation": 2 * held["evaluation"], "scale": torch.tensor(0.5)})
    assert whole_file(path.parent, EVALUATION) is not None
    _embedded(site, records["pfe", True])
    assert "val" in _files(site)


def test_features_made_in_smaller_chunks_for_lack_of_memory_are_not_kept(copy):
    site, records = copy
    running = Running(chunk=64)
    _embedded(site, records["pfe", True], running)
    assert _files(site) == ["evaluation", "view0"]


class Recorder:
    """Workers that note the jobs for features and do nothing else."""

    def __init__(self):
        self.jobs = []

    async def run(self, job, on_epoch=None, priority=(), begin=None):
        self.jobs.append(job)


@pytest.mark.parametrize(
    ("frozen", "methods", "made"), [(True, ("cosface", "pfe"), 2), (False, ("pfe", "laplace"), 2), (False, ("pfe",), 0)]
)
def test_features_that_several_tests_read_are_made_once(trained, frozen, methods, made):
    site, records = trained
    plans = _plans(site, *methods, frozen=frozen)
    workers = Recorder()

    async def ask():
        scheduler = Scheduler(plans, site, workers, None)
        tested = [plan for plan in plans if plan.cell.method in methods]
        asked = [scheduler._tested_features(plan, records[plan.cell.method, frozen].spec) for plan in 2 * tested]
        await asyncio.gather(*asked)

    asyncio.run(ask())
    assert sorted(job.kind for job in workers.jobs) == ["", "crop"][:made]
