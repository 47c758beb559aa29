"""Results in the forms of other places: the Hugging Face Hub's model-index and ``.eval_results``, Every Eval Ever."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ..protocols.metrics import title_of
from ..protocols.statistics.paired import Summary, summarise
from ..seeds import content_id
from ..store.files import write_atomic
from ..store.records import TestRecord
from .contender import Contender
from .frame import Results
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

SCHEMA = "0.3.0"
"""Version of Every Eval Ever's schema (arXiv:2606.14516)."""


@dataclass(frozen=True)
class Published:
    """Means of a contender, with what other places want to know of its method and data set.

    ``hub`` is the repository of the data set on the Hub, ``source`` the address of its owners; empty if there is none,
    and if only a part of the release was there.
    """

    group: SeedGroup
    values: tuple[tuple[ComparedColumn, Summary], ...]
    title: str
    tags: Sequence[str]
    hub: str
    source: str
    bench: str
    finished: float

    @classmethod
    def of(cls, group: SeedGroup, site: Site, tests: Iterable[TestRecord]) -> Self:
        """The values of a group; a metric without any is left out."""
        own = [record for record in tests if Contender.of_columns(record.columns) == group.contender]
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
            getattr(data, "source", ""),
            own[-1].environment.bench,
            max(record.finished for record in own),
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
    return [Published.of(group, site, results.tests) for group in seed_groups(results.measured)]


def of_training(site: Site, unit: str) -> Published | None:
    """What a training reached in its latest test; None if it has none."""
    tests = [record for record in site.store.tests() if record.spec.train == (unit,)]
    latest = max(tests, key=lambda record: record.finished, default=None)
    return None if latest is None else published(Results((latest,)), site)[0]


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


def every_eval_ever(each: Published) -> dict[str, object]:
    """Document of Every Eval Ever about a contender."""
    contender, time = each.group.contender, str(int(each.finished))
    model = f"{NAME}/{contender.method}-{contender.dataset}-{content_id(str(contender))}"
    data: dict[str, object] = {"dataset_name": contender.dataset, "source_type": "other"}
    if each.hub:
        data |= {"source_type": "hf_dataset", "hf_repo": each.hub}
    elif each.source.startswith("http"):
        data |= {"source_type": "url", "url": each.source.split()[:1]}
    return {
        "schema_version": SCHEMA,
        "evaluation_id": f"{contender.dataset}/{model}/{time}",
        "evaluation_timestamp": time,
        "retrieved_timestamp": time,
        "source_metadata": {
            "source_name": NAME,
            "source_type": "evaluation_run",
            "source_organization_name": "not given",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": NAME, "version": each.bench or "unknown"},
        "model_info": {
            "name": f"{each.title} ({contender.label}, {contender.network})",
            "id": model,
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown",
                **dict(tag.split(":", 1) for tag in each.tags),
                "hyperparameters": contender.tuning,
            },
        },
        "evaluation_results": [_evaluation(each, data, *value) for value in each.values],
    }


def _evaluation(
    each: Published, data: dict[str, object], column: ComparedColumn, summary: Summary
) -> dict[str, object]:
    """A value as an evaluation result: its metric, its score and the interval over replicates or seeds."""
    metric, title, details = column.declared, title_of(column.metric), each.details(column, summary)
    low, high = (
        number if math.isfinite(number) else f"{'-' * (number < 0)}Infinity" for number in (metric.low, metric.high)
    )
    uncertainty: dict[str, object] = {"num_samples": summary.n}
    if not math.isnan(summary.sd):
        interval = {"lower": summary.ci_low, "upper": summary.ci_high, "confidence_level": 0.95, "method": "t"}
        uncertainty |= {"standard_deviation": summary.sd, "confidence_interval": interval}
    return {
        "evaluation_result_id": f"{column.split}/{column.metric}",
        "evaluation_name": f"{each.group.contender.dataset}: {title} ({column.split})",
        "source_data": data,
        "metric_config": {
            "metric_id": column.metric,
            "metric_name": title,
            "metric_unit": {"share": "proportion"}.get(metric.unit, metric.unit),
            "lower_is_better": metric.better == "lower",
            "score_type": "continuous",
            "min_score": low,
            "max_score": high,
        },
        "score_details": {"score": summary.mean, "details": details, "uncertainty": uncertainty},
    }


def write_every_eval_ever(results: Sequence[Published], out: Path) -> list[Path]:
    """Write one document a contender."""
    return [
        _write(place.with_name(f"{place.name}.json"), json.dumps(every_eval_ever(each), indent=1))
        for each, place in _places(results, out / "every_eval_ever")
    ]


def write_hub(results: Sequence[Published], out: Path) -> list[Path]:
    """Write the header of a model card for each contender, and ``.eval_results`` where the Hub has the data set."""
    written = []
    for each, place in _places(results, out / "hub"):
        card = header(each.title, each.group.contender.method, each.tags, model_index(each))
        written.append(_write(place / "README.md", card))
        entries = eval_results(each)
        written += [_write(place / EVAL_RESULTS, entries)] if entries else []
    return written


def _places(results: Sequence[Published], out: Path) -> Iterator[tuple[Published, Path]]:
    """Each contender with its place, which is the same in every report."""
    for each in results:
        of = each.group.contender
        yield each, out / of.dataset / f"{of.method}-{content_id(str(of))}"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())
    return path
