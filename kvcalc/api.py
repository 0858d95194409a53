"""The Python API: the same objects that the command line prints."""

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvcalc.cache.formats import AUTO
from kvcalc.cache.sharding import Sharding
from kvcalc.model import catalog
from kvcalc.model.spec import ModelSpec
from kvcalc.sizing.need import CacheSize, Workload, default_context, size_workload

if TYPE_CHECKING:
    from pandas import DataFrame

    from kvcalc.engines.documents import FitDocument
    from kvcalc.profiler.documents import ProfileDocument
    from kvcalc.speed.throughput import Throughput


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
    model = _loaded(spec)
    workload = Workload(
        context_tokens=default_context([model]) if context_tokens is None else _integer(context_tokens),
        batch=_integer(batch),
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
    from kvcalc.engines.engine import find_engine
    from kvcalc.engines.fit import answer
    from kvcalc.engines.fit_report import fit_document
    from kvcalc.engines.plain import Plain
    from kvcalc.engines.plan import Budget, Plan

    asked = size(spec, context_tokens, batch, **workload)
    plan = Plan(
        spec=asked.spec,
        workload=asked.workload,
        sharding=asked.sharding,
        engine=Plain() if engine is None else find_engine(engine, engine_flags),
        budget=Budget.of(gpu=gpu, gpu_memory=gpu_memory_bytes, kv_cache_memory=kv_cache_memory_bytes),
    )
    return fit_document(answer(plan))


def _integer(count: int) -> int:
    """A plain integer for any integer type (numpy's among them); anything else goes on to be refused."""
    return operator.index(count) if hasattr(count, "__index__") and not isinstance(count, bool) else count


def _loaded(spec: ModelSpec | str) -> ModelSpec:
    return catalog.load(spec) if isinstance(spec, str) else spec


def grid(
    spec: ModelSpec | str,
    context_tokens: Sequence[int],
    batch: Sequence[int] = (1,),
    *,
    kv_dtype: str | None = None,
    dtype: str | None = None,
    state_dtype: str | None = None,
    encoder_tokens: int | None = None,
    draft_layers: int = 0,
) -> "DataFrame":
    """Every context with every batch at once, as a pandas DataFrame of bytes.

    Columns: context_tokens, batch, bytes_per_sequence, total_bytes, read_bytes_per_step (all int64).
    Raises KvcalcError where a count is below 1 or a total would pass 8 EiB.
    """
    from kvcalc.sizing.grid import size_grid

    workload = Workload(
        kv_dtype=AUTO if kv_dtype is None else kv_dtype,
        dtype=dtype,
        state_dtype=state_dtype,
        encoder_tokens=encoder_tokens,
        draft_layers=draft_layers,
    )
    return size_grid(_loaded(spec), context_tokens, batch, workload)


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
        contexts=None if context_tokens is None else [_integer(one) for one in context_tokens],
        batches=None if batch is None else [_integer(one) for one in batch],
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
    return profile_run(ask_for(_loaded(spec), wanted, found.kind, Rank()), found, tolerance)


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
    load = Load(isl=_integer(isl), osl=_integer(osl), batch=_integer(batch), rate=rate)
    return estimate(_loaded(spec), gpu, load, use, engine=engine, served=served, force=force)


def sweep(
    models: ModelSpec | str | Sequence[ModelSpec | str],
    context_tokens: Sequence[int] | str | None = None,
    batch: Sequence[int] | str = (1,),
    *,
    gpus: Sequence[str] = (),
    engines: Sequence[str] = (),
    kv_dtypes: Sequence[str] = (),
    weights: Sequence[str] = (),
    tp: Sequence[int] | str = (1,),
    osl: int = 128,
    served: bool = False,
    **same: Any,
) -> "DataFrame":
    """Every model, format, engine, GPU, rank count, context and batch, as `kvcalc sweep` answers them; a row a point.

    Counts are integers, or ranges as the command line reads them (`"1K..1M"`). Contexts are whole ones, of which the
    last `osl` tokens are the answer where `gpus` are named. `same` are `dtype`, `state_dtype`, `encoder_tokens`,
    `attention_dp`, `pp`, `dp` and `ep`. Columns as in docs/sweep.md. Raises KvcalcError where a name or a count is
    wrong, where no deployment can be, and past 1,000,000 points, which the command line streams.
    """
    from kvcalc.hardware.gpus import find_gpu
    from kvcalc.speed.sweep.asked import Asked
    from kvcalc.speed.sweep.asking import counts_of, engine_names, kv_formats, make_uses, weight_formats
    from kvcalc.speed.sweep.grid import whole_frame

    specs = tuple(_loaded(one) for one in ([models] if isinstance(models, str | ModelSpec) else models))
    asked = Asked(
        specs=specs,
        uses=make_uses(weight_formats(weights), kv_formats(kv_dtypes), counts_of(tp, "tp"), **same),
        contexts=counts_of([default_context(specs)] if context_tokens is None else context_tokens, "context_tokens"),
        batches=counts_of(batch, "batch"),
        gpus=tuple(dict.fromkeys(find_gpu(name).name for name in gpus)),
        engines=engine_names(engines, is_timed=bool(gpus)),
        osl=_integer(osl),
        served=served,
    )
    return whole_frame(asked)
