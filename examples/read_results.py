"""Read a results folder with pandas: means, paired differences and filter-out curves from metrics.csv.

Run ``uv run python examples/read_results.py [FOLDER]``; the folder is results/runs unless given.
"""

import sys
from pathlib import Path

import pandas as pd

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results/runs")
table = pd.read_csv(folder / "metrics.csv", keep_default_na=False, na_values={"value": "", "fraction": "", "seed": ""})

# A method at one setting; several networks or forms need `backbone`, `dim`, `ensemble` and `fidelity`, too.
SETTING = ["method", "base", "hparams", "trials", "pinned"]

# One metric: clean test images, ranked by cosine. A row per replicate; no two rows agree in all columns but the value.
map_at_r = table[(table.split == "test") & (table.metric == "map_at_r") & (table.scorer == "cosine")]
summary = map_at_r.groupby(["dataset", *SETTING]).value.agg(["mean", "std", "count"])
print("MAP@R\n", summary.to_string(float_format="%.3f"), sep="")

# Replicates of two methods are paired (same initialisation, same order of images), so compare them one by one.
by_seed = map_at_r.pivot_table(index=["dataset", "seed"], columns=SETTING, values="value")
print("\nby seed\n", by_seed.to_string(float_format="%.3f"), sep="")

# Filter-out curves: MAP@R after a share of the queries, the least confident ones, is removed.
curves = table[(table.split == "test") & (table.metric == "filter_out_map_at_r") & (table.variant == "query_only")]
curves = curves[curves.confidence.isin(["method", "max_cosine", "random"])]
curve = curves.pivot_table(index="fraction", columns=["dataset", *SETTING, "scorer", "confidence"], values="value").T
print("\nMAP@R by share of queries removed\n", curve.to_string(float_format="%.3f"), sep="")
