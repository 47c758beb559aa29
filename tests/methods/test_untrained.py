"""The network before metric learning: its projection, and the registration of a method that has no base."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bench.conformance import build
from bench.methods import principal
from bench.methods.principal import principal_axes, principal_directions
from bench.methods.untrained import Untrained
from sklearn.decomposition import PCA, TruncatedSVD


def _features(count=60, width=20, mean=2.0):
    """Features ``[N, F]`` whose directions differ in size, and whose mean is far from 0, as after a ReLU."""
    g = torch.Generator().manual_seed(4)
    sizes = torch.linspace(3.0, 0.3, width)
    return torch.randn(count, width, generator=g) * sizes + mean * torch.rand(width, generator=g)


def _cosines(x):
    u = F.normalize(x, dim=-1)
    return u @ u.mT


def _of_either_sign(found, expected):
    signs = torch.sign((found * expected).sum(-1, keepdim=True))
    torch.testing.assert_close(found * signs, expected, rtol=0, atol=1e-5)


def test_the_directions_are_those_of_a_truncated_svd():
    x = _features()
    found = principal_directions(x, 7)
    expected = torch.from_numpy(np.linalg.svd(x.double().numpy(), full_matrices=False)[2][:7]).float()
    _of_either_sign(found, expected)
    sklearn = TruncatedSVD(7, algorithm="arpack", random_state=0).fit(x.double().numpy()).components_
    _of_either_sign(found, torch.tensor(sklearn.copy()).float())
    torch.testing.assert_close(found @ found.mT, torch.eye(7), rtol=0, atol=1e-6)


def test_they_are_not_those_of_a_centred_pca_unless_the_mean_is_zero():
    x = _features()
    centred = torch.from_numpy(PCA(7).fit(x.double().numpy()).components_).float()
    with pytest.raises(AssertionError):
        _of_either_sign(principal_directions(x, 7), centred)
    _of_either_sign(principal_directions(x - x.double().mean(0).float(), 7), centred)


@pytest.mark.parametrize("dim", [20, 25])
def test_without_a_reduction_cosines_stay_those_of_the_features_to_the_last_digit(dim):
    x = _features()
    z = F.linear(x, principal_directions(x, dim))
    assert torch.equal(z[:, :20], x)
    assert torch.equal(z[:, 20:], torch.zeros(60, dim - 20))


def test_directions_that_the_images_lack_are_zero_and_lose_nothing_of_them():
    x = _features(count=5)
    weight = principal_directions(x, 9)
    assert weight[:5].norm(dim=1).tolist() == pytest.approx([1.0] * 5, abs=1e-6)
    assert torch.equal(weight[5:], torch.zeros(4, 20))
    torch.testing.assert_close(_cosines(F.linear(x, weight)), _cosines(x), rtol=0, atol=1e-5)
    assert torch.equal(principal_directions(torch.zeros(5, 20), 9), torch.zeros(9, 20))


def test_whole_whitening_is_that_of_a_centred_pca_if_the_mean_is_zero():
    x = _features()
    x = x - x.double().mean(0).float()
    expected = torch.from_numpy(PCA(7, whiten=True).fit_transform(x.double().numpy())).float()
    z = F.linear(x, principal_directions(x, 7, whitening=1.0))
    _of_either_sign((z / z.norm(dim=0)).mT, (expected / expected.norm(dim=0)).mT)
    torch.testing.assert_close(_cosines(z), _cosines(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dim", [7, 20, 25])
def test_whitening_leaves_squares_that_are_a_power_of_the_eigenvalues(dim):
    x = _features()
    values = torch.from_numpy(np.linalg.svd(x.double().numpy(), full_matrices=False)[1][:dim] ** 2)
    torch.testing.assert_close(principal_axes(x, dim)[0][:20], values)
    for whitening in (0.3, 1.0):
        squares = F.linear(x, principal_directions(x, dim, whitening)).double().square().sum(0)
        expected = values[0] * (values / values[0]) ** (1 - whitening)
        torch.testing.assert_close(squares[:20], expected, rtol=1e-4, atol=0)
        assert not squares[20:].any()


def test_without_whitening_the_directions_are_the_axes_to_the_last_digit():
    x = _features()
    assert torch.equal(principal_directions(x, 7, 0.0), principal_axes(x, 7)[1])


def test_whitening_enlarges_no_direction_that_the_images_lack():
    weight = principal_directions(_features(count=5), 9, whitening=1.0)
    assert weight.isfinite().all()
    assert torch.equal(weight[5:], torch.zeros(4, 20))
    alike = torch.ones(6, 20)
    weight = principal_directions(alike, 9, whitening=1.0)
    torch.testing.assert_close(F.linear(alike, weight), torch.tensor([20**0.5] + 8 * [0.0]).expand(6, 9))
    assert torch.equal(principal_directions(torch.zeros(5, 20), 9, 1.0), torch.zeros(9, 20))


def test_the_sign_of_a_direction_does_not_depend_on_the_order_of_the_images(monkeypatch):
    x = _features()
    weight = principal_directions(x, 7)
    assert bool((weight.gather(1, weight.abs().argmax(1, keepdim=True)) > 0).all())
    assert torch.equal(principal_directions(x, 7), weight)
    torch.testing.assert_close(principal_directions(x.flip(0), 7), weight, rtol=0, atol=1e-6)
    monkeypatch.setattr(principal, "_BLOCK_ROWS", 7)
    torch.testing.assert_close(principal_directions(x, 7), weight, rtol=0, atol=1e-6)


def test_the_fit_sets_the_mean_head_and_makes_the_loss_smallest():
    model = build(Untrained, whitening=0.0)
    x = torch.rand(40, model.mean.in_features, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros(40, dtype=torch.long)

    def loss():
        with torch.no_grad():
            return float(model.objective(model.embed_features(x).distribution, labels))

    model.method.fit(model, x, labels)
    assert torch.equal(model.mean.weight, principal_directions(x, model.mean.out_features))
    assert torch.equal(model.mean.bias, torch.zeros(model.mean.out_features))
    best = loss()
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        other = torch.linalg.qr(torch.randn(model.mean.in_features, model.mean.out_features, generator=g))[0]
        with torch.no_grad():
            model.mean.weight.copy_(other.mT)
        assert loss() > best
    assert list(model.confidences(model.embed_features(x))) == ["norm"]  # no classifier of training classes
