"""The page of a results folder: its parts put together, and the HTML of them."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path

from markupsafe import Markup

from ...protocols.metrics import find_metric
from ...protocols.rows import AGREEMENT, MARGIN, OWN
from ...store.check import failures
from ...store.folder import Damage
from .. import comparison
from ..contender import ONE_SETTING
from ..questions import DEFAULTS, IMAGES
from ..render import data_uri, environment, to_html, write_file
from ..table import cells_table, grouped, headings
from ..write import Judged
from . import answers, svg, tables
from .answers import Part

PAGE = "report.html"
"""Name of the file."""

LARGE_PICTURE = 300_000
"""Size of a PNG, bytes, above which the page has it as a JPEG."""

CURVES = 5
"""Most methods with a curve in a picture, beside the plain one."""


_DATA = ("data set", "what it is, licence, source", "compared over", "setting")


def write_page(judged: Judged, damaged: Iterable[Damage], out: Path, pictures: Sequence[Path] = ()) -> Path:
    """Write the page of a results folder to ``out/report.html``; the same records give the same bytes."""
    path = out / PAGE
    write_file(path, page_html(judged, damaged, pictures).encode())
    return path


def page_html(judged: Judged, damaged: Iterable[Damage], pictures: Sequence[Path] = ()) -> str:
    """Build the page of a results folder; the arguments are those of :func:`write_page`."""
    found: list[Damage] = list(damaged)
    judged.store.on_damage = found.append
    parts = answers.parts_of(judged)
    tested = tables.tested(judged.store, judged.tests)
    failed = failures(judged.store, found)
    style, script = _read("page.css") + _read("svg.css"), _read("page.js")
    rows = [(part.title, part.what, part.over, part.budget) for part in parts]
    page = environment().get_template("page.tmpl")
    text = page.render(
        policy=_policy(style, script),
        style=style,
        script=script,
        parts=parts,
        families=grouped(parts, lambda part: answers.FAMILIES[part.kind]),
        judged=judged,
        answers=answers,
        tables=tables,
        table=to_html,
        warnings=[*_warnings(parts)],
        losses=[*tables.losses(tested), *tables.roundings(tested), *judged.mixed],
        legend=Markup(
            svg.legend(
                ("better", "better adjusted", "worse", "worse adjusted", "undecided", "depends on tuning", "no verdict")
            )
        ),
        curves=_curves,
        data=cells_table("Data and settings", headings(*_DATA, labels=len(_DATA)), rows, anchor="data"),
        settings=[tables.settings_table(part, tested) for part in parts],
        machines=tables.machines_table(tested),
        failures=cells_table("What failed, and why", headings("where", "what", "why", labels=3), failed),
        pictures=[_picture(path) for path in pictures],
        methods=tables.methods_table(judged.tests),
        metric=find_metric,
    )
    return text.lstrip()


def _warnings(parts: Sequence[Part]) -> Iterator[str]:
    """What a reader has to know before any number: single settings, parts of data, and heads that gain nothing."""
    if once := [part.name for part in parts if any(each.is_one_setting for each in part.means)]:
        yield ONE_SETTING if len(once) == len(parts) else f"{', '.join(once)}: {ONE_SETTING}"
    for part in parts:
        partial = dict.fromkeys(each.pinned.partial for each in part.labels if each.pinned.partial)
        yield from (f"{part.name}: part of the data only, {text}." for text in partial)
        if any(AGREEMENT in row.rival and not row.about["with_agreement"] for row in part.systems):
            yield f"{part.name}: old records; the plain method may use the neighbours' agreement, own confidences not."
        table = comparison.Part(part.name, "", [*part.rows.values()])
        yield from (f"{part.name}: {text}" for text in (*table.against, *table.thresholds))


def _curves(part: Part, split: str, brief: bool) -> Markup | str:
    """Errors among the answers that are given, the most confident first: the plain method and those with most to gain.

    Every method ranks by its own score. Combinations of confidences have no curve in records; empty without any curve.
    """
    place: answers.Place = ("before_gallery", split)
    leading = [row.contender for row in part.at(place)[:CURVES]] or list(part.labels)[:CURVES]
    lines: list[svg.Line] = []
    for contender in dict.fromkeys([*([part.plain] if part.plain else ()), *leading]):
        row = part.confidence(contender, place)
        free = row.rival.split(" or ")[0] if row else DEFAULTS["before_gallery"]
        first = OWN if row and row.confidence else free
        group = part.groups.get(contender)
        for name in (first, MARGIN) if brief or contender == part.plain else (first,):
            curve = group.curve("filter_out_recall_at_1", split, "query_only", name) if group else {}
            known = [(1 - share, 1 - value.mean) for share, value in curve.items() if value.defined]
            if known:
                x, y = zip(*known)
                lines.append((f"{part.labels[contender]}: {answers.plainly(name)}", x, y, math.nan, math.nan))
    about = {"x_label": "answers given, the most confident first, %", "y_label": "wrong among them, %"}
    label = f"{part.title}, {IMAGES[split]}"
    return Markup(svg.curves(lines, percent=True, label=label, **about)) if lines else ""


def _picture(path: Path) -> dict[str, str]:
    """Image that is part of the page, with its source as a data URI; a large one is a JPEG there."""
    kind, content = "image/png", path.read_bytes()
    if len(content) > LARGE_PICTURE:
        from PIL import Image

        from ...datasets.decode import decode  # late: it imports torch

        packed = io.BytesIO()
        Image.fromarray(decode(path).permute(1, 2, 0).numpy()).save(packed, "JPEG", quality=85)
        kind, content = "image/jpeg", packed.getvalue()
    return {"title": path.stem.replace("_", " "), "source": data_uri(kind, content)}


def _read(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _policy(*texts: str) -> str:
    """Content security policy: nothing is loaded, and only the page's own style and script count."""
    style, script = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    own = f"style-src 'sha256-{style}'; script-src 'sha256-{script}'"
    return f"default-src 'none'; img-src data:; {own}; base-uri 'none'; form-action 'none'"
