"""Boxes that are cut out and resized many at once, against one at a time by torch."""

import pytest
import torch
from bench.datasets import gpu_crops
from bench.datasets.gpu_crops import resized_boxes
from torch.nn.functional import interpolate

SIZES = [(90, 120), (300, 200), (31, 500), (224, 224)]
BOXES = [(3, 4, 80, 100), (0, 0, 300, 200), (5, 100, 20, 300), (100, 50, 124, 10)]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [16, 128])
@pytest.mark.parametrize("at_once", [1, 1 << 30])
def test_boxes_are_resized_as_by_torch(monkeypatch, interpolation, size, at_once):
    """Larger and smaller, at the edges of images, in parts and at once; noise is the worst that can be resized."""
    monkeypatch.setattr(gpu_crops, "AT_ONCE", at_once)
    rng = torch.Generator().manual_seed(0)
    images = [torch.randint(256, (3, h, w), generator=rng, dtype=torch.uint8) for h, w in SIZES]
    pixels = torch.cat([image.permute(1, 2, 0).reshape(-1, 3) for image in images])
    first = [sum(h * w for h, w in SIZES[:number]) for number in range(len(SIZES))]
    places = torch.tensor([(start, w, *box) for start, (_, w), box in zip(first, SIZES, BOXES)])
    found = resized_boxes(pixels, places, (300, 300), size, interpolation)
    assert (found.dtype, found.shape) == (torch.uint8, (4, 3, size, size))
    assert found.is_contiguous(memory_format=torch.channels_last)
    for image, (top, left, h, w), crop in zip(images, BOXES, found):
        box = image[None, :, top : top + h, left : left + w]
        expected = interpolate(box, [size, size], mode=interpolation, antialias=True)[0]
        difference = (crop.int() - expected.int()).abs()
        assert int(difference.max()) <= 2
        assert float((difference > 0).float().mean()) < 0.05
