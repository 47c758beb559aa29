"""``bench new``: a commented template of a plug-in."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Literal

import typer

from ..errors import UserError
from ..names import why_not_a_name
from .options import command

TEMPLATES = Path(__file__).parents[1] / "templates"
PluginKind = Literal["method", "dataset", "photo-dataset", "test", "corruption", "scorer", "distribution"]


@command()
def new(kind: PluginKind, name: str, *, out: Path | None = None) -> None:
    """Write a plug-in file to start from.

    Its first lines say how to try it.
    All kinds pass the checks and run as they are, except photo-dataset: it needs images, and weights of a backbone
    before anything can be trained on it.

    \b
    bench new method mine
    bench new photo-dataset birds --out plugins/birds.py

    Options:
        kind: What it defines.
        name: Its name: lower-case letters, digits, underscores.
        out (FILE): File; NAME.py if not given.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    path = out or Path(f"{name}.py")
    write_template(kind, name, path)
    typer.echo(f"wrote {path}, a {kind} to start from; its first lines say how to try it")


def write_template(kind: PluginKind, name: str, path: Path) -> None:
    """Write the commented template of a plug-in to a file that does not exist."""
    if reason := why_not_a_name(name):
        raise UserError(reason)
    text = (TEMPLATES / f"{kind}.py.tmpl").read_text(encoding="utf-8")
    title = "".join(part.capitalize() for part in name.split("_"))
    filled = Template(text).substitute(name=name, Class=title, file=path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(filled)
    except FileExistsError:
        raise UserError(f"{path} already exists; remove it, or name another file with --out") from None
