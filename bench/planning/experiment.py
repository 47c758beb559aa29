"""An experiment as it is asked for: its model, and the files of experiments and of settings."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources.abc import Traversable
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ..errors import UnknownName, UserError, first_line, require_known, shortened
from ..resources import pick_device, worker_count
from ..store.files import read_json
from ..store.specs import TuneFor

MOST, MOST_DIMENSIONS = 1_000_000, 65_536
"""Largest number of seeds or trials, and largest embedding size."""

Value = str | bool | int | float | list[int]


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _text(value: Any) -> Any:
    """A value as it is typed after ``--set KEY=``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, int | float) else value


def _pairs(asked: Any) -> list[tuple[str, Any]] | None:
    """Keys and values of a table or of texts ``KEY=VALUE``, None without an equals sign; None for anything else."""
    if isinstance(asked, Mapping):
        return list(asked.items())
    if not isinstance(asked, list | tuple) or not all(isinstance(text, str) for text in asked):
        return None
    parts = (text.partition("=") for text in asked)
    return [(key.strip(), value.strip() if equals else None) for key, equals, value in parts]


def settings_of(asked: Any) -> Any:
    """Settings by key, from a table or from texts ``KEY=VALUE``.

    Raises:
        UserError: If a text has no equals sign, or a key is given twice.
    """
    pairs = _pairs(asked)
    if pairs is None:
        return asked  # pydantic says what is wrong
    found = {key: _text(value) for key, value in pairs}
    for key, value in pairs:
        if value is None and not isinstance(asked, Mapping):
            raise UserError(f"--set {key}: expected KEY=VALUE, such as method.margin=0.3")
        if (count := sum(key == other for other, _ in pairs)) > 1:
            raise UserError(f"--set {key} is given {count} times; give it once")
    return found


def _swept(asked: Any) -> Any:
    """Values by the key of a swept setting, from a table or from texts ``KEY=A,B,C``; a value may be a list itself."""
    pairs = _pairs(asked)
    if pairs is None:
        return asked
    found: dict[str, tuple[str, ...]] = {}
    for key, listed in pairs:
        if isinstance(listed, str):
            listed = [part.strip() for part in listed.split(",") if part.strip()]
        values = tuple(map(_text, listed if isinstance(listed, list | tuple) else () if listed is None else [listed]))
        if not all(isinstance(value, str) for value in values):
            return asked
        text = f"--sweep {key}={','.join(values)}"
        if not key or not values:
            raise UserError(f"{text}: expected KEY=A,B,C, such as method.omega=0.1,0.3,1")
        if len(set(values)) < len(values):
            raise UserError(f"{text}: a value is given twice")
        if key in found:
            raise UserError(f"{text}: {key} is set or swept already")
        found[key] = values
    return found


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]

NEEDED, COMPUTED, SETTINGS = "What most runs need", "What to compute", "Settings"
MACHINE, FILES, RESULTS = "Data and machine", "An experiment as a file", "Results"
SECTIONS_OF_HELP = (NEEDED, COMPUTED, SETTINGS, MACHINE, FILES, RESULTS)
"""Sections of the help of ``bench run``, in their order."""

COMPUTED_RARELY, TUNED, WORKERS = (
    "What to compute, rarely needed",
    "Tuning (also --set tuning.NAME=VALUE)",
    "Machine (also --set run.NAME=VALUE)",
)
EXISTING = "Results that exist"
RARE_SECTIONS = (COMPUTED_RARELY, TUNED, WORKERS, EXISTING)
"""Further ones, which ``--help-all`` shows."""


class Option(NamedTuple):
    """How a field is asked for on the command line; its help is the text below the field.

    The option has the name of the field, or another one, and a word that stands for its value.
    """

    section: str
    metavar: str | None = None
    name: str = ""


class Section(BaseModel):
    """Part of an experiment, a table of its file."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Tuning(Section):
    """How a setting is tuned, for those who need another way than the usual."""

    sampler: Annotated[Literal["gp", "tpe"], Option(TUNED)] = "gp"
    """What proposes after the start-up points: a Gaussian process, or Parzen estimators for 100 trials and more."""

    studies: Annotated[int | None, Option(TUNED)] = Field(None, ge=1, le=MOST)
    """Tuning studies. Every replicate has one of its own if not given, and its chosen network is tested. 1 is the
    papers' design, and that of presets per and mlrc: one study, and --seeds trainings at the setting that it chooses,
    which say what that setting does and not what the method does."""

    first_study: int = Field(0, ge=0, le=MOST)
    """Number of the first study: other numbers are other draws."""

    retrain: bool = False
    """Whether the network that a study chooses is trained anew before it is tested."""

    folds: Annotated[int | None, Option(TUNED)] = Field(None, ge=1)
    """Number of the four blocks of classes that validate, one model each; the preset's if not given."""

    select_by: Annotated[str | None, Option(TUNED, "SCORER")] = None
    """Scorer of the validation MAP@R that selects epochs and trials; the method's own if not given."""

    tune_for: Annotated[TuneFor, Option(TUNED)] = "retrieval"
    """What trials are chosen by. retrieval: what selects epochs, validation MAP@R for most methods. confidence: how
    well the method's default confidence tells right from wrong answers on centre crops of the validation images
    (AUROC). both: the highest such AUROC within two SDs over seeds of the best MAP@R, the SDs of the default setting
    over studies; one point with one study. A base that only serves is tuned for
    retrieval."""


class Data(Section):
    """Which classes train and which images are tested, for those who need others than a data set's own."""

    class_seed: int = Field(0, ge=0, le=MOST)
    """Number of a class split that is run; 0 is the data set's own."""

    class_splits: int | None = Field(None, ge=2, le=MOST)
    """Number of splits that are run beside the own one, 1 to this; None if none are."""

    test_queries: int | None = Field(None, ge=100, le=MOST)
    """Number of images, drawn from the queries of a test, that are searched for in the whole gallery; None for all
    queries."""


class Run(Section):
    """Where and how an experiment is run, which changes no result."""

    workers: Annotated[int | None, Option(MACHINE)] = Field(None, ge=1)
    """Processes; one per core, or per share of a GPU, if not given."""

    device: Annotated[Literal["auto", "cpu", "cuda"], Option(MACHINE)] = "auto"
    """Where to train."""

    gpus_per_worker: Annotated[float | None, Option(WORKERS, "SHARE")] = Field(None, ge=0.01, le=1.0)
    """Share of a GPU for each worker, such as 0.25; a whole one if not given."""

    stall: float | None = Field(None, ge=0.01)
    """Minutes without progress after which a training or test is ended; without it a hung plug-in is waited for."""

    strict: bool = False
    """Whether damaged images of a folder are refused, rather than a few of them left out."""

    launcher: Annotated[Literal["local", "ray"], Option(WORKERS)] = "local"
    """Where workers are: on this machine, or on all nodes of a Ray cluster."""

    address: Annotated[str | None, Option(WORKERS, "auto|HOST:PORT")] = None
    """With --launcher ray: the head of the cluster; auto (if not given) is the cluster of this machine."""

    def resolved(self) -> Run:
        """The choice with the device of this machine, if workers are here; refuses options that do not fit."""
        local = self.launcher == "local"
        if local and self.address is not None:
            raise UserError("--address names a Ray cluster; add --launcher ray")
        device = pick_device(self.device) if local else self.device
        if self.gpus_per_worker is not None and device == "cpu":
            raise UserError(f"--gpus-per-worker {self.gpus_per_worker:g}: no GPU is used here; leave the option out")
        if local:
            worker_count(self.workers, device, self.gpus_per_worker)  # raises before anything is decoded
        return self.model_copy(update={"device": device})

    @property
    def device_here(self) -> str:
        """Device of what is timed on this machine, even if the workers are elsewhere: ``cpu`` or ``cuda``."""
        return pick_device("auto" if self.launcher == "ray" and self.device == "cuda" else self.device)


class Experiment(Section):
    """Everything that ``bench run`` is asked for; what is None is decided by the protocol or the data set's recipe."""

    methods: Annotated[Names, Option(NEEDED, "M[,M..]", "method")]
    """Methods, comma separated, or `all`."""

    datasets: Annotated[Names, Option(NEEDED, "D[,D..]", "dataset")] = ("ndigit",)
    """Data sets, comma separated; ndigit if not given."""

    protocol: Annotated[str, Option(COMPUTED)] = "reality_check"
    """Protocol."""

    preset: Annotated[str, Option(COMPUTED_RARELY)] = "strict"
    """Variant of the protocol."""

    fidelity: Annotated[str, Option(COMPUTED)] = "corrected"
    """`corrected`, or `released` for the computation of a paper's public code if it differs (`released_per`,
    `released_el`: that of one repository)."""

    hparams: Annotated[str, Option(NEEDED)] = "tuned"
    """tuned, default, published, or a JSON/TOML file."""

    seeds: Annotated[int | None, Option(NEEDED)] = Field(None, ge=1, le=MOST)
    """Replicates, each a tuning study with the network that it chooses; the preset's if not given."""

    trials: Annotated[int | None, Option(NEEDED)] = Field(None, ge=1, le=MOST)
    """Trainings spent on tuning a method, shared out over its studies; the preset's if not given."""

    base: Annotated[str | None, Option(COMPUTED_RARELY, "METHOD")] = None
    """Base of two-stage methods; the recipe's if not given."""

    set: Annotated[
        dict[str, str],
        BeforeValidator(settings_of, json_schema_input_type=dict[str, Value]),
        Option(SETTINGS, "KEY=VALUE"),
    ] = {}
    """Fix a setting, such as method.margin=0.3 or optim.epochs=10; repeatable. Keys start with method., model., optim.,
    data., augment., tuning. or run."""

    sweep: Annotated[
        dict[str, tuple[str, ...]],
        BeforeValidator(_swept, json_schema_input_type=dict[str, list[Value]]),
        Option(SETTINGS, "KEY=A,B,C"),
    ] = {}
    """One run for each value, as with --set, and a figure of metrics against it; repeatable: all combinations."""

    backbone: Annotated[str | None, Option(SETTINGS, "NAME")] = None
    """Backbone, see `bench list backbones`: one of ours or any model of timm; the recipe's if not given."""

    weights: Annotated[str | None, Option(SETTINGS, "FILE")] = None
    """Backbone weights to start from (.safetensors or .pth), `none`, or `download` for ImageNet's; those on this
    machine if not given. convnet needs none."""

    dim: Annotated[int | None, Option(SETTINGS)] = Field(None, ge=2, le=MOST_DIMENSIONS)
    """Embedding size; the recipe's if not given."""

    frozen: Annotated[bool, Option(SETTINGS)] = False
    """Leave the backbone at its starting weights: every method trains its heads on cached features of
    data.feature_views augmented views per image."""

    scorers: Annotated[Names, Option(COMPUTED, "S[,S..]")] = ()
    """Scorers to test with in addition to a method's own and the cosine, comma separated, or `all`."""

    corruptions: Annotated[Names, Option(COMPUTED, "C[,C..]")] = ()
    """Corruptions of the test images, comma separated, or `all`; crop if not given. With a level of five (blur:3,
    jpeg:1-5) or severities in [0, 1] (noise:0.2-1.0)."""

    plugins: Annotated[Names, Option(MACHINE, "FILE", "plugin")] = ()
    """Python file with methods, data sets, tests, scorers, corruptions or distributions; repeatable."""

    allow_partial: Annotated[bool, Option(COMPUTED_RARELY)] = False
    """Accept an incomplete release; every table then says so."""

    tuning: Tuning = Tuning()
    """How a setting is tuned."""

    data: Data = Data()
    """Which classes train and which are tested."""

    run: Run = Run()
    """Where and how the experiment is run."""

    @model_validator(mode="before")
    @classmethod
    def _sections(cls, asked: Any) -> Any:
        """Move settings of a section, such as ``tuning.sampler``, from ``set`` to their section."""
        settings = settings_of(asked.get("set", ())) if isinstance(asked, Mapping) else None
        if not isinstance(settings, Mapping):
            return asked
        moved: dict[str, Any] = {**asked, "set": {}}
        for key, value in settings.items():
            section, _, name = key.partition(".")
            if section not in SECTIONS or (section == "data" and name not in Data.model_fields):
                moved["set"][key] = value  # other settings of the data are those of a recipe
            elif name not in SECTIONS[section].model_fields:
                known = [f"{each}.{field}" for each, kind in SECTIONS.items() for field in kind.model_fields]
                raise UnknownName("--set key", key, known)
            elif isinstance(held := moved.get(section, {}), Mapping | Section):
                moved[section] = {**(held if isinstance(held, Mapping) else held.model_dump()), name: value}
            else:
                return asked  # pydantic says that it is no table
        return moved

    @model_validator(mode="after")
    def _nothing_twice(self) -> Experiment:
        for key, values in self.sweep.items():
            if key in self.set:
                raise UserError(f"--sweep {key}={','.join(values)}: {key} is set or swept already")
            if key == "data.test_queries" or key.startswith(("tuning.", "run.")):
                raise UserError(f"--sweep {key}: it cannot be swept; use --set {key}={values[0]}, a run for each value")
            if key.removeprefix("data.") in Data.model_fields:
                raise UserError(f"--sweep {key}: use --set data.class_splits={max(2, len(values))}")
        if self.data.class_seed and self.data.class_splits:
            raise UserError(f"data.class_seed={self.data.class_seed}: leave it out, or data.class_splits")
        return self

    @classmethod
    def checked(cls, values: Mapping[str, Any], where: str = "") -> Experiment:
        """Experiment of untrusted values.

        Raises:
            UserError: If a name is unknown or a value does not fit; the message starts with ``where``.
        """
        try:
            return cls(**values)
        except ValidationError as error:
            # An unknown name explains a missing one better than the other way round.
            first = min(error.errors(), key=lambda item: item["type"] == "missing")
            path = [str(part) for part in first["loc"] if part != "function-plain"]
            if first["type"] == "extra_forbidden":
                held = SECTIONS.get(path[0], cls)
                prefix = "" if held is cls else f"{path[0]}."
                known = [prefix + name for name in held.model_fields]
                raise UnknownName(f"setting{f' in {where}' if where else ''}", ".".join(path), known) from None
            if first["type"] == "missing":
                raise UserError(f"{where or '--method'}: no method is named; `bench list methods` lists them") from None
            reason = first["msg"].removeprefix("Value error, ").lower()
            shown = shortened(repr(first["input"]), 60)
            raise UserError(f"{f'{where}: ' if where else ''}{'.'.join(path)}={shown}: {reason}") from None

    @classmethod
    def filled(cls, file: Mapping[str, Any], typed: Mapping[str, Any], where: str = "") -> Experiment:
        """Experiment of a file and of typed options, which override the file; settings are overridden key by key.

        Raises:
            UserError: If a name is unknown or a value does not fit; for values of the file, ``where`` is named.
        """
        options = dict(typed)
        fixed, swept = settings_of(options.pop("set", ())), _swept(options.pop("sweep", ()))
        held = cls.checked({**file, **options}, where)
        values = held.model_dump(exclude_unset=True)
        values["set"] = {key: value for key, value in held.set.items() if key not in swept} | fixed
        values["sweep"] = {key: value for key, value in held.sweep.items() if key not in fixed} | swept
        return cls.checked(values)

    def variants(self) -> Iterator[Experiment]:
        """One experiment for each combination of swept values, as if each value were fixed by the user."""
        for chosen in product(*self.sweep.values()):
            fixed = {**self.set, **dict(zip(self.sweep, chosen, strict=True))}
            yield self.model_copy(update={"set": fixed, "sweep": {}})

    def to_toml(self, *, without: Iterable[str] = ()) -> str:
        """The experiment as a TOML text that :func:`read_experiment` reads; what has its default is left out."""
        held = self.model_dump(mode="json", exclude_defaults=True, exclude={*without})
        tables = {name: held.pop(name) for name in ("set", "sweep", *SECTIONS) if name in held}
        lines = [f"{key} = {_toml(value)}" for key, value in held.items()]
        for name, table in tables.items():
            values = {key: _short(value) if name in ("set", "sweep") else value for key, value in table.items()}
            lines += ["", f"[{name}]", *(f"{_key(key)} = {_toml(value)}" for key, value in values.items())]
        return "\n".join(lines) + "\n"


SECTIONS: dict[str, type[Section]] = {"tuning": Tuning, "data": Data, "run": Run}
"""Sections of an experiment, whose values ``--set`` reaches as ``SECTION.NAME``."""


def _toml(value: Any) -> str:
    # A TOML string is a JSON string, but for surrogates (which ASCII escapes would need) and the delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else _toml(key)


def _short(value: Any) -> Any:
    """The number or truth value that a text stands for, if it is written like that."""
    if isinstance(value, list):
        return [_short(item) for item in value]
    try:
        short = json.loads(value)
    except ValueError:
        return value
    return short if isinstance(short, bool | int | float) and _text(short) == value else value


Values = Mapping[str, Any]
"""Values by key as ``--set`` has them, such as ``method.margin`` or ``optim.lr``; ``model.backbone`` and ``model.dim``
have options of their own. A layer has some of the keys; a later layer wins."""

LARGEST = 64_000
"""Largest file, bytes."""

MOST_DOTS = 100
"""Most dots on a line of TOML: the time of its parser grows with the square of the parts of a key, or faster."""


class SettingsFile(NamedTuple):
    """Settings of a JSON or TOML file that the user gave, for all methods and for single ones.

    The label has a hash of the content, so that edited content gets another label in results.
    """

    path: str
    label: str
    by_method: Mapping[str, Values]


def read_experiment(path: Path) -> Values:
    """Values of the TOML file of an experiment, which :meth:`.Experiment.filled` checks."""
    options = "`bench run` takes options (`--method M,N --dataset D`: several names are one list)"
    table: Values = read_file(path, "TOML", str(path), f"; {options} or a TOML file of them")[1]
    return table


def read_settings_file(name: str, methods: list[str]) -> SettingsFile:
    """Read a file of settings: ``{"method.scale": ..}`` for all methods, ``{"cosface": {..}}`` for one, or both."""
    path, what = Path(name), f"--hparams {Path(name)}"
    language: Literal["TOML", "JSON"] = "TOML" if path.suffix == ".toml" else "JSON"
    text, table = read_file(path, language, what, "; use tuned, default, published or a file")
    if not isinstance(table, dict):
        raise UserError(f'{what}: expected a table of settings, like {{"method.scale": 16}}')
    by_method = {key: value for key, value in table.items() if isinstance(value, dict)}
    require_known(f"method in {path}:", by_method, methods)
    shared = {key: value for key, value in table.items() if key not in by_method}
    for values in (shared, *by_method.values()):
        _check_values(values, path)
    every = {method: {**shared, **by_method.get(method, {})} for method in methods}
    return SettingsFile(str(path), f"{path.name}#{hashlib.sha256(text).hexdigest()[:8]}", every)


def read_file(
    path: Path | Traversable, language: Literal["TOML", "JSON"], what: str, instead: str = "", most: int = LARGEST
) -> tuple[bytes, Any]:
    """Content and value of a file that is named ``what`` in messages, or else what to type ``instead``."""
    try:
        with path.open("rb") as file:
            text = file.read(most + 1)
    except OSError as error:
        raise UserError(f"{what}: {error.strerror}{instead}") from error
    if len(text) > most:
        raise UserError(f"{what}: more than {most} bytes; it is no file of this kind")
    try:
        return text, read_toml(text) if language == "TOML" else read_json(text)
    except ValueError as error:
        raise UserError(f"{what}: not valid {language}: {first_line(error)}") from None


def read_toml(text: bytes) -> dict[str, Any]:
    """Value of a TOML text that a user gave; a ValueError if it is not valid TOML, or nested too deeply."""
    if any(line.count(b".") > MOST_DOTS for line in text.splitlines()):
        raise ValueError(f"a line has more than {MOST_DOTS} dots")
    try:
        return tomllib.loads(text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _check_values(values: Values, path: Path) -> None:
    """Refuse values that no setting can have: tables, dates, numbers that are not finite, lists of such."""
    for key, value in values.items():
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str | int | float) or (isinstance(item, float) and not math.isfinite(item)):
                raise UserError(
                    f"--hparams {path}: {shortened(key, 60)!r} must be text, a finite number, true, false or a list"
                    " of those"
                )
            if isinstance(item, str) and not item.isprintable():
                said = f"{shortened(key, 60)!r} has characters that cannot be printed: '{shortened(item, 60)}'"
                raise UserError(f"--hparams {path}: {said}")
