"""Losses against independent values; test_el_nir_golden.py has losses and gradients of the public code.

The numbers under ``tests/golden/losses`` were computed from the equations (``truth_*``) and by the public code
(``ref_*``); see the README there. Nothing of that code is used here.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bench.methods.distributions import PointMass, VonMisesFisher
from bench.methods.el_nivmf import ElNivmf
from bench.methods.flow import ConditionalFlow
from bench.methods.losses import ArcFaceLoss
from bench.methods.margin import margin_loss
from bench.methods.multi_similarity import multi_similarity_loss
from bench.methods.nivmf_losses import ElNivmfLoss, distance_logits, el_nivmf_logits
from bench.methods.proxies import proxy_anchor_loss, proxy_nca_loss, proxy_nca_softplus_loss

GOLDEN = Path(__file__).parents[1] / "golden" / "losses"
TRUTH = json.loads((GOLDEN / "truth_summary.json").read_text())
BASELINES = json.loads((GOLDEN / "truth_baselines.json").read_text())
DIMS = (8, 128, 512)
TRIPLETS = torch.tensor([[0, 1, 2], [2, 3, 5], [4, 5, 0], [6, 7, 9], [8, 9, 1], [10, 0, 4], [1, 10, 8]])


def _load(name):
    with np.load(GOLDEN / f"{name}.npz") as held:
        return {key: torch.from_numpy(held[key]) for key in held.files}


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
    ("el_vmf", {"released": True}, "el_vmf_quad"),
    ("b_vmf", {}, "b_vmf_exact"),
    ("b_vmf", {"released": True}, "b_vmf_quad"),
    ("kl_vmf", {}, "kl_exact"),
    ("kl_vmf", {"released": True}, "kl_ref_sign_quad512(+KL,no A)"),
    ("nivmf", {}, "nivmf_point_heurD_exactC"),
    ("nivmf", {"normalizer": "exact"}, "nivmf_point_exactJ_exactC"),
    ("nivmf", {"released": True}, "nivmf_point_heurD_quad512"),
]


@pytest.mark.parametrize(("distance", "options", "key"), CLOSED_FORM, ids=[c[2] for c in CLOSED_FORM])
def test_closed_form_distances_against_the_equations(given, distance, options, key):
    data, dim = given
    k = data.kk if distance == "nivmf" else data.k
    loss = data.loss(distance_logits(distance, data.z, data.loc, k, data.t, **options))
    assert loss.item() == pytest.approx(TRUTH[f"{key}_M{dim}"], rel=1e-8, abs=1e-8)


EXPECTED = [
    ({}, "el_nivmf_heurD_exactC_eq5_6"),
    ({"normalizer": "exact"}, "el_nivmf_exactJ_exactC_eq5_6"),
    ({"released": True}, "el_nivmf_iso_asreleased_quad_tempinside"),
]


@pytest.mark.parametrize(("options", "key"), EXPECTED, ids=[c[1] for c in EXPECTED])
def test_expected_likelihood_against_the_equations(given, options, key):
    data, dim = given
    logits = el_nivmf_logits(data.draws, data.loc, data.kk, data.t, **options)
    assert data.loss(logits).item() == pytest.approx(TRUTH[f"{key}_M{dim}"], rel=1e-8)
    # Logits up to what is common to all classes.
    truth = _load(f"truth_M{dim}")[key]
    difference = logits - truth
    torch.testing.assert_close(difference, difference[:, :1].expand_as(difference), rtol=1e-9, atol=1e-7)


def test_the_released_criterion_differs_from_the_corrected_one_and_both_train():
    torch.manual_seed(0)
    z = torch.randn(24, 16) * 3
    labels = torch.arange(24) % 6
    losses = []
    for released in (False, True):
        torch.manual_seed(1)
        objective = ElNivmfLoss(6, 16, ElNivmf.Params(concentration=8.0, temperature=0.5), released)
        loss = objective(VonMisesFisher(z, z.norm(dim=-1)), labels)
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in objective.parameters())
        losses.append(loss.item())
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


def test_proxy_losses(given):
    data, dim = given
    cosines = F.normalize(data.z, dim=-1) @ data.loc.mT
    labels = data.labels

    def near(value, key):
        assert value.item() == pytest.approx(BASELINES[f"{key}_M{dim}"], rel=1e-8), key

    near(proxy_anchor_loss(cosines, labels, 32.0, 0.1), "PA_paper")
    near(proxy_anchor_loss(cosines, labels, 32.0, 0.1, over_samples=True), "PA_ref")
    near(proxy_nca_softplus_loss(cosines, labels, 32.0, 0.1), "PNCA_eq6")
    near(proxy_nca_softplus_loss(cosines, labels, 32.0, 0.1, count_samples=True), "PNCA_ref")
    near(proxy_nca_loss(data.z, data.v, labels, 9.0, with_positive=False), "ProxyNCA_orig_scale3")
    near(proxy_nca_loss(data.z, data.v, labels, 9.0, with_positive=True), "ProxyNCA++_scale3")


def test_margin_and_multi_similarity(given):
    data, dim = given
    unit = F.normalize(data.z, dim=-1)
    a, p, n = TRIPLETS.T
    positive, negative = (unit[a] - unit[p]).norm(dim=1), (unit[a] - unit[n]).norm(dim=1)
    beta = torch.full((7,), 1.2, dtype=torch.float64)
    for released, key in ((False, "margin_paper_per_active_pair"), (True, "margin_ref_boolean_or")):
        value = margin_loss(positive, negative, beta, 0.2, released=released)
        assert value.item() == pytest.approx(BASELINES[f"{key}_M{dim}"], rel=1e-7)
    kept = unit[:11]
    value = multi_similarity_loss(kept @ kept.T, data.labels[:11], 2.0, 40.0, 0.5, 0.1)
    assert value.item() == pytest.approx(BASELINES[f"MS_mean_over_batch_M{dim}"], rel=1e-8)


def test_arcface(given):
    data, dim = given
    arcface = ArcFaceLoss(7, dim, 16.0, 0.5).double()
    with torch.no_grad():
        arcface.weight.copy_(data.v)
    value = arcface(PointMass(data.z), data.labels)
    assert value.item() == pytest.approx(BASELINES[f"ArcFace_m.5_s16_M{dim}"], rel=1e-6)


@pytest.mark.parametrize(("name", "dim", "conditioned"), [("M8", 8, "all"), ("M9odd", 9, "all"), ("M8mid", 8, "mid")])
def test_the_flow_with_stored_weights_gives_the_stored_latent_and_inverse(name, dim, conditioned):
    held = _load(f"ref_nir_{name}")
    blocks = sum(key.endswith(".perm") for key in held)
    first = held["w:module_list.1.subnet1.0.weight"]
    depth = sum(key.startswith("w:module_list.1.subnet1.") and key.endswith("weight") for key in held)
    flow = ConditionalFlow(dim, blocks, depth, first.shape[0], float(held["clamp"]), conditioned).double()
    for k, block in enumerate(flow.blocks):
        block.permutation = held[f"w:module_list.{2 * k}.perm"].long()
        block.inverse_permutation = block.permutation.argsort()
        prefix = f"w:module_list.{2 * k + 1}"
        for theirs, ours in (("subnet1", block.to_second), ("subnet2", block.to_first)):
            ours.load_state_dict({key: held[f"{prefix}.{theirs}.{key}"] for key in ours.state_dict()}, strict=True)
    unit = F.normalize(held["z"], dim=-1)
    condition = F.normalize(held["proxies"], dim=-1)[held["labels"].long()]
    latent, log_det = flow(unit, condition)
    torch.testing.assert_close(latent, held["latent"], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(log_det, held["logdet"], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(flow.inverse(latent, condition), unit, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(flow.negative_log_likelihood(unit, condition), held["nll_noconst"])
    jacobian = torch.autograd.functional.jacobian(lambda x: flow(x[None], condition[:1])[0][0], unit[0])
    assert torch.linalg.slogdet(jacobian)[1].item() == pytest.approx(log_det[0].item(), abs=1e-10)
