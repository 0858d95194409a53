"""A fleet: replicas of one server behind a router, each with a pool of its own."""

from typing import TYPE_CHECKING

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.workload.clock import clock_of
from kvcalc.workload.joined import REFUSED, Routed, whole_of
from kvcalc.workload.outcome import Outcome
from kvcalc.workload.parallel import run_all
from kvcalc.workload.policies import Policy
from kvcalc.workload.routing import Inbox, Replica, routing_of
from kvcalc.workload.rows import chosen
from kvcalc.workload.scheduler import Records, Scheduler
from kvcalc.workload.simulate import Progress, Setting, admissible, simulate
from kvcalc.workload.steptime import FixedCost
from kvcalc.workload.trace import Trace

if TYPE_CHECKING:
    from kvcalc.workload.trace import Integers


MOST_REPLICAS = 10_000
"""Each has a scheduler, which a router looks at for every request."""


class FleetOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a trace in a fleet. `replica_of` has each request's replica, REFUSED where none takes it.

    `outcomes` are those of replicas that had requests, by their place. `whole` has all requests in the trace's order,
    and one pool as large as all: its peaks add up those of replicas, which need not have come at one time, and
    what was busy is their mean.
    """

    whole: Outcome
    outcomes: dict[int, Outcome]
    replica_of: "Integers"


def simulate_fleet(
    trace: Trace,
    setting: Setting,
    replicas: int,
    routing: str = "round-robin",
    *,
    jobs: int = 1,
    backend: str = "loky",
    progress: Progress | None = None,
) -> FleetOutcome:
    """Route `trace` to so many servers alike, and serve it; a KeyboardInterrupt keeps what is done.

    Requests that no server takes are refused by the router. KvcalcError where that leaves none, for a rule that
    is not known, and where it asks for what the trace does not say.
    """
    import numpy as np

    if not 1 <= replicas <= MOST_REPLICAS:
        raise KvcalcError(f"--replicas {replicas:,} is no fleet", f"from 1 to {MOST_REPLICAS:,}")
    routed = route(trace, setting, replicas, routing)
    replica_of = routed.replica_of
    if not (replica_of != REFUSED).any():
        # A single server says why.
        simulate(trace, setting)
    places = np.unique(replica_of[replica_of != REFUSED]).tolist()
    shares = [part_of(trace, np.flatnonzero(replica_of == place)) for place in places]
    found = run_all([(share, setting) for share in shares], jobs=jobs, backend=backend, progress=progress)
    outcomes = dict(zip(places, found, strict=False))
    whole = whole_of(trace, setting, replicas, routed, outcomes)
    return FleetOutcome(whole=whole, outcomes=outcomes, replica_of=replica_of)


def route(trace: Trace, setting: Setting, replicas: int, routing: str) -> Routed:
    """The replica of every request.

    Where a rule asks for load, all replicas are simulated up to each arrival: it knows what they have answered, and
    nothing of what comes. Without times all requests come at once, before any is answered.
    """
    import numpy as np

    rule = routing_of(routing)
    policy, refused = admissible(trace, setting)
    router = rule(trace, policy, replicas)
    arrivals = None if setting.cost is None or trace.arrival_seconds is None else trace.arrival_seconds.tolist()
    servers = _servers(trace, setting, policy, arrivals, replicas) if router.needs_state else []
    replica_of = np.full(len(trace), REFUSED)
    for request in np.flatnonzero(refused == 0).tolist():
        for one in servers:
            one.advance(0.0 if arrivals is None else arrivals[request])
        replica_of[request] = place = router.choose(request, servers)
        if servers:
            servers[place].send(request, policy.prompts[request])
    return Routed(replica_of, refused)


def _servers(trace: Trace, setting: Setting, policy: Policy, arrivals: list[float] | None, count: int) -> list[Replica]:
    found, records = [], Records(len(trace))
    for _ in range(count):
        inbox, clock = Inbox(arrivals), clock_of(setting.cost or FixedCost(1.0))
        found.append(Replica(Scheduler(inbox, policy.another(), clock, setting.limits(), records), inbox))
    return found


def part_of(trace: Trace, places: "Integers") -> Trace:
    """The requests at these places, at the same times."""
    arrival = trace.arrival_seconds
    ids, ends = chosen(trace.prefix_ids, trace.prefix_ends, places)
    return msgspec.structs.replace(
        trace,
        prompt_tokens=trace.prompt_tokens[places],
        output_tokens=trace.output_tokens[places],
        arrival_seconds=None if arrival is None else arrival[places],
        prefix_ids=ids,
        prefix_ends=ends,
        counted={},
    )
