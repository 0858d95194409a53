"""`kvcalc.simulate`: the command's answer, in Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.cache.sharding import Sharding
from kvcalc.engines.engine import find_engine
from kvcalc.engines.plain import Plain
from kvcalc.engines.plan import Budget, Plan
from kvcalc.model import catalog
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import Workload
from kvcalc.workload.answer import simulate_document
from kvcalc.workload.answered import answer_of
from kvcalc.workload.asked import Server, case_of, requests_within
from kvcalc.workload.runs import runs_of
from kvcalc.workload.trace import Trace

if TYPE_CHECKING:
    from kvcalc.workload.documents import SimulateDocument


def simulate(
    spec: ModelSpec | str,
    trace: Trace | str | Path,
    *,
    gpu: str | None = None,
    gpu_memory_bytes: int | None = None,
    kv_cache_memory_bytes: int | None = None,
    engine: str | None = None,
    engine_flags: Mapping[str, Any] | None = None,
    max_model_len: int | None = None,
    replicas: int = 1,
    routing: str | None = None,
    **asked: Any,
) -> "SimulateDocument":
    """The requests of `trace` against a cache, as `kvcalc simulate --format json` answers: one setting, one run.

    `trace` is a file, or a Trace (kvcalc.workload.generate makes some); requests longer than `max_model_len`, by
    default the model's own limit, are left out and counted. Memory and engine are those of `kvcalc.fit`. `asked` are
    fields of kvcalc.workload.asked.Server (`allocator`, `prefix_caching`, `step_seconds`, ...), formats and ranks, as
    `kvcalc.size` takes them.
    """
    model = catalog.load(spec) if isinstance(spec, str) else spec
    own, ranks = (_taken(asked, names) for names in (Server.__struct_fields__, Sharding.__struct_fields__))
    requests = requests_within(trace, max_model_len or model.max_context)
    plan = Plan(
        spec=model,
        workload=Workload(context_tokens=max_model_len or model.max_context or requests.longest, **asked),
        sharding=Sharding(**ranks),
        engine=Plain() if engine is None else find_engine(engine, engine_flags),
        budget=Budget.of(gpu=gpu, gpu_memory=gpu_memory_bytes, kv_cache_memory=kv_cache_memory_bytes),
    )
    cases = [case_of(Server(plan=plan, is_context_asked=max_model_len is not None, **own), requests)]
    return simulate_document(answer_of(model, requests, cases, runs_of(requests, cases, replicas, routing)))


def _taken(asked: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """What of `asked` has one of these names, which leaves it."""
    return {name: asked.pop(name) for name in names if name in asked}
