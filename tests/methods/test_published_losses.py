"""Losses and gradients against the equations, public codes, pytorch-metric-learning and closed-form gradients."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from bench.methods import nivmf_losses
from bench.methods.distributions import IsotropicNormal, PointMass, VonMisesFisher
from bench.methods.el_nivmf import ElNivmf
from bench.methods.losses import ArcFaceLoss, CosFaceLoss, arcface_cosines
from bench.methods.margin import Margin, margin_loss
from bench.methods.multi_similarity import MultiSimilarity, multi_similarity_loss
from bench.methods.nir import NIR
from bench.methods.nivmf_losses import el_nivmf_logits, negative_distances
from bench.methods.norm_softmax import NormSoftmax
from bench.methods.proxies import proxy_anchor_loss, proxy_nca_loss, proxy_nca_softplus_loss
from bench.methods.proxy_anchor import ProxyAnchor
from bench.methods.proxy_anchor_el_nivmf import ProxyAnchorElNivmf
from bench.methods.proxy_distance import ProxyDistance
from bench.methods.proxy_nca import ProxyNCA
from pytorch_metric_learning import losses as pml

from .per_golden import error, load

GOLDEN = Path(__file__).parents[1] / "golden" / "losses"
TRUTH = json.loads((GOLDEN / "truth_summary.json").read_text())
BASELINES = json.loads((GOLDEN / "truth_baselines.json").read_text())
DIMS = (8, 128, 512)
FORM = {"normalizer": "heuristic", "released": False}
TRIPLETS = torch.tensor([[0, 1, 2], [2, 3, 5], [4, 5, 0], [6, 7, 9], [8, 9, 1], [10, 0, 4], [1, 10, 8]])


_load = partial(load, folder=GOLDEN)


class Inputs:
    def __init__(self, dim):
        held = _load(f"inputs_M{dim}")
        self.labels, self.draws = held["labels"].long(), held["mc_samples"]
        self.z, self.v, self.k, self.kk = (held[name] for name in ("z", "proxies", "kappa_iso", "kappa_vec"))
        self.t = held["temp"].reshape(())

    @property
    def loc(self):
        return F.normalize(self.v, dim=-1)

    def loss(self, logits):
        return F.cross_entropy(logits, self.labels)


@pytest.fixture(params=DIMS)
def given(request):
    return Inputs(request.param), request.param


CLOSED_FORM = [
    ("cosine", {}, "cos"),
    ("l2", {}, "l2"),
    ("el_vmf", {}, "el_vmf_exact"),
    ("b_vmf", {}, "b_vmf_exact"),
    ("kl_vmf", {}, "kl_exact"),
    ("nivmf", {}, "nivmf_point_heurD_exactC"),
    ("nivmf", {"normalizer": "exact"}, "nivmf_point_exactJ_exactC"),
]


@pytest.mark.parametrize(("distance", "options", "key"), CLOSED_FORM, ids=[c[2] for c in CLOSED_FORM])
def test_closed_form_distances_against_the_equations(given, distance, options, key):
    data, dim = given
    k = data.kk if distance == "nivmf" else data.k
    loss = data.loss(negative_distances(distance, data.z, data.loc, k, **FORM | options) / data.t)
    assert loss.item() == pytest.approx(TRUTH[f"{key}_M{dim}"], rel=1e-8, abs=1e-8)


@pytest.mark.parametrize(("normalizer", "held"), [("heuristic", "heurD"), ("exact", "exactJ")])
def test_expected_likelihood_against_the_equations(given, normalizer, held):
    (data, dim), key = given, f"el_nivmf_{held}_exactC_eq5_6"
    logits = el_nivmf_logits(data.draws, data.loc, data.kk, data.t, normalizer, released=False)
    assert data.loss(logits).item() == pytest.approx(TRUTH[f"{key}_M{dim}"], rel=1e-8)
    # Logits up to what is common to all classes.
    difference = logits - _load(f"truth_M{dim}")[key]
    torch.testing.assert_close(difference, difference[:, :1].expand_as(difference), rtol=1e-9, atol=1e-7)


def test_proxy_losses(given):
    data, dim = given
    cosines = F.normalize(data.z, dim=-1) @ data.loc.mT
    labels = data.labels

    def near(value, key):
        assert value.item() == pytest.approx(BASELINES[f"{key}_M{dim}"], rel=1e-8), key

    near(proxy_anchor_loss(cosines, labels, 32.0, 0.1), "PA_paper")
    near(proxy_nca_softplus_loss(cosines, labels, 32.0, 0.1), "PNCA_eq6")
    near(proxy_nca_loss(data.z, data.v, labels, 9.0, with_positive=False), "ProxyNCA_orig_scale3")
    near(proxy_nca_loss(data.z, data.v, labels, 9.0, with_positive=True), "ProxyNCA++_scale3")


def test_margin_and_multi_similarity(given):
    data, dim = given
    unit = F.normalize(data.z, dim=-1)
    a, p, n = TRIPLETS.T
    positive, negative = (unit[a] - unit[p]).norm(dim=1), (unit[a] - unit[n]).norm(dim=1)
    beta = torch.full((7,), 1.2, dtype=torch.float64)
    value = margin_loss(positive, negative, beta, 0.2, released=False)
    assert value.item() == pytest.approx(BASELINES[f"margin_paper_per_active_pair_M{dim}"], rel=1e-7)
    kept = unit[:11]
    value = multi_similarity_loss(kept @ kept.T, data.labels[:11], MultiSimilarity.Params())
    assert value.item() == pytest.approx(BASELINES[f"MS_mean_over_batch_M{dim}"], rel=1e-8)


CLASSES, TOLERANCE = 7, 1e-9


def along_the_sphere(gradient, unit):
    """Gradient at unit vectors without its radial part: their network normalises, here the objective does."""
    return gradient - (gradient * unit).sum(1, keepdim=True) * unit


def released(cls, **params):
    """A method as the EL-nivMF and NIR code has it, or its only form."""
    form = [{"form": form} for form in ("released_el", "released") if form in cls.forms()]
    return cls(cls.Params(**params, **(form[0] if form else {})))


def check(loss, reference, **leaves):
    """A loss and the gradients in its leaves are those of the reference."""
    loss.backward()
    found = {f"grad_{name}": torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()}
    errors = {name: error(value, reference[name]) for name, value in {"loss": loss, **found}.items()}
    assert max(errors.values()) < TOLERANCE, errors


VMF = {
    "proxynca_cos": (ProxyDistance, {"distance": "cosine"}),
    "proxynca_l2": (ProxyDistance, {"distance": "l2"}),
    "nivmf_point": (ProxyDistance, {"distance": "nivmf"}),
    "el_vmf": (ProxyDistance, {"distance": "el_vmf"}),
    "b_vmf": (ProxyDistance, {"distance": "b_vmf"}),
    "kl_vmf": (ProxyDistance, {"distance": "kl_vmf"}),
    "el_nivmf_fixedsamples": (ElNivmf, {"samples": 5}),
    "panc_el_nivmf_w3_fixedsamples": (ProxyAnchorElNivmf, {"samples": 5, "omega": 3.0}),
}


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("group", VMF)
def test_released_probabilistic_losses_and_gradients(group, dim, monkeypatch):
    cls, params = VMF[group]
    given, reference = _load(f"inputs_M{dim}"), _load(f"ref_{group}_M{dim}")
    objective = released(cls, **params).objective(CLASSES, dim).double()
    vector = objective.raw_concentration.dim() == 2
    with torch.no_grad():
        objective.weight.copy_(given["proxies"])
        objective.raw_concentration.copy_(given["kappa_vec" if vector else "kappa_iso"])
        objective.raw_temperature.copy_(given["temp"])
    draws = iter(given["mc_samples"])
    monkeypatch.setattr(nivmf_losses, "released_rsample", lambda distribution: next(draws))
    z = given["z"].requires_grad_()
    loss = objective(VonMisesFisher(z, z.norm(dim=-1)), given["labels"].long())
    ours = {"proxy_v": objective.weight, "proxy": objective.weight, "kappa": objective.raw_concentration, "z": z}
    ours["temp"] = objective.raw_temperature
    held = {name: leaf for name, leaf in ours.items() if f"grad_{name}" in reference}
    assert len(held) > 1
    check(loss, reference, **held)


POINT = {
    "oproxy_anchor": lambda: released(ProxyAnchor, scale=32.0, margin=0.1),
    "oproxy_nca": lambda: released(ProxyNCA, loss="softplus", scale=32.0, margin=0.1),
    # Both of these scale unit vectors by 3: d = 9 |z - p|^2, an inverse temperature of the cosine of 18.
    "proxynca_dim1": lambda: released(ProxyNCA, loss="original", scale=18.0),
    "proxynca_dim2": lambda: released(ProxyNCA, loss="original", scale=18.0),
    "softmax": lambda: released(NormSoftmax, scale=20.0),
}


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("group", POINT)
def test_released_proxy_losses_and_gradients(group, dim):
    given, reference = _load(f"inputs_M{dim}"), _load(f"ref_{group}_M{dim}")
    objective = POINT[group]().objective(CLASSES, dim).double()
    with torch.no_grad():
        objective.weight.copy_(given["proxies"])
    z = given["z"]
    if group == "softmax":
        z = F.normalize(z, dim=-1)
        reference["grad_z"] = along_the_sphere(reference["grad_z"], z)
    z.requires_grad_()
    check(objective(PointMass(z), given["labels"].long()), reference, z=z, proxy=objective.weight)


@pytest.mark.parametrize("dim", DIMS)
def test_released_margin_loss_and_gradients(dim):
    given, reference = _load(f"inputs_M{dim}"), _load(f"ref_margin_M{dim}")
    objective = released(Margin, margin=0.2, beta=1.2).objective(CLASSES, dim).double()
    unit = F.normalize(given["z"], dim=-1).requires_grad_()
    anchor, positive, negative = TRIPLETS.T
    boundary = objective.beta[given["labels"].long()[anchor]]
    # The public code adds 1e-8 below the root.
    near, far = (((unit[anchor] - unit[other]).square().sum(1) + 1e-8).sqrt() for other in (positive, negative))
    loss = margin_loss(near, far, boundary, objective.margin, released=objective.released)
    check(loss, reference, z=unit)
    assert error(objective.beta.grad, reference["grad_beta"]) < 100 * TOLERANCE  # float32 there


@pytest.mark.parametrize("dim", DIMS)
def test_released_multi_similarity_and_gradients(dim):
    given, reference = _load(f"inputs_M{dim}"), _load(f"ref_multisimilarity_nosingleton_M{dim}")
    # Their code fails on the last image, which is alone in its class.
    unit = F.normalize(given["z"][:11], dim=-1).requires_grad_()
    objective = released(MultiSimilarity, alpha=2.0, beta=40.0, threshold=0.5, epsilon=0.1).objective(CLASSES, dim)
    reference["grad_z"] = along_the_sphere(reference["grad_z"], unit.detach())
    check(objective(PointMass(unit), given["labels"].long()[:11]), reference, z=unit)


def test_multi_similarity_without_kept_pairs_is_zero_when_released():
    cosines = torch.eye(4)  # no two images are alike, and none are confused
    labels = torch.tensor([0, 1, 2, 3])
    params = MultiSimilarity.Params(form="released_el")
    assert multi_similarity_loss(cosines, labels, params).item() == 0.0


@pytest.mark.parametrize(("name", "dim", "conditioned"), [("M8", 8, "all"), ("M9odd", 9, "all"), ("M8mid", 8, "mid")])
def test_nir_and_its_flow_with_stored_weights(name, dim, conditioned):
    """The latent, its inverse and its density; the released loss and its gradients."""
    held = _load(f"ref_nir_{name}")
    blocks = sum(key.endswith(".perm") for key in held)
    depth = sum(key.startswith("w:module_list.1.subnet1.") and key.endswith("weight") for key in held)
    width = held["w:module_list.1.subnet1.0.weight"].shape[0]
    method = released(NIR, omega=float(held["omega"]), blocks=blocks, depth=depth, width=width, conditioned=conditioned)
    objective = method.objective(len(held["proxies"]), dim).double()
    flow, labels = objective.flow, held["labels"].long()
    with torch.no_grad():
        objective.proxies.copy_(held["proxies"])
    for k, block in enumerate(flow.blocks):
        block.permutation = held[f"w:module_list.{2 * k}.perm"].long()
        block.inverse_permutation = block.permutation.argsort()
        for theirs, ours in (("subnet1", block.to_second), ("subnet2", block.to_first)):
            prefix = f"w:module_list.{2 * k + 1}.{theirs}"
            ours.load_state_dict({key: held[f"{prefix}.{key}"] for key in ours.state_dict()}, strict=True)
    unit, condition = F.normalize(held["z"], dim=-1), F.normalize(held["proxies"], dim=-1)[labels]
    latent, log_det = flow(unit, condition)
    torch.testing.assert_close(latent, held["latent"], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(log_det, held["logdet"], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(flow.inverse(latent, condition), unit, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(flow.negative_log_likelihood(unit, condition), held["nll_noconst"])
    jacobian = torch.autograd.functional.jacobian(lambda x: flow(x[None], condition[:1])[0][0], unit[0])
    assert torch.linalg.slogdet(jacobian)[1].item() == pytest.approx(log_det[0].item(), abs=1e-10)
    z = held["z"].requires_grad_()
    held["grad_z"] = along_the_sphere(held["grad_z"], z.detach())
    check(objective(PointMass(z), labels), held, z=z, proxies=objective.proxies)


def _data(n=12, c=7, d=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64), torch.randint(c, (n,), generator=g)


LIKE_PML = [(ArcFaceLoss, pml.ArcFaceLoss, math.degrees, 1e-6), (CosFaceLoss, pml.CosFaceLoss, float, 1e-10)]


@pytest.mark.parametrize(("ours", "theirs", "unit", "tolerance"), LIKE_PML)
@pytest.mark.parametrize("margin", [0.0, 0.2, 0.5, 0.7, 1.0])
def test_margins_equal_pytorch_metric_learning(margin, ours, theirs, unit, tolerance):
    x, y = _data()
    reference, made = theirs(7, 5, margin=unit(margin), scale=16).double(), ours(7, 5, 16.0, margin).double()
    made.load_state_dict({"weight": reference.W.T})
    assert made(PointMass(x), y).item() == pytest.approx(reference(x, y).item(), rel=tolerance)


@pytest.mark.parametrize("margin", [0.1, 0.5, 1.3])
def test_arcface_target_and_its_slope_are_the_closed_form(margin):
    angle = torch.linspace(0.05, math.pi - 0.05, 200, dtype=torch.float64)
    cosine = angle.cos().requires_grad_()
    value = arcface_cosines(cosine, margin)
    value.sum().backward()
    inside = angle + margin < math.pi
    expected = torch.where(inside, (angle + margin).cos(), angle.cos() - margin * math.sin(margin))
    slope = torch.where(inside, (angle + margin).sin() / angle.sin(), 1.0)
    torch.testing.assert_close(value.detach(), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(cosine.grad, slope, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [ArcFaceLoss, CosFaceLoss])
def test_cosines_of_one_and_minus_one_give_finite_gradients(loss, dtype):
    torch.manual_seed(0)
    module = loss(3, 4, 64.0, 0.5).to(dtype)
    x = torch.cat([module.weight.detach()[:1], -module.weight.detach()[:1], torch.zeros(1, 4, dtype=dtype)])
    x.requires_grad_()
    module(PointMass(x), torch.tensor([0, 0, 1])).backward()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(module.weight.grad).all()


def test_a_vanishing_variance_gives_the_deterministic_loss():
    x, y = _data()
    unit = x / x.norm(dim=1, keepdim=True)
    torch.manual_seed(0)
    loss = CosFaceLoss(7, 5, 16.0, 0.2).double()
    sampled = loss(IsotropicNormal(unit, torch.full((12,), 1e-16, dtype=torch.float64)), y)
    assert sampled.item() == pytest.approx(loss(PointMass(unit), y).item(), abs=1e-5)
