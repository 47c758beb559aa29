"""Comparison tables: mean and standard deviation over seeds, as CSV, Markdown, LaTeX and on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..protocols.statistics import paired_difference, summarise
from .frame import SETTING


@dataclass(frozen=True)
class Column:
    """One column of the comparison.

    Attributes:
        title: Heading.
        metric: Metric of the tidy table.
        split: Its split.
        variant: Its variant.
        of_confidence: Whether it measures the confidence (then the method's own one counts).
        higher: Whether higher is better.
        percent: Whether it is printed in percent.
        brief: Whether a terminal shows it; the files show every column.
        wide: Whether only a terminal of 100 columns shows it.
    """

    title: str
    metric: str
    split: str = "test"
    variant: str = ""
    of_confidence: bool = False
    higher: bool = True
    percent: bool = True
    brief: bool = True
    wide: bool = False


COMPARED = (
    Column("R@1", "recall_at_1"),
    Column("MAP@R", "map_at_r"),
    Column("R-Prec", "r_precision", brief=False),
    Column("Ver. acc.", "verification_accuracy", variant="threshold_val", wide=True),
    Column("Ver. AUC", "verification_auc", brief=False),
    Column("Crop rho", "spearman_crop", split="test_crop", of_confidence=True, percent=False),
    Column("P(clean > crop)", "paired_crop", split="test_crop", of_confidence=True, brief=False),
    Column("AURC", "aurc", split="test_crop", variant="recall_at_1", of_confidence=True, higher=False),
)
CONTROLS = ("random", "oracle")


@dataclass(frozen=True)
class Cell:
    """One cell of the comparison: mean and SD over seeds (SD nan for one seed), and how it stands.

    ``defined`` of ``seeds`` have a value: a rank correlation with a constant confidence has none.
    """

    mean: float
    sd: float
    defined: int = 0
    seeds: int = 0
    best: bool = False
    beats_deterministic: bool = False

    @property
    def complete(self) -> bool:
        """Whether every seed has a value."""
        return 0 < self.defined == self.seeds

    def text(self, percent: bool, brief: bool = False) -> str:
        """``mean ± SD`` in percent or as it is, with ``[defined/seeds]`` where some seeds have no value."""
        if self.mean != self.mean:
            return "-"
        factor, digits = (100.0, 2) if percent else (1.0, 3)
        digits -= brief
        between = "±" if brief else " ± "
        sd = f"{between}{self.sd * factor:.{digits}f}" if self.sd == self.sd else ""
        part = f" [{self.defined}/{self.seeds}]" if self.defined < self.seeds else ""
        return f"{self.mean * factor:.{digits}f}{sd}{part}"


@dataclass(frozen=True)
class Row:
    """One method at one setting: its labels and its cells."""

    setting: dict[str, Any]
    seeds: int
    trainings: int
    confidence: str
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """Method, with its base."""
        base = self.setting["base"]
        label = f"{self.setting['method']} ({base})" if base else str(self.setting["method"])
        return label if self.setting["fidelity"] == "corrected" else f"{label} [{self.setting['fidelity']}]"

    @property
    def network(self) -> str:
        """Backbone and embedding size, and how several models are taken together."""
        short = {"separated": " sep.", "concatenated": " conc."}.get(self.setting["ensemble"], "")
        return f"{self.setting['backbone']}/{self.setting['dim']}{short}"

    @property
    def tuning(self) -> str:
        """Where its setting comes from."""
        tuned = self.setting["hparams"] == "tuned"
        source = f"tuned, {self.setting['trials']} trials" if tuned else str(self.setting["hparams"])
        if (self.setting["protocol"], self.setting["preset"]) != ("reality_check", "strict"):
            source += f" [{self.setting['protocol']}, {self.setting['preset']}]"
        return source


def _per_seed(group: pd.DataFrame, column: Column, scorer: str, confidence: str) -> dict[int, float]:
    chosen = group[
        (group["metric"] == column.metric)
        & (group["split"] == column.split)
        & (group["variant"] == column.variant)
        & group["fraction"].isna()
    ]
    chosen = chosen[chosen["confidence"] == (confidence if column.of_confidence else "")]
    if (chosen["scorer"] != "").any():
        chosen = chosen[chosen["scorer"] == scorer]
    return {int(seed): float(value) for seed, value in zip(chosen["seed"], chosen["value"])}


def _defined(values: dict[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if value == value}


def _cell(values: dict[int, float]) -> Cell:
    defined = _defined(values)
    if not defined:
        return Cell(float("nan"), float("nan"), 0, len(values))
    summary = summarise(list(defined.values()))
    return Cell(summary.mean, summary.sd, len(defined), len(values))


def comparison(frame: pd.DataFrame, roles: pd.DataFrame) -> dict[str, list[Row]]:
    """Rows of the comparison by data set, methods in the order of their MAP@R.

    A cell is marked best where its mean is; a probabilistic method's cell is marked where its mean beats that of
    every deterministic method, and for confidence columns also every confidence a deterministic method has.
    """
    merged = frame.merge(roles, on="unit")
    result: dict[str, list[Row]] = {}
    for dataset, part in merged.groupby("dataset", sort=True):
        found: list[tuple[Row, bool]] = []
        bars: list[list[float]] = [[] for _ in COMPARED]
        for values, group in part.groupby(list(SETTING), sort=True, dropna=False):
            first = group.iloc[0]
            scorer, confidence = first["primary_scorer"], first["default_confidence"]
            probabilistic = bool(first["probabilistic"])
            cells = tuple(_cell(_per_seed(group, column, scorer, confidence)) for column in COMPARED)
            setting = dict(zip(SETTING, values))
            row = Row(setting, group["seed"].nunique(), int(first["trainings"]), confidence, cells)
            found.append((row, probabilistic))
            if not probabilistic:
                candidates = sorted(set(group["confidence"]) - {"", *CONTROLS})
                for bar, column, cell in zip(bars, COMPARED, cells):
                    names = candidates if column.of_confidence else [confidence]
                    options = [_cell(_per_seed(group, column, scorer, name)).mean for name in names]
                    bar += [value for value in [*options, cell.mean] if value == value]
        result[str(dataset)] = _marked(found, bars)
    return result


def _marked(found: list[tuple[Row, bool]], bars: list[list[float]]) -> list[Row]:
    tops: list[float | None] = []
    for index, column in enumerate(COMPARED):
        # A mean over the seeds that happen to have a value is shown, but it does not compete.
        means = [row.cells[index].mean for row, _ in found if row.cells[index].complete]
        # One row is not the best of anything.
        tops.append((max if column.higher else min)(means) if means and len(found) > 1 else None)
    rows = []
    for row, probabilistic in found:
        cells = []
        for cell, column, top, bar in zip(row.cells, COMPARED, tops, bars):
            sign = 1 if column.higher else -1
            beats = cell.complete and probabilistic and bool(bar) and all(sign * cell.mean > sign * v for v in bar)
            cells.append(replace(cell, best=cell.complete and cell.mean == top, beats_deterministic=beats))
        rows.append(Row(row.setting, row.seeds, row.trainings, row.confidence, tuple(cells)))
    return sorted(
        rows, key=lambda row: (-row.cells[1].mean if row.cells[1].mean == row.cells[1].mean else 0, row.label)
    )


HEAD = ("method", "network", "tuning", "pinned", "trainings", "seeds", "confidence")


def _labels(row: Row) -> list[str]:
    return [
        row.label,
        row.network,
        row.tuning,
        str(row.setting["pinned"]),
        str(row.trainings),
        str(row.seeds),
        row.confidence,
    ]


def _label_columns(rows: list[Row]) -> dict[str, list[str]]:
    return {name: [_labels(row)[index] for row in rows] for index, name in enumerate(HEAD)}


def comparison_frame(rows: dict[str, list[Row]]) -> pd.DataFrame:
    """The comparison as a table of numbers: mean, SD and number of defined seeds of every column."""
    lines = []
    for dataset, group in rows.items():
        for row in group:
            line: dict[str, Any] = {
                "dataset": dataset,
                **row.setting,
                "trainings": row.trainings,
                "seeds": row.seeds,
                "confidence": row.confidence,
            }
            for column, cell in zip(COMPARED, row.cells):
                name = "_".join(filter(None, [column.split, column.metric, column.variant]))
                line[f"{name}_mean"], line[f"{name}_sd"], line[f"{name}_n"] = cell.mean, cell.sd, cell.defined
            lines.append(line)
    return pd.DataFrame(lines)


NOTE = (
    "Mean ± SD over seeds (ddof 1). Percent, except the rank correlation `Crop rho` between confidence and crop size. "
    "AURC (on crops): lower is better. `trainings`: tuning trials of the method and of its base. `[4/5]`: one of five "
    "seeds gave every image the same confidence, which has no rank correlation. `sep.`: mean over the models of a "
    "cross-validation; `conc.`: their embeddings side by side."
)


def to_markdown(rows: dict[str, list[Row]]) -> str:
    """Markdown: best in bold, better than every deterministic method underlined."""
    out = [
        "# Comparison",
        "",
        NOTE + " **Bold**: best. <u>Underlined</u>: better than every deterministic method.",
        "",
    ]
    for dataset, group in rows.items():
        titles = [*HEAD, *(column.title for column in COMPARED)]
        out += [f"## {dataset}", "", "| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
        for row in group:
            cells = []
            for column, cell in zip(COMPARED, row.cells):
                text = cell.text(column.percent)
                text = f"**{text}**" if cell.best else text
                cells.append(f"<u>{text}</u>" if cell.beats_deterministic else text)
            out.append("| " + " | ".join([*_labels(row), *cells]) + " |")
        out.append("")
    return "\n".join(out)


_LATEX = str.maketrans({c: f"\\{c}" for c in "_%&#$"})


def to_latex(rows: dict[str, list[Row]]) -> str:
    """LaTeX tables (booktabs), one per data set."""
    out = ["% needs \\usepackage{booktabs}"]
    for dataset, group in rows.items():
        titles = [*HEAD, *(column.title.replace(">", "$>$") for column in COMPARED)]
        out += [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{dataset.translate(_LATEX)}: mean $\\pm$ SD over seeds; bold: best; underlined: better"
            " than every deterministic method.}",
            "\\begin{tabular}{lllllll" + "r" * len(COMPARED) + "}",
            "\\toprule",
            " & ".join(titles) + " \\\\",
            "\\midrule",
        ]
        for row in group:
            cells = []
            for column, cell in zip(COMPARED, row.cells):
                text = cell.text(column.percent).replace("±", "$\\pm$")
                text = f"\\textbf{{{text}}}" if cell.best else text
                cells.append(f"\\underline{{{text}}}" if cell.beats_deterministic else text)
            out.append(" & ".join([*(label.translate(_LATEX) for label in _labels(row)), *cells]) + " \\\\")
        out += ["\\bottomrule", "\\end{tabular}", "\\end{table}", ""]
    return "\n".join(out)


def split_pinned(pinned: list[str]) -> tuple[str, list[str]]:
    """What is pinned in all rows, and what each has beside that.

    Example:
        >>> split_pinned(["a=1; b=2", "a=1"])
        ('a=1', ['b=2', ''])
    """
    parts = [text.split("; ") if text else [] for text in pinned]
    shared = [part for part in parts[0] if all(part in other for other in parts)] if parts else []
    return "; ".join(shared), ["; ".join(part for part in own if part not in shared) for own in parts]


def print_comparison(rows: dict[str, list[Row]], console: Console) -> None:
    """The main columns of the comparison on the terminal."""
    for dataset, group in rows.items():
        common = {name: labels[0] for name, labels in _label_columns(group).items() if len(set(labels)) == 1}
        title = f"{dataset}: mean ± SD" + (f" over {common['seeds']} seeds" if "seeds" in common else " over seeds")
        title += f", {common['tuning']}" if "tuning" in common else ""
        shared, own = split_pinned([str(row.setting["pinned"]) for row in group])
        title += f"\n{shared}" if shared else ""
        # What all rows share is said once, in the title: the table has to fit 80 columns.
        apart = ("network", "tuning", "pinned", "seeds", "confidence")
        shown = ["method", *(name for name in apart if name not in common)]
        table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name in shown:
            table.add_column(name, no_wrap=name not in ("tuning", "pinned"))
        visible = [c.brief and (console.width >= 100 or not c.wide) for c in COMPARED]
        for column, shows in zip(COMPARED, visible):
            if shows:
                table.add_column(
                    column.title + ("" if column.higher else " \N{DOWNWARDS ARROW}"), justify="right", no_wrap=True
                )
        for row, pinned in zip(group, own):
            cells = []
            for column, cell, shows in zip(COMPARED, row.cells, visible):
                if shows:
                    style = " ".join(["bold"] * cell.best + ["underline"] * cell.beats_deterministic)
                    cells.append(Text(cell.text(column.percent, brief=True), style=style))
            labels = dict(zip(HEAD, _labels(row))) | {"pinned": pinned}
            # As text: rich would take "[released]" for markup.
            table.add_row(*(Text(labels[name]) for name in shown), *cells)
        console.print(table)


def print_tables(frame: pd.DataFrame, roles: pd.DataFrame, console: Console) -> None:
    """What a run and a report print: the comparison, and the scorers if more were asked for."""
    print_comparison(comparison(frame, roles), console)
    print_scorers(frame, roles, console)


def _paired(group: pd.DataFrame, other: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Mean of ``group - other`` over the seeds both have by metric, each with its own scorer and confidence."""
    mine, theirs = group.iloc[0], other.iloc[0]
    for column in COMPARED:
        left = _defined(_per_seed(group, column, mine["primary_scorer"], mine["default_confidence"]))
        right = _defined(_per_seed(other, column, theirs["primary_scorer"], theirs["default_confidence"]))
        if not set(left) & set(right):
            continue
        difference = paired_difference(left, right)
        yield {
            "metric": column.metric,
            "split": column.split,
            "variant": column.variant,
            "difference_mean": difference.mean,
            "difference_sd": difference.sd,
            "ci95_low": difference.ci_low,
            "ci95_high": difference.ci_high,
            "seeds": difference.n,
        }


CELL = ("protocol", "preset", "dataset", "ensemble")
"""What two settings that are compared have in common."""


def paired_methods(frame: pd.DataFrame, roles: pd.DataFrame, names: Sequence[str] = ()) -> pd.DataFrame:
    """Every two settings of one protocol, preset and data set, seed by seed: ``other - first``, 95 % t-interval.

    Seeds pair up because initialisation and order depend on (data set, replicate), not on the method.

    Args:
        frame: Tidy table.
        roles: Roles of its units.
        names: Methods to compare, the first of them with all others; without, every two.
    """
    merged = frame.merge(roles, on="unit")
    lines = []
    for _, cell in merged.groupby(list(CELL), sort=True):
        groups = list(cell.groupby(list(SETTING), sort=True, dropna=False))
        found = [(Row(dict(zip(SETTING, values)), 0, 0, "", ()), group) for values, group in groups]
        if names:
            found = [item for name in names for item in found if item[0].setting["method"] == name]
        for (first, group), (other, rest) in combinations(found, 2):
            if names and first.setting["method"] != names[0]:
                continue
            common = {key: first.setting[key] for key in CELL}
            sides = {
                "first": first.label,
                "first_tuning": first.tuning,
                "other": other.label,
                "other_tuning": other.tuning,
            }
            lines += [{**common, **sides, **line} for line in _paired(rest, group)]
    return pd.DataFrame(lines)


def print_paired(lines: pd.DataFrame, console: Console) -> None:
    """Differences on the terminal, one table per data set and pair of settings side by side."""
    for (protocol, preset, dataset, ensemble), part in lines.groupby(list(CELL), sort=False):
        where = ", ".join(str(name) for name in (protocol, preset, ensemble) if name)
        table = Table(
            title=f"{dataset} ({where}): other - first, mean over paired seeds [95 % t-interval]",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        # One above the other, so that both names fit beside the numbers.
        table.add_column("other\n- first", no_wrap=True)
        shown = [column for column in COMPARED if column.brief and not column.wide]
        for column in shown:
            table.add_column(column.title, justify="right")
        table.add_column("seeds", justify="right")
        keys = ["first", "first_tuning", "other", "other_tuning"]
        sides = part[keys].drop_duplicates()
        for _, group in part.groupby(keys, sort=False):
            line = group.iloc[0]
            texts = []
            for side, which in (("first", line["first_tuning"]), ("other", line["other_tuning"])):
                several = sides[sides[side] == line[side]][f"{side}_tuning"].nunique() > 1
                texts.append(Text(f"{line[side]}, {which}" if several else str(line[side])))
            cells = []
            for column in shown:
                chosen = group[(group["metric"] == column.metric) & (group["split"] == column.split)]
                chosen = chosen[chosen["variant"] == column.variant]
                cells.append(_signed(chosen.iloc[0], column.percent) if len(chosen) else "-")
            first, other = texts
            table.add_row(Text("\n- ").join([other, first]), *cells, str(int(group["seeds"].max())))
        console.print(table)


def _signed(line: pd.Series[Any], percent: bool) -> str:
    factor, digits = (100.0, 1) if percent else (1.0, 2)
    mean, low, high = (line[key] * factor for key in ("difference_mean", "ci95_low", "ci95_high"))
    interval = f"\n[{low:+.{digits}f}, {high:+.{digits}f}]" if low == low else ""
    return f"{mean:+.{digits}f}{interval}"


def paired_with_base(frame: pd.DataFrame, roles: pd.DataFrame) -> pd.DataFrame:
    """Each two-stage method against its own base, seed by seed: mean difference and its 95 % t-interval."""
    merged = frame.merge(roles, on="unit")
    lines = []
    heads = merged[merged["base"] != ""]
    for values, group in heads.groupby(list(SETTING), sort=True, dropna=False):
        setting = dict(zip(SETTING, values))
        # By the very networks the heads stand on: budgets and pinned values of head and base may differ.
        other = merged[merged["train"].isin(set(group["base_train"]))]
        if other.empty:
            continue
        lines += [{**setting, **line} for line in _paired(group, other)]
    return pd.DataFrame(lines)


def scorers(frame: pd.DataFrame) -> pd.DataFrame:
    """Retrieval and verification of every method under every scorer it was tested with: mean and SD over seeds."""
    chosen = frame[(frame["scorer"] != "") & (frame["confidence"] == "") & frame["fraction"].isna()]
    keys = [*SETTING, "split", "scorer", "variant", "metric"]
    grouped = chosen.groupby(keys, sort=True, dropna=False)["value"]
    return grouped.agg(mean="mean", sd="std", seeds="count").reset_index()


def print_scorers(frame: pd.DataFrame, roles: pd.DataFrame, console: Console) -> None:
    """MAP@R by scorer on the terminal, where a method was tested with more than its own and the cosine."""
    found = frame[(frame["metric"] == "map_at_r") & (frame["split"] == "test") & (frame["variant"] == "")]
    for dataset, part in found[found["fraction"].isna()].merge(roles, on="unit").groupby("dataset", sort=True):
        names = sorted(set(part["scorer"]))
        if not set(names) - {"cosine", *part["primary_scorer"]}:
            continue
        table = Table(
            title=f"{dataset}: mean MAP@R by scorer (own scorer in bold)",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        table.add_column("method", no_wrap=True)
        for name in names:
            table.add_column(name.replace("_", "\n"), justify="right", no_wrap=True)
        for values, group in part.groupby(list(SETTING), sort=True, dropna=False):
            label = Row(dict(zip(SETTING, values)), 0, 0, "", ()).label
            cells = []
            for name in names:
                mine = group[group["scorer"] == name]
                cell = _cell(dict(zip(mine["seed"], mine["value"])))
                own = name == group.iloc[0]["primary_scorer"]
                # Without the SD, which scorers.csv has: all scorers have to fit 80 columns.
                text = f"{100 * cell.mean:.1f}" if cell.defined else "-"
                cells.append(Text(text, style="bold" if own else ""))
            table.add_row(Text(label), *cells)
        console.print(table)


def corruptions(frame: pd.DataFrame, roles: pd.DataFrame) -> pd.DataFrame:
    """Every method under every corruption, where there are others than the crop: mean and SD over seeds.

    Of its own scorer and its own confidence; the clean images are a line of their own, without a severity to follow.
    """
    kinds = sorted(split.removeprefix("test_") for split in set(frame["split"]) if split.startswith("test_"))
    if not set(kinds) - {"crop"}:
        return pd.DataFrame()
    lines = []
    for values, group in frame.merge(roles, on="unit").groupby(list(SETTING), sort=True, dropna=False):
        first = group.iloc[0]
        for kind in ("clean", *kinds):
            split = "test" if kind == "clean" else f"test_{kind}"
            if split not in set(group["split"]):
                continue
            line: dict[str, Any] = {**dict(zip(SETTING, values)), "corruption": kind}
            line["confidence"] = first["default_confidence"]
            for name, column in (
                ("spearman", Column("", f"spearman_{kind}", split, of_confidence=True)),
                ("paired", Column("", f"paired_{kind}", split, of_confidence=True)),
                ("aurc", Column("", "aurc", split, "recall_at_1", of_confidence=True)),
                ("map_at_r", Column("", "map_at_r", split)),
            ):
                cell = _cell(_per_seed(group, column, first["primary_scorer"], first["default_confidence"]))
                line |= {f"{name}_mean": cell.mean, f"{name}_sd": cell.sd, f"{name}_n": cell.defined}
            lines.append(line)
    return pd.DataFrame(lines)


def confidences(frame: pd.DataFrame) -> pd.DataFrame:
    """Every confidence of every method: mean and SD over seeds of what measures confidences."""
    chosen = frame[(frame["confidence"] != "") & frame["fraction"].isna()]
    keys = [*SETTING, "split", "scorer", "confidence", "variant", "metric"]
    grouped = chosen.groupby(keys, sort=True, dropna=False)["value"]
    return grouped.agg(mean="mean", sd="std", seeds="count").reset_index()
