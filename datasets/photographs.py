"""Photographs on disk: how they are read, cropped and kept as pixels, for every data set of image files."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ._base import DataError, ImageSet

T = TypeVar("T")
Progress = Callable[[str, int, int], None]
"""Called with what is done, how many are and how many there are."""


@dataclass(frozen=True)
class View:
    """How photographs become what a network sees; recorded with every result.

    Attributes:
        image_size: Side S of the network's input, pixels.
        resize: Shorter side of an image before its centre crop in evaluation, pixels.
        fit: ``crop`` evaluates the centre square; ``squash`` the whole image, its sides made equal (``resize`` is then
            not used): for long objects whose ends a crop would cut off.
        antialias: Whether evaluation resizes with antialiasing; without, as in PER (torchvision 0.11 on tensors).
        cache_side: Shorter side to which larger training images are reduced once, pixels.
        cache: Keep decoded pixels in files; without, originals are decoded every time.
    """

    image_size: int = 224
    resize: int = 256
    fit: str = "crop"
    antialias: bool = True
    cache_side: int = 512
    cache: bool = True

    def __post_init__(self) -> None:
        if self.resize < self.image_size:
            raise ValueError(f"resize ({self.resize}) must not be below image_size ({self.image_size})")
        if self.fit not in ("crop", "squash"):
            raise ValueError(f"fit must be crop or squash, not {self.fit!r}")


@dataclass(frozen=True)
class PhotoAugmentation:
    """Random resized crop, flip and colour jitter; the defaults are PER's.

    Attributes:
        area_low: Smallest area of a crop, as a share of the image's, in (0, area_high].
        area_high: Largest area of a crop, at most 1.
        ratio_low: Smallest width over height of a crop.
        ratio_high: Largest width over height of a crop.
        flip: Probability of a horizontal flip.
        brightness: Factor from U[1 - b, 1 + b].
        contrast: The same for the contrast.
        saturation: The same for the saturation.

    Raises:
        ValueError: If a setting is out of its range.
    """

    area_low: float = 0.16
    area_high: float = 1.0
    ratio_low: float = 3 / 4
    ratio_high: float = 4 / 3
    flip: float = 0.5
    brightness: float = 0.25
    contrast: float = 0.25
    saturation: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.area_low <= self.area_high <= 1:
            raise ValueError(f"areas must satisfy 0 < low <= high <= 1, not {self.area_low}, {self.area_high}")
        if not 0 < self.ratio_low <= self.ratio_high:
            raise ValueError(f"ratios must satisfy 0 < low <= high, not {self.ratio_low}, {self.ratio_high}")
        for name in ("flip", "brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], not {getattr(self, name)}")


def decode(path: Path) -> Tensor:
    """An image file as RGB.

    Greyscale, palette and CMYK images are converted, EXIF orientation is ignored (as every published pipeline does).

    Returns:
        uint8 ``[3, H, W]``, channels last in memory.

    Raises:
        DataError: If the file is missing, damaged or smaller than 2 x 2 pixels.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise DataError(
                    f"{path}: {image.mode} pixels (more than 8 bits) are not supported; convert it to 8 bits"
                )
            pixels = np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a readable image ({error})") from None
    if min(pixels.shape[:2]) < 2:
        raise DataError(f"{path}: an image of {pixels.shape[1]} x {pixels.shape[0]} pixels holds nothing to learn")
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def _resize(image: Tensor, size: list[int], antialias: bool = True) -> Tensor:
    from torchvision.transforms.v2 import functional as F

    out: Tensor = F.resize(image, size, antialias=antialias)
    return out


def evaluation_view(image: Tensor, view: View) -> Tensor:
    """Shorter side to ``view.resize``, then the centre square (or the whole, squashed): uint8 ``[3, S, S]``."""
    from torchvision.transforms.v2 import functional as F

    if view.fit == "squash":
        return _resize(image, [view.image_size] * 2, view.antialias)
    out: Tensor = F.center_crop(_resize(image, [view.resize], view.antialias), [view.image_size])
    return out


def corrupted_view(image: Tensor, fraction: float, view: View) -> Tensor:
    """Evaluation view of the centred square of side ``round(fraction * min(H, W))`` (PER): less context, more blur."""
    from torchvision.transforms.v2 import functional as F

    side = max(1, round(fraction * min(image.shape[1:])))
    return evaluation_view(F.center_crop(image, [side]), view)


def crop_boxes(heights: Tensor, widths: Tensor, augmentation: PhotoAugmentation, u: Tensor) -> Tensor:
    """Boxes of random resized crops, as torchvision's ``RandomResizedCrop`` draws them.

    Up to ten draws of area and ratio (uniform and log-uniform) until one fits into the image; otherwise the largest
    centred box whose ratio is in range.

    Args:
        heights: ``[B]`` pixels.
        widths: ``[B]`` pixels.
        augmentation: Ranges of area and ratio.
        u: ``[B, 22]`` uniform numbers.

    Returns:
        int64 ``[B, 4]``: top, left, height, width.
    """
    h0, w0 = heights.double()[:, None], widths.double()[:, None]
    a = augmentation
    area = h0 * w0 * (a.area_low + (a.area_high - a.area_low) * u[:, 0:20:2])
    ratio = (math.log(a.ratio_low) + (math.log(a.ratio_high) - math.log(a.ratio_low)) * u[:, 1:20:2]).exp()
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (w > 0) & (w <= w0) & (h > 0) & (h <= h0)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    w, h = w.gather(1, first).squeeze(1), h.gather(1, first).squeeze(1)
    h0, w0 = h0.squeeze(1), w0.squeeze(1)
    top, left = (u[:, 20] * (h0 - h + 1)).floor(), (u[:, 21] * (w0 - w + 1)).floor()
    own = w0 / h0
    fallback_w = torch.where(own > a.ratio_high, (h0 * a.ratio_high).round(), w0)
    fallback_h = torch.where(own < a.ratio_low, (w0 / a.ratio_low).round(), h0)
    found = fits.any(1)
    w, h = torch.where(found, w, fallback_w), torch.where(found, h, fallback_h)
    top = torch.where(found, top, ((h0 - h) / 2).floor())
    left = torch.where(found, left, ((w0 - w) / 2).floor())
    return torch.stack([top, left, h, w], 1).long()


_GREY = (0.2989, 0.587, 0.114)
_GREY_ROW = torch.tensor([_GREY])


def colour_jitter(image: Tensor, factors: Sequence[float], order: Sequence[int]) -> Tensor:
    """Brightness, contrast and saturation, as torchvision's ``adjust_*`` functions.

    One image at a time and in place: an image stays in the processor's cache, a batch does not.

    Args:
        image: float ``[3, H, W]`` in [0, 1], contiguous; changed in place.
        factors: Of brightness, contrast and saturation; 1 changes nothing.
        order: In which the three are applied.
    """
    pixels = image.view(3, -1)
    for kind in order:
        factor = factors[kind]
        if factor == 1:
            continue
        if kind == 0:
            pixels.mul_(factor)
        elif kind == 1:
            mean = sum(w * m for w, m in zip(_GREY, pixels.mean(1).tolist()))
            pixels.mul_(factor).add_((1 - factor) * mean)
        else:
            torch.lerp(torch.mm(_GREY_ROW, pixels), pixels, factor, out=pixels)
        pixels.clamp_(0, 1)
    return image


def cache_folder() -> Path:
    """Where decoded pixels are kept: ``$BENCH_CACHE``, or ``~/.cache/bench``."""
    if os.environ.get("BENCH_CACHE"):
        return Path(os.environ["BENCH_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bench"


class PixelCache:
    """Decoded images one behind the other in a memory-mapped file, with an index of where each one starts.

    Args:
        path: Stem of the two files, ``.pixels`` and ``.index.npz``.
    """

    def __init__(self, path: Path) -> None:
        with np.load(path.with_suffix(".index.npz")) as index:
            self.offsets, self.heights, self.widths = (index[k] for k in ("offsets", "heights", "widths"))
        pixels = np.memmap(path.with_suffix(".pixels"), dtype=np.uint8, mode="r")
        with warnings.catch_warnings():
            # A mapping that could be written to would count as memory, all of it at once.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            self._pixels = torch.from_numpy(pixels)

    def __getitem__(self, i: int) -> Tensor:
        """uint8 ``[3, H, W]``, channels last; the mapped file itself, so that a crop reads no more than it needs.

        Writing to it ends the process.
        """
        return self.box(i, 0, 0, int(self.heights[i]), int(self.widths[i]))

    def box(self, i: int, top: int, left: int, height: int, width: int) -> Tensor:
        """A part of image ``i``, uint8 ``[3, height, width]``, like the whole."""
        row = 3 * int(self.widths[i])
        start = int(self.offsets[i]) + top * row + 3 * left
        return self._pixels.as_strided((3, height, width), (1, row, 3), start)

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether both files are there and whole; the index is written last."""
        try:
            with np.load(path.with_suffix(".index.npz")) as index:
                size = int((index["heights"] * index["widths"] * 3).sum())
            return path.with_suffix(".pixels").stat().st_size == size
        except (OSError, ValueError, KeyError):
            return False

    @staticmethod
    def build(path: Path, images: Iterable[Tensor]) -> None:
        """Write the files, whole or not at all.

        Raises:
            DataError: If the disk is full, with how to move the cache.
        """
        shapes = []
        part = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A name of its own: process numbers repeat between containers that share a folder.
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            part = Path(name)
            with os.fdopen(handle, "wb") as file:
                for image in images:
                    file.write(image.permute(1, 2, 0).contiguous().numpy().tobytes())
                    shapes.append(image.shape[1:])
            heights, widths = (np.array([s[k] for s in shapes], dtype=np.int64) for k in (0, 1))
            offsets = np.concatenate([[0], np.cumsum(heights * widths * 3)[:-1]]).astype(np.int64)
            os.replace(part, path.with_suffix(".pixels"))
            part = part.with_suffix(".index")
            with part.open("wb") as file:
                np.savez(file, offsets=offsets, heights=heights, widths=widths)
            os.replace(part, path.with_suffix(".index.npz"))
        except OSError as error:
            raise DataError(
                f"cannot keep decoded images in {path.parent}: {error.strerror}; set BENCH_CACHE to a folder on a disk"
                " with room, or --set data.cache=false to decode originals every time"
            ) from error
        finally:
            if part != path:
                part.unlink(missing_ok=True)


class PhotoImages(ImageSet):
    """Image files with labels.

    Attributes:
        paths: N files.
        view: How they are read.
        threads: Threads that decode and crop.
        within: Set that this is a part of, and the rows there: the parts share its decoded training images, so that
            every fold of a cross-validation reads the same file.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Tensor,
        ids: Iterable[str],
        class_names: Iterable[str],
        *,
        view: View,
        threads: int = 1,
        within: tuple[PhotoImages, Tensor] | None = None,
    ) -> None:
        super().__init__(labels, ids, class_names)
        self.paths = tuple(paths)
        self.view = view
        self.threads = threads
        self.within = within
        self._caches: dict[str, PixelCache] = {}

    def prepare(self, kinds: Sequence[str], progress: Progress | None = None) -> None:
        """Decode every image once, so that damaged ones are known before any training.

        Args:
            kinds: Of ``training`` and ``evaluation``, what will be read.
            progress: Told how far it is.

        Raises:
            DataError: With the damaged images, if there are any.
        """
        for kind in kinds:
            if kind == "training" and self.within:
                self.within[0].prepare([kind], progress)
                continue
            path = self._cache_path(kind)
            if PixelCache.exists(path):
                continue
            if self.view.cache:
                PixelCache.build(path, self._decoded(kind, progress))
            else:
                for _ in self._decoded(kind, progress):
                    pass

    def estimated_cache_bytes(self, kinds: Sequence[str]) -> int:
        """Disk for the pixels of this set that are not in the cache yet, from a sample of 32 image headers.

        Args:
            kinds: Of ``training`` and ``evaluation``, what will be read; ``training`` is of the whole set that this is
                a part of.
        """
        if "training" in kinds and self.within:
            rest = [kind for kind in kinds if kind != "training"]
            return self.within[0].estimated_cache_bytes(["training"]) + self.estimated_cache_bytes(rest)
        from PIL import Image

        total = 0.0
        if "evaluation" in kinds and not PixelCache.exists(self._cache_path("evaluation")):
            total += 3.0 * self.view.image_size**2 * len(self)
        if "training" in kinds and not PixelCache.exists(self._cache_path("training")):
            sizes = []
            for path in self.paths[:: max(1, len(self) // 32)]:
                try:
                    with Image.open(path) as image:
                        sizes.append(image.size)
                except OSError:
                    continue
            shrink = [min(1.0, self.view.cache_side / min(size)) for size in sizes]
            total += sum(3 * w * h * s * s for (w, h), s in zip(sizes, shrink)) / max(1, len(sizes)) * len(self)
        return int(total) if self.view.cache else 0

    def _decoded(self, kind: str, progress: Progress | None) -> Iterator[Tensor]:
        damaged: list[str] = []
        for number, image in enumerate(self._mapped(lambda path: self._try(path, kind, damaged), self.paths)):
            if progress is not None:
                progress(f"decoding {kind} images", number + 1, len(self))
            if not damaged:
                yield image
        if damaged:
            shown = "; ".join(sorted(damaged)[:5]) + ("; ..." if len(damaged) > 5 else "")
            raise DataError(f"{len(damaged)} of {len(self)} images cannot be used: {shown}")

    def _try(self, path: Path, kind: str, damaged: list[str]) -> Tensor:
        try:
            return self._read(path, kind)
        except DataError as error:
            damaged.append(str(error))
            return torch.zeros(3, 2, 2, dtype=torch.uint8)

    def _read(self, path: Path, kind: str) -> Tensor:
        image = decode(path)
        if kind == "evaluation":
            return evaluation_view(image, self.view)
        side = self.view.cache_side
        return _resize(image, [side]) if min(image.shape[1:]) > side else image

    def _mapped(self, function: Callable[[Any], T], items: Sequence[Any]) -> Iterator[T]:
        """``map`` over threads with a bounded number of results waiting, in order."""
        if self.threads == 1:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            for start in range(0, len(items), 256):
                yield from pool.map(function, items[start : start + 256])

    def _content(self, order: Sequence[int]) -> Iterable[bytes]:
        """Sizes of the files: another image under an old name is another data set."""
        for i in order:
            try:
                yield f"{self.paths[i].stat().st_size}\n".encode()
            except OSError:
                yield b"missing\n"

    def _cache_path(self, kind: str) -> Path:
        import PIL
        import torchvision

        view = asdict(self.view)
        used = ("cache_side",) if kind == "training" else ("image_size", "resize", "fit", "antialias")
        digest = hashlib.sha256(json.dumps([kind, {k: view[k] for k in used}]).encode())
        digest.update(f"{torchvision.__version__} {PIL.__version__}".encode())
        for path, name in zip(self.paths, self.ids):
            try:
                held = path.stat()
                digest.update(f"{name}|{held.st_size}|{held.st_mtime_ns}\n".encode())
            except OSError:
                digest.update(f"{name}|missing\n".encode())
        return cache_folder() / "pixels" / f"{kind}-{digest.hexdigest()[:16]}"

    def _image(self, i: int, kind: str) -> Tensor:
        if not self.view.cache:
            return self._read(self.paths[i], kind)
        if kind not in self._caches:
            self.prepare([kind])
            self._caches[kind] = PixelCache(self._cache_path(kind))
        return self._caches[kind][i]

    def _training_cache(self, index: Tensor) -> tuple[PixelCache, list[int]]:
        """Decoded training images, and the places of some of them there."""
        if self.within:
            whole, rows = self.within
            return whole._training_cache(rows[index])
        self._open("training")
        return self._caches["training"], index.tolist()

    def pixels_of(self, index: Tensor) -> Tensor:
        """RGB, uint8 ``[B, 3, S, S]``."""
        self._open("evaluation")
        # The copy is what reads the file: in the threads, not one after the other in `stack`.
        return torch.stack(list(self._mapped(lambda i: self._image(i, "evaluation").contiguous(), index.tolist())))

    def normalised(self, pixels: Tensor) -> Tensor:
        """RGB in [0, 1], float32 ``[B, 3, S, S]``; the network normalises."""
        return pixels.float() / 255

    def training(
        self, index: Tensor, augmentation: Any, generator: torch.Generator, out: Tensor | None = None
    ) -> Tensor:
        """Random resized crop, flip and colour jitter: RGB in [0, 1], float32 ``[B, 3, S, S]``."""
        u = torch.rand(len(index), 26, generator=generator, dtype=torch.float64)
        order = torch.randperm(3, generator=generator).tolist()
        flip = (u[:, 22] < augmentation.flip).tolist()
        size = [self.view.image_size] * 2

        ranges = torch.tensor([augmentation.brightness, augmentation.contrast, augmentation.saturation])
        factors = (1 + ranges * (2 * u[:, 23:] - 1)).tolist()
        shape = (len(index), 3, *size)
        batch = torch.empty(shape) if out is None or out.shape != shape else out
        targets = batch.unbind(0)

        if self.view.cache:
            held, rows = self._training_cache(index)
            sizes = torch.from_numpy(held.heights[rows]), torch.from_numpy(held.widths[rows])
            boxes = crop_boxes(*sizes, augmentation, u[:, :22]).tolist()

        def part(place: int) -> Tensor:
            if self.view.cache:
                return held.box(rows[place], *boxes[place])
            image = self._image(int(index[place]), "training")
            top, left, h, w = self._box(image, augmentation, u[place])
            return image[:, top : top + h, left : left + w]

        def crop(places: Sequence[int]) -> None:
            # Worked on where it stays in the processor's cache, and written to the batch once.
            scratch = torch.empty(shape[1:])
            for place in places:
                # What torchvision's resized_crop comes to: its checks hold the other threads up.
                made = interpolate(part(place)[None], size, mode="bilinear", antialias=True)[0]
                torch.div(made.flip(2) if flip[place] else made, 255, out=scratch)
                targets[place].copy_(colour_jitter(scratch, factors[place], order))

        # Threads wait less for the interpreter if they take many images at a time.
        share = max(1, -(-len(index) // (2 * self.threads)))
        for _ in self._mapped(crop, [range(len(index))[at : at + share] for at in range(0, len(index), share)]):
            pass
        return batch

    @staticmethod
    def _box(image: Tensor, augmentation: Any, u: Tensor) -> list[int]:
        """Box of one image whose size was not known before it was decoded."""
        height, width = (torch.tensor([side]) for side in image.shape[1:])
        box: list[int] = crop_boxes(height, width, augmentation, u[None, :22])[0].tolist()
        return box

    def corrupted(self, index: Tensor, fraction: Tensor) -> Tensor:
        """Centre crops of the originals at the evaluation size."""
        parts = list(zip(index.tolist(), fraction.tolist()))
        read = self._mapped(lambda item: corrupted_view(decode(self.paths[item[0]]), item[1], self.view), parts)
        return self.normalised(torch.stack(list(read)))

    def _open(self, kind: str) -> None:
        if self.view.cache and kind not in self._caches and len(self):
            self._image(0, kind)

    def select(self, index: Tensor) -> PhotoImages:
        """Subset of the images, in the given order; it shares the decoded training images of this set."""
        labels, ids, class_names = self._selected_names(index)
        paths = [self.paths[i] for i in index.tolist()]
        whole, rows = self.within or (self, torch.arange(len(self)))
        return PhotoImages(
            paths, labels, ids, class_names, view=self.view, threads=self.threads, within=(whole, rows[index])
        )
