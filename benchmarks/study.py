"""Pack the records of a study for the repository: an archive per data set, with brief records of its tests.

    python benchmarks/study.py RESULTS.. --out results/study [--short]

Results of several sessions are packed together: RESULTS may be archives, too, the former ones first. A brief record has
the values that verdicts and tables of methods need, and fewer of other class splits. Records of archives are taken as
they are. A test is left out if a later one has its setting. ``--short`` leaves out the trainings of trials, which
``bench status --check`` then misses (the values of trials stay), and the values that are left out of class splits.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from bench.protocols.rows import CONTROLS
from bench.store.files import write_archive
from bench.store.folder import RECORD, Store
from bench.store.specs import TUNING

LEFT_OUT = ("filter_out_", "edc_", "e_aurc", "coverage_at_risk")
"""Starts of the names of metrics that brief records leave out; filter-out rates with the default confidence stay."""

OF_RISK = ("aurc", "augrc", "risk_at_coverage")
"""Metrics that they have of Recall@1 alone."""

NOT_IN_SHORT = ("aurc", "risk_at_coverage", "spearman_confidences", "open_set_", "ece_", "brier_")
"""Starts of the names of metrics that shorter ones leave out, too."""


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


def brief(test: Any, short: bool) -> Any:
    """A test's record with what verdicts and tables of methods need."""
    changes = {"curves": {}} if short else {}
    return test.brief(partial(wanted, short=short, default=test.role.default_confidence), **changes)


def pack(results: list[Path], out: Path, short: bool) -> None:
    """Write the records that the repository has to archives in a folder."""
    stores = [Store(path) for path in results]
    texts: dict[str, bytes] = {}
    packed: dict[str, bytes] = {}
    for store in stores:
        (packed if store.root.is_file() else texts).update(store.texts())
    for store in stores if short else ():
        for training in store.trainings():
            if training.spec.replicate == TUNING:
                texts.pop(_place(store, training), None)
    kept = texts | packed
    tests = {record.unit: record for store in stores for record in store.tests()}
    latest = {_setting(test): test.unit for test in sorted(tests.values(), key=lambda test: test.finished)}
    for store in stores:
        for record in (*store.tests(), *store.rescorings()):
            place = _place(store, record)
            test = tests[record.spec.test] if record.kind == "rescore" else record
            if latest[_setting(test)] != test.unit:
                kept.pop(place, None)
            elif record is test and not record.brief_of and place not in packed:
                kept[place] = brief(record, short or bool(record.columns.pinned.class_seed)).to_json()
    for dataset in sorted({place.split("/")[1] for place in kept if place.count("/") > 2}):
        own = {place: text for place, text in kept.items() if place.split("/")[1:2] == [dataset]}
        made_by = {place: text for place, text in kept.items() if place.startswith("experiments/")}
        write_archive(out / f"{dataset}.tar.xz", own | made_by)
        print(f"{out / dataset}.tar.xz: {len(own)} files, {(out / f'{dataset}.tar.xz').stat().st_size / 1e6:.2f} MB")


def _place(store: Store, record: Any) -> str:
    """Path of a record in its archive."""
    return (store.unit_dir(record.cell, record.kind, record.unit) / RECORD).relative_to(store.root).as_posix()


def _setting(test: Any) -> tuple[Any, str]:
    return test.cell, test.columns.model_dump_json()


def main() -> None:
    """Pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--short", action="store_true", help="leave out trainings of trials, and more values")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    pack(given.results, given.out, given.short)


if __name__ == "__main__":
    main()
