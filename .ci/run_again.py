"""Run the first seed of a contributed archive's experiments again, and compare all values that both runs have.

    uv run python .ci/run_again.py ARCHIVE [options of bench run]

The exit code is 1 if a value differs by more than 0.01, or there is none to compare.
"""

import math
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
from bench.cli import main
from bench.report.frame import collect
from bench.store.files import read_archive
from bench.store.folder import Store
from bench.store.records import KEYS, ROW_KEYS

TOLERANCE = 0.01


def run_again(archive: Path, options: list[str]) -> int:
    """Run and compare; returns the exit code."""
    texts = {place: text for place, text in read_archive(archive).items() if place.endswith(".toml")}
    claimed = collect(Store(archive)).frame
    with tempfile.TemporaryDirectory() as folder:
        for place, text in texts.items():
            file = Path(folder, Path(place).name)
            # As many studies as seeds are tuned anew without that line, and then one seed has one study.
            file.write_text(re.sub(r"(?m)^studies = (?!1$).*\n", "", text.decode()))
            first = first_seed(tomllib.loads(text.decode()), claimed)
            if main(["run", str(file), "--results", f"{folder}/again", *first, *options]):
                return 1
        again = collect(Store(Path(folder, "again"))).frame if texts else claimed[:0]
    both = claimed.merge(again, on=[*KEYS, *ROW_KEYS], suffixes=("", "_again"))
    difference = (both["value"] - both["value_again"]).abs().max()
    print(
        f"{archive}: {len(both)} of {len(claimed)} values were measured again, the largest difference is {difference}"
    )
    return 0 if difference <= TOLERANCE else 1


def first_seed(experiment: dict[str, Any], claimed: pd.DataFrame) -> list[str]:
    """Options for the first seed, with a study as long as those of the archive if replicates were tuned anew."""
    studies = experiment.get("tuning", {}).get("studies", 5)
    each = math.ceil(experiment.get("trials", 50) / experiment.get("seeds", studies))
    anew = experiment.get("hparams", "tuned") == "tuned" and studies > 1
    found = claimed["replicate"].eq("study") & claimed["trials"].eq(each)
    return ["--seeds", "1", "--trials", str(each)] if anew and found.any() else ["--seeds", "1"]


if __name__ == "__main__":
    sys.exit(run_again(Path(sys.argv[1]), sys.argv[2:]))
