"""What is searched for under limits on what users see: rates, pools, GPUs."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from kvcalc.errors import KvcalcError, UnknownNameError
from kvcalc.workload.asked import Case, case_of
from kvcalc.workload.fleet import simulate_fleet
from kvcalc.workload.goals import Slo, fewest_gpus, largest_rate, smallest_pool
from kvcalc.workload.outcome import Outcome
from kvcalc.workload.runs import ROUTING, Run
from kvcalc.workload.search import Found
from kvcalc.workload.simulate import Setting, simulate
from kvcalc.workload.spreads import search_document
from kvcalc.workload.trace import Trace

if TYPE_CHECKING:
    from kvcalc.workload.documents import GoalsDocument

Told = Callable[[str], None]
"""Called with what is being searched for, each time that something is tried."""


class Sought(msgspec.Struct, frozen=True, kw_only=True):
    """Limits, and what to search for: names of SEARCHES."""

    slo: Slo
    what: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.what:
            if name not in SEARCHES:
                raise UnknownNameError("search", name, SEARCHES, f"--find takes {', '.join(SEARCHES)}")


def goals_of(runs: Iterable[Run], sought: Sought, told: Told) -> "Iterator[GoalsDocument]":
    """What every run keeps, and what would; KeyboardInterrupt where one is cut short."""
    for run in runs:
        document: GoalsDocument = {
            "max_ttft_seconds": sought.slo.ttft,
            "max_tpot_seconds": sought.slo.tpot,
            "percentile": sought.slo.percentile,
            "breaks": sought.slo.breaks(run.outcome),
            "meets": not sought.slo.breaks(run.outcome),
            "largest_rate_per_second": None,
            "any_rate": False,
            "smallest_pool_bytes": None,
            "fewest_gpus": None,
            "tp": None,
            "replicas": None,
            "beyond": {},
            "searches": [],
        }
        for name in sought.what:
            SEARCHES[name](run, sought.slo, document, partial(told, name))
        yield document


def _serve(run: Run, tell: Callable[[], None]) -> Callable[[Trace, Setting], Outcome]:
    def serve(trace: Trace, setting: Setting) -> Outcome:
        tell()
        if run.fleet == 1:
            return simulate(trace, setting)
        return simulate_fleet(trace, setting, run.fleet, run.routing or ROUTING).whole

    return serve


def _rate(run: Run, slo: Slo, document: "GoalsDocument", tell: Callable[[], None]) -> None:
    found = largest_rate(run.outcome.trace, run.case.setting, slo, serve=_serve(run, tell))
    document["any_rate"] = found.value == math.inf
    document["largest_rate_per_second"] = None if found.value == math.inf else found.value
    _beyond(found, "rate", document)


def _pool(run: Run, slo: Slo, document: "GoalsDocument", tell: Callable[[], None]) -> None:
    setting = run.case.setting
    found = smallest_pool(run.outcome.trace, setting, slo, serve=_serve(run, tell))
    if found.value is not None:
        document["smallest_pool_bytes"] = int(found.value) * setting.layout.bytes_per_unit
    _beyond(found, "pool", document)


def _gpus(run: Run, slo: Slo, document: "GoalsDocument", tell: Callable[[], None]) -> None:
    trace, server = run.outcome.trace, run.case.server

    def make(tp: int) -> Setting | None:
        tell()
        plan = server.plan.on(tp=tp)
        try:
            case: Case = case_of(msgspec.structs.replace(server, plan=plan), trace)
        except KvcalcError:
            return None
        return case.setting

    found = fewest_gpus(trace, make, slo, tps=_tps(run), routing=run.routing or ROUTING)
    document["fewest_gpus"], document["tp"], document["replicas"] = found.gpus, found.tp, found.replicas
    for tp, search in found.searches.items():
        _beyond(search, f"gpus --tp {tp}", document)


def _tps(run: Run) -> Sequence[int]:
    """Tensor-parallel ranks that are tried; KvcalcError where layers are split over cards."""
    sharding = run.case.server.plan.sharding
    if sharding.pp > 1 or run.case.server.plan.engine.spreads_layers:
        raise KvcalcError("--find gpus tries tensor parallelism and replicas alone", "--find rate,pool")
    return (1, 2, 4, 8)


def _beyond(found: Found, name: str, document: "GoalsDocument") -> None:
    document["searches"].append(search_document(name, found))
    if found.beyond is not None:
        document["beyond"][name] = found.beyond.breaks


SEARCHES = {"rate": _rate, "pool": _pool, "gpus": _gpus}
"""What may be searched for, by its name behind --find."""
