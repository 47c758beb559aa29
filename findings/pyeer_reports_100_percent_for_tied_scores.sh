#!/usr/bin/env bash
# Question: What is the equal error rate of scores with ties (accept or reject, a score that says nothing) in
#   pyeer, speechbrain's rule and scikit-learn's ROC curve?
# Expected (the logged guess): 0.5 for a constant score everywhere; within 2 points of each other for scores
#   of two or three levels.
# Observed: pyeer reports 1.0 (100 %) for a constant score and for two levels whose ROC curve has 0.36; its
#   area under the curve is 0.0 for the constant. With three levels it reports 0.20 (ROC 0.22), with the
#   bounds 0.10 and 0.30.
# Versions: pyeer 0.5.6, scikit-learn 1.9.1, numpy 2.4.6
set -euo pipefail
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install v "pyeer==0.5.6" scikit-learn==1.9.1 numpy==2.4.6 "setuptools<80"
"$dir/v/bin/python" -W ignore - "$dir" <<'EOF'
import sys
from importlib.metadata import version
import numpy as np
from pyeer.eer_info import get_eer_stats
from scipy.optimize import brentq
from sklearn.metrics import roc_curve
print("pyeer", version("pyeer"), "scikit-learn", version("scikit-learn"))
rng = np.random.default_rng(0)

def by_roc(genuine, impostor):
    truth = np.r_[np.ones(len(genuine)), np.zeros(len(impostor))]
    far, hit, _ = roc_curve(truth, np.r_[genuine, impostor], drop_intermediate=False)
    return brentq(lambda x: 1 - x - np.interp(x, far, hit), 0, 1)

value = {}
for name, genuine, impostor in (
        ("constant", np.full(1000, 0.5), np.full(3000, 0.5)),
        ("two levels", np.repeat([0.0, 1.0], [300, 700]), np.repeat([0.0, 1.0], [1800, 1200])),
        ("three levels", np.repeat([0.0, 0.5, 1.0], [100, 200, 700]), np.repeat([0.0, 0.5, 1.0], [1800, 900, 300])),
        ("no ties", rng.normal(1, 1, 1000), rng.normal(-1, 1, 3000))):
    stats, roc = get_eer_stats(list(genuine), list(impostor)), by_roc(genuine, impostor)
    value[name] = stats.eer, roc, stats.auc
    print(f"{name}: pyeer {stats.eer:.4f} (bounds {stats.eer_low:.4f}, {stats.eer_high:.4f}, area {stats.auc:.4f}), ROC {roc:.4f}")
sys.exit(not (value["constant"][0] == 1 and value["constant"][2] == 0 and value["two levels"][0] == 1
              and value["two levels"][1] < 0.45 and abs(value["no ties"][0] - value["no ties"][1]) < 0.01))
EOF
