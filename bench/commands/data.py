"""``bench data``: list data sets of image files, check them, and put a release in its place."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from annotated_types import Ge

from ..errors import UserError, no_such, printable
from ..registry import Registry
from ..resources import cores, data_home, root_of
from .options import Row, command, output

if TYPE_CHECKING:
    from ..datasets.dataset import Dataset
    from ..datasets.downloads import Archive
    from ..datasets.releases import PhotoDataset

app = typer.Typer(
    help="Download, import and check data sets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
@command()
def list_data(*, as_json: bool = False, data_root: Path | None = None, plugin: list[Path] | None = None) -> None:
    """List data sets, what each needs and where its owners publish it.

    \b
    bench data list
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    rows: list[Row] = []
    for entry in _known(data_root, tuple(plugin or ())):
        cls = entry.load()
        of_release = {name: getattr(cls, name, "") for name in ("official", "needs", "source", "licence")}
        urls = " ".join(each.url for each in cls.archive.all()) if getattr(cls, "archive", None) else ""
        row = {"name": entry.name, "summary": entry.summary, "embedded": cls.embedded, **of_release, "archive": urls}
        rows.append(row)
    output(rows, chain(*map(_listed, rows)), as_json)


def _listed(row: Row) -> Iterator[str]:
    yield f"{row['name']:<16} {row['summary']}"
    if row["needs"]:
        yield f"{'':<16} needs {row['needs']}; from {row['source']}"
    if row["archive"]:
        yield f"{'':<16} `bench data download {row['name']}` gets it"


@app.command("verify")
@command()
def verify(
    name: str,
    *,
    data_root: Path | None = None,
    allow_partial: bool = False,
    as_json: bool = False,
    plugin: list[Path] | None = None,
) -> None:
    """Decode every image of a data set and count its splits.

    The exit code is 1 if images are damaged.

    \b
    bench data verify cub200
    bench data verify cub200 --data-root data
    bench data verify ndigit

    Options:
        name: Data set.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    cls = _known(data_root, tuple(plugin or ())).dataset(name)
    _verify(_open(cls, root_of(cls, data_root, data_home()), allow_partial), as_json)


def _known(data_root: Path | None, plugins: tuple[Path, ...]) -> Registry:
    """All data sets, with the features that were imported to a folder."""
    return Registry("datasets", plugins, tuple(home for home in (data_root, data_home()) if home))


def _verify(dataset: Dataset, as_json: bool = False) -> None:
    from rich.console import Console

    from ..datasets.releases import PhotoDataset
    from ..progress import progress_bar

    found: Row
    try:
        if isinstance(dataset, PhotoDataset):
            with progress_bar(Console(stderr=True)) as progress:
                found = dataset.verify(progress)
        else:
            found = dataset.verify()
    except ValueError as error:
        raise UserError(f"data set {dataset.name!r}: {error}") from None
    output(found, _verified(dataset.name, found), as_json)
    if found.get("damaged"):
        raise typer.Exit(1)


def _verified(name: str, found: Row) -> Iterator[str]:
    """Lines about the images of a data set and its splits."""
    if "release" in found:
        yield f"{found['release']} at {found['folder']}: {found['images']} images, {found['classes']} classes"
    else:
        shape = " x ".join(map(str, found["shape"]))
        yield f"{name}: {found['images']} images of {shape}, {found['classes']} classes"
    if found.get("partial"):
        yield f"  incomplete: {found['partial']}"
    for part, numbers in found["splits"].items():
        roles = f" ({numbers['queries']} queries, {numbers['gallery']} gallery)" if "queries" in numbers else ""
        yield (
            f"  {part:<5} {numbers['images']:>6} images {numbers['classes']:>5} classes{roles}"
            f"  sha256 {numbers['manifest_sha256'][:16]}"
        )
    if soft := found.get("soft_labels"):
        yield (
            f"  label distributions ({soft['file']}): {soft['images']} of {found['images']} images,"
            f" {soft['test_images']} of {found['splits']['test']['images']} test images, {soft['classes']} classes"
        )
    if converted := found.get("converted_to_rgb"):
        yield f"  read as RGB: {', '.join(f'{count} {mode}' for mode, count in sorted(converted.items()))}"
    yield from (f"  damaged: {line}" for line in found.get("damaged", ()))


@app.command("import")
@command()
def import_data(
    name: str,
    source: list[Path],
    *,
    data_root: Path | None = None,
    allow_partial: bool = False,
    max_unpacked: Annotated[float | None, Ge(0)] = None,
    plugin: list[Path] | None = None,
) -> None:
    """Place a downloaded data set into the data root, and check it.

    It has to be the expected release, in its own layout or as parquet of Hugging Face, with a table
    `metadata.csv` or in folders `train/CLASS` and `test/CLASS`; classes are then matched by name.
    Lists and counts are checked; `bench data verify` decodes the images. Links, devices, names outside of the folder
    and archives that unpack to far more than their size are refused.

    \b
    bench data import cub200 CUB_200_2011.tgz
    bench data import cub200 CUB_200_2011.tgz --data-root data
    bench data import cars196 stanford_cars/data
    bench data import omniglot images_background.zip images_evaluation.zip

    Options:
        name: Data set.
        source: Archive (.zip, .tar, .tgz), folder or parquet, as downloaded.
        max_unpacked (GB): Unpack up to so many GB, however well packed.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    limit = None if max_unpacked is None else int(max_unpacked * 10**9)
    typer.echo(import_release(name, source, data_root or data_home(), allow_partial, tuple(plugin or ()), limit))


@app.command("download")
@command()
def download_data(
    name: str,
    *,
    mirror: str | None = None,
    checksum: str | None = None,
    data_root: Path | None = None,
    allow_partial: bool = False,
    plugin: list[Path] | None = None,
) -> None:
    """Download a data set from its owners, and check every image.

    It is unpacked into the data root.
    Source and licence are printed first. An interrupted download is resumed; the archive is removed once unpacked.
    Owners that do not serve their data openly are named with what to fetch from them.

    A copy on a mirror may be packed anew or incomplete: if it is not the owners' archive, a line says so, and its lists
    and counts decide; `bench run` takes an incomplete one with --allow-partial alone.

    \b
    bench data download cub200
    bench data download sop --mirror https://mirror.example.org/datasets

    Options:
        name: Data set.
        mirror (URL): Address of another copy: of the archive, or of the folder that contains it.
        checksum (md5:HEX|sha256:HEX): Hash that the copy of --mirror must have.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from ..datasets.downloads import mirrored
    from ..datasets.releases import PhotoDataset

    plugins, root = tuple(plugin or ()), data_root or data_home()
    cls = Registry("datasets", plugins).dataset(name)
    if not issubclass(cls, PhotoDataset):
        raise UserError(f"data set {name!r} is built in memory; there is nothing to download")
    if cls.archive is None:
        raise UserError(f"{cls.official} is not served openly: {cls.advice(data_root)}")
    if checksum is not None and mirror is None:
        raise UserError("--checksum is of a copy on a --mirror; that of the owners' archive is known")
    if checksum is not None and cls.archive.further:
        raise UserError(f"--checksum is of one archive, {cls.official} has {len(cls.archive.all())}; leave it out")
    allow_partial = allow_partial or mirror is not None
    archives = cls.archive.all()
    if mirror is not None:
        copy = partial(replace, size=0, checksum=checksum or "")
        archives = tuple(copy(each, url=mirrored(each, mirror)) for each in archives)
    if (root / name).exists():
        typer.echo(f"{cls.official} is at {root / name} already; remove it to download it anew")
    else:
        take = partial(import_release, name, root=root, allow_partial=allow_partial, plugins=plugins)
        _download(cls, archives, take, root / ".downloads")
    dataset = _open(cls, root / name, allow_partial)
    _verify(dataset)
    where = "" if data_root is None else f" --data-root {shlex.quote(str(data_root))}"
    where += " --allow-partial" if dataset.partial else ""
    typer.echo(f"next: bench run --method dul_cls --dataset {name}{where} --seeds 5")


@app.command("features")
@command()
def import_features(
    name: str, *, train: Path, test: Path, val: Path | None = None, data_root: Path | None = None
) -> None:
    """Import features that you have computed, to train heads on.

    Methods are trained on them as on a frozen network.
    Files are .npz, .safetensors or .parquet with `features [N, F]`, or `[N, V, F]` of V augmented views, and `labels
    [N]`. Optional: `ids [N]`, `class_names [C]`, `groups [N]` (classes that share a group are held out together),
    `embeddings [N, F]` of the images as they are (else the first view), `corrupted_crop [N, F]` with `severity_crop
    [N]`, and for the test `is_query` and `is_gallery [N]`. `bench embed` writes such files.

    \b
    bench data features birds --train train.npz --test test.npz
    bench run --method all --dataset birds --seeds 5

    Options:
        name: Name that the data set gets.
        train (FILE): Features of training classes.
        test (FILE): Features of test classes.
        val: Features of validation classes; without it, a quarter of those of --train.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from rich.console import Console

    from ..names import check_name
    from ..progress import progress_bar
    from ..scoring.feature_files import import_features as import_files

    root = data_root or data_home()
    check_name("data set", name)
    if name in Registry("datasets", homes=()):
        raise UserError(f"{name!r} is a data set of this package; choose another name")
    if (root / name).exists():
        raise UserError(f"{root / name} already exists; remove it first, or choose another name")
    files = {"train": train, "test": test} | ({} if val is None else {"val": val})
    with progress_bar(Console(stderr=True)) as progress:
        said = import_files(name, files, root, progress)
    where = "" if data_root is None else f" --data-root {shlex.quote(str(data_root))}"
    typer.echo("\n".join([*said, f"next: bench run --method all --dataset {name}{where} --seeds 5"]))


def _download(
    cls: type[PhotoDataset], archives: Sequence[Archive], take: Callable[[Sequence[Path]], str], folder: Path
) -> None:
    """Download archives of a data set, or copies of them, to a folder, import them with ``take``, and remove them."""
    from filelock import FileLock, Timeout
    from rich.console import Console

    from ..datasets.downloads import check_checksum, checksum_of, download
    from ..datasets.files import DataError
    from ..progress import download_bar

    assert cls.archive is not None
    paths, known = [folder / each.file for each in archives], [each for each in archives if each.checksum]
    for each in known:
        check_checksum(each.checksum)
    served = (f"{each.url}, {each.size / 1e6:,.0f} MB" if each.size else each.url for each in archives)
    lines = [("source", cls.source), ("licence", cls.licence), ("cite", cls.citation)]
    lines += [*(("archive", text) for text in served), ("to", str(folder))]
    typer.echo("\n".join([cls.summary, *(f"  {what:<8}{printable(text)}" for what, text in lines)]))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / f"{archives[0].file}.lock", timeout=0):
            for each, of_owners, path in zip(archives, cls.archive.all(), paths):
                with download_bar(Console(stderr=True)) as progress:
                    download(each.url, path, size=each.size, checksum=each.checksum, progress=progress)
                if each != of_owners and of_owners.checksum:
                    found, theirs = checksum_of(path, of_owners.checksum.partition(":")[0]), of_owners.checksum
                    if found != theirs:
                        typer.echo(f"not the owners' archive ({found}, theirs is {theirs}): packed anew, or incomplete")
            try:
                typer.echo(take(paths))
            except (UserError, DataError):
                for path in () if known == [*archives] else paths:  # those that are known to be right stay
                    path.unlink(missing_ok=True)
                raise
            for path in paths:
                path.unlink(missing_ok=True)
    except Timeout:
        raise UserError(f"another command downloads {cls.name} to {folder} at this moment; wait for it") from None


def import_release(
    name: str,
    sources: Sequence[Path],
    root: Path,
    allow_partial: bool,
    plugins: tuple[Path, ...] = (),
    limit: int | None = None,
) -> str:
    """Unpack or copy what was downloaded to ``root / name``, check that it is the right release, describe it."""
    import tempfile

    from ..datasets.archives import take
    from ..datasets.files import DataError
    from ..datasets.releases import PhotoDataset
    from ..datasets.tables import PARQUET, tables_of, unpack_parquet

    for source in sources:
        if not source.exists():
            raise UserError(f"{source}: {no_such(source, 'file or folder')}")
        if Path(os.path.realpath(root)).is_relative_to(os.path.realpath(source)):
            raise UserError(f"--data-root {root} lies inside {source}: it would be copied into itself")
    Registry("datasets", plugins).get(name)  # the name is known before it is a part of a path
    target = root / name
    if target.exists():
        raise UserError(f"{target} already exists; remove it first, or check it with `bench data verify {name}`")
    root.mkdir(parents=True, exist_ok=True)
    # Hidden: what a killed import leaves behind is never found as a data set.
    with tempfile.TemporaryDirectory(prefix=f".{name} ", dir=root) as staging:  # commands have its name in quotes
        inside = Path(staging) / name
        for source in sources:
            shards = [file for file in tables_of(source) if file.suffix.lower() in PARQUET]
            if shards:
                unpack_parquet(shards, inside, limit)
            else:
                take(source, inside, limit)
        # Checked before it is in place: a wrong download must not look like a data set afterwards.
        given = ", ".join(map(str, sources))
        try:
            dataset = _open(Registry("datasets", plugins).dataset(name), inside, allow_partial)
            if not isinstance(dataset, PhotoDataset):
                raise UserError(f"data set {name!r} is built in memory; there are no files of it")
            try:
                dataset.train_val(), dataset.test()
            except ValueError as error:
                raise UserError(f"{given}: {error}") from None
        except (UserError, DataError) as error:  # the folder of the check is gone afterwards
            said = str(error).replace(shlex.quote(f"{inside}"), shlex.quote(str(root)))
            raise UserError(said.replace(f"{inside}", given)) from None
        images, classes, partial = len(dataset.listing.ids), len(dataset.listing.names), dataset.partial
        notes = [f"\n  {note.replace(str(inside), str(target))}" for note in dataset.listing.notes]
        inside.rename(target)
    note = f"; incomplete: {partial}" if partial else ""
    folder = target if name == "folder" else root
    return (
        f"{dataset.official} is at {target}: {images} images, {classes} classes{note};"
        f" `bench data verify {name} --data-root {shlex.quote(str(folder))}` decodes them" + "".join(notes)
    )


def _open(cls: type[Dataset], root: Path | None, allow_partial: bool) -> Dataset:
    from ..datasets.releases import PhotoDataset

    return cls(root, allow_partial=allow_partial, threads=cores()) if issubclass(cls, PhotoDataset) else cls(root)
