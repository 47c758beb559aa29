"""Draw docs/figures/request_to_records.svg: how an experiment becomes records.

Run ``uv run python docs/figures/request_to_records.py``.
"""

from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "bench", "font.size": 9})

COLOURS = {"input": "#e8eef7", "study": "#fdf1dc", "unit": "#e5f3e6", "output": "#f3e8f3"}


def box(ax, x, y, width, height, title, text, kind="unit"):
    """A rounded box with a bold first line."""
    patch = FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.08", fc=COLOURS[kind], ec="#555"
    )
    ax.add_patch(patch)
    lines = text.count("\n") + 1
    middle = y + height / 2
    ax.text(x + width / 2, middle + 0.14 * lines, title, ha="center", va="center", weight="bold")
    ax.text(x + width / 2, middle - 0.17, text, ha="center", va="center", fontsize=8, color="#333", linespacing=1.3)


def arrow(ax, start, end, text="", offset=(0, 0.1), curve=0.0):
    """An arrow with a short label at its middle."""
    style = {"arrowstyle": "-|>", "color": "#444", "shrinkA": 1, "shrinkB": 1, "connectionstyle": f"arc3,rad={curve}"}
    ax.annotate("", xy=end, xytext=start, arrowprops=style)
    if text:
        middle = ((start[0] + end[0]) / 2 + offset[0], (start[1] + end[1]) / 2 + offset[1])
        ax.text(*middle, text, ha="center", va="bottom", fontsize=7.5, color="#333")


def lane(ax, y, name, height):
    """The frame of one method on one data set."""
    ax.add_patch(
        FancyBboxPatch((4.0, y), 8.5, height, boxstyle="round,pad=0,rounding_size=0.1", fc="none", ec="#b98a2f")
    )
    ax.text(4.15, y + height - 0.2, name, fontsize=8.5, va="center", color="#8a6412", weight="bold")


def draw():
    """The figure."""
    figure, ax = plt.subplots(figsize=(12.4, 5.6))
    ax.set(xlim=(0, 15.6), ylim=(0, 7))
    ax.axis("off")

    box(ax, 0.1, 5.5, 3.2, 1.1, "experiment", "--method pfe --dataset ndigit\n--trials 10 --seeds 2", "input")
    box(ax, 0.1, 3.75, 3.2, 0.9, "recipe of the data set", "backbone, optimiser, ranges", "input")
    box(ax, 0.1, 2.45, 3.2, 0.9, "protocol", "folds, selection, tests", "input")
    box(ax, 0.1, 1.15, 3.2, 0.9, "settings of yours", "--set optim.epochs=10", "input")

    lane(ax, 3.75, "reality_check / ndigit / cosface (the base)", 2.85)
    lane(ax, 0.35, "reality_check / ndigit / pfe", 2.85)
    for y in (4.05, 0.65):
        for number in (0, 1):
            top = y + 1.05 - 1.05 * number
            box(ax, 4.25, top, 2.2, 0.85, f"study {number}", "5 trials, trained", "study")
            box(ax, 7.55, top, 2.2, 0.85, "network", "of the best trial")
            box(ax, 10.6, top, 1.75, 0.85, "test", f"replicate {number}")
            arrow(ax, (6.45, top + 0.42), (7.55, top + 0.42), "chooses" if number == 0 else "")
            arrow(ax, (9.75, top + 0.42), (10.6, top + 0.42), "arrays" if number == 0 else "")
    arrow(ax, (7.9, 4.05), (5.6, 2.55))
    ax.text(7.3, 3.47, "weights of the base, by replicate", fontsize=7.5, color="#333", va="center")

    arrow(ax, (3.3, 6.05), (4.0, 5.6))
    arrow(ax, (3.3, 4.2), (4.0, 4.6))
    arrow(ax, (3.3, 2.9), (4.0, 2.3))
    arrow(ax, (3.3, 1.6), (4.0, 1.6))

    box(ax, 13.1, 3.9, 2.35, 1.0, "records", "a record.json each", "output")
    box(ax, 13.1, 2.35, 2.35, 0.85, "metrics.csv", "one value per row", "output")
    box(ax, 13.1, 0.85, 2.35, 0.85, "report/", "tables, figures", "output")
    arrow(ax, (12.35, 5.05), (13.1, 4.55))
    arrow(ax, (12.35, 2.1), (13.1, 4.2))
    arrow(ax, (14.27, 3.9), (14.27, 3.2))
    arrow(ax, (14.27, 2.35), (14.27, 1.7))
    return figure


if __name__ == "__main__":
    target = Path(__file__).with_suffix(".svg")
    draw().savefig(target, bbox_inches="tight", metadata={"Date": None})
    print(target)
