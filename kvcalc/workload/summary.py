"""What a trace is like: how many requests, how fast they come, how long they are, how much they share."""

from typing import Any

import msgspec

from kvcalc.report import Column, Table
from kvcalc.workload.trace import Integers, Trace


class Lengths(msgspec.Struct, frozen=True):
    """Lengths in tokens. `biased_mean` is E[x^2]/E[x]: the mean over tokens and not over requests.

    It is what one meets who looks at a running batch, in which long answers stay longer.
    """

    mean: float
    p50: float
    p90: float
    p99: float
    largest: int
    biased_mean: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in figures; None where it has no times, or where nothing is known of prefixes."""

    name: str
    requests: int
    duration_seconds: float | None
    rate_per_second: float | None
    gap_cv: float | None
    prompt_tokens: Lengths
    output_tokens: Lengths
    repeated_prefixes: float | None
    counted: dict[str, int]

    def tables(self) -> tuple[Table, Table]:
        """The trace in one row, and its lengths in two."""
        names = ("requests", "duration_seconds", "rate_per_second", "gap_cv", "repeated_prefixes")
        facts = Table(_FACTS, [tuple(getattr(self, name) for name in names)]).filled()
        lengths = [("prompt", self.prompt_tokens), ("answer", self.output_tokens)]
        rows = [(name, *msgspec.structs.astuple(of)) for name, of in lengths]
        return facts, Table(_LENGTHS, rows, "Tokens a request")

    def notes(self) -> tuple[str, ...]:
        """What was left out or changed on reading, a sentence each."""
        return tuple(f"{why}: {count:,}" for why, count in self.counted.items())


def summarise(trace: Trace) -> Summary:
    """The figures of a trace; a rate is of the gaps between its requests, (n - 1) / duration."""
    duration, rate, cv = _pace(trace)
    return Summary(
        name=trace.name,
        requests=len(trace),
        duration_seconds=duration,
        rate_per_second=rate,
        gap_cv=cv,
        prompt_tokens=_lengths(trace.prompt_tokens),
        output_tokens=_lengths(trace.output_tokens),
        repeated_prefixes=_repeated(trace.prefix_ids),
        counted=trace.counted,
    )


def _pace(trace: Trace) -> tuple[float | None, float | None, float | None]:
    """Duration, rate and coefficient of variation of the gaps; the last two None where all arrive at once."""
    import numpy as np

    if trace.arrival_seconds is None:
        return None, None, None
    gaps = np.diff(trace.arrival_seconds)
    duration = float(gaps.sum())
    if not duration:
        return duration, None, None
    return duration, len(gaps) / duration, float(gaps.std() / gaps.mean())


def _lengths(tokens: Integers) -> Lengths:
    import numpy as np

    p50, p90, p99 = (float(value) for value in np.percentile(tokens, [50, 90, 99]))
    exact: Any = tokens.astype(np.float64)
    biased = float((exact * exact).sum() / exact.sum())
    return Lengths(float(tokens.mean()), p50, p90, p99, int(tokens.max()), biased)


def _repeated(ids: Integers | None) -> float | None:
    """The share of prefix ids that stood in the trace before."""
    import numpy as np

    if ids is None or not len(ids):
        return None
    return 1 - len(np.unique(ids)) / len(ids)


_FACTS = (
    Column("requests", "requests", "count"),
    Column("duration_seconds", "duration", "seconds"),
    Column("rate_per_second", "requests/s", "number"),
    Column("gap_cv", "cv of gaps", "number"),
    Column("repeated_prefixes", "prefix ids seen before", "fraction"),
)
_LENGTHS = (
    Column("side", "", "text"),
    Column("mean", "mean", "number"),
    Column("p50", "p50", "number"),
    Column("p90", "p90", "number"),
    Column("p99", "p99", "number"),
    Column("largest", "largest", "count"),
    Column("biased_mean", "mean over tokens", "number"),
)
