"""On a simulated GPU: every method computes what it does on the CPU, and how often a step makes the host wait."""

import contextlib
import math
import threading
from dataclasses import replace

import pytest
import torch
from bench.conformance.method_checks import build
from bench.datasets.pixel_cache import PixelCache
from bench.engine.jobs import Done, TestJob, TrainJob
from bench.engine.networks import embed, prepare_steps
from bench.engine.worker import run_job
from bench.errors import UnitFailed
from bench.methods._model import EmbeddingModel, NonFiniteEmbeddings
from bench.methods.backbones.registry import build_backbone
from bench.methods.cosface import CosFace
from bench.methods.distributions import von_mises_fisher
from bench.methods.distributions.bessel import vmf_log_normalizer, vmf_mean_resultant_length
from bench.methods.scorers import match
from bench.methods.vmf_loss import _MeanLogSum
from bench.site import Site

from tests.gpu.simulated_gpu import Gpu, GpuTensor
from tests.gpu.steps import METHODS, DrawsOnCpu, one_step, small_images, small_trainer, values
from tests.photographs import write_photographs
from tests.plans import planned

FORMS = [(name, form) for name in METHODS.names for form in METHODS.get(name).load().forms()]

WAITS = {
    "adaface": 1, "arcface": 1, "bayesian_triplet": 1, "cosface": 1, "cr_fiqa": 1, "dsml": 2, "dul_cls": 1,
    "dul_reg": 1, "el_nivmf": 11, "hib": 1, "hyperbolic": 1, "idml": 1, "laplace": 11, "loss_prediction": 1,
    "magface": 1, "margin": 1, "mc_dropout": 1, "mc_infonce": 4, "multi_similarity": 3, "nir": 1, "norm_softmax": 1,
    "pfe": 1, "proxy_anchor": 1, "proxy_anchor_el_nivmf": 11, "proxy_distance": 2, "proxy_nca": 1, "repvlm": 1,
    "scf": 3, "soft_triple": 1, "spe": 1, "untrained": 5, "vmf_fl": 1, "vmf_loss": 6,
}  # fmt: skip
"""How often an epoch of one training step of the engine (of a method that is fitted: its fit) may make the host wait
for the GPU: the largest number of the method's forms, constants that are copied once included. One is the engine's, for
the mean loss of the epoch. Lower a number when a step has become better."""


@pytest.fixture
def gpu(monkeypatch):
    for constants in (von_mises_fisher.legendre, match._legendre, match._log_normalizer_table):
        constants.cache_clear()  # whatever ran before, each is copied to the GPU once
    return Gpu(monkeypatch.setattr)


def _values(name, form, device, gpu):
    """What a method computes on a device, and how often its step waited for the simulated GPU, in draws of a GPU."""
    cls = METHODS.get(name).load()
    method = cls(cls.Params(**cls.defaults(form)))
    if method.ensemble:
        return values(build(cls).to(device), device), 0
    trainer = small_trainer(method, device)
    gpu.waits.clear()
    loss, waits = torch.tensor(one_step(trainer)), gpu.waits.total()
    return values(trainer.model, device) | {"loss": loss}, waits


def test_devices_are_not_mixed(gpu):
    here, mask = torch.ones(3), torch.tensor([True, False, True])
    with gpu:
        there = here.to("cuda")
        assert (there.device.type, (there + 1).device.type, here.device.type) == ("cuda", "cuda", "cpu")
        for mixed in (
            lambda: there + here,
            lambda: torch.cat([there, here]),
            lambda: there.put_(torch.tensor([0]), there[:1]),
            lambda: here[torch.arange(2, device="cuda")],
            lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
        ):
            with pytest.raises(RuntimeError, match=r"device|Expected a 'cuda'"):
                mixed()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert torch.equal((there + torch.tensor(1.0)).cpu(), here + 1)  # a number may be on the CPU
        gpu.waits.clear()
        there[mask.to("cuda", non_blocking=True)].sum().item()
        there[mask.to("cuda", non_blocking=True)] = 0  # is a masked fill
    assert gpu.waits == {"size of a mask": 1, "_local_scalar_dense": 1}


@pytest.mark.parametrize(
    ("name", "form"), [pytest.param(*each, marks=[pytest.mark.slow] * (each[1] != "corrected")) for each in FORMS]
)
def test_a_step_on_the_gpu_is_that_on_the_cpu(gpu, name, form):
    with DrawsOnCpu():
        expected, none = _values(name, form, "cpu", gpu)
    with gpu:
        found, waits = _values(name, form, "cuda", gpu)
    assert gpu.launches > 0
    assert none == 0
    if not METHODS.get(name).load().ensemble:
        assert waits <= WAITS[name]
    assert found.keys() == expected.keys()
    different = [key for key in found if not torch.equal(found[key].nan_to_num(), expected[key].nan_to_num())]
    assert not different


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [3, 128])
def test_the_normaliser_in_large_chunks_is_that_in_small_ones(gpu, dim, dtype):
    k = torch.logspace(-6, 9, 40_000, dtype=dtype)  # more than a chunk of the CPU
    found = {}
    for device in ("cpu", "cuda"):
        with gpu if device == "cuda" else contextlib.nullcontext():
            there = k.to(device).requires_grad_()
            values = vmf_log_normalizer(there, dim), vmf_mean_resultant_length(there, dim)
            found[device] = [x.cpu() for x in (*values, torch.autograd.grad(values[1].sum(), there)[0])]
    for here, there in zip(*found.values()):  # up to the rounding of fused products
        torch.testing.assert_close(there, here, rtol=8 * torch.finfo(dtype).eps, atol=0)


def test_the_sum_over_classes_in_large_blocks_is_that_in_small_ones(gpu, monkeypatch):
    found = {}
    for elements in (40, 1 << 24):
        monkeypatch.setattr("bench.methods.vmf_loss._GPU_BLOCK_ELEMENTS", elements)
        torch.manual_seed(0)
        given = [x.double() for x in (torch.randn(30, 8), torch.randn(10, 8), torch.tensor(4.0))]
        with gpu:
            there = [x.to("cuda").requires_grad_() for x in given]
            loss = _MeanLogSum.apply(*there)
            found[elements] = [x.cpu() for x in (loss.detach(), *torch.autograd.grad(loss, there))]
    for few, many in zip(*found.values()):
        torch.testing.assert_close(few, many, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_loss_that_is_not_finite_ends_its_step_before_the_weights_change(gpu, monkeypatch, device, value):
    with gpu if device == "cuda" else contextlib.nullcontext():
        trainer = small_trainer(CosFace(), device)
        trainer.steps, before = 3, []
        forward, factors = type(trainer.model.objective).forward, iter([1.0, value])

        def diverge(self, *given):
            before.append(self.weight.detach().cpu().clone())
            return next(factors) * forward(self, *given)

        monkeypatch.setattr(type(trainer.model.objective), "forward", diverge)
        with pytest.raises(UnitFailed, match=rf"^loss became {value} in epoch 1, batch 2$"):
            trainer.train_epoch(0)
        after = trainer.model.objective.weight.detach().cpu()
    assert len(before) == 2
    assert torch.equal(after, before[1])
    assert not torch.equal(after, before[0])


@pytest.mark.parametrize("refused", [ValueError, RuntimeError, None])
def test_embeddings_that_are_not_finite_name_their_step_whatever_the_loss_makes_of_them(gpu, monkeypatch, refused):
    """On a GPU they are not validated before the loss sees them."""

    def loss(self, distribution, labels):
        if refused:
            raise refused("not a probability")
        return self.weight.sum() * 0 + 1

    with gpu:
        trainer = small_trainer(CosFace(), "cuda")
        monkeypatch.setattr(type(trainer.model.objective), "forward", loss)
        with torch.no_grad():
            trainer.model.mean.bias[0] = math.nan
        with pytest.raises(UnitFailed, match=r"^some embeddings are not finite in epoch 1, batch 1$"):
            trainer.train_epoch(0)
        with torch.no_grad(), pytest.raises(NonFiniteEmbeddings):
            trainer.model.embed_features(torch.zeros(2, trainer.model.backbone.out_features, device="cuda"))


@pytest.mark.parametrize("name", ["dul_reg", "scf"])
def test_the_weights_of_a_base_move_with_it_however_torch_moves_them(name):
    method = METHODS.get(name).load()()
    model = EmbeddingModel(method, build_backbone("convnet", 1, None), 6, 16, CosFace().objective(6, 16))
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
    assert model.objective._base[0].weight is model.base_objective.weight


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("micro_batch", [None, 8])
def test_tf32_is_for_the_backbone_of_a_step_if_asked_for(gpu, precision, micro_batch):
    """Torch has it on for every convolution."""
    seen = {}

    def look(op, args, to_gpu):
        allowed = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        seen.setdefault((op, torch.is_grad_enabled()), set()).add(allowed)

    off, on, default = (False, False), (True, True), (torch.backends.cudnn.allow_tf32, False)
    with gpu:
        trainer = small_trainer(CosFace(), "cuda")
        prepare_steps(trainer.model, replace(trainer.spec.optim, precision=precision))
        trainer.running.micro_batch = micro_batch
        gpu.fails = look
        trainer.train_epoch(0)
        backbone = on if precision == "tf32" else off
        assert seen["convolution", True] == seen["convolution_backward", False] == {backbone}
        assert seen["log", True] == {default}  # a product in the loss is not rounded
        seen.clear()
        embed(trainer.model, small_images().evaluation, 24, "cuda")
    assert seen["convolution", False] == {off}


def _plan(folder, device, method="cosface", dataset="ndigit_smoke", of=None, **asked):
    site = Site(results=str(folder / device), device=device, **(of or {}))
    return next(plan for plan in planned(site, method, datasets=(dataset,), **asked)[0] if plan.requested), site


def _in_training(name):
    return lambda op, args, to_gpu: op == name and torch.is_grad_enabled()


def _to_gpu(dims, dtype):
    def fails(op, args, to_gpu):
        moved = op == "_to_copy" and to_gpu and not isinstance(args[0], GpuTensor)
        return moved and args[0].dim() in dims and args[0].dtype == dtype

    return fails


PLACES = {
    "network to the GPU": _to_gpu({2}, torch.float32),
    "convolution of a step": _in_training("convolution"),
    "batch norm of a step": _in_training("native_batch_norm"),
    "loss of a step": _in_training("log"),
    "backward pass": lambda op, args, to_gpu: op == "convolution_backward",
    "batch to the GPU": lambda op, args, to_gpu: (
        _to_gpu({4}, torch.float32)(op, args, to_gpu) and threading.current_thread() is not threading.main_thread()
    ),
    "labels to the GPU": _to_gpu({1}, torch.int64),
    "state of the optimiser": lambda op, args, to_gpu: op == "zeros_like",
    "step of the optimiser": lambda op, args, to_gpu: op == "_fused_adamw_",
    "embedding": lambda op, args, to_gpu: op == "convolution" and not torch.is_grad_enabled(),
    "gallery of a scorer": _to_gpu({2}, torch.float64),
}
"""Where memory may run out."""


@pytest.mark.slow
def test_memory_that_runs_out_once_changes_no_result(gpu, tmp_path):
    plan, site = _plan(tmp_path, "cuda", set=("optim.epochs=2",), seeds=1)
    (spec,) = plan.train_specs(plan.defaults(), 0, None).values()
    ended = {}
    for place, fails in ({"nowhere": lambda op, args, to_gpu: False} | PLACES).items():
        left = [place != "nowhere"]

        def once(op, args, to_gpu, fails=fails, left=left):
            return bool(left) and left[-1] and fails(op, args, to_gpu) and left.pop()

        gpu.fails, gpu.freed = once, 0
        here = site.model_copy(update={"results": str(tmp_path / place.replace(" ", "_"))})
        with gpu:
            assert run_job(TrainJob(spec=spec, site=here), lambda event: None) == Done()
        record = here.store.trained(spec.cell, spec.id)
        ended[place] = (record.files, record.environment.micro_batch, record.environment.chunk)
        assert place == "nowhere" or (not left and gpu.freed == 1), f"{place}: memory did not run out"
    assert {place: found for place, found in ended.items() if found != ended["nowhere"]} == {}


def _rows(plan, site, gpu):
    """Values of the tests of one seed of a method after its whole training, and that of its base."""

    def trained(plan, seed, bases):
        specs = plan.train_specs(plan.defaults(), seed, bases)
        for spec in specs.values():
            run_job(TrainJob(spec=spec, site=site), lambda event: None)
        return specs

    with gpu:
        bases = trained(plan.base, 0, None) if plan.base else None
        (test,) = plan.test_specs(trained(plan, 0, bases))
        run_job(TestJob(specs=(test,), cell=plan.cell, site=site), lambda event: None)
    record = site.store.tested(plan.cell, test.id)
    return [row["value"] for row in record.rows], record.environment.device


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "frozen"),
    [("cosface", False), ("hib", False), ("pfe", False), ("vmf_loss", False), ("spe", False), ("vmf_loss", True)],
)
def test_a_whole_training_and_its_test_are_those_on_the_cpu(gpu, tmp_path, weights, monkeypatch, name, frozen):
    monkeypatch.delitem(von_mises_fisher.PROPOSALS, "cpu")  # here, too, 32 at once: other draws than one at a time
    asked = {"set": ("optim.epochs=1",), "seeds": 1, "frozen": frozen, "of": {"weights": str(weights)}}
    expected, device = _rows(*_plan(tmp_path, "cpu", name, **asked), contextlib.nullcontext())
    assert device == "cpu"
    found, device = _rows(*_plan(tmp_path, "cuda", name, **asked), gpu)
    assert device == "Simulated GPU"
    if name == "vmf_loss":  # sums over other blocks than on a CPU
        expected = pytest.approx(expected, rel=0, abs=5e-4)
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["tf32", "float32"])
def test_photographs_on_the_gpu(gpu, tmp_path, monkeypatch, precision):
    """With TF32 the CPU cuts crops out, so that all is as on the CPU; else the GPU does, and levels may differ by 1."""
    write_photographs(tmp_path / "photos", classes=16, each=4)
    pins = ("image_size=32", "resize=36", "classes_per_batch=2", "images_per_class=4")
    exact = ("augment.contrast=0", "augment.saturation=0")  # the others are sums, whose order differs
    asked = {
        "set": ("optim.epochs=2", f"optim.precision={precision}", *exact, *(f"data.{pin}" for pin in pins)),
        "seeds": 1, "dataset": "folder", "backbone": "test_resnet", "dim": 8,
        "of": {"data_root": str(tmp_path / "photos"), "weights": "none"},
    }  # fmt: skip
    kept, on_gpu, rows, losses = [], PixelCache.on_gpu, [], []
    monkeypatch.setattr(PixelCache, "on_gpu", lambda *given: kept.append(on_gpu(*given)) or kept[-1])
    for device, context in (("cpu", contextlib.nullcontext()), ("cuda", gpu)):
        plan, site = _plan(tmp_path, device, **asked)
        rows.append(_rows(plan, site, context)[0])
        (spec,) = plan.train_specs(plan.defaults(), 0, None).values()
        losses.append(site.store.trained(spec.cell, spec.id).history[0].loss)
    assert all(isinstance(pixels, GpuTensor) == (precision == "float32") for pixels in kept)
    assert kept
    if precision == "tf32":
        assert rows[0] == rows[1]
    else:
        assert losses[0] != losses[1]
        assert losses[0] == pytest.approx(losses[1], rel=0.02)
