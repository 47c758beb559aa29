"""Run one list of commands at several commits and compare everything that a user sees of the results.

Each commit is cloned, gets an environment of its own, and runs the commands one after the other on this machine. The
script prints a hash for every result, and says which differ. A refactoring has to leave all of them equal.

    python benchmarks/same_values.py 3fafa7f HEAD --work DIR --packs PACKS

``PACKS`` is a folder with ``cub200_first50`` (photographs in the layout of CUB-200-2011) and
``weights/squeezenet1_0_imagenet.safetensors``; without it the run on photographs is left out. Finished commits and
cases are kept in ``--work``, so that the same command goes on where it stopped. Tables of committed results are
compared by ``.ci/same_tables``. Standard library only.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

RUNS = {
    "main": "--method dul_cls --dataset ndigit --seeds 5 --studies 1",
    "all_methods": "--method all --dataset ndigit_smoke --seeds 2 --hparams default",
    "scorers_corruptions": "--method cosface,pfe,dul_cls --dataset ndigit_smoke --seeds 2 --trials 6 --studies 1"
    " --scorers all --corruptions all",
    "mlrc": "--method cosface,pfe --dataset ndigit_smoke --preset mlrc --seeds 2 --trials 2",
    "per": "--method cosface,dul_cls --dataset ndigit_smoke --preset per --seeds 2 --trials 2",
    "standardized": "--method margin,el_nivmf --dataset ndigit_smoke --protocol standardized --seeds 2"
    " --hparams default",
    "released": "--method hib,pfe,vmf_loss,el_nivmf,arcface --dataset ndigit_smoke --fidelity released --seeds 2"
    " --hparams default",
    "frozen": "--method cosface,scf --dataset cub200 --frozen --seeds 2 --trials 2 --studies 1 {photographs}",
    "tune_both": "--method dul_cls,pfe --dataset ndigit_smoke --tune-for both --seeds 2 --trials 4 --studies 1",
    "sweep": "--method cosface --dataset ndigit_smoke --seeds 2 --hparams default --sweep method.margin=0.2,0.4",
    "options": "--method dul_cls --dataset ndigit_smoke --seeds 2 --trials 2 --studies 1 --sampler tpe"
    " --select-by l2 --dim 32 --set optim.epochs=3",
    "photographs": "--method cosface,dul_cls --dataset cub200 --seeds 2 --hparams default --set optim.epochs=2"
    " {photographs}",
}
"""Options of ``bench run`` by case; ``{photographs}`` are those that name the pack of photographs."""

PHOTOGRAPHS = (
    "--allow-partial --data-root {data} --backbone squeezenet1_0 --weights"
    " {packs}/weights/squeezenet1_0_imagenet.safetensors --set data.image_size=64 --set data.resize=64"
    " --set data.fit=squash --set data.epoch_repeats=1 --set data.classes_per_batch=8"
)

FILES = """
import sys
import numpy as np, pandas as pd
from safetensors.numpy import save_file
out = sys.argv[1]
for seed, name in ((0, "a"), (1, "b")):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(20), 10)
    x = (2 * np.eye(20)[np.random.default_rng(9).permutation(20)[y]] + rng.normal(size=(200, 20))).astype("float32")
    c = np.linalg.norm(x, axis=1) + rng.normal(size=200).astype("float32")
    v = np.exp(rng.normal(size=(200, 20))).astype("float32")
    arrays = {"embeddings": x, "labels": y, "confidence": c, "variance": v}
    np.savez(f"{out}/{name}.npz", **arrays)
    save_file(arrays, f"{out}/{name}.safetensors")
    frame = pd.DataFrame({"labels": y, "confidence": c, "embeddings": list(x), "variance": list(v)})
    frame.to_parquet(f"{out}/{name}.parquet")
"""

SCORES = {
    "npz": "a.npz --metrics all",
    "safetensors": "a.safetensors --scorers cosine,l2,mls",
    "parquet": "a.parquet",
    "two_files": "a.npz b.npz",
}
"""Arguments of ``bench score --json`` by case."""


class Checkout:
    """A clone of one commit with an environment of its own."""

    def __init__(self, commit: str, work: Path, packs: Path | None) -> None:
        self.commit = _output("git", "-C", REPOSITORY, "rev-parse", "--short=7", commit)
        self.folder, self.packs = work / self.commit, packs
        self.tree = self.folder / "tree"
        self.found = self.folder / "results.json"
        self.results: dict[str, dict[str, object]] = json.loads(self.found.read_text()) if self.found.exists() else {}
        if not self.tree.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            _output("git", "clone", "--quiet", "--shared", REPOSITORY, self.tree)
            _output("git", "-C", self.tree, "checkout", "--quiet", "--detach", self.commit)
        environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
        self.environment = {**environment, "PYTHONHASHSEED": "0", "COLUMNS": "120"}
        self.run("uv sync --quiet --locked --all-groups")

    def run(self, command: str) -> str:
        """Standard output of a command that is run in the clone."""
        done = subprocess.run(shlex.split(command), cwd=self.tree, env=self.environment, capture_output=True)
        if done.returncode:
            raise SystemExit(f"{self.commit}: {command}\n{done.stderr.decode()[-4000:]}")
        return done.stdout.decode()

    def bench(self, arguments: str) -> str:
        """Standard output of the command ``bench``."""
        return self.run(f"uv run --no-sync bench {arguments}")

    def case(self, name: str, make: object, *arguments: object) -> None:
        """Make the result of a case, unless it is there."""
        if name in self.results:
            return
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        values: dict[str, str] = make(*arguments)  # type: ignore[operator]
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        texts = self.folder / "texts"
        texts.mkdir(exist_ok=True)
        for key, text in values.items():
            (texts / f"{name}.{key}.txt").write_text(text)
        self.results[name] = {
            "wall": round(time.perf_counter() - start, 1),
            "processor": round(processor, 1),
            **{key: hashlib.sha256(text.encode()).hexdigest()[:16] for key, text in values.items()},
        }
        self.found.write_text(json.dumps(self.results, indent=1))
        print(self.commit, name, json.dumps(self.results[name]), flush=True)

    def metrics(self, name: str) -> dict[str, str]:
        """The table ``metrics.csv`` of one case of :data:`RUNS`, without the ids of units."""
        folder = self.folder / "runs" / name
        data = self.folder / "data"
        photographs = PHOTOGRAPHS.format(data=data, packs=self.packs)
        if "{photographs}" in RUNS[name] and not data.exists():
            source = f"{self.packs}/cub200_first50/CUB_200_2011"
            self.bench(f"data import cub200 {source} --data-root {data} --allow-partial")
        self.bench(f"run {RUNS[name].format(photographs=photographs)} --results {folder}")
        return {"metrics": table(folder / "metrics.csv")}

    def scores(self) -> dict[str, str]:
        """What ``bench score --json`` prints of files in several formats."""
        files = self.folder / "files"
        files.mkdir(exist_ok=True)
        maker = self.folder / "make_files.py"
        maker.write_text(FILES)
        self.run(f"uv run --no-sync python {maker} {files}")
        printed = {}
        for name, arguments in SCORES.items():
            first, *rest = arguments.split(" ")
            named = [str(files / part) if (files / part).is_file() else part for part in (first, *rest)]
            printed[name] = self.bench(f"score --json {' '.join(named)}").replace(str(self.folder), "")
        return printed


def table(path: Path) -> str:
    """Rows of a CSV file as text, sorted, without the ids of units."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [name for name in (rows[0] if rows else {}) if name != "unit"]
    return "\n".join([",".join(columns), *sorted(",".join(row[name] for name in columns) for row in rows)]) + "\n"


def _output(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("commits", nargs="+", help="commits of this repository, the first is compared with the others")
    parser.add_argument("--work", type=Path, required=True, help="folder of clones and results")
    parser.add_argument("--packs", type=Path, help="folder with photographs and weights")
    parser.add_argument("--cases", default="", help="names of cases, comma separated; all if not given")
    options = parser.parse_args()
    work, packs = options.work.resolve(), options.packs.resolve() if options.packs else None
    wanted = [name for name in options.cases.split(",") if name]
    checkouts = [Checkout(commit, work, packs) for commit in options.commits]
    for name in wanted or ["scores", *RUNS]:
        for checkout in checkouts:
            if name in RUNS:
                if packs is not None or "{photographs}" not in RUNS[name]:
                    checkout.case(name, checkout.metrics, name)
            else:
                checkout.case(name, getattr(checkout, name))
    first, *others = checkouts
    different = 0
    for other in others:
        for name, values in first.results.items():
            for key, value in values.items():
                if key not in ("wall", "processor") and name in other.results:
                    equal = other.results[name].get(key) == value
                    different += not equal
                    print(f"{'equal    ' if equal else 'DIFFERENT'} {name}.{key} {value} {first.commit} {other.commit}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
