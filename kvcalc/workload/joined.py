"""The outcome of a fleet as one: every request in its place, and what replicas held added up."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kvcalc.workload.outcome import Outcome, Requests, Totals
from kvcalc.workload.timeline import COLUMNS

if TYPE_CHECKING:
    from kvcalc.workload.simulate import Setting
    from kvcalc.workload.trace import Integers, Seconds, Trace

REFUSED = -1


class Routed(NamedTuple):
    """The replica of each request, REFUSED where none takes it, and why: a key of REFUSALS, or 0."""

    replica_of: "Integers"
    refused: "Integers"


def whole_of(
    trace: "Trace", setting: "Setting", replicas: int, routed: Routed, outcomes: Mapping[int, Outcome]
) -> Outcome:
    """All of a fleet: one pool as large as all of its pools, and the longest of its times."""
    parts = list(outcomes.values())
    used = len(set(routed.replica_of.tolist()) - {REFUSED})
    return Outcome(
        trace=trace,
        setting=msgspec.structs.replace(setting, pool_units=setting.pool_units * replicas),
        requests=_requests(trace, setting, routed, outcomes),
        totals=_totals([one.totals for one in parts], replicas),
        timeline=_timeline([one.timeline for one in parts], setting.samples),
        is_complete=len(parts) == used and all(one.is_complete for one in parts),
    )


def _requests(trace: "Trace", setting: "Setting", routed: Routed, outcomes: Mapping[int, Outcome]) -> Requests:
    import numpy as np

    count, arrival = len(trace), trace.arrival_seconds
    seconds = {name: np.full(count, np.nan) for name in ("admitted", "first_token", "finished")}
    counts = {name: np.zeros(count, dtype=np.int64) for name in ("preemptions", "hit_tokens")}
    for place, outcome in outcomes.items():
        mine = routed.replica_of == place
        for name, values in seconds.items():
            values[mine] = getattr(outcome.requests, f"{name}_seconds")
        for name, numbers in counts.items():
            numbers[mine] = getattr(outcome.requests, name)
    return Requests(
        arrival_seconds=np.zeros(count) if arrival is None or setting.cost is None else arrival,
        admitted_seconds=seconds["admitted"],
        first_token_seconds=seconds["first_token"],
        finished_seconds=seconds["finished"],
        preemptions=counts["preemptions"],
        hit_tokens=counts["hit_tokens"],
        refused=routed.refused,
    )


def _totals(parts: Sequence[Totals], replicas: int) -> Totals:
    """Sums; the time is the longest, and busy seconds are the mean over replicas."""
    sums: dict[str, Any] = {name: sum(getattr(one, name) for one in parts) for name in Totals.__struct_fields__}
    sums["seconds"] = max((one.seconds for one in parts), default=0.0)
    sums["busy_seconds"] /= replicas
    return Totals(**sums)


def _timeline(parts: Sequence[dict[str, "Seconds"]], samples: int) -> dict[str, "Seconds"]:
    """At up to so many times what all replicas had when they were last looked at; nothing before and after."""
    import numpy as np

    looks = np.unique(np.concatenate([part["seconds"] for part in parts])) if parts else np.zeros(0)
    seconds = looks[:: max(1, -(-len(looks) // max(2, samples)))]
    found = {name: np.zeros(len(seconds)) for name in COLUMNS}
    found["seconds"] = seconds
    for part in parts:
        last = np.searchsorted(part["seconds"], seconds, "right") - 1
        is_there = (last >= 0) & (seconds <= part["seconds"][-1])
        for name in COLUMNS[1:]:
            found[name] += np.where(is_there, part[name][last], 0.0)
    return found
