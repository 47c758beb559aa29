"""The page of a results folder: its parts put together, and the HTML of them."""

from __future__ import annotations

import base64
import hashlib
import io
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from ...datasets.decode import decode
from ...protocols.metrics import find_metric, title_of
from ...store.check import failures
from ...store.folder import Damage
from ..contender import Contender
from ..cost import CostRow
from ..render import data_uri, environment, to_html, write_file
from ..splits import split_document
from ..table import Table, grouped
from ..write import Judged
from .about import DataSet, data_sets
from .answer import answer_of, headline_of, split_counts, split_sentences
from .curves import HEIGHT, WIDTH, Chart, charts_of
from .sources import (
    Tested,
    about_methods,
    about_protocols,
    failures_table,
    losses,
    machines_table,
    manifests_table,
    parameters_table,
    settings_table,
    settings_text,
    tested,
)
from .tables import (
    candidates_table,
    cases_table,
    results_table,
    use_table,
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


LARGE_PICTURE = 300_000
"""Size of a PNG, bytes, above which the page has it as a JPEG."""


@dataclass(frozen=True)
class DatasetPart:
    """Part of a page about one data set at its leading budget, with what there is at other budgets."""

    about: DataSet
    words: Words
    others: tuple[DatasetFacts, ...]
    settings: Table
    parameters: Table
    results: Table | None = None
    use: Table | None = None
    charts: tuple[Chart, ...] = ()

    @property
    def facts(self) -> DatasetFacts:
        """The data set at its leading budget."""
        return self.words.facts


def write_page(judged: Judged, damaged: Iterable[Damage], out: Path, pictures: Sequence[Path] = ()) -> Path:
    """Write the page of a results folder to ``out/report.html``; the same records give the same bytes."""
    path = out / PAGE
    write_file(path, page_html(judged, damaged, pictures).encode())
    return path


def page_html(judged: Judged, damaged: Iterable[Damage], pictures: Sequence[Path] = ()) -> str:
    """Build the page of a results folder; the arguments are those of :func:`write_page`."""
    store, results = judged.store, judged.results
    anchors = Anchors({*_SECTIONS})
    found: list[Damage] = list(damaged)
    store.on_damage = found.append
    sources = tested(store, results.tests)
    by_budget = grouped(dataset_facts(judged, anchors), lambda each: each.name)
    about = data_sets(by_budget)
    failed = failures(store, found)
    spent = {row.contender: row for row in judged.costs}
    parts = [
        _part(each, by_budget[name], sources, anchors, None if name in judged.over_splits else spent)
        for name, each in about.items()
    ]
    style = _read("page.css") + _read("vendor/uPlot.min.css")
    script = "\n".join([*(_read(f"vendor/{name}") for name in _SCRIPTS), _read("page.js")])
    by_seeds = [part for name, part in zip(about, parts) if name not in judged.over_splits]
    answer = answer_of([part.words for part in by_seeds]) if by_seeds else None
    systems = grouped(judged.systems, lambda each: each.contender.dataset)
    titles = {name: each.title for name, each in about.items() if name not in judged.over_splits}
    headline = headline_of([each for name in titles for each in systems.get(name, ())], anchors, titles)
    return (
        environment()
        .get_template("page.tmpl")
        .render(
            policy=_policy(style, script),
            style=style,
            script=script,
            parts=parts,
            by_seeds=by_seeds,
            answer=answer,
            losses=losses(sources),
            headline=headline,
            split_sentences=split_sentences(judged.splits),
            split_counts=split_counts(judged.splits),
            split_tables=_split_tables(judged, anchors),
            cases=cases_table(answer.cases, len(by_seeds), points_text(CONFIDENCE))
            if answer and answer.cases
            else None,
            table=to_html,
            candidates=candidates_table,
            named=named,
            mean_text=mean_text,
            matters=(points_text(RETRIEVAL), points_text(CONFIDENCE)),
            protocols=about_protocols(results.tests),
            methods=about_methods(results.tests),
            machines=machines_table(sources, anchors.of("machines")),
            manifests=manifests_table(sources, anchors.of("manifests")),
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
    "data",
    "splits",
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
    about: DataSet,
    budgets: Sequence[DatasetFacts],
    sources: Sequence[Tested],
    anchors: Anchors,
    spent: Mapping[Contender, CostRow] | None,
) -> DatasetPart:
    """A part with costs in its table of results; without them, and without results, if class splits answer instead."""
    name, leading = about.name, budgets[0]
    own = [each for each in sources if Contender.of_columns(each.test.columns) in leading.groups]
    facts = replace(leading, settings=settings_text(leading, own), title=about.title)
    if spent is None:
        facts = replace(facts, anchors=dict.fromkeys(facts.anchors, ""))  # there are no rows to lead to
    words = Words(facts)
    part = DatasetPart(
        about,
        words,
        tuple(budgets[1:]),
        settings_table(facts, own, anchors.of("settings", name)),
        parameters_table(facts, own, anchors.of("parameters", name)),
    )
    if spent is None:
        return part
    return replace(
        part,
        results=results_table(facts, anchors.of("results", name), spent),
        use=use_table(words, anchors.of("use", name)),
        charts=tuple(charts_of(facts, words.leaders[0].contender, anchors)),
    )


def _split_tables(judged: Judged, anchors: Anchors) -> list[Table]:
    """Tables over class splits, with their captions as notes."""
    return [
        replace(each, anchor=anchors.of("splits", each.title), notes=(*each.notes, each.caption))
        for each in split_document(judged.splits).tables
    ]


def _picture(path: Path, anchors: Anchors) -> dict[str, str]:
    """Image that is part of the page, with its source as a data URI; a large one is a JPEG there."""
    kind, content = "image/png", path.read_bytes()
    if len(content) > LARGE_PICTURE:
        from PIL import Image

        packed = io.BytesIO()
        Image.fromarray(decode(path).permute(1, 2, 0).numpy()).save(packed, "JPEG", quality=85)
        kind, content = "image/jpeg", packed.getvalue()
    title = path.stem.replace("_", " ")
    return {"anchor": anchors.of("picture", path.stem), "title": title, "source": data_uri(kind, content)}


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
