"""What ``bench score`` prints and writes: one table of metrics, what each confidence is worth, curves and figures."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..protocols.confidence import risk_coverage
from ..store import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .._score import Scored

TITLES = {
    "map_at_r": "MAP@R",
    "r_precision": "R-Precision",
    "precision_at_1": "Precision@1",
    "map_at_1000": "MAP@1000",
    "verification_accuracy": "verification accuracy",
    "verification_auc": "verification AUC",
    "verification_eer": "verification EER",
    "verification_tpr_at_fpr": "verification TPR",
    "nmi": "NMI",
    "ami": "AMI",
    "pair_f1": "pair F1",
}
PLAIN = ("spectral_decay", "density", "uniformity", "class_concentration")
"""Metrics that are no shares and not printed in percent."""
COVERAGES = np.linspace(0.01, 1.0, 100)


def worth(frame: pd.DataFrame) -> pd.DataFrame:
    """What each confidence is worth, one row per file, scorer and confidence.

    ``gain`` is the area between its filter-out curve of MAP@R (queries removed, gallery whole) and a random order's,
    as a mean over the removed share: points of MAP@R won on average. The mean curve of random orders is the flat line
    at MAP@R itself; the row ``random`` is one draw, which shows the noise. ``share`` is the gain over the oracle's.
    """
    lines = []
    curves = frame[(frame["metric"] == "filter_out_map_at_r") & (frame["variant"] == "query_only")]
    for (name, scorer), group in curves.groupby(["method", "scorer"], sort=False):
        gains = {}
        for confidence, curve in group.dropna(subset="value").groupby("confidence", sort=False):
            x, y = curve["fraction"].to_numpy(), curve["value"].to_numpy()
            gains[confidence] = float(np.trapezoid(y - y[0], x) / (x[-1] - x[0])) if len(x) > 1 else np.nan
        risks = frame[(frame["method"] == name) & frame["confidence"].ne("") & frame["fraction"].isna()]
        risks = risks[risks["scorer"].isin([scorer, ""])]
        for confidence, gain in gains.items():
            mine = risks[risks["confidence"] == confidence]
            values = {(m, v): x for m, v, x in zip(mine["metric"], mine["variant"], mine["value"])}
            half = group[(group["confidence"] == confidence) & np.isclose(group["fraction"], 0.5)]["value"]
            lines.append(
                {
                    "method": name,
                    "scorer": scorer,
                    "confidence": confidence,
                    "gain": gain,
                    "share": gain / gains["oracle"] if gains.get("oracle", 0.0) > 0 else np.nan,
                    "half_removed": float(half.iloc[0]) if len(half) else np.nan,
                    "aurc": values.get(("aurc", "recall_at_1"), np.nan),
                    "e_aurc": values.get(("e_aurc", "recall_at_1"), np.nan),
                    "confidence_auroc": values.get(("confidence_auroc", ""), np.nan),
                    "spearman": values.get(("spearman_crop", "quality"), np.nan),
                }
            )
    return pd.DataFrame(lines)


def print_scored(scored: Mapping[str, Scored], frame: pd.DataFrame, comparison: pd.DataFrame, console: Console) -> None:
    """Everything on the terminal, in percent."""
    for name, each in scored.items():
        given = each.given
        classes, queries, gallery = len(np.unique(given.labels)), int(given.is_query.sum()), int(given.is_gallery.sum())
        console.print(
            f"[bold]{name}[/]: {len(given)} images of {classes} classes, {given.embeddings.shape[1]} dimensions;"
            f" {queries} queries against {gallery}",
            highlight=False,
        )
    _print_metrics(list(scored), frame, comparison, console)
    _print_confidences(scored, frame, console)


def _percent(value: float, digits: int = 2, sign: str = "") -> str:
    return "-" if value != value else f"{100 * value:{sign}.{digits}f}"


def _print_metrics(names: list[str], frame: pd.DataFrame, comparison: pd.DataFrame, console: Console) -> None:
    plain = frame[(frame["confidence"] == "") & frame["fraction"].isna()]
    several = plain["scorer"].nunique() > 1
    title = "Values in percent" if several else f"Values in percent, ranked by {plain['scorer'].iloc[0]}"
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title, title_justify="left")
    table.add_column("metric")
    if several:
        table.add_column("scorer")
    for name in names:
        table.add_column(name if len(names) > 1 else "value", justify="right", no_wrap=len(name) < 12)
    for name in names[1:]:
        table.add_column(f"{name} - {names[0]} [95 %]", justify="right", no_wrap=True)
    table.add_column("n_queries", justify="right")
    table.add_column("n_lone", justify="right")
    differences = {
        (line["other"], line["scorer"], line["metric"]): _interval(line) for line in comparison.to_dict("records")
    }
    for keys, group in plain.groupby(["scorer", "metric", "variant"], sort=False):
        scorer, metric, variant = map(str, keys)
        by_name = dict(zip(group["method"], group["value"]))
        cells = [f"{by_name[n]:.4f}" if metric in PLAIN else _percent(by_name[n]) for n in names]
        cells += ["" if variant else differences.get((name, scorer, metric), "") for name in names[1:]]
        counts = [str(int(group[column].iloc[0])) for column in ("n_queries", "n_lone")]
        title = TITLES.get(metric, metric.replace("recall_at_", "Recall@").replace("_", " "))
        label = f"{title} ({variant.replace('threshold_', 'threshold: ').replace('_', ' ')})" if variant else title
        table.add_row(Text(label), *([scorer] if several else []), *cells, *counts)
    console.print(table)
    if len(comparison):
        by = comparison["resampled"].iloc[0]
        rest = "classes are taken as they are" if by == "queries" else "queries of a class stay together"
        console.print(
            f"Differences: paired bootstrap over {comparison['units'].iloc[0]} {by}; {rest}.", highlight=False
        )


def _interval(line: Mapping[Hashable, Any]) -> str:
    return (
        f"{_percent(line['difference'], sign='+')} [{_percent(line['ci95_low'], sign='+')},"
        f" {_percent(line['ci95_high'], sign='+')}]"
    )


def _print_confidences(scored: Mapping[str, Scored], frame: pd.DataFrame, console: Console) -> None:
    lines = worth(frame)
    if lines.empty:
        for line in frame[frame["metric"] == "spearman_crop"].to_dict("records"):
            value = "none (it is constant)" if line["value"] != line["value"] else f"{line['value']:.3f}"
            text = f"{line['method']}: rank correlation of the {line['confidence']} confidence with quality: {value}"
            console.print(Text(text))
        return
    scorer = lines["scorer"].iloc[0]
    lines = lines[lines["scorer"] == scorer]
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"Confidence, ranked by {scorer} (gain: points of MAP@R over a random order as queries go)",
        title_justify="left",
    )
    if len(scored) > 1:
        table.add_column("file")
    table.add_column("confidence")
    for title in ("gain", "% of oracle", "AURC", "E-AURC", "AUROC"):
        table.add_column(title, justify="right", no_wrap=True)
    with_quality = lines["spearman"].notna().any()
    if with_quality:
        table.add_column("rho quality", justify="right", no_wrap=True)
    for line in lines.to_dict("records"):
        cells = [line["method"]] if len(scored) > 1 else []
        cells += [line["confidence"], _percent(line["gain"], sign="+"), _percent(line["share"], 0)]
        cells += [_percent(line[key]) for key in ("aurc", "e_aurc", "confidence_auroc")]
        if with_quality:
            cells.append("-" if line["spearman"] != line["spearman"] else f"{line['spearman']:.3f}")
        table.add_row(*map(str, cells))
    console.print(table)
    for name, each in scored.items():
        mine = lines[(lines["method"] == name) & (lines["confidence"] == each.primary)]
        if len(mine):
            console.print(Text(_sentence(name, mine.iloc[0], frame)), highlight=False)


def _sentence(name: str, line: pd.Series[float], frame: pd.DataFrame) -> str:
    whole = frame[
        (frame["method"] == name)
        & (frame["scorer"] == line["scorer"])
        & (frame["metric"] == "filter_out_map_at_r")
        & (frame["variant"] == "query_only")
        & (frame["fraction"] == 0.0)
    ]["value"].iloc[0]
    share = f", {_percent(line['share'], 0)} % of what the best order wins" if line["share"] == line["share"] else ""
    return (
        f"{name}, confidence {line['confidence']!r}: without its least sure half, MAP@R is"
        f" {_percent(line['half_removed'], 1)} % instead of {_percent(whole, 1)} %; on average"
        f" {_percent(line['gain'], 1, '+')} points over a random order{share}."
    )


def curves(scored: Mapping[str, Scored], frame: pd.DataFrame) -> pd.DataFrame:
    """Filter-out curves over the removed share, and risk-coverage curves over the coverage at 100 places."""
    chosen = frame[frame["fraction"].notna()]
    found = [
        chosen[["method", "scorer", "confidence", "metric", "variant", "fraction", "value"]].rename(
            columns={"metric": "curve", "fraction": "x"}
        )
    ]
    for name, each in scored.items():
        for scorer, values in each.values.items():
            for confidence, risk in _risk_curves(each, values).items():
                places = np.ceil(COVERAGES * len(risk)).astype(int) - 1
                found.append(
                    pd.DataFrame(
                        {
                            "method": name,
                            "scorer": scorer,
                            "confidence": confidence,
                            "curve": "risk_coverage",
                            "variant": "recall_at_1",
                            "x": (places + 1) / len(risk),
                            "value": risk[places],
                        }
                    ).drop_duplicates()
                )
    return pd.concat(found, ignore_index=True)


def _risk_curves(each: Scored, values: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Risk of Recall@1 over coverage of every confidence and of the oracle, ``[Q]`` each."""
    if not each.primary:
        return {}
    hits = np.asarray(values["recall_at_1"])
    counted = ~np.isnan(hits)
    orders = {name: np.asarray(value)[each.queries.numpy()] for name, value in each.confidences.items()}
    return {name: _risk(order[counted], 1.0 - hits[counted]) for name, order in {**orders, "oracle": hits}.items()}


def _risk(order: np.ndarray, risk: np.ndarray) -> np.ndarray:
    import torch

    return risk_coverage(torch.from_numpy(order.copy()), torch.from_numpy(risk)).numpy()


def write_scored(scored: Mapping[str, Scored], frame: pd.DataFrame, comparison: pd.DataFrame, out: Path) -> list[Path]:
    """Write ``metrics.csv``, ``curves.csv``, ``comparison.csv`` and the figures; returns the files."""
    import matplotlib as mpl

    from .figures import STYLE, filter_out_figure, save_figure

    tables = {"metrics.csv": frame, "curves.csv": curves(scored, frame), "comparison.csv": comparison}
    written = []
    for name, table in tables.items():
        if not table.empty:
            write_atomic(out / name, table.to_csv(index=False, lineterminator="\n").encode())
            written.append(out / name)
    with mpl.rc_context(STYLE):
        merged = _as_methods(scored, frame)
        figures = {
            "filter_out": None if merged.empty else filter_out_figure(merged, _title(scored), "test"),
            "risk_coverage": _risk_figure(scored),
            "confidence": _confidence_figure(scored),
        }
        for name, figure in figures.items():
            if figure is not None:
                written += save_figure(figure, out / name)
    return written


def _as_methods(scored: Mapping[str, Scored], frame: pd.DataFrame) -> pd.DataFrame:
    """The table as the figures of methods take it: one file's confidences side by side, or several files' own."""
    parts = []
    for name, each in scored.items():
        if not each.primary:
            continue
        mine = frame[frame["method"] == name].assign(
            dataset=_title(scored), hparams="tuned", fidelity="corrected", primary_scorer=next(iter(each.values))
        )
        if len(scored) == 1:
            shown = [c for c in each.confidences if c != "random"]
            parts += [mine.assign(method=c, default_confidence=c) for c in shown]
        else:
            parts.append(mine.assign(default_confidence=each.primary))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _title(scored: Mapping[str, Scored]) -> str:
    return ", ".join(scored)


def _risk_figure(scored: Mapping[str, Scored]) -> Figure | None:
    from matplotlib.figure import Figure

    judged = {name: each for name, each in scored.items() if each.primary}
    if not judged:
        return None
    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axis = figure.subplots()
    for index, (name, each) in enumerate(judged.items()):
        for confidence, risk in _risk_curves(each, next(iter(each.values.values()))).items():
            control = {"random": ":", "oracle": "--"}.get(confidence)
            if len(judged) > 1 and control is None and confidence != each.primary:
                continue
            label = confidence if len(judged) == 1 else f"{name} [{confidence}]"
            colour = f"C{index}" if len(judged) > 1 else "0.4" if control else None
            coverage = np.arange(1, len(risk) + 1) / len(risk)
            axis.plot(100 * coverage, 100 * risk, control or "-", lw=1.0 if control else 1.8, label=label, color=colour)
    axis.set(xlabel="most confident queries kept, %", ylabel="their Recall@1 errors, %")
    axis.set_title("risk and coverage")
    axis.legend(fontsize=8)
    return figure


def _confidence_figure(scored: Mapping[str, Scored]) -> Figure | None:
    """Confidence against quality where it is known, else its histogram for right and wrong queries."""
    from matplotlib.figure import Figure
    from scipy.stats import rankdata

    judged = {name: each for name, each in scored.items() if each.primary}
    if not judged:
        return None
    figure = Figure(figsize=(5.0 * len(judged), 4.0), layout="constrained")
    axes = figure.subplots(1, len(judged), squeeze=False)[0]
    for axis, (name, each) in zip(axes, judged.items()):
        confidence = each.confidences[each.primary].numpy()
        if each.given.quality is not None:
            quality = each.given.quality
            rank01 = (rankdata(confidence) - 0.5) / len(confidence)
            axis.scatter(quality, rank01, s=3, alpha=min(1.0, 500 / len(quality)), lw=0)
            edges = np.unique(np.quantile(quality, np.linspace(0, 1, 11)))
            place = np.clip(np.searchsorted(edges, quality, side="right") - 1, 0, max(0, len(edges) - 2))
            bins = np.unique(place)
            x = [quality[place == b].mean() for b in bins]
            axis.plot(x, [rank01[place == b].mean() for b in bins], "o-", color="k", ms=4, label="mean of a tenth")
            axis.set(xlabel="quality", ylabel=f"rank of confidence {each.primary!r}")
        else:
            hits = next(iter(each.values.values()))["recall_at_1"].numpy()
            asked = confidence[each.queries.numpy()]
            right, counted = hits >= 0.5, ~np.isnan(hits)
            parts = [asked[counted & right], asked[counted & ~right]]
            axis.hist(parts, bins=40, stacked=True, label=["Recall@1 right", "wrong"], color=["C0", "C3"])
            axis.set(xlabel=f"confidence {each.primary!r}", ylabel="queries")
        axis.set_title(name)
        axis.legend(fontsize=8)
    return figure
