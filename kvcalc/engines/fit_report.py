"""An answer of `kvcalc fit` as a report: the JSON contract, and the screen beside it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import msgspec

from kvcalc.engines.engine import Capacity
from kvcalc.engines.fit import MOST_CONTEXT, Answer, Change
from kvcalc.engines.overheads import Term
from kvcalc.engines.plan import Outcome
from kvcalc.report import Bar, Column, Report, Table
from kvcalc.sizing.engine_lines import figure_lines
from kvcalc.sizing.notes import notes_on
from kvcalc.sizing.report import kv_formats, request_document
from kvcalc.units import counted, memory

if TYPE_CHECKING:
    from kvcalc.engines.documents import (
        CapacityDocument,
        ChangeDocument,
        FitDocument,
        GpuAskedDocument,
        TermDocument,
        WorstRankDocument,
    )

SCHEMA = "kvcalc.fit/1"


def fit_report(answer: Answer) -> Report:
    """The answer of `kvcalc fit`; exit code 1 where the batch does not run at once."""
    outcome = answer.outcome
    return Report(
        document=fit_document(answer),
        title=tuple(_title(outcome)),
        bars=tuple(_bars(answer)),
        lines=tuple(_lines(answer)),
        tables=(_table(outcome),),
        shown_tables=(),
        notes=tuple(_notes(outcome)),
        exit_code=0 if outcome.fits else 1,
    )


def fit_document(answer: Answer) -> "FitDocument":
    """The versioned JSON document: plain numbers under names that carry the unit."""
    outcome, size = answer.outcome, answer.outcome.size
    return {
        "schema": SCHEMA,
        "model": {"name": size.spec.name, "source": size.spec.source},
        "request": {**request_document(size), "engine": engine_name(outcome)},
        "gpu": _gpu(outcome),
        "fits": outcome.fits,
        "certain": outcome.is_certain,
        "limited_by": _limit(outcome),
        "terms": [_term(term) for term in outcome.terms],
        "need_bytes": size.bytes_per_rank,
        "allocated_bytes": answer.held.allocated_bytes,
        "pool_bytes": outcome.pool.expected,
        "pool_low_bytes": outcome.pool.low,
        "pool_high_bytes": outcome.pool.high,
        "all_ranks_pool_bytes": outcome.pool.expected * size.ranks,
        "worst_rank": _worst_rank(outcome),
        "capacity": None if outcome.capacity is None else _capacity(outcome.capacity),
        "max_context_tokens": answer.longest_context,
        "max_batch": answer.most_sequences,
        "min_gpus": None if answer.fewest is None else answer.fewest.plan.gpus,
        "changes": [cast("ChangeDocument", msgspec.structs.asdict(change)) for change in answer.changes],
        "rules": list(answer.held.rules),
        "basis": outcome.basis,
        "notes": list(_notes(outcome)),
    }


def engine_name(outcome: Outcome) -> str | None:
    """NAME@VERSION of the engine, None where none was named."""
    engine = outcome.plan.engine
    return None if engine.is_plain else f"{engine.name}@{engine.version}"


def _gpu(outcome: Outcome) -> "GpuAskedDocument | None":
    budget = outcome.plan.budget
    if budget.total_bytes is None:
        return None
    return {"name": budget.gpu, "total_bytes": budget.total_bytes, "count": outcome.plan.gpus}


def _term(term: Term) -> "TermDocument":
    return {
        "name": term.name,
        "low_bytes": term.low_bytes,
        "expected_bytes": term.expected_bytes,
        "high_bytes": term.high_bytes,
        "basis": term.basis,
        "why": term.why,
    }


def _limit(outcome: Outcome) -> str:
    """What runs out first."""
    return "memory beside the cache" if outcome.capacity is None else outcome.capacity.limited_by


def _worst_rank(outcome: Outcome) -> "WorstRankDocument | None":
    stages = outcome.size.stages
    if len(stages) == 1:
        return None
    return {"stage": outcome.worst_stage, "layers": list(stages[outcome.worst_stage])}


def _capacity(capacity: Capacity) -> "CapacityDocument":
    sizes = list(capacity.block_tokens)
    return {
        "tokens": capacity.tokens,
        "blocks": capacity.num_blocks,
        "block_tokens": sizes[0] if len(sizes) == 1 else None,
        "block_sizes": sizes,
        "concurrency_at_context": capacity.max_concurrency,
        "sequences": capacity.sequences,
        "longest_request": capacity.longest_request,
        "figures": capacity.figures,
    }


def _title(outcome: Outcome) -> Iterator[str]:
    plan, work, ranks = outcome.plan, outcome.plan.workload, outcome.plan.sharding
    yield outcome.size.spec.name
    if plan.budget.total_bytes is not None:
        yield f"{plan.gpus} x {plan.budget.gpu or memory(plan.budget.total_bytes)}"
    spread = [f"{name} {getattr(ranks, name)}" for name in ranks.__struct_fields__ if getattr(ranks, name) > 1]
    yield from spread
    yield f"context {work.context_tokens:,}"
    yield f"batch {work.batch:,}"
    yield f"KV {kv_formats(outcome.size)}"
    yield "no engine" if plan.engine.is_plain else f"{plan.engine.name} {plan.engine.version}"


def _bars(answer: Answer) -> Iterator[Bar]:
    """The card of one rank, and what lies on it."""
    outcome = answer.outcome
    total = outcome.plan.budget.total_bytes
    if total is not None:
        cards = outcome.plan.budget.cards
        yield Bar("card" if cards == 1 else "cards", total * cards, "as the driver reports it")
    for term in outcome.terms:
        yield Bar(term.name, term.expected_bytes, f"{_range(term)}{term.why}", depth=1)
    if outcome.aside_bytes > 0:
        yield Bar("left free", outcome.aside_bytes, outcome.plan.engine.pool_rule, depth=1)
    pool = outcome.pool
    if pool.expected <= 0:
        yield Bar("short", -pool.expected, "a rank, before anything is cached", depth=1, drawn=False)
        return
    between = "" if pool.low == pool.high else f"{memory(max(0, pool.low))} to {memory(pool.high)}, "
    yield Bar("pool", pool.expected, f"{between}{_pool_of(outcome)}", depth=1)
    yield Bar(
        "batch takes",
        answer.held.allocated_bytes,
        f"of the pool; its need is {memory(outcome.size.bytes_per_rank)}",
        depth=2,
    )


def _pool_of(outcome: Outcome) -> str:
    cards = outcome.plan.budget.cards
    return f"on {cards:,} cards together" if cards > 1 else "a rank"


def _range(term: Term) -> str:
    if term.high_bytes is None:
        return "unknown, counted as nothing: " if not term.low_bytes else f"{memory(term.low_bytes)} or more: "
    return "" if term.low_bytes == term.high_bytes else f"{memory(term.low_bytes)} to {memory(term.high_bytes)}: "


def _lines(answer: Answer) -> Iterator[str]:
    outcome, work = answer.outcome, answer.outcome.plan.workload
    yield _verdict(answer)
    yield from _pool_lines(outcome)
    yield f"largest context at batch {work.batch:,}: {_longest(answer)}"
    yield f"most sequences at {counted(work.context_tokens, 'token')}: {answer.most_sequences:,}"
    if answer.fewest is not None:
        yield f"fewest GPUs for it: {answer.fewest.plan.gpus:,}{_spread(answer.fewest)}"
    elif outcome.plan.budget.total_bytes is not None:
        yield "fewest GPUs for it: none of those tried carries it"
    yield from _change_lines(answer)
    if answer.held.rules:
        yield "by these rules:"
    yield from (f"  {rule}" for rule in answer.held.rules)


def _longest(answer: Answer) -> str:
    """The longest context, and where it is no edge of the memory."""
    longest, limit = answer.longest_context, answer.outcome.plan.spec.max_context
    if not longest:
        return "none fits"
    edge = " (the model's own limit)" if longest == limit else ""
    if limit is not None and longest > limit and longest == answer.outcome.plan.workload.context_tokens:
        edge = f" (as asked; the model's own limit is {limit:,})"
    if limit is None and longest == MOST_CONTEXT:
        edge = " (no more is tried)"
    return f"{counted(longest, 'token')}{edge}"


def _verdict(answer: Answer) -> str:
    outcome, work = answer.outcome, answer.outcome.plan.workload
    asked = f"{counted(work.batch, 'sequence')} of {counted(work.context_tokens, 'token')}"
    doubt = "" if outcome.is_certain else "; not certain: the other way at the other end of what is assumed"
    if outcome.fits:
        return f"it fits: {asked}, of {answer.most_sequences:,} that the pool carries{doubt}"
    if outcome.capacity is None:
        return f"it does not fit: {memory(-outcome.pool.expected)} short before anything is cached{doubt}"
    return f"it does not fit: {asked}, and the pool carries {outcome.sequences:,}, limited by {_limit(outcome)}{doubt}"


def _pool_lines(outcome: Outcome) -> Iterator[str]:
    """The pool in the figures of the engine's log, per rank and in all."""
    capacity, ranks = outcome.capacity, outcome.size.ranks
    if ranks > 1 and outcome.pool.expected > 0:
        worst = f", as small as on stage {outcome.worst_stage}" if len(outcome.size.stages) > 1 else ""
        of_all = memory(outcome.pool.expected * ranks)
        yield f"pool: {memory(outcome.pool.expected)} a rank{worst}, {of_all} on all {ranks:,}"
    if capacity is None:
        return
    each = " of a data-parallel rank" if outcome.plan.sharding.dp > 1 else ""
    if capacity.num_blocks is not None:
        yield f"blocks{each}: {capacity.num_blocks:,}"
    yield from figure_lines(capacity.figures)
    if capacity.log:
        yield f"its log{each}: {capacity.log}"


def _spread(outcome: Outcome) -> str:
    ranks = outcome.plan.sharding
    stages = f" --pp {ranks.pp}" if ranks.pp > 1 else ""
    return "" if outcome.plan.engine.spreads_layers else f" (--tp {ranks.tp}{stages})"


def _change_lines(answer: Answer) -> Iterator[str]:
    """What would make it fit, the smallest change first."""
    if answer.outcome.fits:
        return
    yield "one change that would fit, the smallest first:" if answer.changes else "no single change would fit"
    for change in answer.changes:
        yield f"  {change.what} {_shown(change.becomes)} instead of {_shown(change.asked)}: {_flag(change)}"


def _flag(change: Change) -> str:
    return change.flag if change.what in ("GPUs", "ranks") else f"{change.flag} {change.becomes}"


def _shown(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def _table(outcome: Outcome) -> Table:
    """One row a term, the pool and what the batch takes."""
    rows = [
        (term.name, term.low_bytes, term.expected_bytes, term.high_bytes, term.basis, term.why)
        for term in outcome.terms
    ]
    pool = outcome.pool
    rows.append(("pool", pool.low, pool.expected, pool.high, outcome.basis, _pool_of(outcome)))
    columns = (
        Column("term", "term"),
        Column("low_bytes", "at least", "bytes"),
        Column("expected_bytes", "expected", "bytes"),
        Column("high_bytes", "at most", "bytes"),
        Column("basis", "basis"),
        Column("why", "why"),
    )
    return Table(columns, rows)


def _notes(outcome: Outcome) -> Iterator[str]:
    yield from (note.text for note in notes_on(outcome.size))
    budget = outcome.plan.budget
    if budget.saved is not None:
        yield from budget.saved.differences(outcome.size, outcome.plan.engine, budget.gpu)
    unknown = [term.name for term in outcome.terms if term.high_bytes is None]
    if unknown:
        yield f"unknown and not counted: {', '.join(unknown)}"
    if outcome.aside_bytes < 0:
        short = memory(-outcome.aside_bytes)
        yield f"{outcome.plan.engine.name} leaves {short} less free than what lies beside the cache may take"
