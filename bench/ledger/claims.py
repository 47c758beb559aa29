"""Claims of papers as data: one method is better than others by a metric, or as good as they are.

The claims that come with the program are ``results/published/claims.toml``; users can give a file of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..datasets.corruptions.registry import CORRUPTIONS
from ..errors import UnknownName, UserError, first_line, shortened
from ..methods.scorers.registry import SCORERS
from ..planning.experiment import read_toml, settings_of
from ..planning.request import FIDELITIES
from ..planning.sources import known_keys
from ..protocols import PROTOCOLS
from ..protocols.confidence_kinds import (
    COMBINED,
    CONTROLS,
    FITTED,
    FREE_IMAGE_CONFIDENCES,
    OWN,
    RETRIEVAL_CONFIDENCES,
)
from ..protocols.metrics import METRICS, Metric, declared_metric, find_metric
from ..reproduce.items import Column, Named, Row, every_item
from ..reproduce.rows import BASE
from ..site import Site

SHIPPED = "claims.toml"
"""File of the claims that come with the program, in the package ``bench.results.published``."""

LARGEST = 1_000_000
"""Largest file of claims, bytes."""

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


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class Source(_Entry):
    """Paper that makes claims.

    Attributes:
        title: Title.
        venue: Place and year of publication, with an arXiv number if there is one.
        read: Text from which the claims were written: ``text`` of the paper, its ``abstract``, or neither
            (``memory``).
    """

    title: str = Field(min_length=1)
    venue: str = Field(min_length=1)
    read: Literal["text", "abstract", "memory"]


class Side(_Entry):
    """One of the methods that a claim compares, at one setting.

    Attributes:
        method: Name of the method; ``$base`` is the method that heads are trained on, by the recipe of the data set.
        base: Method of the model that a head is trained on; the recipe's if empty.
        fidelity: Form of the method: ``corrected``, or that of a public code; the one that is asked for if empty.
        set: Settings that distinguish this side from the others, ``KEY=VALUE`` as for ``bench run --set``.
        scorer: Similarity that ranks; ``own`` is that of the method.
        confidence: Confidence that is judged, if the metric judges one; ``own`` is the method's default one.
        row: Title of its row in the table of the paper.
    """

    method: str
    base: str = ""
    fidelity: str = ""
    set: tuple[str, ...] = ()
    scorer: str = DEFAULT
    confidence: str = DEFAULT
    row: str = ""

    def label(self, metric: Metric) -> str:
        """Name of the side in tables, with what distinguishes it from the method at its defaults.

        Args:
            metric: Metric of the claim, which says if the confidence matters.

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


class Claim(_Entry):
    """Claim of a paper: the value of method A is higher than, lower than or equal to that of each method B.

    Attributes:
        id: Name of the claim: lower-case words with hyphens.
        paper: Key of the paper.
        place: Section, table or figure that makes the claim.
        says: The claim in one sentence of ours.
        datasets: Data sets of the paper that this program has.
        elsewhere: Data sets of the paper that it does not have.
        protocol: Protocol of ours that is closest to the paper's, and measures the metric.
        metric: Name of the metric, as in ``metrics.csv``.
        split: Test images: ``test``, or ``test_`` and the name of a corruption.
        variant: Variants of the metric; the first that was measured counts.
        fraction: Share of images removed, for a point of a filter-out curve.
        direction: Claimed value of A, compared with B's: ``higher``, ``lower`` or ``equal`` (inside the metric's
            region of practical equivalence).
        a: The method that the claim is about.
        b: Methods that it is compared with; the claim is about each of them.
        tables: Tables of the paper, as for ``bench reproduce``, each with some of its data sets.
        column: Title of the column in these tables.
        tested_on: Data sets of the command that makes records for the claim.
        note: Difference between the paper's comparison and this one; may be empty.
    """

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    paper: str
    place: str = Field(min_length=1)
    says: str = Field(min_length=1)
    datasets: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    protocol: str = "reality_check"
    metric: str
    split: str = "test"
    variant: tuple[str, ...] = ("",)
    fraction: float | None = Field(None, ge=0, lt=1)
    direction: Literal["higher", "lower", "equal"]
    a: Side
    b: tuple[Side, ...] = Field(min_length=1)
    tables: tuple[str, ...] = ()
    column: str = ""
    tested_on: tuple[str, ...] = Field(("ndigit",), min_length=1)
    note: str = ""

    @property
    def sides(self) -> tuple[Side, ...]:
        """A, followed by every B."""
        return (self.a, *self.b)

    @property
    def declared(self) -> Metric:
        """Declaration of the metric: its title, unit and region of equivalence.

        Raises:
            LookupError: If there is no metric of this name.
        """
        return declared_metric(self.metric)

    def cell(self, side: Side, dataset: str) -> tuple[Named, Row, Column] | None:
        """Table of the paper with a side's row and column; None if the claim does not name them for a data set.

        Args:
            side: One of its sides.
            dataset: Our name of the data set.
        """
        for name in self.tables if side.row else ():
            named = every_item()[name]
            if dataset in named.item.datasets:
                row = next(row for row in named.rows if row.title == side.row)
                return named, row, next(column for column in named.columns("") if column.title == self.column)
        return None


class Ledger(_Entry):
    """File of claims.

    Attributes:
        paper: Papers by key.
        claim: Their claims.
    """

    paper: Mapping[str, Source] = Field(min_length=1)
    claim: tuple[Claim, ...] = Field(min_length=1)


def read_ledger(path: Path | None, site: Site) -> Ledger:
    """Read a file of claims, and check every name in it.

    Args:
        path: A TOML file; None for the claims that come with the program.
        site: Plug-ins, for the names of their methods and data sets.

    Raises:
        UserError: If the file cannot be read, or has an unknown key or name; one line with the file and the claim.
    """
    where = SHIPPED if path is None else str(path)
    table = _table(path, where)
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


def _table(path: Path | None, where: str) -> dict[str, object]:
    try:
        text = (files("bench.results.published").joinpath(SHIPPED) if path is None else path).read_bytes()
    except OSError as error:
        raise UserError(f"--claims {where}: {error.strerror}") from error
    if len(text) > LARGEST:
        raise UserError(f"--claims {where}: more than {LARGEST} bytes")
    try:
        return read_toml(text)
    except ValueError as error:
        raise UserError(f"{where}: not valid TOML: {first_line(error)}") from None


def _complaint(where: str, table: Mapping[str, object], error: ValidationError) -> str:
    """One line about the first error: the file, the claim, the key and what is wrong."""
    first = error.errors()[0]
    place = list(first["loc"])
    parts = [where]
    claims = table.get("claim")
    if place[:1] == ["claim"] and len(place) > 1 and isinstance(claims, list):
        number = int(place[1])
        entry = claims[number]
        name = entry.get("id") if isinstance(entry, dict) else None
        parts.append(f"claim {name!r}" if isinstance(name, str) else f"claim number {number + 1}")
        place = place[2:]
    key = ".".join(map(str, place))
    said = "unknown key" if first["type"] == "extra_forbidden" else first["msg"]
    return shortened(": ".join([*parts, *filter(None, [key]), said]))


def _check(claim: Claim, ledger: Ledger, site: Site) -> None:
    """Check every name in a claim.

    Raises:
        UserError: If one is unknown, or parts of the claim do not fit together.
    """
    metric = find_metric(claim.metric)
    if metric is None:
        raise UnknownName("metric", claim.metric, METRICS)
    splits = ("test", *(f"test_{name}" for name in CORRUPTIONS))
    _known("paper", [claim.paper], ledger.paper)
    _known("data set", [*claim.datasets, *claim.tested_on], site.datasets.names)
    _known("protocol", [claim.protocol], PROTOCOLS)
    _known("split", [claim.split], splits)
    if claim.direction == "equal" and not metric.equivalence:
        raise UserError(f"{claim.metric} has no region of equivalence; use direction 'higher' or 'lower'")
    if not claim.datasets and not claim.elsewhere:
        raise UserError("name the data sets of the paper in datasets, or in elsewhere if the program has none of them")
    for side in claim.sides:
        _check_side(side, claim, metric, site)
    _check_table(claim)


def _known(what: str, names: list[str], known: object) -> None:
    assert isinstance(known, list | tuple | Mapping)
    for name in names:
        if name not in known:
            raise UnknownName(what, name, known)


def _check_side(side: Side, claim: Claim, metric: Metric, site: Site) -> None:
    methods = site.methods.names
    _known("method", [side.method], [BASE, *methods])
    _known("method", [side.base] if side.base else [], methods)
    _known("fidelity", [side.fidelity] if side.fidelity else [], FIDELITIES)
    _known("scorer", [side.scorer], [DEFAULT, *SCORERS])
    _known("confidence", [side.confidence], CONFIDENCES)
    if side.confidence != DEFAULT and metric.of != "confidence":
        raise UserError(f"{claim.metric} judges no confidence; leave confidence = {side.confidence!r} out")
    if side.set:
        recipes = [site.recipe(name) for name in claim.tested_on]
        classes = [site.methods.method(name) for name in _methods(side, claim, site)]
        _known("setting", list(settings_of(side.set)), sorted(known_keys(classes, recipes)))


def _methods(side: Side, claim: Claim, site: Site) -> Iterator[str]:
    """Methods that a side stands for on the data sets of its command."""
    if side.method != BASE:
        yield side.method
        return
    for name in claim.tested_on:
        yield site.recipe(name).base


def _check_table(claim: Claim) -> None:
    """Check the tables of the paper that a claim names, with its rows and column."""
    rows = [side.row for side in claim.sides if side.row]
    if (rows or claim.column) and not claim.tables:
        raise UserError("a row or column needs the tables that it is in")
    _known("table", [*claim.tables], every_item())
    for named in (every_item()[name] for name in claim.tables):
        _known("row", rows, [row.title for row in named.rows])
        if rows or claim.column:
            _known("column", [claim.column], [column.title for column in named.columns("")])
