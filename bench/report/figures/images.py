"""Test images in the order of their confidence (after Kirchhof et al. 2022, Fig. 6, 10, 11, on training images)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pandas as pd
import torch
from matplotlib.figure import Figure

from ...datasets.dataset import ImageSet
from ...datasets.feature_images import FeatureImages
from ...errors import UserError
from .registry import Drawing, Missing, Note, Source
from .style import FULL_PAGE, RIGHT, WRONG
from .tested import TestedModel, models_of

ENDS, MIDDLE = 4, 4
"""Images at either end of a row of the whole data set, and between them."""
CLASSES, OF_CLASS = 4, 8
"""Classes of the figure by class, and images of each."""
ROWS = 8
"""Contenders (methods at one setting) on one sheet, at most."""
MISTAKES, NEIGHBOURS = 6, 6
"""Queries of the figure of mistakes, and neighbours of each."""

Row = tuple[str, pd.DataFrame]
"""Row of a sheet: the text on its left, and the table of its images."""


def places(count: int, ends: int = ENDS, middle: int = MIDDLE) -> list[int]:
    """Positions to show from ``count`` sorted images: the lowest, quantiles in between, and the highest.

    Example:
        >>> places(101, ends=2, middle=3)
        [0, 1, 25, 50, 75, 99, 100]
        >>> places(3)
        [0, 1, 2]
    """
    inner = [round((count - 1) * part / (middle + 1)) for part in range(1, middle + 1)]
    chosen = {*range(ends), *inner, *range(count - ends, count)}
    return sorted(place for place in chosen if 0 <= place < count)


def confidence_name(model: TestedModel) -> str:
    """Name of the confidence that orders the images: the method's default one, else the norm of the embedding."""
    default = model.record.role.default_confidence
    return default if default in model.confidence else "norm"


def ordered(model: TestedModel, rows: torch.Tensor, shown: Sequence[int]) -> pd.DataFrame:
    """Sort the images of some rows by confidence, lowest first, and tabulate those at the given positions."""
    name = confidence_name(model)
    values = model.confidence[name][rows].double()
    order = torch.argsort(values, stable=True)[list(shown)]
    chosen = rows[order]
    found = {"confidence": name, "place": [place + 1 for place in shown], "of": len(rows), "value": values[order]}
    found |= {"id": [model.ids[row] for row in chosen.tolist()], "class": model.labels[chosen], "row": chosen}
    return pd.DataFrame(found).assign(**model.identity)


def tested_images(source: Source, model: TestedModel) -> ImageSet:
    """Load the images that a model was tested on, unchanged; the test must have kept confidences to sort by."""
    if confidence_name(model) not in model.confidence:
        raise Missing("no confidences were kept when it was tested; test it again")
    trained = source.trained(model.record)
    if trained is None:
        raise Missing("its training has no record")
    try:
        images: ImageSet = source.site.dataset(model.record.columns.dataset, trained.spec.view).test()
    except UserError as error:
        raise Missing(f"no images to show: {error}") from None
    if isinstance(images, FeatureImages):
        raise Missing("features have no pixels")
    if images.ids != model.ids:
        raise Missing("no images to show: the test images of the data set are others than those tested")
    return images


def images_figure(rows: Sequence[Row], images: ImageSet, title: str) -> Figure:
    """Draw a sheet of images with a text on the left of each row, the lowest confidence on the left."""
    columns = max(len(table) for _, table in rows)
    height, width = images.pixels_of(torch.tensor([int(rows[0][1]["row"].iloc[0])])).shape[-2:]
    cell = (FULL_PAGE - 1.1) / columns
    # A line of text below every image.
    figure = Figure(figsize=(FULL_PAGE, len(rows) * (cell * height / width + 0.22) + 0.5), layout="constrained")
    for line, (text, table) in zip(figure.subplots(len(rows), columns, squeeze=False), rows):
        pixels = images.pixels_of(torch.tensor(table["row"].tolist())).permute(0, 2, 3, 1).numpy()
        for axis, image, (_, shown) in zip(line, pixels, table.iterrows()):
            axis.imshow(image if image.shape[-1] > 1 else image[..., 0], cmap="gray", vmin=0, vmax=255)
            axis.set(xticks=[], yticks=[])
            axis.set_xlabel(str(shown.get("text", shown["place"])), fontsize=6.5, labelpad=1)
            axis.grid(False)
            axis.spines[:].set(visible="frame" in shown, color=shown.get("frame", "k"), linewidth=2.0)
        for axis in line[len(table) :]:
            axis.set_axis_off()
        line[0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=8)
    figure.suptitle(title)
    return figure


def mistakes(model: TestedModel, class_names: Sequence[str]) -> pd.DataFrame:
    """Table of the worst mistakes: the most confident queries whose nearest neighbour is wrong, with their neighbours.

    Neighbours are those under the cosine of the means; a query whose nearest neighbours are tied counts if none of them
    is right. Queries without a positive in the gallery are left out. Queries are numbered from 1, the most confident
    first; ``place`` is 0 for the query itself.
    """
    name = confidence_name(model)
    values = model.confidence[name].double()
    wrong = (model.right == 0).nonzero().squeeze(1)
    worst = wrong[torch.argsort(values[model.queries[wrong]], descending=True, stable=True)][:MISTAKES]
    rows = zip(model.queries[worst].tolist(), model.ranking.neighbours[worst, :NEIGHBOURS].tolist())
    near = {query: [row for row in found if row >= 0] for query, found in rows}
    names = [class_names[label] for label in model.labels.tolist()]
    table = neighbours_table(near, name, dict(enumerate(values.tolist())), model.ids, model.labels, names)
    return table.assign(**model.identity)


def neighbours_table(
    near: Mapping[int, Sequence[int]],
    name: str,
    values: Mapping[int, float],
    ids: Sequence[str],
    labels: torch.Tensor,
    class_names: Sequence[str],
) -> pd.DataFrame:
    """Table of queries and their neighbours, which are rows of the images, with the values of a confidence by row."""
    lines = []
    for number, (query, rows) in enumerate(near.items(), 1):
        for place, row in enumerate([query, *rows]):
            label = int(labels[row])
            found = {"confidence": name, "query": number, "place": place, "value": values.get(row, float("nan"))}
            found |= {"id": ids[row], "class": label, "class_name": class_names[row]}
            lines.append(found | {"right": label == int(labels[query]), "row": row})
    return pd.DataFrame(lines)


def mistakes_figure(table: pd.DataFrame, images: ImageSet, title: str) -> Figure:
    """Draw a sheet of mistakes: a row per query, the query on the left and its nearest neighbours after it."""
    rows = []
    for number, group in table.groupby("query"):
        frames = ["k", *(RIGHT if right else WRONG for right in group["right"].iloc[1:])]
        names = group["class_name"].str.slice(0, 14)
        rows.append((f"{number}: query", group.assign(frame=frames, text=names)))
    name = table["confidence"].iloc[0]
    text = f"{title}: most confident [{name}] wrong queries\nand their neighbours (blue: right class, orange: wrong)"
    return images_figure(rows, images, text)


def _plain(rows: Sequence[Row]) -> pd.DataFrame:
    return pd.concat([table for _, table in rows], ignore_index=True).drop(columns="row")


def _of_all(models: Sequence[TestedModel], images: ImageSet, dataset: str) -> Iterator[Drawing]:
    """Sheets of the whole data set, with a row for each model."""
    everything = torch.arange(len(images))
    title = f"{dataset}: {len(images)} test images, from the least (1) to the most confident"
    for first in range(0, len(models), ROWS):
        tables = [(model, ordered(model, everything, places(len(images)))) for model in models[first : first + ROWS]]
        rows = [(f"{textwrap.fill(model.label, 18)}\n[{confidence_name(model)}]", table) for model, table in tables]
        end = f"_{first // ROWS + 1}" if len(models) > ROWS else ""
        yield Drawing(f"images_{dataset}{end}", images_figure(rows, images, title), _plain(rows))


def _of_classes(model: TestedModel, images: ImageSet, dataset: str, number: int) -> Drawing:
    """Sheet of one model with a row for each of a few classes."""
    classes = torch.unique(images.labels).tolist()
    rows = []
    for label in (classes[place] for place in places(len(classes), ends=1, middle=CLASSES - 2)):  # far apart
        members = (images.labels == label).nonzero().squeeze(1)
        shown = places(len(members), ends=1, middle=OF_CLASS - 2)
        rows.append((images.class_names[label][:14], ordered(model, members, shown)))
    about, end = _about(model, dataset, number)
    drawn = images_figure(rows, images, f"{about}: images of each class, from the least (1) to the most confident")
    return Drawing(f"images_{dataset}_classes_{end}", drawn, _plain(rows))


def _of_mistakes(model: TestedModel, images: ImageSet, dataset: str, number: int) -> Iterator[Drawing]:
    """Sheet of the worst mistakes of one model, if it has any."""
    about, end = _about(model, dataset, number)
    table = mistakes(model, images.class_names)
    if len(table):
        drawn = mistakes_figure(table, images, about)
        yield Drawing(f"images_{dataset}_mistakes_{end}", drawn, _plain([("", table)]))


def _about(model: TestedModel, dataset: str, number: int) -> tuple[str, str]:
    """Title and end of the file name of a model's sheets."""
    name = re.sub(r"[^a-z0-9]+", "_", model.label.lower()).strip("_")
    return f"{dataset}, {model.label}".replace("\n", " "), f"{number:02d}_{name}"


def draw(source: Source, dataset: str, note: Note, *, brief: bool = False) -> Iterator[Drawing]:
    """Yield sheets of test images sorted by confidence.

    One sheet has a row per contender, shown by its first seed. Each contender also has a sheet with a row for each of a
    few classes, and one of its worst mistakes. ``brief`` leaves out all but a sheet of the first contenders, and the
    mistakes of that with the highest Recall@1.
    """
    models: list[TestedModel] = []
    for model in models_of(source, dataset, note, first=True):
        try:
            images = tested_images(source, model)
            models.append(model)
        except Missing as error:
            note(f"{dataset}, {model.label}: {error}")
    if not models:
        return
    yield from _of_all(models[:ROWS] if brief else models, images, dataset)
    best = max(models, key=lambda model: float(model.right.nanmean())) if brief else None
    for number, model in enumerate(models):
        if not brief:
            yield _of_classes(model, images, dataset, number)
        if best is None or model is best:
            yield from _of_mistakes(model, images, dataset, number)


draw_best = partial(draw, brief=True)
"""The sheets that every report has."""
