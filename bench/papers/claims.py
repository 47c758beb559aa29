"""Claims of papers as data: one method is better than others by a metric, or as good as they are.

The claims that come with the program are ``results/published/claims.toml``; users can give a file of their own.
docs/reproduce.md explains the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from ..datasets.corruptions.registry import CORRUPTIONS
from ..errors import UnknownName, UserError, require_known, shortened
from ..methods.scorers.registry import SCORERS
from ..planning.asked import FIDELITIES
from ..planning.experiment import read_file, settings_of
from ..planning.setting import known_keys, resolve_fidelity
from ..protocols._base import PROTOCOLS
from ..protocols.metrics import METRICS, Metric, declared_metric, find_metric
from ..protocols.rows import COMBINED, CONTROLS, FITTED, FREE_IMAGE_CONFIDENCES, OWN, RETRIEVAL_CONFIDENCES
from ..report.table import grouped
from ..site import Site
from .items import FOLDER, Entry, Named, Published, Reads, every_item, published_value
from .run import BASE, method_of

SHIPPED = "claims.toml"
"""File of the claims that come with the program."""

LARGEST = 1_000_000
"""Largest file of claims, bytes."""

FORMS = ("corrected", "released")
"""Forms of the methods in which claims are judged."""

SEEDS = 5
"""Number of seeds of the commands that make records."""

DEFAULT = "own"
"""Stands for the scorer or the confidence that a method has by default."""

_IMAGE_CONFIDENCES = (OWN, *FREE_IMAGE_CONFIDENCES)
CONFIDENCES = (
    DEFAULT,
    *_IMAGE_CONFIDENCES,
    *RETRIEVAL_CONFIDENCES,
    *(f"{name}{ending}" for name in _IMAGE_CONFIDENCES for ending in (COMBINED, FITTED)),
    *CONTROLS,
)
"""Names of confidences that a claim may be about."""


MEASURED = {"metric", "split", "variant", "fraction"}
"""What a claim and a column of a table say of the values that they are about."""


class Source(Entry):
    """Paper that makes claims."""

    title: str = Field(min_length=1)
    venue: str = Field(min_length=1)
    read: Literal["text", "abstract", "memory"]  # what the claims were written from


class Side(Entry):
    """One of the methods that a claim compares, at one setting."""

    method: str  # "$base" is the method that heads are trained on, by the recipe of the data set
    base: str = ""  # method of the model that a head is trained on; the recipe's if empty
    fidelity: str = ""  # form of the method; the one that is asked for if empty
    set: tuple[str, ...] = ()  # settings that distinguish it from the other sides, as for ``bench run --set``
    scorer: str = DEFAULT
    confidence: str = DEFAULT
    row: str = ""  # title of its row in the table of the paper

    def label(self, metric: Metric) -> str:
        """Name of the side in tables, with what distinguishes it from the method at its defaults.

        Example:
            >>> from bench.protocols.metrics import METRICS
            >>> Side(method="m", set=("method.x=1",), scorer="l2").label(METRICS["map_at_r"])
            'm, x=1, by l2'
            >>> Side(method="m", confidence="norm").label(METRICS["aurc"])
            'm: norm'
        """
        name = f"{self.method} ({self.base})" if self.base else self.method
        name = f"{name} [{self.fidelity}]" if self.fidelity else name
        parts = [name, *(text.removeprefix("method.") for text in self.set)]
        if self.scorer != DEFAULT:
            parts.append(f"by {self.scorer}")
        text = ", ".join(parts)
        return f"{text}: {self.confidence}" if metric.of == "confidence" and self.confidence != DEFAULT else text

    def form(self, method: str, asked: str, protocol: str, site: Site) -> str:
        """Form in which its method is computed if ``corrected`` or ``released`` is asked for."""
        return resolve_fidelity(site.methods.method(method), self.fidelity or asked, protocol)


class Claim(Entry):
    """Claim of a paper: the value of method A is higher than, lower than or equal to that of each method B."""

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    paper: str
    place: str = Field(min_length=1)  # section, table or figure that makes the claim
    says: str = Field(min_length=1)  # the claim in one sentence of ours
    datasets: tuple[str, ...] = ()  # of the paper, which this program has
    elsewhere: tuple[str, ...] = ()  # of the paper, which it does not have
    protocol: str = "reality_check"
    metric: str
    split: str = "test"
    variant: tuple[str, ...] = ("",)  # the first that was measured counts
    fraction: float | None = Field(None, ge=0, lt=1)  # share of images removed, for a point of a filter-out curve
    direction: Literal["higher", "lower", "equal"]  # equal: inside the metric's region of practical equivalence
    a: Side
    b: tuple[Side, ...] = Field(min_length=1)  # the claim is about each of them
    tables: tuple[str, ...] = ()  # tables of the paper, each with some of its data sets
    column: str = ""  # of these tables
    tested_on: tuple[str, ...] = Field(("ndigit",), min_length=1)  # data sets of the command that makes records
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def of_rows(cls, given: Any) -> Any:
        """Without a metric, a claim is about a column of its first table; a side without a method is a row of it."""
        tables = given.get("tables") if isinstance(given, dict) else None
        named = every_item().get(str(tables[0])) if tables and isinstance(tables, list) else None
        if named is None:
            return given
        made, rivals = dict(given), given.get("b")
        column = next((each for each in named.columns("") if each.title == given.get("column")), None)
        if "metric" not in given and column and column.reads:
            made |= column.reads.model_dump(include=MEASURED)
        made["a"] = _of_row(given.get("a"), named)
        made["b"] = [_of_row(each, named) for each in rivals] if isinstance(rivals, list) else rivals
        return {key: value for key, value in made.items() if value is not None}

    @property
    def sides(self) -> tuple[Side, ...]:
        """A, followed by every B."""
        return (self.a, *self.b)

    def reads(self, side: Side) -> Reads:
        """What is measured of a side."""
        own = {"scorer": side.scorer, "confidence": side.confidence if self.declared.of == "confidence" else ""}
        return Reads(**self.model_dump(include=MEASURED), **own)

    @property
    def declared(self) -> Metric:
        """Declaration of the metric: its title, unit and region of equivalence."""
        return declared_metric(self.metric)

    @property
    def sign(self) -> int:
        """-1 if a lower value is claimed, else 1."""
        return -1 if self.direction == "lower" else 1


def _of_row(side: Any, named: Named) -> Any:
    """A side that is the title of a row, with what the row says."""
    rows = {row.title: row for row in named.rows}
    if not isinstance(side, str):
        return side
    if side not in rows:
        raise ValueError(str(UnknownName("row", side, rows)))
    return {"method": rows[side].method, "set": rows[side].set, "row": side, **rows[side].reads}


class Ledger(Entry):
    """File of claims, and the papers that make them by key."""

    paper: Mapping[str, Source] = Field(min_length=1)
    claim: tuple[Claim, ...] = Field(min_length=1)


def read_ledger(path: Path | None, site: Site) -> Ledger:
    """Read a TOML file of claims, or those that come with the program, and check every name in it.

    Raises:
        UserError: If the file cannot be read, or has an unknown key or name; one line with the file and the claim.
    """
    where = SHIPPED if path is None else str(path)
    file = FOLDER.joinpath(SHIPPED) if path is None else path
    table: Mapping[str, object] = read_file(file, "TOML", where, most=LARGEST)[1]
    try:
        ledger = Ledger.model_validate(table)
    except ValidationError as error:
        raise UserError(_complaint(where, table, error)) from None
    name, count = Counter(claim.id for claim in ledger.claim).most_common(1)[0]
    if count > 1:
        raise UserError(f"{where}: claim {name!r}: {count} claims have this id; give each its own")
    for claim in ledger.claim:
        try:
            _check(claim, ledger, site)
        except UserError as error:
            raise UserError(shortened(f"{where}: claim {claim.id!r}: {error}")) from None
    return ledger


def _complaint(where: str, table: Mapping[str, object], error: ValidationError) -> str:
    """One line about the first error: the file, the claim, the key and what is wrong."""
    first = error.errors()[0]
    place, parts, claims = list(first["loc"]), [where], table.get("claim")
    if place[:1] == ["claim"] and len(place) > 1 and isinstance(claims, list):
        number = int(place[1])
        entry = claims[number]
        name = entry.get("id") if isinstance(entry, dict) else None
        parts.append(f"claim {name!r}" if isinstance(name, str) else f"claim number {number + 1}")
        place = place[2:]
    key = ".".join(map(str, place))
    said = "unknown key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
    return shortened(": ".join([*parts, *filter(None, [key]), said]))


def _check(claim: Claim, ledger: Ledger, site: Site) -> None:
    """Refuse unknown names in a claim, and parts of it that do not fit together."""
    metric = find_metric(claim.metric)
    if metric is None:
        raise UnknownName("metric", claim.metric, METRICS)
    require_known("paper", [claim.paper], ledger.paper)
    require_known("data set", [*claim.datasets, *claim.tested_on], site.datasets.names)
    require_known("protocol", [claim.protocol], PROTOCOLS)
    require_known("split", [claim.split], ["test", *(f"test_{name}" for name in CORRUPTIONS)])
    if claim.direction == "equal" and not metric.equivalence:
        raise UserError(f"{claim.metric} has no region of equivalence; use direction 'higher' or 'lower'")
    if not claim.datasets and not claim.elsewhere:
        raise UserError("name the data sets of the paper in datasets, or in elsewhere if the program has none of them")
    for side in claim.sides:
        _check_side(side, claim, metric, site)
    _check_table(claim)


def _check_side(side: Side, claim: Claim, metric: Metric, site: Site) -> None:
    require_known("method", [side.method], [BASE, *site.methods.names])
    require_known("method", [side.base] if side.base else [], site.methods.names)
    require_known("fidelity", [side.fidelity] if side.fidelity else [], FIDELITIES)
    require_known("scorer", [side.scorer], [DEFAULT, *SCORERS])
    require_known("confidence", [side.confidence], CONFIDENCES)
    if side.confidence != DEFAULT and metric.of != "confidence":
        raise UserError(f"{claim.metric} judges no confidence; leave confidence = {side.confidence!r} out")
    if side.set:
        classes = [site.methods.method(method_of(side.method, name, site)) for name in claim.tested_on]
        recipes = [site.recipe(name) for name in claim.tested_on]
        require_known("setting", list(settings_of(side.set)), sorted(known_keys(classes, recipes)))


def _check_table(claim: Claim) -> None:
    """Check the tables of the paper that a claim names, with its rows and column."""
    rows = [side.row for side in claim.sides if side.row]
    if (rows or claim.column) and not claim.tables:
        raise UserError("a row or column needs the tables that it is in")
    require_known("table", claim.tables, every_item())
    for named in (every_item()[name] for name in claim.tables):
        require_known("row", rows, [row.title for row in named.rows])
        if rows or claim.column:
            require_known("column", [claim.column], [column.title for column in named.columns("")])


def commands(claim: Claim, site: Site, fidelity: str = "corrected") -> list[str]:
    """Commands that make records of all sides of a claim, in a form of the methods, on the data sets ``tested_on``.

    There is one for each data set and combination of settings that the sides have.
    """
    found = []
    for dataset in claim.tested_on:
        names = {side: method_of(side.method, dataset, site) for side in claim.sides}
        forms = {side: side.form(name, fidelity, claim.protocol, site) for side, name in names.items()}
        runs = {side: (form, side.base, side.set) for side, form in forms.items()}
        for (form, base, pins), sides in grouped(runs, runs.__getitem__).items():
            methods = dict.fromkeys(names[side] for side in sides)
            scorers = dict.fromkeys(side.scorer for side in sides if side.scorer not in (DEFAULT, "cosine"))
            parts = [f"bench run --method {','.join(methods)} --dataset {dataset} --seeds {SEEDS} --hparams default"]
            parts += [f"--protocol {claim.protocol}"] if claim.protocol != "reality_check" else []
            parts += [f"--base {base}"] if base else []
            parts += [f"--fidelity {form}"] if form != "corrected" else []
            parts += [f"--scorers {','.join(scorers)}"] if scorers else []
            found.append(" ".join([*parts, *(f"--set {pin}" for pin in pins)]))
    return found


def has_released_form(claim: Claim, site: Site) -> bool:
    """Check if a public code of any method of a claim computes something else than the corrected form."""
    methods = [(side, method_of(side.method, name, site)) for side in claim.sides for name in claim.tested_on]
    return any(len({side.form(name, form, claim.protocol, site) for form in FORMS}) > 1 for side, name in methods)


def published_differences(claim: Claim) -> dict[str, float]:
    """Published differences of a claim, A minus the B that is closest to refuting it, in the unit of the paper.

    They are by data set of ours, for those with numbers of every side.
    """
    found = {}
    for dataset in claim.datasets:
        numbers = [_published(claim, side, dataset) for side in claim.sides]
        values = [number.mean for number in numbers if number is not None]
        if len(values) == len(claim.sides):
            leads = [values[0] - value for value in values[1:]]
            equal, lower = claim.direction == "equal", claim.direction == "lower"
            found[dataset] = max(leads, key=abs) if equal else max(leads) if lower else min(leads)
    return found


def region(claim: Claim, dataset: str) -> float:
    """Size up to which a difference is negligible for a claim on a data set, in our unit; 0 if no difference is.

    It is the metric's region of equivalence, or half of the published effect if that is smaller: the effect on the same
    data set, or else the smallest, of those in the claimed direction. For a claim of equality it is the metric's.
    """
    declared = claim.declared.equivalence
    effects = {name: claim.sign * value for name, value in published_differences(claim).items()}
    effects = {name: value for name, value in effects.items() if value > 0}
    if claim.direction == "equal" or not effects:
        return declared
    columns = every_item()[claim.tables[0]].columns("")
    factor = next(column.factor for column in columns if column.title == claim.column)
    return min(declared, effects.get(dataset, min(effects.values())) / factor / 2)


def _published(claim: Claim, side: Side, dataset: str) -> Published | None:
    """Published number of a side, from the first table of the claim that has the data set."""
    for named in (every_item()[name] for name in claim.tables if side.row):
        if dataset in named.item.datasets:
            row = next(row for row in named.rows if row.title == side.row)
            column = next(column for column in named.columns("") if column.title == claim.column)
            return published_value(named, row, column, dataset)
    return None
