"""What became of a trace: every request, what was held over time, and what that comes to."""

from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.workload.trace import Integers, Seconds, Trace

if TYPE_CHECKING:
    from kvcalc.workload.simulate import Setting

CONTEXT, POOL = 1, 2
REFUSALS = {CONTEXT: "longer than the server's contexts", POOL: "larger than the whole pool"}


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Every request of a trace in its order; seconds are NaN where it did not come to that.

    `refused` is a key of REFUSALS, or 0. Hit tokens are those of a prompt that its first admission found.
    """

    arrival_seconds: Seconds
    admitted_seconds: Seconds
    first_token_seconds: Seconds
    finished_seconds: Seconds
    preemptions: Integers
    hit_tokens: Integers
    refused: Integers


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over every step: none of them is sampled.

    Unit seconds `filled` hold tokens, `reserved` will, `internal` never do (arXiv 2309.06180, section 3.1); `cached`
    keep prefixes that nobody reads, and `spared` would be needed if nobody shared. Peaks are what steps needed, cached
    prefixes apart.
    """

    seconds: float
    busy_seconds: float
    steps: int
    running_seconds: float
    prefilled_tokens: int
    peak_units: int
    peak_running: int
    filled: float
    reserved: float
    internal: float
    cached: float
    spared: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A simulation. Requests that it was interrupted in have no time of finishing, and `is_complete` is False."""

    trace: Trace
    setting: "Setting"
    requests: Requests
    totals: Totals
    timeline: dict[str, Seconds]
    """By the names of `timeline.COLUMNS`."""
    is_complete: bool

    @property
    def refused(self) -> dict[str, int]:
        """How many requests were refused, by why."""
        counts = {why: int((self.requests.refused == code).sum()) for code, why in REFUSALS.items()}
        return {why: count for why, count in counts.items() if count}

    def refused_requests(self) -> Any:
        """The places in the trace of those that were refused."""
        return self.requests.refused.nonzero()[0]
