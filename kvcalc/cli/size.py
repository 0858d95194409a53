"""kvcalc size and kvcalc explain."""

from kvcalc.cli.emit import emit
from kvcalc.cli.options import KvDtypeOption, Model, OutputOptions, RequestOptions, ShardingOptions, verb
from kvcalc.cli.request import ask


@verb
def size(
    model: Model, request: RequestOptions, kv: KvDtypeOption, sharding: ShardingOptions, output: OutputOptions
) -> None:
    """The KV cache that a workload needs: a token, a sequence, the batch, a rank; beside the weights."""
    from kvcalc.sizing.report import size_report

    asked = ask(model, request, kv.kv_dtype, sharding)
    emit(size_report(asked.size), output, asked.notes)


@verb
def explain(
    model: Model, request: RequestOptions, kv: KvDtypeOption, sharding: ShardingOptions, output: OutputOptions
) -> None:
    """The formula of this model, term by term, with the numbers put in and the source of each."""
    from kvcalc.sizing.explain import explain_report

    asked = ask(model, request, kv.kv_dtype, sharding)
    emit(explain_report(asked.size), output, asked.notes)
