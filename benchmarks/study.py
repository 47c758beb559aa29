"""Pack the records of the study (docs/study.md), and recompute its tables from what the repository has of them.

    python benchmarks/study.py pack RESULTS.. --out results/study
    python benchmarks/study.py tables results/reference results/study --page docs/study.md --figures docs/figures
    python benchmarks/study.py tables results/study/ndigit-both.tar.xz

Results of several sessions are packed together: RESULTS may be archives, too, the former ones first.

``pack`` writes an archive per data set to ``--out``, with the studies, all trainings, and brief records of the tests:
the values that verdicts and tables of methods need. Rescorings have those of them that their tests lack. Records of
archives are taken as they are. A test is left out if a later one has its setting. With ``--whole`` all records are
written to that file, and its SHA-256 is printed; a gigabyte of records takes over ten minutes. ``--short`` leaves out
the trainings of trials, which ``bench status --check`` then misses (the values of trials stay), and the values that are
otherwise left out of seeds from 5 on.

``tables`` recomputes the comparison of systems over class splits or seeds from records or archives, by code of its
own, without ``bench``. It prints a table for each data set, question and method, or writes the summary of all data sets
to the page and draws every difference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

LEFT_OUT = ("filter_out_", "edc_", "e_aurc", "coverage_at_risk")
"""Starts of the names of metrics that brief records leave out; filter-out rates with the default confidence stay."""

OF_RISK = ("aurc", "augrc", "risk_at_coverage")
"""Metrics that they have of Recall@1 alone."""

NOT_IN_SHORT = (*OF_RISK[::2], "spearman_confidences", "open_set_", "ece_", "brier_")
"""Starts of the names of metrics that shorter ones leave out, too (:func:`is_short`)."""

SEEDS = 5
"""Number of seeds with longer records."""

CONTROLS = ("random", "oracle")
"""Confidences that serve for comparison."""

IMAGE = ("norm", "max_cosine", "max_probability", "neg_entropy")
"""Free confidences before a gallery is seen; at query time they are all others but the method's own."""

FITTED = "+margin+agreement"
"""End of the names of the confidences that rescorings have and tests up to November 2026 lack."""

TUNED_FOR_BOTH = "-both"
"""End of the names of archives whose settings are tuned for retrieval and confidence; others are for retrieval."""

OWN = {
    "before_gallery": ("method",),
    "at_query_time": ("method", "method+margin", "method+margin_fitted", f"method{FITTED}"),
}
QUESTIONS = {
    "before_gallery": "Before the gallery",
    "against_norm": "Before the gallery, against the norm of the plain method",
    "at_query_time": "At query time",
    "of_network": "AUROC of Recall@1 before the gallery, own minus free confidence of the same network",
}
DRAWN = {
    "Before the gallery": {"against_norm": 0.15, "before_gallery": -0.2},
    "At query time": {"at_query_time": 0.0},
}
"""Questions of the figures' panels, and where in a method's line each is drawn."""

MARKERS = {"against_norm": "o", "before_gallery": "s", "at_query_time": "o"}
SHOWN = ("test", "test_crop")
KINDS = {
    "test": "clean",
    "test_crop": "crops",
    "test_blur": "blur",
    "test_jpeg": "JPEG",
    "test_noise": "noise",
    "test_occlusion": "occlusion",
}
DEFAULT = {"before_gallery": "norm", "at_query_time": "margin"}
FEW_ERRORS = 100
"""Wrong validation answers below which the default is taken."""

PLAIN = {"cub200": "arcface", "cars196": "arcface"}
"""Plain methods by data set; ``cosface`` for all others."""

FIGURES = {
    "study_frozen": ("grocery", "cub200", "cars196", "grocery-squeezenet", "cub200-squeezenet"),
    "study_trained": ("grocery-trained", "cub200-trained", "ndigit-both", "glyphs-both"),
    "study_toys": ("ndigit", "glyphs", "omniglot"),
}
"""Names of the figures, and the archives that they show; the tables of the page have them in the same order."""

NETWORKS = {
    "grocery": "frozen Lite0",
    "cub200": "frozen Lite0",
    "cars196": "frozen Lite0",
    "squeezenet": "frozen SqueezeNet",
    "trained": "trained Lite0",
    "both": "tuned for both",
}
"""What was trained, by the last part of an archive's name; ``tuned`` for all others."""


def wanted(row: dict[str, Any], short: bool, default: str) -> bool:
    """Whether a brief record has a value; a shorter one has fewer, and so have corruptions other than the crop."""
    metric, variant = row["metric"], row["variant"]
    if (metric, row["split"]) == ("open_set_auroc", "test"):
        return row["confidence"] not in CONTROLS
    short = short or row["split"].removesuffix("_crop") not in ("test", "val", "train")
    if metric.startswith("filter_out_") and row["confidence"] == default:
        return not short
    if metric.startswith((*LEFT_OUT, *NOT_IN_SHORT) if short else LEFT_OUT) or row["confidence"] in CONTROLS:
        return False
    return metric not in OF_RISK or variant in ("recall_at_1", "recall_at_1,coverage=0.8")


def is_short(test: Any) -> bool:
    """Whether the brief record of a test is a shorter one: on another class split, or of a later seed."""
    seed = test.columns.seed
    return bool(test.columns.pinned.class_seed) or (str(seed).isdecimal() and int(seed) >= SEEDS)


def brief(record: Any, short: bool, classes: int | None = None) -> Any:
    """A test's record with what verdicts and tables of methods need."""
    changes = ({"curves": {}} if short else {}) | ({"test_classes": classes} if classes else {})
    return record.brief(partial(wanted, short=short, default=record.role.default_confidence), **changes)


def brief_rescoring(record: Any, test: Any, short: bool) -> Any:
    """A rescoring's record with the values that a brief record of its test would have, had it been made later."""
    default = test.role.default_confidence
    return record.brief(lambda row: row["confidence"].endswith(FITTED) and wanted(row, short, default))


def pack(results: list[Path], whole: Path | None, out: Path, short: bool = False) -> None:
    """Write the records that the repository has to archives in a folder, and all of them to another archive."""
    from bench.store.files import write_archive
    from bench.store.folder import RECORD, Store
    from bench.store.specs import TUNING

    stores = [Store(path) for path in results]
    # What an archive has in brief, a folder may have as a whole.
    texts: dict[str, bytes] = {}
    packed: dict[str, bytes] = {}
    for store in stores:
        (packed if store.root.is_file() else texts).update(store.texts())
    for store in stores if short else ():
        for training in store.trainings():
            if training.spec.replicate == TUNING:
                path = store.unit_dir(training.cell, training.kind, training.unit) / RECORD
                texts.pop(path.relative_to(store.root).as_posix(), None)
    kept, texts = texts | packed, packed | texts
    if whole is not None:
        write_archive(whole, texts)
        print(f"{whole}: {len(texts)} files, SHA-256 {hashlib.sha256(whole.read_bytes()).hexdigest()}")
    tests = {record.unit: record for store in stores for record in store.tests()}
    latest = {_setting(test): test.unit for test in sorted(tests.values(), key=lambda test: test.finished)}
    for store in stores:
        for record in (*store.tests(), *store.rescorings()):
            place = (store.unit_dir(record.cell, record.kind, record.unit) / RECORD).relative_to(store.root).as_posix()
            test = tests[record.spec.test] if record.kind == "rescore" else record
            if latest[_setting(test)] != test.unit:
                kept.pop(place, None)
            elif record.brief_of or place in packed:
                continue
            elif record.kind == "test":
                classes = record.test_classes or classes_of(store, record)
                kept[place] = brief(record, short or is_short(record), classes).to_json()
            else:
                kept[place] = brief_rescoring(record, test, short or is_short(test)).to_json()
    for dataset in sorted({place.split("/")[1] for place in kept if place.count("/") > 2}):
        own = {place: text for place, text in kept.items() if place.split("/")[1:2] == [dataset]}
        made_by = {place: text for place, text in kept.items() if place.startswith("experiments/")}
        write_archive(out / f"{dataset}.tar.xz", own | made_by)
        print(f"{out / dataset}.tar.xz: {len(own)} files, {(out / f'{dataset}.tar.xz').stat().st_size / 1e6:.2f} MB")


def _setting(test: Any) -> tuple[Any, str]:
    return test.cell, test.columns.model_dump_json()


def classes_of(store: Any, record: Any) -> int:
    """Number of classes of the test images, from the embeddings of a test that was made before records had it."""
    from safetensors import safe_open

    with safe_open(store.unit_dir(record.cell, "test", record.unit) / min(record.files), "np") as file:
        return len(np.unique(file.get_tensor("labels")))


def frame_of(results: Path) -> tuple[pd.DataFrame, dict[str, float]]:
    """Values of all tests, on class splits that are not a data set's own if it has any, and test over training classes.

    The latter is by data set, and 0 where the unit is the seed. The data set of an archive is the archive's name, as
    one that is named ``grocery-trained.tar.xz`` has networks that another of the same data set has not.
    """
    texts: list[tuple[str, bytes]] = []
    for path in [results] if results.is_file() else [*results.glob("*.tar.xz"), *results.rglob("record.json")]:
        if path.name == "record.json":
            texts.append(("", path.read_bytes()))
            continue
        with tarfile.open(path) as archive:
            files = (archive.extractfile(member) for member in archive if member.name.endswith("record.json"))
            texts += [(path.name.removesuffix(".tar.xz"), file.read()) for file in files if file]
    records = [json.loads(text) | {"archive": name} for name, text in texts]
    trained = {record["unit"]: record["num_classes"] for record in records if record["kind"] == "train"}
    rows: list[dict[str, Any]] = []
    ratios = {}
    rescored: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record["kind"] == "rescore":
            later = [row for row in record["rows"] if row["confidence"].endswith(FITTED)]
            rescored.setdefault(record["spec"]["test"], []).extend(later)
    for record in records:
        columns = record.get("columns", {})
        number = columns.get("pinned", {}).get("settings", {}).get("data.class_seed")
        tuned = columns.get("hparams") == "tuned" and columns["fidelity"] == "corrected"
        aim = "both" if record["archive"].endswith(TUNED_FOR_BOTH) else "retrieval"
        asked = number or (tuned and columns["pinned"]["tune_for"] == aim)
        if record["kind"] == "test" and asked and not columns["ensemble"]:
            shared = {key: columns[key] for key in ("method", "seed")} | {"class_split": number or 0}
            shared["dataset"] = record["archive"] or columns["dataset"]
            shared["finished"] = record["finished"]
            shared["own_scorer"] = record["role"]["primary_scorer"]
            known = [*record["rows"], *rescored.get(record["unit"], ())]
            rows += [row | shared for row in known if row["confidence"] not in CONTROLS]
            if number and "test_classes" in record and (classes := trained.get(record["spec"]["train"][0])):
                ratios[shared["dataset"]] = record["test_classes"] / classes
    if not rows:
        sys.exit(f"{results}: no tests at tuned settings (those for both aims: in an archive *{TUNED_FOR_BOTH}.tar.xz)")
    frame = pd.DataFrame(rows).dropna(subset=["value"])
    split = frame["class_split"].groupby(frame["dataset"]).transform("max") > 0
    frame = frame[~split | (frame["class_split"] > 0)]
    # A seed that was tested again, on more corruptions, say, counts once.
    of_test = frame.groupby(["dataset", "method", "class_split", "seed"])["finished"]
    return frame[frame["finished"] == of_test.transform("max")], ratios


class Tested:
    """Values of one method on one class split, by split of the images, metric, confidence and seed."""

    def __init__(self, rows: pd.DataFrame) -> None:
        scorers = {"cosine", rows["own_scorer"].iloc[0]} & set(rows.loc[rows["metric"] == "confidence_auroc", "scorer"])
        held_out = rows[rows["split"].str.startswith("val") & (rows["metric"] == "recall_at_1")]
        means = held_out.groupby("scorer")["value"].mean()
        ordered = sorted(scorers, key=lambda name: (name != "cosine", name))  # the cosine, if they are equal
        self.scorer = max(ordered, key=lambda name: means.get(name, -1.0)) if len(scorers) > 1 else ordered[0]
        self.queries = held_out.groupby("split")["n_queries"].mean()
        meant = rows["variant"] == np.where(rows["metric"] == "augrc", "recall_at_1", "")
        index = ["split", "metric", "confidence", "seed"]
        self.rows = rows[meant & (rows["scorer"] == self.scorer)].set_index(index)["value"].sort_index()
        by_own = rows[meant & (rows["scorer"] == rows["own_scorer"]) & (rows["split"] == "test")]
        by_own = by_own[by_own["confidence"] == ""].set_index(["metric", "seed"])["value"].sort_index()
        self.by_own = {metric: by_own.loc[metric] for metric in ("map_at_r", "recall_at_1")}

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

    def pair(self, rival: Tested, question: str) -> tuple[str, str]:
        """Names of the own confidence and of the rival's free one that validation chose."""
        own = self.chosen(OWN[question], question, free=False)
        return own, rival.chosen(rival.free(question), question, free=True)

    def is_free(self) -> bool:
        """Whether the own confidence orders images as a free one does: it has its AUROC, up to rounding."""
        own = self.of("test", "confidence_auroc", "method")
        others = (self.of("test", "confidence_auroc", name) for name in IMAGE)
        return any(len(other) and (own - other).abs().max() <= 5e-4 for other in others)

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


Comparisons = dict[str, tuple[float, ...]]
"""Mean, ends of the interval, p-value, p-value adjusted by Holm, and number of splits or seeds, by method."""


def difference(own: Tested, rival: Tested, question: str, images: str) -> pd.Series:
    """By seed, how much better a method is: of two systems, or of the confidences of one network."""
    if question == "of_network":
        name, free = own.pair(own, "before_gallery")
        value = 0.5 if free == "constant" else own.of(images, "confidence_auroc", free)
        return own.of(images, "confidence_auroc", name) - value
    if question == "against_norm":
        return rival.risk(images, "norm") - own.risk(images, "method")
    name, free = own.pair(rival, question)
    return rival.risk(images, free) - own.risk(images, name)


def compared(
    tested: dict[tuple[str, int], Tested], plain: str, question: str, images: str, ratio: float
) -> Comparisons:
    """The comparison of every method that has a confidence of its own with the plain one, by mean difference."""
    rows: dict[str, tuple[float, ...]] = {}
    for method in sorted({name for (name, _), one in tested.items() if name != plain and not one.is_free()}):
        values: list[float] = []
        for number in sorted(number for name, number in tested if name == method):
            own, rival = tested[method, number], tested.get((plain, number))
            held_out = (own.of("val", "recall_at_1"), own.of("val", "confidence_auroc", "method"))
            if rival is None or not all(map(len, held_out)):  # some old tests lack them
                continue
            better = difference(own, rival, question, images).dropna()
            values += [float(better.mean())] if number else better.tolist()
        if values:
            rows[method] = (*summary(values, ratio), len(values))
    return ordered(rows)


def ordered(rows: dict[str, tuple[float, ...]]) -> Comparisons:
    """Comparisons by mean difference, the largest first, with p-values adjusted by Holm."""
    adjusted = holm(pd.Series({name: row[3] for name, row in rows.items()}, dtype=float))
    by_mean = sorted(rows.items(), key=lambda item: -item[1][0])
    return {name: (*row[:4], float(adjusted[name]), row[4]) for name, row in by_mean}


def cell(row: tuple[float, ...], whole: bool, digits: int = 2) -> str:
    """A difference in points, with its interval if ``whole``, and stars: it excludes 0, also after adjustment."""
    mean, low, high, _, adjusted, _ = row
    ends = f" [{100 * low:+.{digits}f}, {100 * high:+.{digits}f}]" if whole else ""
    return f"{100 * mean:+.{digits}f}{ends}" + r"\*" * (0 if low <= 0 <= high else 2 if adjusted < 0.05 else 1)


def table(found: dict[str, Comparisons], with_p: bool) -> Iterator[str]:
    """Lines of a Markdown table, a column per kind of images; a method with fewer splits or seeds has their number."""
    most = max(row[5] for row in found["test"].values())
    head = ["method", *(KINDS[images] for images in found)]
    yield "| " + " | ".join([*head[:2], "p, Holm", *head[2:]] if with_p else head) + " |"
    yield "|---" * (len(head) + with_p) + "|"
    for method, (*_, adjusted, number) in found["test"].items():
        of_kinds = ((images in ("test", "test_crop"), rows.get(method)) for images, rows in found.items())
        cells = [cell(row, whole) if row else "" for whole, row in of_kinds]
        name = f"`{method}`" + (f" ({number:.0f})" if number < most else "")
        yield "| " + " | ".join([name, cells[0], *([f"{adjusted:.2g}"] if with_p else []), *cells[1:]]) + " |"


class Compared:
    """The comparisons of one data set: of systems by question and kind of images, and of retrieval."""

    def __init__(self, dataset: str, rows: pd.DataFrame, ratio: float) -> None:
        self.number = int(rows["class_split"].max())
        self.plain = PLAIN.get(dataset.split("-")[0], "cosface")
        self.title = f"{dataset.split('-')[0]}, {NETWORKS.get(dataset.split('-')[-1], 'tuned')}"
        self.tested = {key: Tested(rows) for key, rows in rows.groupby(["method", "class_split"])}
        self.ratio = ratio if self.number else 0.0
        kinds = [images for images in KINDS if images in set(rows["split"])]
        self.systems = {
            question: {images: compared(self.tested, self.plain, question, images, self.ratio) for images in kinds}
            for question in QUESTIONS
        }

    def retrieval(self, rival: str, metric: str) -> Comparisons:
        """Every method's values on clean images under its own score minus those of a rival."""
        found = {}
        for method in {name for name, _ in self.tested} - {rival}:
            numbers = [number for name, number in self.tested if name == method and (rival, number) in self.tested]
            pairs = ((self.tested[method, number].by_own, self.tested[rival, number].by_own) for number in numbers)
            values = [(own[metric] - other[metric]).dropna() for own, other in pairs]
            of_unit = [float(each.mean()) for each in values] if self.number else [*values[0]] if values else []
            if of_unit:
                found[method] = (*summary(of_unit, self.ratio), len(of_unit))
        return ordered(found)


def every(results: list[Path]) -> dict[str, Compared]:
    """Comparisons by data set."""
    found = {}
    for path in results:
        frame, ratios = frame_of(path)
        for dataset, rows in frame.groupby("dataset"):
            found[str(dataset)] = Compared(str(dataset), rows, ratios.get(str(dataset), math.nan))
    return found


def print_tables(found: dict[str, Compared]) -> None:
    """Print, for each data set and question, the comparison of every method with the plain one."""
    for dataset, of_dataset in found.items():
        print(f"## {dataset}: plain method {of_dataset.plain}\n")
        for question, asked in QUESTIONS.items():
            print(f"{asked}:\n\n" + "\n".join(table(of_dataset.systems[question], of_dataset.number > 0)) + "\n")
        said = f"MAP@R and Recall@1 under the own score of each method, percent: {means(of_dataset.tested)}."
        print(textwrap.fill(said, 120, break_on_hyphens=False) + "\n")


def counts(rows: Comparisons) -> str:
    """Numbers of methods that are better and worse, in brackets after Holm's adjustment."""
    signs = [(low > 0, high < 0, adjusted < 0.05) for _, low, high, _, adjusted, _ in rows.values()]
    better, worse = ([sure for *of, sure in signs if of[place]] for place in (0, 1))
    return f"{len(better)}/{len(worse)} ({sum(better)}/{sum(worse)})"


def systems_table(found: dict[str, Compared]) -> Iterator[str]:
    """Lines of the page's table of systems: in how many methods a learned confidence is better and worse."""
    questions = {"against_norm": "norm", "before_gallery": "chosen", "at_query_time": "query"}
    kinds = ("test", "test_crop")
    yield "| data | methods | " + " | ".join(f"{head}, {KINDS[k]}" for head in questions.values() for k in kinds) + " |"
    yield "|---|--:" + "|---" * len(questions) * len(kinds) + "|"
    for one in found.values():
        cells = [counts(one.systems[question][images]) for question in questions for images in kinds]
        yield f"| {one.title} | {len(one.systems['before_gallery']['test'])} | " + " | ".join(cells) + " |"


def retrieval_table(found: dict[str, Compared]) -> Iterator[str]:
    """Lines of the page's table of retrieval: the plain method, against the network as it is and the best other one."""
    yield "| data | plain method | minus untrained: MAP@R | Recall@1 | highest other MAP@R, minus plain |"
    yield "|---" * 5 + "|"
    for one in found.values():
        metrics = ("map_at_r", "recall_at_1")
        plain = [
            np.mean([each.by_own[metric].mean() for (name, _), each in one.tested.items() if name == one.plain])
            for metric in metrics
        ]
        gains = [one.retrieval("untrained", metric).get(one.plain) for metric in metrics]
        best, gain = next(iter(one.retrieval(one.plain, "map_at_r").items()))
        cells = [f"`{one.plain}` {100 * plain[0]:.1f}, {100 * plain[1]:.1f}"]
        cells += [cell(each, whole=True, digits=1) if each else "" for each in gains]
        yield f"| {one.title} | " + " | ".join([*cells, f"`{best}` {cell(gain, whole=True, digits=1)}"]) + " |"


def write_page(found: dict[str, Compared], page: Path) -> None:
    """Write both tables to a page, between its marks."""
    text = page.read_text("utf-8")
    for name, lines in (("systems", systems_table(found)), ("retrieval", retrieval_table(found))):
        place = re.compile(rf"(?<=<!-- tables of {name} -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
        block = "\n".join(lines)
        text, number = place.subn(lambda _, block=block: block, text)
        if number != 1:
            sys.exit(f"{page} has {number} times the marks of the table of {name}, not once")
    page.write_text(text, "utf-8")


def means(tested: dict[tuple[str, int], Tested]) -> str:
    """Means of MAP@R and Recall@1 on clean test images under the own scores, as ``splits.csv`` has, the best first."""
    values = [[one.by_own[metric].mean() for metric in ("map_at_r", "recall_at_1")] for one in tested.values()]
    index = pd.MultiIndex.from_tuples(tested)
    of_methods = (100 * pd.DataFrame(values, index=index)).groupby(level=0).mean().sort_values(0, ascending=False)
    return "; ".join(f"`{name}` {map_at_r:.1f}, {recall:.1f}" for name, map_at_r, recall in of_methods.itertuples())


def draw(found: dict[str, Compared], path: Path) -> None:
    """Draw the differences of systems with their intervals, a line of panels per data set."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.rcParams |= {"svg.hashsalt": "study", "svg.fonttype": "none"}
    panels = {f"{name}, {KINDS[images]}": (questions, images) for name, questions in DRAWN.items() for images in SHOWN}
    sizes = [len(one.systems["at_query_time"]["test"]) for one in found.values()]
    figure, axes = plt.subplots(
        len(found), len(panels), figsize=(10, 0.6 * len(sizes) + 0.21 * sum(sizes)), squeeze=False, sharex="col",
        sharey="row", layout="constrained", gridspec_kw={"height_ratios": [size + 1 for size in sizes]},
    )  # fmt: skip
    for line, one in zip(axes, found.values()):
        names = [*one.systems["at_query_time"]["test"]][::-1]
        for axis, (title, (questions, images)) in zip(line, panels.items()):
            for question, offset in questions.items():
                rows = one.systems[question][images]
                for place, (mean, low, high, _, adjusted, _) in (
                    (names.index(name), row) for name, row in rows.items()
                ):
                    colour = "#0072B2" if low > 0 else "#D55E00" if high < 0 else "#666666"
                    face = colour if adjusted < 0.05 and not low <= 0 <= high else "white"
                    style = {"color": colour, "markerfacecolor": face, "markersize": 4}
                    axis.plot([100 * low, 100 * high], [place + offset] * 2, color=colour, linewidth=1.2)
                    axis.plot(100 * mean, place + offset, MARKERS[question], **style)
            axis.axvline(0, color="black", linewidth=0.8)
            axis.set_yticks(range(len(names)), names, fontsize=7)
            axis.tick_params(axis="x", labelsize=7, labelbottom=True)
            if axis in axes[0]:
                axis.set_title(title, fontsize=8)
        line[0].set_ylabel(one.title.replace(", ", "\n"), fontsize=8)
    said = (
        "AUGRC, plain minus method, points; above 0 the method with its own confidence is better",
        "before the gallery: circles against the norm, squares against the confidence that validation chose",
        "filled: also after Holm's adjustment",
    )
    figure.supxlabel("\n".join(said), fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="write archives")
    packing.add_argument("results", nargs="+", type=Path)
    packing.add_argument("--whole", type=Path, help="write all records to this archive, too")
    packing.add_argument("--short", action="store_true", help="leave out trainings of trials, and more values")
    packing.add_argument("--out", type=Path, required=True)
    making = commands.add_parser("tables", help="print the tables of systems")
    making.add_argument("results", nargs="+", type=Path, help="results folders, some with archives, or archives")
    making.add_argument("--figures", type=Path, help="draw the differences, to files in this folder")
    making.add_argument(
        "--page", type=Path, help="write the summary to this page, between its marks, and print nothing"
    )
    given = parser.parse_args()
    if given.command == "pack":
        pack(given.results, given.whole, given.out, given.short)
        return
    found = every(given.results)
    if given.page is None and given.figures is None:
        print_tables(found)
        return
    missing = [name for names in FIGURES.values() for name in names if name not in found]
    if missing:
        sys.exit(f"the page and its figures need records of {', '.join(missing)}, too: results/reference results/study")
    if given.page is not None:
        write_page({name: found[name] for names in FIGURES.values() for name in names}, given.page)
    for figure, names in FIGURES.items() if given.figures else ():
        draw({name: found[name] for name in names}, given.figures / f"{figure}.svg")


if __name__ == "__main__":
    sys.exit(main())
