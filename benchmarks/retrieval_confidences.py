"""Cost of retrieval confidences next to the ranking they come from, and of ``bench.score`` next to a bare faiss search.

    uv run python benchmarks/retrieval_confidences.py [--images 60502] [--dim 128] [--repeats 3] [--part ranking|score]

Embeddings, thread and clock are those of ``evaluator.py``: the sides run in turns, seconds are processor time of one
thread. A ratio is the median over repeats; the smallest and the largest follow. Memory is what a side adds at its peak
in a process of its own, the largest of the repeats: it varies with what the allocator can use again.
The ranking is that of Recall@k and MAP@R; its confidences need a little more depth, and scores of three pairs each.
``bench.score`` is called as a user calls it, with an array of float32 and labels, and gives the free confidences too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median

import bench
from bench.protocols.answers import NEAREST, answer_depth
from bench.protocols.query_metrics import per_query
from bench.protocols.ranking import full_depth, rank
from bench.protocols.retrieval import retrieval_rows
from bench.protocols.retrieval_confidence import retrieval_confidences
from evaluator import KS, embeddings, faiss_search, one_thread, peak_extra, scorers, timed
from threadpoolctl import threadpool_limits


def sides_of_ranking(count: int, dim: int) -> dict[str, Callable[[], object]]:
    """Functions by name: per scorer, the metrics of the ranking without confidences and with them."""
    x, labels = embeddings(count, dim)
    plain = full_depth(labels, KS)
    deep = max(plain, answer_depth(labels))
    sides: dict[str, Callable[[], object]] = {}
    for name, make in scorers(x).items():
        if "diagonal" in name:
            continue

        def without(make: Callable[[], object] = make) -> None:
            per_query(rank(make(), labels, depth=plain), KS)

        def along(make: Callable[[], object] = make) -> None:
            scorer = make()
            ranking = rank(scorer, labels, depth=deep, answers=NEAREST)
            per_query(ranking, KS)
            retrieval_confidences(scorer, ranking)

        sides |= {name: without, f"{name}, with confidences": along}
    return sides


def sides_of_score(count: int, dim: int) -> dict[str, Callable[[], object]]:
    """The bare search, the metrics of a ranking alone and ``bench.score``."""
    x, labels = embeddings(count, dim)
    depth = full_depth(labels, KS)
    given, classes = x.numpy(), labels.numpy()
    return {
        f"faiss IndexFlatIP, k = {depth + 1}": lambda: faiss_search(x, depth),
        "ranking by cosine, without confidences": lambda: list(retrieval_rows(scorers(x)["cosine"](), labels, ks=KS)),
        "bench.score": lambda: bench.score(given, classes),
    }


PARTS = {"ranking": sides_of_ranking, "score": sides_of_score}


def peak_alone(part: str, place: int, count: int, dim: int) -> float:
    """Peak of one side in a process of its own, once a small run has loaded what it needs."""
    one_thread()
    with threadpool_limits(1):
        list(PARTS[part](4000, dim).values())[place]()
        side = list(PARTS[part](count, dim).values())[place]
        return peak_extra(side)


def peak_in_new_process(part: str, place: int, count: int, dim: int) -> float:
    """:func:`peak_alone` in a process that ends with it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        return alone.submit(peak_alone, part, place, count, dim).result()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60502)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=tuple(PARTS), action="append")
    a = parser.parse_args()
    one_thread()
    print(f"{a.images} x {a.dim}, 1 thread, medians of {a.repeats} repeats")
    with threadpool_limits(1):
        for part in a.part or PARTS:
            sides = PARTS[part](a.images, a.dim)
            times: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(a.repeats):
                for name, run in sides.items():
                    times[name].append(timed(run))
            print(f"{part:<44}{'s':>8}{'ratio':>9}{'least':>9}{'most':>9}{'peak MiB':>10}", flush=True)
            for place, name in enumerate(sides):
                # Rankings come in pairs, without confidences and with them; else the first is the bare search.
                first = list(sides)[place - place % 2 if part == "ranking" else 0]
                peak = max(peak_in_new_process(part, place, a.images, a.dim) for _ in range(a.repeats))
                ratios = [mine / other for mine, other in zip(times[name], times[first])]
                spread = "".join(f"{f(ratios):>9.3f}" for f in (median, min, max))
                print(f"{name:<44}{median(times[name]):>8.2f}{spread}{peak:>10.0f}", flush=True)


if __name__ == "__main__":
    main()
