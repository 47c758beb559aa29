"""Fuzzing of every reader of files that are not trusted: damaged, spliced and lying files until the time is over.

    uv run python benchmarks/fuzz.py --reader npz [--seconds 600] [--seed 0] [--out fuzz-found]

A case is made from a valid file by its seed and number alone. It counts as a fault if its reader raises anything but
the error that the command line prints in one line, if that line is more than one, if the reader ends the process or
takes longer than 30 seconds, or if memory grows by more than 128 MB and 64 times the file. Faults are printed with
their case, their files are kept under --out, and the exit code is 1. Memory is watched on Linux only.

Readers: npz, safetensors, parquet, features, settings, records, lists, archives, images.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CASE_SECONDS = 30.0
GROWTH, TIMES = 128_000_000, 64
"""A case may grow memory by this many bytes, and by this many times its file."""
ADDRESS_SPACE = 4_000_000_000
"""Address space of the process beyond that of its start: what is reserved and not touched counts here."""
LONGEST_MESSAGE = 2000
LIMITS = {"BENCH_MAX_UNPACKED": "16000000", "BENCH_MAX_PIXELS": "10000000"}
"""Limits of the readers during fuzzing, so that what passes them is noticed."""

Case = tuple[str, bytes]
"""Name of a file, which says what it is, and its content."""


class Reader:
    """A reader under test; subclasses make valid files and read one from an empty folder of its own."""

    parts_of_whole: float = 0.5
    """Share of the cases that are changed inside of their container, rather than as bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def valid(self, rng: random.Random) -> Case:
        """A whole file."""
        raise NotImplementedError

    def inside(self, rng: random.Random, case: Case) -> Case:
        """A file changed inside of its container: lengths, checksums and packing of the container fit the change."""
        return case[0], mutate(rng, case[1])

    def read(self, path: Path) -> None:
        """Read a file; what the command line prints in one line is raised as ``UserError``."""
        raise NotImplementedError

    def refusals(self) -> tuple[type[Exception], ...]:
        """The errors that the command line prints in one line."""
        from bench.datasets.files import DataError
        from bench.errors import UserError

        return (UserError, DataError)

    def case(self, rng: random.Random) -> Case:
        """A case: a valid file, changed as bytes, inside, or both."""
        name, data = self.valid(rng)
        chosen = rng.random()
        if chosen < self.parts_of_whole:
            name, data = self.inside(rng, (name, data))
        if chosen < 0.1 or chosen >= self.parts_of_whole:
            data = mutate(rng, data)
        return name, data


# Changes of bytes

INTEGERS = (0, 1, 2, 7, 8, 16, 64, 65, 127, 128, 255, 256, 1000, 4095, 32767, 65535, 65536, 10**6, 2**24, 2**31 - 1,
            2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
TEXTS = (b"0", b"-1", b"1e999", b"NaN", b"null", b"[]", b"{}", b'""', b"true", b"9" * 400, b"9" * 5000, b"[" * 5000,
         b'{"a":' * 3000, b"(" * 150, b"\\ud800", b"\xed\xa0\x80", b"\xff\xfe", b"\x00", b"\n", b"../../x", b"a" * 300,
         b"a.", b"'", b'"', b",", b"1,", b"0x1", b"99999999999", b"1" + b"0" * 18, "²٣".encode())  # fmt: skip


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Bytes with a few changes: bits, bytes, integers, numbers as text, cuts, repeats and moves."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if not changed:
            return bytes(rng.randbytes(rng.randrange(20)))
        rng.choice(CHANGES)(rng, changed)
    return bytes(changed)


def _flip(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _noise(rng: random.Random, data: bytearray) -> None:
    place = rng.randrange(len(data))
    for i in range(place, min(len(data), place + rng.choice((1, 2, 4, 16)))):
        data[i] = rng.choice((0, 255, rng.randrange(256)))


def _cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def _remove(rng: random.Random, data: bytearray) -> None:
    place = rng.randrange(len(data))
    del data[place : place + rng.choice((1, 2, 4, 8, 64, 512))]


def _repeat(rng: random.Random, data: bytearray) -> None:
    place = rng.randrange(len(data))
    data[place:place] = data[place : place + rng.choice((1, 8, 64, 512, 4096))] * rng.choice((1, 1, 2, 50))


def _move(rng: random.Random, data: bytearray) -> None:
    a, b = rng.randrange(len(data)), rng.randrange(len(data))
    size = rng.choice((1, 4, 8, 64, 512))
    data[a : a + size] = data[b : b + size]


def _integer(rng: random.Random, data: bytearray) -> None:
    width = rng.choice((1, 2, 4, 8))
    place = rng.randrange(len(data))
    value = rng.choice((*INTEGERS, len(data), len(data) + 1, len(data) - 1)) % (1 << 8 * width)
    data[place : place + width] = value.to_bytes(width, rng.choice(("little", "little", "big")))


def _number(rng: random.Random, data: bytearray) -> None:
    found = [match.span() for match in re.finditer(rb"-?\d+", bytes(data[:100_000]))]
    if found:
        start, end = rng.choice(found)
        value = rng.choice((*INTEGERS, -1, -(2**31), int(data[start:end][:20]) + 1))
        data[start:end] = str(value).encode() if rng.random() < 0.7 else rng.choice(TEXTS)


def _text(rng: random.Random, data: bytearray) -> None:
    place = rng.randrange(len(data))
    data[place : place + rng.choice((0, 1, 8))] = rng.choice(TEXTS)


CHANGES = (_flip, _flip, _noise, _cut, _remove, _repeat, _move, _integer, _integer, _number, _number, _text)


def mutate_value(rng: random.Random, value: Any) -> Any:
    """A JSON value with one part of it replaced by something of another kind or size."""
    odd = (None, True, 0, -1, 2**70, 10**400, 1.5, 1e308, -0.0, float("nan"), "", "x", "\ud800", "\x00", "../../../x",
           "a" * 10**4, [], {}, [[]], {"a": {}}, [None] * 50)  # fmt: skip
    if rng.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return rng.choice(odd)
    if isinstance(value, list):
        made = list(value)
        place = rng.randrange(len(made))
        made[place : place + 1] = rng.choice(([], [made[place]] * 2, [mutate_value(rng, made[place])]))
        return made
    table = dict(value)
    key = rng.choice(list(table))
    inner = table.pop(key)
    chosen = rng.random()
    if chosen < 0.8:
        table[key] = mutate_value(rng, inner)
    elif chosen < 0.9:
        table[str(rng.choice(("x", "../x", "\ud800", key + "x")))] = inner
    return table


# Readers of files of embeddings


def arrays(rng: random.Random, texts: bool = True) -> dict[str, Any]:
    """Arrays of a small set, not always all of them; names and masks in several forms, also wrong ones, if wanted."""
    import numpy as np

    draws = np.random.default_rng(rng.randrange(2**32))
    count, dim = rng.choice((12, 41)), rng.choice((1, 6))
    made = {
        "embeddings": draws.normal(size=(count, dim)).astype(rng.choice(("f8", "f4", "f2", "i1", ">f4"))),
        "labels": (np.arange(count) % 5).astype(rng.choice(("i8", "u1", ">i4"))),
        "confidence": draws.normal(size=count),
        "variance": draws.uniform(0.1, 1, size=(count, dim) if rng.random() < 0.5 else count),
        "quality": draws.normal(size=count).astype("f4"),
        "is_query": draws.random(count) < 0.9,
        "is_gallery": np.ones(count, dtype=bool),
        "ids": np.array([f"é/{i}" for i in range(count)], dtype=rng.choice(("U", "U8"))),
        "class_names": np.array(["a", "b"]),
        "normalize": np.array(rng.random() < 0.5),
    }
    if texts:
        names = np.array([f"é{i}" for i in made["labels"]])
        forms = (made["labels"], names, names.astype("U4"), np.char.encode(names, rng.choice(("utf-8", "latin-1"))))
        made["labels"] = rng.choice(forms)
        made["ids"] = rng.choice((made["ids"], np.char.encode(made["ids"], "utf-8"), np.arange(count)))
        made["is_query"] = made["is_query"].astype(rng.choice(("?", "?", "i1", "f4", "U5")))
    kept = {key: value for key, value in made.items() if key in ("embeddings", "labels") or rng.random() < 0.5}
    return {key: kept[key] for key in rng.sample(list(kept), len(kept))}


class Embeddings(Reader):
    """Files that ``bench score`` reads."""

    suffix = ""

    def read(self, path: Path) -> None:
        """Read the file and check its arrays."""
        from bench.scoring.embedding_set import EmbeddingSet
        from bench.scoring.files import read_embeddings

        found, _ = read_embeddings(path)
        bool(found.get("normalize", True))
        EmbeddingSet.of(found).digest()


class Npz(Embeddings):
    """NumPy's archives: members are changed and packed again, some twice or under another's name."""

    suffix = ".npz"

    def valid(self, rng: random.Random) -> Case:
        """An archive of NumPy, packed or not."""
        import numpy as np

        buffer = io.BytesIO()
        (np.savez_compressed if rng.random() < 0.5 else np.savez)(buffer, **arrays(rng))
        return "case.npz", buffer.getvalue()

    def inside(self, rng: random.Random, case: Case) -> Case:
        """Members changed, and packed with checksums that fit."""
        with zipfile.ZipFile(io.BytesIO(case[1])) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
        place = rng.randrange(len(members))
        name, data = members[place]
        chosen = rng.random()
        if chosen < 0.7:  # most of a member is data, in which little can go wrong
            members[place] = name, mutate(rng, data[:128]) + data[128:]
        elif chosen < 0.8:
            members[place] = name, data + bytes(rng.choice((1, 10**6, 3 * 10**7)))
        elif chosen < 0.9:
            members.append((rng.choice(members)[0], data))
        else:
            members[place] = rng.choice(("labels", "x.npy", "../x.npy", "\udcff.npy", "confidences.npy")), data
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", rng.choice((0, 8, 8, 12, 14))) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # repeated names
            for name, data in members:
                archive.writestr(name.encode("utf-8", "replace").decode(), data)
        return case[0], buffer.getvalue()


class Safetensors(Embeddings):
    """safetensors: the JSON header is changed, and its length corrected."""

    suffix = ".safetensors"

    def valid(self, rng: random.Random) -> Case:
        """A file as ``bench embed`` writes it, or of numbers that NumPy lacks."""
        import torch
        from safetensors.torch import save

        found = arrays(rng, texts=False)
        names = {key: json.dumps(found.pop(key).tolist()) for key in ("ids", "class_names") if key in found}
        tensors = {key: torch.from_numpy(value.astype(value.dtype.newbyteorder("="))) for key, value in found.items()}
        kind = rng.choice(("", "", "bfloat16", "float8_e4m3fn", "float8_e5m2"))
        tensors["embeddings"] = tensors["embeddings"].to(getattr(torch, kind, None))
        return "case.safetensors", save(tensors, names)

    def inside(self, rng: random.Random, case: Case) -> Case:
        """A changed header with its right length, or another length."""
        size = struct.unpack("<Q", case[1][:8])[0]
        header, data = case[1][8 : 8 + size], case[1][8 + size :]
        if rng.random() < 0.5:
            header = mutate(rng, header)
        else:
            header = json.dumps(mutate_value(rng, json.loads(header))).encode()
        return case[0], struct.pack("<Q", len(header)) + header + data


class Parquet(Embeddings):
    """Parquet: all packings and encodings, a column per dimension, constant columns of many rows, changed footers."""

    suffix = ".parquet"

    def valid(self, rng: random.Random) -> Case:
        """A table with its columns in one of the forms that are read."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        found = {key: value.astype(value.dtype.newbyteorder("=")) for key, value in arrays(rng).items()}
        found.pop("class_names", None)
        count = len(found["labels"])
        if rng.random() < 0.1:  # constant columns: a few bytes that stand for many
            count = rng.choice((10**5, 10**6))
            found = {"embeddings": np.ones((count, 2), "f4"), "labels": np.zeros(count, "i8")}
        columns: dict[str, Any] = {}
        for key, value in found.items():
            if value.ndim == 2 and rng.random() < 0.4:
                columns |= {f"{key}_{i}": pa.array(value[:, i]) for i in range(value.shape[1])}
            elif value.ndim == 2:
                flat = pa.array(value.reshape(-1))
                columns[key] = pa.FixedSizeListArray.from_arrays(flat, value.shape[1])
                form = rng.choice(("fixed", "list", "nested", "tensor"))
                if form in ("list", "nested"):
                    columns[key] = columns[key].cast(pa.list_(flat.type))
                if form == "nested":
                    columns[key] = pa.ListArray.from_arrays(np.arange(count + 1, dtype="i4"), columns[key])
                if form == "tensor":
                    columns[key] = pa.FixedShapeTensorArray.from_numpy_ndarray(value)
            else:
                columns[key] = pa.array(np.broadcast_to(value, (count,)))
                if key == "ids" and rng.random() < 0.3:
                    columns[key] = columns[key].dictionary_encode()
        texts = [key for key in ("ids", "labels") if key in found and found[key].dtype.kind in "US"]
        chosen = rng.choice(("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"))
        encoding = None if rng.random() < 0.5 else dict.fromkeys(texts, chosen)
        buffer = io.BytesIO()
        pq.write_table(
            pa.table(columns), buffer, compression=rng.choice(("snappy", "gzip", "zstd", "brotli", "none")),
            use_dictionary=encoding is None, column_encoding=encoding, data_page_version=rng.choice(("1.0", "2.0")),
            write_statistics=rng.random() < 0.5, row_group_size=rng.choice((max(7, count // 4), 10**6)),
            write_page_checksum=rng.random() < 0.2, store_schema=rng.random() < 0.7,
        )  # fmt: skip
        return "case.parquet", buffer.getvalue()

    def inside(self, rng: random.Random, case: Case) -> Case:
        """A changed footer with its right length, or the header of a page."""
        size = struct.unpack("<I", case[1][-8:-4])[0]
        pages, footer = case[1][: -8 - size], case[1][-8 - size : -8]
        if rng.random() < 0.6:
            footer = mutate(rng, footer)
        else:
            place = rng.choice((4, rng.randrange(len(pages))))
            changed = bytearray(pages[place : place + 40])
            rng.choice((_flip, _noise, _integer))(rng, changed)
            pages = pages[:place] + bytes(changed[: len(pages) - place]) + pages[place + len(changed) :]
        return case[0], pages + footer + struct.pack("<I", len(footer)) + b"PAR1"


class Features(Reader):
    """Files that ``bench data features`` imports, of every format and as both splits."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.formats = [kind(folder) for kind in (Npz, Safetensors, Parquet)]

    def valid(self, rng: random.Random) -> Case:
        """A file of embeddings, which are features of one view."""
        return rng.choice(self.formats).valid(rng)

    def inside(self, rng: random.Random, case: Case) -> Case:
        """A file changed as others of its format."""
        return next(each for each in self.formats if case[0].endswith(each.suffix)).inside(rng, case)

    def read(self, path: Path) -> None:
        """Import the file."""
        from bench.scoring.feature_files import import_features

        try:
            import_features("mine", {"train": path, "test": path}, self.folder / "data", lambda *_: None)
        finally:
            shutil.rmtree(self.folder / "data", ignore_errors=True)


# Readers of settings and records


class Settings(Reader):
    """Files of ``--hparams``, JSON and TOML, and values of ``--set``."""

    table: dict[str, Any] = {  # noqa: RUF012
        "optim.lr": 0.01, "optim.epochs": 10, "optim.milestones": [2, 5], "optim.optimizer": "adamw",
        "optim.decay_objective": True, "cosface": {"method.scale": 16, "method.margin": 0.3},
    }  # fmt: skip

    def __init__(self, folder: Path) -> None:
        from bench.site import Site

        super().__init__(folder)
        site = Site(results=str(folder))
        self.method, self.recipe = site.methods.method("cosface"), site.recipe("ndigit")

    def valid(self, rng: random.Random) -> Case:
        """Settings of one method and of all."""
        if rng.random() < 0.5:
            return "case.json", json.dumps(self.table, indent=rng.choice((None, 1))).encode()
        lines = [f'"{key}" = {json.dumps(value)}' for key, value in self.table.items() if key != "cosface"]
        lines += ["[cosface]", *(f'"{key}" = {value}' for key, value in self.table["cosface"].items())]
        return "case.toml", "\n".join(lines).encode()

    def inside(self, rng: random.Random, case: Case) -> Case:
        """A value of another kind."""
        if case[0] == "case.json":
            return case[0], json.dumps(mutate_value(rng, self.table)).encode()
        return super().inside(rng, case)

    def read(self, path: Path) -> None:
        """Read the file, and make the setting of a method."""
        from bench.planning.experiment import read_settings_file
        from bench.planning.setting import build, from_file, from_user, layer, part
        from bench.seeds import content_id

        method, values = self.method, layer(optim=self.recipe.end_to_end.values())
        file = read_settings_file(str(path), ["cosface", "pfe"])
        values |= from_file(file.by_method[method.name], file.path, method, values)
        shared = {key: str(value) for key, value in file.by_method["pfe"].items()}
        values |= from_user(shared, method, self.recipe, False)
        content_id([build(method, values).params.model_dump(), part(values, "optim")])


class Records(Reader):
    """Records and the marker of a results folder, with checksums that fit what was changed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.records = {kind: json.loads(text) for kind, text in _records(folder).items()}

    def valid(self, rng: random.Random) -> Case:
        """A record of any kind."""
        kind = rng.choice(list(self.records))
        return f"{kind}.json", json.dumps(self.records[kind], indent=1, sort_keys=True).encode()

    def inside(self, rng: random.Random, case: Case) -> Case:
        """A record with values of another kind, and the checksum of what it has become."""
        from bench.seeds import content_id

        held = json.loads(case[1])
        held.pop("checksum", None)
        for _ in range(rng.choice((1, 1, 2, 5))):
            held = mutate_value(rng, held)
        if isinstance(held, dict):
            with contextlib.suppress(ValueError):
                held["checksum"] = content_id(held)
        return case[0], json.dumps(held).encode()

    def read(self, path: Path) -> None:
        """Read the record, and write it again."""
        from bench.store.records import StudyRecord, TestRecord, TrainRecord, TrialRecord, read_marker

        kinds = {kind.kind: kind for kind in (StudyRecord, TestRecord, TrainRecord, TrialRecord)}
        if path.stem == "marker":
            read_marker(path)
            return
        record: Any = kinds[path.stem].from_json(path.read_bytes())  # type: ignore[attr-defined]
        record.to_json()
        self.folder.joinpath(*record.place)

    def refusals(self) -> tuple[type[Exception], ...]:
        """A damaged record is named, set aside and made again."""
        from bench.store.records import DamagedRecord

        return (*super().refusals(), DamagedRecord)


def _records(folder: Path) -> dict[str, bytes]:
    """A record of each kind, and the marker, of a small run."""
    runs = folder / "runs"
    small = ["--trials", "2", "--seeds", "1", "--folds", "1", "--set", "optim.epochs=1", "--results", runs]
    command = [
        Path(sys.executable).with_name("bench"),
        "run",
        "--method",
        "cosface",
        "--dataset",
        "ndigit_smoke",
        *small,
    ]
    subprocess.run(command, check=True, capture_output=True)
    files = [path.read_bytes() for path in runs.rglob("*.json")]
    shutil.rmtree(runs)
    return {json.loads(data).get("kind", "marker"): data for data in files}


# Readers of data sets


class Lists(Reader):
    """Official lists of releases, annotations of MATLAB, and tables of label distributions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.places, self.classes = _releases(folder)
        self.contents = {name: path.read_bytes() for name, path in self.places.items()}

    def valid(self, rng: random.Random) -> Case:
        """One of the lists."""
        name = rng.choice(list(self.contents))
        return name, self.contents[name]

    def inside(self, rng: random.Random, case: Case) -> Case:
        """A changed variable of a MATLAB file, packed again; a list with a changed line."""
        name, data = case
        if name.endswith(".mat"):
            unpacked = mutate(rng, zlib.decompress(data[136:]))
            packed = zlib.compress(unpacked)
            plain = data[:128] + unpacked
            return name, plain if rng.random() < 0.5 else data[:128] + struct.pack("<II", 15, len(packed)) + packed
        lines = data.splitlines(keepends=True)
        place = rng.randrange(len(lines))
        lines[place] = mutate(rng, lines[place])
        return name, b"".join(lines)

    def read(self, path: Path) -> None:
        """Find the release with this list in its place, and split it."""
        place = self.places[path.name]
        shutil.copyfile(path, place)
        try:
            data = self.classes[path.name](place.parent, allow_partial=True)
            data.train_val(), data.test()
        finally:
            place.write_bytes(self.contents[path.name])


def _releases(folder: Path) -> tuple[dict[str, Path], dict[str, Any]]:
    """Small releases whose images are empty files: by the name of a list its place and its data set."""
    import numpy as np
    from bench.datasets.cars196 import Cars196
    from bench.datasets.cub200 import CUB200
    from bench.datasets.folder import Folder
    from bench.datasets.inshop import InShop
    from bench.datasets.sop import SOP
    from scipy.io import savemat

    def touch(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    classes, places = range(1, 9), {}
    pairs = [(c, i) for c in classes for i in range(3)]
    cub, sop, shop, cars, own = (folder / name for name in ("cub", "sop", "shop", "cars", "own"))
    for root in (cub, sop, shop, cars):
        root.mkdir()
    for c, i in pairs:
        touch(cub / "images" / f"{c:03d}.B" / f"{i}.jpg")
        touch(sop / "b" / f"{c}_{i}.JPG")
        touch(shop / "img" / f"id_{c}" / f"{i}.jpg")
        touch(cars / "car_ims" / f"{c}_{i}.jpg")
        touch(own / f"c{c}" / f"{i}.png")
    texts = {
        cub / "images.txt": [f"{n} {c:03d}.B/{i}.jpg" for n, (c, i) in enumerate(pairs)],
        cub / "image_class_labels.txt": [f"{n} {c}" for n, (c, _) in enumerate(pairs)],
        cub / "classes.txt": [f"{c} {c:03d}.B" for c in classes],
        shop / "list_eval_partition.txt": [str(len(pairs)), "image_name item_id evaluation_status"]
        + [f"img/id_{c}/{i}.jpg id_{c} {'train' if c < 5 else ('query', 'gallery')[i % 2]}" for c, i in pairs],
        own / "probabilities.csv": ["path,c1,c2", *(f"c{c}/{i}.png,0.25,0.75" for c, i in pairs)],
    }
    for part, keep in (("train", range(1, 5)), ("test", range(5, 9))):
        lines = [f"{n} {c} 1 b/{c}_{i}.JPG" for n, (c, i) in enumerate(pairs) if c in keep]
        texts[sop / f"Ebay_{part}.txt"] = ["image_id class_id super_class_id path", *lines]
    for path, lines in texts.items():
        path.write_text("\n".join(lines) + "\n")
        places[path.name] = path
    held = np.empty((1, len(pairs)), dtype=[("relative_im_path", "O"), ("class", "O"), ("test", "O")])
    for n, (c, i) in enumerate(pairs):
        held[0, n] = (f"car_ims/{c}_{i}.jpg", np.uint8(c), np.uint8(0))
    savemat(cars / "cars_annos.mat", {"annotations": held}, do_compression=True)
    places["cars_annos.mat"] = cars / "cars_annos.mat"
    kinds = {cub: CUB200, sop: SOP, shop: InShop, cars: Cars196, own: Folder}
    return places, {name: kinds[path.parent] for name, path in places.items()}


class Archives(Reader):
    """Archives that ``bench data import`` unpacks: their members are changed and packed again."""

    def valid(self, rng: random.Random) -> Case:
        """A small folder of classes, packed."""
        members = [(f"c{c}/{i}.png", rng.randbytes(20)) for c in range(5) for i in range(2)]
        return _archive(rng, members)

    def inside(self, rng: random.Random, case: Case) -> Case:
        """An archive with odd names, or with many zeros; a tar file changed before it is compressed."""
        members = [(f"c{c}/{i}.png", bytes(20)) for c in range(5) for i in range(2)]
        place = rng.randrange(len(members))
        name = rng.choice(("../x", "/tmp/x", "a/../../x", "c0", "c1/0.png", "a" * 300, "\x01", "x.zip", "c:\\x"))
        members[place] = (name, rng.choice((b"", bytes(10**6), rng.randbytes(50))))
        return _archive(rng, members, lambda tar: mutate(rng, tar))

    def read(self, path: Path) -> None:
        """Import the archive."""
        from bench.commands.data import import_release

        root = self.folder / "data"
        try:
            import_release("folder", [path], root, allow_partial=True)
        finally:
            shutil.rmtree(root, ignore_errors=True)
            if any(self.folder.iterdir()):
                raise AssertionError(f"the archive wrote {next(self.folder.iterdir())}")


def _archive(
    rng: random.Random, members: Sequence[tuple[str, bytes]], change: Callable[[bytes], bytes] = bytes
) -> Case:
    suffix = rng.choice((".zip", ".tar", ".tgz", ".tar.xz"))
    buffer = io.BytesIO()
    if suffix == ".zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, data in members:
                packed.writestr(name, data)
        return f"case{suffix}", buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w", format=rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.type = rng.choice((*[tarfile.REGTYPE] * 20, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE))
            member.linkname = rng.choice(("c0", "..", "/etc/passwd"))
            tar.addfile(member, io.BytesIO(data) if member.isreg() else None)
    plain = buffer.getvalue()
    plain = change(plain) if rng.random() < 0.7 else plain
    if suffix == ".tar":
        return f"case{suffix}", plain
    import gzip
    import lzma

    return f"case{suffix}", gzip.compress(plain) if suffix == ".tgz" else lzma.compress(plain, preset=0)


class Images(Reader):
    """Image files of all formats that are read, and of some that are not, under any suffix."""

    formats = ("JPEG", "PNG", "GIF", "TIFF", "BMP", "PPM", "WEBP", "ICO", "TGA", "PCX", "EPS", "DDS", "JPEG2000", "PDF")
    parts_of_whole = 0.3

    def valid(self, rng: random.Random) -> Case:
        """A small image."""
        from PIL import Image

        mode = rng.choice(("RGB", "L", "P", "CMYK", "RGBA", "1", "I;16"))
        image = Image.frombytes("RGB", (8, 6), rng.randbytes(144)).convert("L" if mode == "I;16" else mode)
        buffer = io.BytesIO()
        with contextlib.suppress(OSError, KeyError, ValueError):
            image.save(buffer, rng.choice(self.formats))
        if not buffer.getvalue():
            image.convert("RGB").save(buffer, "PNG")
        return f"case{rng.choice(('.jpg', '.png', '.webp', '.tif', '.bmp', '.ppm'))}", buffer.getvalue()

    def inside(self, rng: random.Random, case: Case) -> Case:
        """A PNG whose chunks were changed and have right checksums; else a changed start, where the sizes are."""
        name, data = case
        if not data.startswith(b"\x89PNG"):
            return name, mutate(rng, data[:64]) + data[64:]
        made, place = data[:8], 8
        while place + 8 <= len(data):
            size, kind = struct.unpack(">I4s", data[place : place + 8])
            content = data[place + 8 : place + 8 + size]
            if rng.random() < 0.4 and content:
                content = mutate(rng, content)
            made += struct.pack(">I4s", len(content), kind) + content
            made += struct.pack(">I", zlib.crc32(kind + content))
            place += 12 + size
        return name, made

    def read(self, path: Path) -> None:
        """Decode the image."""
        from bench.datasets.decode import decode

        decode(path)


READERS: dict[str, type[Reader]] = {
    "npz": Npz, "safetensors": Safetensors, "parquet": Parquet, "features": Features, "settings": Settings,
    "records": Records, "lists": Lists, "archives": Archives, "images": Images,
}  # fmt: skip


# The process that reads


def work(name: str, seconds: float, seed: int, first: int, place: Path) -> None:
    """Read cases until the time is over; writes down the number of each, and adds a line for what is wrong with it."""
    (place / "home").mkdir(exist_ok=True)
    reader = READERS[name](place / "home")
    _warm_up(reader, random.Random(f"{name} {seed}"), place)
    _limit_address_space()
    until, number = time.monotonic() + seconds, first
    while time.monotonic() < until:
        path, size = _case(reader, name, seed, number, place)
        (place / "at").write_text(json.dumps([number, path.name]))
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)  # a thread of its own ends a process that hangs
        problem = _problem(reader, path, size)
        faulthandler.cancel_dump_traceback_later()
        if problem:
            path.replace(place / f"fault-{number}")
            with (place / "faults").open("a") as file:
                file.write(json.dumps([number, path.name, problem]) + "\n")
        path.unlink(missing_ok=True)
        number += 1
    (place / "at").write_text(json.dumps([number, ""]))


def _warm_up(reader: Reader, rng: random.Random, place: Path) -> None:
    """Read some whole files: what the first reading imports is not memory of a case."""
    for _ in range(5):
        file, data = reader.valid(rng)
        path = place / file
        path.write_bytes(data)
        with contextlib.suppress(*reader.refusals()):
            reader.read(path)
        path.unlink()


def _case(reader: Reader, name: str, seed: int, number: int, place: Path) -> tuple[Path, int]:
    file, data = reader.case(random.Random(f"{name} {seed} {number}"))
    path = place / "case" / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path, len(data)


def _problem(reader: Reader, path: Path, size: int) -> str:
    """Problem with the way a case was read; empty if there is none."""
    before = _memory(reset=True)
    problem = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)  # of arithmetic
            reader.read(path)
    except reader.refusals() as error:
        problem = _wrong_refusal(error)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:200]}"
    grown = _memory() - before
    if grown > GROWTH + TIMES * size:
        problem += f" memory grew by {grown / 1e6:.0f} MB for a file of {size} bytes"
    return problem


def _wrong_refusal(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            return f"more address space than {ADDRESS_SPACE / 1e9:g} GB was asked for: {error}"
        cause = cause.__context__
    text = str(error)
    if not text or "\n" in text or len(text) > LONGEST_MESSAGE:
        return f"not a line of at most {LONGEST_MESSAGE} characters: {text[:300]!r}"
    return ""


def _memory(reset: bool = False) -> int:
    """Largest resident memory since the last reset, bytes; 0 where there is no /proc."""
    if not sys.platform.startswith("linux"):
        return 0
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _limit_address_space() -> None:
    if sys.platform.startswith("linux"):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


# The process that watches


def fuzz(name: str, seconds: float, seed: int, out: Path) -> list[str]:
    """Fuzz one reader for some time, in processes of its own; returns the faults, each once for each kind."""
    faults: dict[str, str] = {}

    def found(number: int, file: str, problem: str, place: Path) -> None:
        kind = re.sub(r"\d+|'.*'|\".*\"", "", problem)[:80]
        if kind not in faults:
            kept = out / f"{name}-{seed}-{number}-{file}"
            left = next((path for path in (place / f"fault-{number}", place / "case" / file) if path.is_file()), None)
            if left is not None:
                out.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(left, kept)
            faults[kind] = f"{name}, seed {seed}, case {number}: {problem} ({kept})"
            print(faults[kind], flush=True)

    until, number = time.monotonic() + seconds, 0
    while (left := until - time.monotonic()) > 0:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as held:
            place = Path(held)
            command = [sys.executable, __file__, "--reader", name, "--seed", str(seed), "--seconds", str(left)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **LIMITS, "TMPDIR": held}
            done = subprocess.run([*command, "--first", str(number), "--work", held], env=environment)
            lines = (place / "faults").read_text().splitlines() if (place / "faults").exists() else []
            for line in lines:
                found(*json.loads(line), place)
            if not (place / "at").exists():
                found(number, "", f"did not start: exit code {done.returncode}", place)
                break
            number, file = json.loads((place / "at").read_text())
            if not file:
                print(f"{name}: {number} cases, seed {seed}", flush=True)
                break
            hung = time.time() - (place / "at").stat().st_mtime >= CASE_SECONDS
            ended = (
                f"hangs for more than {CASE_SECONDS:g} s" if hung else f"the process ended with code {done.returncode}"
            )
            found(number, file, ended, place)
            number += 1
    return list(faults.values())


def main() -> int:
    """Fuzz, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reader", required=True, choices=READERS)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"))
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work is not None:
        work(asked.reader, asked.seconds, asked.seed, asked.first, asked.work)
        return 0
    faults = fuzz(asked.reader, asked.seconds, asked.seed, asked.out)
    print(f"{asked.reader}: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
