"""NIR's ablations and variants against brute force, numerical derivatives and limits."""

import math

import pytest
import torch
import torch.nn.functional as F
from bench.methods.distributions import PointMass
from bench.methods.nir import NIR

CLASSES, DIM, BATCH = 3, 6, 8


def _loss(fidelity="corrected", classes=CLASSES, **params):
    torch.manual_seed(0)
    return NIR(NIR.Params(blocks=2, depth=2, width=8, form=fidelity, **params)).objective(classes, DIM).double()


@pytest.fixture
def batch():
    gen = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, DIM, dtype=torch.float64, generator=gen), torch.arange(BATCH) % CLASSES


def _nll(loss, z, proxy):
    """Eq. 10 for one embedding, from the flow's numerical Jacobian, as a mean over dimensions."""
    unit, condition = F.normalize(z, dim=-1)[None], F.normalize(proxy, dim=-1)[None]
    latent = loss.flow(unit, condition)[0]
    jacobian = torch.autograd.functional.jacobian(lambda x: loss.flow(x, condition)[0][0], unit)[:, 0]
    return (0.5 * latent.square().sum() - torch.linalg.slogdet(jacobian)[1]).item() / DIM


def test_the_exponential_takes_a_temperature(batch):
    points, labels = batch
    loss = _loss(gamma_temperature=2.5)
    nll = [_nll(loss, z, loss.proxies[y]) for z, y in zip(points, labels, strict=True)]
    found = loss.regulariser(points, labels).item()
    assert found == pytest.approx(sum(math.exp(x / 2.5) for x in nll) / BATCH, rel=1e-10)
    assert _loss(gamma_temperature=1e9).regulariser(points, labels).item() == pytest.approx(1.0, abs=1e-6)
    assert _loss().regulariser(points, labels).item() == pytest.approx(sum(map(math.exp, nll)) / BATCH, rel=1e-10)


def test_negative_pairs_lower_the_likelihood_under_a_drawn_other_class(batch):
    points, labels = batch
    with_negatives, without = _loss(negative_pairs=0.7), _loss()
    own = without.regulariser(points, labels).item()
    others = [
        [math.exp(-_nll(without, z, without.proxies[c])) for c in range(CLASSES) if c != y]
        for z, y in zip(points, labels.tolist(), strict=True)
    ]
    torch.manual_seed(3)
    draws = torch.stack([with_negatives.regulariser(points, labels) for _ in range(400)]).detach() - own
    wanted = 0.7 * sum(map(sum, others)) / (BATCH * (CLASSES - 1))
    error = draws.std().item() / math.sqrt(len(draws))
    assert draws.mean().item() == pytest.approx(wanted, abs=5 * error)
    assert error < 0.1 * wanted
    extremes = [0.7 * sum(map(pick, others)) / BATCH for pick in (min, max)]
    assert extremes[0] - 1e-9 <= draws.min().item()
    assert draws.max().item() <= extremes[1] + 1e-9


def test_negative_pairs_of_two_classes_are_exact_and_one_class_has_none(batch):
    points, labels = batch[0], batch[1] % 2
    loss = _loss(classes=2, negative_pairs=1.0)
    plain = _loss(classes=2).regulariser(points, labels)
    other = sum(math.exp(-_nll(loss, z, loss.proxies[1 - y])) for z, y in zip(points, labels, strict=True)) / BATCH
    assert (loss.regulariser(points, labels) - plain).item() == pytest.approx(other, rel=1e-10)
    with pytest.raises(ValueError, match="two classes"):
        _loss(classes=1, negative_pairs=1.0)


def _synthetic(loss, batch, seed=5):
    torch.manual_seed(seed)
    return loss.synthetic_loss(*batch)


def _slope(loss, parameter, place, batch, size=1e-6):
    """Central difference of the synthetic loss, the latent draws held."""
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter[place] += sign * size
            values.append(_synthetic(loss, batch).item())
            parameter[place] -= sign * size
    return (values[0] - values[1]) / (2 * size)


@pytest.mark.parametrize("base_loss", ["proxy_anchor", "proxy_nca", "soft_triple"])
def test_synthetic_samples_are_draws_of_the_flow(batch, base_loss):
    points, labels = batch
    values = {}
    for name in ("generate", "reverse_match", "generate_match"):
        loss = _loss(base_loss=base_loss, synthetic=name, omega=0.3)
        values[name] = _synthetic(loss, batch).item()
    assert len({round(v, 12) for v in values.values()}) == 1  # they differ in what learns
    # By hand: the samples are what the flow maps to the latent draws.
    torch.manual_seed(5)
    latent = torch.randn(BATCH, DIM, dtype=torch.float64)
    condition = loss.condition(points, labels)
    made = loss.flow.inverse(latent, condition)
    torch.testing.assert_close(loss.flow(made, condition)[0], latent)
    by_hand = loss.proxy_loss(PointMass(F.normalize(made, dim=-1)), labels)
    assert values["generate"] == pytest.approx(by_hand.item(), rel=1e-12)
    torch.manual_seed(5)
    total = loss(PointMass(points), labels).item()
    real = loss.proxy_loss(PointMass(points), labels).item()
    assert total == pytest.approx(loss.regulariser(points, labels).item() + 0.3 * (real + by_hand.item()), rel=1e-12)


def test_generate_teaches_proxies_only(batch):
    loss = _loss(synthetic="generate")
    _synthetic(loss, batch).backward()
    assert all(p.grad is None for p in loss.flow.parameters())
    torch.manual_seed(5)
    with torch.no_grad():
        made = loss.flow.inverse(torch.randn(BATCH, DIM, dtype=torch.float64), loss.condition(*batch))
    (wanted,) = torch.autograd.grad(loss.proxy_loss(PointMass(made), batch[1]), loss.proxies)
    torch.testing.assert_close(loss.proxies.grad, wanted)


def test_reverse_match_teaches_the_flow_only(batch):
    loss = _loss(synthetic="reverse_match")
    _synthetic(loss, batch).backward()
    assert loss.proxies.grad is None
    weight = loss.flow.blocks[0].to_first[0].weight
    assert weight.grad[1, 2].item() == pytest.approx(_slope(loss, weight, (1, 2), batch), rel=1e-5, abs=1e-9)
    assert weight.grad.abs().max() > 0


def test_generate_and_match_teaches_both(batch):
    loss = _loss(synthetic="generate_match")
    _synthetic(loss, batch).backward()
    weight = loss.flow.blocks[1].to_second[2].weight
    for parameter, place in ((weight, (0, 3)), (loss.proxies, (1, 4))):
        assert parameter.grad[place].item() == pytest.approx(_slope(loss, parameter, place, batch), rel=1e-5, abs=1e-9)
    # A proxy moves the samples too, which "generate" leaves out.
    only = _loss(synthetic="generate")
    _synthetic(only, batch).backward()
    assert not torch.allclose(only.proxies.grad, loss.proxies.grad, rtol=1e-3)


@pytest.mark.parametrize("name", ["generate", "reverse_match", "generate_match"])
def test_synthetic_samples_leave_the_embeddings_alone(batch, name):
    points, labels = batch[0].clone().requires_grad_(), batch[1]
    loss = _synthetic(_loss(synthetic=name), (points, labels))
    assert torch.autograd.grad(loss, points, allow_unused=True)[0] is None


def test_soft_triple_has_as_many_centres_as_asked(batch):
    """They were two, whatever the paper has (10 on CUB and Cars)."""
    points, labels = batch
    loss = _loss(base_loss="soft_triple", centres=10)
    assert loss.proxies.shape == (CLASSES, 10, DIM)
    for z, y, found in zip(points, labels, loss.condition(points, labels), strict=True):
        unit = F.normalize(loss.proxies[y], dim=-1)
        share = torch.softmax(unit @ F.normalize(z, dim=0) / 0.1, 0)
        torch.testing.assert_close(found, F.normalize((share[:, None] * unit).sum(0), dim=0))


def test_released_noise_is_uniform_and_stays_on_the_sphere(batch):
    unit = F.normalize(batch[0], dim=-1)
    gap = 40.0
    moved = _loss("released", noise=gap)._noisy(unit)
    torch.testing.assert_close(moved.norm(dim=-1), torch.ones(BATCH, dtype=torch.float64))
    assert (moved > -0.05).all()  # draws in [0, 1) dwarf the embedding
    corrected = _loss(noise=gap)._noisy(unit)
    assert (corrected < -0.5 * gap / math.sqrt(DIM)).any()


@pytest.mark.parametrize(("classes", "lengths"), [(100, (1.29, 2.81)), (11318, (0.29, 2.83))])
def test_proxies_start_as_in_the_public_code_when_released(classes, lengths):
    """Their length divides the angle of a step: an eighth of the standard normal has 2.8 in 512 dimensions."""
    for fidelity, length in zip(("corrected", "released"), lengths, strict=True):
        method = NIR(NIR.Params(**NIR.defaults(fidelity)))
        torch.manual_seed(0)
        found = method.objective(classes, 512).proxies.norm(dim=-1).mean().item()
        assert found == pytest.approx(length, abs=0.02)
        assert method.params.start == ("normal" if fidelity == "released" else "xavier")
