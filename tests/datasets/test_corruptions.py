"""Corruptions beyond the crop: graded, drawn per identity, and the clean image at severity 0."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from bench.conformance import CORRUPTION_CHECKS
from bench.datasets import ArrayImages, View
from bench.datasets.corruptions import _base
from bench.datasets.corruptions._base import check_range, corrupt, corrupted, draw_quality, manifest_sha256
from bench.datasets.corruptions.blur import BLUR_SIGMA
from bench.datasets.corruptions.noise import NOISE_SD
from bench.datasets.corruptions.registry import CORRUPTIONS
from bench.datasets.feature_images import FeatureImages
from bench.datasets.photo_images import PhotoImages
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.stats import kstest, norm

KINDS = [name for name, kind in CORRUPTIONS.items() if kind.apply is not None and kind.of == "images"]
OF_FEATURES = [name for name, kind in CORRUPTIONS.items() if kind.of == "features"]
NOISE = CORRUPTIONS["noise"]


def _image(channels=3, height=48, width=40, seed=0):
    """Smooth blobs with some texture, as photographs have them; no pixel near black or white."""
    rng = np.random.default_rng(seed)
    smooth = gaussian_filter(rng.normal(size=(channels, height, width)), (0, 4, 4))
    texture = gaussian_filter(rng.normal(size=(channels, height, width)), (0, 1, 1))
    mixed = smooth / np.abs(smooth).max() + 0.5 * texture / np.abs(texture).max()
    return torch.from_numpy(np.rint(127 + 75 * mixed)).to(torch.uint8)


def _set(count=6, channels=1, ids=None):
    pixels = torch.stack([_image(channels, 18, 50, seed) for seed in range(count)])
    ids = ids or [f"image {i}" for i in range(count)]
    labels = torch.arange(count) // 2
    names = [str(c) for c in range(count // 2)]
    return ArrayImages(pixels, labels, ids, names, mean=[0.4] * channels, std=[0.2] * channels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", CORRUPTION_CHECKS)
def test_our_corruptions_conform(check, kind):
    CORRUPTION_CHECKS[check](CORRUPTIONS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_image_is_corrupted_the_same_way_whatever_stands_beside_it(kind):
    images = _set()
    quality = torch.tensor([0.3, 0.9, 0.5, 0.1, 0.7, 1.0], dtype=torch.float64)
    rows = torch.arange(len(images))
    whole = corrupted(images, kind, rows, quality, 3)
    assert whole.dtype == torch.float32
    alone = torch.cat([corrupted(images, kind, rows[i : i + 1], quality[i : i + 1], 3) for i in range(len(images))])
    assert torch.equal(whole, alone)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    assert torch.equal(corrupted(images.select(order), kind, rows, quality[order], 3), whole[order])
    # Clean where nothing is lost, bit for bit.
    assert torch.equal(whole[5], images.evaluation(rows)[5])
    assert not torch.equal(whole[4], images.evaluation(rows)[4])


@pytest.mark.parametrize(("room", "times"), [(10**6, 6), (3 * 18 * 50, 9), (0, 12)])
def test_corrupted_images_are_kept_as_far_as_there_is_room(monkeypatch, room, times):
    """A second pass is equal to the last bit, and what a caller does to an image is not kept."""
    calls = []

    def apply(image, severity, draw):
        calls.append(severity)
        return NOISE.apply(image, severity, draw)

    monkeypatch.setitem(CORRUPTIONS.added, "noise", (replace(NOISE, apply=apply), "here"))
    monkeypatch.setattr(_base, "_KEPT", _base._Kept(room))
    images, index, quality = _set(), torch.arange(6), torch.linspace(0.1, 0.6, 6)
    first = corrupted(images, "noise", index, quality, 7)
    expected = first.clone()
    first.zero_()
    assert torch.equal(corrupted(images, "noise", index, quality, 7), expected)
    assert len(calls) == times


@pytest.mark.parametrize("change", ["pixels", "severity", "seed", "identity", "corruption", "none"])
def test_a_kept_image_is_of_the_same_pixels_severity_seed_identity_and_corruption(monkeypatch, change):
    monkeypatch.setattr(_base, "_KEPT", _base._Kept(10**6))
    images, index, quality, seed = _set(), torch.arange(6), torch.full((6,), 0.5), 7
    corrupted(images, "noise", index, quality, seed)
    if change == "pixels":
        images.pixels[0, 0, 0, 0] += 1
    elif change == "severity":
        quality = quality / 2
    elif change == "seed":
        seed = 8
    elif change == "identity":
        images.ids = tuple(f"other {i}" for i in range(6))
    elif change == "corruption":
        monkeypatch.setitem(CORRUPTIONS.added, "noise", (CORRUPTIONS["blur"], "here"))
    direct = [
        corrupt("noise", pixels, 1 - float(of), identity, seed)
        for pixels, of, identity in zip(images.pixels, quality, images.ids)
    ]
    assert torch.equal(corrupted(images, "noise", index, quality, seed), images.normalised(torch.stack(direct)))


@pytest.mark.parametrize("kind", ["noise", "occlusion"])
def test_draws_differ_between_identities_and_seeds(kind):
    image = _image()
    made = [corrupt(kind, image, 0.4, name, seed) for name, seed in (("a", 0), ("b", 0), ("a", 1))]
    assert not torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_the_crop_goes_through_the_same_door():
    images, rows = _set(), torch.arange(6)
    side = torch.linspace(0.5, 1, 6, dtype=torch.float64)
    assert torch.equal(corrupted(images, "crop", rows, side, 0), images.cropped(rows, side))


def test_blur_is_scipys_gaussian():
    image, severity = _image(1, 64, 64), 0.7
    sigma = severity * BLUR_SIGMA * 64
    # scipy calls this border "mirror"; the same window, three standard deviations.
    expected = gaussian_filter(image[0].double().numpy(), sigma, mode="mirror", radius=math.ceil(3 * sigma))
    made = corrupt("blur", image, severity, "x", 0)[0].double().numpy()
    assert np.abs(made - expected).max() <= 0.5 + 1e-3


def test_jpeg_is_pils():
    image, severity = _image(3, 64, 64), 0.6
    buffer = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, "jpeg", quality=95 - round(90 * severity))
    expected = np.asarray(Image.open(buffer)).astype(int)
    made = corrupt("jpeg", image, severity, "x", 0).permute(1, 2, 0).numpy().astype(int)
    assert np.abs(made - expected).max() == 0
    assert corrupt("jpeg", _image(2, 18, 50), 0.5, "x", 0).shape == (2, 18, 50)


def test_noise_is_normal_with_the_stated_spread():
    grey = torch.full((3, 200, 200), 128, dtype=torch.uint8)
    difference = (corrupt("noise", grey, 0.2, "x", 0).double() - 128) / 255
    count = difference.numel()
    assert float(difference.mean()) == pytest.approx(0, abs=4 * 0.2 * NOISE_SD / math.sqrt(count))
    assert float(difference.std()) == pytest.approx(0.2 * NOISE_SD, rel=4 / math.sqrt(2 * count))
    assert float((difference.abs() < 0.2 * NOISE_SD).double().mean()) == pytest.approx(0.6827, abs=0.01)


@pytest.mark.slow
@given(st.integers(2, 60), st.integers(2, 60), st.floats(0.001, 1), st.floats(0.001, 1), st.text(max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_patch_covers_its_share_and_a_larger_one_covers_a_smaller(height, width, one, two, name):
    # Black and white halves: their mean is in no pixel, so what is covered can be counted.
    image = torch.zeros(1, height, width, dtype=torch.uint8)
    image[:, :, : width // 2] = 255
    less, more = sorted((one, two))
    covered = [(corrupt("occlusion", image, s, name, 0) != image)[0] for s in (less, more)]
    for mask, severity in zip(covered, (less, more)):
        sides = [round(math.sqrt(severity) * side) for side in (height, width)]
        assert int(mask.sum()) == sides[0] * sides[1]
    assert bool((covered[1] | ~covered[0]).all())


def test_photographs_are_corrupted_as_a_network_sees_them(tmp_path, make_photo):
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    for seed, path in enumerate(paths):
        make_photo(path, seed, size=(60, 50))
    labels, names = torch.tensor([0, 0, 1, 1]), ["a", "b"]
    made = {}
    for threads in (1, 2):
        view = View(image_size=32, resize=36, cache=threads == 1)
        images = PhotoImages(paths, labels, [p.name for p in paths], names, view=view, threads=threads)
        rows, quality = torch.arange(4), torch.tensor([1.0, 0.6, 0.3, 0.0], dtype=torch.float64)
        clean = images.evaluation(rows)
        for kind in KINDS:
            found = corrupted(images, kind, rows, quality, 1)
            assert found.shape == (4, 3, 32, 32)
            assert torch.equal(found[0], clean[0])
            assert float((found[1] - clean[1]).abs().mean()) > 0
            assert torch.equal(made.setdefault(kind, found), found)


def test_severities_are_drawn_evenly_and_per_identity():
    ids = [f"ndigit/test/{i:03d}/{j}" for i in range(500) for j in range(8)]
    sides = draw_quality("crop", ids, 0, 0.0, 0.5)
    assert sides.dtype == torch.float64
    assert sides.min() >= 0.5
    assert sides.max() < 1
    assert kstest(sides.numpy(), "uniform", (0.5, 0.5)).pvalue > 1e-3
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0)).tolist()[:1000]
    assert torch.equal(draw_quality("crop", [ids[i] for i in order], 0, 0.0, 0.5), sides[order])
    assert abs(torch.corrcoef(torch.stack([sides, draw_quality("crop", ids, 1, 0.0, 0.5)]))[0, 1]) < 0.06
    wide = draw_quality("crop", ids, 0, 0.0, 0.75)
    torch.testing.assert_close((wide - 0.25) / 0.75, (sides - 0.5) / 0.5)
    of_blur = draw_quality("blur", ids, 0, 0.2, 0.6)  # from 0.4 to 0.8
    assert kstest(of_blur.numpy(), "uniform", (0.4, 0.4)).pvalue > 1e-3


def test_sides_of_crops_do_not_change_between_versions():
    expected = [0.5532957645194105, 0.7797209997558165]
    assert draw_quality("crop", ["ndigit/test/557/0", "glyphs/U+0041/DejaVuSans"], 0, 0.0, 0.5).tolist() == expected
    assert draw_quality("crop", [], 0, 0.0, 0.5).shape == (0,)


def test_a_manifest_does_not_depend_on_the_order_and_knows_every_severity():
    ids, quality = ("b", "a", "c"), torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64)
    order = torch.tensor([2, 0, 1])
    one = manifest_sha256(ids, quality, 3)
    assert manifest_sha256([ids[i] for i in order], quality[order], 3) == one
    others = {manifest_sha256(ids, quality.flip(0), 3), manifest_sha256(ids, quality, 4)}
    others |= {manifest_sha256(("b", "a", "d"), quality, 3)}
    assert len(others | {one}) == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: corrupt("crop", _image(), 0.5, "x", 0), "no corruption of pixels"),
        (lambda: corrupt("fog", _image(), 0.5, "x", 0), "no corruption of pixels"),
        (lambda: corrupt("blur", _image().float(), 0.5, "x", 0), "uint8"),
        (lambda: corrupt("blur", _image(), 1.5, "x", 0), "severity"),
        (lambda: check_range("blur", 0.6, 0.5), "the smaller first"),
        (lambda: check_range("blur", -0.1, 0.5), "from 0 to 1"),
        (lambda: check_range("crop", 0.5, 1.0), "empty"),
        (lambda: draw_quality("blur", ["a"], 0, math.nan, 0.5), "from 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def _given(rows=400, width=50):
    features = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(rows) // 4
    names = [str(number) for number in range(rows // 4)]
    return FeatureImages({"features": features}, torch.arange(rows), labels, [f"{i}" for i in range(rows)], names, "")


def _of_features(kind, severity, images, seed=3):
    rows = torch.arange(len(images))
    return corrupted(images, kind, rows, torch.full((len(images),), 1 - severity, dtype=torch.float64), seed)


@pytest.mark.parametrize("kind", OF_FEATURES)
def test_corrupted_features_depend_on_identity_and_seed_alone(kind):
    images = _given()
    whole = _of_features(kind, 0.6, images)
    assert whole.dtype == torch.float32
    assert torch.equal(_of_features(kind, 0.6, images.select(torch.tensor([7, 3]))), whole[[7, 3]])
    assert torch.equal(_of_features(kind, 0.0, images), images.arrays["features"])
    assert not torch.equal(whole, images.arrays["features"])
    assert torch.equal(_of_features(kind, 0.6, images, seed=4), whole) == (kind == "feature_quantisation")


def test_corruptions_of_features_are_what_they_say():
    images = _given()
    clean = images.arrays["features"].double()
    dropped = _of_features("feature_dropout", 0.3, images).double()
    assert torch.equal(dropped[dropped != 0], clean[dropped != 0])
    share = (dropped == 0).double().mean()
    assert abs(float(share) - 0.3) < 4 * (0.3 * 0.7 / clean.numel()) ** 0.5
    assert ((_of_features("feature_dropout", 0.7, images) == 0) >= (dropped == 0)).all()
    noise = (_of_features("feature_noise", 0.5, images).double() - clean) / clean.square().mean(1, keepdim=True).sqrt()
    assert kstest(noise.flatten().numpy(), norm(0, 0.5).cdf).pvalue > 0.01
    for severity, levels in ((0.5, 16), (0.75, 4), (1.0, 2)):
        found = _of_features("feature_quantisation", severity, images)
        step = (clean.amax(1) - clean.amin(1)) / (levels - 1)
        assert ((found.double() - clean).abs().amax(1) <= step / 2 + 1e-6).all()
        assert max(len(row.unique()) for row in found) <= levels
