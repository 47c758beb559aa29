"""Plans of the runs behind a table or figure: one request per row and data set, resumable like any other run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UnknownName, UserError
from ..planning.experiment import Experiment, settings_of
from ..planning.plan import Plan
from ..planning.planner import build_plans
from ..planning.published import NothingPublished
from ..planning.sources import known_keys
from ..report.contender import Contender
from ..site import Site
from ..store.records import TestRecord
from ..store.specs import Cell
from .items import Named, Row

BASE = "$base"
"""Stands for the recipe's base of two-stage methods."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Choices of the user that replace those of the paper in a reproduction; None keeps the paper's.

    Attributes:
        seeds: Number of seeds.
        hparams: Source of the hyper-parameters: ``published``, ``default``, ``tuned`` or a file; None is ``published``
            on the paper's data sets and ``default`` on others.
        trials: Number of tuning trials, if ``hparams`` is ``tuned``.
        backbone: Name of the backbone.
        dim: Embedding size.
        pins: Settings to fix, ``KEY=VALUE``, in every row whose method or data set has them.
    """

    seeds: int | None = None
    hparams: str | None = None
    trials: int | None = None
    backbone: str | None = None
    dim: int | None = None
    pins: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """A row of a paper's table that we reproduce by a run, with its plans (trainings and tests to do).

    Attributes:
        row: Definition of the row.
        request: The equivalent request to ``bench run``.
        plans: Plan of the base model if the method has two stages, followed by that of the method itself.
        fallback: Reason for using the data set's default settings although published ones were asked for; empty if the
            settings are those asked for.
    """

    row: Row
    request: Experiment
    plans: tuple[Plan, ...]
    fallback: str

    @property
    def plan(self) -> Plan:
        """Plan of the row's method itself, rather than of the base model of a two-stage method."""
        return next(plan for plan in self.plans if plan.requested)

    @property
    def contender(self) -> Contender:
        """The row's method at its setting, with the values that identify its rows in the table of results."""
        plan = self.plan
        template = plan.template
        return Contender(
            protocol=template.protocol,
            preset=plan.preset,
            dataset=template.dataset,
            method=template.method,
            base=plan.base.cell.method if plan.base else "",
            fidelity=template.fidelity,
            hparams=plan.hparams,
            trials=plan.trials,
            pinned=plan.pinned,
            backbone=template.backbone,
            dim=template.dim,
            ensemble="",
        )

    def tested(self, record: TestRecord) -> bool:
        """Check whether a test record belongs to one of the seeds of this row."""
        columns = dict(record.columns)
        same = all(columns[key] == value for key, value in self.contender._asdict().items())
        return same and record.columns.seed < self.plan.seeds


@dataclass(frozen=True, kw_only=True)
class PlannedItem:
    """A table or figure of a paper on one data set, with the plans of its runs.

    Attributes:
        named: The table or figure, with its paper.
        dataset: Name of the data set.
        options: Choices of the user that replace those of the paper.
        rows: Rows that are runs.
        left_out: Reasons for rows that are not run, by title.
    """

    named: Named
    dataset: str
    options: Options
    rows: tuple[PlannedRow, ...]
    left_out: dict[str, str]


def plan_item(named: Named, dataset: str, options: Options, site: Site) -> PlannedItem:
    """Plan the runs of every row of a paper's table or figure on a data set.

    Rows that cannot be planned, or repeat a run of the table, are left out with the reason.

    Args:
        named: The table or figure, with its paper.
        dataset: Our name of the data set; it may be one that the paper does not have.
        options: Choices of the user that replace those of the paper.
        site: Plug-ins, folder of data sets and weights of this machine.

    Raises:
        UserError: If no row can be planned; the message is the reason for the first.
    """
    known = dict.fromkeys(site.datasets.names)
    if dataset not in known:
        raise UnknownName("data set", dataset, known)
    _check_pins(named, dataset, options, site)
    planned: list[PlannedRow] = []
    left_out: dict[str, str] = {}
    for row in named.rows:
        if not row.method:
            continue
        request = request_of(named, row, dataset, options, site)
        twin = next((each for each in planned if each.request == request and each.row.reads == row.reads), None)
        if twin is not None:
            left_out[row.title] = f"the same run as {twin.row.title!r} on {dataset}"
            continue
        try:
            planned.append(_planned(row, request, site))
        except UserError as error:
            left_out[row.title] = str(error)
    if not planned:
        raise UserError(next(iter(left_out.values())))
    return PlannedItem(named=named, dataset=dataset, options=options, rows=tuple(planned), left_out=left_out)


def batches_of(planned: Sequence[PlannedItem]) -> list[tuple[Plan, ...]]:
    """Distribute the plans of all rows over batches, which are to be carried out one after the other.

    A batch has at most one plan per (protocol, data set, method), as a single call of ``bench run`` has. A row goes to
    the first batch without a conflicting plan. Plans of the same method conflict if their training settings differ or,
    if both are of rows, their tests differ. A base model that several two-stage methods of a batch need is planned
    once; if it is also a row, the plan of the row is used.

    Args:
        planned: Tables or figures of papers, each on one data set.
    """
    batches: list[dict[Cell, Plan]] = []
    for row in (row for item in planned for row in item.rows):
        for batch in batches:
            if all(_same(batch.get(plan.cell, plan), plan) for plan in row.plans):
                break
        else:
            batch = {}
            batches.append(batch)
        for plan in row.plans:
            if plan.requested or plan.cell not in batch:
                batch[plan.cell] = plan
    return [tuple(batch.values()) for batch in batches]


def _same(first: Plan, second: Plan) -> bool:
    """Check if two plans of a cell train the same units, and are tested alike unless one only serves as a base."""
    trained = (first.template.id, first.pinned, first.hparams) == (second.template.id, second.pinned, second.hparams)
    tested = first.testing == second.testing or not (first.requested and second.requested)
    return trained and tested


def request_of(named: Named, row: Row, dataset: str, options: Options, site: Site) -> Experiment:
    """Request to ``bench run`` that is equivalent to a row of a paper's table on a data set.

    Args:
        named: The table or figure, with its paper.
        row: The row; it has a method.
        dataset: Our name of the data set.
        options: Choices of the user that replace those of the paper.
        site: Plug-ins, folder of data sets and weights of this machine.
    """
    paper, item, recipe = named.paper, named.item, site.recipe(dataset)
    method = recipe.base if row.method == BASE else row.method
    cls = site.methods.method(method)
    pins = [*row.set, *row.set_on.get(dataset, ())]
    asked: dict[str, Any] = {}
    if recipe.view:
        pins += [*item.set_photographs, *row.set_photographs]
        asked["backbone"], asked["dim"] = named.network(row)
    asked |= {key: value for key in ("backbone", "dim") if (value := getattr(options, key)) is not None}
    if row.select_by:
        asked["tuning"] = {"select_by": row.select_by}
    scorers = (row.reads["scorer"],) if "scorer" in row.reads else item.scorers
    return Experiment(
        methods=(method,),
        datasets=(dataset,),
        protocol=paper.protocol,
        preset=paper.preset,
        fidelity=paper.fidelity if len(cls.fidelities) > 1 else "corrected",
        seeds=options.seeds or paper.seeds,
        trials=options.trials,
        hparams=options.hparams or ("published" if dataset in item.datasets else "default"),
        scorers=tuple(name for name in scorers if name != "cosine"),
        set=(*pins, *_fitting(options.pins, method, dataset, site)),
        **asked,
    )


def _planned(row: Row, request: Experiment, site: Site) -> PlannedRow:
    try:
        return PlannedRow(row=row, request=request, plans=build_plans(request, site).plans, fallback="")
    except NothingPublished as error:
        instead = request.model_copy(update={"hparams": "default"})
        return PlannedRow(row=row, request=instead, plans=build_plans(instead, site).plans, fallback=str(error))


def _fitting(pins: tuple[str, ...], method: str, dataset: str, site: Site) -> Iterator[str]:
    """The pins that a method has on a data set."""
    known = known_keys([site.methods.method(method)], [site.recipe(dataset)])
    return (f"{key}={value}" for key, value in settings_of(pins).items() if key in known)


def _check_pins(named: Named, dataset: str, options: Options, site: Site) -> None:
    """Refuse pins that no row has.

    Raises:
        UnknownName: With the nearest key.
    """
    recipe = site.recipe(dataset)
    methods = {recipe.base if row.method == BASE else row.method for row in named.rows if row.method}
    known = known_keys([site.methods.method(name) for name in sorted(methods)], [recipe])
    for key in settings_of(options.pins):
        if key not in known:
            raise UnknownName("--set key", key, known)
