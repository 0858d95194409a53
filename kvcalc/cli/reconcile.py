"""kvcalc reconcile: an engine's start-up log, explained figure by figure."""

from collections.abc import Container
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kvcalc.cli.completion import complete_model
from kvcalc.cli.emit import emit, say
from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.llama_cpp import flags_of
from kvcalc.cli.options import (
    KvDtypeOption,
    OutputOptions,
    RequestOptions,
    ShardingOptions,
    count_or,
    tokens_or,
    verb,
)
from kvcalc.cli.request import batch_flag, context_flag, load_asked
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from kvcalc.engines.reconcile.subject import Asked

LogFile = Annotated[
    str, typer.Argument(metavar="LOG", help="The log of an engine's start, or - for stdin.", show_default=False)
]
LogModel = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="The model, where the log does not name one that is known.",
        autocompletion=complete_model,
        show_default=False,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save", metavar="FILE", help="Keep what the log reveals beside the cache, for kvcalc fit --overheads."
    ),
]


@verb
def reconcile(
    context: typer.Context,
    log: LogFile,
    model: LogModel = None,
    *,
    save: Save = None,
    request: RequestOptions,
    kv: KvDtypeOption,
    engine: EngineOptions,
    sharding: ShardingOptions,
    output: OutputOptions,
) -> int:
    """An engine's start-up log, figure by figure: what kvcalc computes for each, equal or different, and why."""
    from kvcalc.engines.logs.reader import open_log
    from kvcalc.engines.overheads_file import write_overheads
    from kvcalc.engines.reconcile.answer import reconcile as held_against
    from kvcalc.engines.reconcile.overheads import saved_overheads
    from kvcalc.engines.reconcile.report import reconcile_report

    asked = _asked(model, request, kv, engine, sharding, _given(context))
    answer = held_against(open_log(log), asked, lambda name: load_asked(name, request))
    if save is not None:
        write_overheads(save, saved_overheads(answer.findings, answer.question, answer.version), force=output.force)
        if not output.quiet:
            say("note", f"wrote {save}")
    report = reconcile_report(answer)
    emit(report, output)
    return report.exit_code


def _asked(
    model: str | None,
    request: RequestOptions,
    kv: KvDtypeOption,
    engine: EngineOptions,
    sharding: ShardingOptions,
    given: Container[str],
) -> "Asked":
    """What the flags say beside the log: only those that were given."""
    from kvcalc.engines.reconcile.subject import Asked

    (ctx_flag, ctx), (batch_name, batch) = context_flag(request), batch_flag(request)
    total = request.ctx_size
    workload: dict[str, Any] = {
        "context_tokens": None if ctx is None or ctx == total else tokens_or(ctx, ctx_flag, 1),
        "batch": None if batch is None else count_or(batch, batch_name, 1),
        "kv_dtype": kv.kv_dtype if "kv_dtype" in given else None,
        "dtype": request.dtype,
        "state_dtype": request.state_dtype,
        "draft_layers": request.draft_layers if "draft_layers" in given else None,
    }
    return Asked(
        model=model,
        engine=engine.engine,
        flags=partial(_own_flags, engine),
        workload={key: value for key, value in workload.items() if value is not None},
        ranks={key: size for key, size in msgspec.structs.asdict(sharding).items() if key in given},
        total_tokens=None if total is None else tokens_or(total, "-c", 1),
        kv_cache_memory=engine.kv_cache_memory,
    )


def _given(context: typer.Context) -> set[str]:
    """Names of the flags that stand on the command line, be it with their default."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _own_flags(options: EngineOptions, engine: str) -> dict[str, Any]:
    """The flags of the log's engine that were given; KvcalcError for those of another, and for what the log says."""
    options.refuse_others([engine])
    given = options.given(engine)
    for flag in ("cache_type_k", "cache_type_v"):
        if flag in given:
            raise KvcalcError(f"--{flag.replace('_', '-')}: the log itself says the types of K and V", "leave it out")
    if engine == "llama.cpp":
        return {name: value for name, value in flags_of(options.llama_cpp, None).items() if name in given}
    return given
