"""SPE against its definition: products of densities on a grid, the expected softmax by plain sampling."""

import pytest
import torch
from bench.methods.distributions import IsotropicNormal
from bench.methods.spe import PrototypeLoss, halves, log_expected_softmax, prototypes

F64 = torch.float64


def _normals(n, d, seed=0):
    g = torch.Generator().manual_seed(seed)
    loc = 1.5 * torch.randn(n, d, dtype=F64, generator=g)
    return IsotropicNormal(loc, 0.2 + torch.rand(n, dtype=F64, generator=g))


def test_a_prototype_is_the_normalised_product_of_its_densities():
    x = _normals(3, 1)
    _, found = prototypes(x.loc, x.variance, torch.zeros(3, dtype=torch.long))
    z = torch.linspace(-12, 12, 20001, dtype=F64).unsqueeze(1)
    product = sum(IsotropicNormal(x.loc[i], x.variance[i]).log_prob(z) for i in range(3)).exp()
    product = product / torch.trapezoid(product, z.squeeze(1))
    torch.testing.assert_close(found.log_prob(z).exp(), product, rtol=1e-6, atol=1e-9)


def test_classes_do_not_mix_and_keep_their_names():
    x, labels = _normals(6, 4), torch.tensor([9, 2, 9, 2, 5, 9])
    classes, found = prototypes(x.loc, x.variance, labels)
    assert classes.tolist() == [2, 5, 9]
    torch.testing.assert_close(found.loc[1], x.loc[4])
    torch.testing.assert_close(found.variance[1], x.variance[4])
    for place, c in enumerate((2, 5, 9)):
        own = labels == c
        _, alone = prototypes(x.loc[own], x.variance[own], labels[own])
        torch.testing.assert_close(found.loc[place], alone.loc[0])


def test_intersection_sampling_estimates_the_expected_softmax():
    torch.manual_seed(3)
    query, prototype, target = _normals(6, 2, 1), _normals(4, 2, 2), torch.tensor([0, 1, 2, 3, 0, 1])
    axis = torch.linspace(-9, 9, 601, dtype=F64)
    grid = torch.cartesian_prod(axis, axis)
    share = torch.softmax(prototype.log_prob(grid.unsqueeze(1)), -1)[:, target]
    truth = (query.log_prob(grid.unsqueeze(1)).exp() * share).sum(0) * (axis[1] - axis[0]) ** 2
    runs = torch.stack([log_expected_softmax(query, prototype, target, samples=5_000).exp() for _ in range(60)])
    error = runs.std(0) / len(runs) ** 0.5
    assert (error < 0.02 * truth).all()
    assert ((runs.mean(0) - truth).abs() < 4 * error).all()


def test_without_noise_it_is_a_softmax_over_squared_distances():
    query, prototype = _normals(5, 8, 1), _normals(3, 8, 2)
    point = IsotropicNormal(query.loc, torch.full((5,), 1e-10, dtype=F64))
    target = torch.tensor([0, 1, 2, 0, 1])
    expected = torch.log_softmax(prototype.log_prob(point.loc.unsqueeze(1)), 1)[torch.arange(5), target]
    torch.testing.assert_close(log_expected_softmax(point, prototype, target, 4), expected, rtol=1e-4, atol=1e-3)


def test_both_halves_are_queries_and_a_lone_image_is_none():
    x, labels = _normals(7, 4), torch.tensor([0, 0, 1, 1, 2, 0, 0])
    assert halves(labels).tolist() == [False, True, False, True, False, False, True]
    objective = PrototypeLoss(samples=3, dim=4)
    variance = x.variance + 1.0
    seen = []
    for queries, support in ((~halves(labels), halves(labels)), (halves(labels), ~halves(labels))):
        classes, prototype = prototypes(x.loc[support], variance[support], labels[support])
        known = queries & torch.isin(labels, classes)
        query = IsotropicNormal(x.loc[known], variance[known])
        torch.manual_seed(0)
        seen.append(log_expected_softmax(query, prototype, torch.searchsorted(classes, labels[known]), 3))
    assert [len(part) for part in seen] == [3, 3]  # the lone image of class 2 is a prototype, never a query
    assert torch.isfinite(objective(x, labels))
    with pytest.raises(ValueError, match="two classes with two images"):
        objective(IsotropicNormal(x.loc[:3], x.variance[:3]), torch.tensor([0, 1, 2]))
