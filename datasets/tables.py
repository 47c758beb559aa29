"""Images that a table lists: ``metadata.csv``, lists of paths and labels, and the parquet files of Hugging Face.

Quick to import, because a process of its own reads each parquet file, as in :mod:`.guarded`.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from .archives import BLOCK, unpacked_limit
from .files import DataError, check_regular
from .guarded import Answer, allow_memory, guarded

if TYPE_CHECKING:
    from .releases import Listing

TABLE = "metadata.csv"
"""Name of a table of images, in their folder or in one for each split."""

PARQUET = (".parquet", ".pq")

SPLITS = {"train": "dev", "training": "dev", "val": "dev", "valid": "dev", "validation": "dev"} | {
    part: part for part in ("test", "query", "gallery")
}
"""Names of splits, of a column or of files and folders, and the part of a :class:`.Listing` that each of them is."""

COLUMNS = {
    "image": ("path", "file_name", "filename", "filepath", "image", "img"),
    "label": ("label", "labels", "identity", "class", "class_name", "fine_label", "coarse_label"),
    "split": ("split",),
    "group": ("group", "camera", "sequence", "burst"),
}
"""Names of columns by what they are; of several, the first is read, but of several classes only ``label``."""

Row = tuple[str, str, str, str]
"""Path, class, split and group of an image."""

LONGEST = 1000
"""Longest path of an image and longest line of a list, characters."""

LARGEST_LIST = 256_000_000
"""Largest list of images, bytes."""


def columns(names: Sequence[str], images: Collection[str] = (), labels: Collection[str] = ()) -> dict[str, str]:
    """Names of the columns of images and classes, and if there are any of splits and groups, by what they are.

    Args:
        names: All columns.
        images: Columns that hold images, if it is not their names that tell.
        labels: Columns that are known to be classes, whatever their names.

    Raises:
        DataError: If there is none of images or classes, or which one is meant cannot be told.
    """
    found: dict[str, str] = {}
    for what, known in COLUMNS.items():
        those = [*images] if what == "image" and images else [name for name in names if name.lower() in known]
        those += [name for name in labels if what == "label" and name not in those]
        first = next((name for each in known for name in those if name.lower() == each), None)
        twice = those.count(first or "") > 1
        if len(those) > 1 and (first is None or twice or (what == "label" and first.lower() != what)):
            raise DataError(f"columns {', '.join(those)} could each be the {what}; rename the one that is to `{what}`")
        if those:
            found[what] = first or those[0]
        elif what in ("image", "label"):
            raise DataError(f"no column of {what}s ({', '.join(known)}); its columns: {', '.join(names)[:200]}")
    return found


def tables_of(source: Path) -> list[Path]:
    """Files that list images: a given file, or a folder's ``metadata.csv``, lists, or parquet files, in this order.

    Parquet files are those of the folder, or of ``data`` in it, unless there are other folders: these are the classes.
    A list, ``labels.txt`` or one for each split, such as ``train.txt``, begins with the path of a file that is there.
    """
    if source.is_file():
        return [source]
    splits = sorted(name for name in SPLITS if (source / name / TABLE).is_file())
    for files in ([source / TABLE], [source / name / TABLE for name in splits]):
        if files and all(map(_lists_images, files)):
            return files
    lists = [source / f"{name}.txt" for name in ("labels", *sorted(SPLITS))]
    if found := [file for file in lists if _lists_images(file)]:
        return found
    below = [each.name for each in os.scandir(source) if each.is_dir() and not each.name.startswith(".")]
    files = sorted((source / "data" if below else source).iterdir()) if below in ([], ["data"]) else []
    images = any(file.suffix.lower() in (".jpg", ".jpeg", ".png") for file in files)  # beside a file of embeddings
    return [] if images else [file for file in files if file.suffix.lower() in PARQUET]


def listed(source: Path) -> Listing | None:
    """List the images of a table, parts by their splits, or None; parquet files are unpacked into the cache.

    Raises:
        DataError: If a table cannot be read, or names files outside of its folder.
    """
    from .releases import IMAGE_SUFFIXES, Listing, of_system

    files = tables_of(source)
    if not files:
        return None
    root = source if source.is_dir() else source.parent
    if files[0].suffix.lower() in PARQUET:
        root = _cached(files)
        files = [root / TABLE]
    listing = Listing(root)
    lost, splits = list[str](), list[str]()
    for file in files:
        inside = file.parent.relative_to(root).as_posix()
        of_file = "" if file == root / TABLE else _split_of(file)
        for number, (path, label, split, group) in enumerate(_rows(file), 1):
            name = PurePosixPath(inside, path.replace("\\", "/")).as_posix()
            if not label:
                lost.append(f"row {number} ({name[:100]})")
                continue
            splits.append(split.lower() or of_file)
            label = normalize("NFC", label)
            listing.add(name, label, label, group=group)
    parts = parts_of({*splits})
    listing.parts = [parts[split] for split in splits]
    seen = (each.relative_to(root).parts for each in root.rglob("*") if each.suffix.lower() in IMAGE_SUFFIXES)
    hidden = (any(of_system(part) or part.startswith(".") for part in parts) for parts in seen)
    found = sum(not each for each in hidden) if source.is_dir() else 0
    if found > len(listing.ids):
        listed_in = f"{files[0].name} lists {len(listing.ids)} of {found} images"
        listing.notes.append(f"{source}: {listed_in}; the others are left out")
    if lost:
        listing.notes.append(f"{source}: {len(lost)} rows without a class are left out, the first is {lost[0]}")
    if not listing.ids:
        raise DataError(f"{source} lists no image with a class{'; ' + listing.notes[-1] if lost else ''}")
    if unknown := {*splits} - {*SPLITS, ""}:
        listing.notes.append(f"{source}: splits of no meaning here: {', '.join(sorted(unknown))[:200]}")
    listing.check_names()
    return listing


def parts_of(splits: Iterable[str]) -> dict[str, str]:
    """Part that each split is by its name, "" if it has no meaning here.

    With training and validation alone, validation is what is held out: the test.
    """
    parts = {split: SPLITS.get(split.lower(), "") for split in splits}
    training = {split for split in parts if split.lower().startswith("train")}
    if training and {*parts.values()} == {"dev"}:
        parts |= dict.fromkeys(parts.keys() - training, "test")
    return parts


def settled(listing: Listing, source: Path) -> Listing:
    """Keep the parts of splits that have different classes, or queries and gallery; else put all images together.

    Classes of training and validation are never those of the test, so splits that share classes do not count. A note
    says which it is.
    """
    parts = {*listing.parts}
    dev, test = ({k for k, p in zip(listing.classes, listing.parts) if p == part} for part in ("dev", "test"))
    if {"query", "gallery"} & parts:
        if not {"query", "gallery"} <= parts:
            raise DataError(f"{source} has {', '.join(sorted(parts))}; with queries it needs train, query and gallery")
    elif parts == {"dev", "test"} and not dev & test:
        sizes = f"{len(dev)} to train on, {len(test)} to test"
        listing.notes.append(f"{source}: its splits have different classes: {sizes}")
    else:
        if len(parts) > 1:
            share = f"share {len(dev & test)} of {len(dev | test)} classes" if dev & test else "are not of all images"
            listing.notes.append(f"{source}: its splits {share}, so they are put together")
        listing.parts = [""] * len(listing.ids)
    return listing


def _lists_images(file: Path) -> bool:
    """Check if a CSV file has columns of paths and classes, or a list begins with the path of a file that is there."""
    if not file.is_file():
        return False
    if file.suffix == ".txt":
        with suppress(DataError):
            path, label, *_ = next(_rows(file), ("", ""))
            return bool(label) and len(path) < LONGEST and os.path.exists(file.parent / path)
        return False
    try:
        with open_list(file) as lines:
            names = [name.strip().lower() for name in next(csv.reader(lines), [])]
    except (csv.Error, UnicodeDecodeError):
        return True  # whoever reads it says what is wrong
    return all(any(name in COLUMNS[what] for name in names) for what in ("image", "label"))


def open_list(file: Path) -> Any:
    """Open a list of images to read; a DataError if it is no regular file or larger than :data:`LARGEST_LIST`."""
    check_regular(file)
    if file.stat().st_size > LARGEST_LIST:
        raise DataError(f"{file}: larger than {LARGEST_LIST // 10**6} MB; not a list of images")
    return file.open(encoding="utf-8-sig", newline="")


def _rows(file: Path) -> Iterator[Row]:
    try:
        with open_list(file) as lines:
            if file.suffix == ".txt":
                for path, *label in (line.strip().rsplit(maxsplit=1) for line in lines if line.strip()):
                    yield path, *(label or [""]), "", ""
                return
            table = csv.DictReader(lines, strict=True)
            table.fieldnames = [name.strip() for name in table.fieldnames or ()]
            read = columns(table.fieldnames)
            for row in table:
                cells = {what: (row.get(name) or "").strip() for what, name in read.items()}
                path, label, split, group = (cells.get(what, "") for what in COLUMNS)
                if "\n" in path + label:
                    raise DataError(f"line {table.line_num}: a quote that opens in a row does not close in it")
                yield path, label, split, group
    except UnicodeDecodeError:
        raise DataError(f"{file}: not a text file in UTF-8") from None
    except (OSError, csv.Error, DataError) as error:
        raise DataError(f"{file}: {getattr(error, 'strerror', None) or error}") from None


def _split_of(file: Path) -> str:
    """Split that the name of a file, as in ``train-00000-of-00004.parquet``, or of its folder begins with, or none."""
    names = (re.split(r"[-.]", file.name)[0].lower(), file.parent.name.lower())
    return next((name for name in names if name in SPLITS), "")


def _cached(files: Sequence[Path]) -> Path:
    """Folder of the cache with the images of parquet files, which are unpacked if they are not there."""
    from .pixel_cache import cache_folder

    state = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    place = cache_folder() / "unpacked" / hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=place.parent) as staging:
            unpack_parquet(files, Path(staging) / "images")
            with suppress(OSError):  # another process was first
                (Path(staging) / "images").rename(place)
    return place


def unpack_parquet(files: Sequence[Path], folder: Path, limit: int | None = None) -> None:
    """Write the images of parquet files below a folder, ``CLASS/FILE``, and list them in its ``metadata.csv``.

    Args:
        files: The files, also shards; the split is a column, or what the name of a file begins with.
        folder: The folder, which is made.
        limit: Most bytes to write, a block per image at least; :func:`.unpacked_limit` of all files if None.

    Raises:
        DataError: If a file is no table of images and classes, is damaged, or unpacks to more than the limit.
    """
    if find_spec("pyarrow") is None:
        raise DataError(f"{files[0]}: Parquet needs pyarrow: `pip install 'probembed[parquet]'`")
    left = unpacked_limit(sum(file.stat().st_size for file in files)) if limit is None else limit
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / TABLE).exists():
        (folder / TABLE).write_text(",".join(("path", "label", "split", "group")) + "\n", encoding="utf-8")
    for file in files:
        try:
            check_regular(file)
            left -= guarded(_unpack, file, str(folder), _split_of(file), str(left))[0]
        except DataError:
            raise
        except ValueError as error:
            raise DataError(f"{file}: {error}") from None


def holds_images(path: Path) -> bool:
    """Check if a file is parquet with a column of images, as those of Hugging Face."""
    if path.suffix.lower() not in PARQUET or not path.is_file() or find_spec("pyarrow") is None:
        return False
    try:
        return bool(guarded(_images, path)[0])
    except ValueError:
        return False  # the reader of embeddings says what is wrong


def _images(path: str) -> Answer:
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(path)
    return [] if {"embeddings", "embeddings_0"} & {*schema.names} else _image_columns(schema), {}


def _image_columns(schema: Any) -> list[str]:
    """Columns of structures with ``bytes``, or of bytes that have the name of images."""
    from pyarrow import types

    packed = (types.is_binary, types.is_large_binary)
    return [
        field.name
        for field in schema
        if (types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0)
        or (field.name.lower() in COLUMNS["image"] and any(is_kind(field.type) for is_kind in packed))
    ]


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Names of classes by column, as Hugging Face notes them in the schema; what is not so noted is left out."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        noted = {key: features.get(key, {}) for key in schema.names}
        named = {key: each["names"] for key, each in noted.items() if each.get("_type") == "ClassLabel"}
        return {key: [*map(str, names)] for key, names in named.items() if isinstance(names, list)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _unpack(path: str, folder: str, split: str, limit: str) -> Answer:
    """In a process of its own: write the images of a file, and their rows to the table; the bytes that were written."""
    import pyarrow
    import pyarrow.parquet

    try:
        # The defaults would read a whole row group at once.
        with pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            return _written(file, Path(path).stem, Path(folder), split, int(limit)), {}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())[:160]
        raise DataError(f"not a whole Parquet file, or the disk is full ({said})") from None


def _written(file: Any, stem: str, folder: Path, split: str, limit: int) -> int:
    from pyarrow import types

    schema, spent, number, empty = file.schema_arrow, 0, -1, 0
    images, names = _image_columns(schema), _class_names(schema)
    if not images:
        raise DataError(f"no column of images (a structure with `bytes` and `path`); it has {', '.join(schema.names)}")
    read = columns([name for name in schema.names if name not in images], images, [*names])
    kind = schema.field(read["label"]).type
    plain = (types.is_integer, types.is_string, types.is_large_string, types.is_dictionary, types.is_null)
    if not any(is_kind(kind) for is_kind in plain):
        raise DataError(f"the column {read['label']} is of {kind}; classes are integers or text")
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    allow_memory(2 * min(limit, max((group.total_byte_size for group in groups), default=0)))
    words = names.get(read["label"], [])
    with (folder / TABLE).open("a", newline="", encoding="utf-8") as text:
        rows = csv.writer(text)
        for batch in file.iter_batches(batch_size=16, columns=[*read.values()], use_threads=False):
            for row in batch.to_pylist():
                number += 1
                image, label = row[read["image"]] or {}, row[read["label"]]
                content = image if isinstance(image, bytes) else image.get("bytes") or b""
                given = "" if isinstance(image, bytes) else image.get("path") or ""
                if words and isinstance(label, int):
                    label = words[label] if 0 <= label < len(words) else None
                label = "" if label is None else str(label).strip()
                empty += not content
                spent += max(len(content), BLOCK)
                if spent > limit:
                    raise DataError(
                        f"unpacks to more than {limit / 1e9:g} GB; `bench data import` has --max-unpacked GB"
                    )
                name = _free_name(folder, label, given, f"{stem}-{number}")
                (folder / name).parent.mkdir(exist_ok=True)
                with (folder / name).open("xb") as out:
                    out.write(content)  # nothing of an empty cell: an image that cannot be read
                more = [row.get(read.get(what)) for what in ("split", "group")]
                rows.writerow([name, label, more[0] or split, "" if more[1] is None else more[1]])
    if number >= 0 and empty == number + 1:
        raise DataError(f"{read['image']} has no bytes in any row, only paths; get the images that these name")
    return spent


def _free_name(folder: Path, label: str, path: str, otherwise: str) -> str:
    """A name below the folder that no file has: that of the path if it can be, else with the number of the row."""
    given = (re.sub(r"[^\w.+-]", "_", text).encode()[-100:] for text in (label, re.split(r"[/\\]", path)[-1]))
    place, base = (text.decode(errors="ignore").lstrip(".") for text in given)
    place = f"{place}_" if place == TABLE else place or "unnamed"
    name = base or otherwise
    while (folder / place / name).exists():
        name = f"{otherwise}-{name}"
    return f"{place}/{name}"
