"""What happens when memory runs out: smaller parts of the same work where that is possible, else a line of advice."""

import subprocess
import sys

import pytest
import torch
from bench.engine import worker
from bench.engine.jobs import SETTING_ERRORS, Done, EpochDone, TrainJob
from bench.engine.networks import backbone_features, embed
from bench.engine.optim import MicroBatches, Optimisation
from bench.engine.running import PatientScorer, Running, in_chunks
from bench.engine.testing import run_tests
from bench.engine.training import Trainer, run_training
from bench.engine.worker import failed, run_job
from bench.errors import LINE, OutOfMemory, UnitFailed
from bench.methods._model import Embedding, EmbeddingModel
from bench.methods.backbones.registry import build_backbone
from bench.methods.cosface import CosFace
from bench.methods.distributions.normal import PointMass
from bench.methods.dul_cls import DulCls
from bench.methods.hib import HIB
from bench.methods.multi_similarity import MultiSimilarity
from bench.methods.scorers.spec import DistributionScorer
from bench.protocols.recipes._base import Optim
from bench.site import Site

from tests.photographs import write_photographs
from tests.plans import planned

REAL_LIMIT = """
import resource
import torch
from bench.engine.optim import MicroBatches, Optimisation
from bench.engine.running import Running
from bench.methods._model import EmbeddingModel
from bench.methods.backbones.registry import build_backbone
from bench.methods.cosface import CosFace
from bench.protocols.recipes._base import Optim
from bench.resources import keep_memory


class Images:
    through_backbone = True

    def embed_batch(self, model, inputs):
        return model(inputs)


def gradients(images=None):
    images = whole if images is None else images
    torch.manual_seed(0)
    model = EmbeddingModel(CosFace(), build_backbone("resnet18", 3, None, "statistics"), 16, 8).train()
    optim = Optim(optimizer="sgd", lr=0.1, lr_objective=0.1, epochs=1, weight_decay=0.0)
    steps = MicroBatches(model, Images(), Optimisation(model, optim, "cpu"), Running())
    steps.gradients(images, lambda e: model.objective(e.distribution, labels[: len(images)]))
    return steps.running.micro_batch, [parameter.grad for parameter in model.parameters()]


if KEEP:
    keep_memory()
torch.set_num_threads(1)
torch.backends.mkldnn.enabled = False  # oneDNN may be beyond use from then on
whole, labels = torch.rand(32, 3, 160, 160), torch.arange(32) // 2
gradients(whole[:2])  # imports
there = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (there + (400 << 20), most))
size, found = gradients()
resource.setrlimit(resource.RLIMIT_AS, (most, most))
unlimited, expected = gradients()
assert unlimited is None
print(size, max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(expected, found)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_AS")
@pytest.mark.parametrize("keep", [True, False], ids=["as in a worker", "as elsewhere"])
def test_a_host_that_has_no_more_memory(keep, monkeypatch):
    command = [sys.executable, "-c", f"KEEP = {keep}\n{REAL_LIMIT}"]
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")  # a moving one may leave no room between its pieces
    size, worst = subprocess.check_output(command, timeout=600).split()
    assert int(size) in (16, 8, 4)
    assert float(worst) < 1e-4


class _Double(EmbeddingModel):
    """A model in float64 from end to end."""

    def embed_features(self, features):
        raw = self.mean(features)
        return Embedding(raw, self.method.distribution(raw, None if self.spread is None else self.spread(features)))


class _Plain:
    """Inputs that are images."""

    through_backbone = True

    def embed_batch(self, model, inputs):
        return model(inputs)


def _model(method, dropout=0.0, kind=_Double):
    """A network in training whose batch norm has the statistics of others."""
    torch.manual_seed(0)
    backbone = build_backbone("convnet", 1, None)
    if dropout:
        backbone.features.append(torch.nn.Dropout(dropout))
    model = kind(method, backbone, 6, 8)
    model = model.double() if kind is _Double else model
    for module in backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.eval()
    return model


def _micro_batches(model, size, precision="float32"):
    optim = Optim(optimizer="sgd", lr=0.1, lr_objective=0.1, epochs=1, weight_decay=0.0, precision=precision)
    return MicroBatches(model, _Plain(), Optimisation(model, optim, "cpu"), Running(micro_batch=size))


def _batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(12, 1, 12, 12, generator=g, dtype=torch.float64), torch.arange(6).repeat_interleave(2)


def _make_gradients(steps, **options):
    """Make the gradients of a batch; returns its loss."""
    images, labels = _batch()
    return steps.gradients(images, lambda e: steps.model.objective(e.distribution, labels), **options)


def _gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _assert_equal(found, expected, rtol=1e-12):
    assert found.keys() == expected.keys()
    assert any(name.startswith("backbone.") for name in found)
    for name in found:
        scale = float(expected[name].detach().abs().max())
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=rtol * scale, msg=name)


# A loss with proxies, one over pairs, and two that draw (reparameterised) samples, one of them over pairs of images.
@pytest.mark.parametrize("method", [CosFace(), MultiSimilarity(), DulCls(), HIB()], ids=lambda m: m.name)
@pytest.mark.parametrize("size", [1, 4, 5, 12])
def test_gradients_of_micro_batches_are_those_of_the_whole_batch(method, size):
    results = []
    for micro in (None, size):
        model = _model(method)
        torch.manual_seed(7)
        loss = _make_gradients(_micro_batches(model, micro))
        results.append((loss, _gradients(model), torch.rand(1)))
    (loss, expected, drawn), (other, found, drawn_too) = results
    assert float(other) == pytest.approx(float(loss), rel=1e-12)
    assert torch.equal(drawn, drawn_too)
    _assert_equal(found, expected)


def test_dropout_draws_the_same_in_both_passes():
    images, labels = _batch()
    model = _model(CosFace(), dropout=0.5)
    torch.manual_seed(7)
    features = torch.cat([model.features(part) for part in images.split(4)])
    model.objective(model.embed_features(features).distribution, labels).backward()
    expected, after = _gradients(model), torch.rand(1)
    torch.manual_seed(7)
    _make_gradients(_micro_batches(model, 4))
    assert torch.equal(torch.rand(1), after)
    _assert_equal(_gradients(model), expected)


def test_gradients_that_a_scaler_has_multiplied_are_too():
    results = []
    for micro in (None, 4):
        model = _model(CosFace())
        steps = _micro_batches(model, micro, precision="float16")
        assert steps.optimisation.scaler.is_enabled()
        _make_gradients(steps)
        scaled = _gradients(model)
        steps.optimisation.update()
        results.append((scaled, dict(model.named_parameters())))
    (expected, stepped), (found, stepped_too) = results
    assert max(float(g.abs().max()) for g in found.values()) > 100  # multiplied by 65536
    _assert_equal(found, expected)
    _assert_equal(stepped_too, stepped)


def test_epochs_of_the_heads_give_the_backbone_no_gradient():
    model = _model(CosFace())
    _make_gradients(_micro_batches(model, 4), heads_only=True)
    assert {name.split(".")[0] for name in _gradients(model)} == {"mean", "objective"}


class _Counting(torch.nn.Module):
    """An objective that counts its calls in a buffer, draws, and runs out of memory in its first ones."""

    def __init__(self, failures):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.failures, self.seen = failures, 0

    def forward(self, distribution, labels):
        self.calls += 1
        self.seen += 1
        self.drawn = torch.rand(1)
        if self.seen <= self.failures:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return distribution.mean.square().sum()


@pytest.mark.slow
def test_a_failed_attempt_leaves_no_trace():
    model = _model(CosFace())
    model.objective = _Counting(failures=3)
    steps = _micro_batches(model, None)
    torch.manual_seed(3)
    _make_gradients(steps)
    assert steps.running.micro_batch == 3  # 12, 12, 6, 3
    assert model.objective.calls == 1
    torch.manual_seed(3)
    assert torch.equal(model.objective.drawn, torch.rand(1))


@pytest.mark.slow
def test_sizes_are_halved_down_to_one_image_and_then_given_up():
    model = _model(CosFace())
    model.objective = _Counting(failures=99)
    steps = _micro_batches(model, None)
    with pytest.raises(OutOfMemory, match=r"^out of memory \(one image at a time\): try lower data\.classes_per_batch"):
        _make_gradients(steps)
    assert model.objective.seen == 5  # 12, 12, 6, 3, 1
    assert steps.running.micro_batch == 1


def _fails_above(monkeypatch, limit, training=True):
    """Let the backbone run out of memory for more than ``limit`` images, in training or in evaluation."""
    features = EmbeddingModel.features

    def limited(self, images):
        if self.training is training and len(images) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return features(self, images)

    monkeypatch.setattr(EmbeddingModel, "features", limited)


def _smoke(tmp_path):
    [plan], site = planned(tmp_path / "results", "cosface", set=("optim.epochs=1",))
    return plan, site


@pytest.fixture
def photos(tmp_path):
    """A training on sixteen classes of four photographs with frozen batch-norm statistics."""
    write_photographs(tmp_path / "photos", classes=16, each=4)
    pins = ("image_size=32", "resize=36", "freeze_norm=statistics", "classes_per_batch=2", "images_per_class=4")
    asked = {"backbone": "test_resnet", "dim": 8, "set": ("optim.epochs=2", *(f"data.{pin}" for pin in pins))}

    def spec_and_site(results):
        site = Site(results=str(tmp_path / results), data_root=str(tmp_path / "photos"), weights="none")
        [plan], _ = planned(site, "cosface", datasets=("folder",), **asked)
        return plan.train_specs({}, 0, None)[0], site

    return spec_and_site


@pytest.mark.slow
def test_a_training_goes_on_in_micro_batches_and_its_record_says_so(photos, monkeypatch):
    plain = run_training(*photos("a"), lambda epoch: None)
    assert (plain.environment.micro_batch, plain.environment.memory_note) == (None, "")
    _fails_above(monkeypatch, 3)
    record = run_training(*photos("b"), lambda epoch: None)
    assert record.environment.micro_batch == 2  # of 8
    assert record.environment.memory_note == "memory ran out: trained in micro-batches of 2"
    assert type(record).from_json(record.to_json()) == record
    for mine, other in zip(record.history, plain.history, strict=True):
        assert mine.loss == pytest.approx(other.loss, rel=1e-4)
        assert mine.val_map_at_r == pytest.approx(other.val_map_at_r, abs=0.02)


@pytest.mark.slow
def test_a_resumed_training_keeps_the_size_and_ends_as_an_undisturbed_one(photos, monkeypatch):
    _fails_above(monkeypatch, 3)
    whole = run_training(*photos("a"), lambda epoch: None)
    spec, site = photos("b")

    def stop(epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_training(spec, site, stop)
    again = Trainer(spec, site)
    again.resume_or_start()
    assert again.progress.epoch == 1
    assert again.running.micro_batch == 2
    _fails_above(monkeypatch, 0, training=None)  # nothing more fails
    assert run_training(spec, site, lambda epoch: None).files == whole.files


def test_out_of_memory_with_batch_norm_that_trains_is_no_fault_of_the_setting(tmp_path, monkeypatch):
    plan, site = _smoke(tmp_path)
    spec = plan.train_specs({}, 0, None)[0]
    _fails_above(monkeypatch, 3)
    with pytest.raises(OutOfMemory, match="batch norm trains on whole batches") as caught:
        run_training(spec, site, lambda epoch: None)
    event = failed(TrainJob(spec=spec, site=site), caught.value)
    assert event.error not in SETTING_ERRORS
    assert event.reason == str(caught.value)
    assert len(event.reason) <= LINE
    other = failed(TrainJob(spec=spec, site=site), MemoryError())
    assert other.reason.startswith("out of memory: try fewer --workers, smaller settings or more memory: MemoryError")
    assert other.error not in SETTING_ERRORS


@pytest.mark.slow
def test_embeddings_are_made_in_smaller_chunks(monkeypatch):
    model = _model(CosFace(), kind=EmbeddingModel).eval()
    images = torch.randn(50, 1, 12, 12)
    plain, confidence = embed(model, images.__getitem__, 50, "cpu", 16)
    features = backbone_features(model.backbone, images.__getitem__, 50, "cpu", 16)
    _fails_above(monkeypatch, 5, training=False)
    running = Running()
    small, other = embed(model, images.__getitem__, 50, "cpu", 16, running=running)
    assert running.chunk == 4
    torch.testing.assert_close(small.mean, plain.mean)
    assert {name: value.shape for name, value in other.items()} == {name: v.shape for name, v in confidence.items()}
    torch.testing.assert_close(backbone_features(model.backbone, images.__getitem__, 50, "cpu", 4), features)
    _fails_above(monkeypatch, 0, training=False)
    with pytest.raises(OutOfMemory, match=r"\(embedding, one image at a time\)"):
        embed(model, images.__getitem__, 50, "cpu", 16)


@pytest.mark.slow
def test_chunks_cover_every_row_once_and_keep_their_size():
    running, tried = Running(), []

    def work(rows, size):
        tried.append((len(rows), size))
        if size > 3:
            raise MemoryError
        return rows

    assert torch.equal(torch.cat(in_chunks(10, 8, work, running, "x")), torch.arange(10))
    assert tried == [(8, 8), (8, 8), (4, 4), (2, 2), (2, 2), (2, 2), (2, 2), (2, 2)]
    tried.clear()
    assert torch.equal(torch.cat(in_chunks(3, 8, work, running, "x")), torch.arange(3))
    assert tried == [(2, 2), (1, 2)]


def _failing(monkeypatch, *script):
    """Let a job do what a script says, an item each time it is begun: report an epoch, or raise an error."""
    steps = list(script)

    def run(job, emit):
        while steps:
            step = steps.pop(0)
            if isinstance(step, Exception):
                raise step
            emit(step)
        return Done()

    monkeypatch.setattr(worker, "_run_job", run)
    return steps


RAN_OUT = (torch.OutOfMemoryError("CUDA out of memory."), OutOfMemory("batch norm trains on whole batches", ""))


@pytest.mark.slow
@pytest.mark.parametrize("error", RAN_OUT, ids=["anywhere", "no smaller parts"])
def test_a_job_is_done_once_more_when_memory_runs_out(monkeypatch, error):
    said = []
    _failing(monkeypatch, error, EpochDone(epoch=1), error, EpochDone(epoch=2))
    assert run_job(None, said.append) == Done()
    assert said == [EpochDone(epoch=1), EpochDone(epoch=2)]
    left = _failing(monkeypatch, error, error, error)
    with pytest.raises(type(error)):
        run_job(None, said.append)
    assert len(left) == 1
    left = _failing(monkeypatch, ValueError("no memory"), error)
    with pytest.raises(ValueError, match="no memory"):
        run_job(None, said.append)
    assert len(left) == 1


class _Hungry:
    """A scorer that has memory for three rows."""

    name = "hungry"

    def __init__(self, scorer):
        self.scorer = scorer

    def matrix(self, queries, gallery):
        if len(queries) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.scorer.matrix(queries, gallery)

    def pairs(self, left, right):
        if len(left) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.scorer.pairs(left, right)


@pytest.mark.slow
def test_blocks_of_scores_are_halved():
    scorer = DistributionScorer("cosine", PointMass(torch.randn(20, 4)))
    rows = torch.arange(20)
    patient = PatientScorer(_Hungry(scorer), Running())
    torch.testing.assert_close(patient.matrix(rows, rows), scorer.matrix(rows, rows))
    torch.testing.assert_close(patient.pairs(rows, rows.flip(0)), scorer.pairs(rows, rows.flip(0)))
    assert not hasattr(patient, "bound")
    assert PatientScorer(scorer, Running()).bound() is not None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A plan, the specification of its training, which is done, and the site."""
    plan, site = _smoke(tmp_path_factory.mktemp("nan"))
    spec = plan.train_specs({}, 0, None)[0]
    run_training(spec, site, lambda epoch: None)
    return plan, spec, site


@pytest.fixture
def trainer(trained):
    return Trainer(*trained[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda loss: loss.expand(3), r"a loss of shape \(3,\); it has to be a scalar"),
        (lambda loss: loss.detach(), "does not depend on anything trained"),
    ],
)
def test_a_loss_that_cannot_be_trained_says_why(trainer, changed, said, monkeypatch):
    objective = trainer.model.objective
    forward = type(objective).forward
    monkeypatch.setattr(type(objective), "forward", lambda self, *given: changed(forward(self, *given)))
    with pytest.raises(ValueError, match=said):
        trainer.train_epoch(0)


def test_a_refusal_of_weights_that_are_not_finite_is_told_from_a_mistake(trainer, monkeypatch):
    model = trainer.model
    refusals = iter([None, "the same with weights that are not finite"])

    def refuse(self, *given):
        if next(refusals):
            with torch.no_grad():
                model.mean.bias[0] = float("nan")
        raise ValueError("no such distribution")

    monkeypatch.setattr(type(model.objective), "forward", refuse)
    with pytest.raises(ValueError, match="no such distribution"):
        trainer.train_epoch(0)
    with pytest.raises(UnitFailed, match="weights are not finite in epoch 1, batch 1: no such distribution"):
        trainer.train_epoch(0)


@pytest.mark.parametrize("what", ["embeddings", "confidences"])
def test_what_is_not_a_number_in_a_test_names_the_split(trained, what, monkeypatch):
    plan, spec, site = trained

    def broken(*given, step, **named):
        distribution, confidence = embed(*given, step=step, **named)
        if "crop" in step:
            (distribution.mean if what == "embeddings" else confidence["norm"])[5] = float("nan")
        return distribution, confidence

    monkeypatch.setattr("bench.engine.embedded_model.embed", broken)
    (test,) = plan.test_specs({0: spec})
    with pytest.raises(UnitFailed, match=rf"^split test_crop: 1 of \d+ {what} \(\w+\) are not finite$"):
        run_tests([test], plan.cell, site)
