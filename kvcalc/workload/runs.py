"""Every case served: one server each, or a fleet of them."""

from collections.abc import Iterator, Sequence

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.workload.asked import Case
from kvcalc.workload.fleet import simulate_fleet
from kvcalc.workload.metrics import Metrics, metrics_of
from kvcalc.workload.outcome import Outcome
from kvcalc.workload.parallel import run_settings
from kvcalc.workload.simulate import Progress
from kvcalc.workload.trace import Trace

ROUTING = "round-robin"


class Run(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A server and what became of the trace there; of a fleet, all of it as one and each replica by its place."""

    case: Case
    outcome: Outcome
    fleet: int = 1
    routing: str | None = None
    replicas: dict[int, Outcome] = {}

    @property
    def metrics(self) -> Metrics:
        """Its figures."""
        found: Metrics | None = self.__dict__.get("metrics_found")
        if found is None:
            found = self.__dict__["metrics_found"] = metrics_of(self.outcome)
        return found

    @property
    def served(self) -> int:
        """Requests that were not refused."""
        return len(self.outcome.trace) - sum(self.outcome.refused.values())


def runs_of(
    trace: Trace,
    cases: Sequence[Case],
    replicas: int = 1,
    routing: str | None = None,
    *,
    jobs: int = 1,
    backend: str = "loky",
    progress: Progress | None = None,
) -> list[Run]:
    """What becomes of `trace` in every case, in their order; fewer where Ctrl-C ended it."""
    if jobs < -1 or jobs == 0:
        raise KvcalcError(f"--jobs {jobs}: nobody would work", "1, or -1 for as many as there are cores")
    if routing is not None and replicas == 1:
        raise KvcalcError(f"--routing {routing}: there is one server", "add --replicas 2")
    if replicas == 1:
        found = run_settings(trace, [case.setting for case in cases], jobs, backend=backend, progress=progress)
        return [Run(case=case, outcome=outcome) for case, outcome in zip(cases, found, strict=False)]
    runs: list[Run] = []
    for case in cases:
        rule = routing or ROUTING
        try:
            fleet = simulate_fleet(trace, case.setting, replicas, rule, jobs=jobs, backend=backend, progress=progress)
        except KeyboardInterrupt:
            # Of a fleet that was still being routed there is nothing to keep, of those before it there is.
            if not runs:
                raise
            break
        runs.append(Run(case=case, outcome=fleet.whole, fleet=replicas, routing=rule, replicas=fleet.outcomes))
        if not fleet.whole.is_complete:
            break
    return runs


def names_of(runs: Sequence[Run]) -> list[str]:
    """What tells the settings apart, in the words of their flags; of one setting nothing needs to be said."""
    facts = [dict(facts_of(run)) for run in runs]
    differ = [key for key in facts[0] if len({fact[key] for fact in facts}) > 1]
    return [" ".join(fact[key] for key in differ if fact[key]) for fact in facts]


def facts_of(run: Run) -> Iterator[tuple[str, str]]:
    """Flags that may differ between settings."""
    server, blocks = run.case.server, run.case.pool.block_tokens
    yield "--kv-dtype", server.plan.workload.kv_dtype
    yield "--allocator", run.case.setting.allocator
    yield (
        "--block-size",
        f"block {'/'.join(map(str, blocks))}" if run.case.setting.allocator == "paged" and blocks else "",
    )
    yield "--prefix-caching", f"prefixes {'on' if run.case.setting.prefix_caching else 'off'}"
