"""Testing again what is tested: values of tests from the arrays that a finished test has kept, without a training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load
from torch import Tensor

from .. import versions
from ..datasets.dataset import ImageSet
from ..errors import UnitFailed, UserError, first_line
from ..methods.distributions.arrays import from_arrays
from ..methods.scorers.registry import get_scorer
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
from .testing import (
    in_split,
    mean_rows,
    not_embedded,
    options_of,
    rows_of_views,
    scorer_names,
    view_of_split,
    without_nan,
)

WHERE = "name the results folder that has it with --arrays, or let the command that made it make it again"

OF_IMAGES = frozenset({"soft_labels", "posterior"})
"""What a test may need of the images themselves, which no array file has."""


def rescore(record: TestRecord, site: Site, groups: Sequence[str], arrays: Store | None = None) -> RescoreRecord:
    """Compute tests from the files that a finished test, or another results folder, has kept, and write their record.

    Nothing is trained or embedded. A rescoring that is there already is not done again, but becomes the latest. Tests
    of confidences follow from the queries, if these are kept, and all others from the embeddings. Groups of tests that
    need images that are not there give nothing. Files that are missing or damaged are a failure.
    """
    started = time.perf_counter()
    stores = [store for store in (site.store, arrays) if store is not None]
    of_queries, of_embeddings = kept_files(record, queries.QUERIES, *stores), _embeddings(record, stores)
    kept = set(queries.GROUPS) & {"risk", *record.spec.tests.groups} if of_queries else set()
    judging = [name for name in groups if name in kept]
    others = [name for name in groups if of_embeddings and name not in kept]
    if not judging and not others:
        raise UnitFailed(f"{min(groups)} needs embeddings, which test {record.unit} has not kept here: {WHERE}")
    scorers = scorer_names(record.role.primary_scorer, record.spec)
    entries = {"engine": versions.engine("testing")}
    entries |= {f"test.{name}": versions.test(name) for name in groups}
    entries |= {f"scorer.{name}": versions.scorer(name) for name in scorers}
    spec = RescoreSpec(
        test=record.unit,
        versions={name: versions.version(entry) for name, entry in entries.items()},
        groups=tuple(sorted(groups)),
        arrays={name: digest for name, (_, digest) in (of_embeddings | of_queries).items()},
    )
    done = site.store.rescored(record.cell, spec.id)
    if done is not None:
        times = [each.finished for each in site.store.rescorings(record.cell) if each.spec.test == record.unit]
        if max(times) > done.finished:  # its code is back after another one, and counts again
            site.store.write(done := done.model_copy(update={"finished": time.time()}))
        return done
    rows = query_rows(record, of_queries, judging) if judging else []
    computable = scorers
    if others:
        computable = tuple(name for name in scorers if not get_scorer(name).options)
        rows += embedding_rows(record, of_embeddings, others, computable, site)
    without = [name for name in groups if name not in (*judging, *others)]
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


Files = dict[str, tuple[Path, str]]
"""Path and SHA-256 of files by name."""


def kept_files(record: TestRecord, kind: str, *stores: Store) -> Files:
    """Files of embeddings or of queries of a test, from the first results folder that has them all.

    Their SHA-256 is checked. Queries may be a compressed copy.
    """
    digests = {name: digest for name, digest in sorted(record.files.items()) if name.startswith(kind)}
    for store in stores:
        folder = store.unit_dir(record.cell, "test", record.unit)
        copy = store.copy_of_queries(record) if kind == queries.QUERIES else None
        packed = {f"{queries.QUERIES}.safetensors": copy} if copy is not None else {}
        paths = {name: packed.get(name, folder / name) for name in digests}
        if digests and all(path.is_file() for path in paths.values()):
            for name, path in paths.items():
                if digests[name] != (sha256(unpacked(path)) if name in packed else file_sha256(path)):
                    raise UnitFailed(f"{path} is damaged: its SHA-256 is not that of its record")
            return {name: (path, digests[name]) for name, path in paths.items()}
    return {}


def _embeddings(record: TestRecord, stores: Sequence[Store]) -> Files:
    """Files of embeddings of a test; of models side by side those of the test of the same models one by one."""
    same = (test for test in stores[0].tests(record.cell) if test.spec.train == record.spec.train and test.files)
    return kept_files(record if record.files else next(same, record), "embeddings", *stores)


def query_rows(record: TestRecord, files: Files, groups: Sequence[str]) -> list[SplitRow]:
    """Rows of some tests on test and validation images from what is kept of every query, averaged over models."""
    return _rows(files, groups, lambda: [views_of_queries(record, path) for path, _ in files.values()])


def embedding_rows(
    record: TestRecord, files: Files, groups: Sequence[str], scorers: Sequence[str], site: Site
) -> list[SplitRow]:
    """Rows of some tests on the test images, clean and corrupted, averaged over models unless they are side by side."""
    needed = {name for test in load_tests(groups) for name in test.needs} & OF_IMAGES
    return _rows(files, groups, lambda: views_of_embeddings(record, files, scorers, site if needed else None))


def _rows(
    files: Files, groups: Sequence[str], views: Callable[[], Sequence[Mapping[str, Embeddings]]]
) -> list[SplitRow]:
    """Rows of some tests on what files have of each model, averaged over models."""
    try:
        found = mean_rows([rows_of_views(of_model, load_tests(groups)) for of_model in views()])
    except (UnitFailed, RuntimeError, IndexError, *queries.UNREADABLE) as error:  # arrays that do not fit, too
        raise UnitFailed(f"{', '.join(files)}: {first_line(error)}") from None
    return [without_nan(item) for item in found]


def views_of_embeddings(
    record: TestRecord, files: Files, scorers: Sequence[str], site: Site | None = None
) -> list[dict[str, Embeddings]]:
    """Test images by split, clean ones first, as files have them: of each model, or of all side by side.

    There are no validation images, whose embeddings nothing keeps. With a site, they have what data sets say of images.
    """
    read = [read_embeddings(path, record.role.primary_scorer) for path, _ in files.values()]
    models, (_, arrays, ids) = [model for model, _, _ in read], read[0]
    images = _images(record, site, ids) if site is not None else None
    common = _known(
        record,
        arrays["labels"],
        ids,
        queries=arrays.get("queries"),
        gallery=arrays.get("gallery"),
        soft_labels=None if images is None else images.soft_labels,
        posterior=None if images is None else images.posterior,
    )
    kinds = ["", *sorted(split.removeprefix("test_") for split in models[0].embeddings if split != "test")]
    quality = {kind: arrays[queries.quality_name(kind)] for kind in kinds[1:]}
    together = record.columns.ensemble == "concatenated"
    return [
        {
            in_split("test", kind): view_of_split(
                common, model, "test", kind, scorers, quality.get(kind), record.spec.tests.reranked
            )
            for kind in kinds
        }
        for model in ([ConcatenatedModels(models)] if together else models)
    ]


def read_embeddings(path: Path, own_scorer: str) -> tuple[Embedded, dict[str, Tensor], tuple[str, ...]]:
    """A tested model, all arrays of its file of embeddings, and the identities of the images.

    Raises:
        UnitFailed: If it is no such file.
    """
    parameters: dict[str, dict[str, Tensor]] = {}
    confidence: dict[str, dict[str, Tensor]] = {}
    try:
        data = path.read_bytes()
        texts, arrays = file_texts(data), load(data)
        for name in sorted(arrays):
            prefix, _, what = name.partition(".")
            split, kept = in_split("test", "" if prefix == "clean" else prefix), what.removeprefix("confidence.")
            if what:
                held = confidence.setdefault(split, {}), parameters.setdefault(split, {})
                held[kept == what][kept] = arrays[name]
        embeddings = {split: from_arrays(texts["distribution"], each) for split, each in parameters.items()}
        ids = tuple(texts["ids"].split("\n"))
    except queries.UNREADABLE as error:
        raise UnitFailed(f"{path} is no array file of a test: {first_line(error)}") from None
    return Embedded(embeddings=embeddings, confidence=confidence, own_scorer=own_scorer, options={}), arrays, ids


def views_of_queries(record: TestRecord, path: Path) -> dict[str, Embeddings]:
    """What a test has kept of every query in one of its files, by split."""
    data = unpacked(path) if path.suffix == ".xz" else path.read_bytes()
    return queries.read_queries(data, partial(_known, record))


def _known(record: TestRecord, labels: Tensor, ids: Sequence[str], **more: Any) -> Embeddings:
    """Images as the test of a record saw them before they were embedded."""
    columns = record.columns
    return not_embedded(labels, ids, columns.dataset, columns.seed, options_of(record.spec.tests), **more)


def _images(record: TestRecord, site: Site, ids: Sequence[str]) -> ImageSet | None:
    """Test images of the data set; None if they are not here, or not those that were tested, in the same order."""
    first = site.store.trained(record.trained_cell, record.spec.train[0])
    try:
        images = site.dataset(record.columns.dataset, None if first is None else first.spec.view).test()
    except UserError:
        return None
    same = images.manifest_sha256() == record.manifests.get("test") and images.ids == tuple(ids)
    return images if same else None
