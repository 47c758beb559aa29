"""Figures from records: filter-out curves with their controls, confidence against crop size, tuning history."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..store import Store, read_json, write_atomic
from .frame import latest_tests
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
    images = "centre-cropped" if split == "test_crop" else "clean"
    figure.suptitle(
        f"{dataset}, {images} test images (solid: own confidence, dotted: random, dashed: oracle; band: SD)"
    )
    return figure


def crop_figure(store: Store, roles: pd.DataFrame, dataset: str) -> Figure | None:
    """Mean confidence rank against the side of the centre crop, one line per method, band over seeds."""
    lines = []
    for record in latest_tests(store):
        if record["columns"]["dataset"] == dataset:
            curve = record["crop_curve"]
            role = roles[roles["unit"] == record["unit"]].iloc[0]
            for fraction, rank in zip(curve["fraction"], curve["rank"][role["default_confidence"]]):
                lines.append(
                    {
                        **record["columns"],
                        "confidence": role["default_confidence"],
                        "fraction": fraction,
                        "value": rank,
                    }
                )
    if not lines:
        return None
    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axis = figure.subplots()
    for index, label, group in _groups(pd.DataFrame(lines)):
        curve = group.groupby("fraction")["value"].agg(["mean", "std"])
        x, sd = curve.index.to_numpy(), curve["std"].fillna(0.0)
        axis.plot(
            x,
            curve["mean"],
            "o-",
            ms=3,
            color=_colour(index),
            label=f"{label} [{group['confidence'].iloc[0]}]",
        )
        axis.fill_between(x, curve["mean"] - sd, curve["mean"] + sd, color=_colour(index), alpha=0.15, lw=0)
    axis.axhline(0.5, ls=":", color="0.5", lw=1)
    axis.set(
        xlabel="side of the centre crop, fraction of the image",
        ylabel="mean confidence rank (0.5 = uninformative)",
    )
    axis.set_title(f"{dataset}: does confidence see the crop?")
    axis.legend(fontsize=8)
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
            figures = {
                f"filter_out_{dataset}_crop": filter_out_figure(merged, dataset, "test_crop"),
                f"filter_out_{dataset}_clean": filter_out_figure(merged, dataset, "test"),
                f"confidence_crop_{dataset}": crop_figure(store, roles, dataset),
                f"tuning_{dataset}": tuning_figure(store, dataset),
            }
            for name, figure in figures.items():
                if figure is not None:
                    written += save_figure(figure, out / name)
    return written
