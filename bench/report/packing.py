"""Packing of a results folder: its records and a few small embeddings in the form that a repository holds."""

from __future__ import annotations

import json
import lzma
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..engine.environment import processor
from ..engine.rescoring import scorers_of, trained_options
from ..errors import UserError, shortened
from ..methods.scorers.registry import get_scorer
from ..site import Site
from ..store.files import sha256, write_atomic
from ..store.folder import RECORD, STUDY, Store
from ..store.marks import Mark, digest_of, lacking, largest_difference, read_marks, write_marks
from ..store.pack import FLOAT16, MOST_TEXT, PACK, Packed, Provenance, label_of, read_pack, write_pack
from ..store.records import KEYS, ROW_KEYS, TestRecord, TrainRecord
from ..store.specs import Cell, Kind
from .frame import Results, collect

MOST_FLOAT16 = 300 << 10
"""Largest file of float16 embeddings that is kept, bytes."""

TOLERANCE = 0.01
"""Largest difference of a value in a second run that counts as equal."""

KEPT = ("labels", "queries", "gallery")
"""Arrays that are kept besides those of clean images."""

_RELATIVE = 1e-3


@dataclass
class _Packing:
    """Lines of the packs that are being made, by cell and by place in the folder of the cell."""

    site: Site
    by: str
    commit: str
    lines: dict[Cell, dict[str, Packed]] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.site.store

    def add(self, cell: Cell, kind: Kind, unit: str, file: str = RECORD, float16: str = "", ran: str = "") -> None:
        """Add a record; one that is packed already keeps its provenance."""
        folder = self.store.unit_dir(cell, kind, unit)
        held = json.loads(self.store.text(folder / file))
        text = json.dumps(held, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()
        environment = held.get("environment") or {}
        device = environment.get("device", "cpu")
        where = environment.get("processor") or processor()
        own = Provenance(
            by=self.by,
            where=where if device == "cpu" else f"{device}; {where}",
            commit=environment.get("commit") or self.commit,
            float16=float16,
        )
        known = self.store.provenance(cell, kind, unit) if file == RECORD else None
        self.lines.setdefault(cell, {})[f"{folder.name}/{file}"] = Packed(known or own, text)

    def add_training(self, cell: Cell, unit: str) -> None:
        """Add a training, and that of its base."""
        record = self.store.trained(cell, unit)
        if record is None:
            raise UserError(
                f"training {'/'.join((*cell, unit))} has no whole record; `bench status --check` tells more"
            )
        self.add(cell, "train", unit)
        if record.spec.base is not None:
            self.add_training(cell._replace(method=record.spec.base.method), record.spec.base.unit)

    def add_studies(self, cells: Iterable[Cell]) -> None:
        """Add the tuning studies of some cells, with their trials and the trainings of these."""
        wanted = set(cells)
        for study, trials in self.store.studies():
            if study.cell in wanted:
                self.add(study.cell, "study", study.unit, STUDY)
                for trial in trials:
                    self.add(study.cell, "study", study.unit, f"trial-{trial.number:04d}.json")
                    for unit in trial.units:
                        if self.store.trained(study.cell, unit) is not None:
                            self.add_training(study.cell, unit)


def pack(site: Site, out: Path, by: str, commit: str) -> list[Path]:
    """Pack the finished tests of a results folder that count, with all records that they follow from.

    Packs of the same contributor that are there are extended; nothing is removed from them. One test of each cell, that
    of the first seed, gets its clean test embeddings in float16, if the file is small.

    Args:
        site: The results folder.
        out: Folder of packs.
        by: Name of the contributor.
        commit: Git commit of the code, for records that do not tell.

    Returns:
        The files that were written.

    Raises:
        UserError: If there is no finished test, a record is missing, ``out`` cannot have these results, or the name or
            commit cannot be in a pack.
    """
    _check_contributor(by, commit)
    label = label_of(by)
    if os.path.realpath(out) == os.path.realpath(site.store.root):
        raise UserError(f"--pack {out}: it is the results folder itself; name another folder")
    results = collect(site.store)
    if not results.tests:
        raise UserError(f"{site.store.root} has no finished test yet; `bench run` makes some")
    target = Store(out)
    for protocol, version in {(record.cell.protocol, record.spec.protocol_version) for record in results.tests}:
        target.open(protocol, version, create=True)
        target.mark(protocol, version)
    packing = _Packing(site, by, commit)
    written = _add_tests(packing, results, target)
    for cell, lines in sorted(packing.lines.items()):
        path = out.joinpath(*cell, f"{label}{PACK}")
        there = read_pack(path) if path.exists() else {}
        others = {place for other in target.packs("/".join(cell)) if other != path for place in read_pack(other)}
        write_pack(path, there | {place: line for place, line in lines.items() if place not in others})
        written.append(path)
    return written


def _check_contributor(by: str, commit: str) -> None:
    """Check the name of a contributor and the commit, which packs and marks have as texts.

    Raises:
        UserError: If there is no name, or one of them cannot be such a text.
    """
    if not label_of(by):
        said = f", not {by!r}; write one letter a-z or digit at least" if by else ""
        raise UserError(f"--by needs the name of who ran the results, such as --by 'Jane Doe'{said}")
    for option, text in (("--by", by), ("--commit", commit)):
        if len(text) > MOST_TEXT or not text.isprintable():
            raise UserError(f"{option} {shortened(text, 40)}: write at most {MOST_TEXT} printable characters")


def _add_tests(packing: _Packing, results: Results, target: Store) -> list[Path]:
    """Add the tests with everything they follow from; returns the files of float16 embeddings that were written."""
    written = []
    first: dict[Cell, TestRecord] = {}
    for record in sorted(results.tests, key=lambda record: record.columns.seed):
        first.setdefault(record.cell, record)
    for record in results.tests:
        path = target.root.joinpath(*record.cell, f"test-{record.unit}{FLOAT16}")
        alone = set(path.parent.glob(f"*{FLOAT16}")) <= {path}
        data = float16_of(record, packing.site) if alone and first[record.cell] is record else b""
        if data:
            write_atomic(path, data)
            written.append(path)
        packing.add(record.cell, "test", record.unit, float16=sha256(data) if data else "")
        for unit in record.spec.train:
            packing.add_training(record.trained_cell, unit)
    packing.add_studies(cell for cell in _tuned_cells(results.tests, packing.store))
    for each in results.rescorings:
        packing.add(each.cell, "rescore", each.unit)
    return written


def _tuned_cells(tests: Sequence[TestRecord], store: Store) -> Iterable[Cell]:
    """Cells whose studies the settings of some tests come from, those of bases included."""
    for record in tests:
        if record.columns.trials:
            yield record.trained_cell
            trained: TrainRecord | None = store.trained(record.trained_cell, record.spec.train[0])
            if trained is not None and trained.spec.base is not None:
                yield record.trained_cell._replace(method=trained.spec.base.method)


def float16_of(record: TestRecord, site: Site) -> bytes:
    """File with the clean test embeddings of one model in float16; empty if they are missing, damaged or large.

    Confidences, labels and parameters that float16 cannot hold to one part in a thousand stay as they are.

    Args:
        record: Record of the test.
        site: The results folder, and the weights in it, which have trained parameters of scorers.
    """
    if list(record.files) != ["embeddings.safetensors"] or site.store.whole_files(record) != record.files.keys():
        return b""
    path = site.store.unit_dir(record.cell, "test", record.unit) / "embeddings.safetensors"
    try:
        with safe_open(path, "pt") as file:
            texts = dict(file.metadata())
            names = [name for name in file.keys() if name.startswith("clean.") or name in KEPT]  # noqa: SIM118
            arrays = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError):
        return b""
    slim = {name: value if _stays(name, value) else value.half() for name, value in arrays.items()}
    if any(get_scorer(name).options for name in scorers_of(record)):
        texts["options"] = json.dumps(trained_options(record.trained_cell, record.spec.train[0], site))
    plain = _in_order(save(slim, texts))
    if len(plain) > 2 * MOST_FLOAT16:
        return b""
    data = lzma.compress(plain, preset=6)
    return data if len(data) <= MOST_FLOAT16 else b""


def _in_order(data: bytes) -> bytes:
    """A safetensors file with the texts of its header sorted, which the library writes in any order."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.dumps(json.loads(data[8 : 8 + length]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def _stays(name: str, value: Tensor) -> bool:
    """Check if an array is not to be rounded: no embedding, or one that float16 cannot hold."""
    if not name.startswith("clean.") or name.startswith("clean.confidence.") or value.dtype != torch.float32:
        return True
    half = value.half().float()
    # Of vectors, the largest value counts; a variance or concentration is wrong if it is small and rounded to zero.
    scale = value.abs().max() if bool((value < 0).any()) else value.abs()
    return not bool(((half - value).abs() <= _RELATIVE * scale).all())


def verify(own: Store, claimed: Store, by: str, commit: str) -> list[tuple[TestRecord, str]]:
    """Mark claimed results as verified that a second run gave again, and write the marks.

    Args:
        own: Results folder of the second run.
        claimed: Folder of packs with the claimed results.
        by: Who ran them again.
        commit: Git commit of the code, for records that do not tell.

    Returns:
        The claimed results that were run again, each with the reason why it is not verified, or an empty text.

    Raises:
        UserError: If no claimed result was run again, or a mark cannot have this name or commit.
    """
    _check_contributor(by, commit)
    reruns = {tuple(getattr(record.columns, key) for key in KEYS): record for record in collect(own).tests}
    marks = read_marks(claimed.root)
    outcomes = []
    for record in collect(claimed).tests:
        origin = claimed.provenance(record.cell, "test", record.unit)
        again = reruns.get(tuple(getattr(record.columns, key) for key in KEYS))
        if origin is None or again is None:
            continue
        values, difference = largest_difference(record, again, ROW_KEYS)
        reason = ""
        if label_of(origin.by) == label_of(by):
            reason = f"{by} has contributed it"
        elif again.finished == record.finished:
            reason = "it is the same run"
        elif missing := lacking(record, again, ROW_KEYS):
            reason = f"{missing} of its values were not measured again; run all of its tests, with code that has them"
        elif not difference <= TOLERANCE:
            reason = f"a value differs by {difference:.3g}, more than {TOLERANCE}"
        else:
            marks[record.unit] = Mark(
                unit=record.unit,
                record=digest_of(claimed, record),
                by=by,
                where=again.environment.processor or processor(),
                commit=again.environment.commit or commit,
                values=values,
                largest_difference=difference,
                tolerance=TOLERANCE,
            )
        outcomes.append((record, reason))
    if not outcomes:
        raise UserError(f"{own.root} has no second run of a result of {claimed.root}")
    write_marks(claimed.root, marks.values())
    return outcomes
