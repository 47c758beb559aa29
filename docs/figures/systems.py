"""Draw study_photographs.svg and study_toys.svg: every method with its own confidence against the plain method.

Run ``uv run python docs/figures/systems.py``. The records are those of results/reference.
"""

import warnings
from pathlib import Path

import bench
import matplotlib
import pandas as pd
from matplotlib import pyplot as plt

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "bench", "font.size": 8})

PHOTOGRAPHS = ("grocery", "cub200", "cars196")
TOYS = ("ndigit", "glyphs", "omniglot")
UNITS = ("split", "replicate", "seed")
LOOKS = {
    ("before_gallery", "clean"): "Before the gallery, clean",
    ("before_gallery", "crop"): "Before the gallery, crops",
    ("at_query_time", "clean"): "At query time, clean",
    ("at_query_time", "crop"): "At query time, crops",
}
COLOURS = {"better": "#0068ad", "worse": "#b54a00"}


def counted(rows: pd.DataFrame) -> pd.DataFrame:
    """Systems by AUGRC, against the norm and the free confidence that validation chose; over splits where there are."""
    plain = rows[["same_order_as", "ensemble"]].fillna("").eq("").all(axis=1) & rows["fidelity"].eq("corrected")
    rows = rows[plain & rows["hparams"].eq("tuned") & rows["metric"].eq("augrc") & rows["chosen"].astype(bool)]
    rows = rows[rows["question"].eq("system") | (rows["question"].eq("rival") & rows["rival"].eq("norm"))]
    rows = rows[rows["outcome"].ne("no verdict") & rows["n"].gt(1)]
    place = rows["unit"].map(UNITS.index)
    return rows[place.eq(place.groupby(rows["dataset"]).transform("min"))]


def draw(rows: pd.DataFrame, width: float = 9.0, among: tuple[str, ...] = PHOTOGRAPHS) -> plt.Figure:
    """A panel for every data set, use and kind of images: circles against the norm, squares against the chosen one."""
    shown = counted(rows)
    datasets = [name for name in among if name in set(shown["dataset"])]
    orders = {name: order_of(shown[shown["dataset"] == name]) for name in datasets}
    heights = [len(orders[name]) + 1 for name in datasets]
    figure, axes = plt.subplots(
        len(datasets), len(LOOKS), figsize=(width, width * (0.06 + 0.021 * sum(heights))), sharex="col", squeeze=False,
        gridspec_kw={"height_ratios": heights}, layout="constrained",
    )  # fmt: skip
    for line, name in zip(axes, datasets):
        for axis, ((use, images), title) in zip(line, LOOKS.items()):
            own = shown[shown["dataset"].eq(name) & shown["use"].eq(use) & shown["images"].eq(images)]
            panel(axis, own, orders[name])
            if name == datasets[0]:
                axis.set_title(title, fontsize=8)
            axis.tick_params(labelleft=axis is line[0], length=2)
        line[0].set_ylabel(name)
    figure.supxlabel("AUGRC, plain system minus the method's, points", fontsize=8)
    return figure


def order_of(rows: pd.DataFrame) -> list[str]:
    """Methods, the best before the gallery on clean images first."""
    first = rows[rows["question"].eq("system") & rows["use"].eq("before_gallery") & rows["images"].eq("clean")]
    return list(first.sort_values("difference", ascending=False)["method"])


def panel(axis: plt.Axes, rows: pd.DataFrame, methods: list[str]) -> None:
    """Differences with their intervals, filled if they differ after Holm's adjustment, too."""
    axis.axvline(0, color="k", lw=0.8)
    axis.axvspan(-0.5, 0.5, color="0.92", lw=0)
    for row in rows.itertuples():
        norm = row.question == "rival"
        place = methods.index(row.method) + 0.16 * (1 if norm else -1) * (row.use == "before_gallery")
        colour = COLOURS.get(row.outcome, "#555")
        axis.plot([100 * row.low, 100 * row.high], [place] * 2, color=colour, lw=1)
        fill = colour if row.outcome in COLOURS and row.p_holm < 0.05 else "w"
        axis.plot(100 * row.difference, place, "o" if norm else "s", ms=3.5, mec=colour, mfc=fill, mew=0.8)
    axis.set(yticks=range(len(methods)), yticklabels=methods, ylim=(len(methods) - 0.4, -0.6))


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    comparisons = bench.results(Path(__file__).parents[2] / "results" / "reference").comparisons
    for name, among in (("study_photographs", PHOTOGRAPHS), ("study_toys", TOYS)):
        target = Path(__file__).with_name(f"{name}.svg")
        draw(comparisons, among=among).savefig(target, metadata={"Date": None})
        print(target)
