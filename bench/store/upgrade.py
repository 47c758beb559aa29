"""Conversion of a results folder of schema 2: ids, versions and settings as schema 3 has them, values as they were.

The folder is made anew in :data:`STAGED` and then takes the place of the old one, which is kept in :data:`OLD`. A
conversion that was interrupted goes on when it is typed again.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..registry import Registry
from ..versions import built_in_names
from .files import ARCHIVE, MARKER, PLACE, DamagedFile, unpacked, write_archive, write_atomic
from .folder import Damage
from .records import (
    SCHEMA_VERSION,
    DamagedRecord,
    Marker,
    RescoreRecord,
    StudyRecord,
    TestRecord,
    TrainRecord,
    TrialRecord,
    checked_content,
)

FORMER = 2
STAGED = ".upgrade"
OLD = f".schema-{FORMER}"
PACK = ".records.xz"
"""End of the name of a file with packed records of schema 2, a line each: place, origin and record."""

Held = dict[str, Any]
"""Content of a record of schema 2."""

_Unit = TrainRecord | TestRecord | StudyRecord | RescoreRecord
_UNITS: dict[str, type[_Unit]] = {unit.kind: unit for unit in (TrainRecord, TestRecord, StudyRecord, RescoreRecord)}
_METHODS = Registry("methods")
_SETTINGS = ("method", "optim", "data", "augment", "model")


class _Source(NamedTuple):
    """A record of schema 2: its cell, its folder, the name of its file, its content, and whether it was in a pack."""

    cell: Path
    folder: str
    file: str
    held: Held
    packed: bool = False


def upgrade(root: Path) -> tuple[int, list[Damage]]:
    """Convert a results folder of schema 2 in its place; returns the number of records, and the damaged ones left out.

    No other process may write to it.
    """
    staged, count = root / STAGED, 0
    damaged: list[Damage] = []
    if not (staged / MARKER).exists():
        shutil.rmtree(staged, ignore_errors=True)
        sources, damaged = _read(root)
        count = _Conversion(sources).write(root, staged)
    _swap(root, staged)
    return count, damaged


def _swap(root: Path, staged: Path) -> None:
    """Put what was made in the place of the old folder, its marker last."""
    for path in sorted(staged.iterdir(), key=lambda path: path.name == MARKER):
        there = root / path.name
        if there.exists() and path.name != MARKER:
            (root / OLD).mkdir(exist_ok=True)
            there.replace(root / OLD / path.name)
        path.replace(there)
    staged.rmdir()


def _read(root: Path) -> tuple[list[_Source], list[Damage]]:
    """Every whole record of schema 2, and the damaged ones."""
    sources, damaged = [], []

    def add(path: Path, text: bytes, origin: Mapping[str, str] | None = None) -> None:
        kind = "trial" if path.name.startswith("trial-") else path.parent.name.partition("-")[0]
        try:
            held = {**checked_content(text, kind, FORMER), "kind": kind}
        except DamagedRecord as error:
            damaged.append(Damage(path, str(error)))
        else:
            cell = path.parents[1].relative_to(root)
            if origin and "environment" in held:
                ran = held["environment"]
                ran["processor"] = ran.get("processor") or origin["where"].rpartition("; ")[2]
                ran["commit"] = ran.get("commit") or origin["commit"]
            sources.append(_Source(cell, path.parent.name, path.name, held, origin is not None))

    for path in sorted(root.glob("[!.]*/*/*/*-*/*.json")):
        if path.parent.name.partition("-")[0] in _UNITS:
            add(path, path.read_bytes())
    for path in sorted(root.glob(f"[!.]*/*/*/*{PACK}")):
        try:
            for line in unpacked(path).splitlines():
                place, origin, text = line.split(b"\t")
                if not PLACE.fullmatch(f"-/-/-/{place.decode()}"):
                    raise ValueError(f"{place!r} is not the place of a record")
                add(path.parent / place.decode(), text, json.loads(origin))
        except DamagedFile as error:
            damaged.append(Damage(path, str(error).removeprefix(f"{path} ")))
        except (ValueError, KeyError, AttributeError) as error:
            damaged.append(Damage(path, f"it has a line that is not that of a record: {error}"))
    return sources, damaged


class _Conversion:
    """New records of all old ones; ``ids`` are the new ids of trainings, tests and studies by the old ones."""

    def __init__(self, sources: list[_Source]) -> None:
        self.sources = sources
        self.held = {source.held["unit"]: source.held for source in sources if "unit" in source.held}
        self.trials: dict[str, list[Held]] = defaultdict(list)
        for source in sources:
            if "study" in source.held:
                self.trials[source.held["study"]].append(source.held)
        self.other_code: set[str] = set()
        self.ids: dict[str, str] = {}
        self.other_code = self._of_other_code({unit: self._id(unit) for unit in self.held})
        if self.other_code:
            self.ids = {}

    def _id(self, unit: str) -> str:
        """New id of a unit; that of a unit without a record is the old one."""
        if unit in self.held and unit not in self.ids:
            self.ids[unit] = self._record(self.held[unit]).spec.id
        return self.ids.get(unit, unit)

    def _of_other_code(self, ids: dict[str, str]) -> set[str]:
        """Units that have the new id of another one with other values: of these, the one used last keeps it."""
        used = {
            unit: held["finished"]
            for held in sorted(self.held.values(), key=lambda held: held.get("finished", 0.0))
            for unit in (held["unit"], *held["spec"].get("train", ()))
            if "finished" in held
        }
        same: dict[str, list[str]] = defaultdict(list)
        for unit, new in ids.items():
            same[new].append(unit)
        found: set[str] = set()
        for units in same.values():
            last = max(units, key=lambda unit: (used.get(unit, 0.0), len(self.trials[unit]), unit))
            found |= {unit for unit in units if self._values(unit) != self._values(last)}
        return found

    def _values(self, unit: str) -> object:
        held = self.held[unit]
        tried = sorted((trial["number"], repr(trial["value"])) for trial in self.trials[unit])
        return [held.get(name) for name in ("files", "history", "rows")] + tried

    def _record(self, held: Held) -> _Unit:
        """New record of an old one; its ``unit`` is still the old id."""
        kind, spec = held["kind"], dict(held["spec"])
        made: Held = {key: value for key, value in held.items() if key != "kind"}
        if kind == "train":
            made["spec"] = self._train_spec(spec, held["unit"])
        elif kind == "study":
            template = self._train_spec(spec["template"], held["unit"])
            made["spec"] = spec | {"template": template, "bases": [self._id(unit) for unit in spec["bases"]]}
        elif kind == "rescore":
            tested = self.held.get(spec["test"])
            scorers = () if tested is None else _scorers_of(tested)
            code = spec.pop("code")
            del spec["test_code"]
            versions = {"engine": 1, **_own("test", "tests", spec["groups"], code)}
            versions |= _own("scorer", "scorers", scorers, code)
            made["spec"] = spec | {"test": self._id(spec["test"]), "versions": versions}
        else:
            made |= self._of_test(held, spec)
        return _UNITS[kind].model_validate(made)

    def _train_spec(self, spec: Held, unit: str) -> Held:
        spec = dict(spec)
        code, base, crop = spec.pop("code"), spec["base"], spec.get("crop_confidence")
        spec["versions"] = {
            "engine": f"code.{code}" if unit in self.other_code else 1,
            "protocol": spec.pop("version"),
            "backbone": 1,
            "method": _version("methods", spec["method"], code),
            "dataset": _version("datasets", spec["dataset"], code),
            "scorer": _version("scorers", spec["selection"]["scorer"], code),
        }
        spec["params"] = _params(spec["params"], spec["method"], spec.pop("fidelity"))
        if base:
            params = _params(base["params"], base["method"], base["fidelity"])
            spec["base"] = {"method": base["method"], "params": params, "unit": self._id(base["unit"])}
        spec["crop_confidence"] = crop and crop["severity"]
        spec["frozen"] = bool(spec.get("frozen"))
        return spec

    def _of_test(self, held: Held, spec: Held) -> Held:
        """Fields of a test that change."""
        code, tests, joint = spec.pop("code"), spec["tests"], spec["ensemble"] == "seeds"
        spec["versions"] = {
            "engine": f"code.{code}" if held["unit"] in self.other_code else 1,
            "protocol": spec.pop("version"),
            **({"method": _version("methods", held["columns"]["method"], code)} if joint else {}),
            **_own("test", "tests", tests["groups"], code),
            **_own("scorer", "scorers", _scorers_of(held), code),
            **_own("corruption", "corruptions", tests["corruptions"], code),
        }
        columns, setting = dict(held["columns"]), dict(held["setting"])
        if "params" in setting:
            trained = self.held[spec["train"][0]]["spec"] if spec["train"][0] in self.held else columns
            setting |= {"params": _params(setting["params"], trained["method"], trained["fidelity"])}
        spec["train"] = [self._id(unit) for unit in spec["train"]]
        role = dict(held["role"])
        for name in ("train", "base_train"):
            role[name] = " ".join(self._id(word) for word in role[name].split(" "))
        spec["pinned"] = pinned_of(spec["pinned"])
        columns |= {"pinned": spec["pinned"]}
        return {"spec": spec, "role": role, "columns": columns, "setting": setting}

    def _new(self, source: _Source) -> _Unit | TrialRecord:
        held = source.held
        if "study" in held:
            made = {key: value for key, value in held.items() if key != "kind"}
            units = [self._id(unit) for unit in held["units"]]
            return TrialRecord.model_validate(made | {"study": self._id(held["study"]), "units": units})
        return self._record(held).model_copy(update={"unit": self._id(held["unit"])})

    def write(self, root: Path, staged: Path) -> int:
        """Write the new folder; returns the number of its records."""
        archives: dict[str, dict[str, bytes]] = defaultdict(dict)
        versions: dict[str, int] = {}
        for source in self.sources:
            record = self._new(source)
            folder, text = record.place[-2], record.to_json()
            if isinstance(record, TrainRecord):
                versions[record.cell.protocol] = record.spec.protocol_version
            old, new = root / source.cell / source.folder, staged / source.cell / folder
            if source.packed:
                short = json.dumps(json.loads(text), separators=(",", ":"), sort_keys=True).encode()
                archives[source.cell.parent.name][(source.cell / folder / source.file).as_posix()] = short
            else:
                write_atomic(new / source.file, text, sync=False)
                for name in getattr(record, "files", ()):
                    _link(old / name, new / name)
        for dataset, texts in archives.items():
            write_archive(staged / f"{dataset}{ARCHIVE}", texts)
        write_atomic(staged / MARKER, Marker(schema_version=SCHEMA_VERSION, protocols=versions).to_json())
        return len(self.sources)


def _link(old: Path, new: Path) -> None:
    """Give a file a second name, or copy it where the file system has no links; nothing without a file."""
    if not old.is_file() or new.exists():
        return
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(old, new)
    except OSError:
        shutil.copy2(old, new)


def _version(kind: str, name: str, code: str) -> int | str:
    """Version 1 of what comes with the package; a plug-in has the hash of all code that ran."""
    return 1 if f"{kind}.{name}" in built_in_names() else f"file.{code}"


def _params(params: Held, method: str, fidelity: str) -> Held:
    """Parameters of a method with its form; what was called ``form`` was a loss."""
    if f"methods.{method}" not in built_in_names():
        return params if fidelity == "corrected" else params | {"form": fidelity}
    renamed = {"loss" if name == "form" else name: value for name, value in params.items()}
    return renamed | ({"form": fidelity} if len(_METHODS.method(method).forms()) > 1 else {})


def _own(key: str, kind: str, names: Iterable[str], code: str) -> dict[str, int | str]:
    return {f"{key}.{name}": _version(kind, name, code) for name in names}


def _scorers_of(tested: Held) -> set[str]:
    return {tested["role"]["primary_scorer"], "cosine", *tested["spec"]["scorers"]}


def pinned_of(text: str) -> Held:
    """Facts of the text that schema 2 has for a run's fixed settings.

    Example:
        >>> pinned_of("optim.lr=0.1; data.calibrate=False; frozen=order")
        {'settings': {'optim.lr': 0.1}, 'uncalibrated': True, 'frozen_source': 'order', 'tuned_anew': False}
    """
    found: Held = {"settings": {}}
    parts = text.split("; ") if text else []
    for number, part in enumerate(parts):
        key, _, value = part.partition("=")
        following = parts[number + 1].partition(".")[0] if number + 1 < len(parts) else ""
        if part == "data.calibrate=False" and following not in _SETTINGS:
            found["uncalibrated"] = True  # of a released form, which says so after all settings
        elif key.partition(".")[0] in _SETTINGS and "." in key:
            # Parameters of methods are kept as they were typed; this one was a loss.
            key = "method.loss" if key == "method.form" else key
            found["settings"][key] = value if key.startswith("method.") else _value(value)
        elif part == "frozen backbone":
            found["frozen_backbone"] = True
        elif part.startswith("stage 1 of "):
            found["stage"] = part.removeprefix("stage 1 of ")
        elif part.startswith("not as published: "):
            found["differences"] = part.removeprefix("not as published: ").split(", ")
        elif part.startswith("partial release: "):
            found["partial"] = part.removeprefix("partial release: ")
        elif key == "frozen":
            found |= {
                "frozen_source": value.removesuffix(" (tuned anew)"),
                "tuned_anew": value.endswith(" (tuned anew)"),
            }
        elif key == "corruptions":
            found[key] = value.split(",")
        else:
            found[key] = int(value) if key == "folds" else value
    return found


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
