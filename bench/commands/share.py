"""``bench share``: a trained network into a repository of the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import DEFAULT_RESULTS, Results


def share(
    run: Annotated[str, typer.Argument(help="A trained or tested unit of the results folder, by the start of its id.")],
    url: Annotated[str, typer.Argument(help="Repository on the Hugging Face Hub.", metavar="hf://ORG/NAME")],
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Upload a trained unit to the Hugging Face Hub.

    Its weights, its record and a model card.
    A repository that does not exist is made, and is public. Log in before, by `hf auth login` or $HF_TOKEN.

    \b
    bench share 3f2a hf://me/dul-cls-birds
    bench embed --run hf://me/dul-cls-birds --images photos --out photos.npz
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from ..engine.trained import unit_folder
    from ..store import hub

    typer.echo(hub.share(unit_folder(results, run), url))
