"""Every case served: one server each, or a fleet of them."""

from collections.abc import Sequence

from kvcalc.errors import KvcalcError
from kvcalc.workload.answer import Run
from kvcalc.workload.asked import Case
from kvcalc.workload.fleet import simulate_fleet
from kvcalc.workload.parallel import run_settings
from kvcalc.workload.simulate import Progress
from kvcalc.workload.trace import Trace

ROUTING = "round-robin"


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
    if replicas == 1:
        found = run_settings(trace, [case.setting for case in cases], jobs, backend=backend, progress=progress)
        return [Run(case=case, outcome=outcome) for case, outcome in zip(cases, found, strict=False)]
    runs: list[Run] = []
    for case in cases:
        rule = routing or ROUTING
        fleet = simulate_fleet(trace, case.setting, replicas, rule, jobs=jobs, backend=backend, progress=progress)
        runs.append(Run(case=case, outcome=fleet.whole, fleet=replicas, routing=rule, replicas=fleet.outcomes))
        if not fleet.whole.is_complete:
            break
    return runs
