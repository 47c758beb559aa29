"""Draw how reliable a confidence is, from ``bench.results``: its probability of a right answer against their share.

Run ``uv run python examples/reliability.py [FOLDER [CONFIDENCE]]``; the folder is results/runs unless given, and the
confidence ``margin``. A confidence has any scale: an isotonic calibration, fitted on the queries of every other class
and applied to those of the rest, makes a probability of it.
"""

import sys

import bench
import matplotlib.pyplot as plt
import pandas as pd
import torch
from bench.protocols.calibration import fit_isotonic

folder = sys.argv[1] if len(sys.argv) > 1 else "results/runs"
name = "confidence." + (sys.argv[2] if len(sys.argv) > 2 else "margin")

SETTING = ["dataset", "method", "base", "hparams", "pinned"]
results = bench.results(folder)
queries = results.queries.merge(results.metrics[["unit", *SETTING[2:]]].drop_duplicates())
queries = queries[(queries.split == "test") & (queries.scorer == "cosine")].dropna(subset=["recall_at_1", name])
figure, axis = plt.subplots(figsize=(4.4, 4.4), layout="constrained")
axis.plot([0, 1], [0, 1], ":", color="0.5")
for setting, rows in queries.groupby(SETTING):
    named = ", ".join(filter(None, setting))
    halves = [part for _, part in rows.groupby(pd.factorize(rows.label)[0] % 2)]
    judged = []
    for fitted, other in (halves, halves[::-1]):
        confidence, right = (torch.tensor(fitted[column].to_numpy(float)) for column in (name, "recall_at_1"))
        probability = fit_isotonic(confidence, right)(torch.tensor(other[name].to_numpy(float)))
        judged.append(pd.DataFrame({"probability": probability, "right": other.recall_at_1.to_numpy()}))
    table = pd.concat(judged)
    bins = table.groupby((10 * table.probability).clip(upper=9).astype(int)).mean()
    error = (table.right - table.probability).abs().mean()
    axis.plot(bins.probability, bins.right, "o-", label=named)
    print(f"{named}: {len(table)} queries, mean distance from the answer {error:.3f}")
axis.set(xlabel=f"probability by {name.removeprefix('confidence.')}", ylabel="share of right answers")
axis.legend()
figure.savefig("reliability.png", dpi=150)
