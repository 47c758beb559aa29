"""Operating points of a set of embeddings: thresholds chosen on half of its classes, and what they give on the others.

The result is a document for JSON, ``operate.json``, that a program applies without this package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .confidence import augrc
from .declare import test
from .embeddings import Embeddings
from .open_set import in_smaller_gallery
from .operating_points import MEASURED, MISSING, WISHES, Cases, choose, fit_map, measure, reliability, shares
from .retrieval_confidence import LogisticFit, evened, uniform_by_identity
from .rows import AGREEMENT, CHOSEN, MARGIN, UNDRAWN, Row, row
from .verification import class_halves, classes_in_random_order, pair_scores, pairs_among, verification_pairs

FORMAT = 1
"""Version of the document."""

DEFAULTS = {"risk": 0.05, "far": 0.01, "coverage": 0.8}
"""Wishes, if none are given."""

TOP1 = "top1_score"
"""Name of the score of an answer, and of a pair, as a confidence."""

FREE = (MARGIN, TOP1, AGREEMENT, "spread")
"""Retrieval confidences that are tried: those that a few lines compute from the scores of a query."""

QUERIES = 5_000
"""Largest number of queries that are ranked again, in half of the gallery and in all of it without their class."""

PAIRED = 10_000
"""Largest number of queries of a half that are paired, unless a small false accept rate needs more."""

CURVE = 100
"""Largest number of thresholds of a curve."""

FEWEST = 4
"""Least number of classes with queries: two choose, two are reported."""

Document = dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Decision:
    """Weights of a decision's confidences, and the cases that choose and measure thresholds; also in half a gallery."""

    form: dict[str, float]
    before: Cases
    after: Cases
    half: Cases | None = None


def document_of(
    view: Embeddings, scorer: str, wishes: Mapping[str, float] = DEFAULTS, set_up: Tensor | None = None
) -> Document:
    """Choose operating points on half of the classes and measure them on the others, both in the whole gallery.

    Decisions and wishes are those of :data:`~.operating_points.WISHES`, each without and with a guarantee at 90 %. A
    pair is decided by its score, an answer and an unknown query by the confidence of the lowest AUGRC on the half that
    chooses, among the retrieval confidences, the given image confidences, and a logistic fit of margin and agreement;
    the guarantee does not count that choice. If the set has no unknown queries, at most :data:`QUERIES` of its own also
    count as unknown, ranked in the gallery without their class. As many say what the answers' points give if a random
    half of the classes leaves the gallery. Thresholds lie half-way to the next lower confidence, since a program's last
    digits are others.

    Args:
        view: The images.
        scorer: Name of the scorer of rankings and pairs.
        wishes: Wished shares in (0, 1) by name.
        set_up: Which images have the classes that choose, bool ``[N]``; a random half of the classes of the queries if
            None.

    Returns:
        The document: numbers, texts, lists and dictionaries; None for what does not exist.

    Raises:
        ValueError: If there are too few classes, or one is in both halves; the message is one line.
    """
    queries = view.query_rows
    chosen = _half(view, queries, set_up)
    decisions: dict[str, _Decision | str] = {
        "pair": _pairs(view, scorer, queries, chosen, max(PAIRED, round(10 / wishes.get("far", 1.0))))
    }
    decisions |= _queries(view, scorer, queries, chosen)
    known = {name: each for name, each in decisions.items() if isinstance(each, _Decision)}
    points = [each for name in decisions for each in _points(name, decisions[name], wishes, view.seed("operate"))]
    maps: Document = {}
    truth: Document = {}
    for name in ("answer", "pair"):
        if name in known and len(known[name].before.right):
            fitted = fit_map(known[name].before)
            used = ("kind", "x", "y") if fitted.kind == "isotonic" else ("kind", "slope", "intercept")
            maps[name] = {key: getattr(fitted, key) for key in used}
            maps[name] |= {"confidence": known[name].form, "share_right": float(known[name].before.right.mean())}
            truth[name] = reliability(fitted(known[name].after.confidence), known[name].after.right)
    made: Document = _plain(
        {
            "format": FORMAT,
            "scorer": scorer,
            "images": len(view),
            "gallery": len(view.gallery_rows),
            "apart": view.gallery is not None and not bool(torch.isin(queries, view.gallery).any()),
            "nearest": view.asked,
            "set_on": _counts(view, queries, chosen),
            "measured_on": _counts(view, queries, ~chosen),
            "points": points,
            "probability": maps,
            "reliability": truth,
            "curve": _curve(known["answer"].after) if "answer" in known else {},
            "notes": NOTES,
        }
    )
    return made


NOTES = (
    "Accept if the weighted sum of the confidences reaches the threshold.",
    "Set on images, classes and a gallery like these: on others it does not hold by itself, so set it again there.",
    "A guarantee holds for queries drawn like those it was set on; new classes are not, and it falls short for them.",
    "Pairs are half of one class, half of two; shift the log odds of the probability if yours are not.",
)


def _half(view: Embeddings, queries: Tensor, set_up: Tensor | None) -> Tensor:
    """Which queries have the classes that choose, ``[Q]``."""
    labels = view.labels[queries]
    if len(torch.unique(labels)) < FEWEST:
        found = len(torch.unique(labels))
        raise ValueError(f"operating points need queries of {FEWEST} classes, half to choose, half to report: {found}")
    if set_up is None:
        inside = torch.zeros(len(queries), dtype=torch.bool)
        for each in (view.unknown, ~view.unknown):  # apart, so that both halves have both
            rows = each.nonzero().squeeze(1)
            if len(torch.unique(labels[rows])) > 1:
                inside[rows[class_halves(labels[rows], view.names(queries[rows]), view.seed("operate"))[0]]] = True
        return inside
    both = np.intersect1d(view.labels[set_up].numpy(), view.labels[~set_up].numpy())
    if len(both):
        raise ValueError(f"set_up: {len(both)} classes are on both sides; a class chooses or is reported, not both")
    inside = set_up[queries]
    if not 0 < int(inside.sum()) < len(inside):
        raise ValueError("set_up: no query chooses" if not inside.any() else "set_up: no query is left to report")
    return inside


def _counts(view: Embeddings, queries: Tensor, which: Tensor) -> dict[str, int]:
    """Numbers of the classes and queries that the gallery knows, and of unknown queries."""
    known = queries[which & ~view.unknown]
    return {
        "classes": len(torch.unique(view.labels[known])),
        "queries": len(known),
        "unknown": int(which.sum()) - len(known),
    }


def _pairs(view: Embeddings, scorer: str, queries: Tensor, chosen: Tensor, most: int) -> _Decision | str:
    """Sampled pairs of a query and a gallery image within whole classes of each half, or why there are none."""
    cases, seed = [], view.seed("operate")
    sizes = torch.bincount(view.labels[queries])
    for inside in (chosen & ~view.unknown, ~chosen & ~view.unknown):
        named = queries[inside]
        classes = classes_in_random_order(view.labels[named], view.names(named), seed)
        classes = classes[: max(2, int((sizes[classes].cumsum(0) <= most).sum()))]
        rows = torch.isin(view.labels, classes).nonzero().squeeze(1)
        try:
            roles = torch.stack([torch.isin(rows, queries), torch.isin(rows, view.gallery_rows)])
            pairs = pairs_among(view, rows, seed, roles)
        except ValueError as error:
            return str(error)
        scores = view.scorer(scorer).pairs(pairs.left, pairs.right).double().cpu()
        # Of most scores: a few huge ones must not make all others equal.
        scores = evened(scores, torch.frexp(scores.abs().sort().values[len(scores) * 3 // 4]).exponent)
        groups, others = (view.labels[each].numpy() for each in (pairs.left, pairs.right))
        cases.append(Cases(scores.numpy(), pairs.same.double().numpy(), groups, others))
    return _Decision({scorer: 1.0}, *cases)


def _queries(view: Embeddings, scorer: str, queries: Tensor, chosen: Tensor) -> dict[str, _Decision | str]:
    """The decisions about an answer and about unknown queries."""
    right = view.query_values(scorer, view.options.risk_ks)["recall_at_1"]
    answer, known = _decision([view], scorer, right, chosen), _known(right, view.unknown)
    decisions: dict[str, _Decision | str] = {"answer": answer}
    place = torch.arange(len(queries))
    if len(queries) > QUERIES:
        drawn = uniform_by_identity(view.names(queries), view.seed("operate"), "half gallery")
        place = drawn.argsort()[:QUERIES].sort().values
    # The agreement asks as many as in the whole gallery: a program does not know that the gallery has shrunk.
    options = replace(view.options, filter_fractions=(), nearest=view.asked)
    if bool(view.unknown.any()):
        decisions["known"] = _decision([view], scorer, known, chosen)
    else:
        # Images of the class and group of a query are none of its gallery: with one group for all, its class is not.
        alone = replace(
            view,
            queries=queries[place],
            groups=torch.zeros_like(view.labels),
            scorers={scorer: lambda: view.scorer(scorer)},
            directions=None,
            views=None,
            options=options,
        )
        both, halves = torch.cat([known, known[place] - 1.0]), torch.cat([chosen, chosen[place]])
        decisions["known"] = _decision([view, alone], scorer, both, halves)
    smaller = in_smaller_gallery(view, scorer)
    if smaller is not None:
        smaller = replace(smaller, queries=queries[place], options=options)
        left = smaller.query_values(scorer, (1,))["recall_at_1"]
        reported = ~left.isnan() & ~chosen[place]
        decisions["answer"] = replace(answer, half=_cases([smaller], scorer, answer.form, left, reported))
        smaller.release()
    return decisions


def _known(right: Tensor, unknown: Tensor) -> Tensor:
    """Whether accepting a query as known is right, ``[Q]``; nan for lone ones, which are neither."""
    return torch.where(unknown, 0.0, torch.where(right.isnan(), math.nan, 1.0)).double()


def _candidates(views: Sequence[Embeddings], scorer: str) -> dict[str, Tensor]:
    """Confidences of the queries of all views, one view after the other."""
    found = [view.retrieval_confidences(scorer) | view.confidences_of_queries() for view in views]
    of_images = [name for name in views[0].confidences if name not in ("random", *UNDRAWN)]
    return {name: torch.cat([each[name] for each in found]) for name in (*FREE, *of_images)}


def _decision(views: Sequence[Embeddings], scorer: str, right: Tensor, chosen: Tensor) -> _Decision:
    """Cases of queries, of which ``right`` ``[Q]`` is nan where they do not count, by the best confidence."""
    counted = ~right.isnan()
    candidates, before = _candidates(views, scorer), counted & chosen
    forms: list[dict[str, float]] = [{name: 1.0} for name in candidates]
    fit = LogisticFit([candidates[MARGIN], candidates[AGREEMENT]], right.masked_fill(~before, math.nan))
    if fit.found:
        forms.append(dict(zip((MARGIN, AGREEMENT), (fit.weights / fit.scale).tolist())))
    wrong = 1.0 - right[before]
    # Rounding must not decide between equal ones: the first is the simplest.
    form = min(forms, key=lambda each: round(augrc(_weighed(candidates, each)[before], wrong), 12))
    cases = (_cases(views, scorer, form, right, which) for which in (before, counted & ~chosen))
    return _Decision(form, *cases)


def _weighed(candidates: Mapping[str, Tensor], form: Mapping[str, float]) -> Tensor:
    return torch.stack([weight * candidates[name].double() for name, weight in form.items()]).sum(0)


def _cases(views: Sequence[Embeddings], scorer: str, form: Mapping[str, float], right: Tensor, which: Tensor) -> Cases:
    labels = torch.cat([view.labels[view.query_rows] for view in views])
    values = _weighed(_candidates(views, scorer), form)
    return Cases(values[which].numpy(), right[which].double().numpy(), labels[which].numpy())


REJECTED = {"pair": "different pairs that choose", "known": "unknown queries that choose"}
"""Cases of each decision that should not be accepted."""

SHARES = (*MEASURED, *(f"half_gallery_{name}" for name in MEASURED[:6]))
"""What points say of shares, with the ends of their intervals; None if it is not of their decision."""

MEASURES = {"pair": ("far", "tar"), "answer": ("coverage", "risk"), "known": ("far", "tar")}
"""What is reported of each decision: the risk of a pair, or of an unknown query, depends on how many there are."""


def _points(name: str, decision: _Decision | str, wishes: Mapping[str, float], seed: int) -> list[Document]:
    """Points of a decision, one for each wish and guarantee."""
    points: list[Document] = []
    for wish in [wish for wish in WISHES[name] if wish in wishes]:
        for missing in (None, MISSING):
            point: Document = {"decision": name, "wish": wish, "value": wishes[wish]}
            point["guarantee"] = None if missing is None else 1.0 - missing
            point |= {"confidence": {}, "threshold": None, "reason": decision}
            if isinstance(decision, _Decision):
                choice = choose(decision.before, wish, wishes[wish], missing)
                threshold = None if choice.threshold is None else _between(decision.before, choice.threshold)
                reason = choice.reason.replace("cases to reject", REJECTED.get(name, "")).replace("cases", "queries")
                point |= {"confidence": decision.form, "threshold": threshold, "reason": reason}
            points.append(point | dict.fromkeys(SHARES))
    if isinstance(decision, _Decision):
        chosen = [point for point in points if point["threshold"] is not None]
        for prefix, cases in (("", decision.after), ("half_gallery_", decision.half)):
            if cases is not None and len(cases.right):
                found = measure(cases, [point["threshold"] for point in chosen], seed=seed % 2**32)
                for point, each in zip(chosen, found):
                    point |= {f"{prefix}{key}": share for key, share in each.items() if key.startswith(MEASURES[name])}
    return points


def _between(cases: Cases, threshold: float) -> float:
    """A threshold that accepts the same cases, half-way to the next lower one: no rounding parts equal confidences."""
    lower = cases.confidence[cases.confidence < threshold]
    if not len(lower):
        return threshold - 1e-6 * abs(threshold)
    # Between adjacent floats the middle may round onto the lower one.
    return float(max(lower.max() / 2 + threshold / 2, np.nextafter(lower.max(), math.inf)))


def _curve(cases: Cases) -> Document:
    """Coverage and risk at thresholds between which about as many cases lie."""
    order = np.argsort(-cases.confidence, kind="stable")
    values, wrong = cases.confidence[order], (1.0 - cases.right[order]).cumsum()
    last = np.flatnonzero(np.diff(values, append=-math.inf))  # equal ones are accepted together
    place = np.unique(last[np.linspace(0, len(last) - 1, CURVE).round().astype(int)]) if len(last) else last
    columns = {"coverage": (place + 1) / len(order), "risk": wrong[place] / (place + 1)}
    made = {name: column.tolist() for name, column in columns.items()}
    return {"threshold": [_between(cases, each) for each in values[place].tolist()], **made}


def _plain(value: Any) -> Any:
    """The same with None in place of numbers that do not exist, which JSON does not have, and lists for tuples."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


HALF = ",gallery=half"
"""End of the variant of values in a gallery that a random half of the classes has left."""


_SetUp = tuple[dict[str, float], dict[str, float]]
"""The weights that a decision goes by, and its thresholds by wish; nan if none grants it."""


def _thresholds(name: str, cases: Cases) -> dict[str, float]:
    chosen = {wish: choose(cases, wish, DEFAULTS[wish]).threshold for wish in WISHES[name]}
    return {wish: math.nan if value is None else value for wish, value in chosen.items()}


@test(group="operating", per="own scorer", needs=("validation",))
def operating(view: Embeddings, scorer: str) -> Iterator[Row]:
    """What thresholds give on test images that clean images of all validation classes set, without a guarantee.

    Decisions and wishes are the defaults of ``bench score --operate`` (:func:`document_of`). ``operating_coverage`` is
    the share of queries that are answered, ``operating_risk`` the share of wrong ones among these; the variant is the
    wish, such as ``risk=0.05``, with ``,gallery=half`` of the queries whose class stays if a random half of the classes
    leaves the gallery. The confidence is called ``chosen``: validation images chose it.
    ``operating_far`` and ``operating_tar`` are the accepted shares of different and of same pairs, by their score
    (variant ``pair,far=0.01`` of ``top1_score``), and in half of the gallery those of unknown and of known queries
    (``known,far=0.01``). Values are nan if no threshold grants the wish, or nothing is accepted. There are no rows if
    the validation classes were trained on.
    """
    validation = view.validation
    if validation is None or view.validation_split != "val":
        return
    found = validation.once(f"operating points {scorer}", lambda: _set_up(validation, scorer))
    smaller = in_smaller_gallery(view, scorer)
    known = view.query_values(scorer, (1,))["recall_at_1"]
    for gallery, of in (("", view), (HALF, smaller)):
        if of is not None:
            right = of.query_values(scorer, (1,))["recall_at_1"]
            cases = _cases([of], scorer, found["answer"][0], right, ~right.isnan())
            yield from _rows("answer", found, cases, gallery, len(right) - len(cases.right))
    if smaller is not None and "known" in found:
        left = smaller.query_values(scorer, (1,))["recall_at_1"]
        right = _known(left, left.isnan() & ~known.isnan())
        cases = _cases([smaller], scorer, found["known"][0], right, ~right.isnan())
        yield from _rows("known", found, cases)
        smaller.release()
    yield from _rows("pair", found, _sampled(view, scorer))


def _rows(name: str, found: Mapping[str, _SetUp], cases: Cases, gallery: str = "", lone: int = 0) -> Iterator[Row]:
    """What the thresholds of a decision give on test images."""
    confidence, start = TOP1 if name == "pair" else CHOSEN, "" if name == "answer" else f"{name},"
    for wish, threshold in found[name][1].items():
        given, variant = shares(cases, threshold), f"{start}{wish}={DEFAULTS[wish]:g}{gallery}"
        made = partial(row, confidence=confidence, variant=variant, n_queries=len(cases.right), n_lone=lone)
        yield from (made(f"operating_{share}", given[share]) for share in MEASURES[name])


def _sampled(view: Embeddings, scorer: str) -> Cases:
    same = verification_pairs(view).same.double().numpy()
    return Cases(pair_scores(view, scorer).double().cpu().numpy(), same, np.zeros(len(same)))


def _set_up(validation: Embeddings, scorer: str) -> dict[str, _SetUp]:
    """What validation images set, by decision."""
    right = validation.query_values(scorer, (1,))["recall_at_1"]
    every = torch.ones(len(right), dtype=torch.bool)
    decisions = {"answer": _decision([validation], scorer, right, every)}
    smaller = in_smaller_gallery(validation, scorer)
    if smaller is not None:
        left = smaller.query_values(scorer, (1,))["recall_at_1"]
        decisions["known"] = _decision([smaller], scorer, _known(left, left.isnan() & ~right.isnan()), every)
        smaller.release()
    found = {name: (each.form, _thresholds(name, each.before)) for name, each in decisions.items()}
    return found | {"pair": ({scorer: 1.0}, _thresholds("pair", _sampled(validation, scorer)))}
