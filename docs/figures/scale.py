"""Draw docs/figures/scale.svg: what the scale of the softmax does to a confidence, and to retrieval.

for d in 16 64 512; do
uv run bench run --method cosface,dul_cls --dataset ndigit_smoke --hparams default --seeds 3 --dim $d \
        --sweep method.scale=4,8,12,16,24,40,64 --results results/scale/$d
done
uv run python docs/figures/scale.py results/scale
"""

import sys
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib import pyplot as plt

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "bench", "font.size": 9})

ROWS = (("dul_cls", "method", "DUL-cls: variance"), ("cosface", "norm", "CosFace: norm"))
LOOKS = {16: ("#0068ad", "o", "-"), 64: ("#b54a00", "s", "--"), 512: ("#00795a", "^", ":")}

root = Path(sys.argv[1])
frames = [pd.read_csv(path).assign(D=int(path.parent.name)) for path in sorted(root.glob("*/metrics.csv"))]
table = pd.concat(frames)
table["scale"] = table["pinned"].str.extract(r"method\.scale=([\d.]+)")[0].astype(float)

figure, axes = plt.subplots(2, 2, figsize=(6.6, 4.6), sharex=True, sharey="col", layout="constrained")
for (method, confidence, name), pair in zip(ROWS, axes, strict=True):
    own = table[table["method"] == method]
    crops = own[(own["metric"] == "spearman_crop") & (own["confidence"] == confidence) & (own["split"] == "test_crop")]
    retrieval = own[
        (own["metric"] == "map_at_r") & (own["split"] == "test") & (own["scorer"] == "cosine") & own["variant"].isna()
    ]
    for axis, rows, factor in ((pair[0], crops, 1), (pair[1], retrieval, 100)):
        for dim, (colour, marker, line) in LOOKS.items():
            values = factor * rows[rows["D"] == dim].groupby("scale")["value"].agg(["mean", "min", "max"])
            axis.plot(values.index, values["mean"], line, marker=marker, color=colour, ms=4, label=f"D = {dim}")
            axis.fill_between(values.index, values["min"], values["max"], color=colour, alpha=0.15, lw=0)
        axis.set(xscale="log", xticks=[4, 8, 16, 32, 64], xticklabels=["4", "8", "16", "32", "64"])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
    pair[0].axhline(0, color="k", lw=0.8)
    pair[0].set_ylabel(f"{name}\nrank correlation with crop size")
    pair[1].set_ylabel("MAP@R, %")
for axis in axes[1]:
    axis.set_xlabel("scale of the softmax")
axes[0, 0].legend(frameon=False)
figure.savefig(Path(__file__).with_name("scale.svg"), metadata={"Date": None})
pd.set_option("display.width", 200)
kept = table[(table["metric"] == "spearman_crop") & (table["split"] == "test_crop")]
kept = kept[[(m, c) in {row[:2] for row in ROWS} for m, c in zip(kept["method"], kept["confidence"])]]
print(kept.groupby(["method", "D", "scale"])["value"].agg(["mean", "min", "max"]).round(2).unstack("scale")["mean"])
