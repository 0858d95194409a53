"""kvcalc fit: what a card leaves for the cache, and what that carries."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
import typer

from kvcalc.cli.emit import emit
from kvcalc.cli.engine_flags import count, memory
from kvcalc.cli.engine_options import EngineOptions
from kvcalc.cli.engines import ask_engine
from kvcalc.cli.options import KvDtypeOption, Model, OutputOptions, RequestOptions, ShardingOptions, verb
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from kvcalc.engines.plan import Budget, Plan


class CardOptions(msgspec.Struct, frozen=True):
    """Which cards, and what lies on them beside the cache."""

    PANEL: ClassVar = "Cards"
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="The card: h100-sxm, rtx-4090 (kvcalc gpus list), or auto.")
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
        Path | None, typer.Option(metavar="FILE", help="What kvcalc reconcile --save read from a log.")
    ] = None
    loras: Annotated[int, typer.Option(metavar="N", help="LoRA adapters loaded at once.")] = 0
    lora_rank: Annotated[int, typer.Option(metavar="R", help="Their rank.")] = 16


@verb
def fit(
    model: Model,
    *,
    request: RequestOptions,
    kv: KvDtypeOption,
    card: CardOptions,
    engine: EngineOptions,
    sharding: ShardingOptions,
    output: OutputOptions,
) -> int:
    """What a card leaves for the cache, what that carries, and what would fit where it does not."""
    from kvcalc.engines.fit import answer
    from kvcalc.engines.fit_report import fit_report
    from kvcalc.engines.plain import Plain
    from kvcalc.engines.plan import Plan

    budget = _budget(card, engine)
    asked, found = ask_engine(
        model, request, kv.kv_dtype, msgspec.structs.replace(engine, kv_cache_memory=None), sharding
    )
    size = asked.size
    plan = Plan(spec=size.spec, workload=size.workload, sharding=size.sharding, engine=found or Plain(), budget=budget)
    report = fit_report(answer(_on(plan, card.gpus)))
    emit(report, output, asked.notes)
    return report.exit_code


def _on(plan: "Plan", gpus: int | None) -> "Plan":
    """The plan on `--gpus` cards: tensor parallel where nothing else spreads it."""
    if gpus is None or gpus == plan.gpus:
        return plan
    if plan.engine.spreads_layers:
        return msgspec.structs.replace(plan, budget=msgspec.structs.replace(plan.budget, cards=gpus))
    if plan.gpus > 1:
        raise KvcalcError(
            f"--gpus {gpus}, but the ranks are {plan.gpus}", "leave --gpus out: --tp, --pp and --dp say it"
        )
    return plan.on(tp=gpus)


def _budget(card: CardOptions, engine: EngineOptions) -> "Budget":
    """Where the memory comes from, and what lies beside the cache."""
    from kvcalc.engines.overheads import read_overheads
    from kvcalc.engines.plan import Budget

    return Budget.of(
        gpu=card.gpu,
        gpu_memory=card.gpu_memory,
        kv_cache_memory=engine.kv_cache_memory,
        saved=None if card.overheads is None else read_overheads(card.overheads),
        loras=card.loras,
        lora_rank=card.lora_rank,
    )
