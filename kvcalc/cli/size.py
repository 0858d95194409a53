"""kvcalc size and kvcalc explain."""

from kvcalc.cli.emit import emit
from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.engines import ask_engine
from kvcalc.cli.options import KvDtypeOption, Model, OutputOptions, RequestOptions, ShardingOptions, verb
from kvcalc.cli.request import ask


@verb
def size(
    model: Model,
    *,
    request: RequestOptions,
    kv: KvDtypeOption,
    engine: EngineOptions,
    sharding: ShardingOptions,
    output: OutputOptions,
) -> None:
    """The KV cache that a workload needs: a token, a sequence, the batch, a rank; beside the weights."""
    from kvcalc.sizing.report import size_report

    asked, found = ask_engine(model, request, kv.kv_dtype, engine, sharding)
    held = None
    if found is not None:
        pool = None if engine.kv_cache_memory is None else found.capacity(asked.size, engine.kv_cache_memory)
        held = found.allocate(asked.size).document(pool)
    emit(size_report(asked.size, held), output, asked.notes)


@verb
def explain(
    model: Model, request: RequestOptions, kv: KvDtypeOption, sharding: ShardingOptions, output: OutputOptions
) -> None:
    """The formula of this model, term by term, with the numbers put in and the source of each."""
    from kvcalc.sizing.explain import explain_report

    asked = ask(model, request, kv.kv_dtype, sharding)
    emit(explain_report(asked.size), output, asked.notes)
