#!/usr/bin/env bash
# Question: One call of ir-measures for P@1, RR and RR@10 on a run with tied scores (binary codes): is there
#   one order of ties?
# Expected (the logged guess): One order of ties for all measures: pytrec_eval's.
# Observed: RR@10 comes from another provider with the opposite order of ties. RR@10 is larger than RR, which
#   no ranking allows, and neither is the expectation over the orders.
# Versions: ir-measures 0.4.3, pytrec-eval-terrier 0.5.11, numpy 2.4.6
set -euo pipefail
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install v ir-measures==0.4.3 pytrec-eval-terrier==0.5.11 numpy==2.4.6
"$dir/v/bin/python" -W ignore - "$dir" <<'EOF'
import sys
from importlib.metadata import version
import ir_measures, numpy as np
from ir_measures import P, RR
print("ir-measures", version("ir-measures"), "pytrec-eval-terrier", version("pytrec-eval-terrier"))
label = np.repeat(np.arange(10), 40)
rng = np.random.default_rng(0)
codes = rng.normal(size=(10, 6))[label] + 1.5 * rng.normal(size=(400, 6)) > 0

def expected_rr(score, relevant):  # mean over 200 orders of the ties
    ranks = []
    for _ in range(200):
        order = np.lexsort((rng.random(len(score)), -score))
        ranks.append(1 / (1 + np.flatnonzero(relevant[order])[0]))
    return np.mean(ranks)

ok = True
for name, score in (("all scores equal", np.zeros((400, 400))),
                    ("6-bit codes", -(codes[:, None] != codes[None]).sum(2).astype(float))):
    run, relevant, expectation = {}, {}, []
    for q in range(0, 400, 4):
        others = [d for d in range(400) if d != q]
        run[f"q{q}"] = {f"img_{d}": float(score[q, d]) for d in others}
        relevant[f"q{q}"] = {f"img_{d}": 1 for d in others if label[d] == label[q]}
        expectation.append(expected_rr(score[q, others], label[others] == label[q]))
    found = ir_measures.calc_aggregate([P @ 1, RR, RR @ 10], relevant, run)
    print(name, {str(k): round(float(v), 4) for k, v in found.items()}, "RR over all orders: %.4f" % np.mean(expectation))
    ok &= found[RR @ 10] > found[RR] if "equal" in name else abs(found[RR @ 10] - found[RR]) > 0.01
sys.exit(not ok)
EOF
