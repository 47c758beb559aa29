"""Features of many photographs, made part by part, to a file that `bench data features` imports."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..datasets.corruptions.registry import CORRUPTIONS
from ..datasets.damage import FILE, DamagedImages, check_few, left_out, skipped_table
from ..datasets.dataset import Progress
from ..datasets.folder import Folder, images_below, twins
from ..datasets.photo_images import PhotoImages
from ..datasets.releases import Listing, PhotoDataset
from ..engine.inputs import CorruptedImages
from ..engine.trained import Encoder, Load
from ..errors import UserError, printable, require_known
from ..protocols.recipes._base import recipe_of
from ..resources import cores
from ..seeds import content_id
from ..site import Site
from ..store.files import atomic_file, write_atomic
from .files import Column, held, write_columns

ROLES = ("query", "gallery")

PART = 2048
"""Images whose features are kept in one file until all are there, so that an interruption loses no more."""


def embed_features(
    out: Path,
    encoder: Encoder,
    site: Site,
    progress: Progress,
    source: Path | tuple[str, str],
    views: int,
    kinds: tuple[str, ...],
    strict: bool = False,
) -> str:
    """Embed photographs, augmented views and corrupted images of them, to a file that `bench data features` imports.

    The source is a folder, or a data set and one of its splits.
    """
    require_known("corruption", kinds, CORRUPTIONS)
    name = Folder.name if isinstance(source, Path) else source[0]
    augmentation = site.datasets.dataset(name).augmentation_type(**recipe_of(site.datasets.dataset(name)).augmentation)
    if isinstance(source, Path):
        listing, labelled = images_below(source)
        if not labelled:
            raise UserError(f"{source} has no class folders: features to train on need labels")
        images = usable(listing, encoder, progress, out.with_name(f"{out.stem}.{FILE}"), strict)
    else:
        images = _of_dataset(*source, encoder, site)
    ranges = {kind: (CORRUPTIONS[kind].low, CORRUPTIONS[kind].high) for kind in kinds}
    corrupted = {kind: CorruptedImages.of(images, name, kind, ends) for kind, ends in ranges.items()}
    seen = [encoder.digest, asdict(encoder.view), asdict(augmentation), name]
    content = [images.manifest_sha256(), [*images.ids], *seen]  # parts are stored by row, in this order
    kept = out.with_name(f".{out.name}.{content_id(content)}")
    kept.mkdir(parents=True, exist_ok=True)
    images.prepare("evaluation", progress)  # of a data set
    if views:
        images.prepare("training", progress)
    parts = Parts(encoder, kept, len(images), progress)
    columns = {"embeddings": parts.column("embeddings", images.evaluation)}
    of_views = [
        parts.column(f"view{view}", partial(images.view_of, augmentation=augmentation, view=view))
        for view in range(views)
    ]
    columns["features"] = side_by_side(of_views) if of_views else columns.pop("embeddings")
    for kind, under in corrupted.items():
        columns[f"corrupted_{kind}"] = parts.column(kind, under.evaluation)
        columns[f"severity_{kind}"] = held((1 - under.quality).numpy())
    small = {**names_and_roles(images), "about": np.array([encoder.about])}
    write_columns(out, columns | {key: held(value) for key, value in small.items()})
    shutil.rmtree(kept)
    what = ", ".join(f"{key} {list(column.shape)}" for key, column in columns.items())
    return (
        f"{len(images)} images of {images.num_classes} classes in {out}: {what};"
        " `bench data features NAME --train FILE --test FILE` imports two such files"
    )


def names_and_roles(images: PhotoImages) -> dict[str, np.ndarray]:
    """Labels, names and roles of images, as files of embeddings and of features have them."""
    arrays = {"labels": images.labels.numpy(), "class_names": np.array(images.class_names)}
    for role, rows in (("is_query", images.queries), ("is_gallery", images.gallery)):
        if rows is not None:
            arrays[role] = np.isin(np.arange(len(images)), rows.numpy())
    return arrays | {"ids": np.array(images.ids)}


def _of_dataset(name: str, split: str, encoder: Encoder, site: Site) -> PhotoImages:
    """Photographs of a split, read as the encoder needs them."""
    if not issubclass(site.datasets.dataset(name), PhotoDataset):
        raise UserError(f"--dataset {name}: no photographs; its images are embedded in seconds by a run")
    view = {**site.recipe(name).view}
    view |= {key: getattr(encoder.view, key) for key in ("image_size", "resize", "fit", "interpolation")}
    dataset = site.dataset(name, view)
    images = dataset.train_val(0, 1).train if split == "train" else dataset.test()
    assert isinstance(images, PhotoImages)
    return images


@dataclass(frozen=True)
class Parts:
    """Features of many images that are made part by part, each kept in a file of a folder until all are there."""

    encoder: Encoder
    folder: Path
    count: int
    progress: Callable[[str, int, int], None]

    def column(self, name: str, load: Load) -> Column:
        """Features float32 ``[N, F]`` of the images that a function of row numbers returns; parts that exist stay."""
        paths = []
        for rows in torch.arange(self.count).split(PART):
            path = self.folder / f"{name}-{int(rows[0]):09d}.npy"
            paths.append(path)

            def images(index: Tensor, rows: Tensor = rows) -> Tensor:
                return load(rows[index])

            if not path.exists():
                made = self.encoder.run(images, len(rows))["embeddings"]
                with atomic_file(path) as file:
                    np.save(file, made)
                self.progress(f"embedding {name}", int(rows[-1]) + 1, self.count)
        first = np.load(paths[0])
        return Column((self.count, first.shape[1]), first.dtype, lambda: map(np.load, paths))


def side_by_side(columns: Sequence[Column]) -> Column:
    """Views ``[N, F]`` as one array ``[N, V, F]``."""
    count, width = columns[0].shape

    def blocks() -> Iterator[np.ndarray]:
        return (np.stack(parts, 1) for parts in zip(*(column.blocks() for column in columns)))

    return Column((count, len(columns), width), columns[0].dtype, blocks)


def usable(
    listing: Listing, encoder: Encoder, progress: Progress, file: Path | None = None, strict: bool = False
) -> PhotoImages:
    """Photographs of a folder as the encoder needs them, decoded, without a few damaged ones unless that is refused.

    Notes on stderr say what is left out; ``file`` is written with a list of damaged images, if there are any.

    Raises:
        DamagedImages: If images are damaged and it is strict.
        DataError: If more of them are damaged than may be left out.
    """
    for note in (*listing.notes, *twins(listing)):
        sys.stderr.write(f"bench: note: {printable(note)}\n")
    images = photographs_of(listing, encoder)
    try:
        images.prepare("evaluation", progress)
        if file is not None:
            file.unlink(missing_ok=True)  # what it listed is repaired
        return images
    except DamagedImages as error:
        damaged, count = error.damaged, len(images)
        if strict:
            raise
        check_few(len(damaged), count, str(error))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, skipped_table(listing.folder, damaged))
    names = [name for name, path in zip(images.ids, images.paths) if path in damaged]
    said = left_out(names, count, file or "--out DIR")
    sys.stderr.write(f"bench: note: {printable(said)}; --strict refuses them\n")
    images = photographs_of(listing.keep([path not in damaged for path in images.paths]), encoder)
    images.prepare("evaluation", progress)
    return images


def photographs_of(listing: Listing, encoder: Encoder) -> PhotoImages:
    """Photographs of a folder, read as the encoder needs them."""
    classes = {key: number for number, key in enumerate(sorted(listing.names))}
    labels = torch.tensor([classes[key] for key in listing.classes])
    paths = [Path(os.path.join(listing.folder, name)) for name in listing.ids]
    names = [listing.names[key] for key in classes]
    images = PhotoImages(paths, labels, listing.ids, names, view=encoder.view, threads=cores())
    if listing.parts[0]:
        images.queries, images.gallery = (
            torch.tensor([row for row, part in enumerate(listing.parts) if part == role]) for role in ROLES
        )
    return images
