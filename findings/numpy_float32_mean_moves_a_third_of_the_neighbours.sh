#!/usr/bin/env bash
# Question: 1,000,000 x 64 float32 embeddings in a narrow cone (spread 0.001 of their length). How many first
#   neighbours by cosine change if the mean subtracted before is x.mean(axis=0) of numpy instead of the exact one?
# Expected (the logged guess): The mean is off by 1e-5, 1 % of the neighbours change.
# Observed: numpy adds rows one after another along axis 0 (pairwise only along the last axis), so the mean is off
#   by more than ten times the spread of a coordinate. More than 20 % of the neighbours change. A column of equal
#   values 0.1 has the mean 0.101. torch's mean is within 0.1 spreads; dtype=np.float64 cures it.
# Versions: numpy 2.4.6, torch 2.15.0
set -euo pipefail
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install v numpy==2.4.6 torch==2.15.0
"$dir/v/bin/python" -W ignore - <<'PY'
import sys
import numpy as np, torch
torch.set_num_threads(1)
print("numpy", np.__version__, "torch", torch.__version__)
rng = np.random.default_rng(0)
centre = np.abs(rng.normal(size=64))
centre /= np.linalg.norm(centre)
spread = 1e-3 / 8
labels = np.repeat(np.arange(100_000), 10)
x = np.empty((1_000_000, 64), np.float32)
for at in range(0, len(x), 100_000):
    classes = rng.normal(size=(10_000, 64)).repeat(10, axis=0)
    x[at : at + 100_000] = centre + spread * (classes + rng.normal(size=(100_000, 64)))
exact = x.mean(axis=0, dtype=np.float64)
means = {"exact": exact, "numpy": x.mean(axis=0), "torch": torch.from_numpy(x).mean(0).numpy()}

def nearest(mean):  # of the first 5,000 among themselves
    v = x[:5000] - mean.astype(np.float64)
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    s = v @ v.T
    np.fill_diagonal(s, -9)
    return s.argmax(1)

best = nearest(exact)
changed, off = {}, {}
for name, mean in means.items():
    found = nearest(mean)
    changed[name], off[name] = (found != best).mean(), np.abs(mean - exact).max() / spread
    recall = (labels[found] == labels[:5000]).mean()
    print(f"{name}: mean off by {off[name]:.3f} spreads; "
          f"{changed[name]:.1%} of the first neighbours change, Recall@1 {recall:.1%}")
constant = np.full((1_000_000, 4), 0.1, np.float32)
print("mean of a million times 0.1:", constant.mean(axis=0)[0], "along axis 0,", constant[:, 0].copy().mean(), "of one column")
sys.exit(not (changed["numpy"] > 0.2 and changed["torch"] < 0.05 and off["numpy"] > 10 and off["torch"] < 0.1
              and constant.mean(axis=0)[0] > 0.1005))
PY
