"""Repeated timings of one thing, and the doubts that they carry.

Median and percentiles in place of a mean: one slow sample says something of the machine, not of the code.
"""

import statistics
from collections.abc import Sequence

import msgspec

from kvcalc.profiler.documents import SeriesDocument

FEW_SAMPLES = 5
NOISY_SPREAD = 0.25
"""Share of the median that lies between the tenth and ninetieth percentile of a quiet series."""
DRIFT = 0.15


class Series(msgspec.Struct, frozen=True):
    """Samples in seconds, in the order in which they were taken."""

    samples: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        """The median in seconds."""
        return statistics.median(self.samples)

    def quantile(self, share: float) -> float:
        """The sample below which `share` of all lie, in seconds, between neighbours by proportion."""
        ordered = sorted(self.samples)
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    def document(self) -> SeriesDocument:
        """The series as the run file carries it."""
        return {
            "median_seconds": self.median_seconds,
            "p10_seconds": self.quantile(0.1),
            "p90_seconds": self.quantile(0.9),
            "samples_seconds": list(self.samples),
        }

    def doubts(self, what: str) -> list[str]:
        """Why the median of `what` may not be the whole truth."""
        found = []
        if len(self.samples) < FEW_SAMPLES:
            found.append(f"{what}: {_counted(self.samples)}, too few for percentiles")
        spread = (self.quantile(0.9) - self.quantile(0.1)) / self.median_seconds
        if len(self.samples) >= FEW_SAMPLES and spread > NOISY_SPREAD:
            found.append(f"{what}: p10 to p90 spans {spread:.0%} of the median, the machine was not quiet")
        drift = self._drift()
        if abs(drift) > DRIFT:
            found.append(
                f"{what}: the second half ran {abs(drift):.0%} {'slower' if drift > 0 else 'faster'} than the first"
            )
        return found

    def _drift(self) -> float:
        """How much slower the second half is than the first, as a share; 0 where there are too few to tell."""
        half = len(self.samples) // 2
        if half < FEW_SAMPLES:
            return 0.0
        return statistics.median(self.samples[-half:]) / statistics.median(self.samples[:half]) - 1


def _counted(samples: Sequence[float]) -> str:
    return f"{len(samples)} sample{'s' if len(samples) > 1 else ''}"


def repeats_for(pilot_seconds: float, budget_seconds: float, least: int, most: int) -> int:
    """How many repeats of something that takes `pilot_seconds` fit a budget, at least `least` and at most `most`."""
    fitting = int(budget_seconds / pilot_seconds) if pilot_seconds > 0 else most
    return max(least, min(most, fitting))
