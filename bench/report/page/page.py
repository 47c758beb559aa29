"""The page of a results folder: its parts put together, and the HTML of them."""

from __future__ import annotations

import base64
import hashlib
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import groupby
from pathlib import Path

import pandas as pd

from ...protocols.metrics import find_metric, title_of
from ...store.files import write_atomic
from ...store.folder import Damage
from ..contender import Contender
from ..cost import CostRow
from ..render import environment, to_html
from ..table import Table
from ..write import Judged
from .answer import answer_of, headline_of
from .curves import HEIGHT, WIDTH, Chart, charts_of
from .sources import (
    Tested,
    about_names,
    about_protocols,
    failures,
    failures_table,
    machines_table,
    manifests_table,
    parameters_table,
    records_table,
    settings_table,
    settings_text,
    tested,
)
from .tables import (
    candidates_table,
    cases_table,
    forms_table,
    open_table,
    results_table,
    use_table,
    verdict_table,
)
from .words import (
    CONFIDENCE,
    NEAR_CHANCE,
    RETRIEVAL,
    Anchors,
    DatasetFacts,
    Words,
    dataset_facts,
    mean_text,
    named,
    points_text,
)

PAGE = "report.html"
"""Name of the file."""

_SCRIPTS = ("sortable.min.js", "sortable.a11y.min.js", "uPlot.iife.min.js")
"""Scripts of others, in the order in which they are run."""


@dataclass(frozen=True)
class DatasetPart:
    """Part of a page about one data set: verdicts at the leading and at other budgets, tables and charts."""

    words: Words
    others: tuple[Words, ...]
    results: Table
    use: Table
    verdicts: Table
    open: Table
    forms: Table | None
    settings: Table
    parameters: Table
    charts: tuple[tuple[DatasetFacts, tuple[Chart, ...]], ...]

    @property
    def facts(self) -> DatasetFacts:
        """The data set at its leading budget."""
        return self.words.facts

    @property
    def compared(self) -> list[Words]:
        """Verdicts at other budgets that several methods have."""
        return [words for words in self.others if len(words.facts.own) > 1]

    @property
    def alone(self) -> list[DatasetFacts]:
        """Other budgets that one method has, so that there is nothing to compare."""
        return [words.facts for words in self.others if len(words.facts.own) < 2]


def write_page(judged: Judged, damaged: Iterable[Damage], out: Path, pictures: Sequence[Path] = ()) -> Path:
    """Write the page of a results folder to ``out/report.html``; the same records give the same bytes."""
    path = out / PAGE
    write_atomic(path, page_html(judged, damaged, pictures).encode())
    return path


def page_html(judged: Judged, damaged: Iterable[Damage], pictures: Sequence[Path] = ()) -> str:
    """Build the page of a results folder; the arguments are those of :func:`write_page`."""
    store, results = judged.store, judged.results
    anchors = Anchors({*_SECTIONS})
    found: list[Damage] = list(damaged)
    store.on_damage = found.append
    sources = tested(store, results.tests)
    facts = [replace(each, settings=settings_text(each, sources)) for each in dataset_facts(judged, anchors)]
    forms = {} if judged.forms.empty else dict(list(judged.forms.groupby("dataset", sort=True)))
    failed = failures(store, found)
    spent = {row.contender: row for row in judged.costs}
    parts = [
        _part(list(own), [one for one in sources if one.test.columns.dataset == name], anchors, spent, forms.get(name))
        for name, own in groupby(facts, key=lambda each: each.name)
    ]
    style = _read("page.css") + _read("vendor/uPlot.min.css")
    script = "\n".join([*(_read(f"vendor/{name}") for name in _SCRIPTS), _read("page.js")])
    answer = answer_of([part.words for part in parts]) if parts else None
    headline = headline_of(judged.systems, anchors)
    return (
        environment()
        .get_template("page.tmpl")
        .render(
            policy=_policy(style, script),
            style=style,
            script=script,
            parts=parts,
            answer=answer,
            headline=headline,
            cases=cases_table(answer.cases, len(parts), points_text(CONFIDENCE)) if answer and answer.cases else None,
            table=to_html,
            candidates=candidates_table,
            named=named,
            mean_text=mean_text,
            matters=(points_text(RETRIEVAL), points_text(CONFIDENCE)),
            protocols=about_protocols(results.tests),
            names=about_names(results.tests),
            machines=machines_table(sources, anchors.of("machines")),
            manifests=manifests_table(sources, anchors.of("manifests")),
            records=records_table(facts, sources, anchors.of("tests"), anchors),
            failed=failed,
            kinds=Counter(each.what for each in failed).items(),
            failures=failures_table(failed, anchors.of("failures-table")),
            superseded=results.superseded,
            pictures=[_picture(path, anchors) for path in pictures],
            vendored=[each | {"text": _read(f"vendor/{each['licence_file']}")} for each in _vendored()],
            terms=_terms(),
            size=(WIDTH, HEIGHT),
            near_chance=NEAR_CHANCE,
        )
        .lstrip()
    )


_SECTIONS = (
    "top",
    "verdict",
    "short",
    "results",
    "curves",
    "protocol",
    "provenance",
    "failures",
    "reading",
    "pictures",
)
"""Ids of the sections, which no part may have."""


def _part(
    budgets: Sequence[DatasetFacts],
    sources: Sequence[Tested],
    anchors: Anchors,
    spent: Mapping[Contender, CostRow],
    forms: pd.DataFrame | None,
) -> DatasetPart:
    words = [Words(facts) for facts in budgets]
    name = budgets[0].name
    answers = [
        anchors.of(name, facts.labels[each.contender], each.split, each.question, each.challenger, *which)
        for place, facts in enumerate(budgets)
        for which in [[facts.budget_text] if place else []]
        for each in facts.verdicts
    ]
    return DatasetPart(
        words[0],
        tuple(words[1:]),
        results_table(budgets, anchors.of("results", name), spent),
        use_table(words, anchors.of("use", name)),
        verdict_table(budgets, anchors.of("verdicts", name), answers),
        open_table(words, anchors.of("open", name)),
        None if forms is None else forms_table(name, forms, anchors.of("forms", name)),
        settings_table(name, sources, anchors.of("settings", name)),
        parameters_table(budgets, sources, anchors.of("parameters", name)),
        tuple(
            (each.facts, tuple(charts_of(each.facts, each.leaders[0].contender, anchors)))
            for place, each in enumerate(words)
            if place == 0 or len(each.facts.own) > 1
        ),
    )


def _picture(path: Path, anchors: Anchors) -> dict[str, str]:
    """Image that is part of the page, with its source as a data URI."""
    source = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    return {"anchor": anchors.of("picture", path.stem), "title": path.stem.replace("_", " "), "source": source}


def _terms() -> list[tuple[str, str]]:
    """Metrics of the page with their sources."""
    names = ("recall_at_1", "map_at_r", "confidence_auroc", "augrc", "spearman_crop")
    found = {title_of(name, short=True): find_metric(name) for name in names}
    return [(title, metric.source) for title, metric in found.items() if metric and metric.source]


def _read(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Content security policy: nothing is loaded, and only the page's own style and script count."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}';"
        " base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _vendored() -> list[dict[str, str]]:
    """Scripts of others that are part of the page: name, version, source, licence and its file."""
    found: list[dict[str, str]] = tomllib.loads(_read("vendor/vendored.toml"))["package"]
    return found
