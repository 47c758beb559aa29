"""Decoded images in a memory-mapped file, so that every image is decoded once."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .files import DataError


def cache_folder() -> Path:
    """Folder of the cache of decoded images: ``$BENCH_CACHE``, else ``$XDG_CACHE_HOME/bench`` or ``~/.cache/bench``."""
    if os.environ.get("BENCH_CACHE"):
        return Path(os.environ["BENCH_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bench"


_whole: dict[str, tuple[tuple[int, int, int], ...]] = {}


class PixelCache:
    """Decoded images, one after the other in a memory-mapped file, with an index of where each one starts.

    ``cache[i]`` is image i, uint8 ``[3, H, W]``. The index is a second file, which also contains a checksum (CRC-32) of
    every image. The path is that of the two files without their suffixes, ``.pixels`` and ``.index.npz``.
    """

    def __init__(self, path: Path) -> None:
        with np.load(path.with_suffix(".index.npz")) as index:
            self.offsets, self.heights, self.widths = (index[k] for k in ("offsets", "heights", "widths"))
        pixels = np.memmap(path.with_suffix(".pixels"), dtype=np.uint8, mode="r")
        with warnings.catch_warnings():
            # A mapping that could be written to would count as memory, all of it at once.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            self._pixels = torch.from_numpy(pixels)
        self._on_gpu: Tensor | None = None
        self._outgrew_gpu = False

    def __getitem__(self, i: int) -> Tensor:
        """Pixels of image ``i``: uint8 ``[3, H, W]``, channels last.

        They are the mapped file itself, so that a crop reads no more than it needs. Writing to them ends the process.
        """
        return self.box(i, 0, 0, int(self.heights[i]), int(self.widths[i]))

    def box(self, i: int, top: int, left: int, height: int, width: int) -> Tensor:
        """Box of one image, uint8 ``[3, height, width]``: a view of the mapped file, not to be written to."""
        row = 3 * int(self.widths[i])
        start = int(self.offsets[i]) + top * row + 3 * left
        return self._pixels.as_strided((3, height, width), (1, row, 3), start)

    def sizes(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Heights and widths of some images, int64 ``[B]``."""
        return torch.from_numpy(self.heights[rows]), torch.from_numpy(self.widths[rows])

    def places(self, rows: Sequence[int]) -> Tensor:
        """Number of the first pixel of some images among all pixels, and their widths: int64 ``[B, 2]``."""
        return torch.from_numpy(np.stack([self.offsets[rows] // 3, self.widths[rows]], 1))

    def on_gpu(self, room: int) -> Tensor | None:
        """All pixels on the GPU, uint8 ``[P, 3]``, from the first call on; None if they need more bytes than there are.

        They are not kept there either if its memory has run out.
        """
        if self._pixels.numel() > room or self._outgrew_gpu:
            return None
        if self._on_gpu is None:
            try:
                self._on_gpu = self._pixels.view(-1, 3).to("cuda")
            except torch.OutOfMemoryError:
                self._outgrew_gpu = True
        return self._on_gpu

    @staticmethod
    def exists(path: Path) -> bool:
        """Check if both files of a cache exist and are complete, by their index and size; pixels are not read."""
        return _checksums(path) is not None

    @staticmethod
    def is_whole(path: Path) -> bool:
        """Check the checksum of every image, once per process; a note on stderr names a damaged file."""
        files = [path.with_suffix(".index.npz"), path.with_suffix(".pixels")]
        try:
            states = tuple(
                (state.st_size, state.st_mtime_ns, state.st_ino) for state in (file.stat() for file in files)
            )
        except OSError:
            return False
        if _whole.get(str(path)) == states:
            return True
        checksums = _checksums(path)
        if checksums is None or not _has_checksums(files[1], *checksums):
            print(f"bench: note: decoded images in {files[1]} are damaged; decoding again", file=sys.stderr)
            return False
        _whole[str(path)] = states
        return True

    @staticmethod
    def build(path: Path, images: Iterable[Tensor]) -> None:
        """Write the two files of a cache, each completely or not at all, from images uint8 ``[3, H, W]``."""
        shapes, checksums = [], []
        unfinished = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A random name: process numbers repeat between containers that share a folder.
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            unfinished = Path(name)
            with os.fdopen(handle, "wb") as file:
                for image in images:
                    pixels = image.permute(1, 2, 0).contiguous().numpy().tobytes()
                    file.write(pixels)
                    checksums.append(zlib.crc32(pixels))
                    shapes.append(image.shape[1:])
            heights, widths = (np.array([s[k] for s in shapes], dtype=np.int64) for k in (0, 1))
            offsets = np.concatenate([[0], np.cumsum(heights * widths * 3)[:-1]]).astype(np.int64)
            os.replace(unfinished, path.with_suffix(".pixels"))
            unfinished = Path(f"{name}.index")
            with unfinished.open("wb") as file:
                crc32 = np.array(checksums, dtype=np.uint32)
                np.savez(file, offsets=offsets, heights=heights, widths=widths, crc32=crc32, name=np.array(path.name))
            os.replace(unfinished, path.with_suffix(".index.npz"))
        except OSError as error:
            raise DataError(
                f"cannot keep decoded images in {path.parent}: {error.strerror}; set BENCH_CACHE to a folder on a disk"
                " with room, or --set data.cache=false to decode originals every time"
            ) from error
        finally:
            if unfinished != path:
                unfinished.unlink(missing_ok=True)


def _checksums(path: Path) -> tuple[list[int], list[int]] | None:
    """Bytes and checksum of every image, or None if the index is not a whole one or does not fit the pixels."""
    try:
        with np.load(path.with_suffix(".index.npz")) as index:
            sizes = index["heights"] * index["widths"] * 3
            fits = str(index["name"]) == path.name and path.with_suffix(".pixels").stat().st_size == int(sizes.sum())
            starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
            if fits and np.array_equal(index["offsets"], starts) and len(index["crc32"]) == len(sizes):
                return sizes.tolist(), index["crc32"].tolist()
    except (OSError, ValueError, KeyError, EOFError, TypeError, IndexError, zipfile.BadZipFile, zlib.error):
        pass
    return None


def _has_checksums(pixels: Path, sizes: list[int], checksums: list[int]) -> bool:
    with pixels.open("rb") as file:
        return all(zlib.crc32(file.read(size)) == checksum for size, checksum in zip(sizes, checksums))


AT_ONCE = 1 << 23
"""Most pixels that are gathered at once: 24 bytes of memory each."""


def resized_boxes(pixels: Tensor, boxes: Tensor, most: Sequence[int], size: int, interpolation: str) -> Tensor:
    """Cut boxes out of images and resize them with antialiasing, as ``torch.nn.functional.interpolate`` does to one.

    A change of size is a linear map of each axis, so that a batch is two batched matrix products. Values are those of
    ``interpolate`` up to two levels of 255, whose weights are rounded.

    Args:
        pixels: uint8 ``[P, 3]``, the pixels of all images, row by row.
        boxes: int64 ``[B, 6]``: number of the first pixel of an image, its width, and top, left, height and width of a
            box in it.
        most: Height and width of the highest and of the widest box.
        size: Side S of the result.
        interpolation: ``bilinear`` or ``bicubic``.

    Returns:
        uint8 ``[B, 3, S, S]``, channels last in memory, on the device of the pixels.
    """
    height, width = most
    made = []
    for part in boxes.split(max(1, AT_ONCE // (height * width))):
        first, row, top, left, *sides = part.unbind(1)
        # Beyond its box, a smaller one repeats its last pixels, whose weights are 0.
        down, across = (
            torch.minimum(torch.arange(most, device=pixels.device), side[:, None] - 1)
            for most, side in zip(most, sides)
        )
        rows = (first + top * row + left)[:, None] + down * row[:, None]
        found = pixels[rows[:, :, None] + across[:, None]]  # [b, height, width, 3]
        down, across = (_weights(side, most, size, interpolation) for side, most in zip(sides, most))
        found = found.transpose(1, 2).reshape(-1, width, 3 * height).float()
        found = torch.bmm(across, found).round_().clamp_(0, 255).view(-1, size, height, 3)
        found = torch.bmm(down, found.transpose(1, 2).reshape(-1, height, 3 * size)).round_().clamp_(0, 255)
        made.append(found.to(torch.uint8).view(-1, size, size, 3))
    return torch.cat(made).permute(0, 3, 1, 2)


def _weights(lengths: Tensor, most: int, size: int, interpolation: str) -> Tensor:
    """Weights ``[B, S, most]`` of the pixels of an axis in the S pixels that axes of such lengths ``[B]`` become."""
    scale = lengths[:, None, None] / size
    centre = (torch.arange(size, device=lengths.device)[:, None] + 0.5) * scale
    place = torch.arange(most, device=lengths.device)
    distance = ((place + 0.5 - centre) / scale.clamp_min(1)).abs()
    if interpolation == "bilinear":
        weights = (1 - distance).clamp_min(0)
    else:  # Keys 1981 with a = -1/2, as in Pillow
        near = (1.5 * distance - 2.5) * distance * distance + 1
        far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
        weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0))
    weights = weights.masked_fill(place >= lengths[:, None, None], 0)
    return weights / weights.sum(2, keepdim=True)
