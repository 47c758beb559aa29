r"""Make the paper from the records of the repository: its numbers, tables and figures, and with pdflatex the PDF.

    uv run python docs/paper/make.py [--out build/paper]

Every number of a result in ``paper.tex`` is a query, ``\n{RECORDS WORD ..}``: the row of ``comparisons.csv`` of these
records that has all words among its texts, as a difference in points with its interval. ``\c{RECORDS WORD ..}`` counts
those that are better or worse. A query that finds no row, or several of ``\n``, is an error.
"""

import argparse
import re
import runpy
import shutil
import subprocess
import warnings
from pathlib import Path

import bench
import matplotlib
import pandas as pd
from matplotlib import pyplot as plt

matplotlib.use("Agg")
matplotlib.rcParams.update({"font.size": 8, "pdf.fonttype": 42, "font.family": "serif"})

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results"
RECORDS = {"papers": "study/papers_design", "reference": "reference"}
TEXTS = ("question", "dataset", "method", "against", "use", "images", "metric", "rival", "hparams", "unit", "variant")
LOOKS = {
    "before_gallery clean": "before, clean",
    "before_gallery crop": "before, crops",
    "at_query_time clean": "query, clean",
    "at_query_time crop": "query, crops",
}
DECIDED = ("better", "worse")


def read(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Comparisons that count, and the trials, of records by name."""
    found = bench.results(RESULTS / RECORDS[name])
    rows = found.comparisons
    counted = (rows["chosen"] | ~rows["question"].isin(["system", "confidence"])) & rows["fidelity"].eq("corrected")
    plain = rows[["same_order_as", "ensemble"]].fillna("").eq("").all(axis=1)
    rows = rows[counted & plain]
    words = rows[list(TEXTS)].fillna("").astype(str)
    words["hparams"] = words["hparams"].str.replace(r"\.json#.*", "", regex=True)
    return rows.assign(words=words.apply(frozenset, axis=1), hparams=words["hparams"]), found.trials


def matching(rows: pd.DataFrame, words: str) -> pd.DataFrame:
    """Rows that have all of some words among their texts."""
    return rows[rows["words"].map(set(words.split()).issubset).astype(bool)]


def shown(row: pd.Series) -> str:
    """A difference in points with its interval."""
    values = (f"{100 * row[name]:+.1f}" for name in ("difference", "low", "high"))
    return "${}$ $[{}, {}]$".format(*values)


def numbers(tex: str, rows: dict[str, pd.DataFrame]) -> str:
    """Definitions of all queries of a text."""
    lines = []
    for kind, query in sorted(set(re.findall(r"\\([nc])\{([^}]+)\}", tex))):
        records, words = query.split(maxsplit=1)
        found = matching(rows[records], words)
        if not len(found) or (kind == "n" and len(found) != 1):
            raise SystemExit(f"\\{kind}{{{query}}}: {len(found)} rows\n{found[[*TEXTS]].head(9).to_string()}")
        value = shown(found.iloc[0]) if kind == "n" else str(int(found["outcome"].isin(DECIDED).sum()))
        lines.append(f"\\expandafter\\def\\csname {kind}:{query}\\endcsname{{{value}}}")
    return "\n".join(lines)


def table_of_studies(rows: pd.DataFrame) -> str:
    """Rows of the table of the papers' design: a system by its three settings with five seeds, and by three studies."""
    lines = []
    systems = matching(rows, "system augrc")
    studies = sorted(systems["hparams"].unique())  # the settings of the studies, then `tuned`
    for method in sorted(systems["method"].unique()):
        for words, name in LOOKS.items():
            cells = [matching(systems, f"{method} {words} {study}").iloc[0] for study in studies]
            texts = [shown(cell) for cell in cells]
            marked = [f"{{\\boldmath {t}}}" if c["outcome"] in DECIDED else t for t, c in zip(texts, cells)]
            lines.append(" & ".join((method.replace("_", "\\_"), name, *marked)) + " \\\\")
    return "\n".join((*lines, "\\bottomrule"))


def table_of_systems(rows: pd.DataFrame) -> str:
    """Rows of the table of systems: better/worse by data set, in brackets after Holm's adjustment."""
    lines = []
    for dataset in ("grocery", "cub200", "cars196", "ndigit", "glyphs", "omniglot"):
        own = matching(rows, f"{dataset} augrc tuned")
        unit = next(unit for unit in ("split", "replicate", "seed") if len(matching(own, f"system {unit}")))
        own = matching(own, unit)
        cells, count = [], 0
        for question in ("rival norm", "system"):
            for words in LOOKS if question == "system" else list(LOOKS)[:2]:
                found = matching(own, f"{question} {words}")
                count = max(count, int(found["outcome"].ne("no verdict").sum()))
                held = found["p_holm"] < 0.05
                each = [found["outcome"] == outcome for outcome in DECIDED]
                cells.append(
                    "{}/{} ({}/{})".format(*(int(e.sum()) for e in each), *(int((e & held).sum()) for e in each))
                )
        lines.append(" & ".join((dataset, unit, str(count), *cells)) + " \\\\")
    return "\n".join((*lines, "\\bottomrule"))


def draw_trials(trials: pd.DataFrame, path: Path) -> None:
    """Validation MAP@R and AUROC of the own confidence on validation crops of all trials, coloured by the scale."""
    trials = trials.dropna(subset=["method.scale", "val_confidence_auroc"])
    methods = sorted(trials["method"].unique(), reverse=True)
    figure, axes = plt.subplots(1, len(methods), figsize=(3.5, 1.9), sharey=True, layout="constrained")
    for axis, method in zip(axes, methods):
        own = trials[trials["method"] == method]
        look = {"norm": matplotlib.colors.LogNorm(4, 64), "cmap": "viridis", "s": 7, "lw": 0}
        dots = axis.scatter(100 * own["val_map_at_r"], own["val_confidence_auroc"], c=own["method.scale"], **look)
        best = own.loc[own.groupby("study")["value"].idxmax()]
        axis.scatter(100 * best["val_map_at_r"], best["val_confidence_auroc"], s=28, fc="none", ec="k", lw=0.8)
        axis.axhline(0.5, color="k", lw=0.5)
        axis.set(title=method, ylim=(0, 1))
    axes[0].set_ylabel("AUROC, validation crops")
    figure.supxlabel("validation MAP@R, %", fontsize=8)
    bar = figure.colorbar(dots, ax=axes, ticks=[4, 16, 64], format="%d", label="scale", fraction=0.06)
    bar.minorticks_off()
    figure.savefig(path, metadata={"CreationDate": None})


def main() -> None:
    """Make all parts, and the PDF if there is a pdflatex."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/paper"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    tex = (HERE / "paper.tex").read_text("utf-8")
    warnings.simplefilter("ignore", UserWarning)
    (papers, trials), (reference, _) = read("papers"), read("reference")
    rows = {"papers": papers, "reference": reference}
    (out / "numbers.tex").write_text(numbers(tex, rows))
    (out / "studies.tex").write_text(table_of_studies(papers))
    (out / "systems.tex").write_text(table_of_systems(reference))
    draw_trials(trials, out / "trials.pdf")
    runpy.run_path(str(HERE.parent / "figures" / "systems.py"))["draw"](reference, 7.2).savefig(
        out / "systems.pdf", metadata={"CreationDate": None}
    )
    (out / "paper.tex").write_text(tex)
    if shutil.which("pdflatex") is None:
        print(f"{out}: all parts are there; the PDF needs pdflatex (texlive-latex-recommended)")
        return
    for _ in range(2):  # the second time for references
        said = subprocess.run(
            ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], cwd=out, capture_output=True
        )
        if said.returncode:
            raise SystemExit(f"{out / 'paper.log'}: {said.stdout.decode(errors='replace').partition('! ')[2][:300]}")
    print(out / "paper.pdf")


if __name__ == "__main__":
    main()
