"""What a target for latency allows: the largest rate, the smallest pool, the fewest GPUs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.units import SECONDS, counted, decimal
from kvcalc.workload.fleet import simulate_fleet
from kvcalc.workload.metrics import tpot_of, ttft_of
from kvcalc.workload.outcome import POOL, REFUSALS, Outcome
from kvcalc.workload.search import Found, Verdict, largest, smallest
from kvcalc.workload.simulate import Setting, admissible, simulate
from kvcalc.workload.trace import Seconds, Trace

Serve = Callable[[Trace, Setting], Outcome]
"""`simulate`, or a fleet as one."""


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in seconds, or in steps where they are the unit of time, on a percentile over all requests.

    TTFT counts from arrival, waiting included; TPOT is that of requests with more than one token. None sets no limit.
    """

    ttft: float | None = None
    tpot: float | None = None
    percentile: float = 99.0

    def __post_init__(self) -> None:
        if self.ttft is None and self.tpot is None:
            raise KvcalcError("no limit is set to search under", "add --max-ttft 2s, --max-tpot 50ms or both")
        for flag, value in (("--max-ttft", self.ttft), ("--max-tpot", self.tpot)):
            if value is not None and not 0 < value < float("inf"):
                raise KvcalcError(f"{flag} {value}: no request takes that long", "a time above 0, such as 500ms")
        if not 0 < self.percentile <= 100:
            raise KvcalcError(f"--percentile {self.percentile} is no percentile", "from above 0 to 100, such as 99")

    def verdict(self, outcome: Outcome) -> Verdict:
        """What an outcome breaks, in words, and the percentiles of its TTFT and TPOT, whether limited or not.

        A request that is larger than the pool breaks every target; one past the server's contexts is no matter of it.
        KeyboardInterrupt where the outcome was cut short.
        """
        if not outcome.is_complete:
            raise KeyboardInterrupt
        seconds = {"TTFT": self._percentile(ttft_of(outcome)), "TPOT": self._percentile(tpot_of(outcome))}
        too_large = int((outcome.requests.refused == POOL).sum())
        if too_large:
            return Verdict(
                f"{counted(too_large, 'request')} {'is' if too_large == 1 else 'are'} {REFUSALS[POOL]}", seconds
            )
        is_timed = outcome.setting.cost is not None
        broken = (
            f"{name} p{self.percentile:g} {_time(seconds[name], is_timed)} > {_time(limit, is_timed)}"
            for name, limit in (("TTFT", self.ttft), ("TPOT", self.tpot))
            if limit is not None and seconds[name] > limit
        )
        return Verdict(", ".join(broken), seconds)

    def breaks(self, outcome: Outcome) -> str:
        """What an outcome breaks, in words; "" where it meets all."""
        return self.verdict(outcome).breaks

    def _percentile(self, seconds: Seconds) -> float:
        import numpy as np

        return float(np.percentile(seconds, self.percentile)) if len(seconds) else 0.0


def _time(value: float, is_timed: bool) -> str:
    return decimal(value, SECONDS) if is_timed else f"{value:,.0f} steps"


LOWEST_SCALE, HIGHEST_SCALE = 2.0**-20, 2.0**20


def largest_rate(
    trace: Trace, setting: Setting, slo: Slo, *, tolerance: float = 0.01, serve: Serve = simulate
) -> Found:
    """The most requests a second under `slo`: the trace's arrivals, all of their gaps shortened or stretched alike.

    The value is None where the SLO breaks however far requests are apart, and infinite where even all at once meet it.
    """
    rate = rate_of(trace)
    if setting.cost is None:
        raise KvcalcError("a rate needs times: steps are the unit of time here", "add --gpu, or --step-time 20ms")

    def judge(tried: float) -> Verdict:
        return slo.verdict(serve(at_rate(trace, tried), setting))

    return largest(judge, rate, (rate * LOWEST_SCALE, rate * HIGHEST_SCALE), tolerance)


def rate_of(trace: Trace) -> float:
    """Requests a second between the first and the last arrival."""
    arrival = trace.arrival_seconds
    span = 0.0 if arrival is None or not len(trace) else float(arrival[-1] - arrival[0])
    if not span:
        raise KvcalcError(f"{trace.name} has no rate: its requests come all at once", "give them one: --rate 10/s")
    return (len(trace) - 1) / span


def at_rate(trace: Trace, rate: float) -> Trace:
    """The same requests at another rate."""
    scale, arrival = rate_of(trace) / rate, trace.arrival_seconds
    return msgspec.structs.replace(trace, arrival_seconds=None if arrival is None else arrival * scale)


def smallest_pool(
    trace: Trace, setting: Setting, slo: Slo, *, tolerance: float = 0.01, serve: Serve = simulate
) -> Found:
    """The fewest pool units under `slo`, from the largest request's up to what all requests hold together.

    With a fleet they are those of each replica. The value is None where that breaks it too: memory is not what lacks.
    """
    policy, refused = admissible(trace, msgspec.structs.replace(setting, pool_units=1 << 62))
    needs = policy.most_units[refused == 0]
    if not len(needs):
        simulate(trace, setting)
    # A buddy system rounds what it gives to powers of two.
    bounds = int(needs.max()), 2 * int(needs.sum())

    def judge(units: float) -> Verdict:
        return slo.verdict(serve(trace, msgspec.structs.replace(setting, pool_units=int(units))))

    return smallest(judge, bounds, tolerance)


class Gpus(NamedTuple):
    """A deployment under the SLO: `replicas` of `tp` GPUs each, and the search for the replicas of each TP."""

    gpus: int | None
    tp: int | None
    replicas: int | None
    searches: dict[int, Found]


def fewest_gpus(
    trace: Trace,
    make: Callable[[int], Setting | None],
    slo: Slo,
    *,
    tps: Sequence[int] = (1, 2, 4, 8),
    most_gpus: int = 64,
    routing: str = "round-robin",
) -> Gpus:
    """The fewest GPUs under `slo`, over replicas of one to several GPUs; of as many, the one with more replicas.

    `make` gives the server on so many GPUs, None where the model does not fit there or is not cut so. None in the
    result where nothing up to `most_gpus` meets it. A TP is searched up to what another one needs.
    """
    best, searches = Gpus(None, None, None, {}), {}
    for tp in sorted(tps):
        setting = make(tp)
        most = (most_gpus if best.gpus is None else best.gpus - 1) // tp
        if setting is None or most < 1:
            continue
        searches[tp] = found = _fewest_replicas(trace, setting, slo, most, routing)
        if found.value is not None:
            replicas = int(found.value)
            best = Gpus(tp * replicas, tp, replicas, searches)
    return best._replace(searches=searches)


def _fewest_replicas(trace: Trace, setting: Setting, slo: Slo, most: int, routing: str) -> Found:
    def judge(replicas: float) -> Verdict:
        return slo.verdict(simulate_fleet(trace, setting, int(replicas), routing).whole)

    return smallest(judge, (1, most))
