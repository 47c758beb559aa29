import math

import numpy as np
import pytest
import torch
from bench.datasets.augmentation import Augmentation, augment, centre_crop
from scipy.stats import kstest

STILL = Augmentation(crop_probability=0.0, shift=0.0, rotation=0.0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def coordinates(count, height=18, width=50):
    """Images whose two channels are the x and y of each pixel centre, in pixels from the image's centre."""
    x = torch.arange(width, dtype=torch.float64) + 0.5 - width / 2
    y = torch.arange(height, dtype=torch.float64) + 0.5 - height / 2
    return torch.stack([x.expand(height, width), y[:, None].expand(height, width)]).repeat(count, 1, 1, 1)


def sampled(image, rows, columns):
    """Bilinear interpolation at pixel positions (0 = first pixel centre), written out."""
    top, left = math.floor(rows), math.floor(columns)
    value = 0.0
    for r, c in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        if 0 <= r < image.shape[0] and 0 <= c < image.shape[1]:
            value += (1 - abs(rows - r)) * (1 - abs(columns - c)) * float(image[r, c])
    return value


@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.77, 0.999, 1.0])
@pytest.mark.parametrize("size", [(18, 50), (10, 26), (32, 32), (7, 5)])
def test_centre_crop_against_manual_interpolation(size, fraction):
    height, width = size
    image = torch.rand(1, 1, height, width, generator=generator())
    cropped = centre_crop(image, torch.tensor([fraction]))[0, 0]
    rows = [height / 2 + fraction * (i + 0.5 - height / 2) - 0.5 for i in range(height)]
    columns = [width / 2 + fraction * (j + 0.5 - width / 2) - 0.5 for j in range(width)]
    expected = torch.tensor([[sampled(image[0, 0], r, c) for c in columns] for r in rows])
    torch.testing.assert_close(cropped, expected, atol=1e-5, rtol=0)


def test_whole_crop_is_the_image_bit_for_bit():
    images = torch.rand(4, 3, 18, 50, generator=generator())
    cropped = centre_crop(images, torch.tensor([1.0, 0.5, 1.0, 0.9]))
    assert torch.equal(cropped[[0, 2]], images[[0, 2]])
    assert not torch.isclose(cropped[1], images[1]).all()


def test_a_crop_does_not_depend_on_the_batch():
    images = torch.rand(37, 1, 18, 50, generator=generator())
    fraction = torch.linspace(0.5, 1, 37, dtype=torch.float64)
    together = centre_crop(images, fraction)
    alone = torch.cat([centre_crop(images[i : i + 1], fraction[i : i + 1]) for i in range(37)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("bad", [[0.0, 1.0], [1.1, 1.0], [float("nan"), 1.0], [0.5]])
def test_bad_fractions(bad):
    with pytest.raises(ValueError, match="fractions"):
        centre_crop(torch.zeros(2, 1, 4, 4), torch.tensor(bad))


def test_generator_decides_everything():
    images = torch.rand(16, 1, 18, 50, generator=generator())
    torch.manual_seed(1)
    first = augment(images, Augmentation(), generator(3))
    torch.manual_seed(2)
    assert torch.equal(first, augment(images, Augmentation(), generator(3)))
    assert not torch.equal(first, augment(images, Augmentation(), generator(4)))
    assert first.shape == images.shape
    assert first.dtype == images.dtype


def test_settings_do_not_change_how_many_numbers_are_drawn():
    states = []
    for augmentation in (Augmentation(), STILL):
        source = generator(5)
        augment(torch.zeros(3, 1, 4, 4), augmentation, source)
        states.append(source.get_state())
    assert torch.equal(*states)


def test_nothing_to_do_gives_the_image_bit_for_bit():
    images = torch.rand(8, 1, 18, 50, generator=generator())
    assert torch.equal(augment(images, STILL, generator()), images)


def test_share_of_cropped_images():
    images = torch.rand(2000, 1, 6, 8, generator=generator())
    changed = (augment(images, Augmentation(shift=0, rotation=0), generator()) != images).any((1, 2, 3))
    assert changed.double().mean() == pytest.approx(0.5, abs=0.05)


def test_crops_are_windows_inside_the_image_of_uniform_side_and_place():
    out = augment(coordinates(1500), Augmentation(crop_probability=1.0, shift=0, rotation=0), generator())
    inner = out[:, :, 3:-3, 3:-3]
    horizontal, vertical = inner[:, 0, 0].diff().mean(1), inner[:, 1, :, 0].diff().mean(1)
    torch.testing.assert_close(horizontal, vertical)
    assert kstest(horizontal.numpy(), "uniform", (0.5, 0.5)).pvalue > 1e-3
    for channel, size in ((0, 50), (1, 18)):
        centre, room = inner[:, channel].mean((1, 2)), (1 - horizontal) * size / 2
        assert (centre.abs() <= room + 1e-9).all()
        assert kstest((centre / room).numpy(), "uniform", (-1, 2)).pvalue > 1e-3


def test_rotation_keeps_shapes_in_images_that_are_not_square():
    out = augment(coordinates(300), Augmentation(crop_probability=0, shift=0, rotation=5), generator())
    inner = out[:, :, 6:-6, 6:-6]
    across, down = inner[..., 1:].sub(inner[..., :-1]).mean((2, 3)), inner.diff(dim=2).mean((2, 3))
    angle = torch.atan2(across[:, 1], across[:, 0])
    torch.testing.assert_close(across, torch.stack([angle.cos(), angle.sin()], 1))
    torch.testing.assert_close(down, torch.stack([-angle.sin(), angle.cos()], 1))
    torch.testing.assert_close(inner.mean((2, 3)), torch.zeros(300, 2, dtype=torch.float64), atol=1e-9, rtol=0)
    assert kstest(np.degrees(angle.numpy()), "uniform", (-5, 10)).pvalue > 1e-3


def test_shift_is_a_share_of_each_side_and_brings_in_background():
    out = augment(coordinates(1000), Augmentation(crop_probability=0, shift=0.1, rotation=0), generator())
    moved = -out[:, :, 4:-4, 10:-10].mean((2, 3))
    for channel, size in ((0, 50), (1, 18)):
        assert kstest((moved[:, channel] / size).numpy(), "uniform", (-0.1, 0.2)).pvalue > 1e-3
    filled = augment(torch.ones(50, 1, 18, 50), Augmentation(0, shift=0.5, rotation=0), generator())
    assert (filled == 0).any()
    assert filled.max() <= 1 + 1e-6


BAD = [{"crop_probability": 1.1}, {"crop_low": 0.0}, {"crop_low": 0.8, "crop_high": 0.7}, {"crop_high": 1.2}]
BAD += [{"shift": -0.1}, {"rotation": math.nan}]


@pytest.mark.parametrize("bad", BAD)
def test_bad_settings(bad):
    with pytest.raises(ValueError, match="must"):
        Augmentation(**bad)
