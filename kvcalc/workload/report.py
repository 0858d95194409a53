"""A simulation on a screen: how much cache it needs, how much of that is waste, and who waits."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from kvcalc.report import Bar, Column, Report, Table, Value
from kvcalc.units import SECONDS, counted, decimal, exact_bytes, memory
from kvcalc.workload.answer import Answer, Run, names_of, simulate_document, waiting_peak
from kvcalc.workload.metrics import Spread

if TYPE_CHECKING:
    from kvcalc.workload.documents import HitCurveDocument

FULL = 0.99
"""From this share on a pool counts as full."""


def simulate_report(answer: Answer) -> Report:
    """The answer of `kvcalc simulate`; exit code 1 where limits were given that nothing meets."""
    only = answer.runs[0] if len(answer.runs) == 1 else None
    tables = (_settings(answer), *([] if only is None else [_times(only)]), *map(_curve, answer.curves))
    shown = tables[1:] if only is not None else tables
    return Report(
        document=cast("dict[str, Any]", simulate_document(answer)),
        title=tuple(_title(answer)),
        bars=() if only is None else tuple(_bars(only)),
        lines=tuple(_lines(answer)),
        tables=tables,
        shown_tables=tuple(table for table in shown if table.rows),
        notes=answer.notes,
        exit_code=0 if all(goal["meets"] for goal in answer.goals) else 1,
    )


def _title(answer: Answer) -> Iterator[str]:
    run = answer.runs[0]
    plan, blocks = run.case.server.plan, run.case.pool.block_tokens
    yield answer.spec.name
    card = plan.budget.gpu or ("a card" if plan.budget.total_bytes else "a pool that was given")
    yield f"{run.fleet * plan.gpus} x {card}" if plan.budget.total_bytes else card
    yield "no engine" if plan.engine.is_plain else f"{plan.engine.name} {plan.engine.version}"
    if len(answer.runs) == 1:
        yield f"KV {plan.workload.kv_dtype}"
        yield f"blocks of {'/'.join(map(str, blocks))}" if run.case.server.allocator == "paged" else "contiguous"
    yield f"{len(answer.trace):,} requests of {answer.trace.name}"


def _bars(run: Run) -> Iterator[Bar]:
    """The pool, and what it was used for on average."""
    pool, shares = run.case.pool, run.metrics.pool
    copies = f", each of {run.fleet}" if run.fleet > 1 else ""
    yield Bar(
        "pool",
        pool.pool_bytes,
        f"a rank{copies}, as kvcalc fit says; the mean over time of what is in it:",
        drawn=False,
    )
    parts = (
        ("tokens", shares.filled, "computed, and still read"),
        ("reserved", shares.reserved, "for tokens that will come"),
        ("internal", shares.internal, "held, and never written"),
        ("kept prefixes", shares.cached, "read by nobody at the time"),
        ("external", shares.external, "held by nobody"),
    )
    for label, share, why in parts:
        if label != "kept prefixes" or run.case.setting.prefix_caching:
            yield Bar(label, round(share * pool.pool_bytes), f"{share:.1%}, {why}", depth=1)


def _lines(answer: Answer) -> Iterator[str]:
    if not answer.is_complete:
        yield from _interrupted(answer)
    runs = answer.runs
    if len(runs) == 1:
        yield from _need(runs[0])
        yield from _waste(runs[0])
        yield from _waits(runs[0], answer.is_timed)
        yield from _prefixes(runs[0])
        yield from _rates(runs[0], answer.is_timed)
    else:
        yield from _compared(answer)
    for goal in answer.goals:
        yield from _goal(goal)


def _interrupted(answer: Answer) -> Iterator[str]:
    done = len(answer.runs)
    last = answer.runs[-1]
    ended = last.metrics.finished
    where = f", in setting {done} of {answer.asked}" if answer.asked > 1 else ""
    yield f"interrupted after {ended:,} of {last.served:,} requests{where}: the figures are of what is done"


def _need(run: Run) -> Iterator[str]:
    setting, totals, found = run.case.setting, run.outcome.totals, run.metrics
    peak = totals.peak_units * setting.layout.bytes_per_unit
    mean = (found.pool.filled + found.pool.reserved + found.pool.internal) * run.case.pool.pool_bytes * run.fleet
    is_full = found.peak_share >= FULL
    said = "the pool is full at times" if is_full else f"it needs {memory(peak)} of cache at its peak"
    yield f"{said}: {found.peak_share:.1%} of the pool; {memory(mean)} on average"


def _waste(run: Run) -> Iterator[str]:
    pool = run.metrics.pool
    held = pool.filled + pool.reserved + pool.internal
    if held:
        waste = (pool.reserved + pool.internal) / held
        yield f"of what is held {pool.filled / held:.1%} is tokens and {waste:.1%} waste"


def _waits(run: Run, is_timed: bool) -> Iterator[str]:
    found = run.metrics
    peak = waiting_peak(run.outcome)
    at_once = f"{found.mean_running:,.1f} requests run at once, at most {found.peak_running:,}"
    if not is_timed:
        yield f"{at_once}; all wait from the start (a step is the unit of time)"
    elif not peak:
        yield f"{at_once}; none waits"
    else:
        p99 = (
            ""
            if found.queueing is None
            else f"; 1 in 100 waits {decimal(found.queueing.percentiles[3], SECONDS)} or longer"
        )
        yield f"{at_once}; {found.mean_waiting:,.1f} wait, at most {peak:,}{p99}"
    if found.preemptions:
        yield (
            f"{counted(found.preemptions, 'preemption')} of {counted(found.preempted_requests, 'request')}, "
            f"{found.recomputed_tokens:,} tokens computed again"
        )
    for why, count in run.outcome.refused.items():
        first = int(run.outcome.refused_requests()[0])
        trace = run.outcome.trace
        yield (
            f"{counted(count, 'request')} refused: {why}; the first is request {first + 1:,}, "
            f"{int(trace.prompt_tokens[first]):,} and {int(trace.output_tokens[first]):,} tokens"
        )


def _prefixes(run: Run) -> Iterator[str]:
    if not run.case.setting.prefix_caching:
        return
    whole = run.outcome.setting.pool_units * run.outcome.totals.seconds or 1.0
    shared = run.outcome.totals.shared / whole * run.case.pool.pool_bytes * run.fleet
    yield f"{run.metrics.hit_rate:.1%} of prompt tokens are found in the cache; sharing saves {memory(shared)} of it on average"


def _rates(run: Run, is_timed: bool) -> Iterator[str]:
    found, totals = run.metrics, run.outcome.totals
    if is_timed:
        yield (
            f"{found.requests_per_second:,.2f} requests/s, {found.output_tokens_per_second:,.0f} tokens/s of answers; "
            f"busy {found.busy_share:.1%} of {decimal(totals.seconds, SECONDS)}"
        )
    else:
        yield f"{totals.steps:,} steps, {found.output_tokens_per_second:,.1f} tokens of answers a step"


def _compared(answer: Answer) -> Iterator[str]:
    """The best of several settings by what they differ in."""
    names = names_of(answer.runs)
    if answer.is_timed:
        best = min(range(len(names)), key=lambda place: _p99(answer.runs[place].metrics.e2e))
        yield f"fastest for 99 of 100 requests: {names[best]}"
    else:
        best = min(range(len(names)), key=lambda place: answer.runs[place].outcome.totals.steps)
        yield f"fewest steps: {names[best]}"


def _p99(spread: Spread | None) -> float:
    return float("inf") if spread is None else spread.percentiles[3]


def _goal(goal: Any) -> Iterator[str]:
    limits = [
        f"{name} {decimal(goal[key], SECONDS)}"
        for name, key in (("TTFT", "max_ttft_seconds"), ("TPOT", "max_tpot_seconds"))
        if goal[key] is not None
    ]
    kept = f"{' and '.join(limits)} for {goal['percentile']:g} of 100 requests"
    yield f"{kept}: {'kept' if goal['meets'] else 'not kept'}"
    if goal["largest_rate_per_second"] is not None:
        yield f"  largest rate that keeps it: {goal['largest_rate_per_second']:,.3g} requests/s"
    if goal["smallest_pool_bytes"] is not None:
        yield f"  smallest pool that keeps it: {memory(goal['smallest_pool_bytes'])}"
    if goal["fewest_gpus"] is not None:
        yield f"  fewest GPUs that keep it: {goal['fewest_gpus']}"


def _times(run: Run) -> Table:
    """What users see, a row a time."""
    found = run.metrics
    rows = [(name, spread) for name, spread in _NAMED(found) if spread is not None]
    unit = "seconds" if run.case.server.is_timed else "number"
    columns = (Column("time", "" if unit == "seconds" else "steps"), *(Column(name, name, unit) for name in _SPREAD))
    return Table(columns, [(name, spread.mean, *spread.percentiles, spread.largest) for name, spread in rows])  # type: ignore[arg-type]


def _NAMED(found: Any) -> list[tuple[str, Spread | None]]:
    return [
        ("time to first token", found.ttft),
        ("time per output token", found.tpot),
        ("whole request", found.e2e),
        ("waiting for room", found.queueing),
    ]


_SPREAD = ("mean", "p50", "p90", "p95", "p99", "largest")


def _settings(answer: Answer) -> Table:
    """A row a setting; what no setting has is left out."""
    unit = "seconds" if answer.is_timed else "number"
    columns = (
        Column("setting", "setting"),
        Column("finished", "done", "count"),
        Column("refused", "refused", "count"),
        Column("unfinished", "cut off", "count"),
        Column("pool_bytes", "pool", "bytes"),
        Column("peak_bytes", "peak", "bytes"),
        Column("pool_mean", "mean use", "fraction"),
        Column("token_states", "tokens", "fraction"),
        Column("reserved", "reserved", "fraction"),
        Column("internal", "internal", "fraction"),
        Column("external", "external", "fraction"),
        Column("cached", "kept", "fraction"),
        Column("hit_rate", "hit rate", "fraction"),
        Column("running_mean", "running", "number"),
        Column("waiting_mean", "waiting", "number"),
        Column("preemptions", "preempted", "count"),
        Column("ttft_p99", "TTFT p99", unit),  # type: ignore[arg-type]
        Column("tpot_p99", "TPOT p99", unit),  # type: ignore[arg-type]
        Column("duration", "duration" if answer.is_timed else "steps", unit),  # type: ignore[arg-type]
        Column("output_tokens_rate", "tokens/s" if answer.is_timed else "tokens/step", "number"),
    )
    rows = [_row(run, name) for run, name in zip(answer.runs, names_of(answer.runs), strict=True)]
    table = Table(columns, rows)
    empty = [
        column.key
        for place, column in enumerate(columns)
        if column.key in ("refused", "unfinished", "preemptions", "cached", "setting")
        and not any(row[place] for row in rows)
    ]
    return table.without(*empty).filled()


def _row(run: Run, name: str) -> tuple[Value, ...]:
    found, shares = run.metrics, run.metrics.pool
    return (
        name,
        found.finished,
        sum(run.outcome.refused.values()),
        run.served - found.finished,
        run.case.pool.pool_bytes,
        run.outcome.totals.peak_units * run.case.setting.layout.bytes_per_unit,
        shares.filled + shares.reserved + shares.internal,
        shares.filled,
        shares.reserved,
        shares.internal,
        shares.external,
        shares.cached,
        found.hit_rate if run.case.setting.prefix_caching else None,
        found.mean_running,
        found.mean_waiting,
        found.preemptions,
        None if found.ttft is None else found.ttft.percentiles[3],
        None if found.tpot is None else found.tpot.percentiles[3],
        run.outcome.totals.seconds,
        found.output_tokens_per_second,
    )


def _curve(curve: "HitCurveDocument") -> Table:
    """A few capacities of the whole curve."""
    columns = (
        Column("capacity_tokens", "tokens kept", "tokens"),
        Column("capacity_bytes", "of cache", "bytes"),
        Column("hit_rate", "hit rate", "fraction"),
        Column("of_largest", "of the largest", "fraction"),
    )
    largest = curve["unlimited"] or 1.0
    rows, before = [], -1
    for share in _SHOWN:
        place = next((at for at, rate in enumerate(curve["hit_rates"]) if rate >= share * largest), None)
        if place is not None and place != before:
            before = place
            tokens, rate = curve["capacity_tokens"][place], curve["hit_rates"][place]
            rows.append((tokens, round(tokens * curve["bytes_per_token"]), rate, rate / largest))
    return Table(
        columns, rows, f"Hit rate of a cache that keeps prefixes alone, blocks of {curve['block_tokens']:,} tokens"
    )


_SHOWN = (0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
