"""Pack the records of the study (docs/study.md), and make its tables from what the repository has of them.

    python benchmarks/study.py pack RESULTS.. --whole study.tar.xz --out results/reference
    python benchmarks/study.py tables results/reference/splits.csv.xz > tables.md

``pack`` writes all records to ``--whole`` and prints its SHA-256. To ``--out`` it writes an archive per data set with
the studies and with the trainings and tests of the own class split, and ``splits.csv.xz``: of every test on another
class split, what systems are compared by, to 5 digits.

``tables`` recomputes the comparison of systems from that file alone, by code of its own: no part of ``bench`` is used.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

METRICS = {"recall_at_1": "", "map_at_r": "", "augrc": "recall_at_1", "confidence_auroc": "", "spearman_crop": ""}
"""Metrics of the file, with their variants."""

COLUMNS = ["dataset", "method", "base", "backbone", "class_split", "seed", "split", "scorer", "metric", "confidence"]
IMAGE = ("norm", "max_cosine", "max_probability", "neg_entropy")
"""Free confidences before a gallery is seen; at query time they are all others but the method's own."""

OWN = {"before_gallery": ("method",), "at_query_time": ("method", "method+margin", "method+margin_fitted")}
DEFAULT = {"before_gallery": "norm", "at_query_time": "margin"}
FEW_ERRORS = 100
"""Wrong validation answers below which the default is taken."""

ENSEMBLES = ("deep_ensemble",)
"""Methods of several networks, which are not compared."""

PLAIN = {"cub200": "arcface", "cars196": "arcface"}
"""Plain methods by data set; ``cosface`` for all others."""


def pack(results: list[Path], whole: Path, out: Path) -> None:
    """Write all records to an archive, and what the repository has of them to a folder."""
    from bench.report.frame import collect
    from bench.report.splits import over_splits
    from bench.store.files import write_archive
    from bench.store.folder import Store

    stores = [Store(path) for path in results]
    texts = {place: text for store in stores for place, text in store.texts().items()}
    write_archive(whole, texts)
    print(f"{whole}: {len(texts)} files, SHA-256 {hashlib.sha256(whole.read_bytes()).hexdigest()}")
    parts = []
    for store in stores:
        found = collect(store)
        roles = {record.unit: record for record in found.splits}
        ratios = {each.contender.method: each.test_over_train for each in over_splits(store, found)}
        frame = type(found).of(found.splits).frame
        frame = frame[[METRICS.get(metric) == variant for metric, variant in zip(frame["metric"], frame["variant"])]]
        frame = frame[~frame["split"].str.startswith("train") & ~frame["confidence"].isin(("random", "oracle"))]
        records = [roles[unit] for unit in frame["unit"]]
        parts.append(
            frame.assign(
                class_split=[record.columns.pinned.class_seed for record in records],
                own_scorer=[record.role.primary_scorer for record in records],
                test_over_train=frame["method"].map(ratios).round(6),
                value=[float(f"{value:.5g}") for value in frame["value"]],
            )
        )
        for dataset in frame["dataset"].unique():
            own = {
                place: text
                for place, text in store.texts().items()
                if f"/{dataset}/" in f"/{place}" or place.startswith("experiments/")
                if b'class_seed"' not in text
            }
            write_archive(out / f"{dataset}.tar.xz", own)
            print(f"{out / dataset}.tar.xz: {len(own)} files")
    columns = [*COLUMNS, "value", "n_queries", "own_scorer", "test_over_train"]
    table = pd.concat(parts)[columns].sort_values(COLUMNS)
    table.to_csv(out / "splits.csv.xz", index=False)
    print(f"{out / 'splits.csv.xz'}: {len(table)} values")


class Tested:
    """Values of one method on one class split, by split of the images, metric, confidence and seed."""

    def __init__(self, rows: pd.DataFrame) -> None:
        scorers = {"cosine", rows["own_scorer"].iloc[0]} & set(rows.loc[rows["metric"] == "confidence_auroc", "scorer"])
        held_out = rows[rows["split"].str.startswith("val") & (rows["metric"] == "recall_at_1")]
        means = held_out.groupby("scorer")["value"].mean()
        self.scorer = max(scorers, key=lambda name: means.get(name, -1.0)) if len(scorers) > 1 else min(scorers)
        self.queries = held_out.groupby("split")["n_queries"].mean()
        self.rows = (
            rows[rows["scorer"] == self.scorer]
            .set_index(["split", "metric", "confidence", "seed"])["value"]
            .sort_index()
        )

    def free(self, question: str) -> tuple[str, ...]:
        """Names of the free confidences that a question allows."""
        others = (each for each in self.rows.index.levels[2] if each not in ("", *IMAGE))
        return IMAGE if question == "before_gallery" else tuple(e for e in others if not e.startswith("method"))

    def of(self, split: str, metric: str, confidence: str = "") -> pd.Series:
        """Values by seed."""
        key = (split, metric, confidence)
        return self.rows.loc[key] if key in self.rows.index.droplevel(3) else pd.Series(dtype=float)

    def chosen(self, names: tuple[str, ...], question: str, free: bool) -> str:
        """Confidence of the best mean AUROC on validation images; the default if few answers are wrong."""
        splits = sorted(split for split in self.rows.index.levels[0] if split.startswith("val"))
        names = tuple(name for name in names if len(self.of("val", "confidence_auroc", name)))
        wrong = sum(self.queries[split] * (1 - self.of(split, "recall_at_1").mean()) for split in splits)
        default = DEFAULT[question] if free else names[0]
        if wrong < FEW_ERRORS and default in names:
            return default
        means = {"constant": 0.5} if free else {}
        means |= {
            name: np.mean(np.concatenate([self.of(split, "confidence_auroc", name) for split in splits]))
            for name in names
        }
        return max(means, key=lambda name: means[name])

    def risk(self, split: str, name: str) -> pd.Series:
        """AUGRC by seed."""
        if name == "constant":
            return 0.5 * (1 - self.of(split, "recall_at_1"))
        return self.of(split, "augrc", name)


def summary(values: list[float], ratio: float) -> tuple[float, float, float, float]:
    """Mean, ends of the interval of Nadeau and Bengio, and p-value."""
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return mean, math.nan, math.nan, math.nan
    error = float(np.std(values, ddof=1)) * math.sqrt(1 / n + ratio)
    half = stats.t.ppf(0.975, n - 1) * error
    return mean, mean - half, mean + half, float(2 * stats.t.sf(abs(mean) / error, n - 1)) if error else math.nan


def holm(p: pd.Series) -> pd.Series:
    """P-values adjusted by Holm's method."""
    known = p.dropna().sort_values()
    stepped = (known * np.arange(len(known), 0, -1)).cummax().clip(upper=1)
    return stepped.reindex(p.index)


def tables(path: Path) -> None:
    """Print, for each data set, question and kind of images, the comparison of every method with the plain one."""
    frame = pd.read_csv(path, keep_default_na=False, na_values={"value": [""], "n_queries": [""]})
    for dataset, of_dataset in frame.groupby("dataset"):
        ratio = float(of_dataset["test_over_train"].max())
        tested = {key: Tested(rows) for key, rows in of_dataset.groupby(["method", "class_split"])}
        plain = PLAIN.get(str(dataset), "cosface")
        methods = sorted({method for method, _ in tested} - {plain, *ENSEMBLES})
        splits = sorted({number for _, number in tested})
        print(f"## {dataset}: {len(splits)} class splits, plain method {plain}\n")
        for metric in ("map_at_r", "recall_at_1"):
            print(f"{metric}, percent: " + ", ".join(_mean(tested, name, splits, metric) for name in [plain, *methods]))
            print()
        for question in OWN:
            for images in ("test", "test_crop"):
                rows = {}
                for method in methods:
                    values = []
                    for number in splits:
                        own, rival = tested.get((method, number)), tested.get((plain, number))
                        if own is None or rival is None or not len(own.of("val", "confidence_auroc", "method")):
                            continue
                        name = own.chosen(OWN[question], question, free=False)
                        free = rival.chosen(rival.free(question), question, free=True)
                        values.append(float((rival.risk(images, free) - own.risk(images, name)).mean()))
                    if values:
                        rows[method] = (*summary(values, ratio), len(values), sum(value > 0 for value in values))
                print(f"### {question}, {images}\n")
                print("| method | AUGRC, plain - method, points | p | p, Holm | splits | better on |")
                print("|---|---|---|---|---|---|")
                adjusted = holm(pd.Series({name: row[3] for name, row in rows.items()}, dtype=float))
                for name, (mean, low, high, p, n, better) in sorted(rows.items(), key=lambda item: -item[1][0]):
                    ends = f"{100 * mean:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
                    print(f"| `{name}` | {ends} | {p:.3g} | {adjusted[name]:.3g} | {n} | {better} |")
                print()


def _mean(tested: dict[tuple[str, int], Tested], name: str, splits: list[int], metric: str) -> str:
    found = [tested[name, number].of("test", metric).mean() for number in splits if (name, number) in tested]
    return f"`{name}` {100 * np.mean(found):.1f}"


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="write archives and the table of class splits")
    packing.add_argument("results", nargs="+", type=Path)
    packing.add_argument("--whole", type=Path, required=True)
    packing.add_argument("--out", type=Path, required=True)
    making = commands.add_parser("tables", help="print the tables of systems")
    making.add_argument("csv", type=Path)
    given = parser.parse_args()
    if given.command == "pack":
        pack(given.results, given.whole, given.out)
    else:
        tables(given.csv)


if __name__ == "__main__":
    sys.exit(main())
