"""Output of ``bench score``: a table of metrics, the worth of each confidence, curves and figures."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ..errors import printable
from ..protocols.confidence import risk_coverage
from ..protocols.metrics import find_metric, title_of
from ..protocols.rows import KINDS, kind_of
from ..protocols.statistics.bootstrap import FEW
from ..store.files import write_atomic
from .operating import OperatingPoints
from .page import svg
from .render import data_uri, environment, print_table, to_csv
from .table import Column, cells_table, grouped, label, number, percent, table_of

if TYPE_CHECKING:
    import pandas as pd

    from ..scoring.score import Scored

Line: TypeAlias = Mapping[str, Any]
"""Row of a table by column. What is printed needs no pandas, which takes as long to load as all of this package."""

COVERAGES = np.linspace(0.01, 1.0, 100)


WORTH = {
    "aurc": ("aurc", "recall_at_1"),
    "e_aurc": ("e_aurc", "recall_at_1"),
    "confidence_auroc": ("confidence_auroc", ""),
    "spearman": ("spearman_crop", "quality"),
}
"""Metrics and variants that judge a confidence, by their column in :func:`worth`."""


def lines_of(scored: Mapping[str, Scored]) -> list[Line]:
    """Rows of all files, with the name of the file as ``method``; values that do not exist are nan."""
    return [
        {**row, "method": name, "value": np.nan if row["value"] is None else row["value"]}
        for name, each in scored.items()
        for row in each.rows
    ]


def worth(lines: Iterable[Line]) -> list[Line]:
    """Table of the worth of confidences, one row per file (``method``), scorer and confidence.

    It says how well a confidence tells right answers, and how much MAP@R rises as queries are removed by it. Values
    that do not exist are nan. Its columns:

    * ``confidence``: its name. ``random`` is one random draw, which shows the noise; ``oracle`` is the best possible
      order.
    * ``kind``: ``image`` (known before any gallery), ``retrieval`` (needs the ranking and the gallery's labels),
      ``combined`` (of both) or ``control``.
    * ``gain``: MAP@R of the remaining queries as the least confident are removed, mean over the removed shares, minus
      MAP@R of all queries. The gallery stays whole; removal at random has a gain of 0 on average.
    * ``share``: this gain divided by the gain of the oracle.
    * ``half_removed``: MAP@R without the least confident half of the queries.
    * ``aurc``: area under the risk-coverage curve, with the error of Recall@1 as risk; ``e_aurc``: that area minus the
      area of the oracle.
    * ``confidence_auroc``: AUROC of telling queries whose nearest neighbour is right from the others.
    * ``spearman``: rank correlation with the known quality of the images.
    """
    return [
        line
        for name, of_file in grouped(lines, itemgetter("method")).items()
        for scorer, judged in grouped(_of(of_file, metric="confidence_auroc"), itemgetter("scorer")).items()
        for line in _worth(of_file, [each["confidence"] for each in judged], name, scorer)
    ]


def _of(lines: Iterable[Line], **wanted: object) -> list[Line]:
    """The lines that have these values."""
    return [line for line in lines if all(line[key] == value for key, value in wanted.items())]


def _worth(lines: Sequence[Line], names: list[str], name: str, scorer: str) -> Iterator[Line]:
    rows = [line for line in lines if line["confidence"] and line["scorer"] in (scorer, "")]
    curves = grouped(_of(rows, metric="filter_out_map_at_r", variant="query_only"), itemgetter("confidence"))
    gains = {confidence: _gain(curve) for confidence, curve in curves.items()}
    oracle = gains.get("oracle", 0.0)
    for confidence in sorted(names, key=lambda name: KINDS.index(kind_of(name))):  # controls last
        gain = gains.get(confidence, np.nan)
        own = _of(rows, confidence=confidence, fraction=None)
        values = {(line["metric"], line["variant"]): line["value"] for line in own}
        half = (line["value"] for line in curves.get(confidence, ()) if np.isclose(line["fraction"], 0.5))
        yield {
            "method": name,
            "scorer": scorer,
            "confidence": confidence,
            "kind": kind_of(confidence),
            "gain": gain,
            "share": gain / oracle if oracle > 0 else np.nan,
            "half_removed": next(half, np.nan),
            **{column: values.get(measured, np.nan) for column, measured in WORTH.items()},
        }


FEW_WRONG = 20
"""Number of wrong answers below which a line says that confidences can hardly be told apart by them."""


def _gain(curve: Iterable[Line]) -> float:
    points = [(line["fraction"], line["value"]) for line in curve if line["value"] == line["value"]]
    x, y = np.array(points, dtype=float).reshape(-1, 2).T
    return float(np.trapezoid(y - y[0], x) / (x[-1] - x[0])) if len(x) > 1 else np.nan


def print_scored(scored: Mapping[str, Scored], comparison: Sequence[Line], console: Console) -> None:
    """Print the metrics of scored files of embeddings, and the worth of each confidence (:func:`worth`)."""
    for name, each in scored.items():
        images = each.given
        classes = len(np.unique(images.labels))
        queries, gallery = int(images.is_query.sum()), int(images.is_gallery.sum())
        unknown, ignored = int(images.unknown.sum()), len(images.embeddings.stored) - len(images)
        more = f"; {ignored} others are ignored" if ignored else ""
        if images.groups is not None:
            more += f"; without those of its class in its group ({len(np.unique(images.groups))} groups)"
        more += f"; {unknown} of {queries} queries are of classes that the gallery lacks" if unknown else ""
        added = len(each.asked) - len(images)
        more += f"; {added} unknown queries are added for the open-set test" if added else ""
        console.print(
            f"[bold]{escape(printable(name))}[/]: {len(images)} images of {classes} classes,"
            f" {images.embeddings.shape[1]} dimensions; {queries} queries against {gallery}{more}",
            highlight=False,
        )
    lines = lines_of(scored)
    _print_metrics(list(scored), lines, comparison, console)
    for name, each in scored.items():
        if each.near_duplicates is not None:
            _say(
                f"{name}: {percent(each.copies, 0)} % of the images and their answers are near-duplicates, as in bursts"
                " or copies, which lift all values; images of one of `groups` would not count for each other.",
                console,
            )
    _print_confidences(scored, lines, console)
    _print_requested(scored, lines, console)


def _say(text: str, console: Console) -> None:
    console.print(Text(printable(text)), highlight=False)


def _is_share(metric: str) -> bool:
    declared = find_metric(metric)
    return declared is not None and declared.unit == "share"


def _value(metric: str, value: float, sign: str = "") -> str:
    """A share in percent, or any other value as it is."""
    return percent(value, sign=sign) if _is_share(metric) else number(value, 4, sign)


def _print_metrics(names: list[str], lines: Iterable[Line], comparison: Sequence[Line], console: Console) -> None:
    rows = _of(lines, confidence="", fraction=None)
    few = any(line["units"] < FEW for line in comparison)
    level = "interval" if few else "95 %"
    several = len({line["scorer"] for line in rows}) > 1
    columns: list[Column[object]] = [label("metric"), *([label("scorer")] if several else [])]
    columns += [Column(name if len(names) > 1 else "value", whole=len(name) < 12) for name in names]
    columns += [Column(f"{name} - {names[0]} [{level}]") for name in names[1:]]
    columns += [Column("n_queries", whole=False), Column("n_lone", whole=False)]
    differences = _differences(comparison)
    cells = []
    for (scorer, metric, variant), group in grouped(rows, itemgetter("scorer", "metric", "variant")).items():
        by_name = {line["method"]: line["value"] for line in group}
        kind = f" ({variant.replace('threshold_', 'threshold: ').replace('_', ' ')})" if variant else ""
        texts = [f"{title_of(metric)}{kind}", *([scorer] if several else [])]
        texts += [_value(metric, by_name[name]) for name in names]
        texts += ["" if variant else differences.get((name, scorer, metric), "") for name in names[1:]]
        cells.append([*texts, *(str(group[0][column]) for column in ("n_queries", "n_lone"))])
    print_table(cells_table(printable(_title_of_metrics(rows)), columns, cells), console)
    if comparison:
        resampled = comparison[0]["resampled"]
        rest = "classes are taken as they are" if resampled == "queries" else "queries of a class stay together"
        rest += "; the interval, nominally of 95 %, covers less with so few" if few else ""
        _say(f"Differences: paired bootstrap over {comparison[0]['units']} {resampled}; {rest}.", console)


def _title_of_metrics(rows: Sequence[Line]) -> str:
    """Unit of the values, and the scorer if everything is ranked by the same one."""
    shares = [_is_share(line["metric"]) for line in rows]
    title = "Values in percent" if all(shares) else "Shares in percent, other values as they are" if any(shares) else ""
    scorers = {line["scorer"] for line in rows}
    ranked = f"ranked by {rows[0]['scorer']}" if len(scorers) == 1 and any(scorers) else ""
    text = ", ".join(filter(None, [title, ranked]))
    return f"{text[:1].upper()}{text[1:]}"


def _differences(comparison: Iterable[Line]) -> dict[tuple[str, str, str], str]:
    """Differences with their intervals by file, scorer and metric."""
    texts = {}
    for line in comparison:
        keys = ("difference", "ci95_low", "ci95_high")
        mean, low, high = (_value(line["metric"], line[key], sign="+") for key in keys)
        texts[line["other"], line["scorer"], line["metric"]] = f"{mean} [{low}, {high}]"
    return texts


def _print_confidences(scored: Mapping[str, Scored], rows: Iterable[Line], console: Console) -> None:
    every = worth(rows)
    if not every:
        _print_quality(rows, console)
        return
    scorer = every[0]["scorer"]
    lines = _of(every, scorer=scorer)
    columns: list[Column[Line]] = [label("file", itemgetter("method"))] if len(scored) > 1 else []
    columns += [label(name, itemgetter(name)) for name in ("confidence", "kind")]
    title = f"Confidence, ranked by {printable(scorer)}"
    if any(line["gain"] == line["gain"] for line in lines):
        title += f" (gain: points of {title_of('map_at_r')} over a random order as queries are removed)"
        columns.append(Column("gain", lambda line: percent(line["gain"], sign="+")))
        columns.append(Column("% of oracle", lambda line: percent(line["share"], 0)))
    columns += [_risk_column(metric) for metric in ("aurc", "e_aurc", "confidence_auroc")]
    if any(line["spearman"] == line["spearman"] for line in lines):
        columns.append(Column("rho quality", lambda line: number(line["spearman"], 3)))
    print_table(table_of(columns, lines, title), console)
    for name, each in scored.items():
        right = each.values.get(scorer, {}).get("recall_at_1")
        wrong = 0 if right is None else int((right < 0.5).sum())
        if 0 < wrong < FEW_WRONG:
            _say(f"{name}: {wrong} wrong answers; AUROC and AURC of so few say little.", console)
        elif right is not None:
            _say_reversed(name, _of(lines, method=name), wrong, int((right >= 0.5).sum()), console)
        primary = _of(lines, method=name, confidence=each.primary)
        values = each.confidences.get(each.primary)
        if values is not None and bool((values == values[0]).all()):
            constant = f"constant for all {len(values):,} images, it says nothing"
            _say(f"{name}, confidence {each.primary!r}: {constant}.", console)
        elif primary:
            _say(_sentence(name, primary[0], rows), console)
        if each.given.train is None and (each.primary or any(other.given.train for other in scored.values())):
            missing = "free confidences of the training data, such as mahalanobis and posterior, are missing"
            _say(f"{name}: {missing}; give train_embeddings and train_labels.", console)


def _say_reversed(name: str, lines: Iterable[Line], wrong: int, right: int, console: Console) -> None:
    """Name the confidences whose AUROC is below 50 by more than 1.96 standard errors of a rank sum."""
    if not wrong or not right:
        return
    margin = 1.96 * ((wrong + right + 1) / (12 * wrong * right)) ** 0.5
    judged = (line for line in lines if line["kind"] != "control")
    reversed_ = [line["confidence"] for line in judged if line["confidence_auroc"] < 0.5 - margin]
    if reversed_:
        _say(f"{name}: reversed, higher where answers are wrong (AUROC below 50): {', '.join(reversed_)}.", console)


def _risk_column(metric: str) -> Column[Line]:
    return Column(title_of(metric), lambda line: percent(line[metric]))


def _print_quality(lines: Iterable[Line], console: Console) -> None:
    """Rank correlations of confidences that are only compared with a known quality."""
    for line in _of(lines, metric="spearman_crop"):
        value = "none (it is constant)" if line["value"] != line["value"] else f"{line['value']:.3f}"
        text = f"{line['method']}: rank correlation of the {line['confidence']} confidence with quality: {value}"
        _say(text, console)


def _print_requested(scored: Mapping[str, Scored], lines: Sequence[Line], console: Console) -> None:
    """Metrics of confidences that are computed on request, such as error versus discard characteristics."""
    declared = {name: find_metric(name) for name in {line["metric"] for line in lines}}
    asked = {name for name, metric in declared.items() if metric and metric.on_request}
    rows = [line for line in lines if line["metric"] in asked]
    if not rows:
        return
    scorer = rows[0]["scorer"]
    rows = _of(rows, scorer=scorer)
    place_of = itemgetter("metric", "fraction")
    places = list(grouped(rows, place_of))
    labels = [*(["file"] if len(scored) > 1 else []), "confidence", "variant"]
    columns: list[Column[object]] = [label(title, whole=True) for title in labels]
    for metric, fraction in places:
        title = title_of(metric) if fraction is None else f"{title_of(metric)} {100 * fraction:.0f} %"
        columns.append(Column(title, whole=False))
    cells = []
    for (name, confidence, variant), group in grouped(rows, itemgetter("method", "confidence", "variant")).items():
        values = {place_of(line): line["value"] for line in group}
        texts = [*([name] if len(scored) > 1 else []), confidence, variant.replace("_", " ")]
        cells.append(texts + [_value(place[0], values.get(place, np.nan)) for place in places])
    print_table(cells_table(f"Confidence, scored by {printable(scorer)}", columns, cells), console)


def _sentence(name: str, line: Line, rows: Iterable[Line]) -> str:
    unfiltered = {"metric": "filter_out_map_at_r", "variant": "query_only", "fraction": 0.0}
    whole = _of(rows, method=name, scorer=line["scorer"], **unfiltered)[0]["value"]
    share = f", {percent(line['share'], 0)} % of what the best order wins" if line["share"] == line["share"] else ""
    return (
        f"{name}, confidence {line['confidence']!r}: without its least confident half, {title_of('map_at_r')} is"
        f" {percent(line['half_removed'], 1)} % instead of {percent(whole, 1)} %; on average"
        f" {percent(line['gain'], 1, '+')} points over a random order{share}."
    )


def curves(scored: Mapping[str, Scored], frame: pd.DataFrame) -> pd.DataFrame:
    """Table of the points of filter-out curves and risk-coverage curves of scored files of embeddings.

    A filter-out curve shows a metric as the least confident images are removed; so does an error versus discard
    characteristic (``edc_fnmr``), if it was asked for. A risk-coverage curve, of at most 100 points, shows the error of
    Recall@1 among the most confident queries, whose share is ``x``.
    """
    import pandas as pd

    columns = ["method", "scorer", "confidence", "metric", "variant", "fraction", "value"]
    filter_out = frame[frame["fraction"].notna()][columns]
    tables = [filter_out.rename(columns={"metric": "curve", "fraction": "x"})]
    for name, each in scored.items():
        for scorer in each.values:
            for confidence, risk in _risk_curves(each, scorer).items():
                places = np.unique(np.ceil(COVERAGES * len(risk)).astype(int)) - 1
                points = {"x": (places + 1) / len(risk), "value": risk[places]}
                place = {"method": name, "scorer": scorer, "confidence": confidence}
                tables.append(pd.DataFrame({**place, "curve": "risk_coverage", "variant": "recall_at_1", **points}))
    return pd.concat(tables, ignore_index=True)


def _risk_curves(each: Scored, scorer: str) -> dict[str, np.ndarray]:
    """Risk of Recall@1 over coverage of every confidence and of the oracle, ``[Q]`` each."""
    if not each.values[scorer]:
        return {}
    hits = each.values[scorer]["recall_at_1"]
    counted = ~hits.isnan()
    of_images = {name: values[each.queries] for name, values in each.confidences.items()}
    orders = {**of_images, **each.retrieval[scorer], "oracle": hits}
    return {name: risk_coverage(order[counted], 1.0 - hits[counted]).numpy() for name, order in orders.items()}


PICTURES = {
    "filter_out_map_at_r": ("least confident queries removed, %", "MAP@R of the others, %"),
    "risk_coverage": ("most confident queries kept, %", "their wrong answers, %"),
}
"""Curves that are drawn, with the labels of their axes."""


def _pictures(scored: Mapping[str, Scored], points: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Names and SVGs of curves by the confidences of a single file, or by the first confidence of each of several."""
    first = {name: next(iter(each.values), "") for name, each in scored.items()}
    points = points[
        (points["scorer"] == points["method"].map(first)) & points["variant"].isin(["query_only", "recall_at_1"])
    ]
    for curve, (x_label, y_label) in PICTURES.items():
        lines = []
        for (name, confidence), own in points[points["curve"] == curve].groupby(["method", "confidence"], sort=False):
            if confidence == scored[str(name)].shown[0] if len(scored) > 1 else confidence != "random":
                label = f"{name} [{confidence}]" if len(scored) > 1 else str(confidence)
                lines.append((label, own["x"].to_numpy(), own["value"].to_numpy(), np.nan, np.nan))
        if lines:
            yield curve, svg.curves(lines, x_label=x_label, y_label=y_label, percent=True)


def write_scored(
    scored: Mapping[str, Scored],
    comparison: Sequence[Line],
    out: Path,
    photographs: Path | None = None,
    operating: OperatingPoints | None = None,
) -> tuple[list[Path], Path]:
    """Write tables (``metrics.csv``, ``curves.csv``, ``comparison.csv``), curves as SVG, and ``scores.html`` with all.

    Of a single folder of ``photographs``, the worst mistakes are drawn as well; of operating points, ``operate.json``.

    Returns:
        Tables and figures, and the page.
    """
    import pandas as pd
    from markupsafe import Markup

    from ..scoring.score import tidy

    frame = tidy(scored)
    points = curves(scored, frame)
    pictures = dict(_pictures({name: each for name, each in scored.items() if each.shown[0]}, points))
    pictures |= operating.pictures() if operating else {}
    style = (resources.files(__package__) / "page" / "svg.css").read_text(encoding="utf-8")
    tables = {"metrics.csv": frame, "curves.csv": points, "comparison.csv": pd.DataFrame(comparison)}
    files = {name: to_csv(table) for name, table in tables.items() if not table.empty}
    files |= {f"{name}.svg": svg.standalone(picture, style) for name, picture in pictures.items()}
    for name, text in files.items():
        write_atomic(out / name, text.encode())
    drawn = write_mistakes(next(iter(scored.values())), photographs, out) if photographs else []
    drawn += [operating.write(out / "operate.json")] if operating else []
    images = [data_uri("image/png", path.read_bytes()) for path in drawn if path.suffix == ".png"]
    text = scored_text(scored, comparison) + (f"\n\n{operating}" if operating else "")
    escaped = [Markup(html.escape(each)) for each in (text.partition(":")[0], text)]  # lines of a text stay lines
    shown = {"style": style, "pictures": pictures.values(), "images": images}
    page = environment().get_template("scores.tmpl").render(title=escaped[0], text=escaped[1], **shown)
    write_atomic(out / "scores.html", page.encode())
    return [*(out / name for name in files), *drawn], out / "scores.html"


def scored_text(scored: Mapping[str, Scored], comparison: Sequence[Line], width: int = 120) -> str:
    """The tables that ``bench score`` prints, as a text of lines of at most ``width`` characters."""
    text = io.StringIO()
    print_scored(scored, comparison, Console(file=text, width=width))
    return text.getvalue().rstrip()


def write_mistakes(scored: Scored, folder: Path, out: Path) -> list[Path]:
    """Draw the most confident wrong queries of photographs in a folder, with their nearest images by the cosine."""
    import torch

    from ..datasets.folder import images_below
    from ..datasets.photo_images import PhotoImages
    from ..datasets.view import View
    from .figures.images import MISTAKES, NEIGHBOURS, mistakes_figure, neighbours_table
    from .figures.style import figure_style, save_figure

    name, confidence = scored.shown
    right = next(iter(scored.values.values()), {}).get("recall_at_1")
    if confidence is None or right is None or not bool((right == 0).any()):
        return []
    if next(iter(scored.values)) != "cosine":
        return []  # the neighbours shown would not be those that were ranked
    given = scored.given
    wrong = (right == 0).nonzero().squeeze(1)
    worst = wrong[torch.argsort(confidence[wrong], descending=True, stable=True)][:MISTAKES]
    queries = scored.queries[worst]
    rows = torch.nn.functional.normalize(torch.from_numpy(np.asarray(given.embeddings[:], dtype=np.float64)), dim=-1)
    cosines = rows[queries] @ rows.T
    cosines[:, ~torch.from_numpy(given.is_gallery)] = -torch.inf
    labels = torch.from_numpy(given.labels)
    groups = torch.arange(len(rows)) if given.groups is None else torch.from_numpy(given.groups)
    cosines[(labels[queries, None] == labels) & (groups[queries, None] == groups)] = -torch.inf
    best = cosines.topk(min(NEIGHBOURS, len(rows)))
    near = {
        query: [row for row, value in zip(found, values) if value > -torch.inf]  # a gallery may be small
        for query, found, values in zip(queries.tolist(), best.indices.tolist(), best.values.tolist())
    }
    values = dict(zip(queries.tolist(), confidence[worst].tolist()))
    listing = images_below(folder)[0]
    of = dict(zip(listing.ids, listing.classes))
    names = [listing.names[of[each]] for each in given.ids]
    table = neighbours_table(near, name, values, given.ids, labels, names)
    view = View(image_size=SHOWN_SIDE, resize=SHOWN_SIDE, upright=True, cache=False)
    paths = [listing.folder / each for each in given.ids]
    images = PhotoImages(paths, labels, given.ids, sorted(set(names)), view=view)
    write_atomic(out / "mistakes.csv", to_csv(table.drop(columns="row")).encode())
    with figure_style():
        drawn = save_figure(mistakes_figure(table, images, folder.resolve().name), out / "mistakes")
    return [*drawn, out / "mistakes.csv"]


SHOWN_SIDE = 128
"""Side of the photographs in a figure, pixels."""
