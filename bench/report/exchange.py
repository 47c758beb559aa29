"""Results in the forms of the Hugging Face Hub: its model-index and ``.eval_results``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ..protocols.metrics import title_of
from ..protocols.statistics.paired import Summary, summarise
from ..seeds import content_id
from ..store.files import write_atomic
from .frame import Results, rescorings
from .seeds import COMPARED, ComparedColumn, SeedGroup, defined_values, seed_groups

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from ..site import Site

NAME, ADDRESS = "probembed", "https://pypi.org/project/probembed/"
"""What made the results, as other places name it."""

TASK = "image-feature-extraction"
"""Task of the Hub that an image embedding is of."""

TAGS = ("metric-learning", "image-retrieval", "uncertainty")
"""Tags of every model."""

OF_CONFIDENCE = (
    ComparedColumn("confidence_auroc"),
    ComparedColumn("augrc", variant="recall_at_1"),
)
"""What is given of the default confidence on clean images, beside the columns of the comparison."""

EVAL_RESULTS = f".eval_results/{NAME}.yaml"
"""File of results in a repository of a model. The Hub shows those on data sets that it took in as benchmarks."""


@dataclass(frozen=True)
class Published:
    """Means of a contender, with what other places want to know of its method and data set.

    ``hub`` is the repository of the data set on the Hub; empty if there is none, and if only a part of the release was
    there.
    """

    group: SeedGroup
    values: tuple[tuple[ComparedColumn, Summary], ...]
    title: str
    tags: Sequence[str]
    hub: str

    @classmethod
    def of(cls, group: SeedGroup, site: Site) -> Self:
        """The values of a group; a metric without any is left out."""
        columns = [(column, defined_values(group.column(column))) for column in (*COMPARED, *OF_CONFIDENCE)]
        values = tuple((column, summarise(list(found.values()))) for column, found in columns if found)
        method, dataset = group.contender.method, group.contender.dataset
        data = site.datasets.dataset(dataset) if dataset in site.datasets.names else None
        return cls(
            group,
            values,
            site.methods.get(method).title if method in site.methods.names else method,
            paper_tags(site, method),
            "" if group.contender.pinned.partial else getattr(data, "hub", ""),
        )

    def details(self, column: ComparedColumn, summary: Summary) -> dict[str, str]:
        """How a value came about, as texts by name."""
        of = self.group.contender
        about = {"images": column.split, "classes": "none of them trained on", "network": of.network}
        about |= {"scorer": self.group.scorer, "variant": self.group.variant(column), "pinned": str(of.pinned)}
        about |= {"confidence": self.group.confidence} if column.of_confidence else {}
        interval = "" if math.isnan(summary.sd) else f", 95 % t-interval [{summary.ci_low:.4f}, {summary.ci_high:.4f}]"
        return {key: value for key, value in about.items() if value} | {f"{of.unit}s": f"{summary.n}{interval}"}


def paper_tags(site: Site, method: str) -> list[str]:
    """Tag that puts a model on the page of its method's paper, if that is on arXiv."""
    paper = site.methods.method(method).paper if method in site.methods.names else None
    return [f"arxiv:{paper.arxiv}"] if paper is not None and paper.arxiv else []


def published(results: Results, site: Site) -> list[Published]:
    """What each contender of the results reached."""
    return [Published.of(group, site) for group in seed_groups(results.measured)]


def of_training(site: Site, unit: str) -> Published | None:
    """What a training reached in its latest test, rescored or not; None if it has none."""
    tests = [record for record in site.store.tests() if record.spec.train == (unit,)]
    latest = max(tests, key=lambda record: record.finished, default=None)
    if latest is None:
        return None
    return published(Results((latest,), rescorings=rescorings([site.store], [latest])), site)[0]


def model_index(each: Published) -> list[EvalResult]:
    """Entries of the model-index in the header of a model card."""
    from huggingface_hub import EvalResult

    dataset = each.group.contender.dataset
    return [
        EvalResult(
            task_type=TASK,
            dataset_type=each.hub or dataset,
            dataset_name=f"{dataset}, images {column.split}",
            metric_type=column.metric,
            metric_name=title_of(column.metric),
            metric_value=summary.mean,
            metric_args=each.details(column, summary),
            source_name=NAME,
            source_url=ADDRESS,
        )
        for column, summary in each.values
    ]


def header(name: str, method: str, tags: Sequence[str], results: Sequence[EvalResult]) -> str:
    """Header of a model card, in YAML, with the results of tests if there are any."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name=NAME,
        pipeline_tag=TASK,
        tags=[*TAGS, method, *tags],
        model_name=name,
        eval_results=list(results) or None,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def eval_results(each: Published) -> str:
    """Content of a file in ``.eval_results``, YAML as JSON; empty if the data set has no repository on the Hub."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    if not each.hub:
        return ""
    entries = [
        EvalResultEntry(
            dataset_id=each.hub,
            task_id=column.metric if column.split == "test" else f"{column.metric}_{column.split}",
            value=summary.mean,
            source_url=ADDRESS,
            source_name=NAME,
            notes="; ".join(f"{key}: {value}" for key, value in each.details(column, summary).items()),
        )
        for column, summary in each.values
    ]
    return json.dumps(eval_result_entries_to_yaml(entries), indent=1, ensure_ascii=False) + "\n"


def write_hub(results: Sequence[Published], out: Path) -> list[Path]:
    """Write the header of a model card for each contender, and ``.eval_results`` where the Hub has the data set."""
    written = []
    for each in results:
        of = each.group.contender
        place = out / "hub" / of.dataset / f"{of.method}-{content_id(str(of))}"  # the same in every report
        card = header(each.title, of.method, each.tags, model_index(each))
        for path, text in ((place / "README.md", card), (place / EVAL_RESULTS, eval_results(each))):
            if text:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, text.encode())
                written.append(path)
    return written
