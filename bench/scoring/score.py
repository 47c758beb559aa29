"""Testing embeddings that were trained elsewhere: the tests of ``bench run`` on arrays, and comparisons of two sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..errors import BadInput, UnknownName
from ..methods.distributions.arrays import from_arrays, rows_of, to_arrays
from ..methods.distributions.normal import PointMass
from ..methods.distributions.von_mises_fisher import VonMisesFisher
from ..methods.scorers.registry import SCORERS, pairwise_score
from ..protocols.declare import run_battery
from ..protocols.embeddings import Embeddings
from ..protocols.known_tests import load_tests
from ..protocols.metrics import Metric, find_metric, known_metrics, metric_requests
from ..protocols.ranking import NotFiniteError
from ..protocols.rows import MARGIN, Row
from ..protocols.statistics.bootstrap import paired_bootstrap
from ..seeds import seed_for
from ..store.records import COLUMNS
from .embedding_set import EmbeddingSet
from .view import distribution_of, numbered_classes, primary_of, view_of

if TYPE_CHECKING:
    import pandas as pd

OPEN_SET, COSINE = "open_set", "cosine"

_MANY = 0.1
"""Share of near-duplicates from which it is said. Frozen networks (SqueezeNet, EfficientNet-Lite0) give 0.17 to 0.25 on
Grocery Store, which has bursts, 0.003 to 0.006 on CUB, at most 0.03 on normal classes of 64 dimensions."""

_DIMENSIONS = 50
"""Effective dimensions of the classes below which a nearest image is near by chance: then nothing is said."""

_SAMPLE = 1000


@dataclass(frozen=True)
class Scored:
    """Results of the tests of one set of embeddings, sorted by identity, and what they were computed from.

    Values per query ``[Q]`` are by name of the scorer, then of the metric; nan without a positive in the gallery. They
    and the retrieval confidences are empty if no metric of a ranking was asked for and there is no confidence to judge.
    ``primary`` is the confidence that is judged: the given one, else the distribution's; empty if neither exists.
    ``copies`` is the share of near-duplicates of :func:`_near_duplicates`, 0 with groups.
    ``asked`` has the rows of another set as further queries, for tests of unknown ones; without, it is ``given``.
    ``view`` is what the tests of unknown ones saw, without its ranking.
    """

    rows: tuple[Row, ...]
    given: EmbeddingSet
    asked: EmbeddingSet
    queries: Tensor
    values: dict[str, dict[str, Tensor]]
    confidences: dict[str, Tensor]
    retrieval: dict[str, dict[str, Tensor]]
    primary: str
    copies: float
    view: Embeddings

    @property
    def near_duplicates(self) -> float | None:
        """Share of near-duplicates, if it is worth a word."""
        return self.copies if self.copies > _MANY else None

    @property
    def shown(self) -> tuple[str, Tensor | None]:
        """Name of the confidence that figures show, and its values ``[Q]``: the primary one, else the free margin."""
        if self.primary:
            return self.primary, self.confidences[self.primary][self.queries]
        free = next(iter(self.retrieval.values()), {}).get(MARGIN)
        return ("", None) if free is None else (MARGIN, free)


def score_set(
    images: EmbeddingSet,
    *,
    scorers: Sequence[str],
    metrics: Sequence[str],
    normalize: bool = True,
    device: str = "cpu",
    curves: bool = False,
    unknown: EmbeddingSet | None = None,
) -> Scored:
    """Compute the wanted metrics of a set of embeddings under each scorer.

    ``unknown`` is the set with rows of another one (:meth:`EmbeddingSet.with_unknown`), for the open-set test alone.
    With ``curves``, filter-out curves are computed of free confidences, too, if none is given.
    """
    asked = (metrics,) if isinstance(metrics, str) else metrics
    wanted = wanted_metrics(asked if unknown is None else [*asked, OPEN_SET])
    names = (scorers,) if isinstance(scorers, str) else tuple(dict.fromkeys(scorers))
    ordered = images.in_order()
    extended = ordered if unknown is None else unknown.in_order()
    distribution = distribution_of(ordered, normalize)
    check_scorers(names, distribution)
    groups, tested = groups_of_tests(wanted), ordered
    try:
        view = view_of(ordered, distribution, names, ks=recall_ks(wanted), device=device, curves=curves)
        primary = primary_of(view.confidences)
        ranked = bool(primary) or "retrieval" in groups
        if not ranked:  # free confidences are not worth a ranking that nobody asked for
            groups.discard("risk")
        found = run_battery(view, load_tests(groups if unknown is None else groups - {OPEN_SET}))
        if unknown is not None:
            tested = extended
            open_view = view_of(extended, distribution_of(extended, normalize), names, device=device)
            found += run_battery(open_view, load_tests([OPEN_SET]))
        rows = [row for row in found if is_wanted(row["metric"], wanted)]
    except NotFiniteError as error:
        row, what = "", "the embeddings"
        if error.image is not None:
            place, known = tested.embeddings.order[error.image], len(ordered.embeddings.stored)
            row = f", most of them with row {place if place < known else f'{place - known} of unknown'} (from 0)"
            what = "that row or drop it"
        raise BadInput(f"{error}{row}; scale {what}, or use another scorer") from None
    except ValueError as error:
        raise BadInput(str(error)) from None
    values = {name: view.query_values(name) if ranked else {} for name in names}
    retrieval = {name: view.retrieval_confidences(name) if ranked else {} for name in names}
    queries = torch.from_numpy(ordered.is_query).nonzero().squeeze(1)
    copies = 0.0
    if ranked and COSINE in names and ordered.groups is None:
        answers = view.once(f"answers {COSINE}", lambda: view.ranking(COSINE).neighbours[:, 0])
        copies = _near_duplicates(view, answers.long())
    view.release()
    of_view = dict(view.confidences), retrieval, primary, copies, view if unknown is None else open_view
    return Scored(tuple(rows), ordered, extended, queries, values, *of_view)


def _near_duplicates(view: Embeddings, answers: Tensor) -> float:
    """Share of images that form a pair with an image of their class: closest to each other, and close for their class.

    The image of each is the answer to the other, and their cosine distance is less than half of that to the class on
    average. One such pair a class is left out: where some images are sharper than others, there is one.
    ``answers`` are those of a ranking by the cosine, of images that are queries and gallery, ``[N]``; 0 for others.
    """
    unit, labels, rows = view.unit_rows, view.labels, torch.arange(len(view))
    sizes = torch.bincount(labels)
    if len(answers) < len(view) or int(sizes.max()) < 3:
        return 0.0
    sums = torch.zeros(len(sizes), unit.shape[1], dtype=torch.float64)
    for part in rows.split(_SAMPLE):
        sums.index_add_(0, labels[part], unit[part])
    mates = sizes[labels]
    some = rows[:: -(-len(rows) // _SAMPLE)]
    spread = unit[some] - sums[labels[some]] / mates[some, None]
    if spread.square().sum().square() <= _DIMENSIONS * (spread @ spread.mT).square().sum():
        return 0.0
    pairs = (answers[answers] == rows) & (labels[answers] == labels) & (mates > 2)
    near = torch.zeros(len(sizes), dtype=torch.long)
    for part in pairs.nonzero().squeeze(1).split(_SAMPLE):
        of, apart = labels[part], 1.0 - (unit[part] * unit[answers[part]]).sum(1)
        of_class = 1.0 - ((unit[part] * sums[of]).sum(1) - 1.0) / (mates[part] - 1)
        near += torch.bincount(of[2.0 * apart < of_class], minlength=len(sizes))
    return float((near - 2).clamp_min(0).sum()) / len(rows)


def wanted_metrics(metrics: Sequence[str]) -> dict[str, Metric]:
    """Expand names of metrics and of groups of metrics into single metrics; ``all`` stands for those of all groups.

    Example:
        >>> list(wanted_metrics(["clustering", "recall_at_16"]))
        ['nmi', 'ami', 'pair_f1', 'recall_at_16']
    """
    requests = metric_requests()
    singles = {name for members in requests.values() for name in members}
    wanted: dict[str, Metric] = {}
    for name in (metrics,) if isinstance(metrics, str) else metrics:
        for member in sorted(singles) if name == "all" else requests.get(name, (name,)):
            metric = find_metric(member)
            if metric is None or not metric.has_request:
                raise BadInput(str(UnknownName("metric", member, {*requests, *singles, "all"})))
            wanted[member] = metric
    if not wanted:
        raise BadInput("no metric asked for; name at least one, such as map_at_r")
    return wanted


def recall_ks(wanted: dict[str, Metric]) -> tuple[int, ...]:
    """Values of k for which Recall@k is wanted, ascending. They include 1, because confidences are judged by Recall@1.

    Example:
        >>> recall_ks(wanted_metrics(["recall_at_16", "nmi"]))
        (1, 16)
    """
    values = [metric.values(name) or {} for name, metric in wanted.items() if metric.family]
    return tuple(sorted({1, *(int(value["k"]) for value in values if "k" in value)}))


def groups_of_tests(wanted: dict[str, Metric]) -> set[str]:
    """Names of the groups of tests that the wanted metrics need, and of those that judge any confidence.

    Example:
        >>> sorted(groups_of_tests(wanted_metrics(["nmi"])))
        ['ambiguity', 'calibration', 'clustering', 'filter_out', 'operating', 'quality', 'risk', 'soft_labels']
    """
    of_confidences = {metric.group for metric in known_metrics().values() if not metric.has_request}
    return of_confidences | {metric.group for metric in wanted.values()}


def is_wanted(name: str, wanted: dict[str, Metric]) -> bool:
    """Check if a metric is wanted by name, or is computed whenever there is a confidence.

    Example:
        >>> wanted = wanted_metrics(["edc_pauc"])
        >>> is_wanted("edc_pauc", wanted), is_wanted("edc_fnmr", wanted), is_wanted("aurc", wanted)
        (True, False, True)
    """
    metric = find_metric(name)
    return name in wanted or metric is None or not metric.has_request


def check_scorers(scorers: Sequence[str], distribution: Distribution) -> None:
    """Check that scorers exist and are defined for the embeddings; the message suggests others."""
    if not scorers:
        raise BadInput("no scorer asked for; name at least one, such as cosine")
    for name in scorers:
        if name not in SCORERS:
            raise BadInput(str(UnknownName("scorer", name, SCORERS)))
    two = rows_of(distribution, torch.tensor([0, 1]))
    # Any two numbers will do: what those of the set give is for the rankings to say.
    kind, arrays = to_arrays(two)
    small = from_arrays(kind, {name: torch.full_like(value, 0.5 / value.shape[-1]) for name, value in arrays.items()})
    for name in scorers:
        if not _fits(name, small):
            fitting = [other for other in SCORERS if _fits(other, small)]
            names = {
                PointMass: "that are points (no variance, no concentration)",
                VonMisesFisher: "with a concentration",
            }
            what = names.get(type(two), "with a variance per image or dimension")
            raise BadInput(f"scorer {name!r} is not defined for embeddings {what}; these are: {', '.join(fitting)}")


def _fits(scorer: str, distribution: Distribution) -> bool:
    try:
        pairwise_score(scorer, distribution, distribution)
    except ValueError:
        return False
    return True


def tidy(scored: Mapping[str, Scored]) -> pd.DataFrame:
    """Make the tidy table of results by name, as in ``metrics.csv``; the names are in the column ``method``."""
    import pandas as pd

    empty: dict[str, object] = dict.fromkeys(COLUMNS, "")
    rows: list[dict[str, object]] = []
    for name, each in scored.items():
        constant = {"protocol": "score", "method": name, "trials": 0, "seed": 0, "split": "test"}
        of_set = {"dim": each.given.embeddings.shape[1], "unit": each.given.digest()}
        rows += [{**empty, **constant, **of_set, **item} for item in each.rows]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"value": float, "fraction": float})


def compare(
    first: Scored, other: Scored, metrics: Sequence[str], *, by: str = "queries", resamples: int = 2000
) -> list[dict[str, object]]:
    """Compute differences of metrics, means over queries, between two sets of embeddings, other minus first.

    Differences are paired by query and have 95 % bootstrap intervals. The other set was aligned with the first
    (:meth:`EmbeddingSet.aligned_with`) and scored by the same scorers. Only metrics that are means over queries are
    compared. ``by`` draws ``queries`` (the classes stay as they are) or whole ``classes`` with replacement; the column
    ``resampled`` has its name.
    """
    differences: list[dict[str, object]] = []
    for scorer, values in first.values.items():
        names = [name for name in values if name in wanted_metrics(metrics)]
        if not names:
            continue
        a, b = (torch.stack([each[scorer][name] for name in names], 1) for each in (other.values, first.values))
        counted = ~b.isnan().any(1)
        classes = numbered_classes(first.given.labels)[first.queries.numpy()][counted.numpy()]
        labels = classes if by == "classes" else None
        seed = seed_for("score", "bootstrap") % 2**32
        intervals = paired_bootstrap(a[counted].numpy(), b[counted].numpy(), labels, resamples=resamples, seed=seed)
        for name, interval in zip(names, intervals):
            differences.append(
                {
                    "scorer": scorer,
                    "metric": name,
                    "difference": interval.difference,
                    "ci95_low": interval.ci_low,
                    "ci95_high": interval.ci_high,
                    "resampled": by,
                    "units": interval.units,
                }
            )
    return differences
