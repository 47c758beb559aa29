"""``bench export`` and ``bench share``: a trained network as a file for other programs, or on the Hugging Face Hub."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import typer

from .options import DEFAULT_RESULTS, command, last_data_root, site_of


@command()
def export(
    run: str,
    *,
    to: Literal["onnx", "torch"],
    out: Path,
    results: Path = DEFAULT_RESULTS,
    plugin: list[Path] | None = None,
) -> None:
    """Write a trained network as a file that works without bench.

    It takes any number of images.
    Its input is `images`, normalised as the file's metadata say; its outputs are `embedding` (unit vectors),
    `variance` or `concentration` if the method has one, and `confidence`, the method's own or the free one named in
    the metadata. These also have operating points (`operate`, the content of operate.json, where `given` is the output
    `confidence`), if the validation images are at hand: half of their classes choose, the others measure. The file is
    compared with the network before it is kept.

    \b
    bench export 3f2a --to onnx --out network.onnx
    bench export 3f2a --to torch --out network.pt2

    Options:
        run: A trained or tested unit of the results folder, by the start of its id.
        to: ONNX (extra onnx), or a program of torch.export.
        out (FILE): File to write.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from ..engine.exported import export_unit
    from ..engine.trained import unit_folder
    from ..resources import keep_memory

    keep_memory()
    site = site_of(results, plugin=plugin, data_root=last_data_root(results), allow_partial=True)
    typer.echo(export_unit(unit_folder(results, run), site, to == "onnx", out))


@command()
def share(
    run: str,
    url: str,
    *,
    results: Path = DEFAULT_RESULTS,
    plugin: list[Path] | None = None,
) -> None:
    """Upload a trained unit to the Hugging Face Hub.

    Its weights, its record and a model card.
    The results of its tests go with it, in the card (model-index) and, of data sets that the Hub has, in .eval_results.
    A repository that does not exist is made, and is public. Log in before, by `hf auth login` or $HF_TOKEN.

    \b
    bench share 3f2a hf://me/dul-cls-birds
    bench embed --run hf://me/dul-cls-birds --images photos --out photos.npz

    Options:
        run: A trained or tested unit of the results folder, by the start of its id.
        url (hf://ORG/NAME): Repository on the Hugging Face Hub.
    """  # noqa: D301 (click's mark for lines that are not to be filled)
    from ..engine.trained import unit_folder
    from ..report.exchange import EVAL_RESULTS, eval_results, header, model_index, of_training, paper_tags
    from ..resources import require_hub
    from ..store import hub

    folder, site = unit_folder(results, run), site_of(results, plugin=plugin)
    require_hub()
    found = of_training(site, folder.name.removeprefix("train-"))
    index, entries = ([], "") if found is None else (model_index(found), eval_results(found))
    made = partial(header, tags=paper_tags(site, folder.parent.name), results=index)
    typer.echo(hub.share(folder, url, made, {EVAL_RESULTS: entries} if entries else {}))
