"""Figures from records: filter-out curves with their controls, confidence against severity, tuning history."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..protocols.metrics import METRICS, title_of
from ..store.files import write_atomic
from ..store.folder import Store
from ..store.records import KEYS, StudyRecord, TrialRecord
from .contender import CONTENDER_KEYS, Contender, by_contender, split_pinned
from .frame import Results
from .sweeps import sweep_figures

CURVES = ("filter_out_map_at_r", "filter_out_recall_at_1")
"""Metrics of the filter-out curves, a row of panels each."""
VARIANTS = {"query_only": "queries removed", "query_and_gallery": "queries and gallery removed"}
"""Variants of the filter-out curves with their titles, a column of panels each."""
CURVE_KEYS = tuple(key for key in CONTENDER_KEYS if key not in ("protocol", "preset", "dataset"))
"""Columns that tell the curves of a figure apart."""


def figure_style() -> AbstractContextManager[None]:
    """Context in which all figures are drawn and saved."""
    return mpl.rc_context(
        {
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
    )


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


def filtered_title(metric: str) -> str:
    """Title of the metric that a filter-out curve shows.

    Example:
        >>> filtered_title("filter_out_recall_at_1")
        'Recall@1'
    """
    values = METRICS["filter_out_{metric}"].values(metric)
    if values is None:
        raise LookupError(f"{metric!r} is not the metric of a filter-out curve")
    return title_of(values["metric"])


def _colour(index: int) -> tuple[float, float, float, float]:
    red, green, blue, alpha = mpl.colormaps["tab10" if index < 10 else "tab20"](index % 20)
    return red, green, blue, alpha


def _label(contender: Contender, pinned: str) -> str:
    extra = [contender.hparams] if contender.hparams != "tuned" else []
    extra += [contender.fidelity] if contender.fidelity != "corrected" else []
    extra += [contender.ensemble] if contender.ensemble else []
    # Values that are pinned in every curve tell nothing here, and a long legend leaves no room for the curves.
    extra += [pinned] if pinned else []
    return textwrap.fill(", ".join([contender.method, *extra]), 40, max_lines=2, placeholder=" ..")


def _labelled(frame: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame]]:
    """(index, label, rows) of each curve; the label of a method names its budget if two budgets meet."""
    groups = list(by_contender(frame, CURVE_KEYS))
    contenders = [Contender.of(rows) for rows in groups]
    _, own = split_pinned([contender.pinned for contender in contenders])
    labels = [_label(contender, pinned) for contender, pinned in zip(contenders, own)]
    for index, (label, contender, rows) in enumerate(zip(labels, contenders, groups)):
        if labels.count(label) > 1:
            budget = f"{contender.trials} trials, {contender.backbone}, d={contender.dim}"
            label += f" ({budget}, base {contender.base or 'none'})"
        yield index, label, rows


def _plot_band(axis: Axes, curve: pd.DataFrame, x: np.ndarray, index: int) -> None:
    """Band of one standard deviation around a mean curve."""
    sd = curve["std"].fillna(0.0)
    axis.fill_between(x, curve["mean"] - sd, curve["mean"] + sd, color=_colour(index), alpha=0.15, lw=0)


def filter_out_figure(frame: pd.DataFrame, dataset: str, split: str) -> Figure | None:
    """MAP@R and Recall@1 as the least confident images are removed, with random and oracle orders as controls."""
    rows = frame[(frame["dataset"] == dataset) & (frame["split"] == split) & frame["metric"].isin(CURVES)]
    if rows.empty:
        return None
    figure = Figure(figsize=(9.0, 6.6), layout="constrained")
    axes = figure.subplots(len(CURVES), len(VARIANTS), sharex=True, sharey="row")
    for metric, line in zip(CURVES, axes):
        for (variant, variant_title), axis in zip(VARIANTS.items(), line):
            _draw_filter_out(axis, rows[(rows["metric"] == metric) & (rows["variant"] == variant)])
            axis.set_title(variant_title)
            axis.set_ylabel(filtered_title(metric))
            if metric == CURVES[-1]:
                axis.set_xlabel("least confident images removed, %")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, max(1, len(labels))))
    images = {"test": "clean", "test_crop": "centre-cropped"}.get(split, split.removeprefix("test_"))
    figure.suptitle(
        f"{dataset}, {images} test images (solid: own confidence, dotted: random, dashed: oracle; band: SD)"
    )
    return figure


def _draw_filter_out(axis: Axes, rows: pd.DataFrame) -> None:
    """Curves of every method in one panel."""
    for index, label, group in _labelled(rows):
        own = group["default_confidence"].iloc[0]
        for name, style, width in ((own, "-", 1.8), ("random", ":", 1.0), ("oracle", "--", 0.8)):
            chosen = group[(group["confidence"] == name) & (group["scorer"] == group["primary_scorer"])]
            curve = chosen.groupby("fraction")["value"].agg(["mean", "std"])
            x = 100 * curve.index.to_numpy()
            text = f"{label} [{name}]" if name == own else None
            axis.plot(x, curve["mean"], style, lw=width, color=_colour(index), label=text)
            if name == own:
                _plot_band(axis, curve, x, index)


def _confidence_ranks(results: Results, dataset: str) -> pd.DataFrame:
    """Mean rank of each method's own confidence by corruption and severity, a row per seed and severity."""
    lines: list[dict[str, object]] = []
    for record in results.tests:
        if record.columns.dataset != dataset:
            continue
        confidence = record.role.default_confidence
        columns = {**record.columns.model_dump(), "confidence": confidence}
        for corruption, curve in record.curves.items():
            for severity, rank in zip(curve.severity, curve.rank[confidence]):
                lines.append({**columns, "corruption": corruption, "severity": severity, "value": rank})
    return pd.DataFrame(lines, columns=[*KEYS, "confidence", "corruption", "severity", "value"])


def _draw_ranks(axis: Axes, ranks: pd.DataFrame, by: str) -> None:
    """One line per method, band over seeds."""
    for index, label, group in _labelled(ranks):
        curve = group.groupby(by)["value"].agg(["mean", "std"])
        x = curve.index.to_numpy()
        text = f"{label} [{group['confidence'].iloc[0]}]"
        axis.plot(x, curve["mean"], "o-", ms=3, color=_colour(index), label=text)
        _plot_band(axis, curve, x, index)
    axis.axhline(0.5, ls=":", color="0.5", lw=1)


def crop_figure(ranks: pd.DataFrame, dataset: str) -> Figure | None:
    """Mean confidence rank against the side of the centre crop."""
    crops = ranks[ranks["corruption"] == "crop"]
    if crops.empty:
        return None
    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axis = figure.subplots()
    _draw_ranks(axis, crops.assign(side=1 - crops["severity"]), "side")
    axis.set(
        xlabel="side of the centre crop, fraction of the image",
        ylabel="mean confidence rank (0.5 = uninformative)",
    )
    axis.set_title(f"{dataset}: does confidence see the crop?")
    axis.legend(fontsize=8)
    return figure


def severity_figure(ranks: pd.DataFrame, dataset: str) -> Figure | None:
    """Mean confidence rank against severity, one panel per corruption; None if there is only the crop."""
    # A fixed severity has no curve.
    names = [str(name) for name, rows in ranks.groupby("corruption", sort=True) if rows["severity"].nunique() > 1]
    if not set(names) - {"crop"}:
        return None
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(3.0 * columns, 2.6 * lines + 0.6), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axis, name in zip(axes.ravel(), names):
        _draw_ranks(axis, ranks[ranks["corruption"] == name], "severity")
        axis.set(title=name, xlabel="severity")
        axis.xaxis.set_tick_params(labelbottom=True)
    for axis in axes.ravel()[len(names) :]:
        axis.set_visible(False)
    # One legend for all panels, of all methods: a method may lack a corruption.
    shown = {text: handle for axis in axes.ravel() for handle, text in zip(*axis.get_legend_handles_labels())}
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=min(columns, len(shown)))
    figure.supylabel("mean confidence rank")
    figure.suptitle(f"{dataset}: does confidence fall with severity? (0.5 = uninformative)")
    return figure


def tuning_figure(store: Store, dataset: str) -> Figure | None:
    """Value of every trial and the best so far, one panel per study."""
    studies = [(study, trials) for study, trials in store.studies(dataset) if trials]
    if not studies:
        return None
    columns = min(3, len(studies))
    lines = -(-len(studies) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axis, (study, trials) in zip(axes, studies):
        _draw_study(axis, study, trials)
    for axis in axes[len(studies) :]:
        axis.set_visible(False)
    axes[0].legend(fontsize=7)
    figure.suptitle(f"{dataset}: tuning")
    return figure


def _draw_study(axis: Axes, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
    template = study.spec.template
    by_loss = template.selection.metric == "stage_loss"
    sign = -1.0 if by_loss else 1.0
    finished = [(trial.number, sign * trial.value) for trial in trials if trial.value is not None]
    x, y = [number for number, _ in finished], np.array([value for _, value in finished])
    axis.plot(x, y, "o", ms=3, alpha=0.6, label="trial")
    if len(y):
        axis.step(x, (np.minimum if by_loss else np.maximum).accumulate(y), where="post", label="best so far")
        axis.plot(x[:1], y[:1], "s", ms=5, mfc="none", color="k", label="recipe default")
    for trial in trials:
        if trial.value is None:
            axis.axvline(trial.number, color="tab:red", lw=0.8, alpha=0.6)
    axis.set(
        title=template.method,
        xlabel="trial",
        ylabel=f"validation {'loss' if by_loss else title_of('map_at_r')}",
    )


def write_figures(store: Store, results: Results, out: Path) -> list[Path]:
    """Write every figure as PNG and SVG; returns the files."""
    merged = results.frame.merge(results.roles, on="unit")
    written: list[Path] = []
    with figure_style():
        for dataset in sorted(set(merged["dataset"])):
            for name, figure in _dataset_figures(store, results, merged, dataset):
                if figure is not None:
                    written += save_figure(figure, out / name)
    return written


def _dataset_figures(
    store: Store, results: Results, merged: pd.DataFrame, dataset: str
) -> Iterator[tuple[str, Figure | None]]:
    ranks = _confidence_ranks(results, dataset)
    yield f"filter_out_{dataset}_clean", filter_out_figure(merged, dataset, "test")
    for corruption in sorted(set(ranks["corruption"])):
        yield f"filter_out_{dataset}_{corruption}", filter_out_figure(merged, dataset, f"test_{corruption}")
    yield f"confidence_crop_{dataset}", crop_figure(ranks, dataset)
    yield f"confidence_severity_{dataset}", severity_figure(ranks, dataset)
    yield f"tuning_{dataset}", tuning_figure(store, dataset)
    yield from sweep_figures(merged, dataset)
