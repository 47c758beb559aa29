#!/usr/bin/env bash
# Question: AlbumentationsX is the successor of albumentations, under the same import. Does a recipe give the same
#   images at the same seed (RandomResizedCrop, HorizontalFlip, ColorJitter, GaussianBlur, RandomBrightnessContrast)?
#   And a recipe that sets strengths, such as Rotate(limit=10)?
# Expected (the logged guess): The same draws, the same images.
# Observed: HorizontalFlip is equal, ColorJitter in 17 of 20 images, RandomResizedCrop and GaussianBlur in none.
#   RandomBrightnessContrast() without arguments shifts the mean level of a dark image by an SD of 6 instead of 29, and
#   nothing is said: its range is one of the image's mean, no longer of 255. `limit` is called `angle_range` now: the old
#   name is left out with a warning, so Rotate(limit=10) turns by up to 90 degrees.
# Versions: albumentations 2.0.8, albumentationsx 2.5.1, opencv-python-headless 5.0.0.93, numpy 2.4.6
set -euo pipefail
export OMP_NUM_THREADS=1 NO_ALBUMENTATIONS_UPDATE=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install old albumentations==2.0.8 opencv-python-headless==5.0.0.93 numpy==2.4.6
install new "albumentationsx[headless]==2.5.1" opencv-python-headless==5.0.0.93 torch==2.15.0 numpy==2.4.6
cat > "$dir/draw.py" <<'PY'
import hashlib
import json
import sys
import warnings

import albumentations as A
import cv2
import numpy as np

warnings.simplefilter("always")
g = np.random.default_rng(0)
image = cv2.GaussianBlur(g.integers(0, 256, (96, 128, 3), dtype=np.uint8), (0, 0), 3)
image = (image.astype(int) // 2 + 20).astype(np.uint8)
image[40:56, :, :] = 255  # a bar: how far it is turned can be seen


def draws(transform, count):
    make = A.Compose([transform], seed=0)
    return [make(image=image)["image"] for _ in range(count)]


def hashes(transform):
    return [hashlib.sha256(np.ascontiguousarray(each).tobytes()).hexdigest() for each in draws(transform, 20)]


def turned(each):
    rows, columns = np.nonzero(each[:, 32:96].mean(-1) > 220)
    return abs(float(np.degrees(np.arctan(np.polyfit(columns, rows, 1)[0])))) if len(set(columns)) > 8 else 90.0


found = {
    "images": {
        "HorizontalFlip": hashes(A.HorizontalFlip(p=0.5)),
        "RandomResizedCrop": hashes(A.RandomResizedCrop(size=(64, 64))),
        "ColorJitter": hashes(A.ColorJitter(p=1)),
        "GaussianBlur": hashes(A.GaussianBlur(p=1)),
    }
}
with warnings.catch_warnings(record=True) as quiet:
    warnings.simplefilter("always")
    plain = A.RandomBrightnessContrast(p=1)
found["warned"] = len(quiet)
dark = (image // 2).astype(np.uint8)
make = A.Compose([plain], seed=0)
found["shift"] = float(np.std([make(image=dark)["image"].mean() - dark.mean() for _ in range(1000)]))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    rotate = A.Rotate(limit=10, p=1)
found["said"] = [str(each.message) for each in said]
found["turned"] = float(np.max([turned(each) for each in draws(rotate, 100)]))
json.dump(found, sys.stdout)
PY
for which in old new; do "$dir/$which/bin/python" "$dir/draw.py" > "$dir/$which.json"; done
"$dir/old/bin/python" - "$dir" <<'PY'
import json
import sys

old, new = (json.load(open(f"{sys.argv[1]}/{which}.json")) for which in ("old", "new"))
print("albumentations 2.0.8 and albumentationsx 2.5.1, 20 draws at one seed")
equal = {}
for name in old["images"]:
    equal[name] = sum(a == b for a, b in zip(old["images"][name], new["images"][name]))
    print(f"{name}: {equal[name]} of 20 images are equal")
print(f"RandomBrightnessContrast(): SD of the mean level {old['shift']:.1f} and {new['shift']:.1f}; warnings {new['warned']}")
print(f"Rotate(limit=10) turns by up to {old['turned']:.0f} and {new['turned']:.0f} degrees; {new['said']}")
as_seen = (
    equal["HorizontalFlip"] == 20
    and max(equal["RandomResizedCrop"], equal["GaussianBlur"]) < 5
    and new["shift"] < old["shift"] / 2
    and not new["warned"]
    and old["turned"] < 15 < 30 < new["turned"]
)
print("recipes run at other strengths" if as_seen else "behaviour differs from what was observed")
sys.exit(not as_seen)
PY
