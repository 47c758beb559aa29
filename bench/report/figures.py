"""Figures from records: filter-out curves with their controls, confidence against severity, tuning history."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..store import Store, read_json, write_atomic
from .frame import KEYS, latest_tests
from .tables import split_pinned

STYLE: Any = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 150.0,
    "svg.hashsalt": "bench",  # equal records give equal bytes
    "svg.fonttype": "none",
    "legend.frameon": False,
}
CURVES = (("filter_out_map_at_r", "MAP@R"), ("filter_out_recall_at_1", "Recall@1"))
VARIANTS = (("query_only", "queries removed"), ("query_and_gallery", "queries and gallery removed"))


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and SVG; equal figures give equal bytes."""
    written = []
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], metadata=metadata, bbox_inches="tight")
        target = path.with_suffix(suffix)
        write_atomic(target, buffer.getvalue())
        written.append(target)
    return written


def _colour(index: int) -> Any:
    return mpl.colormaps["tab10" if index < 10 else "tab20"](index % 20)


def _label(row: pd.Series[Any], pinned: str) -> str:
    extra = [row["hparams"]] if row["hparams"] != "tuned" else []
    extra += [row["fidelity"]] if row["fidelity"] != "corrected" else []
    extra += [row["ensemble"]] if row["ensemble"] else []
    # What is pinned in every curve says nothing here, and a long legend leaves no room for the curves.
    extra += [pinned] if pinned else []
    return textwrap.fill(", ".join([row["method"], *extra]), 40, max_lines=2, placeholder=" ..")


def _groups(frame: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame]]:
    """(index, label, rows) of each method at each setting; a budget is named where two of them meet."""
    names = ["method", "base", "fidelity", "hparams", "trials", "pinned", "backbone", "dim", "ensemble"]
    grouped = list(frame.groupby(names, sort=True, dropna=False))
    _, own = split_pinned([str(group["pinned"].iloc[0]) for _, group in grouped])
    labels = [_label(group.iloc[0], pinned) for (_, group), pinned in zip(grouped, own)]
    for index, (_, group) in enumerate(grouped):
        label = labels[index]
        if labels.count(label) > 1:
            first = group.iloc[0]
            label += (
                f" ({first['trials']} trials, {first['backbone']}, d={first['dim']}, base {first['base'] or 'none'})"
            )
        yield index, label, group


def filter_out_figure(frame: pd.DataFrame, dataset: str, split: str) -> Figure | None:
    """Curves of MAP@R and Recall@1 as the least confident images go, each method beside its random and oracle order."""
    rows = frame[
        (frame["dataset"] == dataset) & (frame["split"] == split) & frame["metric"].isin([m for m, _ in CURVES])
    ]
    if rows.empty:
        return None
    figure = Figure(figsize=(9.0, 6.6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    for (metric, title), line in zip(CURVES, axes):
        for (variant, variant_title), axis in zip(VARIANTS, line):
            part = rows[(rows["metric"] == metric) & (rows["variant"] == variant)]
            for index, label, group in _groups(part):
                default = group["default_confidence"].iloc[0]
                for name, style, width in ((default, "-", 1.8), ("random", ":", 1.0), ("oracle", "--", 0.8)):
                    chosen = group[(group["confidence"] == name) & (group["scorer"] == group["primary_scorer"])]
                    curve = chosen.groupby("fraction")["value"].agg(["mean", "std"])
                    text = f"{label} [{name}]" if name == default else None
                    x = 100 * curve.index.to_numpy()
                    axis.plot(x, curve["mean"], style, lw=width, color=_colour(index), label=text)
                    if name == default:
                        sd = curve["std"].fillna(0.0)
                        low, high = curve["mean"] - sd, curve["mean"] + sd
                        axis.fill_between(x, low, high, color=_colour(index), alpha=0.15, lw=0)
            axis.set_title(variant_title)
            axis.set_ylabel(title)
            if metric == CURVES[-1][0]:
                axis.set_xlabel("least confident images removed, %")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, max(1, len(labels))))
    images = {"test": "clean", "test_crop": "centre-cropped"}.get(split, split.removeprefix("test_"))
    figure.suptitle(
        f"{dataset}, {images} test images (solid: own confidence, dotted: random, dashed: oracle; band: SD)"
    )
    return figure


def _confidence_ranks(store: Store, roles: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """Mean rank of each method's own confidence by kind of corruption and severity, a row per seed and severity."""
    own = dict(zip(roles["unit"], roles["default_confidence"]))
    lines = []
    for record in latest_tests(store):
        if record["columns"]["dataset"] == dataset:
            confidence = own[record["unit"]]
            for kind, curve in record.get("curves", {}).items():
                for severity, rank in zip(curve["severity"], curve["rank"][confidence]):
                    point = {"confidence": confidence, "kind": kind, "severity": severity, "value": rank}
                    lines.append({**record["columns"], **point})
    return pd.DataFrame(lines, columns=[*KEYS, "confidence", "kind", "severity", "value"])


def _draw_ranks(axis: Axes, lines: pd.DataFrame, by: str) -> None:
    """One line per method, band over seeds."""
    for index, label, group in _groups(lines):
        curve = group.groupby(by)["value"].agg(["mean", "std"])
        x, sd = curve.index.to_numpy(), curve["std"].fillna(0.0)
        text = f"{label} [{group['confidence'].iloc[0]}]"
        axis.plot(x, curve["mean"], "o-", ms=3, color=_colour(index), label=text)
        axis.fill_between(x, curve["mean"] - sd, curve["mean"] + sd, color=_colour(index), alpha=0.15, lw=0)
    axis.axhline(0.5, ls=":", color="0.5", lw=1)


def crop_figure(ranks: pd.DataFrame, dataset: str) -> Figure | None:
    """Mean confidence rank against the side of the centre crop."""
    lines = ranks[ranks["kind"] == "crop"]
    if lines.empty:
        return None
    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axis = figure.subplots()
    _draw_ranks(axis, lines.assign(side=1 - lines["severity"]), "side")
    axis.set(
        xlabel="side of the centre crop, fraction of the image",
        ylabel="mean confidence rank (0.5 = uninformative)",
    )
    axis.set_title(f"{dataset}: does confidence see the crop?")
    axis.legend(fontsize=8)
    return figure


def severity_figure(ranks: pd.DataFrame, dataset: str) -> Figure | None:
    """Mean confidence rank against severity, one panel per kind, where there are others than the crop."""
    # A fixed severity has no curve.
    kinds = [str(kind) for kind, part in ranks.groupby("kind", sort=True) if part["severity"].nunique() > 1]
    if not set(kinds) - {"crop"}:
        return None
    columns = min(3, len(kinds))
    rows = -(-len(kinds) // columns)
    figure = Figure(figsize=(3.0 * columns, 2.6 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis, kind in zip(axes.ravel(), kinds):
        _draw_ranks(axis, ranks[ranks["kind"] == kind], "severity")
        axis.set(title=kind, xlabel="severity")
        axis.xaxis.set_tick_params(labelbottom=True)
    for axis in axes.ravel()[len(kinds) :]:
        axis.set_visible(False)
    # One legend for all panels, of all methods: a method may lack a kind.
    shown = {text: handle for axis in axes.ravel() for handle, text in zip(*axis.get_legend_handles_labels())}
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=min(columns, len(shown)))
    figure.supylabel("mean confidence rank")
    figure.suptitle(f"{dataset}: does confidence fall with severity? (0.5 = uninformative)")
    return figure


def tuning_figure(store: Store, dataset: str) -> Figure | None:
    """Value of every trial and the best so far, one panel per study."""
    studies = []
    for path in sorted(store.root.glob(f"*/{dataset}/*/study-*/study.json")):
        study = read_json(path)
        trials = [t for t in map(read_json, sorted(path.parent.glob("trial-*.json"))) if t]
        if study and trials:
            studies.append((study, trials))
    if not studies:
        return None
    columns = min(3, len(studies))
    rows = -(-len(studies) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * rows), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for axis, (study, trials) in zip(axes, studies):
        template = study["spec"]["template"]
        by_loss = template["selection"]["metric"] == "stage_loss"
        sign = -1.0 if by_loss else 1.0
        done = [(t["number"], sign * t["value"]) for t in trials if t["value"] is not None]
        failed = [t["number"] for t in trials if t["value"] is None]
        x, y = [n for n, _ in done], np.array([v for _, v in done])
        axis.plot(x, y, "o", ms=3, alpha=0.6, label="trial")
        if len(y):
            axis.step(x, (np.minimum if by_loss else np.maximum).accumulate(y), where="post", label="best so far")
            axis.plot(x[:1], y[:1], "s", ms=5, mfc="none", color="k", label="recipe default")
        for number in failed:
            axis.axvline(number, color="tab:red", lw=0.8, alpha=0.6)
        axis.set(
            title=template["method"],
            xlabel="trial",
            ylabel="validation loss" if by_loss else "validation MAP@R",
        )
    for axis in axes[len(studies) :]:
        axis.set_visible(False)
    axes[0].legend(fontsize=7)
    figure.suptitle(f"{dataset}: tuning")
    return figure


def write_figures(store: Store, frame: pd.DataFrame, roles: pd.DataFrame, out: Path) -> list[Path]:
    """Write every figure as PNG and SVG; returns the files."""
    merged = frame.merge(roles, on="unit")
    written: list[Path] = []
    with mpl.rc_context(STYLE):
        for dataset in sorted(set(frame["dataset"])):
            ranks = _confidence_ranks(store, roles, dataset)
            figures = {
                f"filter_out_{dataset}_clean": filter_out_figure(merged, dataset, "test"),
                **{
                    f"filter_out_{dataset}_{kind}": filter_out_figure(merged, dataset, f"test_{kind}")
                    for kind in sorted(set(ranks["kind"]))
                },
                f"confidence_crop_{dataset}": crop_figure(ranks, dataset),
                f"confidence_severity_{dataset}": severity_figure(ranks, dataset),
                f"tuning_{dataset}": tuning_figure(store, dataset),
            }
            for name, figure in figures.items():
                if figure is not None:
                    written += save_figure(figure, out / name)
    return written
