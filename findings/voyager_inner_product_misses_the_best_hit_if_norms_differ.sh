#!/usr/bin/env bash
# Question: Search by inner product among 20,000 features of 64 dimensions whose norms vary by 40 % (as raw features
#   with a norm as confidence): how many of 1,000 queries get the true first image from voyager's index (M 16,
#   ef_construction 200, query_ef 64) and from faiss HNSW at the same sizes? Does the order of adding matter?
# Expected (the logged guesses): 98 and 95 %; under 2 points lower if images come in rising order of their norms.
# Observed: faiss 100 %, voyager 69 % (92 % at query_ef 500; 94 and 99 % at norms that vary by 20 %; all of them at
#   equal norms). Added in rising order of the norms it is 97 %, the other way round from what one would fear. Recall@1
#   by class is another number, higher or lower: 84 instead of 87 %, 99.4 instead of 98.4 %. Nothing is said.
# Versions: voyager 2.2.3, faiss-cpu 1.15.1, numpy 2.4.6
set -euo pipefail
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install v voyager==2.2.3 faiss-cpu==1.15.1 numpy==2.4.6
"$dir/v/bin/python" - <<'PY'
import sys
from importlib.metadata import version

import faiss
import numpy as np
import voyager

print("voyager", version("voyager"), "faiss-cpu", version("faiss-cpu"))
N, DIM, CLASSES = 20_000, 64, 200
g = np.random.default_rng(0)
centres = g.normal(size=(CLASSES, DIM))
labels, of_queries = g.integers(0, CLASSES, N), g.integers(0, CLASSES, 1000)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def first_of_voyager(features, queries, order, ef=64):
    index = voyager.Index(voyager.Space.InnerProduct, DIM, M=16, ef_construction=200)
    index.add_items(features[order], num_threads=1)
    return order[index.query(queries, 1, num_threads=1, query_ef=ef)[0][:, 0].astype(int)]


def first_of_faiss(features, queries):
    index = faiss.IndexHNSWFlat(DIM, 16, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 200
    index.add(features)
    index.hnsw.efSearch = 64
    return index.search(queries, 1)[1][:, 0]


plain = unit(centres[labels] + g.normal(size=(N, DIM)))
queries = unit(centres[of_queries] + g.normal(size=(1000, DIM))).astype(np.float32)
noise = g.normal(size=(N, 1))
shares = {}
for spread in (0.0, 0.2, 0.4):
    features = (plain * np.exp(spread * noise)).astype(np.float32)
    right = (queries @ features.T).argmax(1)
    rising, as_is = np.argsort(np.linalg.norm(features, axis=1)), np.arange(N)
    found = {
        "faiss": first_of_faiss(features, queries),
        "voyager": first_of_voyager(features, queries, as_is),
        "voyager, query_ef 500": first_of_voyager(features, queries, as_is, 500),
        "voyager, rising norms": first_of_voyager(features, queries, rising),
    }
    for name, first in {"exact": right, **found}.items():
        shares[spread, name] = float((first == right).mean())
        recall = float((labels[first] == of_queries).mean())
        print(f"norms vary by {spread:.0%}, {name}: {shares[spread, name]:.1%} true first images; Recall@1 {recall:.1%}")
as_seen = (
    shares[0.4, "faiss"] > 0.98
    and shares[0.0, "voyager"] > 0.98
    and shares[0.4, "voyager"] < 0.75
    and shares[0.4, "voyager, rising norms"] > shares[0.4, "voyager"] + 0.2
)
print("voyager misses the best hit if norms differ" if as_seen else "behaviour differs from what was observed")
sys.exit(not as_seen)
PY
