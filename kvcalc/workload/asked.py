"""What is asked of a simulated server, and the setting that it becomes."""

from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from kvcalc.engines.plan import Plan
from kvcalc.errors import KvcalcError
from kvcalc.speed.calibrated import CalibrationFile
from kvcalc.speed.calibration import Scales
from kvcalc.workload.pool import Pool, pool_of
from kvcalc.workload.simulate import Setting, policy_of
from kvcalc.workload.steptime import FixedCost, ModelCost, StepCost
from kvcalc.workload.trace import Trace

MOST_SEQUENCES = 1024
"""Requests at once where nothing bounds them: `vllm serve` on cards from 70 GiB (EngineArgs.get_batch_defaults)."""
STEP_TOKENS = 8192
"""Tokens of a step where no engine says it; as above."""

Preemption = Literal["recompute", "swap"]
HOST_BYTES_PER_SECOND = 25e9
"""What swapping moves: PCIe 4.0 x16 in practice, of its 31.5 GB/s."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server as it is asked for; its plan's context is the longest request that it takes.

    `block_tokens` and `max_num_batched_tokens` are of a server without an engine: an engine has its own.
    `prefix_caching` None: where requests share prefixes. `step_seconds` None: by the throughput model where a card is
    named, else a step is the unit of time, as `time_free` asks for everywhere.
    """

    plan: Plan
    is_context_asked: bool = True
    allocator: str = "paged"
    prefix_caching: bool | None = None
    block_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    watermark: float = 0.0
    """As vLLM's --watermark, config/scheduler.py of 0.24 and later: none by default."""
    preemption: Preemption = "recompute"
    step_seconds: float | None = None
    time_free: bool = False
    calibration: CalibrationFile | None = None
    """Factors of the throughput model's times."""

    def __post_init__(self) -> None:
        policy_of(self.allocator)
        if self.watermark and self.allocator != "paged":
            raise KvcalcError("--watermark is of blocks: room in one piece never grows", "--allocator paged")
        if self.preemption not in get_args(Preemption):
            raise KvcalcError(f"--preemption {self.preemption!r} is neither recompute nor swap", "recompute is usual")
        if not self.plan.engine.is_plain and self.max_num_batched_tokens is not None:
            raise KvcalcError(f"{self.plan.engine.name} has a budget of its own", f"set {self.plan.engine.step_flag}")
        if self.time_free and self.step_seconds is not None:
            raise KvcalcError("--step-time and --time-free contradict each other", "keep one of them")

    @property
    def is_timed(self) -> bool:
        """Whether its steps take seconds."""
        return not self.time_free and (self.step_seconds is not None or self.plan.budget.gpu is not None)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A server, its pool, and the setting that it is simulated by."""

    server: Server
    pool: Pool
    setting: Setting


def case_of(server: Server, trace: Trace) -> Case:
    """The setting of `server` for the requests of `trace`; KvcalcError for what contradicts itself."""
    plan = server.plan
    if plan.sharding.dp > 1:
        message = f"--dp {plan.sharding.dp}: a data-parallel rank is a server with a pool of its own"
        raise KvcalcError(message, f"--replicas {plan.sharding.dp}")
    allocator = _allocator(server)
    reserves = allocator != "paged"
    pool = pool_of(plan, block_tokens=server.block_tokens, reserves=reserves, is_asked=server.is_context_asked)
    _refuse_small(server, pool, trace)
    sequences = server.max_num_seqs or pool.blocks.most_sequences or MOST_SEQUENCES
    step_tokens = server.max_num_batched_tokens or plan.engine.step_tokens or STEP_TOKENS
    shares = _shares(server, pool, trace)
    setting = Setting(
        layout=pool.blocks.layout,
        pool_units=pool.blocks.units,
        allocator=allocator,
        prefix_caching=shares,
        max_model_len=pool.longest,
        max_num_seqs=sequences,
        max_num_batched_tokens=step_tokens,
        state_slots=pool.blocks.most_sequences,
        watermark=server.watermark,
        preemption=server.preemption,
        swap_bytes_per_second=HOST_BYTES_PER_SECOND if server.is_timed else None,
        cost=_cost(server, trace, min(sequences, len(trace)), step_tokens),
    )
    return Case(server=server, pool=pool, setting=setting)


def _allocator(server: Server) -> str:
    """What is asked for; `places` where a paged pool is, and the engine holds whole contexts."""
    engine = server.plan.engine
    holds_whole = bool(engine.sharing_flag) and not getattr(engine, engine.sharing_flag)
    return "places" if server.allocator == "paged" and holds_whole else server.allocator


def _refuse_small(server: Server, pool: Pool, trace: Trace) -> None:
    """KvcalcError where no request fits a pool for which no limit was asked: the shortest one is named."""
    needed = trace.prompt_tokens + trace.output_tokens
    least = int(needed.argmin())
    if server.is_context_asked or needed[least] <= pool.longest:
        return
    lengths = f"{int(trace.prompt_tokens[least]):,} and {int(trace.output_tokens[least]):,} tokens"
    held = f"a pool of {pool.pool_bytes:,} bytes takes {pool.longest:,} tokens"
    message = f"{held}, fewer than the shortest request, number {least + 1:,} of {lengths}"
    raise KvcalcError(message, "a larger pool")


def _shares(server: Server, pool: Pool, trace: Trace) -> bool:
    """Whether prefixes are kept; unasked where trace, engine and layers do."""
    if server.prefix_caching is not None:
        return server.prefix_caching
    keeps = server.plan.engine.keeps_prefixes and any(group.cap is None for group in pool.blocks.layout.groups)
    return server.allocator == "paged" and trace.prefix_ids is not None and keeps


def _cost(server: Server, trace: Trace, sequences: int, step_tokens: int) -> StepCost | None:
    if not server.is_timed:
        return None
    if server.step_seconds is not None:
        return FixedCost(server.step_seconds)
    from kvcalc.speed.setting import machine_for, make_setting

    use = use_of(server.plan)
    engine = server.plan.engine
    name = None if engine.is_plain else engine.name
    file = server.calibration
    machine = machine_for(str(server.plan.budget.gpu), file.engine_for(name) if file else name, use)
    setting = make_setting(server.plan.spec, machine, use)
    return ModelCost(setting, file.scales if file else Scales(), sequences, trace.longest, step_tokens)


def use_of(plan: Plan) -> Any:
    """How the throughput model is asked about the same plan."""
    from kvcalc.speed.setting import Use

    work = plan.workload
    return Use(
        weights=work.weights,
        kv_dtype=work.kv_dtype,
        dtype=work.dtype,
        state_dtype=work.state_dtype,
        encoder_tokens=work.encoder_tokens,
        sharding=plan.sharding,
    )


def requests_within(trace: Trace | str | Path, limit: int | None) -> Trace:
    """The requests of a trace, or of the file of one, of at most `limit` tokens; the others are counted."""
    from kvcalc.workload.limits import limited
    from kvcalc.workload.readers import read_trace

    if isinstance(trace, str | Path):
        return read_trace(trace, max_context=limit, policy="reject")
    return trace if limit is None else limited(trace, limit, "reject")
