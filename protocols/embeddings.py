"""The view that tests have of embedded images: named arrays and scorers, never a model or a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from .query_metrics import per_query
from .ranking import Ranking, Scorer, agreeing, answer_depth, filter_depth, full_depth, rank
from .retrieval_confidence import JUDGED_BY, consistency, posterior, retrieval_confidences, view_agreement
from .rows import UNDRAWN, Row, SplitRow, kind_of, row

T = TypeVar("T")


def seed_of(purpose: str) -> int:
    """Seed of a random draw, a non-negative integer that depends on the name of the draw's purpose alone."""
    return int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the tests of embeddings, with the meaning that they have in :class:`bench.protocols.Tests`.

    Attributes:
        recall_ks: Values of k for Recall@k.
        risk_ks: Values of k for which Recall@k of every query is computed, with MAP@R, to judge confidences. The
            largest sets the length of sums, so it can change the last bit of these values.
        filter_fractions: Shares of the least confident images that are removed, one per point of a filter-out curve.
        false_positive_rate: False positive rate at which the true positive rate of verification is given.
        nearest_roc_point: Also give errors and rates of verification at the nearest point of the ROC.
        held_out_threshold: Also choose a verification threshold on half of the classes and test it on the other half.
        starts: Independent starts of k-means; with several, the spread of what they end in is given, too.
        nearest: Number of neighbours that the agreement asks; by default :func:`~bench.protocols.ranking.agreeing`.
    """

    recall_ks: tuple[int, ...] = (1, 2, 4, 8)
    risk_ks: tuple[int, ...] = (1,)
    filter_fractions: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    false_positive_rate: float = 1e-3
    nearest_roc_point: bool = False
    held_out_threshold: bool = False
    starts: int = 1
    nearest: int | None = None


@dataclass(frozen=True, kw_only=True)
class Quality:
    """A known quality of the images, such as the size of a crop, which a confidence should follow.

    Attributes:
        values: Quality of each image, ``[N]``, higher = better; 1 - severity for corrupted images.
        kind: Name of the corruption, such as ``crop``; metrics are named after it, as in ``spearman_crop``.
        variant: Entry of the column ``variant`` in tables of results, to distinguish this quality from others of the
            same kind.
        clean: Confidences of the same images without the corruption by name, each ``[N]``, if they are known.
    """

    values: Tensor
    kind: str = "crop"
    variant: str = ""
    clean: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Embeddings:
    """A set of N embedded images, as the tests of embeddings see it.

    Values that several tests need (rankings, pairs, clusters) are computed once, on first use. For a corrupted version
    of the same images, copy the set with :func:`dataclasses.replace`: the copy shares what depends on labels and
    identities alone. Rows are positions 0..N-1 of images.

    Attributes:
        labels: Classes, ``[N]`` integers.
        ids: Permanent name of each image; random draws depend on it, not on the order of the images.
        scorers: Functions that make the scorers (similarities to rank by), by name; each is called when its scorer is
            needed.
        own_scorers: Names of the scorers by which filter-out curves, calibration and retrieval sets are made.
        confidences: Image confidences by name, each ``[N]``, higher = more confident. They are known before there is a
            gallery; those that need a ranking are :meth:`retrieval_confidences`. Random numbers may be included for
            comparison, under the name ``random``.
        queries: Rows that are queries, ascending; all if None.
        gallery: Rows that are searched; all if None.
        groups: Group of each image (camera, burst, person-session), ``[N]`` integers from 0: images of the query's
            class and group are not in its gallery. None if every image is a group of its own.
        directions: Function that makes the unit embeddings ``[N, D]``, float64.
        concentration: Function that tells how unit embeddings of a class scatter, from clean images of other classes
            than are tested (of validation images: from all of them): the concentration of a von Mises-Fisher, and its
            log density at the mode above that of the uniform one; None if that is not known.
        views: Function that makes the unit embeddings of V other views of every image, ``[V, N, D]``.
        quality: A known quality of the images, such as the size of a crop, with which confidences are correlated.
        soft_labels: Label distributions given by people, ``[N, K]``, rows of nan if an image has none.
        posterior: Function that makes the exact probabilities of the classes 0 to C - 1 given each image, ``[N, C]``,
            rows of nan if they are not known. It exists for images that were made through a known channel.
        validation: Embedded images of other classes, on which thresholds are chosen and combined confidences fitted.
        validation_split: Name of the split that ``validation`` is: ``val``, or ``train`` if a model was trained on it.
        candidates: Function that makes a scorer by the distance of the embedding distributions' modes. The public code
            of "Probabilistic Embeddings Revisited" (PER) chooses a query's candidates by this scorer and ranks only
            these (:mod:`bench.protocols.reranked`).
        held_out: Whether these are validation images, on whose clean versions combined confidences are fitted.
        clean: Whether the images are not corrupted.
        seed: Function that returns the seed of a random draw from the name of its purpose.
        options: Options of the tests.
        shared: Cache of values that depend on labels and identities alone, shared with copies of the set.

    Raises:
        ValueError: If lengths differ, identities repeat, a confidence or quality is not finite, or an image confidence
            has the name of one that needs a ranking.
    """

    labels: Tensor
    ids: tuple[str, ...]
    scorers: Mapping[str, Callable[[], Scorer]] = field(default_factory=dict)
    own_scorers: tuple[str, ...] = ()
    confidences: Mapping[str, Tensor] = field(default_factory=dict)
    queries: Tensor | None = None
    gallery: Tensor | None = None
    groups: Tensor | None = None
    directions: Callable[[], Tensor] | None = None
    concentration: Callable[[], tuple[float, float] | None] | None = None
    views: Callable[[], Tensor] | None = None
    quality: Quality | None = None
    soft_labels: Tensor | None = None
    posterior: Callable[[], Tensor] | None = None
    validation: Embeddings | None = None
    validation_split: Literal["val", "train"] = "val"
    candidates: Callable[[], Scorer] | None = None
    held_out: bool = False
    clean: bool = True
    seed: Callable[[str], int] = seed_of
    options: Options = Options()
    shared: dict[str, object] = field(default_factory=dict, repr=False)
    _cache: dict[str, object] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.ids)
        if self.labels.shape != (count,):
            raise ValueError(f"{count} ids but labels of shape {tuple(self.labels.shape)}")
        if len(set(self.ids)) != count:
            raise ValueError("image ids repeat")
        for name in self.confidences:
            if kind_of(name) in ("retrieval", "combined"):
                raise ValueError(f"{name!r} is the name of a {kind_of(name)} confidence; rename the image confidence")
        arrays = dict(self.confidences) | ({} if self.quality is None else {"quality": self.quality.values})
        for name, values in arrays.items():
            if values.shape != (count,):
                what = "the quality" if name == "quality" else f"the confidence {name!r}"
                raise ValueError(f"{what} has shape {tuple(values.shape)}; one number per image is ({count},)")
            if not torch.isfinite(values).all():
                raise ValueError(f"{name} has values that are not finite")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def query_rows(self) -> Tensor:
        """Rows that are queries, ``[Q]``, also if all are."""
        return torch.arange(len(self)) if self.queries is None else self.queries

    @property
    def gallery_rows(self) -> Tensor:
        """Rows that are searched, ``[G]``, also if all are."""
        return torch.arange(len(self)) if self.gallery is None else self.gallery

    def names(self, rows: Tensor) -> list[str]:
        """Identities of the images in some rows."""
        return [self.ids[i] for i in rows.tolist()]

    @property
    def unit_vectors(self) -> Tensor:
        """Embeddings of length 1, float64 ``[N, D]``, computed on first use.

        Raises:
            ValueError: If the set was made without the function ``directions``.
        """
        if self.directions is None:
            raise ValueError("these embeddings have no directions")
        return self.once("unit vectors", self.directions)

    @property
    def unit_rows(self) -> Any:
        """Unit embeddings to be read by rows; ``directions`` that make some alone make no copy of all."""
        alone = hasattr(self.directions, "__getitem__") and "unit vectors" not in self._cache
        return self.directions if alone else self.unit_vectors

    def once(self, name: str, compute: Callable[[], T], *, shared: bool = False) -> T:
        """A value that several tests need, computed on the first call and kept under its name.

        If it depends on labels and identities alone, it may be ``shared`` with corrupted versions of the same images.

        Example:
            >>> view = Embeddings(labels=torch.tensor([0, 0]), ids=("a", "b"))
            >>> view.once("classes", lambda: 1), view.once("classes", lambda: 2)
            (1, 1)
        """
        cache = self.shared if shared else self._cache
        if name not in cache:
            cache[name] = compute()
        return cast("T", cache[name])

    def scorer(self, name: str) -> Scorer:
        """Scorer of a name; only the last one is kept in memory, with its ranking, since both may be large."""
        if self._cache.get("scorer in use") != name:
            for held in ("scorer", "ranking"):  # before the next ones are made
                self._cache.pop(held, None)
            self._cache["scorer in use"] = name
        return self.once("scorer", self.scorers[name])

    def ranking(self, scorer: str) -> Ranking:
        """Nearest neighbours of every query in the whole gallery, as many as the tests need; computed on first use."""
        self.scorer(scorer)  # which forgets the ranking of another
        depth = max(full_depth(self.labels, self.options.recall_ks), answer_depth(self.labels))
        if scorer in self.own_scorers and self.options.filter_fractions:
            depth = max(depth, filter_depth(self.labels))
        return self.once("ranking", lambda: self.rank(scorer, depth, answers=self.asked))

    def rank(self, scorer: str, depth: int, **more: Any) -> Ranking:
        """The ``depth`` nearest neighbours by a scorer; ``more`` of :func:`~bench.protocols.ranking.rank`, if any.

        Queries, gallery and kin are those of the set unless others are given.
        """
        roles = {"queries": self.queries, "gallery": self.gallery, "kin": self.kin}
        return rank(self.scorer(scorer), self.labels, depth=depth, **(roles | more))

    def retrieval_confidences(self, scorer: str) -> dict[str, Tensor]:
        """Retrieval confidences of every query by name, each ``[Q]``, higher = more confident.

        They come from the ranking and the gallery's labels, never from the query's own label
        (:mod:`~bench.protocols.retrieval_confidence`). Sets without ``directions`` have no ``consistency``,
        those without ``concentration`` no ``posterior``, and those without ``views`` no ``view_agreement``.
        """

        def compute() -> dict[str, Tensor]:
            ranking = self.ranking(scorer)
            found = retrieval_confidences(self.scorer(scorer), ranking)
            self.once(f"answers {scorer}", lambda: ranking.neighbours[:, 0].clone())
            if self.directions is not None:
                found["consistency"] = consistency(self.unit_rows, self.labels, ranking, self.seed("consistency"))
                density = None if self.concentration is None else self.concentration()
                if density is not None:
                    roles = ranking, self.gallery, density, self.kin
                    found["posterior"] = posterior(self.unit_rows, self.labels, *roles)
            if self.views is not None:
                found["view_agreement"] = view_agreement(self.unit_vectors, self.views(), self.labels, ranking)
            return found

        return self.once(f"retrieval confidences {scorer}", compute)

    def kept(self, scorer: str) -> dict[str, Tensor]:
        """What is known of every query under a scorer, ``[Q]`` each: what its confidences are judged by.

        The names are ``answer`` (row of the nearest neighbour), ``map_at_r``, ``recall_at_1`` and those of the
        retrieval confidences. :meth:`keep` is the inverse, without an embedding.
        """
        of_ranking, values = self.retrieval_confidences(scorer), self.query_values(scorer, (1,))
        answers = self.once(f"answers {scorer}", lambda: self.ranking(scorer).neighbours[:, 0])
        return {"answer": answers, **{name: values[name] for name in JUDGED_BY}, **of_ranking}

    def keep(self, scorer: str, values: Mapping[str, Tensor]) -> None:
        """Take what is known of every query under a scorer from :meth:`kept` in place of a ranking."""
        of_ranking = {name: value for name, value in values.items() if name not in ("answer", *JUDGED_BY)}
        self._cache[f"answers {scorer}"] = values["answer"]
        self._cache[f"query values {scorer} {(1,)}"] = {name: values[name] for name in JUDGED_BY}
        self._cache[f"retrieval confidences {scorer}"] = of_ranking

    def confidences_of_queries(self) -> dict[str, Tensor]:
        """Image confidences of the queries alone by name, each ``[Q]``."""
        if self.queries is None:
            return dict(self.confidences)
        return {name: confidence[self.queries] for name, confidence in self.confidences.items()}

    def drawn_confidences(self) -> dict[str, Tensor]:
        """Image confidences of all images that have filter-out curves by name, each ``[N]``."""
        return {name: values for name, values in self.confidences.items() if name not in UNDRAWN}

    def query_values(self, scorer: str, ks: tuple[int, ...] | None = None) -> dict[str, Tensor]:
        """Retrieval metrics of every query by name, each ``[Q]``; nan for queries without a positive.

        The names are ``map_at_r``, ``r_precision``, ``precision_at_1`` and ``recall_at_{k}`` for each k, by default
        those of the options.
        """
        asked = self.options.recall_ks if ks is None else ks
        return self.once(f"query values {scorer} {asked}", lambda: per_query(self.ranking(scorer), asked))

    @property
    def asked(self) -> int:
        """Number of nearest neighbours that the agreement asks."""
        if self.options.nearest is not None:
            return self.options.nearest
        if self.gallery is None:
            return agreeing(self.labels)
        apart = self.queries is not None and not bool(torch.isin(self.queries, self.gallery).any())
        return agreeing(self.labels[self.gallery], apart=apart)

    @property
    def kin(self) -> Tensor | None:
        """Numbers of the images that those of one class and group share, ``[N]``; None without groups."""
        if self.groups is None:
            return None
        both = torch.stack([self.labels, self.groups])
        kin: Tensor = self.once("kin", lambda: torch.unique(both, dim=1, return_inverse=True)[1])
        return kin

    @property
    def unknown(self) -> Tensor:
        """Queries of which the gallery has no image of the class, not even the query itself, bool ``[Q]``."""
        return ~torch.isin(self.labels[self.query_rows], self.labels[self.gallery_rows])

    def release(self) -> None:
        """Free the memory of the scorer in use, its ranking and the unit embeddings; they are made again if needed."""
        for held in ("scorer", "ranking", "unit vectors"):
            self._cache.pop(held, None)


__all__ = ["Embeddings", "Options", "Quality", "Row", "SplitRow", "row", "seed_of"]
