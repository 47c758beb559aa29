#!/usr/bin/env bash
# Question: Features of a network as float32, 20,000 x 64, eigenvalues falling to 1e-6 of the first, a common
#   mean three times as long as the spread (cosines around 0.9). Is Recall@1 after scikit-learn's
#   PCA(whiten=True) the same as in float64? And after faiss.PCAMatrix with eigen_power -0.5?
# Expected (the logged guess): scikit-learn: variances of the last ten components to 5 %, Recall@1 within 0.2
#   points. (Faiss was asked later, and guessed to fail in the same way.)
# Observed: No warning. From ten rows per feature on, 'auto' takes the eigenvectors of X'X - n m m' in float32,
#   which cancels: the last components are noise, Recall@1 falls from 74 to 22 %, and to 1 % at a mean of 10
#   spreads. 639 rows (another solver) give the right answer, 640 rows do not, nor do all 20,000. faiss loses all at
#   3 spreads. Subtracting the mean first, or float64, cures both.
# Versions: scikit-learn 1.9.1, faiss-cpu 1.15.1, numpy 2.4.6
set -euo pipefail
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install v scikit-learn==1.9.1 faiss-cpu==1.15.1 numpy==2.4.6
"$dir/v/bin/python" - <<'PY'
import sys
import faiss, numpy as np, sklearn
from sklearn.decomposition import PCA
print("scikit-learn", sklearn.__version__, "faiss", faiss.__version__, "numpy", np.__version__)
rng = np.random.default_rng(0)
labels = np.tile(np.arange(2000), 10)
latent = rng.normal(size=(2000, 64))[labels] + rng.normal(size=(20000, 64))
rotation = np.linalg.qr(rng.normal(size=(64, 64)))[0]
centred = latent * np.sqrt(np.logspace(0, -6, 64)) @ rotation
spread = np.sqrt((centred**2).sum(1).mean())
direction = rng.normal(size=64)
direction /= np.linalg.norm(direction)

def recall(vectors):  # of the first 4,000, each class twice, without the query itself
    v = vectors[:4000].astype(np.float64)
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    s = v @ v.T
    np.fill_diagonal(s, -9)
    return 100 * (labels[s.argmax(1)] == labels[:4000]).mean()

def by_faiss(x):
    whiten = faiss.PCAMatrix(64, 64, -0.5)
    whiten.train(x)
    return recall(whiten.apply(x))

lost, few, cured = {}, {}, []
for mean in (3, 10):
    x = (centred + mean * spread * direction).astype(np.float32)
    value = {}
    for rows in (639, 640, 20000):
        for kind in (np.float64, np.float32):
            pca = PCA(whiten=True).fit(x[:rows].astype(kind))
            value[rows, kind] = recall(pca.transform(x.astype(kind)))
        print(f"mean of {mean} spreads, fitted on {rows} rows ({pca._fit_svd_solver}): "
              f"Recall@1 {value[rows, np.float64]:.1f} in float64, {value[rows, np.float32]:.1f} in float32")
    ready = x - x.mean(0, dtype=np.float64).astype(np.float32)
    cured += [recall(PCA(whiten=True).fit_transform(ready)), by_faiss(ready)]
    faiss_loses = value[20000, np.float64] - by_faiss(x)
    print(f"mean of {mean} spreads, faiss: {by_faiss(x):.1f}; mean subtracted first: scikit-learn {cured[-2]:.1f}, "
          f"faiss {cured[-1]:.1f}")
    lost[mean] = min(value[r, np.float64] - value[r, np.float32] for r in (640, 20000))
    few[mean] = value[639, np.float64] - value[639, np.float32]
sys.exit(not (lost[3] > 10 and lost[10] > 50 and few[3] < 1 and faiss_loses > 50
              and min(cured) > value[20000, np.float64] - 1))
PY
