"""From the flags of kvcalc simulate to requests and servers."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.cli.fit import CardOptions, CommandOptions, budget_of, planned, started_by
from kvcalc.cli.options import KvDtypeOption, RequestOptions, ShardingOptions
from kvcalc.cli.simulate_options import ClockOptions, PagedEngineOptions, ServedOptions, TraceOptions
from kvcalc.errors import KvcalcError
from kvcalc.model.spec import ModelSpec

if TYPE_CHECKING:
    from kvcalc.engines.plan import Plan
    from kvcalc.speed.calibrated import CalibrationFile
    from kvcalc.workload.asked import Server
    from kvcalc.workload.trace import Trace

REQUESTS = 10_000


class Flags(msgspec.Struct, frozen=True):
    """All that was typed about the server."""

    served: ServedOptions
    clock: ClockOptions
    card: CardOptions
    engine: PagedEngineOptions
    sharding: ShardingOptions


class Requests(msgspec.Struct, frozen=True):
    """The requests, the seed where something was drawn, and notes on how the flags were read."""

    trace: "Trace"
    seed: int | None
    notes: tuple[str, ...]


def requests_of(path: str | None, options: TraceOptions, limit: int | None) -> Requests:
    """The requests that the flags name, none longer than `limit` tokens unless the policy refuses them."""
    from kvcalc.workload.generate import DEFAULT_SEED
    from kvcalc.workload.limits import POLICIES

    if options.policy not in POLICIES:
        raise KvcalcError(f"--policy {options.policy!r} is not known", f"one of {', '.join(POLICIES)}")
    if options.rate is not None and options.rate_scale is not None:
        raise KvcalcError("--rate and --rate-scale both say when requests come", "keep one of them")
    seed = DEFAULT_SEED if options.seed is None else options.seed
    trace, is_drawn = _drawn(options, limit, seed) if path is None else _read(path, options, limit, seed)
    return Requests(trace, seed if is_drawn else None, tuple(_counted(trace, is_drawn, seed)))


def _counted(trace: "Trace", is_drawn: bool, seed: int) -> Iterator[str]:
    for why, count in trace.counted.items():
        yield f"{why}: {count:,}"
    if is_drawn:
        yield f"drawn by --seed {seed}"


def _drawn(options: TraceOptions, limit: int | None, seed: int) -> "tuple[Trace, bool]":
    from kvcalc.workload.arrivals import Recorded, parse_arrivals
    from kvcalc.workload.distributions import parse_distribution
    from kvcalc.workload.generate import generate
    from kvcalc.workload.limits import limited
    from kvcalc.workload.prefixes import parse_prefix

    if options.isl is None or options.osl is None:
        raise KvcalcError("no requests are named", "a TRACE, or --isl 1200 --osl lognormal:mean=200 --rate 20/s")
    for flag, given in (("--limit", options.limit), ("--rate-scale", options.rate_scale), ("--sort", options.sort)):
        if given:
            raise KvcalcError(f"{flag} is about a trace, and requests are drawn here", f"leave {flag} out")
    arrivals = None if options.rate is None else parse_arrivals(options.rate)
    if isinstance(arrivals, Recorded):
        raise KvcalcError(f"--rate {options.rate}: nothing was recorded of requests that are drawn", "--rate 20/s")
    trace = generate(
        requests=options.requests or REQUESTS,
        isl=parse_distribution(options.isl),
        osl=parse_distribution(options.osl, "output_tokens"),
        arrivals=arrivals,
        prefix=None if options.prefix is None else parse_prefix(options.prefix),
        seed=seed,
    )
    return trace if limit is None else limited(trace, limit, options.policy), True  # type: ignore[arg-type]


def _read(path: str, options: TraceOptions, limit: int | None, seed: int) -> "tuple[Trace, bool]":
    from kvcalc.workload.arrivals import Recorded, parse_arrivals, retimed
    from kvcalc.workload.generate import streams
    from kvcalc.workload.readers import read_trace

    for flag in ("isl", "osl", "prefix", "requests"):
        if getattr(options, flag) is not None:
            hint = "--limit N takes the first of a trace" if flag == "requests" else "leave it or the trace out"
            raise KvcalcError(f"--{flag} draws requests, and a trace is named", hint)
    trace = read_trace(
        path,
        limit=options.limit,
        max_context=limit,
        policy=options.policy,  # type: ignore[arg-type]
        sort=options.sort,
    )
    if options.rate_scale is not None:
        scale = options.rate_scale
        if not 1e-9 <= scale <= 1e9:
            raise KvcalcError(f"--rate-scale {scale:g} is no speed", "2 is twice as fast, 0.5 half as fast")
        return retimed(trace, Recorded(speed=scale), streams(seed, 4)[2]), False
    if options.rate is None:
        if options.seed is not None:
            raise KvcalcError("--seed draws, and nothing is drawn of a trace at its own times", "leave it out")
        return trace, False
    arrivals = parse_arrivals(options.rate)
    return retimed(trace, arrivals, streams(seed, 4)[2]), not isinstance(arrivals, Recorded)


class Choice(msgspec.Struct, frozen=True):
    """One of what was listed."""

    kv_dtype: str
    allocator: str
    keeps_prefixes: bool | None
    block_tokens: int | None


def servers_of(spec: ModelSpec, flags: Flags, context: int) -> "list[Server]":
    """One server for each choice of what is listed, the last varied first; `context` where no limit is typed."""
    return [_server(spec, flags, context, choice) for choice in _choices(flags)]


def _choices(flags: Flags) -> list[Choice]:
    from kvcalc.cache.formats import AUTO

    served = flags.served
    caching = [None] if served.prefix_caching is None else [_switch(one) for one in _listed([served.prefix_caching])]
    blocks: Sequence[int | None] = flags.engine.vllm.block_size or (None,)
    listed = product(_formats(served.kv_dtype) or [AUTO], _listed([served.allocator]), caching, blocks)
    # Contiguous room has no blocks.
    return list(
        dict.fromkeys(
            Choice(form, name, keeps, block if name == "paged" else None) for form, name, keeps, block in listed
        )
    )


def _server(spec: ModelSpec, flags: Flags, context: int, choice: Choice) -> "Server":
    from kvcalc.speed.sweep.money import parse_seconds
    from kvcalc.workload.asked import Server

    served, clock = flags.served, flags.clock
    plan = plan_of(spec, flags, context, choice)
    return Server(
        plan=plan,
        is_context_asked=served.max_model_len is not None,
        allocator=choice.allocator,
        prefix_caching=choice.keeps_prefixes,
        block_tokens=choice.block_tokens,
        max_num_seqs=served.max_num_seqs,
        max_num_batched_tokens=flags.engine.vllm.max_num_batched_tokens if plan.engine.is_plain else None,
        preemption=served.preemption,  # type: ignore[arg-type]
        watermark=served.watermark,
        step_seconds=None if clock.step_time is None else parse_seconds(clock.step_time, "--step-time"),
        time_free=clock.time_free,
        calibration=_calibration(clock, plan),
    )


def _calibration(clock: ClockOptions, plan: "Plan") -> "CalibrationFile | None":
    if clock.calibration is None:
        return None
    from kvcalc.speed.calibrated import read_calibration

    if clock.time_free or clock.step_time is not None or plan.budget.gpu is None:
        raise KvcalcError("--calibration is of a GPU's step times, and none are asked for", "--gpu alone says them")
    return read_calibration(clock.calibration, plan.budget.gpu, None if plan.engine.is_plain else plan.engine.name)


def plan_of(spec: ModelSpec, flags: Flags, context: int, choice: Choice) -> "Plan":
    """The plan that `kvcalc fit` makes of the same flags."""
    served, engine = flags.served, _engine_of(flags.engine, choice)
    is_vllm = _name_of(engine) == "vllm"
    request = RequestOptions(
        ctx=str(served.max_model_len or context),
        max_num_seqs=str(served.max_num_seqs) if served.max_num_seqs and is_vllm else None,
        dtype=served.dtype,
        weights=served.weights,
        state_dtype=served.state_dtype,
        encoder_tokens=served.encoder_tokens,
        strict=served.strict,
    )
    started = started_by(spec, request, KvDtypeOption(choice.kv_dtype), engine, CommandOptions(), flags.sharding)
    return planned(started, budget_of(flags.card, started.pool_bytes), flags.card.gpus)


def _engine_of(engine: PagedEngineOptions, choice: Choice) -> PagedEngineOptions:
    """The engine's flags with what was chosen; without an engine blocks and steps are no flags of vLLM's."""
    own: dict[str, Any] = {"block_size": choice.block_tokens}
    name, keeps = _name_of(engine), choice.keeps_prefixes
    if not name:
        own = {"block_size": None, "max_num_batched_tokens": None}
    elif name == "vllm" and keeps is not None:
        if engine.vllm.enable_prefix_caching not in (None, keeps):
            raise KvcalcError("--prefix-caching and --enable-prefix-caching contradict each other", "keep one of them")
        own["enable_prefix_caching"] = keeps
    return msgspec.structs.replace(engine, vllm=msgspec.structs.replace(engine.vllm, **own))


def _name_of(engine: PagedEngineOptions) -> str:
    return (engine.engine or "").partition("@")[0].strip().casefold()


def _formats(given: Sequence[str] | None) -> list[str]:
    """One request a format; one that names components (index=bf16) is a request as a whole."""
    return list(dict.fromkeys(one for item in given or () for one in ([item] if "=" in item else _listed([item]))))


def _listed(given: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(part.strip() for item in given for part in item.split(",")))


def _switch(text: str) -> bool:
    if text.casefold() not in ("on", "off"):
        raise KvcalcError(f"--prefix-caching {text!r} is neither on nor off", "--prefix-caching on,off tries both")
    return text.casefold() == "on"
