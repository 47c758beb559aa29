#!/usr/bin/env bash
# Question: Is a .safetensors file with metadata the same file if equal tensors and texts are saved again?
# Expected (not logged: seen on the way): The same bytes, as for a file without metadata.
# Observed: The entries of the metadata are in a random order, in one process, too: 18 or 19 different files in 40 saves
#   of four entries, 40 different files in 40 saves of eight. One entry, or none, gives one file. Tensors keep their order.
#   So a checksum of features, embeddings or weights that carry two or more texts says nothing about equal content.
# Versions: safetensors 0.8.0, numpy 2.4.6
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install v safetensors==0.8.0 numpy==2.4.6
"$dir/v/bin/python" - <<'PY'
import hashlib
import sys
import numpy as np, safetensors
from safetensors.numpy import load, save
print("safetensors", safetensors.__version__, "numpy", np.__version__)
arrays = {f"features.{i}": np.arange(6, dtype=np.float32) + i for i in range(5)}

def files(entries, saves=40):
    texts = {f"text{i}": str(i) for i in range(entries)} or None
    made = [save(arrays, texts) for _ in range(saves)]
    equal = all(np.array_equal(load(data)[name], value) for data in made[:3] for name, value in arrays.items())
    found = len({hashlib.sha256(data).hexdigest() for data in made})
    print(f"{entries} entries of metadata: {found} different files in {saves} saves, equal arrays {equal}")
    return found, equal

good = True
for entries in (0, 1, 2, 4, 8):
    found, equal = files(entries)
    good &= equal and (found == 1 if entries < 2 else found > {2: 1, 4: 10, 8: 30}[entries])
sys.exit(not good)
PY
