"""The known channel: its probabilities, the posterior that follows from them, the same images everywhere."""

import itertools

import mpmath
import numpy as np
import pytest
import torch
from bench.datasets.ambiguous_digits import (
    CENTRE,
    CHANNEL,
    GALLERY_CHANNEL,
    REPEAT,
    AmbiguousDigits,
    Channel,
    bin_log_probabilities,
)
from sklearn.datasets import load_digits

from .pixels import golden_pixels, shown

SCANS = load_digits().data.astype(np.int64)
THREES = SCANS[load_digits().target == 3]


@pytest.fixture(scope="module")
def test_images():
    return AmbiguousDigits().test()


@pytest.mark.parametrize("sd", [0.1, 40.0, 1e4])
def test_a_value_has_the_probability_of_its_interval_and_the_ends_all_that_lies_beyond(sd):
    levels = [0.0, 15.9375, 127.5, 255.0]
    found = bin_log_probabilities(np.array(levels), sd)
    assert np.exp(found).sum(1) == pytest.approx(1, abs=1e-12)
    with mpmath.workdps(60):
        for (row, level), value in itertools.product(enumerate(levels), (0, 1, 128, 254, 255)):
            low = -mpmath.inf if value == 0 else (value - 0.5 - mpmath.mpf(level)) / sd
            high = mpmath.inf if value == 255 else (value + 0.5 - mpmath.mpf(level)) / sd
            # The difference of the tails that do not round to 1, whatever the digits.
            inside = mpmath.ncdf(-low) - mpmath.ncdf(-high) if low > 0 else mpmath.ncdf(high) - mpmath.ncdf(low)
            if inside > 0:  # else further out than 60 digits reach
                assert found[row, value] == pytest.approx(float(mpmath.log(inside)), rel=1e-10, abs=1e-12)
    assert np.isfinite(found).all()


def _seen(scan, top, left, view):
    """What a move and a view make of a scan, pixel by pixel."""
    moved = np.zeros((10, 10))
    moved[top : top + 8, left : left + 8] = scan.reshape(8, 8) * 255 / 16
    seen = np.zeros((10, 10))
    for y, x in itertools.product(range(10), range(10)):
        if view == "centre":
            seen[y, x] = moved[2 + int(y * CENTRE / 10), 2 + int(x * CENTRE / 10)]
        elif {"whole": True, "left": x < 7, "right": x >= 3, "top": y < 7, "bottom": y >= 3}[view]:
            seen[y, x] = moved[y, x]
    return seen.ravel()


def _exact_likelihood(channel, pixels, scan):
    """Probability of an image with 30 digits, one action after the other."""
    actions = list(itertools.product(range(3), range(3), channel.views, channel.noise_sds))
    total = mpmath.mpf(0)
    with mpmath.workdps(30):
        for top, left, view, sd in actions:
            product = mpmath.mpf(1)
            for level, value in zip(_seen(scan, top, left, view), pixels.tolist()):
                low = mpmath.ncdf((value - 0.5 - level) / sd) if value > 0 else 0
                high = mpmath.ncdf((value + 0.5 - level) / sd) if value < 255 else 1
                product *= high - low
            total += product
        return total / len(actions)


def test_the_likelihood_is_the_sum_over_all_that_the_channel_can_do():
    channel = Channel(views=("centre", "left"), noise_sds=(40.0, 80.0))
    pixels = channel.observe(SCANS[:1], ["a"])
    found = channel.log_likelihood(pixels, SCANS[:2])
    expected = [[float(mpmath.log(_exact_likelihood(channel, pixels[0], scan))) for scan in SCANS[:2]]]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_actions_are_moves_and_views_of_the_scan():
    scan = SCANS[7]
    assert CHANNEL.actions.shape == (9 * 10, 100)
    found = np.append(scan, 0)[CHANNEL.actions] * 255 / 16
    expected = [_seen(scan, top, left, view) for view in CHANNEL.views for top in range(3) for left in range(3)]
    np.testing.assert_array_equal(found, expected)


def test_what_is_observed_follows_the_likelihood():
    channel = Channel(views=("whole",), noise_sds=(60.0,))
    flat = np.full((5000, 64), 8)
    pixels = channel.observe(flat, [str(i) for i in range(len(flat))])
    # A pixel that is bright wherever the digit is moved: its distribution is that of one level.
    p = np.exp(bin_log_probabilities(np.array([127.5]), 60.0))[0]
    counts = np.bincount(pixels[:, 55], minlength=256)
    often = p > 1e-3
    z = (counts - len(flat) * p)[often] / np.sqrt(len(flat) * p * (1 - p))[often]
    assert np.abs(z).max() < 4.5
    # A corner is in the digit in one move of nine.
    dark = np.exp(bin_log_probabilities(np.array([0.0]), 60.0))[0]
    share = (pixels[:, 0] == 0).mean()
    expected = dark[0] * 8 / 9 + p[0] / 9
    assert share == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / len(flat)))


def _z_by_bin(probability, true, edges):
    """Deviation of the frequency from the mean probability in standard errors, by bin of the probability."""
    place = np.digitize(probability, edges)
    for each in np.unique(place):
        p, y = probability[place == each], true[place == each]
        if len(p) > 50:
            yield (y - p).sum() / np.sqrt((p * (1 - p)).sum() + 1e-3)


def test_among_simulated_images_of_equal_posterior_that_share_is_of_the_identity():
    pool, each = THREES[:3], 1500
    truth = np.repeat(np.arange(3), each)
    channel = Channel(CHANNEL.views, (60.0, 150.0))
    p = channel.posterior(channel.observe(pool[truth], [f"simulated {i}" for i in range(len(truth))]), pool)
    assert 0.5 < p.max(1).mean() < 0.95  # neither certain nor ignorant
    for c in range(3):
        z = list(_z_by_bin(p[:, c], truth == c, np.linspace(0, 1, 11)[1:-1]))
        assert len(z) >= 8
        assert np.abs(z).max() < 3.5


def test_without_noise_the_identity_is_certain_and_under_endless_noise_open():
    ids = [str(i) for i in range(20)]
    clear = Channel(("whole",), (1e-3,))
    p = clear.posterior(clear.observe(THREES[:20], ids), THREES[:20])
    np.testing.assert_array_equal(p, np.eye(20))
    blind = Channel(("whole",), (1e7,))
    p = blind.posterior(blind.observe(THREES[:20], ids), THREES[:20])
    np.testing.assert_allclose(p, 1 / 20, atol=1e-4)


def test_identities_with_the_same_scan_share_their_probability():
    p = CHANNEL.posterior(CHANNEL.observe(THREES[:1], ["a"]), THREES[[0, 0, 1]])
    assert p[0, 0] == p[0, 1]
    assert p.sum() == pytest.approx(1, abs=1e-12)


def _posterior_of(images, rows):
    """Posterior of some images of the test, from their pixels and the scans that the names of the classes say."""
    pixels = images.pixels[rows, 0, ::REPEAT, ::REPEAT].flatten(1).numpy()
    return CHANNEL.posterior(pixels, SCANS[[int(name) for name in images.class_names]])


def _check_calibration(p, y):
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
    largest, right = p.max(1), p.argmax(1) == y
    assert abs(right.mean() - largest.mean()) < 3 * np.sqrt((largest * (1 - largest)).sum()) / len(y)
    # No finer at the top: a bin without five expected errors has no normal band.
    assert max(map(abs, _z_by_bin(largest, right, [0.3, 0.5, 0.7, 0.9]))) < 3.5
    # The Brier score of a known posterior is 1 - sum p^2 on average.
    brier = ((p - np.eye(p.shape[1])[y]) ** 2).sum(1)
    excess = brier - (1 - (p**2).sum(1))
    assert abs(excess.mean()) < 3.5 * excess.std() / np.sqrt(len(y))


def test_the_posterior_of_queries_is_calibrated(test_images):
    some = test_images.queries[::8]
    _check_calibration(_posterior_of(test_images, some), test_images.labels[some].numpy())


@pytest.mark.slow  # three seconds
def test_the_test_has_the_posterior_of_every_query_and_none_of_the_gallery(test_images):
    p = test_images.posterior()
    assert p.shape == (len(test_images), test_images.num_classes)
    assert p[test_images.gallery].isnan().all()
    some = test_images.queries[::50]
    np.testing.assert_allclose(p[some].numpy(), _posterior_of(test_images, some), rtol=1e-9, atol=1e-300)
    _check_calibration(p[test_images.queries].numpy(), test_images.labels[test_images.queries].numpy())


def test_images_repeat_the_pixels_of_what_was_observed(test_images):
    small = test_images.pixels[:, 0, ::REPEAT, ::REPEAT]
    again = small.repeat_interleave(REPEAT, 1).repeat_interleave(REPEAT, 2)
    assert torch.equal(again, test_images.pixels[:, 0])
    rows = test_images.gallery[:5].tolist()
    scans = SCANS[[int(test_images.class_names[test_images.labels[i]]) for i in rows]]
    drawn = GALLERY_CHANNEL.observe(scans, [test_images.ids[i] for i in rows])
    assert torch.equal(small[test_images.gallery[:5]].flatten(1), torch.from_numpy(drawn))


def test_queries_and_gallery_are_images_of_all_test_identities(test_images):
    queries, gallery = test_images.labels[test_images.queries], test_images.labels[test_images.gallery]
    assert set(torch.bincount(queries).tolist()) == {4}
    assert set(torch.bincount(gallery).tolist()) == {4}
    assert len(set(test_images.queries.tolist()) & set(test_images.gallery.tolist())) == 0


@pytest.mark.parametrize("fold", [0, 3])
def test_no_scan_is_shared_between_parts(test_images, fold):
    split = AmbiguousDigits().train_val(fold)
    parts = [set(images.class_names) for images in (split.train, split.val, test_images)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 1000
    scans = {SCANS[int(name)].tobytes() for name in set.union(*parts)}
    assert len(scans) == 1000  # and no scan is twice among the identities


def test_images_are_the_same_on_every_platform(test_images):
    split = AmbiguousDigits().train_val()
    assert [shown(s) for s in (split.train, split.val, test_images)] == golden_pixels("ambiguous_digits")
    assert split.train.mean[0] == pytest.approx(float(split.train.pixels.double().mean()) / 255, abs=1e-4)
    assert split.train.std[0] == pytest.approx(float(split.train.pixels.double().std()) / 255, abs=1e-4)
