"""Names of timm's networks with their families and tags, read from its source: importing it takes seconds.

Tags that its code puts together are left out; a network has its name alone then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

NETWORK = re.compile(r'^@register_model\s+def (\w+)\(.*?\)[^\n]*\n(?:\s+r?"""\s*(.*?)(?:\n|"""))?', re.M | re.S)
"""Function that makes a network, with the first line of its docstring."""

TAGGED = re.compile(r"""^ +['"]([\w-]+)\.([\w.-]+)\*?['"]:""", re.M)
"""Entry of a table of weights: architecture and tag; a star marks the default."""


@dataclass(frozen=True)
class Named:
    """A network of timm: full name, family (a module of timm), one line about it, and if its weights are in a cache."""

    name: str
    family: str
    summary: str
    here: bool


def networks() -> Iterator[Named]:
    """Yield every network of timm with every tag, by family; nothing of timm is imported."""
    spec = find_spec("timm")
    assert spec is not None
    assert spec.origin is not None
    checkpoints = checkpoints_here()
    repositories = _repositories()
    for path in sorted(Path(spec.origin).with_name("models").glob("[!_]*.py")):
        source = path.read_text(encoding="utf-8")
        entries = list(TAGGED.finditer(source))
        ends = [entry.start() for entry in entries[1:]] + [len(source)]
        tags: dict[str, dict[str, bool]] = {}
        for entry, end in zip(entries, ends):
            full = ".".join(entry.groups())
            text = source[entry.start() : end]
            tags.setdefault(entry[1], {})[full] = full in repositories or any(
                f"/{file}" in text for file in checkpoints
            )
        for arch, about in NETWORK.findall(source):
            for full, here in tags.get(arch, {arch: False}).items():
                yield Named(full, path.stem, " ".join(about.split()) or f"a network of timm's {path.stem}.py", here)


def _hub(variable: str, folder: str) -> Path:
    """Folder of a cache: that of an environment variable, else one of the user's caches."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(variable) or cache / folder)


def checkpoints_here() -> set[str]:
    """Names of the files in the cache of torch."""
    folder = _hub("TORCH_HOME", "torch") / "hub" / "checkpoints"
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _repositories() -> set[str]:
    """Names of timm's repositories with weights in the cache of the Hugging Face hub."""
    home = _hub("HF_HOME", "huggingface") / "hub"
    cache = Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home)
    found = cache.glob("models--timm--*/snapshots/*/*")
    return {path.parts[-4].removeprefix("models--timm--") for path in found if path.suffix in (".safetensors", ".bin")}
