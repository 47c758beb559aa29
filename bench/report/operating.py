"""Operating points for readers: sentences, a table, pictures and the file ``operate.json``."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.text import Text

from ..errors import printable
from ..protocols.operate import Document
from ..protocols.statistics.bootstrap import FEW
from ..store.files import write_atomic
from .page import svg
from .render import print_table
from .table import GAP, Column, cells_table, label, percent

if TYPE_CHECKING:
    import pandas as pd


class OperatingPoints:
    """Thresholds for wished shares, chosen on some classes and measured on others.

    ``document`` is what ``operate.json`` has, ``table`` a row for each point.
    """

    def __init__(self, document: Document) -> None:
        self.document = document

    @property
    def table(self) -> pd.DataFrame:
        """A row for each decision, wish and guarantee.

        Columns are ``decision``, ``wish``, ``value``, ``guarantee`` (nan for none), ``confidence`` (the sum of
        confidences that is compared), ``threshold``, ``coverage``, ``risk``, ``far`` (share of different pairs, or
        unknown queries, that are accepted) and ``tar`` (of the others), each with the ends of its 95 % interval
        (``coverage_low``, ``coverage_high``), ``half_gallery_coverage`` and ``half_gallery_risk``, likewise, and
        ``reason``, why there is no threshold. Values that do not exist are nan.
        """
        import pandas as pd

        frame = pd.DataFrame(self.document["points"])
        frame["confidence"] = frame["confidence"].map(_sum)
        texts = ("decision", "wish", "confidence", "reason")
        return frame.astype({column: float for column in frame.columns if column not in texts})

    def write(self, path: str | PathLike[str]) -> Path:
        """Write ``operate.json``, which ``docs/score.md`` says how to apply."""
        place = Path(path)
        write_atomic(place, (json.dumps(self.document, indent=1, allow_nan=False) + "\n").encode())
        return place

    def pictures(self) -> dict[str, str]:
        """SVGs by name: risk and coverage of answers over the threshold, and how true the probabilities are."""
        document, none = self.document, np.nan
        drawn: dict[str, str] = {}
        if "answer" in document["probability"] and document["curve"]["threshold"]:
            at = np.array(document["curve"]["threshold"])
            shares = {name: 100 * np.array(document["curve"][name]) for name in ("coverage", "risk")}
            lines: list[svg.Line] = [(f"{name}, %", at, values, none, none) for name, values in shares.items()]
            for point in document["points"]:
                if point["decision"] == "answer" and point["threshold"] is not None:
                    name = f"{point['wish']} {point['value']:g}{', guaranteed' if point['guarantee'] else ''}"
                    lines.append((name, np.full(2, point["threshold"]), np.array([0.0, 100.0]), none, none))
            x_label = f"threshold on {_sum(document['probability']['answer']['confidence'])}"
            drawn["operate_answer"] = svg.curves(lines, x_label=x_label, y_label="answers", percent=False)
        lines = [("true", np.array([0.0, 1.0]), np.array([0.0, 1.0]), none, none)]
        for name, found in document["reliability"].items():
            columns = (np.array([each[key] for each in found["bins"]]) for key in ("probability", "right"))
            lines.append((name, *columns, none, none))
        labels = {"x_label": "probability of being right, %", "y_label": "right, %"}
        return drawn | {"operate_reliability": svg.curves(lines, **labels, percent=True)}

    def __repr__(self) -> str:
        text = io.StringIO()
        print_operating(self.document, Console(file=text, width=120))
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def _sum(form: Mapping[str, float]) -> str:
    return " + ".join(name if weight == 1.0 else f"{weight:.4g} {name}" for name, weight in form.items())


def _share(point: Mapping[str, float | None], key: str) -> str:
    """A share in percent with its interval, as in ``4.6 [2.9, 6.7]``; empty if it does not exist."""
    value, low, high = (point[f"{key}{end}"] for end in ("", "_low", "_high"))
    around = "" if low is None else f" [{percent(low, 1)}, {percent(high, 1)}]"
    return "" if value is None else f"{percent(value, 1)}{around}"


def sentences(document: Document) -> list[str]:
    """What the first threshold for an answer means to an outsider, and where it holds."""
    set_on, measured = document["set_on"], document["measured_on"]
    point = next((each for each in document["points"] if each["decision"] == "answer"), None)
    first, half = "No wish concerns an answer.", ""
    if point is not None and point["coverage"] is None:
        first = f"No threshold for an answer: {point['reason'] or 'no query is left to measure it on'}."
    elif point is not None:
        rule = f"{_sum(point['confidence'])} >= {point['threshold']:.6g}"
        sizes = f"set on {set_on['classes']} classes, measured on {measured['classes']} others"
        answered = (
            f"{percent(point['coverage'], 0)} % of queries of the gallery's classes are answered, {_wrongly(point)}"
        )
        first = f"Accept an answer if {rule}: {answered} ({sizes})."
        if point["half_gallery_coverage"] is not None:
            answered = percent(point["half_gallery_coverage"], 0)
            wrongly = _wrongly(point, "half_gallery_risk")
            half = (
                f": without half of the gallery's classes {answered} % of queries of the others are answered, {wrongly}"
            )
    second = (
        f"Set on {set_on['queries']:,} queries against a gallery of {document['gallery']:,} images; on other images,"
        f" classes or galleries it does not hold by itself{half}."
    )
    said = [first, second]
    if not document["apart"]:
        said.append(
            "The queries are images of the gallery, each without itself: photographs of another day or place are often"
            " answered worse. Give such ones as queries (is_query, is_gallery; folders query/CLASS, gallery/CLASS)."
        )
    if document.get("near_duplicates"):
        share = percent(document["near_duplicates"], 0)
        said.append(f"Too good to be true: {share} % of the queries have a near-duplicate in the gallery; give groups.")
    return said


def _wrongly(point: Mapping[str, float | None], key: str = "risk") -> str:
    value, _, interval = _share(point, key).partition(" ")
    return f"{value} %{interval and ' '}{interval} of these wrongly" if value else "none of them"


def print_operating(document: Document, console: Console) -> None:
    """Print two sentences and the table of operating points."""
    few = min(document["set_on"]["classes"], document["measured_on"]["classes"]) < FEW
    columns: list[Column[object]] = [label(name, whole=True) for name in ("decision", "wish", "sure")]
    names = ("threshold", "accepted", "wrong [interval]" if few else "wrong [95 %]", "half gallery")
    columns += [Column(name, whole=True) for name in names]
    lines, below, rules = [], [], {}
    for point in document["points"]:
        right, wrong = ("coverage", "risk") if point["decision"] == "answer" else ("tar", "far")
        wish = f"{point['wish']} {point['value']:g}"
        sure = f"{percent(point['guarantee'], 0)} %" if point["guarantee"] else ""
        threshold = GAP if point["threshold"] is None else f"{point['threshold']:.6g}"
        texts = [point["decision"], wish, sure, threshold, percent(point[right], 1), _share(point, wrong)]
        answered, risk = (point[f"half_gallery_{key}"] for key in ("coverage", "risk"))
        texts.append("" if answered is None else f"{percent(answered, 0)}: {percent(risk, 1)}")
        lines.append(texts)
        rules[point["decision"]] = _sum(point["confidence"])
        if point["reason"]:
            below.append(f"{' '.join(filter(None, texts[:3]))}: {point['reason']}.")
    for line in sentences(document):
        console.print(Text(printable(line)), highlight=False)
    print_table(cells_table("Operating points: shares on other classes, in percent", columns, lines), console)
    below += ["intervals over so few classes cover less than 95 %"] if few else []
    used = "; ".join(f"{rule} ({name})" for name, rule in rules.items() if rule)
    for line in (f"Thresholds are on {used}.", LEGEND, *below):
        console.print(Text(printable(line)), highlight=False)


LEGEND = (
    "accepted: of queries, answered (coverage); of pairs of one class and of known queries, accepted (TAR). wrong: of"
    " accepted answers (risk); of different pairs and unknown queries, accepted (FAR). half gallery: accepted: wrong."
)
