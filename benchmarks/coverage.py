"""Coverage of the intervals of ``bench.protocols.statistics``: how often they contain a truth that is known.

    uv run python benchmarks/coverage.py [--experiments 20000] [--seed 0]

Prints a line per interval and setting. A nominal 95 % interval is called that only if it covers at least 93 %. Slow
ones get fewer experiments: ranks, verdicts and bootstraps of two models a tenth, bootstraps over seeds a fortieth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
from bench.protocols.statistics import (
    Interval,
    NestedInterval,
    holm,
    nested_bootstrap,
    p_different,
    p_equivalent,
    paired_bootstrap,
    probability_of_superiority,
    rank_intervals,
    seeds_needed,
    summarise,
    variance_by_source,
    verdict,
)
from scipy import stats

Draw = Callable[[np.random.Generator, int], np.ndarray]
SEEDS = 5


def t_intervals(rng: np.random.Generator, experiments: int) -> Iterator[tuple[str, float]]:
    """Coverage of t-intervals of five seeds."""
    shapes: dict[str, Draw] = {
        "normal": lambda r, n: r.normal(size=n),
        "uniform": lambda r, n: r.uniform(-1, 1, n),
        "skewed (exponential)": lambda r, n: r.exponential(size=n) - 1,
    }
    for shape, draw in shapes.items():
        found = [summarise(list(draw(rng, SEEDS))) for _ in range(experiments)]
        yield f"t-interval, {SEEDS} seeds, {shape}", np.mean([s.ci_low <= 0 <= s.ci_high for s in found])


def ranks(rng: np.random.Generator, experiments: int) -> Iterator[tuple[str, float]]:
    """Chance that the rank intervals of all methods contain the true ranks at once."""
    truths = {"8 equal methods": np.zeros(8), "8 methods, 1 SD apart": np.arange(8.0)}
    truths["20 methods, 2 SD apart"] = 2 * np.arange(20.0)
    truths["8 methods in two equal halves, 10 SD apart"] = np.repeat([0.0, 10.0], 4)
    for name, truth in truths.items():
        best = 1 + (truth[None] > truth[:, None]).sum(1)
        worst = len(truth) - (truth[None] < truth[:, None]).sum(1)
        # Spreads differ by a factor of eight; the seed shifts all methods alike.
        spread, hit = np.geomspace(0.25, 2, len(truth)), 0
        for _ in range(experiments):
            seeds = truth + rng.normal(size=(SEEDS, 1)) + spread * rng.normal(size=(SEEDS, len(truth)))
            found = rank_intervals(seeds)
            hit += all(r.low <= a and b <= r.high for r, a, b in zip(found, best, worst))
        yield f"rank intervals, simultaneous, {SEEDS} seeds, {name}", hit / experiments


def verdicts(rng: np.random.Generator, experiments: int) -> Iterator[tuple[str, float]]:
    """Chance that no verdict in a table of ten differences is wrong."""
    for name, true, region in (
        ("all equal", 0.0, 0.5),
        ("on the edge of the region", 0.5, 0.5),
        ("equal but for one part in ten", 0.1, 0.5),
    ):
        right = 0
        for _ in range(experiments):
            differences = true + rng.normal(size=(SEEDS, 10)) * np.geomspace(0.1, 1, 10)
            p, q = holm(p_different(differences)), holm(p_equivalent(differences, region))
            found = {verdict(float(d), float(a), float(b)) for d, a, b in zip(differences.mean(0), p, q)}
            wrong = {"equivalent"} if true >= region else {"worse"} if true > 0 else {"better", "worse"}
            right += not found & wrong
        yield f"no false verdict among 10, {SEEDS} seeds, {name}", right / experiments


def superiority(rng: np.random.Generator, experiments: int) -> Iterator[tuple[str, float]]:
    """Worst coverage of P(A > B) over true probabilities, counted exactly; percentile bootstrap for comparison."""
    grid = np.linspace(0.02, 0.98, 97)
    for n in (3, 5, 10):
        results = [np.repeat([1.0, -1.0], [won, n - won]) for won in range(n + 1)]
        ours = [(s.ci_low, s.ci_high) for s in map(probability_of_superiority, results)]
        drawn = [tuple(stats.binom.ppf([0.025, 0.975], n, won / n) / n) for won in range(n + 1)]
        for name, ends in (("exact", ours), ("percentile bootstrap", drawn)):
            covered = np.array([[low <= p <= high for low, high in ends] for p in grid])
            coverage = (covered * stats.binom.pmf(np.arange(n + 1), n, grid[:, None])).sum(1)
            yield f"P(A > B), {name}, {n} pairs, worst of all P", coverage.min()
    hits = 0
    for _ in range(experiments):  # half of the pairs tie, so P(A > B) is 0.5 + 0.5 (0.8 - 0.5)
        won = np.where(rng.random(SEEDS) < 0.5, 0.0, np.where(rng.random(SEEDS) < 0.8, 1.0, -1.0))
        found = probability_of_superiority(won)
        hits += found.ci_low <= 0.65 <= found.ci_high
    yield f"P(A > B), exact, {SEEDS} pairs, half of them tied", hits / experiments


def bootstraps(rng: np.random.Generator, experiments: int) -> Iterator[tuple[str, float]]:
    """Coverage of the bootstraps for new seeds and new classes, in three mixtures of the sources of variance."""
    mixtures = {"seeds vary most": (1.0, 0.5, 1.0), "both vary": (0.3, 1.0, 1.0), "classes vary most": (0.05, 1.0, 1.0)}
    for count in (20, 60):
        classes = np.repeat(np.arange(count), 4)
        for name, (of_seed, of_class, of_query) in mixtures.items():
            hits = np.zeros(4)
            for i in range(experiments):
                own = of_class * rng.normal(size=count)[classes] + of_query * rng.normal(size=len(classes))
                table = of_seed * rng.normal(size=(SEEDS, 1)) + own + 0.5 * rng.normal(size=(SEEDS, len(classes)))
                one, zero = table.mean(0)[:, None], np.zeros((len(classes), 1))
                found: list[NestedInterval | Interval] = [
                    nested_bootstrap(table, classes, resamples=300, seed=i),
                    nested_bootstrap(table, classes, resamples=300, seed=i, widen=False),
                    paired_bootstrap(one, zero, classes, resamples=300, seed=i)[0],
                    paired_bootstrap(one, zero, resamples=300, seed=i)[0],
                ]
                hits += [interval.ci_low <= 0 <= interval.ci_high for interval in found]
            kinds = ("nested, widened", "nested, percentile", "classes alone", "queries alone")
            for kind, share in zip(kinds, hits / experiments):
                yield f"bootstrap, {kind}, {SEEDS} seeds, {count} classes, {name}", share


def fixed_models(rng: np.random.Generator, experiments: int) -> Iterator[tuple[str, float]]:
    """Coverage of the bootstraps of one pair of models, which `bench score` prints, for what each of them draws."""
    for queries in (50, 200):
        hits = 0
        for i in range(experiments):
            values = rng.normal(size=(queries, 1))
            found = paired_bootstrap(values, np.zeros_like(values), resamples=300, seed=i)[0]
            hits += found.ci_low <= 0 <= found.ci_high
        yield f"bootstrap of two models, queries, {queries} of them", hits / experiments
    for count in (10, 20, 30, 100):
        classes, hits = np.repeat(np.arange(count), 4), 0
        for i in range(experiments):
            values = rng.normal(size=count)[classes] + rng.normal(size=len(classes))
            found = paired_bootstrap(values[:, None], np.zeros((len(classes), 1)), classes, resamples=300, seed=i)[0]
            hits += found.ci_low <= 0 <= found.ci_high
        yield f"bootstrap of two models, classes, {count} of them", hits / experiments


def planning(rng: np.random.Generator, experiments: int) -> Iterator[tuple[str, float]]:
    """Shares of variance, and the power at the number of seeds that is said to be needed (nominal 80 %)."""
    hits = 0
    for _ in range(experiments):
        varied = rng.normal(size=10)
        frozen = [rng.normal() * np.sqrt(0.5) + np.sqrt(0.5) * rng.normal(size=5) for _ in range(2)]
        part = variance_by_source(varied, {"order": frozen})["order"]
        hits += part.ci_low <= 0.5 <= part.ci_high
    yield "share of variance of a source, 10 runs and two groups of 5", hits / experiments
    for effect in (2.0, 1.0, 0.5):
        n = seeds_needed(1.0, effect)
        p = p_different(effect + rng.normal(size=(n, experiments)))
        yield f"power (nominal 80 %) of {n} seeds at an effect of {effect:g} SD", float((p <= 0.05).mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    fewer = max(1, a.experiments // 10)
    parts = ((t_intervals, a.experiments), (ranks, fewer), (verdicts, fewer), (superiority, a.experiments),
             (bootstraps, max(1, a.experiments // 40)), (fixed_models, fewer), (planning, a.experiments))  # fmt: skip
    start = time.perf_counter()
    for part, experiments in parts:
        for name, share in part(np.random.default_rng(a.seed), experiments):
            mark = "" if "power" in name else "95 %" if share >= 0.93 else "not 95 %"
            print(f"{name:<75}{100 * share:6.1f} %  {mark}".rstrip(), flush=True)
    print(f"\n{a.experiments} experiments, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
