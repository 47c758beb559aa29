#!/usr/bin/env bash
# Question: Has create_model(name, pretrained=False) after torch.manual_seed(0) the same weights in timm
#   1.0.22 (the last of 2025) and 1.0.31, both under torch 2.15.0?
# Expected (the logged guess): Same weights in all networks, vision transformers too.
# Observed: timm's vision transformers (ViT, DINOv2, SigLIP) start from other weights; ResNet, Swin, ConvNeXt,
#   EfficientNet and DINOv3 (of the EVA family) from the same ones. An untrained baseline or a training from
#   scratch is another draw.
# Versions: timm 1.0.22 and 1.0.31, torch 2.15.0, torchvision 0.29.2
set -euo pipefail
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install old timm==1.0.22 torch==2.15.0 torchvision==0.29.2 numpy==2.4.6
install new timm==1.0.31 torch==2.15.0 torchvision==0.29.2 numpy==2.4.6
cat >"$dir/run.py" <<'EOF'
import sys
import numpy as np, timm, torch
torch.set_num_threads(1)
names = ("vit_tiny_patch16_224", "vit_small_patch14_dinov2", "vit_base_patch16_siglip_224", "resnet18",
         "swin_tiny_patch4_window7_224", "convnext_atto", "efficientnet_b0", "vit_small_patch16_dinov3")
out = {}
for name in names:
    torch.manual_seed(0)
    out[name] = np.array([float(p.detach().double().abs().sum()) for p in timm.create_model(name).parameters()])
print("timm", timm.__version__, "torch", torch.__version__, "parameters of ViT-Ti, sum of sizes", out[names[0]].sum())
np.savez(sys.argv[1], **out)
EOF
"$dir/old/bin/python" -W ignore "$dir/run.py" "$dir/old.npz"
"$dir/new/bin/python" -W ignore "$dir/run.py" "$dir/new.npz"
"$dir/new/bin/python" -W ignore - "$dir" <<'EOF'
import sys
import numpy as np
old, new = np.load(sys.argv[1] + "/old.npz"), np.load(sys.argv[1] + "/new.npz")
moved = []
for name in old.files:
    same = np.array_equal(old[name], new[name])
    moved += [] if same else [name]
    print(name, "same weights" if same else f"{(old[name] != new[name]).sum()} of {len(old[name])} tensors differ")
sys.exit(sorted(moved) != ["vit_base_patch16_siglip_224", "vit_small_patch14_dinov2", "vit_tiny_patch16_224"])
EOF
