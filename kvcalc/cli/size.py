"""kvcalc size and kvcalc explain."""

from typing import TYPE_CHECKING

from kvcalc.cli.emit import emit
from kvcalc.cli.llama_cpp import LlamaCppOptions, ask_llama_cpp, refuse_without_engine
from kvcalc.cli.options import EngineOption, KvDtypeOption, Model, OutputOptions, RequestOptions, ShardingOptions, verb
from kvcalc.cli.request import Asked, ask

if TYPE_CHECKING:
    from kvcalc.documents import EngineDocument
    from kvcalc.engines.engine import Allocation


@verb
def size(
    model: Model,
    *,
    request: RequestOptions,
    kv: KvDtypeOption,
    engine: EngineOption,
    llama_cpp: LlamaCppOptions,
    sharding: ShardingOptions,
    output: OutputOptions,
) -> None:
    """The KV cache that a workload needs: a token, a sequence, the batch, a rank; beside the weights."""
    from kvcalc.sizing.report import size_report

    asked, held = _ask(model, request, kv.kv_dtype, engine, llama_cpp, sharding)
    emit(size_report(asked.size, None if held is None else _document(held)), output, asked.notes)


def _ask(
    model: str,
    request: RequestOptions,
    kv_dtype: str,
    engine: EngineOption,
    llama_cpp: LlamaCppOptions,
    sharding: ShardingOptions,
) -> "tuple[Asked, Allocation | None]":
    """The need, and what the engine that was asked for would hold; its own flags keep their meaning."""
    flags = engine.flags()
    if engine.engine is None and not flags:
        refuse_without_engine(llama_cpp)
        return ask(model, request, kv_dtype, sharding), None
    from kvcalc.engines.engine import find_engine
    from kvcalc.engines.llama_cpp import LlamaCpp

    found = find_engine(engine.engine, flags)
    if found.name != LlamaCpp.name:
        refuse_without_engine(llama_cpp)
        asked = ask(model, request, kv_dtype, sharding)
        return asked, found.allocate(asked.size)
    asked, settings = ask_llama_cpp(model, request, kv_dtype, llama_cpp, sharding)
    return asked, LlamaCpp(settings).allocate(asked.size)


def _document(held: "Allocation") -> "EngineDocument":
    """What the engine would hold, as its part of the document."""
    return {
        "name": held.name,
        "version": held.version,
        "allocated_bytes": held.allocated_bytes,
        "parts": [part.document() for part in held.parts],
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
