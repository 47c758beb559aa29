import dataclasses
import gc
from functools import lru_cache
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch
from bench.datasets import ArrayImages, TrainVal
from bench.datasets.glyphs import FONTS, Glyphs
from bench.datasets.ndigit import NDigit, NDigitQuick, NDigitSmoke, compose, source_digits
from sklearn.datasets import load_digits

from .pixels import golden_pixels, shown

NUMBERS = [NDigit, NDigitQuick, NDigitSmoke]
ALL = [*NUMBERS, Glyphs]
CODE = (type, FunctionType, ModuleType)


@lru_cache
def parts(cls, fold=0, folds=4):
    """Training, validation and test images."""
    both = cls().train_val(fold, folds)
    return both.train, both.val, cls().test()


def reachable(thing, depth=9):
    """Every object that attributes and containers lead to from here, code apart."""
    found, layer = {id(thing): thing}, [thing]
    for _ in range(depth):
        layer = [item for item in gc.get_referents(*layer) if not isinstance(item, CODE) and id(item) not in found]
        found.update((id(item), item) for item in layer)
    return list(found.values())


@pytest.mark.parametrize("cls", NUMBERS)
def test_sizes_and_pixels_have_not_changed(cls):
    sets = parts(cls)
    assert [shown(s) for s in sets] == golden_pixels(cls.name)
    assert sum(map(len, sets)) == cls.classes * cls.images_per_class
    for s in sets:
        assert s.pixels.shape[1:] == (cls.input_channels, *cls.image_size)
        assert set(s.labels.bincount().tolist()) == {cls.images_per_class}


@pytest.mark.parametrize("cls", NUMBERS)
@pytest.mark.parametrize("fold", [0, 2])
def test_no_handwriting_is_shared_between_parts(cls, fold):
    train, val, test = (set(source_digits(s.ids).ravel().tolist()) for s in parts(cls, fold))
    assert not train & val
    assert not train & test
    assert not val & test


def test_handwriting_shows_the_number_and_is_divided_as_documented():
    target = load_digits().target
    used = []
    for s in parts(NDigit):
        sources = source_digits(s.ids)
        assert sources.shape == (len(s), 3)
        shown = ["".join(map(str, row)) for row in target[sources]]
        assert shown == [s.class_names[c] for c in s.labels]
        assert [i.split("/")[2] for i in s.ids] == shown
        used.append(np.unique(sources))
    # 4500 to 6000 draws leave next to none of a pool unused.
    for rows, share in zip(used, (0.375, 0.125, 0.5)):
        assert len(rows) / 1797 == pytest.approx(share, abs=0.012)
        spread = np.bincount(target[rows], minlength=10) / np.bincount(target)
        assert np.abs(spread - share).max() < 0.05


def test_an_image_depends_on_its_identity_alone():
    test = parts(NDigit)[2]
    chosen = [1999, 3, 700]
    again = compose([test.ids[i] for i in chosen], upsample=True)
    assert np.array_equal(again, test.pixels[chosen, 0].numpy())
    assert not np.array_equal(
        again, compose(["ndigit/val/" + test.ids[i].split("/", 2)[2] for i in chosen], upsample=True)
    )
    assert compose([], upsample=True).shape == (0, 18, 50)
    assert source_digits([]).shape == (0, 3)


def test_a_class_keeps_its_images_over_the_folds_in_which_it_trains():
    first, second = parts(NDigit, 1)[0], parts(NDigit, 2)[0]
    rows = [first.ids.index(i) for i in second.ids if i in set(first.ids)]
    assert len(rows) > 500
    where = [second.ids.index(first.ids[r]) for r in rows]
    assert torch.equal(first.pixels[rows], second.pixels[where])


@pytest.mark.parametrize(("cls", "upsample"), [(NDigit, True), (NDigitSmoke, False)])
def test_images_are_their_digits_moved_by_up_to_a_pixel_under_noise(cls, upsample):
    digits = load_digits().images * 255 / 16
    if upsample:
        scaled = torch.nn.functional.interpolate(
            torch.from_numpy(digits)[:, None], scale_factor=2, mode="bilinear", align_corners=False
        )
        digits = scaled[:, 0].numpy()
    cell = digits.shape[1]
    test = parts(cls)[2]
    pixels = test.pixels[:300, 0].numpy().astype(float)
    residuals, moves = [], []
    for image, sources in zip(pixels, source_digits(test.ids[:300])):
        # The middle digit, away from what overlaps it; the offset that explains the image best.
        errors = {}
        for dy in range(3):
            for dx in range(3):
                window = image[dy + 2 : dy + cell - 2, cell + dx + 2 : 2 * cell + dx - 2]
                clean = digits[sources[1]][2:-2, 2:-2]
                errors[dy, dx] = (window - clean)[(clean > 100) & (clean < 155)]
        best = min(errors, key=lambda at: np.abs(errors[at]).mean() if errors[at].size else np.inf)
        residuals.append(errors[best])
        moves.append(best)
    if upsample:
        assert np.concatenate(residuals).std() == pytest.approx(40, rel=0.08)
    assert {m for move in moves for m in move} == {0, 1, 2}


@pytest.mark.parametrize("cls", ALL)
def test_normalised_images_have_mean_0_and_deviation_1(cls):
    train, val, test = parts(cls)
    for s, tolerance in ((train, 1e-3), (val, 0.05), (test, 0.05)):
        images = s.evaluation(torch.arange(len(s))).double()
        assert images.mean() == pytest.approx(0, abs=tolerance)
        assert images.std() == pytest.approx(1, abs=tolerance)


def test_glyph_counts():
    sets = parts(Glyphs)
    assert [s.num_classes for s in sets] == [375, 125, 500]
    assert 5500 < sum(map(len, sets)) < 8000
    for s in sets:
        counts = s.labels.bincount()
        assert counts.min() == 2
        assert 11 <= counts.max() <= 12
        assert len(counts.unique()) >= 9
        assert s.pixels.shape[1:] == (1, *Glyphs.image_size)
        for i, c in zip(s.ids, s.labels):
            _, code, font = i.split("/")
            assert code == s.class_names[c]
            assert font in FONTS


def test_glyphs_are_distinct_and_fill_the_image():
    pixels = torch.cat([s.pixels for s in parts(Glyphs)])[:, 0]
    assert len({image.numpy().tobytes() for image in pixels}) == len(pixels)
    ink = pixels > 0
    rows, columns = ink.any(2), ink.any(1)

    def extents(lines):
        first = lines.int().argmax(1)
        last = 31 - lines.flip(1).int().argmax(1)
        return first, last, last - first + 1

    top, bottom, height = extents(rows)
    left, right, width = extents(columns)
    assert torch.maximum(height, width).min() >= 31
    assert ((top - (31 - bottom)).abs() <= 2).all()
    assert ((left - (31 - right)).abs() <= 2).all()


def test_glyphs_are_the_same_again():
    assert Glyphs().test().manifest_sha256() == parts(Glyphs)[2].manifest_sha256()
    assert "U+0391" not in {n for s in parts(Glyphs) for n in s.class_names}, "Greek Alpha looks like Latin A"


@pytest.mark.parametrize("cls", ALL)
def test_training_code_has_no_route_to_test_images(cls):
    both, test = cls().train_val(), cls().test()
    assert {f.name for f in dataclasses.fields(TrainVal)} == {"train", "val", "fold", "folds"}
    found = reachable(both)
    assert not any(isinstance(item, cls) for item in found)
    assert {id(item) for item in found if isinstance(item, ArrayImages)} == {id(both.train), id(both.val)}
    tensors = [item for item in found if isinstance(item, torch.Tensor)]
    assert {id(t) for t in tensors} >= {id(both.train.pixels), id(both.val.pixels)}
    # A view would carry its neighbours along in its storage.
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors)
    names = {item for item in found if isinstance(item, str)}
    assert not names & {*test.ids, *test.class_names}
