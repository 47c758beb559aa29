"""``bench data``: list data sets of image files, check them, and put a release in its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from ..errors import UserError, printable
from ..registry import Registry
from ..resources import cores
from . import completion
from .options import Json, Plugins, print_json

if TYPE_CHECKING:
    from ..datasets.dataset import Dataset
    from ..datasets.releases import PhotoDataset
    from ..datasets.verification import SplitVerification, Verification

app = typer.Typer(
    help="Place downloaded data sets where `bench run` finds them, and check them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
DataRoot = Annotated[Path, typer.Option("--data-root", help="Folder of downloaded data sets.", metavar="DIR")]
MaybeDataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder of downloaded data sets; not needed for those in memory.", metavar="DIR"),
]
AllowPartial = Annotated[bool, typer.Option("--allow-partial", help="Accept an incomplete release.")]


class DataRow(TypedDict):
    """A data set as ``bench data list`` prints it.

    Attributes:
        name: Name on the command line.
        summary: Description on one line.
        embedded: Whether the data come with the installation; others must be downloaded.
        official: Name of the published release; empty for embedded data.
        needs: Names of the files by which the release is recognised; empty for embedded data.
        source: Address at which its owners publish it; empty for embedded data.
    """

    name: str
    summary: str
    embedded: bool
    official: str
    needs: str
    source: str


@app.command("list")
def list_data(as_json: Json = False, plugin: Plugins = None) -> None:
    """List data sets, what each needs and where its owners publish it.

    \b
    bench data list
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    rows: list[DataRow] = []
    for entry in Registry("datasets", tuple(plugin or ())):
        cls = entry.load()
        rows.append(
            {
                "name": entry.name,
                "summary": entry.summary,
                "embedded": cls.embedded,
                "official": getattr(cls, "official", ""),
                "needs": getattr(cls, "needs", ""),
                "source": getattr(cls, "source", ""),
            }
        )
    if as_json:
        print_json(rows)
        return
    for row in rows:
        typer.echo(f"{row['name']:<15} {row['summary']}")
        if not row["embedded"]:
            typer.echo(f"{'':<15} needs {row['needs']}; from {row['source']}")


@app.command("verify")
def verify(
    name: Annotated[str, typer.Argument(help="Data set.", autocompletion=completion.DATASET)],
    data_root: MaybeDataRoot = None,
    allow_partial: AllowPartial = False,
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Decode every image of a data set and print the counts of its splits; exit code 1 if images are damaged.

    \b
    bench data verify cub200 --data-root data
    bench data verify ndigit
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from ..datasets.releases import PhotoDataset

    dataset = _open(name, data_root, allow_partial, tuple(plugin or ()))
    try:
        if isinstance(dataset, PhotoDataset):
            damaged = _verify_photographs(dataset, as_json)
        else:
            damaged = _verify_in_memory(dataset, as_json)
    except ValueError as error:
        raise UserError(f"data set {name!r}: {error}") from None
    if damaged:
        raise typer.Exit(1)


def _verify_photographs(dataset: PhotoDataset, as_json: bool) -> bool:
    from rich.console import Console

    from ..progress import progress_bar

    with progress_bar(Console(stderr=True)) as progress:
        verification = dataset.verify(progress)
    if as_json:
        print_json(verification)
    else:
        _print_verification(verification)
    return bool(verification["damaged"])


def _verify_in_memory(dataset: Dataset, as_json: bool) -> bool:
    from ..datasets.verification import verify_in_memory

    verification = verify_in_memory(dataset)
    if as_json:
        print_json(verification)
    else:
        shape = " x ".join(map(str, verification["shape"]))
        print(f"{dataset.name}, built in memory: {verification['images']} images of {shape},", end=" ")
        print(f"{verification['classes']} classes")
        _print_splits(verification["splits"])
    return False


@app.command("import")
def import_data(
    name: Annotated[str, typer.Argument(help="Data set.", autocompletion=completion.DATASET)],
    source: Annotated[Path, typer.Argument(help="Archive (.zip, .tar, .tgz) or folder, as downloaded.")],
    data_root: DataRoot,
    allow_partial: AllowPartial = False,
    max_unpacked: Annotated[
        float | None,
        typer.Option("--max-unpacked", min=0, help="Unpack up to so many GB, however well packed.", metavar="GB"),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Unpack or copy a downloaded data set into the data root, and check that it is the expected release.

    Lists and counts are checked; `bench data verify` decodes the images. Links, devices, names outside of the folder
    and archives that unpack to far more than their size are refused.

    \b
    bench data import cub200 CUB_200_2011.tgz --data-root data
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    limit = None if max_unpacked is None else int(max_unpacked * 10**9)
    typer.echo(import_release(name, source, data_root, allow_partial, tuple(plugin or ()), limit))


def _print_verification(verification: Verification) -> None:
    print(
        f"{verification['release']} at {printable(verification['folder'])}: {verification['images']} images,"
        f" {verification['classes']} classes"
    )
    if verification["partial"]:
        print(f"  incomplete: {verification['partial']}")
    _print_splits(verification["splits"])
    if "soft_labels" in verification:
        soft = verification["soft_labels"]
        print(
            f"  label distributions ({soft['file']}): {soft['images']} of {verification['images']} images,"
            f" {soft['test_images']} of {verification['splits']['test']['images']} test images,"
            f" {soft['classes']} classes"
        )
    if verification["converted_to_rgb"]:
        kinds = ", ".join(f"{count} {mode}" for mode, count in sorted(verification["converted_to_rgb"].items()))
        print(f"  read as RGB: {kinds}")
    for line in verification["damaged"]:
        print(f"  damaged: {printable(line)}")


def _print_splits(splits: Mapping[str, SplitVerification]) -> None:
    for part, numbers in splits.items():
        roles = f" ({numbers['queries']} queries, {numbers['gallery']} gallery)" if "queries" in numbers else ""
        print(
            f"  {part:<5} {numbers['images']:>6} images {numbers['classes']:>5} classes{roles}"
            f"  sha256 {numbers['manifest_sha256'][:16]}"
        )


def import_release(
    name: str,
    source: Path,
    root: Path,
    allow_partial: bool,
    plugins: tuple[Path, ...] = (),
    limit: int | None = None,
) -> str:
    """Unpack or copy a downloaded data set to ``root / name``, and check that it is the expected release.

    Args:
        name: Name of the data set.
        source: Downloaded archive or folder.
        root: Folder of downloaded data sets.
        allow_partial: Whether to accept an incomplete release.
        plugins: Plug-in files, whose data sets are known too.
        limit: Most bytes to unpack; see :func:`~bench.datasets.archives.take`.

    Returns:
        Description of what was found, for the user.

    Raises:
        UserError: If the source cannot be unpacked, is not the expected release, or the target exists.
    """
    import tempfile

    from ..datasets.archives import take
    from ..datasets.errors import DataError

    if not source.exists():
        raise UserError(f"{source}: no such file or folder")
    if root.resolve().is_relative_to(source.resolve()):
        raise UserError(f"--data-root {root} lies inside {source}: it would be copied into itself")
    Registry("datasets", plugins).get(name)  # the name is known before it is a part of a path
    target = root / name
    if target.exists():
        raise UserError(f"{target} already exists; remove it first, or check it with `bench data verify {name}`")
    root.mkdir(parents=True, exist_ok=True)
    # Hidden: what a killed import leaves behind is never found as a data set.
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as staging:
        inside = Path(staging) / name
        try:
            take(source, inside, limit)
        except DataError as error:
            raise UserError(str(error)) from None
        # Checked before it is in place: a wrong download must not look like a data set afterwards.
        dataset = _release(name, inside, allow_partial, plugins)
        try:
            dataset.train_val(), dataset.test()
        except ValueError as error:
            raise UserError(f"{source}: {error}") from None
        images, classes, partial = len(dataset.listing.ids), len(dataset.listing.names), dataset.partial
        inside.rename(target)
    note = f"; incomplete: {partial}" if partial else ""
    folder = target if name == "folder" else root
    return (
        f"{dataset.official} is at {target}: {images} images, {classes} classes{note};"
        f" `bench data verify {name} --data-root {folder}` decodes them"
    )


def _release(name: str, root: Path, allow_partial: bool, plugins: tuple[Path, ...]) -> PhotoDataset:
    from ..datasets.releases import PhotoDataset

    dataset = _open(name, root, allow_partial, plugins)
    if not isinstance(dataset, PhotoDataset):
        raise UserError(f"data set {name!r} is built in memory; there are no files of it")
    return dataset


def _open(name: str, root: Path | None, allow_partial: bool, plugins: tuple[Path, ...]) -> Dataset:
    from ..datasets.errors import DataError
    from ..datasets.releases import PhotoDataset

    cls = Registry("datasets", plugins).dataset(name)
    try:
        if issubclass(cls, PhotoDataset):
            return cls(root, allow_partial=allow_partial, threads=cores())
        return cls(root)
    except DataError as error:
        raise UserError(str(error)) from None
