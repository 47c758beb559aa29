"""Released methods against the public EL-nivMF and NIR code: losses and gradients of ``tests/golden/losses/ref_*``.

The code without a form here, and why: ``arcface`` clamps negative cosines away and is in no table; ``proxynca_dim0``
sums over the batch and ``proxynca_v2`` takes the root of its distance, which no paper does; NIR's Multi-Similarity has
a softplus around a mean, and its tables take EL-nivMF's row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bench.methods import nivmf_losses
from bench.methods.distributions import PointMass, VonMisesFisher
from bench.methods.el_nivmf import ElNivmf
from bench.methods.margin import Margin, margin_loss
from bench.methods.multi_similarity import MultiSimilarity, multi_similarity_loss
from bench.methods.nir import NIR
from bench.methods.norm_softmax import NormSoftmax
from bench.methods.proxy_anchor import ProxyAnchor
from bench.methods.proxy_anchor_el_nivmf import ProxyAnchorElNivmf
from bench.methods.proxy_distance import ProxyDistance
from bench.methods.proxy_nca import ProxyNCA

GOLDEN = Path(__file__).parents[1] / "golden" / "losses"
DIMS = (8, 128, 512)
CLASSES = 7
TOLERANCE = 1e-9
TRIPLETS = torch.tensor([[0, 1, 2], [2, 3, 5], [4, 5, 0], [6, 7, 9], [8, 9, 1], [10, 0, 4], [1, 10, 8]])


def load(name):
    with np.load(GOLDEN / f"{name}.npz") as held:
        return {key: torch.from_numpy(held[key]) for key in held.files}


def relative(found, wanted):
    """Largest difference over the largest reference value."""
    wanted = wanted.reshape(found.shape)
    scale = wanted.abs().max().item()
    difference = (found.detach() - wanted).abs().max().item()
    return difference / scale if scale else difference


def along_the_sphere(gradient, unit):
    """Gradient at unit vectors without its radial part: their network normalises, here the objective does."""
    return gradient - (gradient * unit).sum(1, keepdim=True) * unit


def released(cls, **params):
    """A method as the EL-nivMF and NIR code has it, or its only form."""
    form = [{"form": form} for form in ("released_el", "released") if form in cls.forms()]
    return cls(cls.Params(**params, **(form[0] if form else {})))


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
    given, reference = load(f"inputs_M{dim}"), load(f"ref_{group}_M{dim}")
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
    loss.backward()
    errors = {"loss": relative(loss, reference["loss"])}
    ours = {
        "grad_proxy_v": objective.weight,
        "grad_proxy": objective.weight,
        "grad_kappa": objective.raw_concentration,
        "grad_temp": objective.raw_temperature,
        "grad_z": z,
    }
    for name in reference.keys() & ours.keys():
        gradient = ours[name].grad
        errors[name] = relative(torch.zeros_like(ours[name]) if gradient is None else gradient, reference[name])
    assert len(errors) > 2
    assert max(errors.values()) < TOLERANCE, errors


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
    given, reference = load(f"inputs_M{dim}"), load(f"ref_{group}_M{dim}")
    objective = POINT[group]().objective(CLASSES, dim).double()
    with torch.no_grad():
        objective.weight.copy_(given["proxies"])
    z, wanted = given["z"], reference["grad_z"]
    if group == "softmax":
        z = F.normalize(z, dim=-1)
        wanted = along_the_sphere(wanted, z)
    z.requires_grad_()
    loss = objective(PointMass(z), given["labels"].long())
    loss.backward()
    errors = {
        "loss": relative(loss, reference["loss"]),
        "grad_z": relative(z.grad, wanted),
        "grad_proxy": relative(objective.weight.grad, reference["grad_proxy"]),
    }
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("dim", DIMS)
def test_released_margin_loss_and_gradients(dim):
    given, reference = load(f"inputs_M{dim}"), load(f"ref_margin_M{dim}")
    objective = released(Margin, margin=0.2, beta=1.2).objective(CLASSES, dim).double()
    unit = F.normalize(given["z"], dim=-1).requires_grad_()
    anchor, positive, negative = TRIPLETS.T
    boundary = objective.beta[given["labels"].long()[anchor]]
    # The public code adds 1e-8 below the root.
    near, far = (((unit[anchor] - unit[other]).square().sum(1) + 1e-8).sqrt() for other in (positive, negative))
    loss = margin_loss(near, far, boundary, objective.margin, released=objective.released)
    loss.backward()
    errors = {
        "loss": relative(loss, reference["loss"]),
        "grad_z": relative(unit.grad, reference["grad_z"]),
        "grad_beta": relative(objective.beta.grad, reference["grad_beta"]) / 100,  # float32 there
    }
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("dim", DIMS)
def test_released_multi_similarity_and_gradients(dim):
    given, reference = load(f"inputs_M{dim}"), load(f"ref_multisimilarity_nosingleton_M{dim}")
    # Their code fails on the last image, which is alone in its class.
    unit = F.normalize(given["z"][:11], dim=-1).requires_grad_()
    objective = released(MultiSimilarity, alpha=2.0, beta=40.0, threshold=0.5, epsilon=0.1).objective(CLASSES, dim)
    loss = objective(PointMass(unit), given["labels"].long()[:11])
    loss.backward()
    errors = {
        "loss": relative(loss, reference["loss"]),
        "grad_z": relative(unit.grad, along_the_sphere(reference["grad_z"], unit.detach())),
    }
    assert max(errors.values()) < TOLERANCE, errors


def test_multi_similarity_without_kept_pairs_is_zero_when_released():
    cosines = torch.eye(4)  # no two images are alike, and none are confused
    labels = torch.tensor([0, 1, 2, 3])
    assert multi_similarity_loss(cosines, labels, 2.0, 40.0, 0.5, 0.1, over_kept=True).item() == 0.0


@pytest.mark.parametrize(("name", "dim", "conditioned"), [("M8", 8, "all"), ("M9odd", 9, "all"), ("M8mid", 8, "mid")])
def test_released_nir_and_gradients(name, dim, conditioned):
    held = load(f"ref_nir_{name}")
    blocks = sum(key.endswith(".perm") for key in held)
    depth = sum(key.startswith("w:module_list.1.subnet1.") and key.endswith("weight") for key in held)
    width = held["w:module_list.1.subnet1.0.weight"].shape[0]
    method = released(NIR, omega=float(held["omega"]), blocks=blocks, depth=depth, width=width, conditioned=conditioned)
    objective = method.objective(len(held["proxies"]), dim).double()
    with torch.no_grad():
        objective.proxies.copy_(held["proxies"])
    for k, block in enumerate(objective.flow.blocks):
        block.permutation = held[f"w:module_list.{2 * k}.perm"].long()
        for theirs, ours in (("subnet1", block.to_second), ("subnet2", block.to_first)):
            prefix = f"w:module_list.{2 * k + 1}.{theirs}"
            ours.load_state_dict({key: held[f"{prefix}.{key}"] for key in ours.state_dict()}, strict=True)
    z = held["z"].requires_grad_()
    loss = objective(PointMass(z), held["labels"].long())
    loss.backward()
    errors = {
        "loss": relative(loss, held["loss"]),
        "grad_z": relative(z.grad, along_the_sphere(held["grad_z"], z.detach())),
        "grad_proxies": relative(objective.proxies.grad, held["grad_proxies"]),
    }
    assert max(errors.values()) < TOLERANCE, errors
