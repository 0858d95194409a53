"""kvcalc size and kvcalc explain."""

from typing import TYPE_CHECKING, Any

from kvcalc.cli.emit import emit
from kvcalc.cli.options import EngineOption, KvDtypeOption, Model, OutputOptions, RequestOptions, ShardingOptions, verb
from kvcalc.cli.request import ask

if TYPE_CHECKING:
    from kvcalc.documents import EngineDocument
    from kvcalc.sizing.need import CacheSize


@verb
def size(
    model: Model,
    request: RequestOptions,
    kv: KvDtypeOption,
    engine: EngineOption,
    sharding: ShardingOptions,
    output: OutputOptions,
) -> None:
    """The KV cache that a workload needs: a token, a sequence, the batch, a rank; beside the weights."""
    from kvcalc.sizing.report import size_report

    asked = ask(model, request, kv.kv_dtype, sharding)
    emit(size_report(asked.size, _held_by(engine.engine, engine.flags(), asked.size)), output, asked.notes)


def _held_by(engine: str | None, flags: dict[str, Any], size: "CacheSize") -> "EngineDocument | None":
    """What the engine that was asked for would hold, as its part of the document."""
    if engine is None and not flags:
        return None
    from kvcalc.engines.engine import find_engine

    held = find_engine(engine, flags).allocate(size)
    return {
        "name": held.name,
        "version": held.version,
        "allocated_bytes": held.allocated_bytes,
        "rules": list(held.rules),
        "pool": held.pool,
    }


@verb
def explain(
    model: Model, request: RequestOptions, kv: KvDtypeOption, sharding: ShardingOptions, output: OutputOptions
) -> None:
    """The formula of this model, term by term, with the numbers put in and the source of each."""
    from kvcalc.sizing.explain import explain_report

    asked = ask(model, request, kv.kv_dtype, sharding)
    emit(explain_report(asked.size), output, asked.notes)
