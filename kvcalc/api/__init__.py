"""The Python API: the same objects that the command line prints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.api.grids import grid as grid
from kvcalc.api.grids import integer, loaded
from kvcalc.api.grids import sweep as sweep
from kvcalc.cache.formats import AUTO
from kvcalc.cache.sharding import Sharding
from kvcalc.model import catalog
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import CacheSize, Workload, default_context, size_workload

if TYPE_CHECKING:
    from kvcalc.engines.documents import FitDocument
    from kvcalc.engines.plan import Budget, Plan
    from kvcalc.profiler.documents import ProfileDocument
    from kvcalc.speed.throughput import Throughput
    from kvcalc.workload.documents import SimulateDocument
    from kvcalc.workload.trace import Trace


def load(
    name_or_path: str, overrides: Sequence[str] = (), *, assume: bool = False, download: bool = False
) -> ModelSpec:
    """The model called `name_or_path`: a catalogue name, an alias, a hub id, or the path of a file.

    Files are YAML specs, config.json (or a folder with one) and GGUF; hub ids come from the local hub cache,
    from the network only where `download` is set. `overrides` vary the model without a file, as `--set` does:
    `["mixer.kv_heads=4"]`; `assume` takes fields of a config that are not understood as harmless. Raises
    UnknownNameError with near names, and SpecError for a file that cannot be read.
    """
    return catalog.load(name_or_path, overrides, assume=assume, download=download)


def models() -> list[str]:
    """The names of every model of the catalogue, sorted."""
    return catalog.catalogue_names()


def size(
    spec: ModelSpec | str,
    context_tokens: int | None = None,
    batch: int = 1,
    *,
    kv_dtype: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    state_dtype: str | None = None,
    encoder_tokens: int | None = None,
    draft_layers: int = 0,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    dcp: int = 1,
) -> CacheSize:
    """What `batch` sequences of `context_tokens` tokens need, in exact bytes; `spec` is a model or its name.

    Without `context_tokens` they have 8,192, or as many as the model can take.
    Formats are names (`bf16`, `fp8`, `k=q8_0,v=q4_0`, `index=bf16`); None leaves them to the spec. The
    parallel sizes shape `bytes_per_rank` and `all_ranks_bytes` only. Raises KvcalcError where a format
    or a count does not fit the model.
    """
    model = loaded(spec)
    workload = Workload(
        context_tokens=default_context([model]) if context_tokens is None else integer(context_tokens),
        batch=integer(batch),
        kv_dtype=AUTO if kv_dtype is None else kv_dtype,
        dtype=dtype,
        weights=weights,
        state_dtype=state_dtype,
        encoder_tokens=encoder_tokens,
        draft_layers=draft_layers,
    )
    return size_workload(model, workload, Sharding(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp))


def fit(
    spec: ModelSpec | str,
    context_tokens: int | None = None,
    batch: int = 1,
    *,
    gpu: str | None = None,
    gpu_memory_bytes: int | None = None,
    kv_cache_memory_bytes: int | None = None,
    engine: str | None = None,
    engine_flags: Mapping[str, Any] | None = None,
    **workload: Any,
) -> "FitDocument":
    """What a card leaves for the cache and what that carries, as `kvcalc fit` answers it, in bytes of one rank.

    One of `gpu` (a name), `gpu_memory_bytes` and `kv_cache_memory_bytes` says where the memory comes from; `engine` is
    a name like `vllm@0.24`, `engine_flags` are its own flags by name. `workload` are the other arguments of `size`.
    """
    from kvcalc.engines.fit import answer
    from kvcalc.engines.fit_report import fit_document

    budget = _budget(gpu, gpu_memory_bytes, kv_cache_memory_bytes)
    return fit_document(answer(_plan(size(spec, context_tokens, batch, **workload), budget, engine, engine_flags)))


def simulate(
    spec: ModelSpec | str,
    trace: "Trace | str | Path",
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
    default the model's own limit, are left out and counted. Memory and engine are those of `fit`. `asked` are other
    arguments of `size`, and those of kvcalc.workload.asked.Server: `allocator`, `prefix_caching`, `step_seconds`, ...
    """
    from kvcalc.workload.answer import simulate_document
    from kvcalc.workload.answered import answer_of
    from kvcalc.workload.asked import Server, case_of, requests_within
    from kvcalc.workload.runs import runs_of

    model = loaded(spec)
    own = {name: asked.pop(name) for name in Server.__struct_fields__ if name in asked}
    requests = requests_within(trace, max_model_len or model.max_context)
    size_asked = size(model, max_model_len or model.max_context or requests.longest, **asked)
    plan = _plan(size_asked, _budget(gpu, gpu_memory_bytes, kv_cache_memory_bytes), engine, engine_flags)
    cases = [case_of(Server(plan=plan, is_context_asked=max_model_len is not None, **own), requests)]
    return simulate_document(answer_of(model, requests, cases, runs_of(requests, cases, replicas, routing)))


def _budget(gpu: str | None, gpu_memory_bytes: int | None, kv_cache_memory_bytes: int | None) -> "Budget":
    from kvcalc.engines.plan import Budget

    return Budget.of(gpu=gpu, gpu_memory=gpu_memory_bytes, kv_cache_memory=kv_cache_memory_bytes)


def _plan(asked: CacheSize, budget: "Budget", engine: str | None, flags: Mapping[str, Any] | None) -> "Plan":
    from kvcalc.engines.engine import find_engine
    from kvcalc.engines.plain import Plain
    from kvcalc.engines.plan import Plan

    return Plan(
        spec=asked.spec,
        workload=asked.workload,
        sharding=asked.sharding,
        engine=Plain() if engine is None else find_engine(engine, flags),
        budget=budget,
    )


def profile(
    spec: ModelSpec | str,
    context_tokens: Sequence[int] | None = None,
    batch: Sequence[int] | None = None,
    *,
    device: str | None = None,
    layers: int | None = None,
    with_mlp: bool = False,
    kv_dtype: str | None = None,
    dtype: str | None = None,
    state_dtype: str | None = None,
    encoder_tokens: int | None = None,
    page_tokens: int | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> "ProfileDocument":
    """Run the reference layers of `spec` over a grid of contexts and batches, as `kvcalc profile` does.

    The document is the run file: bytes predicted and measured, seconds, and the verdict on them. Needs torch (the
    extra `profile`). Raises KvcalcError where the model, a format or a count cannot run, or does not fit.
    """
    from kvcalc.profiler.asking import Wanted, ask_for
    from kvcalc.profiler.device import find_device
    from kvcalc.profiler.run import profile_run
    from kvcalc.reference.build import Rank

    wanted = Wanted(
        contexts=None if context_tokens is None else [integer(one) for one in context_tokens],
        batches=None if batch is None else [integer(one) for one in batch],
        layers=layers,
        with_mlp=with_mlp,
        kv_dtype=AUTO if kv_dtype is None else kv_dtype,
        dtype=dtype,
        state_dtype=state_dtype,
        encoder_tokens=encoder_tokens,
        page=page_tokens,
        seed=seed,
    )
    found = find_device(device)
    return profile_run(ask_for(loaded(spec), wanted, found.kind, Rank()), found, tolerance)


def throughput(
    spec: ModelSpec | str,
    gpu: str,
    *,
    isl: int = 1024,
    osl: int = 128,
    batch: int = 1,
    engine: str | None = None,
    served: bool = False,
    rate: float | None = None,
    weights: str | None = None,
    kv_dtype: str | None = None,
    dtype: str | None = None,
    encoder_tokens: int | None = None,
    attention_dp: bool = False,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    dcp: int = 1,
    force: bool = False,
) -> "Throughput":
    """How fast `batch` sequences of `isl` tokens in and `osl` out run on `gpu`, as `kvcalc throughput` says.

    `rate` is requests a second, with `served`. Raises KvcalcError where something is not known, or the sequences do
    not fit and `force` is not set.
    """
    from kvcalc.speed.setting import Use
    from kvcalc.speed.throughput import Load, estimate

    use = Use(
        weights=weights,
        kv_dtype=AUTO if kv_dtype is None else kv_dtype,
        dtype=dtype,
        encoder_tokens=encoder_tokens,
        sharding=Sharding(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp),
        attention_dp=attention_dp,
    )
    load = Load(isl=integer(isl), osl=integer(osl), batch=integer(batch), rate=rate)
    return estimate(loaded(spec), gpu, load, use, engine=engine, served=served, force=force)
