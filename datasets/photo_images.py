"""Labelled photographs on disk."""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Literal, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from .augmentation import TrainingAugmentation
from .damage import DamagedImages
from .dataset import ImageSet, Progress
from .decode import decode, open_image
from .files import DataError, check_regular
from .pixel_cache import PixelCache, cache_folder, resized_boxes
from .view import PhotoAugmentation, View, colour_jitter, crop_boxes, cropped_view, evaluation_view, finished, resize

Item = TypeVar("Item")
Result = TypeVar("Result")

Purpose = Literal["training", "evaluation"]
"""What decoded pixels are for: ``training`` (random crops of whole images) or ``evaluation`` (the evaluation view)."""

UNCOMPRESSED = (".bmp", ".pbm", ".pgm", ".pnm", ".ppm", ".tif", ".tiff")
"""Ends of the names of images that have one size in bytes whatever they show."""

_OPENING = threading.Lock()
"""Held while a cache is opened, which decodes all images if there is none."""


class PhotoImages(ImageSet):
    """Labelled image files, which are decoded once per purpose and then read from a cache on disk.

    For training, whole images are kept in the cache, for evaluation their resized centre crops.

    Attributes:
        labels: int64 ``[N]``, the class of each image, numbered from 0.
        ids: N different names, each the permanent identity of an image.
        class_names: Name of each class, in the order of the labels.
        paths: Paths of the N image files.
        view: Settings of how the images are resized and cropped.
        threads: Number of threads that decode and crop.
        within: The larger set that this is a subset of, and the positions of these images in it; None for a whole set.
            Training reads the cache file of the larger set, so that the folds of a cross-validation share one file.
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
        self._caches: dict[Purpose, PixelCache] = {}

    def prepare(self, purpose: Purpose, progress: Progress | None = None) -> None:
        """Decode every image once into the cache, so that damaged files are found before any training.

        Args:
            purpose: Use that the images are decoded for: ``training`` (random crops of whole images) or ``evaluation``
                (resized and cropped at the centre).
            progress: Function called after each image with the name of the task, the number of images done and their
                total.

        Raises:
            DamagedImages: If images are damaged, with the names of the first five.
        """
        if purpose == "training" and self.within:
            self.within[0].prepare(purpose, progress)
            return
        path = self._cache_path(purpose)
        if PixelCache.is_whole(path):
            return
        if self.view.cache:
            PixelCache.build(path, self._decoded(purpose, progress))
        else:
            for _ in self._decoded(purpose, progress):
                pass

    def estimated_cache_bytes(self, purpose: Purpose) -> int:
        """Bytes on disk that :meth:`prepare` will add to the cache, estimated from a sample of about 32 image headers.

        Args:
            purpose: Use that the images will be decoded for. If this set is a subset, ``training`` counts all images of
                the larger set, since subsets share its cache.
        """
        if purpose == "training" and self.within:
            return self.within[0].estimated_cache_bytes(purpose)
        if not self.view.cache or PixelCache.exists(self._cache_path(purpose)):
            return 0
        if purpose == "evaluation":
            return 3 * self.view.image_size**2 * len(self)
        sizes = []
        for path in self.paths[:: max(1, len(self) // 32)]:
            try:
                with open_image(path) as image:
                    sizes.append(image.size)
            except DataError:
                continue  # named when it is decoded
        shrink = [min(1.0, self.view.cache_side / min(size)) for size in sizes]
        return int(sum(3 * w * h * s * s for (w, h), s in zip(sizes, shrink)) / max(1, len(sizes)) * len(self))

    def _decoded(self, purpose: Purpose, progress: Progress | None) -> Iterator[Tensor]:
        damaged: dict[Path, str] = {}
        for number, image in enumerate(self.map(lambda path: self._try(path, purpose, damaged), self.paths)):
            if progress is not None:
                progress(f"decoding {purpose} images", number + 1, len(self))
            if not damaged:
                yield image
        if damaged:
            raise DamagedImages(damaged, len(self))

    def _try(self, path: Path, purpose: Purpose, damaged: dict[Path, str]) -> Tensor:
        try:
            return self.read(path, purpose)
        except DataError as error:
            damaged[path] = str(error)
            return torch.zeros(3, 2, 2, dtype=torch.uint8)

    def read(self, path: Path, purpose: Purpose) -> Tensor:
        """Decode a file to the pixels that the cache holds, without using the cache.

        Args:
            path: The file.
            purpose: ``evaluation`` gives the image resized and cropped for evaluation; ``training`` gives the whole
                image, reduced if it is large.

        Returns:
            uint8 ``[3, H, W]``.

        Raises:
            DataError: If the file is damaged.
        """
        image = decode(path, self.view.upright)
        if purpose == "evaluation":
            return evaluation_view(image, self.view)
        side = self.view.cache_side
        return resize(image, [side], self.view) if min(image.shape[1:]) > side else image

    def decoded(self, i: int) -> Tensor:
        """Whole image at position ``i`` of the set, decoded from its file, uint8 ``[3, H, W]``."""
        return decode(self.paths[i], self.view.upright)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Apply a function to each item of a list in threads; few results wait at a time, so memory stays bounded."""
        if self.threads == 1 or len(items) < 2:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            for start in range(0, len(items), 256):
                yield from pool.map(function, items[start : start + 256])

    def manifest_content(self, order: Sequence[int]) -> Iterable[bytes]:
        """Size of each file in bytes, as text, and a checksum of uncompressed ones.

        Replacing a file nearly always changes the hash: compressed images seldom have one size.
        """
        for i in order:
            yield f"{_size_and_time(self.paths[i])[0]}\n".encode()

    def _cache_path(self, purpose: Purpose) -> Path:
        import PIL
        import torchvision

        view = asdict(self.view)
        used = ["cache_side"] if purpose == "training" else ["image_size", "resize", "fit", "antialias"]
        # Caches keep the names that they had before there was a choice.
        used += [key for key in ("upright", "interpolation") if view[key] != getattr(View, key)]
        digest = hashlib.sha256(json.dumps([purpose, {k: view[k] for k in used}]).encode())
        digest.update(f"{torchvision.__version__} {PIL.__version__}".encode())
        for code in ("decode.py", "view.py"):  # what they once made of a file may have been wrong
            digest.update(Path(__file__).with_name(code).read_bytes())
        for path, name in zip(self.paths, self.ids):
            digest.update("|".join([name, *_size_and_time(path)]).encode() + b"\n")
        return cache_folder() / "pixels" / f"{purpose}-{digest.hexdigest()[:16]}"

    def _cache(self, purpose: Purpose) -> PixelCache:
        """Cache of decoded images, which is made if it is not there."""
        with _OPENING:  # one thread decodes, the others wait
            if purpose not in self._caches:
                self.prepare(purpose)
                self._caches[purpose] = PixelCache(self._cache_path(purpose))
        return self._caches[purpose]

    def _image(self, i: int, purpose: Purpose) -> Tensor:
        return self._cache(purpose)[i] if self.view.cache else self.read(self.paths[i], purpose)

    def _training_cache(self, index: Tensor) -> tuple[PixelCache, list[int]]:
        """Cache of decoded training images, and the positions of the given images in it."""
        whole, rows = (self, index) if self.within is None else (self.within[0], self.within[1][index])
        return whole._cache("training"), rows.tolist()

    def pixels_of(self, index: Tensor) -> Tensor:
        """RGB pixels of some images as resized and cropped for evaluation, uint8; the side is ``view.image_size``."""
        if self.view.cache:
            self._cache("evaluation")  # before the threads ask for it
        # The copy is what reads the file: in the threads, not one after the other in `stack`.
        return torch.stack(list(self.map(lambda i: self._image(i, "evaluation").contiguous(), index.tolist())))

    def normalised(self, pixels: Tensor) -> Tensor:
        """Scale RGB pixels, uint8 ``[B, 3, S, S]``, to [0, 1]; the network itself normalises further."""
        return pixels.float() / 255

    def training(
        self, index: Tensor, augmentation: TrainingAugmentation, generator: torch.Generator, out: Tensor | None = None
    ) -> Tensor:
        """Random resized crops of photographs, flipped and with colour jitter, RGB in [0, 1].

        Raises:
            TypeError: If the settings are not a :class:`PhotoAugmentation`.
        """
        u, flip, factors, order = self._draws(index, augmentation, generator)
        flips, jitters = flip.tolist(), factors.tolist()
        shape = self._shape(index)
        batch = torch.empty(shape) if out is None or out.shape != shape else out
        targets = batch.unbind(0)

        def write() -> Callable[[int, Tensor], None]:
            # An image is changed in memory that stays in the processor's cache, then written to the batch once.
            scratch = torch.empty(shape[1:])

            def one(place: int, made: Tensor) -> None:
                torch.div(made.flip(2) if flips[place] else made, 255, out=scratch)
                targets[place].copy_(colour_jitter(scratch, jitters[place], order))

            return one

        self._crop(index, augmentation, u, write)
        return batch

    def for_gpu(
        self,
        index: Tensor,
        augmentation: TrainingAugmentation,
        generator: torch.Generator,
        out: Tensor | None = None,
        room: int = 0,
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Crops, uint8 ``[B, 3, S, S]`` with channels last in memory; flips, scaling and colour jitter are left.

        If all decoded images fit into the room, the GPU keeps them, and the batch is boxes that it cuts out.
        """
        if type(self).training is not PhotoImages.training:  # a subclass does something else
            return super().for_gpu(index, augmentation, generator, out)
        u, flip, factors, order = self._draws(index, augmentation, generator)
        if self.view.cache:
            cache, rows = self._training_cache(index)
            pixels = cache.on_gpu(room)
            if pixels is not None:
                assert isinstance(augmentation, PhotoAugmentation)
                boxes = crop_boxes(*cache.sizes(rows), augmentation, u[:, :22])
                boxes = torch.cat([cache.places(rows), boxes], 1)
                size, mode, most = self.view.image_size, self.view.interpolation, boxes[:, 4:].amax(0).tolist()
                return boxes, lambda there: finished(
                    resized_boxes(pixels, there, most, size, mode), flip, factors, order
                )
        shape = self._shape(index)
        usable = out is not None and out.shape == shape and out.dtype == torch.uint8
        made = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
        batch = out if usable and out is not None else made
        targets = batch.unbind(0)
        self._crop(index, augmentation, u, lambda: lambda place, made: targets[place].copy_(made))
        return batch, lambda there: finished(there, flip, factors, order)

    def _draws(
        self, index: Tensor, augmentation: TrainingAugmentation, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        """Draws of crops ``[B, 26]``, flips ``[B]``, factors of the jitter ``[B, 3]`` and the order of its changes."""
        if not isinstance(augmentation, PhotoAugmentation):
            raise TypeError(f"photographs are augmented by a PhotoAugmentation, not {type(augmentation).__name__}")
        u = torch.rand(len(index), 26, generator=generator, dtype=torch.float64)
        order = torch.randperm(3, generator=generator).tolist()
        ranges = torch.tensor([augmentation.brightness, augmentation.contrast, augmentation.saturation])
        return u, u[:, 22] < augmentation.flip, 1 + ranges * (2 * u[:, 23:] - 1), order

    def _shape(self, index: Tensor) -> tuple[int, ...]:
        return (len(index), 3, self.view.image_size, self.view.image_size)

    def _crop(
        self,
        index: Tensor,
        augmentation: TrainingAugmentation,
        u: Tensor,
        write: Callable[[], Callable[[int, Tensor], object]],
    ) -> None:
        """Cut out and resize images; each thread makes a function that takes the place and pixels of each of them."""
        assert isinstance(augmentation, PhotoAugmentation)
        size = [self.view.image_size] * 2

        if self.view.cache:
            cache, rows = self._training_cache(index)
            boxes = crop_boxes(*cache.sizes(rows), augmentation, u[:, :22]).tolist()

        def box(place: int) -> Tensor:
            if self.view.cache:
                return cache.box(rows[place], *boxes[place])
            image = self._image(int(index[place]), "training")
            # The size of an image that is not cached is known only once it is decoded.
            height, width = (torch.tensor([side]) for side in image.shape[1:])
            top, left, h, w = crop_boxes(height, width, augmentation, u[place, None, :22])[0].tolist()
            return image[:, top : top + h, left : left + w]

        def crop(places: Sequence[int]) -> None:
            written = write()
            for place in places:
                # torchvision's resized_crop without its checks, which block the other threads.
                written(place, interpolate(box(place)[None], size, mode=self.view.interpolation, antialias=True)[0])

        # Threads wait less for the interpreter lock if they take many images at a time.
        share = max(1, -(-len(index) // (2 * self.threads)))
        for _ in self.map(crop, [range(len(index))[at : at + share] for at in range(0, len(index), share)]):
            pass

    def cropped(self, index: Tensor, fraction: Tensor) -> Tensor:
        """Centre crops of the original files, resized as for evaluation; a fraction is one of the shorter side."""

        def crop(place: tuple[int, float]) -> Tensor:
            return cropped_view(self.decoded(place[0]), place[1], self.view)

        return self.normalised(torch.stack(list(self.map(crop, list(zip(index.tolist(), fraction.tolist()))))))

    def select(self, index: Tensor) -> Self:
        """Subset of the images, in the given order; both sets read the same cache of decoded training images."""
        labels, ids, class_names = self.selected_names(index)
        paths = [self.paths[i] for i in index.tolist()]
        whole, rows = self.within or (self, torch.arange(len(self)))
        return type(self)(
            paths, labels, ids, class_names, view=self.view, threads=self.threads, within=(whole, rows[index])
        )


def _size_and_time(path: Path) -> tuple[str, str]:
    """Size of a file, with a checksum of an uncompressed one, and when it was changed; "missing" if it is not there."""
    try:
        file = path.stat()
        known = path.suffix.lower() in UNCOMPRESSED
        content = f" {_checksum(path, file.st_size, file.st_mtime_ns)}" if known else ""
    except (OSError, DataError):
        return "missing", ""
    return f"{file.st_size}{content}", str(file.st_mtime_ns)


@cache
def _checksum(path: Path, size: int, changed: int) -> int:
    """CRC-32 of a file in some state, which is read once."""
    check_regular(path)
    return zlib.crc32(path.read_bytes())
