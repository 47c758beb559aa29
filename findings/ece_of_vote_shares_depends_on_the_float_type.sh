#!/usr/bin/env bash
# Question: Confidences are shares of ten votes (0.0, 0.1, .. 1.0: an ensemble, dropout samples, ten
#   neighbours). What is the expected calibration error with ten bins in torchmetrics, netcal and by the usual
#   formula?
# Expected (the logged guess): Two groups by the side of the edge, less than 0.01 apart; float32 and float64
#   equal.
# Observed: 0.118 or 0.102 in torchmetrics (float32 or float64), 0.107 or 0.060 in netcal, 0.052 or 0.118 by
#   the usual formula. An edge is 0.3 in one type and a little above it in the other, so neighbouring shares
#   fall into one bin and their errors cancel.
# Versions: torchmetrics 1.9.0, netcal 1.4.0, torch 2.15.0, numpy 2.4.6
set -euo pipefail
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install v torchmetrics==1.9.0 netcal==1.4.0 torch==2.15.0 numpy==2.4.6
"$dir/v/bin/python" -W ignore - "$dir" <<'EOF'
import sys
import netcal, numpy as np, torch, torchmetrics
from netcal.metrics import ECE
from torchmetrics.classification import BinaryCalibrationError
print("torchmetrics", torchmetrics.__version__, "netcal", netcal.__version__)
rng = np.random.default_rng(0)
votes = rng.integers(0, 11, 4000)
share = votes / 10
truth = np.clip(share + np.where(votes % 2, 0.15, -0.15), 0, 1)  # over and under in turn
right = (rng.random(4000) < truth).astype(int)

def formula(confidence):  # bins (low, high]
    edges, total = np.linspace(0, 1, 11), 0.0
    for low, high in zip(edges[:-1], edges[1:]):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total

by_share = sum((votes == v).mean() * abs(right[votes == v].mean() - v / 10) for v in range(11))
print("by share of votes: %.4f" % by_share)
value = {}
for kind in (np.float32, np.float64):
    c = share.astype(kind)
    for name, measured in (("torchmetrics", BinaryCalibrationError(n_bins=10)(torch.tensor(c), torch.tensor(right))),
                           ("netcal", ECE(10).measure(c, right)), ("formula", formula(c))):
        value[name, kind.__name__] = float(measured)
        print(f"{name} {kind.__name__}: {float(measured):.4f}")
sys.exit(not (max(value.values()) - min(value.values()) > 0.05
              and all(abs(value[n, "float32"] - value[n, "float64"]) > 0.01 for n in ("torchmetrics", "netcal", "formula"))))
EOF
