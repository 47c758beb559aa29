"""Regret of a tuning study after 10, 20 and 50 trials: Gaussian process, random and quasi-random search.

    python benchmarks/regret.py results/reference/ndigit.tar.xz [--method dul_cls] [--repeats 30]

A surrogate of validation MAP@R, a random forest, is fitted to the trials of a recorded study. Simulated studies propose
as ``bench run`` does; every trial has the surrogate's value plus noise with the SD of seeds at the best setting. Regret
is the surrogate's largest value minus that at the setting that a study chooses, in points of MAP@R: the mean over
repeats and its 95 % interval. About half a processor minute a repeat.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from bench.engine.tuning import Told, propose
from bench.protocols.recipes._base import Range
from bench.store.specs import Point
from scipy import stats
from sklearn.ensemble import RandomForestRegressor

SEARCHES = {
    "random": (1, 50, None),
    "quasi-random": (1, 50, 50),
    "ten random, then process, by 4": (4, 50, None),
    "four at start, then process, by 4": (4, 50, 4),
    "the same, by 2": (2, 20, 4),
    "the same, one at a time": (1, 20, 4),
}
"""Trials in a batch, trials, and start-up points of each way of searching."""

AFTER = (10, 20, 50)


class Surrogate:
    """Validation MAP@R as a function of the setting, and the noise of a training."""

    def __init__(self, archive: Path, method: str) -> None:
        with tarfile.open(archive) as tar:
            names = [m for m in tar if f"/{method}/" in m.name and m.name.endswith(".json")]
            records: list[Any] = [json.load(tar.extractfile(m)) for m in names]  # type: ignore[arg-type]
        study = next(r for r in records if r["kind"] == "study" and r["spec"].get("tune_for") == "retrieval")
        trials = [r for r in records if r["kind"] == "trial" and r["study"] == study["unit"] and r["value"] is not None]
        template = study["spec"]["template"]
        flat = {f"method.{k}": v for k, v in template["params"].items()}
        flat |= {f"optim.{k}": v for k, v in template["optim"].items()}
        self.space = {name: Range(**values) for name, values in study["spec"]["space"].items()}
        self.default: Point = {name: flat[name] for name in self.space}
        best = max(trials, key=lambda trial: trial["value"])["params"]
        seeds = [r for r in records if r["kind"] == "train" and r["spec"]["replicate"] != "tuning"]
        chosen = {(name.partition(".")[2], value) for name, value in best.items()}
        values = [r["selection_value"] for r in seeds if chosen <= _pairs(r["spec"])]
        self.noise = float(np.std(values, ddof=1))
        x, y = self._unit([trial["params"] for trial in trials]), np.array([trial["value"] for trial in trials])
        self.model = RandomForestRegressor(200, min_samples_leaf=2, random_state=0).fit(x, y)
        everywhere = stats.qmc.Sobol(len(self.space), seed=0).random(2**14)
        self.best = float(self.model.predict(np.vstack([x, everywhere])).max())
        fit, start = self.model.score(x, y), self.values([self.default])[0]
        print(f"{method}: R2 {fit:.2f}, best {self.best:.3f}, default {start:.3f}, seed SD {self.noise:.4f}")

    def _unit(self, points: list[Point]) -> np.ndarray:
        return np.array([[_unit(self.space[name], point[name]) for name in self.space] for point in points])

    def values(self, points: list[Point]) -> np.ndarray:
        """MAP@R at some settings, without noise."""
        return np.asarray(self.model.predict(self._unit(points)))


def _pairs(spec: Any) -> set[tuple[str, Any]]:
    values = [*spec["params"].items(), *spec["optim"].items()]
    return {(key, value) for key, value in values if not isinstance(value, list)}


def _unit(values: Range, value: float) -> float:
    low, high, at = np.log([values.low, values.high, value]) if values.log else (values.low, values.high, value)
    return float((at - low) / (high - low))


def regrets(surrogate: Surrogate, repeat: int) -> list[dict[str, Any]]:
    """Regret of one simulated study of each kind."""
    torch.set_num_threads(1)
    rows = []
    for name, (batch, trials, startup) in SEARCHES.items():
        rng = np.random.default_rng(repeat)
        told: list[Told] = []
        axes = (name, str(repeat))
        for start in range(0, trials, batch):
            asked: list[Point] = [] if start else [surrogate.default]
            heard = [] if name == "random" else told
            for number in range(start + len(asked), min(start + batch, trials)):
                asked.append(propose(axes, surrogate.space, "gp", number, heard, asked, 1, startup))
            noisy = surrogate.values(asked) + rng.normal(0, surrogate.noise, len(asked))
            told += [Told(params=point, values=(float(value),)) for point, value in zip(asked, noisy, strict=True)]
        for after in (n for n in AFTER if n <= trials):
            chosen = max(told[:after], key=lambda trial: trial.values or ())
            regret = 100 * (surrogate.best - surrogate.values([chosen.params])[0])
            rows.append({"search": name, "after": after, "repeat": repeat, "regret": regret})
    return rows


def shown(each: pd.Series) -> str:
    """Mean and 95 % interval."""
    half = stats.t.ppf(0.975, len(each) - 1) * each.std() / len(each) ** 0.5
    return f"{each.mean():.2f} ± {half:.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--method", default="dul_cls")
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    surrogate = Surrogate(args.archive, args.method)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        each = pool.map(partial(regrets, surrogate), range(args.repeats))
        rows = pd.DataFrame([row for rows in each for row in rows])
    table = rows.groupby(["search", "after"], sort=False).regret.agg(shown).unstack()
    print(table.to_string())


if __name__ == "__main__":
    main()
