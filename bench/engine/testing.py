"""Testing what was trained: embed once, then the battery of tests on arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ..datasets.dataset import ImageSet
from ..methods.distributions.arrays import to_arrays
from ..methods.distributions.von_mises_fisher import shared_concentration
from ..protocols._base import Tests
from ..protocols.declare import EmbeddingTest, run_battery
from ..protocols.embeddings import Embeddings, Options, Quality
from ..protocols.known_tests import load_tests
from ..protocols.quality import ranks_by_severity
from ..protocols.retrieval_confidence import random_confidence, uniform_by_identity
from ..protocols.rows import RERANKED, Row, SplitRow, row
from ..seeds import seed_for
from ..site import Site
from ..store.files import sha256, write_atomic
from ..store.folder import checked_training
from ..store.records import Columns, Corrupted, Curve, Role, TestRecord, TrainRecord
from ..store.specs import Cell, TestSpec, TrainSpec
from .embedded_model import ConcatenatedModels, Embedded, EmbeddedModel
from .environment import environment
from .inputs import CorruptedImages
from .networks import default_confidence, load_ensemble, load_model
from .queries import QUERIES, array_file, quality_name, queries_file
from .running import Running

Model = EmbeddedModel | ConcatenatedModels

SETTING = {"params", "optim", "batches", "augmentation"}
"""Fields of the specification of a training that are its setting."""


@dataclass(frozen=True)
class TestImages:
    """Test images on which all models of one replicate are tested, clean and corrupted.

    ``view`` is what clean and corrupted images have in common, such as the ``queries``: all, or as many as ``asked``.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    images: ImageSet
    corrupted: Mapping[str, CorruptedImages]
    view: Embeddings
    asked: int | None = None

    @classmethod
    def of(cls, train: TrainSpec, tests: Tests, site: Site, asked: int | None = None) -> TestImages:
        """Test images of a data set, with the corruptions that are tested."""
        name = train.dataset
        images: ImageSet = site.dataset(name, train.view).test()
        corrupted = {
            kind: CorruptedImages.of(images, name, kind, severity) for kind, severity in tests.corruptions.items()
        }
        view = not_embedded(
            images.labels,
            images.ids,
            name,
            train.number,
            options_of(tests),
            queries=drawn_queries(images.ids, images.queries, asked, name),
            gallery=images.gallery,
            soft_labels=images.soft_labels,
            posterior=images.posterior,
        )
        return cls(images, corrupted, view, asked)


def not_embedded(
    labels: Tensor, ids: Sequence[str], dataset: str, replicate: int, options: Options, **known: Any
) -> Embeddings:
    """Images as the tests see them before they are embedded: with the control confidence ``random``, and seeds."""
    noise = random_confidence(ids, seed_for("random confidence", dataset, replicate))
    known |= {"labels": labels, "ids": tuple(ids), "seed": partial(draw_seed, dataset), "options": options}
    return Embeddings(confidences={"random": noise}, **known)


def drawn_queries(ids: Sequence[str], queries: Tensor | None, asked: int | None, dataset: str) -> Tensor | None:
    """Rows of as many queries as are asked for, ascending, drawn by their identities alone; None for all images.

    The gallery stays whole, so that a value is an unbiased estimate of that of all ``queries``, which are taken if
    there are no more.
    """
    rows = torch.arange(len(ids)) if queries is None else queries
    if asked is None or asked >= len(rows):
        return queries
    drawn = uniform_by_identity([ids[row] for row in rows.tolist()], seed_for("queries", dataset), "query")
    return rows[drawn.argsort(stable=True)[:asked]].sort().values


def options_of(tests: Tests) -> Options:
    """Options of the tests that a protocol asks for."""
    return Options(
        recall_ks=tuple(tests.recall_ks),
        filter_fractions=tuple(tests.filter_fractions),
        false_positive_rate=tests.false_positive_rate,
        nearest_roc_point=tests.nearest_roc_point,
    )


def draw_seed(dataset: str, purpose: str) -> int:
    """Seed of a random draw in the tests, from the names of the data set and of what is drawn."""
    return seed_for("ties" if purpose == "confidence ties" else purpose, dataset)


def run_tests(
    specs: Sequence[TestSpec],
    cell: Cell,
    site: Site,
    running: Running | None = None,
    trained: Cell | None = None,
    shared: bool = False,
) -> None:
    """Test the trained models of a replicate on clean and corrupted images, and write the records.

    ``shared`` is whether features of a base that is trained are kept for its other heads.
    """
    started = time.perf_counter()
    running = running or Running()
    units = specs[0].train
    trained = trained or cell
    first = checked_training(site.store.unit_dir(trained, "train", units[0]))
    images = TestImages.of(first.spec, specs[0].tests, site, specs[0].queries)
    if specs[0].ensemble == "seeds":
        loaded: Iterable[tuple[Any, TrainRecord]] = [load_ensemble(cell.method, trained, units, site)]
    else:
        loaded = (load_model(trained, unit, site) for unit in units)
    members = [EmbeddedModel.of(model, of, site, images.corrupted, running, shared) for model, of in loaded]
    for spec in specs:
        side_by_side = spec.ensemble == "concatenated"
        models: Sequence[Model] = [ConcatenatedModels(members)] if side_by_side else members
        folder = site.store.unit_dir(cell, "test", spec.id)
        files = {} if side_by_side else _keep(folder, "embeddings", members, [_arrays(m, images) for m in members])
        views = [views_of_model(model, images, spec) for model in models]
        rows = mean_rows([rows_of_model(model, spec, of) for model, of in zip(models, views)])
        if not side_by_side and "risk" in spec.tests.groups:
            files |= _keep(folder, QUERIES, members, [queries_file(of, spec.tests.groups) for of in views])
        record = TestRecord(
            unit=spec.id,
            cell=cell,
            spec=spec,
            files=files,
            columns=_columns(spec, cell, members),
            role=_role(spec, members),
            setting=members[0].trained.spec.model_dump(mode="json", include=SETTING),
            manifests={"test": images.images.manifest_sha256()} | _manifests(members),
            corruptions={
                kind: Corrupted(severity=shown.severity, seed=shown.seed, sha256=shown.manifest_sha256())
                for kind, shown in images.corrupted.items()
            },
            rows=tuple(without_nan(item) for item in rows),
            curves={kind: _mean_curve([_curve(kind, model, images) for model in models]) for kind in images.corrupted},
            environment=environment(site, started, running),
            finished=time.time(),
            test_classes=images.images.num_classes,
        )
        site.store.write(record)


def views_of_model(model: Model, images: TestImages, spec: TestSpec) -> dict[str, Embeddings]:
    """Embedded images of one model by split, as the tests see them; validation images first.

    The splits are ``val`` and ``test`` for clean images, and these with ``_`` and its name for each corruption.
    Concatenated models have no validation classes. If every class but the test classes was trained on, the validation
    images are some of the training images, and the splits are ``train`` and so on.
    """
    views: dict[str, Embeddings] = {}
    names, common = scorer_names(model.own_scorer, spec), images.view
    if isinstance(model, EmbeddedModel):
        validation, held_out = _validation_images(model, images), model.validation_split
        for kind in ("", *images.corrupted):
            views[in_split(held_out, kind)] = view_of_split(validation, model, "val", kind, names)
            validation = replace(validation, validation=views[held_out])
        clean = views[held_out]
        common = replace(common, validation=clean, validation_split=held_out, concentration=clean.concentration)
    for kind in ("", *images.corrupted):
        quality = images.corrupted[kind].quality if kind else None
        view = view_of_split(common, model, "test", kind, names, quality, spec.tests.reranked)
        views[in_split("test", kind)] = view
    return views


def rows_of_model(model: Model, spec: TestSpec, views: Mapping[str, Embeddings]) -> list[SplitRow]:
    """All test results of one model, one value of one metric per row (:class:`bench.protocols.rows.SplitRow`).

    The rows are all tests on the test images, and on validation images MAP@R of the selected epoch, Recall@1 and the
    tests of confidences (:func:`views_of_model`).
    """
    rows = rows_of_views(views, load_tests(spec.tests.groups))
    if isinstance(model, EmbeddedModel) and spec.ensemble != "seeds":  # nothing was selected by an ensemble
        split = model.validation_split
        rows.insert(0, {"split": split, **_validation_row(model, len(views[split]))})
    return rows


def rows_of_views(views: Mapping[str, Embeddings], tests: Sequence[EmbeddingTest]) -> list[SplitRow]:
    """Rows of tests on the test images, and of Recall@1 and the tests of confidences on validation images."""
    judging = [test for test in tests if test.group == "risk"]
    rows: list[SplitRow] = []
    for split, view in views.items():
        rows += [{"split": split, **item} for item in run_battery(view, judging if view.held_out else tests)]
        if view.held_out and judging:
            rows += [{"split": split, **_recall(view, name)} for name in view.scorers]
        view.release()
    return rows


def _validation_row(model: EmbeddedModel, images: int) -> Row:
    """MAP@R of the selected epoch, by the scorer that selected it."""
    selection = model.trained.spec.selection
    return row(
        "map_at_r",
        model.trained.val_map_at_r,
        scorer=selection.scorer,
        variant=RERANKED if selection.candidates else "",
        n_queries=images,
    )


def _recall(view: Embeddings, scorer: str) -> Row:
    """Recall@1 of validation images, by which the ranking of a system is chosen."""
    found = view.query_values(scorer, (1,))["recall_at_1"]
    counted = found[~found.isnan()]
    lone = len(found) - len(counted)
    return row("recall_at_1", float(counted.mean()), scorer=scorer, n_queries=len(counted), n_lone=lone)


def scorer_names(own: str, spec: TestSpec) -> tuple[str, ...]:
    """Names of the scorers that a test ranks with, the method's own first."""
    return tuple(dict.fromkeys([own, "cosine", *spec.scorers]))


def _validation_images(model: EmbeddedModel, images: TestImages) -> Embeddings:
    """Images of validation classes, which give thresholds and weights of confidences, as all splits of them have them.

    The weights are for corrupted test images, too: a user has validation images, but does not know what is to come.
    """
    shown, spec = model.validation, model.trained.spec
    return not_embedded(
        shown.labels,
        shown.ids,
        spec.dataset,
        spec.number,
        Options(filter_fractions=()),
        queries=drawn_queries(shown.ids, None, images.asked, spec.dataset),
        concentration=cache(lambda: shared_concentration(model.unit_vectors("val"), shown.labels)),
        validation_split=model.validation_split,
        held_out=True,
    )


def in_split(split: str, kind: str) -> str:
    """Name of a split of clean images (``kind`` is empty) or of corrupted ones."""
    return f"{split}_{kind}" if kind else split


def view_of_split(
    common: Embeddings,
    model: Embedded | ConcatenatedModels,
    split: str,
    kind: str,
    scorers: Iterable[str],
    quality: Tensor | None = None,
    reranked: bool = False,
) -> Embeddings:
    """Images of a split (``test`` or ``val``) as the tests see them, clean (``kind`` is empty) or under a corruption.

    ``quality`` is what the corruption has left of each image, if that is tested.
    """
    name = in_split(split, kind)
    return replace(
        common,
        scorers={scorer: partial(model.scorer, scorer, name) for scorer in scorers},
        own_scorers=tuple(scorer for scorer in scorers if scorer == model.own_scorer),
        confidences={**model.confidence[name], "random": common.confidences["random"]},
        directions=partial(model.unit_vectors, name),
        views=model.views_of(name),
        quality=None if quality is None else Quality(values=quality, kind=kind, clean=model.confidence[split]),
        candidates=partial(model.modes, name) if reranked else None,
        clean=not kind,
    )


def mean_rows(of_models: Sequence[list[SplitRow]]) -> list[SplitRow]:
    """Mean over several models of their rows of test results, which must be the same ones in the same order.

    ``value`` and the counts ``n_queries`` and ``n_lone`` (rounded) are averaged. A value that one model lacks is nan in
    the mean.

    Example:
        >>> one, other = ({"split": "test", **row("map_at_r", value)} for value in (0.5, 1.0))
        >>> mean_rows([[one], [other]])[0]["value"]
        0.75
    """
    return of_models[0] if len(of_models) == 1 else [_mean_row(items) for items in zip(*of_models, strict=True)]


def _mean_row(items: Sequence[SplitRow]) -> SplitRow:
    # Counts differ between models: each has its own validation classes, and filters out its own images.
    numbers = ("value", "n_queries", "n_lone")
    keys = [{key: value for key, value in item.items() if key not in numbers} for item in items]
    if any(key != keys[0] for key in keys):
        raise ValueError(f"rows of different things: {keys}")
    values = [math.nan if item["value"] is None else item["value"] for item in items]
    return {
        **items[0],
        "value": fmean(values),
        "n_queries": round(fmean(item["n_queries"] for item in items)),
        "n_lone": round(fmean(item["n_lone"] for item in items)),
    }


def without_nan(item: SplitRow) -> SplitRow:
    """The row with None, which JSON has, for a value that does not exist (the correlation of a constant, say)."""
    value = item["value"]
    return {**item, "value": float(value) if value is not None and math.isfinite(value) else None}


def _columns(spec: TestSpec, cell: Cell, members: Sequence[EmbeddedModel]) -> Columns:
    train, joint = members[0].trained.spec, spec.ensemble == "seeds"
    of_spec = {name: getattr(spec, name) for name in ("preset", "hparams", "trials", "pinned", "ensemble", "replicate")}
    return Columns(
        protocol=cell.protocol,
        dataset=train.dataset,
        method=cell.method,
        base=train.method if joint else train.base.method if train.base else "",
        fidelity=members[0].method.form,
        backbone=train.backbone,
        dim=train.dim * (len(spec.train) if joint or spec.ensemble == "concatenated" else 1),
        seed=train.number,
        **of_spec,
    )


def _role(spec: TestSpec, members: Sequence[EmbeddedModel]) -> Role:
    first, method = members[0], members[0].method
    bases = [member.trained.spec.base.unit if member.trained.spec.base else "" for member in members]
    return Role(
        primary_scorer=method.scorer,
        default_confidence=default_confidence(method, first.confidence["test"], spec.tests.deterministic_confidence),
        probabilistic=method.probabilistic,
        trainings=spec.tuning_trainings,
        train=" ".join(filter(None, [spec.ensemble, *spec.train])),
        base_train=" ".join(filter(None, [spec.ensemble, *bases])) if any(bases) else "",
        reference=method.reference_for_frozen and first.trained.spec.frozen,
    )


def _manifests(members: Sequence[EmbeddedModel]) -> dict[str, str]:
    """Manifests of what each model was trained and validated on; of several models, by the fold that validated."""
    manifests: dict[str, str] = {}
    for member in members:
        fold = f"_fold_{member.trained.spec.fold}" if len(members) > 1 else ""
        manifests |= {f"{name}{fold}": digest for name, digest in member.trained.manifests.items()}
    return manifests


def _curve(kind: str, model: Model, images: TestImages) -> Curve:
    confidences = {**model.confidence[f"test_{kind}"], **images.view.confidences}
    shown = images.corrupted[kind]
    severity, ranks = ranks_by_severity(confidences, shown.quality, shown.severity)
    return Curve(severity=tuple(severity), rank={name: tuple(values) for name, values in ranks.items()})


def _mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean over several models, bin by bin."""
    ranks = {name: tuple(map(fmean, zip(*(curve.rank[name] for curve in curves)))) for name in curves[0].rank}
    return Curve(severity=curves[0].severity, rank=ranks)


def _keep(folder: Path, kind: str, members: Sequence[EmbeddedModel], contents: Sequence[bytes]) -> dict[str, str]:
    """Write files of a kind, one for each of several models; SHA-256 by file name."""
    files: dict[str, str] = {}
    for member, data in zip(members, contents):
        fold = f"-fold-{member.trained.spec.fold}" if len(members) > 1 else ""
        write_atomic(folder / f"{kind}{fold}.safetensors", data)
        files[f"{kind}{fold}.safetensors"] = sha256(data)
    return files


def _arrays(member: EmbeddedModel, images: TestImages) -> bytes:
    """File of a model's embeddings and confidences of the test images."""
    arrays = {"labels": images.images.labels}
    roles = {"queries": images.view.queries, "gallery": images.view.gallery}
    arrays |= {name: rows for name, rows in roles.items() if rows is not None}
    arrays |= {quality_name(kind): shown.quality for kind, shown in images.corrupted.items()}
    distribution = ""
    for name, split in (("clean", "test"), *((kind, f"test_{kind}") for kind in images.corrupted)):
        distribution, parameters = to_arrays(member.embeddings[split])
        confidences = {f"confidence.{key}": value for key, value in member.confidence[split].items()}
        arrays |= {f"{name}.{key}": value.contiguous() for key, value in {**parameters, **confidences}.items()}
    return array_file(arrays, {"distribution": distribution, "ids": "\n".join(images.images.ids)})
