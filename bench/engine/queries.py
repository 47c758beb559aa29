"""What a test keeps of every query, in one file: enough for its verdicts, risk-coverage curves and correlations.

Per split, clean and corrupted, of test and validation images: classes, ids and image confidences, and per scorer the
first answer, Recall@1, the average precision and the retrieval confidences; for test images also those in the smaller
gallery of open-set queries. All numbers are those that the test has computed with, so that its values follow from them
without an embedding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..datasets.corruptions._base import CROP
from ..errors import UnitFailed, UserError, first_line
from ..protocols.embeddings import Embeddings, Quality
from ..protocols.open_set import in_smaller_gallery
from ..protocols.retrieval_confidence import JUDGED_BY
from ..protocols.rows import FREE_IMAGE_CONFIDENCES, OWN, RETRIEVAL_CONFIDENCES
from ..store.files import file_texts

QUERIES = "queries"
"""Start of the name of such a file."""

UNREADABLE = (OSError, UserError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, struct.error)
"""Errors that reading an array file may raise, whatever is in it."""

GROUPS = ("risk", "open_set", "quality", "confidence_correlation", "calibration")
"""Groups of tests that need nothing else."""


def queries_file(views: Mapping[str, Embeddings], groups: Collection[str]) -> bytes:
    """Content of a safetensors file with what some groups of tests know of every query, by split of the images."""
    arrays: dict[str, Tensor] = {}
    texts = {"splits": json.dumps([*views])}
    for split, view in views.items():
        base = split.partition("_")[0]
        if view.clean:
            texts[f"ids.{base}"] = "\n".join(view.ids)
            roles = {"labels": view.labels, "queries": view.queries, "gallery": view.gallery}
            arrays |= {f"{base}.{name}": rows for name, rows in roles.items() if rows is not None}
        if view.quality is not None:
            arrays[f"{split}.quality"] = view.quality.values
        shown = {name: values for name, values in view.confidences.items() if name != "random"}  # follows from the ids
        arrays |= {f"{split}.confidence.{name}": values for name, values in shown.items()}
        for scorer in view.scorers:
            open_set = "open_set" in groups and not view.held_out and not bool(view.unknown.any())
            smaller = in_smaller_gallery(view, scorer) if open_set else None
            for place, of in (("scorer", view), ("smaller_gallery", smaller)):
                for name, values in ({} if of is None else of.kept(scorer)).items():
                    small = values.dtype == torch.float64 and torch.equal(values.float().double(), values)
                    arrays[f"{split}.{place}.{scorer}.{name}"] = values.float() if small else values
    texts["own_scorers"] = json.dumps({split: view.own_scorers for split, view in views.items()})
    return array_file({name: values.contiguous().clone() for name, values in arrays.items()}, texts)  # no shared memory


def quality_name(kind: str) -> str:
    """Name of the array, in a file of embeddings, with what a corruption leaves of each image."""
    return f"{kind}_{'fraction' if kind == CROP else 'quality'}"


def array_file(arrays: dict[str, Tensor], texts: Mapping[str, str]) -> bytes:
    """Content of a safetensors file, whose texts :func:`save` would put in a random order."""
    data = save(arrays, dict(texts))
    (length,) = struct.unpack("<Q", data[:8])
    header = json.dumps(json.loads(data[8 : 8 + length]) | {"__metadata__": dict(texts)}).encode()
    header += b" " * (-len(header) % 8)
    return b"".join((struct.pack("<Q", len(header)), header, memoryview(data)[8 + length :]))  # one copy of the arrays


def read_queries(data: bytes, known: Callable[[Tensor, Sequence[str]], Embeddings]) -> dict[str, Embeddings]:
    """Views of the images by split, of which every query is known but no embedding.

    Args:
        data: Content of the file.
        known: Function from the labels and ids of images to what is known of them without the file.

    Raises:
        UnitFailed: If the content is none of such a file.
    """
    try:
        texts, arrays = file_texts(data), load(data)
        splits: list[str] = json.loads(texts["splits"])
        own = json.loads(texts["own_scorers"])
        views: dict[str, Embeddings] = {}
        clean: dict[str, Mapping[str, Tensor]] = {}
        for split in splits:
            base, _, kind = split.partition("_")
            held_out, ids = base != "test", tuple(texts[f"ids.{base}"].split("\n"))
            of_images = _under(arrays, f"{split}.confidence.")
            clean.setdefault(split, of_images)
            by_scorer = _by_scorer(arrays, f"{split}.scorer.")
            quality = arrays.get(f"{split}.quality")
            validation = next((view for view in views.values() if view.held_out and view.clean), None)
            common = known(arrays[f"{base}.labels"], ids)
            view = replace(
                common,
                scorers={name: partial(_no_scorer, name) for name in by_scorer},
                own_scorers=tuple(own[split]),
                confidences={**of_images, **common.confidences},
                queries=arrays.get(f"{base}.queries"),
                gallery=arrays.get(f"{base}.gallery"),
                quality=None if quality is None else Quality(values=quality, kind=kind, clean=clean.get(base, {})),
                validation=None if held_out and not kind else validation,
                validation_split="val" if "val" in splits else "train",
                held_out=held_out,
                clean=not kind,
            )
            for scorer, kept in by_scorer.items():
                view.keep(scorer, kept)
            for scorer, kept in _by_scorer(arrays, f"{split}.smaller_gallery.").items():
                smaller = in_smaller_gallery(view, scorer)
                if smaller is not None:
                    smaller.keep(scorer, kept)
            views[split] = view
    except UNREADABLE as error:
        raise UnitFailed(f"no file of queries: {first_line(error)}") from None
    return views


_ORDER = (OWN, *FREE_IMAGE_CONFIDENCES, "answer", *JUDGED_BY, *RETRIEVAL_CONFIDENCES)


def _under(arrays: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    """Arrays whose names begin alike, in the order in which tests list them: a file has none."""
    found = {name.removeprefix(start): values for name, values in arrays.items() if name.startswith(start)}

    def place(name: str) -> tuple[object, ...]:
        scorer, _, last = name.rpartition(".")
        return scorer, _ORDER.index(last) if last in _ORDER else len(_ORDER), last

    return {name: found[name] for name in sorted(found, key=place)}


def _by_scorer(arrays: Mapping[str, Tensor], start: str) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name, values in _under(arrays, start).items():
        scorer, _, what = name.partition(".")
        found.setdefault(scorer, {})[what] = values.double() if values.is_floating_point() else values
    return found


def _no_scorer(name: str) -> NoReturn:
    raise UnitFailed(f"scorer {name!r} needs embeddings, which are not kept")
