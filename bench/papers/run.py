"""Plans of the runs behind a table or figure: one request per row and data set, resumable like any other run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, require_known
from ..planning.experiment import Experiment, settings_of
from ..planning.plan import Plan, PlanKey, build_plans
from ..planning.published import NothingPublished
from ..planning.setting import known_keys
from ..report.contender import Contender
from ..site import Site
from ..store.records import TestRecord
from .items import Named, Row

BASE = "$base"
"""Stands for the recipe's base of two-stage methods."""


def method_of(name: str, dataset: str, site: Site) -> str:
    """Name of the method that a row or claim means on a data set."""
    return site.recipe(dataset).base if name == BASE else name


Options = Mapping[str, Any]
"""Entries of a request that replace those of the paper, unless they are None.

Those of ``set`` are for every row whose method or data set has them.
"""


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """A row of a paper's table that we reproduce by a run, with its plans (trainings and tests to do)."""

    row: Row
    request: Experiment  # the equivalent request to ``bench run``
    plans: tuple[Plan, ...]  # that of the base if the method has two stages, then that of the method itself
    fallback: str  # why the default settings are used although published ones were asked for; empty if they are not

    @property
    def plan(self) -> Plan:
        """Plan of the row's method itself, rather than of the base model of a two-stage method."""
        return next(plan for plan in self.plans if plan.requested)

    @property
    def contender(self) -> Contender:
        """The row's method at its setting, with the values that identify its rows in the table of results."""
        return Contender(**self.plan.columns, dim=self.plan.template.dim, ensemble="")

    def tested(self, record: TestRecord) -> bool:
        """Check whether a test record belongs to one of the seeds of this row."""
        return Contender.of_columns(record.columns) == self.contender and record.columns.seed in self.plan.replicates


@dataclass(frozen=True, kw_only=True)
class PlannedItem:
    """A table or figure of a paper on one data set, with the plans of its runs."""

    named: Named
    dataset: str
    options: Options
    rows: tuple[PlannedRow, ...]
    left_out: dict[str, str]  # reasons for rows that are not run, by title


def plan_item(named: Named, dataset: str, options: Options, site: Site) -> PlannedItem:
    """Plan the runs of every row of a paper's table or figure on a data set, which need not be one of the paper's.

    Rows that cannot be planned, or repeat a run of the table, are left out with the reason.

    Raises:
        UserError: If no row can be planned: that of the first.
    """
    require_known("data set", [dataset], site.datasets.names)
    methods = sorted({method_of(row.method, dataset, site) for row in named.rows if row.method})
    known = known_keys([site.methods.method(name) for name in methods], [site.recipe(dataset)])
    require_known("--set key", settings_of(options.get("set") or ()), known)
    planned: list[PlannedRow] = []
    left_out: dict[str, str] = {}
    refused: UserError | None = None
    for row in (row for row in named.rows if row.method):
        request = request_of(named, row, dataset, options, site)
        twin = next((each for each in planned if each.request == request and each.row.reads == row.reads), None)
        if twin is not None:
            left_out[row.title] = f"the same run as {twin.row.title!r} on {dataset}"
            continue
        try:
            planned.append(_planned(row, request, site))
        except UserError as error:
            refused = refused or error
            left_out[row.title] = str(error)
    if not planned and refused:
        raise refused
    return PlannedItem(named=named, dataset=dataset, options=options, rows=tuple(planned), left_out=left_out)


def batches_of(planned: Sequence[PlannedItem]) -> list[tuple[Plan, ...]]:
    """Distribute the plans of all rows over batches, which are to be carried out one after the other.

    A row goes to the first batch that tests its models in no other way, such as by other scorers; a base that several
    rows need is planned once.
    """
    batches: list[dict[PlanKey, Plan]] = []
    for row in (row for item in planned for row in item.rows):
        batch = next((each for each in batches if all(_fits(plan, each) for plan in row.plans)), None)
        if batch is None:
            batches.append(batch := {})
        batch |= {plan.key: plan for plan in row.plans if plan.requested or plan.key not in batch}
    return [tuple(batch.values()) for batch in batches]


def _fits(plan: Plan, batch: Mapping[PlanKey, Plan]) -> bool:
    other = batch.get(plan.key, plan)
    same = (other.testing, other.hparams) == (plan.testing, plan.hparams)
    return same or not (plan.requested and other.requested)


def request_of(named: Named, row: Row, dataset: str, options: Options, site: Site) -> Experiment:
    """Request to ``bench run`` that is equivalent to a row with a method on a data set."""
    paper, item, recipe = named.paper, named.item, site.recipe(dataset)
    method = method_of(row.method, dataset, site)
    cls = site.methods.method(method)
    pins, asked = [*row.set, *row.set_on.get(dataset, ())], dict[str, Any]()
    if recipe.view:
        pins += [*item.set_photographs, *row.set_photographs]
        asked["backbone"], asked["dim"] = named.network(row)
    if row.select_by:
        asked["tuning"] = {"select_by": row.select_by}
    asked["hparams"] = "published" if dataset in item.datasets else "default"
    scorers = (row.reads["scorer"],) if "scorer" in row.reads else item.scorers
    known = known_keys([cls], [recipe])
    given = settings_of(options.get("set") or ())
    return Experiment.model_validate(
        {
            "methods": (method,),
            "datasets": (dataset,),
            "protocol": paper.protocol,
            "preset": paper.preset,
            "fidelity": paper.fidelity if len(cls.forms()) > 1 else "corrected",
            "seeds": paper.seeds,
            "scorers": tuple(name for name in scorers if name != "cosine"),
            **asked,
            **{key: value for key, value in options.items() if value is not None},
            "set": (*pins, *(f"{key}={value}" for key, value in given.items() if key in known)),
        }
    )


def _planned(row: Row, request: Experiment, site: Site) -> PlannedRow:
    try:
        return PlannedRow(row=row, request=request, plans=build_plans(request, site).plans, fallback="")
    except NothingPublished as error:
        instead = request.model_copy(update={"hparams": "default"})
        return PlannedRow(row=row, request=instead, plans=build_plans(instead, site).plans, fallback=str(error))


def what_differs(planned: PlannedItem) -> str:
    """How the planned runs differ from the paper's, on one line: data set, network, settings, batches and seeds."""
    parts = list(_differences(planned))
    if not parts:
        return "data set, network, settings and seeds are the paper's"
    return f"differs from the paper: {'; '.join(parts)}"


def _differences(planned: PlannedItem) -> Iterator[str]:
    named, dataset, options = planned.named, planned.dataset, planned.options
    if dataset not in named.item.datasets:
        yield f"no value was published for {dataset} ({named.name} has {', '.join(named.item.datasets)})"
    yield from dict.fromkeys(text for each in planned.rows for text in _of_run(named, each))
    yield from dict.fromkeys(note for each in planned.rows for plan in each.plans for note in plan.notes)
    defaults = [each.row.title for each in planned.rows if each.fallback]
    if defaults:
        which = "every row" if len(defaults) == len(planned.rows) else ", ".join(defaults)
        yield f"the recipe's settings for {which} (none were published for this data set and network)"
    elif planned.rows[0].plan.hparams != "published":
        yield f"settings: {planned.rows[0].plan.hparams}, not the published ones"
    seeds = planned.rows[0].plan.seeds
    if seeds != named.paper.seeds and named.item.kind == "runs":
        yield f"{seeds} seed{'s' if seeds > 1 else ''}, not {named.paper.seeds}"
    if pins := options.get("set"):
        yield f"set by hand: {', '.join(pins)}"


def _of_run(named: Named, each: PlannedRow) -> Iterator[str]:
    """Differences in network, weights and data of a run."""
    template = each.plan.template
    backbone, dim = named.network(each.row)
    if (template.backbone, template.dim) != (backbone, dim):
        yield f"{template.backbone}/{template.dim} instead of {backbone}/{dim}"
    if template.weights is None:
        yield "random starting weights"
    if template.partial:
        yield f"a part of the data ({template.partial})"
