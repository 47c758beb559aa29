"""Cut of a backbone before a named stage: what precedes it stays as it is, the stage and what follows it is trained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from torch import Tensor, fx, nn

WRAPPERS = ("model", "features")
"""Modules that hold a whole network."""


class NoStage(ValueError):
    """A stage that a backbone does not have, or before which it cannot be cut."""


class _Tracer(fx.Tracer):
    """Tracer that looks into the modules that contain a stage alone, so that all others may branch as they like."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self._stage = stage

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not self._stage.startswith(f"{module_qualified_name}.")


class Cut:
    """A backbone in two parts, which share its modules: up to a stage, and from there on.

    Args:
        backbone: Network from images to pooled features ``[B, F]``.
        stage: Name of a module, such as ``blocks.5``, or the start of the names of several, such as ``inception_5b``.

    Attributes:
        stage: Full name of the stage in the backbone.
        frozen: Modules that precede it.

    Raises:
        NoStage: If there is no such stage, or more than one value leads from what precedes it to the rest.
    """

    def __init__(self, backbone: nn.Module, stage: str) -> None:
        self._backbone: Any = backbone
        self._body: Any = getattr(backbone, "body", backbone)
        self.stage = _full_name(self._body, stage)
        try:
            graph = _Tracer(self.stage).trace(self._body)
        except Exception as error:  # of many kinds, by what the network does with its input
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise NoStage(f"it cannot be cut before {stage!r}, as it cannot be traced ({first})") from None
        self._below, self._above = _cut(self._body, graph, self.stage)
        names = [str(node.target) for node in self._below.graph.nodes if node.op == "call_module"]
        self.frozen: list[nn.Module] = [self._body.get_submodule(name) for name in dict.fromkeys(names)]

    def maps(self, images: Tensor) -> Tensor:
        """What enters the stage, for images ``[B, C, H, W]``: usually feature maps ``[B, C', h, w]``."""
        prepared = getattr(self._backbone, "prepared", None)
        found: Tensor = self._below(images if prepared is None else prepared(images))
        return found

    def features(self, maps: Tensor) -> Tensor:
        """Pooled features ``[B, F]`` of what enters the stage."""
        found: Tensor = self._above(maps)
        pool = getattr(self._backbone, "pool", None)
        return found if pool is None else pool(found)


def _full_name(body: nn.Module, stage: str) -> str:
    """Full name of a stage: networks of timm and torchvision may be wrapped, so its start can be left out."""
    names: list[str] = [name for name, _ in body.named_modules() if name]

    def matches(name: str) -> bool:
        return f".{name}.".endswith(f".{stage}.")

    if found := sorted(filter(matches, names), key=len):
        return found[0]
    if any(name.startswith(f"{stage}_") for name in names):
        return stage
    known = list(dict.fromkeys(name.removeprefix("model.") for name in names))
    stages = [name for name in known if re.fullmatch(r"\w+(\.\d+)?", name) and name not in WRAPPERS]
    near = get_close_matches(stage, stages, n=3, cutoff=0.5) or stages[:12]
    raise NoStage(f"it has no stage {stage!r}; near: {', '.join(near)}")


def _cut(body: nn.Module, graph: fx.Graph, stage: str) -> tuple[fx.GraphModule, fx.GraphModule]:
    first = next(filter(None, (_enters(node, stage) for node in graph.nodes)), None)
    if first is None:
        raise NoStage(f"it does not run {stage!r} as a stage")
    before = {first, *_needed(first)}
    if not any(node.op == "call_module" for node in before):
        raise NoStage(f"nothing precedes {stage!r}: train it as a whole")
    if any(node.op == "get_attr" for node in before):
        raise NoStage(f"a parameter that is in no layer precedes {stage!r}, and cannot be frozen alone")
    below, above = fx.Graph(), fx.Graph()
    held: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node in before:
            held[node] = below.node_copy(node, held.__getitem__)
    below.output(held[first])
    after = {first: above.placeholder("maps")}

    def value(node: fx.Node) -> fx.Node:
        if node not in after:
            raise NoStage(f"more than one value leads past {stage!r}: choose a later or earlier stage")
        return after[node]

    for node in graph.nodes:
        if node not in before:
            after[node] = above.node_copy(node, value)
    return fx.GraphModule(body, below), fx.GraphModule(body, above)


def _enters(node: fx.Node, stage: str) -> fx.Node | None:
    """What enters a stage at its first module; None for other nodes."""
    name = str(node.target)
    inside = name == stage or name.startswith((f"{stage}.", f"{stage}_"))
    return node.all_input_nodes[0] if node.op == "call_module" and inside and node.all_input_nodes else None


def _needed(node: fx.Node) -> Iterator[fx.Node]:
    """All nodes that a value is computed from."""
    waiting, seen = list(node.all_input_nodes), set()
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            yield one
            waiting += one.all_input_nodes
