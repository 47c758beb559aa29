#!/usr/bin/env bash
# Question: A convolution on the CPU fails because the process may take no more memory (the limit of `ulimit -v`, as
#   batch systems set it). The limit is lifted. Which convolutions work now?
# Expected (not logged: seen on the way): All of them, or all but the one that failed.
# Observed: No new one in the thread where it failed, whatever its shape: "could not create a primitive". Those made
#   before go on, other threads can do everything, and without oneDNN the same thread can.
# Versions: torch 2.15.0 (Linux, x86-64)
set -euo pipefail
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install v torch==2.15.0 numpy==2.4.6
"$dir/v/bin/python" -W ignore - <<'PY'
import resource, sys, threading
import torch
torch.set_num_threads(1)
print("torch", torch.__version__)
def works(images, channels):
    try:
        torch.conv2d(torch.ones(images, channels, 24, 24), torch.ones(channels, channels, 3, 3), padding=1)
    except RuntimeError as error:
        print(f"  {images} images, {channels} channels:", str(error).splitlines()[0])
        return False
    return True
before, failing, others = (1, 16), (4, 32), [(5, 32), (4, 48), (2, 64)]
found = {"before": works(*before)}
def limited():
    x, w = torch.ones(4, 32, 24, 24), torch.ones(32, 32, 3, 3)
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size, most))
    try:
        torch.conv2d(x, w, padding=1)
        found["fails"] = False
    except RuntimeError as error:
        print("limited:", str(error).splitlines()[0])
        found["fails"] = True
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    print("no limit any more, same thread:")
    found["none"] = not any([works(*shape) for shape in [failing, *others]])
    found["known"] = works(*before)
    torch.backends.mkldnn.enabled = False
    found["without"] = works(*failing)
    torch.backends.mkldnn.enabled = True
thread = threading.Thread(target=limited)
thread.start()
thread.join()
print("another thread:")
found["elsewhere"] = all([works(*shape) for shape in [failing, *others]])
print(found)
sys.exit(not all(found.values()))
PY
