#!/usr/bin/env bash
# Question: 40 million pairs (all pairs of 9,000 images), nearly all genuine negatives with scores below 0.05. What
#   is the expected calibration error by torchmetrics, and are torch.histc's counts (for a ROC) right?
# Expected (the logged guesses): Equal to a sum in float64 to 1e-4; counts right to 1e-6.
# Observed: Both count in float32, one by one, so a bin stops at 2^24 = 16,777,216. histc keeps 17 of 40 million
#   scores; the calibration error is 0.027 instead of 0.012. No warning. With 10 million pairs both are right.
# Versions: torchmetrics 1.9.0, torch 2.15.0, numpy 2.4.6
set -euo pipefail
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install v torchmetrics==1.9.0 torch==2.15.0 numpy==2.4.6
"$dir/v/bin/python" -W ignore - <<'PY'
import sys
import numpy as np, torch, torchmetrics
from torchmetrics.classification import BinaryCalibrationError
torch.set_num_threads(1)
print("torch", torch.__version__, "torchmetrics", torchmetrics.__version__)
g = torch.Generator().manual_seed(0)
counted, off = {}, {}
for pairs in (10_000_000, 40_000_000):
    scores, few = torch.rand(pairs, generator=g) * 0.05, pairs // 200
    scores[:few] = torch.rand(few, generator=g)
    chance = scores.clone()
    chance[few:] /= 2  # overconfident
    truth = (torch.rand(pairs, generator=g) < chance).to(torch.int8)
    metric = BinaryCalibrationError(n_bins=15, validate_args=False)
    metric.update(scores, truth)
    value = float(metric.compute())
    place = np.minimum((scores.numpy() * 15).astype(np.int64), 14)
    sums = [np.bincount(place, weights=part.numpy(), minlength=15) for part in (scores, truth)]
    exact = np.abs(sums[0] - sums[1]).sum() / pairs
    counts = torch.histc(scores, 15, 0, 1)
    counted[pairs], off[pairs] = float(counts.double().sum()) / pairs, abs(value - exact)
    print(f"{pairs} pairs: torchmetrics {value:.4f}, in float64 {exact:.4f}; histc counts {counted[pairs]:.1%} of the "
          f"scores, {int(counts[0])} in the first bin of {int((place == 0).sum())}")
few, many = counted
sys.exit(not (counted[few] == 1 and off[few] < 1e-3 and counted[many] < 0.45 and off[many] > 0.01))
PY
