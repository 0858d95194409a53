"""What should be said beside a simulation: defaults that were taken, and what they rest on."""

from collections.abc import Iterator

from kvcalc.units import memory
from kvcalc.workload.asked import Case
from kvcalc.workload.trace import Trace


def notes_of(case: Case, trace: Trace) -> Iterator[str]:
    """Notes on a case, a sentence each."""
    setting, server, pool = case.setting, case.server, case.pool
    if server.plan.engine.is_plain:
        blocks = f"in blocks of {pool.block_tokens[0]} tokens" if pool.block_tokens else "as states alone"
        blocks = blocks if setting.allocator == "paged" else "in one piece a request"
        yield (
            f"no engine: the need {blocks}, at most {setting.max_num_seqs:,} requests at once and "
            f"{setting.max_num_batched_tokens:,} tokens a step (--engine vllm)"
        )
    if setting.allocator != server.allocator:
        yield f"{server.plan.engine.name} holds a whole context for each request at once (--kv-unified shares the room)"
    if not server.is_context_asked and (server.plan.spec.max_context or pool.longest < trace.longest):
        asked = server.plan.workload.context_tokens
        whose = "by default" if pool.longest == asked else f"all that the pool takes, not {asked:,}"
        yield f"requests of up to {pool.longest:,} tokens, {whose} (--max-model-len)"
    low, high = pool.outcome.pool.low, pool.outcome.pool.high
    if low < high:
        yield f"the pool is {memory(max(0, low))} to {memory(high)}, as kvcalc fit explains"
    yield from _notes_on_time(case, trace)
    if server.prefix_caching is None and setting.prefix_caching:
        yield "prefixes are kept, as the trace has some (--prefix-caching off)"


def _notes_on_time(case: Case, trace: Trace) -> Iterator[str]:
    server = case.server
    if not server.is_timed and not server.time_free:
        yield "no GPU is named: a step is the unit of time, and all wait from the start (--gpu, or --step-time 20ms)"
    if server.is_timed and trace.arrival_seconds is None:
        yield "all requests come at second 0 (--rate 20/s)"
    if server.is_timed and server.step_seconds is None:
        file = server.calibration
        off = "docs/accuracy.md has how far that is off" if file is None else file.provenance
        yield f"a step takes what kvcalc throughput says: {off}"
