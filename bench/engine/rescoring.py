"""Testing again what is tested: values of tests from the arrays that a finished test has kept, without a training."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load
from torch import Tensor

from .. import versions
from ..datasets.dataset import ImageSet
from ..errors import UnitFailed, UserError, first_line
from ..methods.distributions.arrays import from_arrays
from ..methods.scorers.registry import get_scorer
from ..protocols.declare import run_battery
from ..protocols.embeddings import Embeddings
from ..protocols.known_tests import load_tests
from ..protocols.rows import SplitRow
from ..site import Site
from ..store.files import file_sha256, file_texts, sha256, unpacked
from ..store.folder import Store
from ..store.records import RescoreRecord, TestRecord
from ..store.specs import RescoreSpec
from . import queries
from .embedded_model import ConcatenatedModels, Embedded
from .environment import environment
from .running import Running
from .testing import draw_seed, mean_rows, noise_of, options_of, rows_of_views, scorer_names, view_of_split, without_nan

WHERE = "name the results folder that has it with --arrays, or let the command that made it make it again"

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
    """Files of embeddings and of queries of a test with their SHA-256, by name; one of the two may be missing."""

    embeddings: dict[str, tuple[Path, str]]
    queries: dict[str, tuple[Path, str]]


def rescore(record: TestRecord, site: Site, groups: Sequence[str], arrays: Store | None = None) -> RescoreRecord:
    """Compute tests from the files that a finished test, or another results folder, has kept, and write their record.

    Nothing is trained or embedded. A rescoring that is there already is not done again, but becomes the latest. Tests
    of confidences follow from the queries, if these are kept, and all others from the embeddings. Groups of tests that
    need images that are not there give nothing. Files that are missing or damaged are a failure.
    """
    started = time.perf_counter()
    found = find_arrays(record, site.store, arrays)
    kept = set(queries.GROUPS) & {"risk", *record.spec.tests.groups} if found.queries else set()
    of_queries = [name for name in groups if name in kept]
    of_embeddings = [name for name in groups if found.embeddings and name not in of_queries]
    if not of_queries and not of_embeddings:
        raise UnitFailed(f"{min(groups)} needs embeddings, which test {record.unit} has not kept: {WHERE}")
    scorers = scorer_names(record.role.primary_scorer, record.spec)
    entries = {"engine": versions.engine("testing")}
    entries |= {f"test.{name}": versions.test(name) for name in groups}
    entries |= {f"scorer.{name}": versions.scorer(name) for name in scorers}
    spec = RescoreSpec(
        test=record.unit,
        versions={name: versions.version(entry) for name, entry in entries.items()},
        groups=tuple(sorted(groups)),
        arrays={name: digest for name, (_, digest) in (found.embeddings | found.queries).items()},
    )
    done = site.store.rescored(record.cell, spec.id)
    if done is not None:
        others = [each.finished for each in site.store.rescorings(record.cell) if each.spec.test == record.unit]
        if max(others) > done.finished:  # its code is back after another one, and counts again
            site.store.write(done := done.model_copy(update={"finished": time.time()}))
        return done
    rows = query_rows(record, found, of_queries)
    computable = scorers
    if of_embeddings:
        models = [read_model(path, record.role.primary_scorer) for path, _ in found.embeddings.values()]
        computable = tuple(name for name in scorers if not get_scorer(name).options)
        rows += stored_rows(record, models, of_embeddings, computable, site)
    without = [name for name in groups if name not in (*of_queries, *of_embeddings)]
    made = RescoreRecord(
        unit=spec.id,
        cell=record.cell,
        spec=spec,
        rows=tuple(rows),
        left_out=(*(name for name in scorers if name not in computable), *without),
        environment=environment(site, started, Running()),
        finished=time.time(),
    )
    site.store.write(made)
    return made


def find_arrays(record: TestRecord, store: Store, other: Store | None = None) -> Arrays:
    """Files of a test, checked for their SHA-256.

    They are looked for in the folder of the test, then in another results folder; queries also as a compressed copy.
    Models side by side have the embeddings of the test of the same models one by one, and no queries.
    """
    owner = _owner(record, store)
    stores = [each for each in (store, other) if each is not None]
    found = Arrays(*(_find(owner, kind, stores) for kind in ("embeddings", queries.QUERIES)))
    name = f"{queries.QUERIES}.safetensors"
    path = store.copy_of_queries(owner)
    if not found.queries and path is not None:
        _check(path, sha256(unpacked(path)), owner, name)
        found = found._replace(queries={name: (path, owner.files[name])})
    if owner is not record:
        found = found._replace(queries={})
    if not found.embeddings and not found.queries:
        missing = min(owner.files, default="embeddings.safetensors")
        raise UnitFailed(f"{missing} of test {owner.unit} is missing; {WHERE}")
    return found


def _find(record: TestRecord, kind: str, stores: Iterable[Store]) -> dict[str, tuple[Path, str]]:
    """Path and SHA-256 of the files of a kind by name, from the first results folder that has them all."""
    names = sorted(name for name in record.files if name.startswith(kind))
    for place in stores:
        paths = [place.unit_dir(record.cell, "test", record.unit) / name for name in names]
        if names and all(path.exists() for path in paths):
            for path in paths:
                _check(path, file_sha256(path), record)
            return {path.name: (path, record.files[path.name]) for path in paths}
    return {}


def _check(path: Path, digest: str, record: TestRecord, name: str = "") -> None:
    if digest != record.files.get(name or path.name):
        raise UnitFailed(f"{path} is damaged: its SHA-256 is not that of its record")


def _owner(record: TestRecord, store: Store) -> TestRecord:
    """Record of the test that has the arrays of these models."""
    if record.files:
        return record
    same = (test for test in store.tests(record.cell) if test.spec.train == record.spec.train and test.files)
    return next(same, record)


def read_model(path: Path, own_scorer: str) -> StoredModel:
    """Read a file of embeddings of a test."""
    try:
        data = path.read_bytes()
        texts, arrays = file_texts(data), load(data)
        splits = {name.partition(".")[0] for name in arrays if "." in name}
        embeddings, confidence = {}, {}
        for prefix in sorted(splits):
            split = "test" if prefix == "clean" else f"test_{prefix}"
            of_split = {
                name.partition(".")[2]: value for name, value in arrays.items() if name.startswith(f"{prefix}.")
            }
            marked = {name for name in of_split if name.startswith("confidence.")}
            confidence[split] = {name.removeprefix("confidence."): of_split[name] for name in sorted(marked)}
            parameters = {name: value for name, value in of_split.items() if name not in marked}
            embeddings[split] = from_arrays(texts["distribution"], parameters)
        return StoredModel(
            ids=tuple(texts["ids"].split("\n")),
            labels=arrays["labels"],
            roles={name: arrays[name] for name in ("queries", "gallery") if name in arrays},
            quality={prefix: arrays[queries.quality_name(prefix)] for prefix in splits - {"clean"}},
            embeddings=embeddings,
            confidence=confidence,
            own_scorer=own_scorer,
            options={},
        )
    except queries.UNREADABLE as error:
        raise UnitFailed(f"{path} is no array file of a test: {first_line(error)}") from None


def stored_rows(
    record: TestRecord,
    models: Sequence[StoredModel],
    groups: Sequence[str],
    scorers: Sequence[str],
    site: Site,
) -> list[SplitRow]:
    """Rows of some tests on the test images, clean and corrupted, averaged over models unless they are side by side."""
    tests = load_tests(groups)
    needed = {name for test in tests for name in test.needs} & OF_IMAGES
    images = _images(record, site, models[0].ids) if needed else None
    together = record.columns.ensemble == "concatenated"
    noise = noise_of(models[0].ids, record.columns.dataset, record.columns.seed)
    shown: Sequence[Embedded | ConcatenatedModels] = [ConcatenatedModels(models)] if together else models
    rows = []
    for model in shown:
        of_model: list[SplitRow] = []
        try:
            common = _common_view(record, models[0], images)
            for split in sorted(models[0].embeddings, key=lambda split: (split != "test", split)):
                kind = "" if split == "test" else split.removeprefix("test_")
                quality = models[0].quality[kind] if kind else None
                view = view_of_split(common, model, kind, scorers, quality, noise, record.spec.tests.reranked)
                of_model += [{**item, "split": split} for item in run_battery(view, tests)]
        except (ValueError, IndexError, KeyError, RuntimeError) as error:  # arrays that do not fit together, too
            raise UnitFailed(f"{type(error).__name__}: {first_line(error)}") from None
        rows.append(of_model)
    return [without_nan(item) for item in mean_rows(rows)]


def query_rows(record: TestRecord, found: Arrays, groups: Sequence[str]) -> list[SplitRow]:
    """Rows of some tests on test and validation images from what is kept of every query, averaged over models."""
    if not groups:
        return []
    try:
        views = [views_of_queries(record, path) for path, _ in found.queries.values()]
        return [without_nan(item) for item in mean_rows([rows_of_views(each, load_tests(groups)) for each in views])]
    except (UnitFailed, ValueError, IndexError, KeyError, RuntimeError) as error:  # arrays that do not fit together
        raise UnitFailed(f"{', '.join(found.queries)}: {first_line(error)}") from None


def views_of_queries(record: TestRecord, path: Path) -> dict[str, Embeddings]:
    """What a test has kept of every query in one of its files, by split."""
    dataset, seed = record.columns.dataset, record.columns.seed
    return queries.read_queries(
        unpacked(path) if path.suffix == ".xz" else path.read_bytes(),
        seed=partial(draw_seed, dataset),
        noise=lambda ids: noise_of(ids, dataset, seed),
        options=options_of(record.spec.tests),
    )


def _images(record: TestRecord, site: Site, ids: Sequence[str]) -> ImageSet | None:
    """Test images of the data set; None if they are not here, or not those that were tested, in the same order."""
    first = site.store.trained(record.trained_cell, record.spec.train[0])
    try:
        images = site.dataset(record.columns.dataset, None if first is None else first.spec.view).test()
    except UserError:
        return None
    same = images.manifest_sha256() == record.manifests.get("test") and images.ids == tuple(ids)
    return images if same else None


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
