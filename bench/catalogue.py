"""``bench list`` and ``bench show``: methods, data sets, protocols, scorers and corruptions as values and as text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .errors import UserError, unknown
from .registry import Registry


def list_rows(kind: str, plugins: tuple[Path, ...], check: bool) -> list[dict[str, Any]]:
    """Rows of ``bench list``: at least ``name`` and ``summary``."""
    if kind == "protocols":
        from .protocols import PROTOCOLS, get_protocol

        modules = [get_protocol(name) for name in PROTOCOLS]
        return [{"name": m.NAME, "summary": m.SUMMARY, "presets": list(m.PRESETS)} for m in modules]
    if kind == "corruptions":
        from .datasets import CORRUPTIONS

        return [{"name": found.name, "summary": found.summary} for found in CORRUPTIONS.values()]
    if kind == "scorers":
        from .methods.scorers.registry import SCORERS

        return [{"name": spec.name, "summary": spec.formula} for spec in SCORERS.values()]
    registry = Registry(kind, plugins)
    rows = []
    for entry in [*registry, *registry.broken]:
        error = entry.broken
        if check and not error:
            try:
                entry.load()
            except UserError as problem:
                error = str(problem)
        rows.append({"name": entry.name, "summary": entry.summary, "origin": entry.origin, "error": error})
    return rows


def show_entry(name: str, plugins: tuple[Path, ...]) -> tuple[dict[str, Any], str]:
    """What ``bench show`` prints: as a value and as text."""
    methods, datasets = Registry("methods", plugins), Registry("datasets", plugins)
    if name in methods.entries or name in {entry.name for entry in methods.broken}:
        return _show_method(methods.get(name).load())
    if name in datasets.entries or name in {entry.name for entry in datasets.broken}:
        return _show_dataset(datasets.get(name).load())
    from .protocols import PROTOCOLS, get_protocol

    if name in PROTOCOLS:
        module = get_protocol(name)
        value: dict[str, Any] = {
            "name": name,
            "summary": module.SUMMARY,
            "version": module.VERSION,
            "presets": {key: preset.as_dict() for key, preset in module.PRESETS.items()},
        }
        lines = [name, "", (module.__doc__ or "").strip(), ""]
        for key, preset in value["presets"].items():
            lines += [f"preset {key}:"] + [f"  {k} = {v}" for k, v in preset.items()]
        return value, "\n".join(lines)
    raise unknown("name", name, [*methods.entries, *datasets.entries, *PROTOCOLS])


def _show_method(cls: Any) -> tuple[dict[str, Any], str]:
    parameters = {}
    for key, field in cls.Params.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        parameters[key] = {"default": field.default, "search": extra.get("search")}
    document = (sys.modules[cls.__module__].__doc__ or cls.__doc__ or "").strip()
    paper = None if cls.paper is None else vars(cls.paper)
    value = {
        "name": cls.name,
        "kind": "method",
        "summary": cls.summary,
        "document": document,
        "paper": paper,
        "parameters": parameters,
        "deviations": list(cls.deviations),
        "scorer": cls.scorer,
        "on_base": cls.on_base,
        "trains": list(cls.trains),
        "default_confidence": cls.default_confidence,
        "fidelities": list(cls.fidelities),
        "released_behaviour": list(cls.released_behaviour),
        "published": _published(cls),
    }
    lines = [f"{cls.name}: {cls.summary}", "", document, ""]
    if paper:
        arxiv = f", arXiv:{paper['arxiv']}" if paper["arxiv"] else ""
        equations = f", {paper['equations']}" if paper["equations"] else ""
        lines.append(f"paper       {paper['title']} ({paper['venue']}{arxiv}{equations})")
    lines += [
        f"scorer      {cls.scorer}",
        f"confidence  {cls.default_confidence}",
        f"trains      {', '.join(cls.trains)}" + (" on a trained base (--base)" if cls.on_base else ""),
        f"fidelity    {', '.join(cls.fidelities)}",
        "parameters" + ("" if parameters else "  none"),
    ]
    for key, info in parameters.items():
        search = info["search"]
        scale = " log" if search and search["log"] else ""
        tuned = f", tuned in [{search['low']:g}, {search['high']:g}]{scale}" if search else ""
        lines.append(f"  method.{key} = {info['default']}{tuned}")
    if cls.deviations:
        lines += ["differs from the paper"] + [f"  - {text}" for text in cls.deviations]
    if cls.released_behaviour:
        lines += ["with --fidelity released, as in the public code"] + [f"  - {t}" for t in cls.released_behaviour]
    if value["published"]:
        lines += ["published settings"]
        lines += [
            f"  {name}: {', '.join(f'{k}={v:g}' if isinstance(v, float) else f'{k}={v}' for k, v in found.items())}"
            for name, found in value["published"].items()
        ]
    return value, "\n".join(lines)


def _published(method: Any) -> dict[str, dict[str, Any]]:
    """What papers published for a method, by data set and configuration."""
    from .engine.published import DATASETS, published_settings
    from .protocols.recipes import get_recipe

    return {
        f"{dataset}, {item.network} ({item.source}: {item.variant})": dict(item.values)
        for dataset in DATASETS
        if dataset != "inshop"
        for item in published_settings(method, dataset, get_recipe(dataset).base)
    }


def _show_dataset(cls: Any) -> tuple[dict[str, Any], str]:
    from dataclasses import asdict

    from .protocols.recipes import get_recipe

    document = (cls.__doc__ or "").strip()
    recipe = asdict(get_recipe(cls.name))
    value = {
        "name": cls.name,
        "kind": "dataset",
        "summary": cls.summary,
        "document": document,
        "recipe": recipe,
    }
    lines = [f"{cls.name}: {cls.summary}", "", document, "", "recipe"]
    lines += [f"  {key} = {item}" for key, item in recipe.items()]
    return value, "\n".join(lines)
