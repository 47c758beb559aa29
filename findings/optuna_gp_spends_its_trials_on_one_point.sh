#!/usr/bin/env bash
# Question: Which points does Optuna's GPSampler try if the objective is constant, or if the space has eight
#   points?
# Expected (the logged guess): Constant: spread over the square, every proposal at least 0.1 from the earlier
#   ones. Eight points: about half of the later trials repeat the best.
# Observed: Constant: after the random start all 20 proposals are 4 to 6 different points, most of them a
#   corner or an edge that was tried before. Eight points: 29 to 30 of 30 proposals repeat the best point, and
#   one point may never be tried.
# Versions: optuna 5.0.0, torch 2.15.0, scipy 1.17.1
set -euo pipefail
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install v optuna==5.0.0 torch==2.15.0 scipy==1.17.1 numpy==2.4.6
"$dir/v/bin/python" -W ignore - "$dir" <<'EOF'
import sys
from collections import Counter
import numpy as np, optuna, torch
torch.set_num_threads(1)
optuna.logging.set_verbosity(optuna.logging.ERROR)
print("optuna", optuna.__version__, "torch", torch.__version__)

def points(objective, trials, seed):
    study = optuna.create_study(sampler=optuna.samplers.GPSampler(seed=seed))
    study.optimize(objective, n_trials=trials)
    return study.trials, [tuple(np.round([float(v) if not isinstance(v, str) else ord(v)
                                          for v in t.params.values()], 6)) for t in study.trials]

def square(trial):
    return trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)

def constant(trial):
    square(trial)
    return 0.0

def eight(trial):
    a, b = trial.suggest_int("a", 0, 3), trial.suggest_categorical("b", ["u", "v"])
    return (a - 2) ** 2 + 0.5 * (b == "v")

ok = True
for seed in range(3):
    trials, at = points(constant, 30, seed)
    different = len(set(at[10:]))
    print("constant, seed", seed, "different points among the last 20 proposals:", different)
    ok &= different <= 10
    trials, at = points(eight, 40, seed)
    most = Counter(at[10:]).most_common(1)[0][1]
    print("eight points, seed", seed, "tried", len(set(at)), "of 8; the best point in", most, "of the last 30")
    ok &= most >= 27
sys.exit(not ok)
EOF
