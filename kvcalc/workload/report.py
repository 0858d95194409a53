"""A simulation on a screen: how much cache it needs, how much of that is waste, and who waits."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from kvcalc.report import Bar, Report
from kvcalc.sizing.report import kv_formats
from kvcalc.units import SECONDS, counted, decimal, memory
from kvcalc.workload.answer import Answer, simulate_document, waiting_peak
from kvcalc.workload.metrics import Spread
from kvcalc.workload.outcome import REFUSALS
from kvcalc.workload.runs import Run, names_of
from kvcalc.workload.summary import summarise
from kvcalc.workload.tables import curve_table, settings_table, shown_table, times_table

if TYPE_CHECKING:
    from kvcalc.workload.documents import GoalsDocument

FULL = 0.99
"""From this share on a pool counts as full."""
LEFT = 0.05
"""Where a larger share of all requests waits as the last one comes, and more than ever run, the queue grew."""


def simulate_report(answer: Answer) -> Report:
    """The answer of `kvcalc simulate`; exit code 1 where limits were given that nothing meets."""
    only = answer.runs[0] if len(answer.runs) == 1 else None
    tables = (settings_table(answer), *([] if only is None else [times_table(only)]), *map(curve_table, answer.curves))
    # Blocks of other sizes have nearly the same curve.
    shown = tables[1:3] if only is not None else (shown_table(tables[0]), *tables[1:2])
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
    plan = run.case.server.plan
    yield answer.spec.name
    card = plan.budget.gpu or ("a card" if plan.budget.total_bytes else "a pool that was given")
    yield f"{run.fleet * plan.gpus} x {card}" if plan.budget.total_bytes else card
    yield "no engine" if plan.engine.is_plain else f"{plan.engine.name} {plan.engine.version}"
    if len(answer.runs) == 1:
        yield from _kept(run)
    drawn = f"drawn by seed {answer.seed}" if answer.trace.name.startswith("isl=") else f"of {answer.trace.name}"
    yield f"{counted(len(answer.trace), 'request')} {drawn}"


def _kept(run: Run) -> Iterator[str]:
    """The format of what is kept, and the room that it takes."""
    blocks = run.case.pool.block_tokens
    if not blocks:
        yield "states alone"
        return
    yield f"KV {kv_formats(run.case.pool.outcome.size)}"
    yield f"blocks of {'/'.join(map(str, blocks))}" if run.case.setting.allocator == "paged" else "contiguous"


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
            yield Bar(label, round(round(share, 3) * pool.pool_bytes), f"{share:.1%}, {why}", depth=1)


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
    for name, goal in zip(names_of(runs), answer.goals, strict=False):
        yield from _goal(name, goal)


def _interrupted(answer: Answer) -> Iterator[str]:
    done = len(answer.runs)
    last = answer.runs[-1]
    if last.outcome.is_complete and done == answer.asked:
        yield "interrupted while searching: what was found before it is below"
        return
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
    found, peak = run.metrics, waiting_peak(run.outcome)
    at_once = f"{_few(found.mean_running)} requests run at once, at most {found.peak_running:,}"
    if not is_timed:
        yield f"{at_once}; all wait from the start, a step is the unit of time"
    elif not peak:
        yield f"{at_once}; none waits"
    else:
        waits = found.queueing
        p99 = f"; 1 in 100 waits {decimal(_p99(waits), SECONDS)} or longer" if waits else ""
        yield f"{at_once}; {_few(found.mean_waiting)} wait, at most {peak:,}{p99}"
    if found.preemptions:
        yield (
            f"{counted(found.preemptions, 'preemption')} of {counted(found.preempted_requests, 'request')}, "
            f"{found.recomputed_tokens:,} tokens computed again"
        )
    yield from _refused(run)


def _few(mean: float) -> str:
    return f"{mean:,.1f}" if mean >= 1 else f"{mean:.2g}"


def _refused(run: Run) -> Iterator[str]:
    trace, refused = run.outcome.trace, run.outcome.requests.refused
    for code, why in REFUSALS.items():
        places = (refused == code).nonzero()[0]
        if len(places):
            first = int(places[0])
            lengths = f"{int(trace.prompt_tokens[first]):,} and {int(trace.output_tokens[first]):,} tokens"
            yield f"{counted(len(places), 'request')} refused: {why}; the first is request {first + 1:,}, {lengths}"


def _prefixes(run: Run) -> Iterator[str]:
    if not run.case.setting.prefix_caching:
        return
    shared = run.metrics.spared_share * run.case.pool.pool_bytes * run.fleet
    found = f"{run.metrics.hit_rate:.1%} of prompt tokens are found in the cache"
    yield f"{found}; sharing saves {memory(shared)} of it on average"


def _rates(run: Run, is_timed: bool) -> Iterator[str]:
    found, totals = run.metrics, run.outcome.totals
    if not is_timed:
        yield f"{totals.steps:,} steps, {found.output_tokens_per_second:,.1f} tokens of answers a step"
        return
    yield (
        f"{found.requests_per_second:,.2f} requests/s, {found.output_tokens_per_second:,.0f} tokens/s of answers; "
        f"busy {found.busy_share:.1%} of {decimal(totals.seconds, SECONDS)}"
    )
    come = summarise(run.outcome.trace).rate_per_second
    if come is not None and _left(run) > max(LEFT * run.served, found.peak_running):
        yield f"it does not keep up: {come:,.2f} requests/s come, and the queue grows while they do"


def _left(run: Run) -> int:
    """Requests that wait as the last one comes."""
    requests = run.outcome.requests
    return int((requests.admitted_seconds > requests.arrival_seconds.max()).sum())


def _compared(answer: Answer) -> Iterator[str]:
    """The best of several settings by what they differ in, and the worst beside it."""
    names = names_of(answer.runs)
    if answer.is_timed:
        # Ctrl-C may end a setting before the first of its requests.
        ended = {name: run.metrics.e2e for name, run in zip(names, answer.runs, strict=True) if run.metrics.e2e}
        if not ended:
            return
        names, times = list(ended), [_p99(spread) for spread in ended.values()]
        what, said = "fastest whole requests (p99)", [decimal(time, SECONDS) for time in times]
    else:
        times = [run.outcome.totals.steps for run in answer.runs]
        what, said = "fewest steps", [f"{time:,.0f}" for time in times]
    best, worst = times.index(min(times)), times.index(max(times))
    if best != worst:
        yield f"{what}: {names[best]}, {said[best]}; most: {names[worst]}, {said[worst]}"
    else:
        yield f"{what}: {said[best]} in every setting"


def _p99(spread: Spread) -> float:
    return spread.percentiles[3]


def _goal(name: str, goal: "GoalsDocument") -> Iterator[str]:
    limits = [
        f"{what} {decimal(limit, SECONDS)}"
        for what, limit in (("TTFT", goal["max_ttft_seconds"]), ("TPOT", goal["max_tpot_seconds"]))
        if limit is not None
    ]
    kept = f"{' and '.join(limits)} for {goal['percentile']:g} of 100 requests"
    said = "kept" if goal["meets"] else f"not kept, {goal['breaks']}"
    yield f"{name}: {kept}: {said}" if name else f"{kept}: {said}"
    if goal["any_rate"]:
        yield "  largest rate that keeps it: any, even all at once"
    if goal["largest_rate_per_second"] is not None:
        yield f"  largest rate that keeps it: {goal['largest_rate_per_second']:,.3g} requests/s{_then(goal, 'rate')}"
    if goal["smallest_pool_bytes"] is not None:
        yield f"  smallest pool that keeps it: {memory(goal['smallest_pool_bytes'])}{_then(goal, 'pool')}"
    elif "pool" in goal["beyond"]:
        yield f"  no pool is large enough{_then(goal, 'pool')}"
    if goal["fewest_gpus"] is not None:
        yield f"  fewest GPUs that keep it: {goal['fewest_gpus']} ({goal['replicas']} x --tp {goal['tp']})"


def _then(goal: "GoalsDocument", what: str) -> str:
    """What breaks one step further."""
    breaks = goal["beyond"].get(what)
    return f"; beyond it {breaks}" if breaks else ""
