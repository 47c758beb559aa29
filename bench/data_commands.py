"""``bench data``: which data sets there are, whether files are whole, and putting a release in its place."""

from __future__ import annotations

import contextlib
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

from .errors import UserError
from .machine import cores
from .progress import progress_bar
from .registry import Registry

_ARCHIVE_ERRORS = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, tarfile.TarError, zlib.error)


def data_rows(plugins: tuple[Path, ...]) -> list[dict[str, Any]]:
    """Rows of ``bench data list``."""
    rows = []
    for entry in Registry("datasets", plugins):
        cls = entry.load()
        held = {key: getattr(cls, key, "") for key in ("official", "needs", "source")}
        rows.append({"name": entry.name, "summary": entry.summary, "embedded": cls.embedded, **held})
    return rows


def data_verify_command(
    name: str, root: Path, allow_partial: bool, plugins: tuple[Path, ...], quiet: bool
) -> dict[str, Any]:
    """``bench data verify``: what is there, printed unless quiet."""
    from rich.console import Console

    dataset = _photo_dataset(name, root, allow_partial, plugins)
    try:
        with progress_bar(Console(stderr=True)) as progress:
            found: dict[str, Any] = dataset.verify(progress)
    except ValueError as error:
        raise UserError(str(error)) from None
    if quiet:
        return found
    print(f"{found['release']} at {found['folder']}: {found['images']} images, {found['classes']} classes")
    if found["partial"]:
        print(f"  incomplete: {found['partial']}")
    for part, numbers in found["splits"].items():
        roles = f" ({numbers['queries']} queries, {numbers['gallery']} gallery)" if "queries" in numbers else ""
        print(
            f"  {part:<5} {numbers['images']:>6} images {numbers['classes']:>5} classes{roles}"
            f"  sha256 {numbers['manifest_sha256'][:16]}"
        )
    if "soft_labels" in found:
        soft = found["soft_labels"]
        print(
            f"  label distributions ({soft['file']}): {soft['images']} of {found['images']} images,"
            f" {soft['test_images']} of {found['splits']['test']['images']} test images, {soft['classes']} classes"
        )
    if found["converted_to_rgb"]:
        kinds = ", ".join(f"{count} {mode}" for mode, count in sorted(found["converted_to_rgb"].items()))
        print(f"  read as RGB: {kinds}")
    for line in found["damaged"]:
        print(f"  damaged: {line}")
    return found


def data_import_command(name: str, source: Path, root: Path, allow_partial: bool) -> str:
    """``bench data import``: unpack or copy, then check; returns what was found."""
    import shutil
    import tempfile

    if not source.exists():
        raise UserError(f"{source}: no such file or folder")
    if root.resolve().is_relative_to(source.resolve()):
        raise UserError(f"--data-root {root} lies inside {source}: it would be copied into itself")
    target = root / name
    if target.exists():
        raise UserError(f"{target} is there already; remove it first, or check it with `bench data verify {name}`")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as staging:
        inside = Path(staging) / name
        try:
            if source.is_dir():
                shutil.copytree(source, inside)
            else:
                _unpack(source, inside)
        except _ARCHIVE_ERRORS as error:
            what = "cannot be copied" if source.is_dir() else "not an archive that can be unpacked"
            raise UserError(f"{source}: {what} ({_first_line(error)})") from None
        for archive in sorted(path for s in (".zip", ".tgz", ".tar.gz", ".tar") for path in inside.rglob(f"*{s}")):
            with contextlib.suppress(*_ARCHIVE_ERRORS):  # an encrypted one that is not needed, say
                _unpack(archive, archive.parent)
        # Checked before it is in place: a wrong download must not look like a data set afterwards.
        dataset = _photo_dataset(name, inside, allow_partial, ())
        try:
            dataset.train_val(), dataset.test()
        except ValueError as error:
            raise UserError(f"{source}: {error}") from None
        images, classes, partial = len(dataset.listing.ids), len(dataset.listing.names), dataset.partial
        inside.rename(target)
    note = f"; incomplete: {partial}" if partial else ""
    where = f"; use --data-root {target}" if name == "folder" else ""
    return f"{dataset.official} is at {target}: {images} images, {classes} classes{note}{where}"


def _photo_dataset(name: str, root: Path, allow_partial: bool, plugins: tuple[Path, ...]) -> Any:
    from .datasets.errors import DataError

    cls = Registry("datasets", plugins).get(name).load()
    if not hasattr(cls, "verify"):
        raise UserError(f"data set {name!r} is built in memory; there are no files of it")
    try:
        return cls(root, allow_partial=allow_partial, threads=cores())
    except DataError as error:
        raise UserError(str(error)) from None


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive; members that would leave the folder are refused."""
    import shutil

    options = {} if archive.name.lower().endswith(".zip") else {"filter": "data"}
    shutil.unpack_archive(archive, folder, **options)  # type: ignore[arg-type]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
