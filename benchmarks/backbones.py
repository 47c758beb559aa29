"""Training throughput of the backbones at 224 px, in float32 and bfloat16, and what decides the batch: memory.

    uv run python benchmarks/backbones.py [--device cuda --batch 128] [--backbones bn_inception,resnet50]

On a CPU the batch is 4 by default: the same command, smaller. Weights are random; a step is forward, ArcFace over
11,318 classes, backward and SGD, channels last, frozen batch norms as in the recipes.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from bench.methods import EmbeddingModel
from bench.methods.arcface import ArcFace
from bench.methods.backbones import build_backbone
from losses import peak_extra, timed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=0, help="128 on a GPU, 4 on a CPU, if not given")
    parser.add_argument("--backbones", default="bn_inception,resnet50")
    parser.add_argument("--classes", type=int, default=11318)
    parser.add_argument("--repeats", type=int, default=5)
    a = parser.parse_args()
    batch = a.batch or (128 if a.device == "cuda" else 4)
    name = torch.cuda.get_device_name() if a.device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    print(f"{name}; batch {batch} at 224 px, {a.classes} classes, dim 128\n")
    print(f"{'backbone':<16}{'precision':<11}{'images/s':>9}{'peak MiB':>10}{'ratio':>7}")
    for backbone in a.backbones.split(","):
        runs = {}
        for precision in ("float32", "bfloat16"):
            torch.manual_seed(0)
            model = EmbeddingModel(ArcFace(), build_backbone(backbone, 3, freeze_norm="all"), a.classes, 128)
            model = model.to(a.device, memory_format=torch.channels_last).train()
            model.precision = getattr(torch, precision)
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3, momentum=0.9)
            images = torch.rand(batch, 3, 224, 224, device=a.device).to(memory_format=torch.channels_last)
            labels = torch.arange(batch, device=a.device) // 4

            def step(model=model, optimizer=optimizer, images=images, labels=labels) -> None:
                optimizer.zero_grad(set_to_none=True)
                model.objective(model(images).distribution, labels).backward()
                optimizer.step()

            step()
            runs[precision] = (step, peak_extra(step, a.device))
        times = [{p: timed(step, a.device) for p, (step, _) in runs.items()} for _ in range(a.repeats)]
        seconds = {p: statistics.median(t[p] for t in times) for p in runs}
        for precision, (_, peak) in runs.items():
            ratio = seconds["float32"] / seconds[precision]
            print(f"{backbone:<16}{precision:<11}{batch / seconds[precision]:>9.1f}{peak:>10.0f}{ratio:>7.2f}")


if __name__ == "__main__":
    main()
