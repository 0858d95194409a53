"""kvcalc fit: what a card leaves for the cache, and what that carries."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
import typer

from kvcalc.cli.completion import complete_engine, complete_gpu
from kvcalc.cli.emit import emit, say, write_text
from kvcalc.cli.engine_flags import count, memory
from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.engines import ask_engine
from kvcalc.cli.options import KvDtypeOption, OptionalModel, OutputOptions, RequestOptions, ShardingOptions, verb
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import hub_id
from kvcalc.model.spec import ModelSpec

if TYPE_CHECKING:
    from kvcalc.cli.started import Started
    from kvcalc.engines.plan import Budget, Outcome, Plan
    from kvcalc.report import Report


class CardOptions(msgspec.Struct, frozen=True):
    """Which cards, and what lies on them beside the cache."""

    PANEL: ClassVar = "Cards"
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The card: h100-sxm, rtx-4090 (kvcalc gpus list), or auto.",
            autocompletion=complete_gpu,
        ),
    ] = None
    gpu_memory: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="Its memory instead: 79.6GiB.", parser=memory("--gpu-memory")),
    ] = None
    gpus: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="How many: --tp N, or cards that layers are split over.", parser=count("--gpus")
        ),
    ] = None
    overheads: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Figures of your own run, as kvcalc reconcile saves them."),
    ] = None
    loras: Annotated[int, typer.Option(metavar="N", help="LoRA adapters loaded at once.")] = 0
    lora_rank: Annotated[int, typer.Option(metavar="R", help="Their rank.")] = 16


class CommandOptions(msgspec.Struct, frozen=True):
    """Commands that start engines, read and written."""

    PANEL: ClassVar = "Commands"
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="COMMAND|FILE", help="Read 'vllm serve ...', or a file that has such a run."),
    ] = None
    emit: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Print the command line that would run it, and nothing else.",
            autocompletion=complete_engine,
        ),
    ] = None


@verb
def fit(
    model: OptionalModel = None,
    *,
    request: RequestOptions,
    kv: KvDtypeOption,
    card: CardOptions,
    engine: EngineOptions,
    command: CommandOptions,
    sharding: ShardingOptions,
    output: OutputOptions,
) -> int:
    """What a card leaves for the cache, what that carries, and what would fit where it does not."""
    from kvcalc.engines.fit import answer
    from kvcalc.engines.fit_report import fit_report

    if command.emit is not None and output.format is not None:
        raise KvcalcError("--emit prints a command, and --format asks for an answer", "use one of them")
    engine = _with_emitted(engine, command.emit)
    started = started_by(model, request, kv, engine, command, sharding)
    plan = planned(started, budget_of(card, started.pool_bytes), card.gpus)
    found = answer(plan)
    if request.strict:
        refuse_assumed(found.outcome)
    report = fit_report(found)
    if command.emit is not None:
        return _emit_command(plan, model, report, output)
    emit(report, output, started.asked.notes)
    return report.exit_code


def refuse_assumed(outcome: "Outcome") -> None:
    """KvcalcError where the answer rests on a term that nobody measured or derived."""
    for term in outcome.terms:
        if term.basis in ("assumed", "unknown"):
            hint = "give --overheads FILE (kvcalc reconcile --save), or the pool: --kv-cache-memory"
            raise KvcalcError(f"--strict: {term.name} of a rank: {term.basis}", hint)


def _with_emitted(engine: EngineOptions, emitted: str | None) -> EngineOptions:
    """`--emit` names the engine where nothing else does."""
    if emitted is None or engine.engine is not None:
        named = (engine.engine or "").partition("@")[0]
        if emitted is not None and emitted != named:
            raise KvcalcError(f"--emit {emitted}, and the engine is {named}", f"use --emit {named}")
        return engine
    return msgspec.structs.replace(engine, engine=emitted)


def started_by(
    model: str | ModelSpec | None,
    request: RequestOptions,
    kv: KvDtypeOption,
    engine: EngineOptions,
    command: CommandOptions,
    sharding: ShardingOptions,
) -> "Started":
    """What is asked, by flags or by a command."""
    from kvcalc.cli.started import Started, ask_started

    if command.from_ is not None:
        from kvcalc.engines.commands import read_command

        return ask_started(read_command(command.from_), model, request, kv, engine, sharding)
    if model is None:
        raise KvcalcError("fit needs a model", "kvcalc fit MODEL --gpu h100-sxm, or --from 'vllm serve ...'")
    from kvcalc.engines.plain import Plain

    plain = msgspec.structs.replace(engine, kv_cache_memory=None)
    asked, found = ask_engine(model, request, kv.kv_dtype, plain, sharding)
    return Started(asked, found or Plain(), engine.kv_cache_memory, None)


def _emit_command(plan: "Plan", model: str | None, report: "Report", output: OutputOptions) -> int:
    """Print the command; whether it fits is the exit code, and said beside it."""
    from kvcalc.engines.commands import Plan as Run
    from kvcalc.engines.commands import emit_command
    from kvcalc.sizing.need import size_workload

    size = size_workload(plan.spec, plan.workload, plan.sharding)
    run = Run(model=_loadable(model or plan.spec.name, plan.engine.model_suffix))
    write_text(emit_command(plan.engine, size, run) + "\n", output.out, output.force)
    if not output.quiet:
        say("note", report.lines[0])
    return report.exit_code


def _loadable(model: str, suffix: str) -> str:
    """The model as an engine loads it: a hub id, a path, or a file of its own kind."""
    if suffix:
        return model if model.casefold().endswith(suffix) else f"{model.rpartition('/')[2]}{suffix}"
    return hub_id(model) or model


def planned(started: "Started", budget: "Budget", gpus: int | None) -> "Plan":
    """What is to run on so many cards; None leaves their number to the ranks, or to what a command says."""
    from kvcalc.engines.plan import Plan

    size = started.asked.size
    plan = Plan(spec=size.spec, workload=size.workload, sharding=size.sharding, engine=started.engine, budget=budget)
    return _on(plan, gpus or (started.gpus if plan.engine.spreads_layers else None) or plan.engine.named_cards)


def _on(plan: "Plan", gpus: int | None) -> "Plan":
    """The plan on `--gpus` cards: tensor parallel where nothing else spreads it."""
    named = plan.engine.named_cards
    if named is not None and gpus != named:
        raise KvcalcError(f"{gpus} cards, and -ts has shares of {named}", "say as many with --gpus, or leave -ts out")
    if gpus is None or gpus == plan.gpus:
        return plan
    if plan.engine.spreads_layers:
        return msgspec.structs.replace(plan, budget=msgspec.structs.replace(plan.budget, cards=gpus))
    if plan.gpus > 1:
        raise KvcalcError(
            f"--gpus {gpus}, but the ranks are {plan.gpus}", "leave --gpus out: --tp, --pp and --dp say it"
        )
    return plan.on(tp=gpus)


def budget_of(card: CardOptions, pool_bytes: int | None) -> "Budget":
    """Where the memory comes from, and what lies beside the cache."""
    from kvcalc.engines.overheads import read_overheads
    from kvcalc.engines.plan import Budget

    return Budget.of(
        gpu=card.gpu,
        gpu_memory=card.gpu_memory,
        kv_cache_memory=pool_bytes,
        saved=None if card.overheads is None else read_overheads(card.overheads),
        loras=card.loras,
        lora_rank=card.lora_rank,
    )
