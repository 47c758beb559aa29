"""Crops, jitter, views and the pixel cache against torchvision and PIL, also resized many at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from bench.datasets import DataError, pixel_cache
from bench.datasets.decode import decode
from bench.datasets.omniglot import TurnedImages
from bench.datasets.photo_images import PhotoImages
from bench.datasets.pixel_cache import PixelCache
from bench.datasets.view import PhotoAugmentation, View, colour_jitter, crop_boxes, cropped_view, evaluation_view
from PIL import Image
from scipy.stats import ks_2samp
from torch.nn.functional import interpolate

STILL = PhotoAugmentation(area_low=1, ratio_low=1, ratio_high=1, flip=0, brightness=0, contrast=0, saturation=0)


@pytest.fixture
def files(tmp_path, make_photo):
    sizes = [(64, 48), (48, 64), (50, 50), (200, 60), (61, 190), (97, 101)]
    for i, size in enumerate(sizes):
        make_photo(tmp_path / f"{i}.png", seed=i, size=size)
    return [tmp_path / f"{i}.png" for i in range(len(sizes))]


def _images(files, **view):
    labels = torch.arange(len(files)) % 2
    return PhotoImages(
        files, labels, [p.name for p in files], ["a", "b"], view=View(**{"image_size": 32, "resize": 40, **view})
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [(500, 375), (100, 400)])
def test_boxes_are_distributed_as_torchvisions(size):
    from torchvision.transforms import RandomResizedCrop

    width, height = size
    torch.manual_seed(0)
    augmentation = PhotoAugmentation()
    n = 4000
    ours = crop_boxes(torch.full((n,), height), torch.full((n,), width), augmentation, torch.rand(n, 22).double())
    image = torch.zeros(3, height, width)
    theirs = torch.tensor([RandomResizedCrop.get_params(image, [0.16, 1.0], [0.75, 4 / 3]) for _ in range(n)])
    assert (ours[:, 0] >= 0).all()
    assert (ours[:, 0] + ours[:, 2] <= height).all()
    assert (ours[:, 1] + ours[:, 3] <= width).all()
    for column in range(4):
        assert ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    assert ks_2samp(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]).pvalue > 1e-3


def test_an_image_too_long_for_any_draw_gives_the_largest_centred_box():
    narrow = PhotoAugmentation(area_low=0.9)
    box = crop_boxes(torch.tensor([10, 1000]), torch.tensor([1000, 10]), narrow, torch.rand(2, 22).double())
    assert box.tolist() == [[0, 493, 10, 13], [493, 0, 13, 10]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_colour_jitter_is_torchvisions(order):
    from torchvision.transforms.v2 import functional as F

    torch.manual_seed(0)
    factors = [0.7, 1.25, 0.4]
    image = torch.rand(3, 9, 7)
    found = colour_jitter(image.clone(), factors, order)
    expected = image
    for kind in order:
        adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation)[kind]
        expected = adjust(expected, factors[kind])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(colour_jitter(image.clone(), [1.0, 1.0, 1.0], order), image)


def test_the_evaluation_view_is_pils_resize_and_centre_crop(files):
    view = View(image_size=32, resize=40)
    for path in files:
        image = Image.open(path).convert("RGB")
        w, h = image.size
        size = (int(40 * w / min(w, h)), int(40 * h / min(w, h)))
        resized = image.resize(size, Image.Resampling.BILINEAR)
        left, top = round((resized.size[0] - 32) / 2), round((resized.size[1] - 32) / 2)
        expected = np.asarray(resized.crop((left, top, left + 32, top + 32))).astype(int)
        found = evaluation_view(decode(path), view).permute(1, 2, 0).numpy().astype(int)
        assert np.abs(found - expected).max() <= 1  # of 255: fixed-point rounding differs


def test_antialiasing_off_is_plain_bilinear_interpolation(files):
    view = View(image_size=32, resize=32, antialias=False)
    image = decode(files[5])
    found = evaluation_view(image, view)
    plain = torch.nn.functional.interpolate(image[None].float(), (33, 32), mode="bilinear")[0]
    assert (found.float() - plain[:, :32]).abs().max() <= 1
    assert (found.int() - evaluation_view(image, View(image_size=32, resize=32)).int()).abs().max() > 5


def test_a_crop_is_the_centre_square_seen_as_a_whole_image(files):
    view = View(image_size=32, resize=40)
    for path in files:
        image = decode(path)
        k = round(0.6 * min(image.shape[1:]))
        top, left = round((image.shape[1] - k) / 2), round((image.shape[2] - k) / 2)
        square = image[:, top : top + k, left : left + k]
        torch.testing.assert_close(cropped_view(image, 0.6, view), evaluation_view(square, view))
        assert cropped_view(image, 1.0, view).shape == (3, 32, 32)


def test_the_cache_changes_nothing_that_originals_would_give(files):
    cached, fresh = _images(files), _images(files, cache=False)
    index = torch.tensor([3, 0, 5])
    torch.testing.assert_close(cached.evaluation(index), fresh.evaluation(index), rtol=0, atol=0)
    draws = [torch.Generator().manual_seed(4) for _ in range(2)]
    a = cached.training(index, PhotoAugmentation(), draws[0])
    b = fresh.training(index, PhotoAugmentation(), draws[1])
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert float(a.min()) >= 0
    assert float(a.max()) <= 1


@pytest.mark.parametrize("order", [0, 1, 2])
def test_batches_that_are_finished_on_a_gpu_are_those_of_the_cpu(files, order):
    images, index = _images(files), torch.tensor([3, 0, 5, 1])
    for augmentation, most in ((PhotoAugmentation(), 1e-6), (PhotoAugmentation(contrast=0, saturation=0), 0)):
        one, two = (torch.Generator().manual_seed(order) for _ in range(2))
        expected = images.training(index, augmentation, one)
        pixels, finish = images.for_gpu(index, augmentation, two)
        assert (pixels.dtype, pixels.shape) == (torch.uint8, expected.shape)
        assert pixels.is_contiguous(memory_format=torch.channels_last)
        assert float((finish(pixels) - expected).abs().max()) <= most
        assert torch.equal(one.get_state(), two.get_state())
    kept = pixels.clone()
    again, _ = images.for_gpu(index, augmentation, torch.Generator().manual_seed(order), pixels)
    assert again is pixels  # an earlier batch may be overwritten
    assert torch.equal(again, kept)
    assert images.for_gpu(index[:2], augmentation, torch.Generator(), pixels)[0] is not pixels


def test_a_gpu_with_room_for_all_decoded_images_cuts_the_crops_out_itself(files, monkeypatch):
    images, index = _images(files), torch.tensor([3, 0, 5, 1])
    part = images.select(torch.tensor([5, 3, 1, 0]))
    cache, augmentation = images._cache("training"), PhotoAugmentation()
    size = cache._pixels.numel()
    moved, to = [], torch.Tensor.to

    def keep(self, *given, **named):
        if given != ("cuda",):
            return to(self, *given, **named)
        moved.append(self)
        return self

    monkeypatch.setattr(torch.Tensor, "to", keep)
    for mine, rows in ((images, index), (part, torch.tensor([1, 3, 0, 2]))):
        one, two = (torch.Generator().manual_seed(1) for _ in range(2))
        expected = images.training(index, augmentation, one)
        boxes, finish = mine.for_gpu(rows, augmentation, two, None, size)
        assert (boxes.dtype, boxes.shape) == (torch.int64, (4, 6))
        difference = (finish(boxes) - expected).abs()
        assert float(difference.max()) <= 4 / 255  # two levels, which contrast may enlarge
        assert float(difference.mean()) < 1e-3
        assert torch.equal(one.get_state(), two.get_state())
    assert len(moved) == 1  # all pixels, once: a subset shares them
    assert images.for_gpu(index, augmentation, torch.Generator(), None, size - 1)[0].dtype == torch.uint8


def test_pixels_for_which_the_memory_of_a_gpu_has_run_out_stay_on_the_cpu(files, monkeypatch):
    cache, tried, to = _images(files)._cache("training"), [], torch.Tensor.to

    def full(self, *given, **named):
        if given == ("cuda",):
            tried.append(given)
            raise torch.OutOfMemoryError
        return to(self, *given, **named)

    monkeypatch.setattr(torch.Tensor, "to", full)
    assert cache.on_gpu(1 << 40) is None
    assert cache.on_gpu(1 << 40) is None
    assert len(tried) == 1


def test_images_of_a_subclass_are_made_by_it_for_a_gpu(files):
    images = TurnedImages.of(_images(files))
    one, two = (torch.Generator().manual_seed(1) for _ in range(2))
    expected = images.training(torch.arange(12), PhotoAugmentation(), one)
    batch, finish = images.for_gpu(torch.arange(12), PhotoAugmentation(), two)
    assert torch.equal(finish(batch), expected)


def test_large_images_are_reduced_once_to_the_cache_side(files):
    images = _images(files, cache_side=40)
    images.prepare("training")
    assert min(images._image(3, "training").shape[1:]) == 40
    assert tuple(images._image(3, "training").shape[1:]) == (40, 133)
    assert tuple(_images(files[:3], cache_side=100)._image(0, "training").shape[1:]) == (48, 64)


def test_threads_and_batching_change_nothing(files):
    one, many = _images(files), _images(files)
    many.threads = 4
    index = torch.arange(6)
    torch.testing.assert_close(one.evaluation(index), many.evaluation(index), rtol=0, atol=0)
    parts = torch.cat([one.evaluation(i) for i in index.split(4)])
    torch.testing.assert_close(one.evaluation(index), parts, rtol=0, atol=0)
    a, b = (x.training(index, PhotoAugmentation(), torch.Generator().manual_seed(1)) for x in (one, many))
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    # An earlier batch may be overwritten, but only by one of its shape.
    c = one.training(index, PhotoAugmentation(), torch.Generator().manual_seed(1), torch.rand_like(a))
    torch.testing.assert_close(a, c, rtol=0, atol=0)
    assert one.training(index, PhotoAugmentation(), torch.Generator(), c) is c
    held = torch.rand(2, 3, 32, 32)
    kept = held.clone()
    one.training(index, PhotoAugmentation(), torch.Generator(), held)
    assert torch.equal(held, kept)


def test_without_any_augmentation_training_sees_the_whole_square_image(files):
    from torchvision.transforms.v2 import functional as F

    found = _images(files).training(torch.tensor([2]), STILL, torch.Generator().manual_seed(0))[0]
    expected = F.resize(decode(files[2]), [32, 32], antialias=True).float() / 255
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_an_edited_file_is_decoded_anew(files, make_photo):
    before = _images(files).evaluation(torch.tensor([0]))
    make_photo(files[0], seed=99, size=(64, 48))
    import os

    os.utime(files[0], ns=(1, 1))
    assert not torch.equal(_images(files).evaluation(torch.tensor([0])), before)


def test_threads_that_need_a_cache_decode_once(files, monkeypatch, tmp_path):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "fresh"))
    images, built = _images(files), []
    build = PixelCache.build
    monkeypatch.setattr(PixelCache, "build", lambda path, decoded: built.append(path) or build(path, decoded))
    together = threading.Barrier(4)

    def view(place):
        together.wait()
        return images.training(torch.tensor([place]), PhotoAugmentation(), torch.Generator().manual_seed(0))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(view, range(4)))
    assert len(built) == 1


def test_two_processes_may_write_the_same_cache(monkeypatch, tmp_path):
    """Each writes files of its own: when the second one has ended, those of the first are not missing."""
    path, pixels, savez, seen = tmp_path / "training-1", [torch.zeros(3, 2, 2, dtype=torch.uint8)], np.savez, []

    def savez_while_another_writes(*args, **arrays):
        savez(*args, **arrays)
        if not seen:
            seen.append(path)
            PixelCache.build(path, pixels)

    monkeypatch.setattr(np, "savez", savez_while_another_writes)
    PixelCache.build(path, pixels)
    assert PixelCache.is_whole(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["training-1.index.npz", "training-1.pixels"]


def test_a_cache_that_cannot_be_written_says_what_to_do(files, monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("a file, not a folder")
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "taken"))
    with pytest.raises(DataError, match="set BENCH_CACHE"):
        _images(files).prepare("evaluation")


@pytest.mark.parametrize("wrong", [{"resize": 16}, {"fit": "stretch"}])
def test_a_view_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=r"resize|fit"):
        View(**{"image_size": 32, "resize": 40, **wrong})


SIZES = [(90, 120), (300, 200), (31, 500), (224, 224)]
BOXES = [(3, 4, 80, 100), (0, 0, 300, 200), (5, 100, 20, 300), (100, 50, 124, 10)]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [16, 128])
@pytest.mark.parametrize("at_once", [1, 1 << 30])
def test_boxes_are_resized_as_by_torch(monkeypatch, interpolation, size, at_once):
    """Larger and smaller, at the edges of images, in parts and at once; noise is the worst that can be resized."""
    monkeypatch.setattr(pixel_cache, "AT_ONCE", at_once)
    rng = torch.Generator().manual_seed(0)
    images = [torch.randint(256, (3, h, w), generator=rng, dtype=torch.uint8) for h, w in SIZES]
    pixels = torch.cat([image.permute(1, 2, 0).reshape(-1, 3) for image in images])
    first = [sum(h * w for h, w in SIZES[:number]) for number in range(len(SIZES))]
    places = torch.tensor([(start, w, *box) for start, (_, w), box in zip(first, SIZES, BOXES)])
    found = pixel_cache.resized_boxes(pixels, places, (300, 300), size, interpolation)
    assert (found.dtype, found.shape) == (torch.uint8, (4, 3, size, size))
    assert found.is_contiguous(memory_format=torch.channels_last)
    for image, (top, left, h, w), crop in zip(images, BOXES, found):
        box = image[None, :, top : top + h, left : left + w]
        expected = interpolate(box, [size, size], mode=interpolation, antialias=True)[0]
        difference = (crop.int() - expected.int()).abs()
        assert int(difference.max()) <= 2
        assert float((difference > 0).float().mean()) < 0.05
