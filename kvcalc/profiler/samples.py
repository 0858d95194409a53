"""Two series of timings: slower, faster, the same, or not to be told apart.

A claim needs a difference that matters (medians further apart than a threshold) and one that chance does not explain
(the rank test of Mann and Whitney, at the level that asv uses). Few samples have to lie wholly apart instead.
Everything here is symmetric: with the series swapped, worse becomes better.
"""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Literal

Verdict = Literal["better", "worse", "same", "undecided"]

LEVEL = 0.002
"""asv's p_threshold: one false alarm in 500 comparisons."""
CONFIDENCE = 0.95
LEAST_FOR_RANKS = 8
LEAST_FOR_RANGES = 3


def judge(first: Sequence[float], second: Sequence[float], threshold: float) -> Verdict:
    """The verdict on `second` against `first`, seconds both; `threshold` 0.05 lets medians differ by 5%."""
    if min(len(first), len(second)) < LEAST_FOR_RANKS:
        return _judge_ranges(first, second, threshold)
    medians = statistics.median(first), statistics.median(second)
    if _is_beyond(*medians, threshold):
        is_real = rank_test(first, second) < LEVEL
        return _direction(*medians) if is_real else "undecided"
    (low, high), (second_low, second_high) = median_interval(first), median_interval(second)
    farthest = (low, second_high), (high, second_low)
    return "undecided" if any(_is_beyond(*ends, threshold) for ends in farthest) else "same"


def _judge_ranges(first: Sequence[float], second: Sequence[float], threshold: float) -> Verdict:
    """Whether even the nearest samples of the two differ beyond the threshold; one or two samples have no range."""
    if min(len(first), len(second)) < LEAST_FOR_RANGES:
        return "undecided"
    nearest = (max(first), min(second)) if min(second) > max(first) else (min(first), max(second))
    overlap = min(second) <= max(first) and min(first) <= max(second)
    return "undecided" if overlap or not _is_beyond(*nearest, threshold) else _direction(*nearest)


def _is_beyond(first: float, second: float, threshold: float) -> bool:
    return max(first, second) > min(first, second) * (1 + threshold)


def _direction(first: float, second: float) -> Verdict:
    return "worse" if second > first else "better"


def rank_test(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p of the Mann-Whitney U test: by the normal distribution, corrected for ties and continuity.

    Good from eight samples each (H. B. Mann and D. R. Whitney, Annals of Mathematical Statistics 18, 1947, p. 50).
    """
    n, m = len(first), len(second)
    pooled = [*first, *second]
    ranks = _ranks(pooled)
    u = sum(ranks[value] for value in first) - n * (n + 1) / 2
    ties = sum(count**3 - count for count in Counter(pooled).values()) / ((n + m) * (n + m - 1))
    deviation = math.sqrt(n * m / 12 * (n + m + 1 - ties))
    if not deviation:
        return 1.0
    distance = max(0.0, abs(u - n * m / 2) - 0.5) / deviation
    return math.erfc(distance / math.sqrt(2))


def _ranks(values: Sequence[float]) -> dict[float, float]:
    """The rank of every value, from 1; equal values share the middle of their ranks."""
    ranks, below = {}, 0
    for value, count in sorted(Counter(values).items()):
        ranks[value] = below + (count + 1) / 2
        below += count
    return ranks


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Two samples between which the true median lies with 95% confidence, whatever the distribution.

    The k-th smallest and the k-th largest; k by the normal approximation, rounded down (W. J. Conover, Practical
    Nonparametric Statistics, section 3.2). Needs six samples; with fewer it is their whole range.
    """
    ordered, n = sorted(samples), len(samples)
    width = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    k = max(1, int((n - width * math.sqrt(n)) / 2))
    return ordered[k - 1], ordered[-k]
