"""Testing again what is tested: values of tests from the arrays that a finished test has kept, without a training."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from .. import versions
from ..errors import UnitFailed, UserError, first_line
from ..methods.distributions.arrays import from_arrays
from ..methods.scorers.registry import get_scorer
from ..protocols.declare import run_battery
from ..protocols.embeddings import Embeddings
from ..protocols.known_tests import load_tests
from ..protocols.rows import SplitRow
from ..site import Site
from ..store.files import DamagedFile, file_sha256, unpacked
from ..store.folder import Store
from ..store.records import ROW_KEYS, RescoreRecord, TestRecord
from ..store.specs import Cell, RescoreSpec
from .embedded_model import ConcatenatedModels, Embedded
from .environment import environment
from .networks import load_model
from .running import Running
from .testing import draw_seed, mean_rows, noise_of, options_of, view_of_split, without_nan

if TYPE_CHECKING:
    from ..datasets.dataset import ImageSet

TOLERANCE = 0.005
"""Largest difference of retrieval values that a copy of the embeddings in float16 may cause."""

OF_IMAGES = frozenset({"soft_labels", "posterior"})
"""What a test may need of the images themselves, which no array file has."""


@dataclass(frozen=True, kw_only=True)
class StoredModel(Embedded):
    """One tested model, as its array file has it."""

    ids: tuple[str, ...]
    labels: Tensor
    roles: Mapping[str, Tensor]
    quality: Mapping[str, Tensor]


class Arrays(NamedTuple):
    """Array files of a test with their SHA-256; ``float16`` is whether they are the copy of an archived test."""

    files: dict[str, tuple[Path, str]]
    float16: bool


def rescore(record: TestRecord, site: Site, groups: Sequence[str], arrays: Store | None = None) -> RescoreRecord:
    """Compute tests from the arrays that a finished test, or another results folder, has kept, and write their record.

    Nothing is trained or embedded. A rescoring that is there already is read, not done again. Groups of tests that need
    images that are not there give nothing. Arrays that are missing, damaged or do not give the values that the test has
    measured are a failure.
    """
    started = time.perf_counter()
    found = find_arrays(record, site.store, arrays)
    options = _trained_options(record, found, site, arrays)
    scorers = scorers_of(record)
    entries = {"engine": versions.engine("testing")}
    entries |= {f"test.{name}": versions.test(name) for name in groups}
    entries |= {f"scorer.{name}": versions.scorer(name) for name in scorers}
    spec = RescoreSpec(
        test=record.unit,
        versions={name: versions.version(entry) for name, entry in entries.items()},
        groups=tuple(sorted(groups)),
        arrays={name: digest for name, (_, digest) in found.files.items()},
        float16=found.float16,
        options=options,
    )
    done = site.store.rescored(record.cell, spec.id)
    if done is not None:
        return done
    models = [read_model(path, record.role.primary_scorer, of) for (path, _), of in zip(found.files.values(), options)]
    computable = tuple(name for name in scorers if _is_computable(name, options))
    rows = stored_rows(record, models, groups, computable, site)
    known = [] if "retrieval" in groups else stored_rows(record, models, ["retrieval"], computable[:1], site, ("test",))
    compared, difference = compare_rows(record, [*rows, *known])
    if found.float16 and (difference is None or difference > TOLERANCE):
        raise UnitFailed(f"its float16 embeddings differ by {difference} from its own values, more than {TOLERANCE}")
    made = RescoreRecord(
        unit=spec.id,
        cell=record.cell,
        spec=spec,
        rows=tuple(rows),
        compared=compared,
        largest_difference=difference,
        left_out=tuple(name for name in scorers if name not in computable),
        environment=environment(site, started, Running()),
        finished=time.time(),
    )
    site.store.write(made)
    return made


def check_values(record: TestRecord, site: Site) -> None:
    """Check that the retrieval values of an archived test follow from the float16 embeddings that it comes with."""
    found = find_arrays(record, site.store)
    options = _trained_options(record, found, site, None)
    models = [read_model(path, record.role.primary_scorer, of) for (path, _), of in zip(found.files.values(), options)]
    scorer = next(name for name in scorers_of(record) if _is_computable(name, options))
    _, difference = compare_rows(record, stored_rows(record, models, ["retrieval"], (scorer,), site))
    if difference is None or difference > TOLERANCE:
        raise UnitFailed(f"its values differ by {difference} from those of its embeddings, more than {TOLERANCE}")


def scorers_of(record: TestRecord) -> tuple[str, ...]:
    """Names of the scorers that a test has ranked with, the method's own first."""
    return tuple(dict.fromkeys([record.role.primary_scorer, "cosine", *record.spec.scorers]))


def _is_computable(scorer: str, options: Iterable[Mapping[str, float]]) -> bool:
    return all(set(get_scorer(scorer).options) <= of.keys() for of in options)


def find_arrays(record: TestRecord, store: Store, other: Store | None = None) -> Arrays:
    """Array files of a test, checked for their SHA-256.

    They are looked for in the folder of the test, then in another results folder, then as a copy in float16. Models
    side by side have the arrays of the test of the same models one by one.
    """
    owner = _owner(record, store)
    for place in filter(None, (store, other)):
        folder = place.unit_dir(owner.cell, "test", owner.unit)
        if owner.files and all((folder / name).exists() for name in owner.files):
            for name, digest in owner.files.items():
                if file_sha256(folder / name) != digest:
                    raise UnitFailed(f"{folder / name} is damaged: its SHA-256 is not that of its record")
            return Arrays({name: (folder / name, digest) for name, digest in sorted(owner.files.items())}, False)
    path = store.float16(owner)
    if path is not None:
        return Arrays({path.name: (path, file_sha256(path))}, True)
    missing = min(owner.files, default="embeddings.safetensors")
    raise UnitFailed(
        f"{missing} of test {owner.unit} is missing; name the results folder that has it with --arrays"
        if store.archive_of(owner.cell, "test", owner.unit)
        else f"{missing} of test {owner.unit} is missing; the command that made it makes it again"
    )


def _owner(record: TestRecord, store: Store) -> TestRecord:
    """Record of the test that has the arrays of these models."""
    if record.files:
        return record
    same = (test for test in store.tests(record.cell) if test.spec.train == record.spec.train and test.files)
    return next(same, record)


def _trained_options(
    record: TestRecord, found: Arrays, site: Site, other: Store | None
) -> tuple[dict[str, float], ...]:
    """Trained parameters of the method's scorer, one mapping per array file; empty if it has none, or none is kept."""
    if not any(get_scorer(name).options for name in scorers_of(record)):
        return tuple({} for _ in found.files)
    if found.float16:
        return tuple(json.loads(_metadata(_content(path)).get("options", "{}")) for path, _ in found.files.values())
    joint = record.columns.ensemble == "seeds"
    units = record.spec.train[:1] if joint else record.spec.train
    return tuple(
        trained_options(record.trained_cell, unit, site, other) for unit, _ in zip(units, found.files, strict=True)
    )


def trained_options(cell: Cell, unit: str, site: Site, other: Store | None = None) -> dict[str, float]:
    """Trained parameters of a method's scorer, from the weights of a training; empty if these are not there."""
    for place in filter(None, (site.store, other)):
        try:
            model, _ = load_model(cell, unit, site.model_copy(update={"results": str(place.root)}))
        except (FileNotFoundError, DamagedFile):
            continue
        return {name: float(value) for name, value in model.scorer_options().items()}
    return {}


def _content(path: Path) -> bytes:
    return unpacked(path) if path.suffix == ".xz" else path.read_bytes()


def _metadata(data: bytes) -> dict[str, str]:
    """Texts in the header of a safetensors file."""
    (length,) = struct.unpack("<Q", data[:8])
    held = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return {str(key): str(value) for key, value in held.items()}


def read_model(path: Path, own_scorer: str, options: Mapping[str, float]) -> StoredModel:
    """Read an array file of a test, in full or in float16."""
    try:
        data = _content(path)
        texts, arrays = _metadata(data), load(data)
        splits = {name.partition(".")[0] for name in arrays if "." in name}
        embeddings, confidence = {}, {}
        for prefix in sorted(splits):
            split = "test" if prefix == "clean" else f"test_{prefix}"
            of_split = {
                name.partition(".")[2]: value for name, value in arrays.items() if name.startswith(f"{prefix}.")
            }
            marked = {name for name in of_split if name.startswith("confidence.")}
            confidence[split] = {name.removeprefix("confidence."): of_split[name] for name in sorted(marked)}
            parameters = {name: _full(value) for name, value in of_split.items() if name not in marked}
            embeddings[split] = from_arrays(texts["distribution"], parameters)
        return StoredModel(
            ids=tuple(texts["ids"].split("\n")),
            labels=arrays["labels"],
            roles={name: arrays[name] for name in ("queries", "gallery") if name in arrays},
            quality={prefix: _quality(prefix, arrays) for prefix in splits - {"clean"}},
            embeddings=embeddings,
            confidence=confidence,
            own_scorer=own_scorer,
            options=options,
        )
    except (
        OSError,
        DamagedFile,
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        struct.error,
    ) as error:
        raise UnitFailed(f"{path} is no array file of a test: {first_line(error)}") from None


def _full(value: Tensor) -> Tensor:
    return value.float() if value.dtype == torch.float16 else value


def _quality(prefix: str, arrays: Mapping[str, Tensor]) -> Tensor:
    name = f"{prefix}_fraction"
    return arrays[name] if name in arrays else arrays[f"{prefix}_quality"]


def stored_rows(
    record: TestRecord,
    models: Sequence[StoredModel],
    groups: Sequence[str],
    scorers: Sequence[str],
    site: Site,
    splits: Sequence[str] = (),
) -> list[SplitRow]:
    """Rows of some tests on the test images, clean and corrupted, averaged over models unless they are side by side."""
    tests = load_tests(groups)
    needed = {name for test in tests for name in test.needs} & OF_IMAGES
    images = _images(record, site) if needed else None
    together = record.columns.ensemble == "concatenated"
    noise = noise_of(models[0].ids, record.columns.dataset, record.columns.seed)
    shown: Sequence[Embedded | ConcatenatedModels] = [ConcatenatedModels(models)] if together else models
    rows = []
    for model in shown:
        of_model: list[SplitRow] = []
        try:
            common = _common_view(record, models[0], images)
            for split in sorted(splits or models[0].embeddings, key=lambda split: (split != "test", split)):
                kind = "" if split == "test" else split.removeprefix("test_")
                quality = models[0].quality[kind] if kind else None
                view = view_of_split(common, model, kind, scorers, quality, noise, record.spec.tests.reranked)
                of_model += [{**item, "split": split} for item in run_battery(view, tests)]
        except (ValueError, IndexError, KeyError, RuntimeError) as error:  # arrays that do not fit together, too
            raise UnitFailed(f"{type(error).__name__}: {first_line(error)}") from None
        rows.append(of_model)
    return [without_nan(item) for item in mean_rows(rows)]


def _images(record: TestRecord, site: Site) -> ImageSet | None:
    """Test images of the data set; None if they are not on this machine, or are not those that were tested."""
    first = site.store.trained(record.trained_cell, record.spec.train[0])
    try:
        images = site.dataset(record.columns.dataset, None if first is None else first.spec.view).test()
    except UserError:
        return None
    return images if images.manifest_sha256() == record.manifests.get("test") else None


def _common_view(record: TestRecord, first: StoredModel, images: ImageSet | None) -> Embeddings:
    """What all splits have in common; there are no validation images, whose embeddings nothing keeps."""
    return Embeddings(
        labels=first.labels,
        ids=first.ids,
        queries=first.roles.get("queries"),
        gallery=first.roles.get("gallery"),
        soft_labels=None if images is None else images.soft_labels,
        posterior=None if images is None else images.posterior,
        seed=partial(draw_seed, record.columns.dataset),
        options=options_of(record.spec.tests),
    )


def key_of(item: SplitRow) -> tuple[object, ...]:
    """Columns that identify a row within a test."""
    return tuple(item.get(name) for name in ROW_KEYS)


def compare_rows(record: TestRecord, rows: Iterable[SplitRow]) -> tuple[int, float | None]:
    """Number of values that a test has measured, too, and their largest absolute difference; None without any."""
    own = {key_of(item): item["value"] for item in record.rows}
    pairs = {key_of(item): (own.get(key_of(item)), item["value"]) for item in rows}
    differences = [abs(one - two) for one, two in pairs.values() if one is not None and two is not None]
    return len(differences), max(differences, default=None)
